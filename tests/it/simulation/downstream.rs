//! The handler and the API behind it, which records each arrival.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use sluicegate::handler::{Handler, Outcome, Permit};
use sluicegate::rules::job::Job;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::history::Call;
use super::plan::ms;
use super::world::{Life, World};

/// The handler waits this long for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

pub struct SimHandler(pub Arc<Life>);

#[derive(Debug)]
enum Reply {
    Done,
    /// 429, or 503 with Retry-After.
    Closed(Option<Duration>),
    Failed,
    Rejected,
}

impl Handler for SimHandler {
    async fn handle(&self, job: &Job, permit: Permit) -> Outcome {
        let Self(life) = self;
        let world = &life.world;
        life.point("call, before").await;
        if world.dice(|t| t.panic) {
            panic(world, &job.id);
        }
        if world.dice(|t| t.prepare_slow) {
            sleep(world.up_to(world.plan.limits.guard_ms() * 2)).await;
        }
        life.thaw().await;
        // Looked at right before it is sent: no await lies in between.
        if !permit.is_good() {
            return Outcome::Late;
        }
        let way = ms(world.plan.way_ms) + world.up_to(world.plan.way_varies_ms);
        let (sender, answer) = oneshot::channel();
        let (job_sent, downstream) = (job.clone(), Arc::clone(world));
        tokio::spawn(async move {
            // What was sent arrives, whatever becomes of its sender.
            sleep(way).await;
            let (reply, took) = arrive(&downstream, &job_sent);
            sleep(took).await;
            let _ = sender.send(reply);
        });
        let reply = timeout(TIMEOUT, answer).await;
        life.point("call, after").await;
        if world.dice(|t| t.panic) {
            panic(world, &job.id);
        }
        let outcome = match reply {
            Ok(Ok(Reply::Done)) => Outcome::Done,
            Ok(Ok(Reply::Closed(after))) => Outcome::Throttled {
                after,
                reason: "429 from the downstream".to_owned(),
            },
            Ok(Ok(Reply::Rejected)) => Outcome::Reject {
                reason: "400".to_owned(),
            },
            Ok(Ok(Reply::Failed)) => failed(world, &job.id, "500"),
            _ => failed(world, &job.id, "no answer in time"),
        };
        world.note(format_args!("{} has {} as {outcome:?}", life.name, job.id));
        outcome
    }
}

fn failed(world: &World, id: &str, reason: &str) -> Outcome {
    world.history().job(id).failures += 1;
    let after = (world.below(4) == 0).then(|| world.up_to(3000));
    let reason = reason.to_owned();
    Outcome::Retry { after, reason }
}

/// Without the panic hook, which would write about it.
fn panic(world: &World, id: &str) -> ! {
    world.fault(format_args!("the handler panics with {id}"));
    world.history().job(id).failures += 1;
    resume_unwind(Box::new("injected"));
}

/// A call arrives: what it is answered, and after how long.
fn arrive(world: &World, job: &Job) -> (Reply, Duration) {
    let mut took = world.up_to(world.plan.answer_ms);
    let reply = if world.dice(|t| t.throttle) {
        Reply::Closed((world.below(3) > 0).then(|| world.up_to(20_000)))
    } else if world.dice(|t| t.fail) {
        Reply::Failed
    } else if world.dice(|t| t.reject) {
        Reply::Rejected
    } else {
        Reply::Done
    };
    if world.dice(|t| t.answer_slow) {
        took = world.up_to(15_000);
    }
    let at_us = world.now_us();
    let mut history = world.history();
    let Job {
        id,
        tenant,
        cost,
        attempt,
        ..
    } = job;
    history.note(format_args!(
        "{id} of {tenant} arrives, attempt {attempt}: {reply:?}"
    ));
    let cost = u64::from(*cost);
    let record = history.tenant(tenant.as_str());
    record.arrivals.push(Call { at_us, cost });
    record.arrived += cost;
    let (arrived, started) = (record.arrived, record.started);
    if arrived > started {
        history.wrong(format_args!(
            "{id} of {tenant} arrives without a permit of its own"
        ));
    }
    let record = history.job(id);
    match reply {
        Reply::Done => record.done = true,
        Reply::Rejected => record.rejected = true,
        Reply::Closed(_) => record.throttles += 1,
        Reply::Failed => {}
    }
    let failures = record.failures;
    let most = world.plan.retry.max_attempts;
    if *attempt > failures + 1 || *attempt > most {
        history.wrong(format_args!(
            "{id} is at attempt {attempt} of {most} after {failures} failures"
        ));
    }
    // Nothing but a crash or a lost session takes a job back to an earlier attempt.
    if world.plan.trouble_until.is_zero() && *attempt != failures + 1 {
        history.wrong(format_args!(
            "{id} is at attempt {attempt} after {failures} failures"
        ));
    }
    (reply, took)
}
