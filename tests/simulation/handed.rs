//! Jobs that are handed over. In simulations with seeds from [`HANDED`] to [`PREPARED`], the handler
//! of `dispatch.forward` makes each call, with `done`, and the API is another system's worker that
//! reports when the job is done. Its reports may be lost, late, sent twice, or of an unknown job.
//! Histories of lower seeds are unchanged.

use std::sync::Arc;
use std::time::Duration;

use broker::forwarding::{ExpectedEnd, Forwarding};
use broker::{ExternalMessage, PublishError};
use bytes::Bytes;
use config::{Forward, RoutingKey};
use handler::forward::ForwardHandler;
use handler::{Attempt, Outcome, Permit, PreparingHandler};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rules::headers::DONE_TOKEN;
use rules::job::call::CarriedFields;
use rules::job::{Field, Job};
use serde_json::json;
use tokio::time::sleep;

use super::downstream::{self, Answered, Reply as Answer, THROTTLED, arrive, used};
use super::plan::{Plan, ms};
use super::prepared::PREPARED;
use super::world::{Life, World};

/// First seed with the faults of this module.
pub const HANDED: u64 = 12_000_000;

const QUEUE: &str = "workers";
const DONE: &str = "jobs.done";
/// Maximum delay of a worker's report, in milliseconds. It exceeds every timeout.
const LATE_MS: u64 = 30_000;

/// Probabilities of faults in workers' reports.
#[derive(Debug, Clone, Copy, Default)]
pub struct Handed {
    lost: f64,
    late: f64,
    twice: f64,
    no_owner: f64,
    /// There is no connection right before it is needed.
    down: f64,
    /// RabbitMQ has the job, and its confirm is lost.
    confirm_lost: f64,
    /// The worker takes long.
    slow: f64,
}

impl Handed {
    /// Draws from a random stream of its own.
    pub fn new(seed: u64, troubled: bool) -> Self {
        if !(HANDED..PREPARED).contains(&seed) || !troubled {
            return Self::default();
        }
        let mut random = SmallRng::seed_from_u64(seed.rotate_left(29) ^ 0x4A4D);
        let mut rate = |max: f64| match random.random_bool(0.6) {
            true => random.random_range(0.0..max),
            false => 0.0,
        };
        Self {
            lost: rate(0.2),
            late: rate(0.3),
            twice: rate(0.5),
            no_owner: rate(0.5),
            down: rate(0.1),
            confirm_lost: rate(0.2),
            slow: rate(0.3),
        }
    }
}

/// Calls a job that has a permit.
pub async fn attempt(life: &Arc<Life>, job: &Job, permit: Permit) -> Attempt {
    let world = &life.world;
    let forward = Forward {
        exchange: String::new(),
        routing_key: Some(RoutingKey {
            text: QUEUE.to_owned(),
            of_jobs: None,
            carried: CarriedFields::default(),
        }),
        done: true,
        timeout: world.plan.timeout,
    };
    let workers = Arc::new(Workers {
        life: Arc::clone(life),
        job: job.clone(),
    });
    let handler = ForwardHandler::over(workers, &forward, life.broker.names());
    let attempt = handler.send(job, (), permit).await;
    match &attempt.outcome {
        // The job was not handed over.
        Outcome::Late => return attempt,
        Outcome::Retry { .. } => world.history().job(&job.id).failures += 1,
        Outcome::Throttled { .. } => {
            world.history().tenant(job.tenant.as_str()).throttled += 1;
        }
        _ => {}
    }
    life.point("call, after").await;
    used(world, job, attempt.seen.actual_cost.unwrap_or(job.cost));
    let (name, id) = (&life.name, &job.id);
    world.note(format_args!("{name} has {id} as {attempt:?}"));
    attempt
}

/// The workers' queue, as one call sees it.
struct Workers {
    life: Arc<Life>,
    job: Job,
}

impl Forwarding for Workers {
    fn is_up(&self) -> bool {
        let world = &self.life.world;
        !world.dice(|_| world.plan.handed.down)
    }

    async fn up(&self) {}

    fn done_queue(&self) -> Option<&str> {
        Some(DONE)
    }

    fn expect(&self, token: String) -> ExpectedEnd {
        self.life.ends.expect(token)
    }

    async fn publish(&self, outgoing: ExternalMessage) -> Result<(), PublishError> {
        let Self { life, job } = self;
        let world = &life.world;
        let Field::Text(token) = outgoing.message.header(DONE_TOKEN) else {
            panic!("{} goes without a token", job.id);
        };
        let is_it = &*outgoing.routing_key == QUEUE && outgoing.message.body == job.body;
        assert!(is_it, "{} goes elsewhere, or as another", job.id);
        let down = || PublishError::Down("injected".to_owned());
        let way = ms(world.plan.latency_ms) + world.up_to(world.plan.jitter_ms);
        let refused = match () {
            () if world.dice(|t| t.return_) => Some(PublishError::Returned),
            () if world.dice(|t| t.nack) => Some(PublishError::Nacked),
            () if world.dice(|t| t.lose_publish) => Some(down()),
            () => None,
        };
        if let Some(why) = refused {
            downstream::called(world, job);
            sleep(way).await;
            return Err(why);
        }
        let token = token.to_owned();
        tokio::spawn(work(Arc::clone(life), job.clone(), token, way));
        let confirm_lost = world.dice(|_| world.plan.handed.confirm_lost);
        sleep(way).await;
        match confirm_lost {
            true => Err(down()),
            false => Ok(()),
        }
    }
}

/// Delivers the job to a worker after `way`. The worker reports when it is done, whatever happened
/// to the sender.
async fn work(life: Arc<Life>, job: Job, token: String, way: Duration) {
    let world = &life.world;
    sleep(way).await;
    let (answered, mut took) = arrive(world, &job);
    let Plan { handed, .. } = world.plan;
    if world.dice(|_| handed.slow) {
        took = world.up_to(LATE_MS);
    }
    sleep(took).await;
    downstream::over(world, &job);
    if world.dice(|_| handed.lost) {
        return world.fault(format_args!("nobody hears that {} is done", job.id));
    }
    if world.dice(|_| handed.late) {
        sleep(world.up_to(LATE_MS)).await;
    }
    let body = body(world, &job, &answered);
    if world.dice(|_| handed.no_owner) {
        let known = life.ends.report("a guess", body.clone());
        assert!(!known, "nobody has such a token");
    }
    life.ends.report(&token, body.clone());
    if world.dice(|_| handed.twice) {
        let known = life.ends.report(&token, body);
        assert!(!known, "{} is waited for after its end", job.id);
    }
}

/// Returns the worker's report.
fn body(world: &World, job: &Job, answered: &Answered) -> Bytes {
    let Answered {
        reply, actual_cost, ..
    } = answered;
    let mut report = match reply {
        Answer::Done if actual_cost.is_none() => return Bytes::new(),
        Answer::Done => json!({"outcome": "done"}),
        Answer::Rejected => json!({"outcome": "reject", "reason": "400"}),
        Answer::Failed => json!({"outcome": "retry", "reason": "500"}),
        Answer::Closed(after) => {
            let mut report = json!({"outcome": "throttled", "reason": THROTTLED});
            if let Some(after) = after {
                report["after"] = format!("{}ms", after.as_millis()).into();
            }
            report
        }
    };
    if let Some(cost) = actual_cost {
        report["cost"] = (*cost).into();
    }
    if world.below(2) == 0 {
        report["id"] = job.id.as_str().into();
    }
    Bytes::from(report.to_string())
}

#[test]
fn a_job_that_may_have_been_handed_over_counts_as_in_flight() {
    for seed in [HANDED + 245, HANDED + 359, HANDED + 1_829] {
        super::found(seed);
    }
}

#[test]
fn a_429_that_comes_with_advice_closes_its_tenant() {
    super::found(HANDED + 828);
}
