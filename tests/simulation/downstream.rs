//! The handler, and the API behind it, which records each arrival.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use gate::LEASE_MS;
use handler::{Attempt, Fate, Handler, LateEnd, Outcome, Permit, Trouble};
use rules::answers::{LimitInfo, Quotas};
use rules::job::Job;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::away::Manner;
use super::crashes::{self, GuiltyCall};
use super::handed::{self, HANDED};
use super::history::Call;
use super::plan::{Costs, ms};
use super::prepared::PREPARED;
use super::scopes::{Partition, published};
use super::starts;
use super::steering;
use super::world::{Life, World};

/// Reason for closing a tenant.
pub const THROTTLED: &str = "429 from the downstream";

pub struct SimHandler(pub Arc<Life>);

#[derive(Debug)]
pub enum Reply {
    Done,
    /// 429, or 503 with Retry-After.
    Closed(Option<Duration>),
    Failed,
    Rejected,
}

/// The API's answer to a call.
pub struct Answered {
    pub reply: Reply,
    pub actual_cost: Option<u64>,
    used_up: Option<Duration>,
    quotas: Quotas,
}

impl Handler for SimHandler {
    async fn handle(&self, job: &Job, permit: Permit) -> Outcome {
        self.attempt(job, permit).await.outcome
    }

    async fn attempt(&self, job: &Job, permit: Permit) -> Attempt {
        let Self(life) = self;
        let world = &life.world;
        let _running = Running::new(world);
        steering::begins(life, &job.id);
        life.point("call, before").await;
        if world.dice(|t| t.panic) {
            panic(world, job);
        }
        if world.dice(|t| t.prepare_slow) {
            sleep(world.up_to(world.plan.limits.guard_ms().max(600) * 2)).await;
        }
        life.thaw().await;
        if (HANDED..PREPARED).contains(&world.plan.seed) {
            return handed::attempt(life, job, permit).await;
        }
        // The permit is checked right before the call is sent, with no await in between.
        if !permit.is_good() {
            return Outcome::Late.into();
        }
        let away = world
            .plan
            .away
            .manner(world.began.elapsed(), job.tenant.as_str());
        if away == Some(Manner::Refuses) {
            used(world, job, job.cost);
            called(world, job);
            return Attempt {
                trouble: Some(Trouble::Unreachable),
                ..failed(world, &job.id, "no connection").into()
            };
        }
        let way = ms(world.plan.latency_ms) + world.up_to(world.plan.jitter_ms);
        let (sender, mut answer) = oneshot::channel();
        let (job_sent, downstream) = (job.clone(), Arc::clone(world));
        let caller = Arc::clone(life);
        let given_up = CancellationToken::new();
        let hung_up = given_up.clone();
        tokio::spawn(async move {
            // A request that was sent arrives, even if its sender ends.
            sleep(way).await;
            let (answered, took) = arrive(&downstream, &job_sent);
            let crashes = downstream.plan.crashes.is_guilty(&job_sent.id);
            if crashes {
                let call = GuiltyCall {
                    is_awaited: !sender.is_closed(),
                    is_late: way >= downstream.plan.timeout,
                };
                crashes::crash(&caller, &job_sent.id, call);
            }
            // A dead worker's connection is closed, but the API may not notice.
            let took = match away {
                // No lease is held for longer.
                Some(Manner::Silent) => ms(downstream.plan.stands_still_ms.max(15_000)),
                _ => took,
            };
            let _ = timeout(took, hung_up.cancelled()).await;
            over(&downstream, &job_sent);
            if crashes {
                // The caller is gone.
                return std::future::pending().await;
            }
            let _ = sender.send(answered);
        });
        let answered = timeout(world.plan.timeout, &mut answer).await;
        let stands_still = world.plan.stands_still_ms > 0;
        if !stands_still {
            given_up.cancel();
        }
        life.point("call, after").await;
        if world.dice(|t| t.panic) {
            panic(world, job);
        }
        let (reply, mut seen) = (answered.ok().and_then(Result::ok), LimitInfo::default());
        let has_arrived = reply.is_some();
        let outcome = match &reply {
            Some(Answered { reply, .. }) => match reply {
                Reply::Done => Outcome::Done,
                &Reply::Closed(after) => {
                    let tenant = job.tenant.as_str();
                    world.history().tenant(tenant).throttled += 1;
                    let reason = THROTTLED.to_owned();
                    Outcome::Throttled { after, reason }
                }
                Reply::Rejected => Outcome::Reject {
                    reason: "400".to_owned(),
                },
                Reply::Failed => failed(world, &job.id, "500"),
            },
            None => failed(world, &job.id, "no answer in time"),
        };
        if let Some(answered) = reply {
            (seen.actual_cost, seen.used_up) = (answered.actual_cost, answered.used_up);
            seen.quotas = answered.quotas;
        }
        used(world, job, seen.actual_cost.unwrap_or(job.cost));
        world.note(format_args!(
            "{} has {} as {outcome:?} {seen:?}",
            life.name, job.id
        ));
        let fate = match has_arrived {
            true => Fate::Answered,
            false if stands_still => Fate::Abandoned {
                lease: ms(LEASE_MS),
                ended: LateEnd::new(answer.map(drop)),
            },
            false => Fate::Unknown,
        };
        Attempt {
            seen,
            fate,
            ..outcome.into()
        }
    }
}

/// Counts a running handler until it is dropped.
struct Running(Arc<World>);

impl Running {
    fn new(world: &Arc<World>) -> Self {
        world.history().running += 1;
        Self(Arc::clone(world))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.history().running -= 1;
    }
}

fn partitions(world: &World, job: &Job) -> Vec<Partition> {
    let plan = &world.plan;
    published(plan.job(&job.id), job.tenant.as_str(), &plan.limits)
}

pub fn used(world: &World, job: &Job, cost: u64) {
    let mut history = world.history();
    for partition in partitions(world, job) {
        history
            .partition(&partition)
            .used
            .add(1, cost.cast_signed());
    }
}

pub fn failed(world: &World, id: &str, reason: &str) -> Outcome {
    world.history().job(id).failures += 1;
    let after = (world.below(4) == 0).then(|| world.up_to(3000));
    let reason = reason.to_owned();
    Outcome::Retry { after, reason }
}

/// Panics without calling the panic hook, which would print a message.
fn panic(world: &World, job: &Job) -> ! {
    let id = &job.id;
    used(world, job, job.cost);
    world.fault(format_args!("the handler panics with {id}"));
    world.history().job(id).failures += 1;
    resume_unwind(Box::new("injected"));
}

/// Returns the actual cost of a call, or `None` if the API does not say it.
fn actual_cost(world: &World, asked: u64) -> Option<u64> {
    let max = match world.plan.costs {
        Costs::AsAsked => return None,
        Costs::Less => asked,
        Costs::Any => 2 * asked,
    };
    let max = usize::try_from(max).expect("small");
    (world.below(4) > 0).then(|| world.below(max + 1) as u64)
}

/// Records a call of a job. Checks that no attempts were used except those that the job counts.
pub fn called(world: &World, job: &Job) {
    let mut history = world.history();
    let record = history.job(&job.id);
    record.attempts_used = record.attempts_used.max(job.attempt - 1);
}

/// Records the end of a call.
pub fn over(world: &World, job: &Job) {
    for partition in partitions(world, job) {
        let set = usize::from(world.plan.job(&job.id).names_plan);
        world.history().partition(&partition).in_flight[set] -= 1;
    }
}

/// Records the arrival of a call. Returns the answer and how long it takes.
pub fn arrive(world: &World, job: &Job) -> (Answered, Duration) {
    let mut took = match world.plan.ideal {
        true => ms(world.plan.answer_ms),
        false => world.up_to(world.plan.answer_ms),
    };
    let actual_cost = actual_cost(world, job.cost);
    let used_up = world.dice(|t| t.used_up).then(|| world.up_to(10_000));
    let away = world
        .plan
        .away
        .manner(world.began.elapsed(), job.tenant.as_str());
    let reply = if away.is_some() || world.plan.crashes.is_guilty(&job.id) {
        Reply::Failed
    } else if world.dice(|t| t.throttle) {
        Reply::Closed((world.below(3) > 0).then(|| world.up_to(20_000)))
    } else if world.dice(|t| t.fail) {
        Reply::Failed
    } else if world.dice(|t| t.reject) {
        Reply::Rejected
    } else {
        Reply::Done
    };
    if world.dice(|t| t.answer_slow) {
        took = world.up_to(world.plan.stands_still_ms.max(15_000));
    }
    let mut quotas = Quotas::default();
    if world.chance(|t| t.later.quotas) {
        quotas = Quotas::read(["7/1", "1/60,9/0", "100/3600"][world.below(3)]);
    }
    let at_us = world.now_us();
    let mut history = world.history();
    let Job {
        id,
        tenant,
        attempt,
        ..
    } = job;
    history.note(format_args!(
        "{id} of {tenant} arrives, attempt {attempt}: {reply:?}"
    ));
    let cost = actual_cost.unwrap_or(job.cost);
    let call = Call {
        at_us,
        cost,
        names_plan: world.plan.job(id).names_plan,
    };
    history.arrived.push(tenant.to_string());
    for partition in partitions(world, job) {
        let record = history.partition(&partition);
        record.arrivals.push(call);
        let set = usize::from(call.names_plan);
        record.in_flight[set] += 1;
        record.max_in_flight[set] = record.max_in_flight[set].max(record.in_flight[set]);
        if record.arrivals.len() as u64 > record.started {
            history.wrong(format_args!(
                "{id} of {partition} arrives without a permit of its own"
            ));
        }
    }
    starts::look_at_call(&world.plan, &mut history, id, at_us);
    drop(history);
    called(world, job);
    let mut history = world.history();
    let record = history.job(id);
    match reply {
        Reply::Done => record.done = true,
        Reply::Rejected => record.rejected = true,
        Reply::Closed(_) => record.throttles += 1,
        Reply::Failed => {}
    }
    record.calls += 1;
    let (calls, failures) = (record.calls, record.failures);
    let ended = failures + record.throttles + 1;
    let max = world.plan.retry.max_attempts;
    if *attempt > failures + 1 || *attempt > max {
        history.wrong(format_args!(
            "{id} is at attempt {attempt} of {max} after {failures} failures"
        ));
    }
    // Only a crash or a lost session takes a job back to an earlier attempt.
    let spared = world.plan.away.rule.is_some();
    if world.plan.whole && !spared && *attempt != failures + 1 {
        history.wrong(format_args!(
            "{id} is at attempt {attempt} after {failures} failures"
        ));
    }
    if world.plan.whole && calls > ended {
        history.wrong(format_args!("{id} is called again after its end"));
    }
    let planned = world.plan.job(id);
    if job.body != planned.id || planned.tenant.as_deref() != Some(tenant.as_str()) {
        history.wrong(format_args!("{id} of {tenant} is not as it was published"));
    }
    let answered = Answered {
        reply,
        actual_cost,
        used_up,
        quotas,
    };
    (answered, took)
}
