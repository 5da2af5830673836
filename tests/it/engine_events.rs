//! The engine's loop takes every event that it receives, however many have come at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use sluicegate::admin::Health;
use sluicegate::broker::{Broker, Delivery, Event, Message, Outgoing, PublishError, Source, Tag};
use sluicegate::engine::action::{Settings, Update};
use sluicegate::engine::scheduler::Scheduler;
use sluicegate::engine::{Engine, Stop};
use sluicegate::gate::{
    Answer, Change, Event as CallEvent, Gate, GateError, Inspection, Replies, Rule, Sequences,
    SettleReplies, Standings, TenantAsk, TenantReply, TenantSettled, Whose,
};
use sluicegate::handler::{Handler, Outcome, Permit};
use sluicegate::metrics::Metrics;
use sluicegate::rules::job::{CostField, Fields, Job, TenantField};
use sluicegate::rules::lanes::{Ladder, QueueNames};
use sluicegate::rules::limit::{Algorithm, Limit, Limits};
use sluicegate::rules::pushback::ThrottleScope;
use sluicegate::rules::quota::Quotas;
use sluicegate::rules::retry::RetryPolicy;
use sluicegate::rules::scope::Labels;
use sluicegate::rules::tenant::Tenant;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Remembers what was acked, and ends the engine when that is all.
struct Acked {
    tags: Mutex<Vec<u64>>,
    expected: usize,
    stop: Stop,
}

impl Broker for Acked {
    async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Result<(), PublishError>> {
        batch.iter().map(|_| Ok(())).collect()
    }
    async fn ack(&self, tags: Vec<Tag>) {
        let mut acked = self.tags.lock().unwrap();
        acked.extend(tags.iter().map(|tag| tag.tag));
        if acked.len() == self.expected {
            self.stop.soft.cancel();
        }
    }
    async fn stop_consuming(&self) {}
    async fn close(&self) {}
}

/// Lets everything start from some moment on; before it, it does not know what has started.
struct Opens {
    at: Instant,
    takes: Duration,
    refused: AtomicUsize,
    /// Calls that it was told the end of.
    settled: AtomicUsize,
}

impl Opens {
    fn after(wait: Duration) -> Arc<Self> {
        Arc::new(Self {
            at: Instant::now() + wait,
            takes: Duration::ZERO,
            refused: AtomicUsize::new(0),
            settled: AtomicUsize::new(0),
        })
    }
}

impl Gate for Opens {
    async fn ask(&self, batch: &[TenantAsk]) -> Result<Replies, GateError> {
        tokio::time::sleep(self.takes).await;
        let wait = self.at.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            self.refused.fetch_add(1, Ordering::Relaxed);
            let why = "a test says so".to_owned();
            return Err(GateError::Cold { wait, why });
        }
        let start = |ask: &TenantAsk| TenantReply {
            now_ms: 1,
            blocked_until_ms: 0,
            has_failures: false,
            answers: ask
                .asks
                .iter()
                .map(|_| Answer::Start {
                    count: 1,
                    sequences: Sequences::NONE,
                })
                .collect(),
        };
        Ok(batch.iter().map(|ask| Ok(start(ask))).collect())
    }
    async fn settle(&self, batch: &[TenantSettled]) -> Result<SettleReplies, GateError> {
        self.settled.fetch_add(batch.len(), Ordering::Relaxed);
        Ok(vec![Ok(()); batch.len()])
    }
    async fn block(&self, _: &Whose, _: Duration, _: &str) -> Result<(), GateError> {
        Ok(())
    }
    async fn report(&self, _: &Rule, _: &[(Whose, CallEvent)]) -> Result<Standings, GateError> {
        Err(GateError::Refused("not in this test".into()))
    }
    async fn advertised(&self, _: &[(Tenant, Quotas)]) -> Result<(), GateError> {
        Ok(())
    }
    async fn change(&self, _: &Tenant, _: &Change) -> Result<u64, GateError> {
        Err(GateError::Refused("not in this test".into()))
    }
    async fn inspect(&self, _: &Tenant, _: &Labels, _: &Limits) -> Result<Inspection, GateError> {
        Err(GateError::Refused("nobody asks".into()))
    }
}

struct Nothing;

impl Handler for Nothing {
    async fn handle(&self, _: &Job, _: Permit) -> Outcome {
        Outcome::Done
    }
}

fn delivery(tag: u64) -> Event {
    let mut headers = FieldTable::default();
    headers.insert("x-tenant".into(), AMQPValue::LongString("a".into()));
    let properties = BasicProperties::default().with_headers(headers);
    let message = Message {
        routing_key: "jobs".into(),
        properties: properties.with_message_id(tag.to_string().into()),
        body: Bytes::new(),
    };
    let (session, source, redelivered) = (1, Source::Fresh, false);
    let tag = Tag {
        session,
        source,
        tag,
    };
    Event::Deliveries(vec![Delivery {
        source,
        tag,
        redelivered,
        message,
    }])
}

const JOBS: usize = 100;

/// Runs an engine until all jobs are acked.
async fn run_all(gate: Arc<Opens>, metrics: Arc<Metrics>, health: Arc<Health>) {
    let (_nobody, updates) = mpsc::channel(1);
    run_all_updated(gate, metrics, health, updates).await;
}

async fn run_all_updated(
    gate: Arc<Opens>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    updates: mpsc::Receiver<Update>,
) {
    let second = Duration::from_secs(1);
    let stop = Stop::default();
    let broker = Arc::new(Acked {
        tags: Mutex::default(),
        expected: JOBS,
        stop: stop.clone(),
    });
    let (sender, events) = mpsc::channel(JOBS + 1);
    sender
        .send(Event::Up { session: 1 })
        .await
        .expect("there is room");
    for tag in 1..=JOBS as u64 {
        sender.send(delivery(tag)).await.expect("there is room");
    }
    let engine = Engine {
        broker: Arc::clone(&broker),
        gate,
        handler: Arc::new(Nothing),
        metrics: Arc::clone(&metrics),
        health,
        shutdown_timeout: second,
    };
    let scheduler = Scheduler::new(settings(), metrics, 7);
    // The clock is paused: it jumps ahead as soon as nothing is left to do.
    let run = engine.run_updated(scheduler, events, updates, stop);
    let run = tokio::time::timeout(60 * second, run);
    let ended = run.await;
    let mut acked = broker.tags.lock().unwrap().clone();
    acked.sort_unstable();
    assert_eq!(acked, (1..=JOBS as u64).collect::<Vec<_>>());
    assert!(ended.is_ok(), "the engine did not end");
}

/// Limits that let everything start.
pub fn settings() -> Settings {
    let second = Duration::from_secs(1);
    let limit = Limit::new(
        "default",
        Algorithm::SlidingWindow,
        1000,
        second,
        second / 20,
    );
    let ladder = Ladder::new(300 * second);
    Settings {
        policy: limit.expect("a limit").into(),
        fields: Fields {
            tenant: TenantField::Header("x-tenant".into()),
            cost: CostField::Header("x-cost".into()),
        },
        concurrency: JOBS,
        prefetch: 8 * JOBS,
        hold: second / 2,
        names: QueueNames::new("jobs", &ladder),
        ladder,
        retry: RetryPolicy {
            max_attempts: 3,
            initial_interval: second,
            max_interval: second,
            give_up_after: Duration::from_secs(7 * 86_400),
        },
        max_penalty: second,
        throttle_scope: ThrottleScope::Tenant,
        breaker: None,
    }
}

#[tokio::test(start_paused = true)]
async fn no_delivery_is_dropped_when_many_events_have_come_at_once() {
    let (metrics, health) = (Arc::new(Metrics::new()), Arc::default());
    run_all(Opens::after(Duration::ZERO), metrics, health).await;
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_may_have_forgotten_is_looked_at_each_second_until_it_opens() {
    let gate = Opens::after(Duration::from_millis(9_500));
    let (metrics, health) = (Arc::new(Metrics::new()), Arc::new(Health::default()));
    let run = run_all(Arc::clone(&gate), Arc::clone(&metrics), Arc::clone(&health));
    let cold = "Redis may not know all that has started";
    let look = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(health.missing(), [cold]);
        assert!(metrics.encode().contains("sluicegate_gate_cold 1"));
        assert!(
            metrics
                .encode()
                .contains("sluicegate_up{server=\"redis\"} 1")
        );
    };
    tokio::join!(run, look);
    assert!(!health.missing().contains(&cold));
    assert!(metrics.encode().contains("sluicegate_gate_cold 0"));
    assert!(gate.refused.load(Ordering::Relaxed) <= 11);
}

#[tokio::test(start_paused = true)]
async fn an_agreement_is_applied_when_no_question_of_before_is_under_way() {
    let ms = Duration::from_millis;
    let begun = Instant::now();
    let gate = Arc::new(Opens {
        at: begun,
        takes: ms(20),
        refused: AtomicUsize::new(0),
        settled: AtomicUsize::new(0),
    });
    let (sender, updates) = mpsc::channel(1);
    let run = run_all_updated(gate, Arc::new(Metrics::new()), Arc::default(), updates);
    let agree = async {
        tokio::time::sleep(ms(10)).await;
        let (told, done) = oneshot::channel();
        let update = Update::Agreed {
            fleet: None,
            until: begun + ms(60_000),
            applied: Some(told),
        };
        sender.send(update).await.expect("the engine runs");
        done.await.expect("the engine tells");
        assert!(begun.elapsed() >= ms(20), "{:?}", begun.elapsed());
    };
    tokio::join!(run, agree);
}

/// Takes its time, and counts what it has ended.
struct Slow(Arc<AtomicUsize>);

impl Handler for Slow {
    async fn handle(&self, _: &Job, _: Permit) -> Outcome {
        tokio::time::sleep(Duration::from_secs(5)).await;
        self.0.fetch_add(1, Ordering::Relaxed);
        Outcome::Done
    }
}

#[tokio::test(start_paused = true)]
async fn what_runs_may_end_though_the_session_is_lost_while_the_worker_stops() {
    let ended = Arc::new(AtomicUsize::new(0));
    let stop = Stop::default();
    let gate = Opens::after(Duration::ZERO);
    let one = Limit::concurrent("running", 1);
    let settings = Settings {
        policy: one.expect("a limit").into(),
        ..settings()
    };
    let engine = Engine {
        broker: Arc::new(Acked {
            tags: Mutex::default(),
            expected: usize::MAX,
            stop: Stop::default(),
        }),
        gate: Arc::clone(&gate),
        handler: Arc::new(Slow(Arc::clone(&ended))),
        metrics: Arc::new(Metrics::new()),
        health: Arc::default(),
        shutdown_timeout: Duration::from_secs(30),
    };
    let (sender, events) = mpsc::channel(4);
    for event in [Event::Up { session: 1 }, delivery(1)] {
        sender.send(event).await.expect("there is room");
    }
    let scheduler = Scheduler::new(settings, Arc::new(Metrics::new()), 7);
    let begun = Instant::now();
    let run = engine.run(scheduler, events, stop.clone());
    let strike = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.soft.cancel();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let reason = "a test says so".to_owned();
        sender
            .send(Event::Down { reason })
            .await
            .expect("there is room");
        drop(sender);
    };
    tokio::join!(run, strike);
    assert_eq!(ended.load(Ordering::Relaxed), 1);
    assert_eq!(
        gate.settled.load(Ordering::Relaxed),
        1,
        "its place is given back"
    );
    // And not until the end of shutdown-timeout.
    assert!(
        begun.elapsed() < Duration::from_secs(7),
        "{:?}",
        begun.elapsed()
    );
}
