//! The engine's loop takes every event that it receives, however many arrive at once.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::{Broker, BrokerEvent, DeliverySource, ExternalMessage, Outgoing, PublishError, Tag};
use engine::action::{EngineSettings, ResultSettings, ResultTarget, Update};
use engine::scheduler::Scheduler;
use engine::{Engine, EngineEnd, Stop};
use gate::fleet::registry::ClockReading;
use gate::{
    Answer, BreakerEvent as CallEvent, BreakerScope, Candidate, Change, DedupeAnswer,
    DedupeReplies, Gate, GateError, Inspection, Note, Replies, Rule, Sequences, SettleReplies,
    Standings, SuspectDecision, SuspectNote, SuspectReplies, TenantAsk, TenantReply,
    TenantSettlements,
};
use handler::{Attempt, Handler, Outcome, Permit, PreparingHandler};
use kit::engine::{AckRecorder, channel, deliveries, engine};
use kit::settings;
use lapin::BasicProperties;
use rules::answers::Quotas;
use rules::headers::{self, HeaderValue};
use rules::job::{Field, Job, TenantField};
use rules::limit::{Limit, Limits};
use rules::scope::Labels;
use rules::tenant::Tenant;
use telemetry::Health;
use telemetry::metrics::Metrics;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// A gate that admits everything from some time on. Before that, it does not know all starts.
struct OpeningGate {
    at: Instant,
    takes: Duration,
    refused: AtomicUsize,
    /// Number of settled calls.
    settled: AtomicUsize,
    /// The tenants of each question.
    rounds: Mutex<Vec<Vec<String>>>,
    /// The notes on suspects that have arrived. A note takes as long as a question, and arrives
    /// even if no caller waits for it.
    noted: Arc<Mutex<Vec<Note>>>,
}

impl OpeningGate {
    fn after(wait: Duration) -> Arc<Self> {
        Arc::new(Self::new(wait, Duration::ZERO))
    }

    /// Creates an open gate whose answers take this long.
    fn that_takes(takes: Duration) -> Arc<Self> {
        Arc::new(Self::new(Duration::ZERO, takes))
    }

    fn new(wait: Duration, takes: Duration) -> Self {
        Self {
            at: Instant::now() + wait,
            takes,
            refused: AtomicUsize::new(0),
            settled: AtomicUsize::new(0),
            rounds: Mutex::default(),
            noted: Arc::default(),
        }
    }
}

impl Gate for OpeningGate {
    async fn ask(&self, batch: &[TenantAsk]) -> Result<Replies, GateError> {
        let tenants = batch.iter().map(|ask| ask.tenant.to_string());
        self.rounds.lock().unwrap().push(tenants.collect());
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
            shadows: Vec::new(),
            answers: ask
                .asks
                .iter()
                .map(|_| Answer::Start {
                    sequences: Sequences::NONE,
                })
                .collect(),
        };
        Ok(batch.iter().map(|ask| Ok(start(ask))).collect())
    }
    async fn settle(&self, batch: &[TenantSettlements]) -> Result<SettleReplies, GateError> {
        self.settled.fetch_add(batch.len(), Ordering::Relaxed);
        Ok(vec![Ok(()); batch.len()])
    }
    async fn block(&self, _: &BreakerScope, _: Duration, _: &str) -> Result<(), GateError> {
        Ok(())
    }
    async fn report(
        &self,
        _: &Rule,
        _: &[(BreakerScope, CallEvent)],
    ) -> Result<Standings, GateError> {
        Err(GateError::Refused("not in this test".into()))
    }
    async fn suspect(&self, batch: &[SuspectNote]) -> Result<SuspectReplies, GateError> {
        let notes: Vec<_> = batch.iter().map(|suspected| suspected.note).collect();
        let begins = |note: &Note| matches!(note, Note::Begin { .. });
        let takes = if notes.iter().any(begins) {
            self.takes
        } else {
            Duration::ZERO
        };
        let noted = Arc::clone(&self.noted);
        let arrives = tokio::spawn(async move {
            tokio::time::sleep(takes).await;
            noted.lock().unwrap().extend(notes);
        });
        arrives.await.expect("no panic");
        Ok(batch.iter().map(|_| Ok(SuspectDecision::Proceed)).collect())
    }
    async fn dedupe(&self, batch: &[Candidate]) -> Result<DedupeReplies, GateError> {
        Ok(vec![Ok(DedupeAnswer::First); batch.len()])
    }
    async fn advertised(&self, _: &[(Tenant, Quotas)]) -> Result<(), GateError> {
        Ok(())
    }
    async fn change(&self, _: &BreakerScope, _: &Change) -> Result<u64, GateError> {
        Err(GateError::Refused("not in this test".into()))
    }
    async fn inspect(&self, _: &Tenant, _: &Labels, _: &Limits) -> Result<Inspection, GateError> {
        Err(GateError::Refused("nobody asks".into()))
    }
}

struct InstantHandler;

impl Handler for InstantHandler {
    async fn handle(&self, _: &Job, _: Permit) -> Outcome {
        Outcome::Done
    }
}

fn delivery(tag: u64) -> BrokerEvent {
    BrokerEvent::Deliveries(deliveries("a", [tag]))
}

const JOBS: usize = 100;

/// Runs an engine until all jobs are acked.
async fn run_all(gate: Arc<OpeningGate>, metrics: Arc<Metrics>, health: Arc<Health>) {
    let (_nobody, updates) = mpsc::channel(1);
    run_all_updated(gate, metrics, health, updates).await;
}

async fn run_all_updated(
    gate: Arc<OpeningGate>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    updates: mpsc::Receiver<Update>,
) {
    let second = Duration::from_secs(1);
    let stop = Stop::default();
    let broker = AckRecorder::ending(&stop, JOBS);
    let (_sender, events) = channel((1..=JOBS as u64).map(delivery));
    let engine = Engine {
        metrics,
        health,
        ..engine(&broker, &gate, &Arc::new(InstantHandler), second)
    };
    let scheduler = Scheduler::new(settings::open(JOBS), 7);
    // The clock is paused: it jumps ahead whenever nothing is left to do.
    let run = engine.run_updated(scheduler, events, updates, stop);
    let run = tokio::time::timeout(60 * second, run);
    let ended = run.await;
    let mut acked = broker.acked();
    acked.sort_unstable();
    assert_eq!(acked, (1..=JOBS as u64).collect::<Vec<_>>());
    assert!(ended.is_ok(), "the engine did not end");
}

#[tokio::test(start_paused = true)]
async fn no_delivery_is_dropped_when_many_events_have_come_at_once() {
    let (metrics, health) = (Arc::new(Metrics::new()), Arc::default());
    run_all(OpeningGate::after(Duration::ZERO), metrics, health).await;
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_may_have_lost_data_is_checked_each_second_until_it_opens() {
    let gate = OpeningGate::after(Duration::from_millis(9_500));
    let (metrics, health) = (Arc::new(Metrics::new()), Arc::new(Health::default()));
    let run = run_all(Arc::clone(&gate), Arc::clone(&metrics), Arc::clone(&health));
    let cold = "Redis may have lost data";
    let look = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(health.missing(), [cold]);
        assert!(metrics.encode().contains("sluicegate_gate_recovering 1"));
        assert!(
            metrics
                .encode()
                .contains("sluicegate_up{server=\"redis\"} 1")
        );
    };
    tokio::join!(run, look);
    assert!(health.missing().iter().all(|missing| missing != cold));
    assert!(metrics.encode().contains("sluicegate_gate_recovering 0"));
    assert!(gate.refused.load(Ordering::Relaxed) <= 11);
}

#[tokio::test(start_paused = true)]
async fn an_agreement_applies_once_no_earlier_request_is_in_flight() {
    let ms = Duration::from_millis;
    let started = Instant::now();
    let gate = OpeningGate::that_takes(ms(20));
    let (sender, updates) = mpsc::channel(1);
    let run = run_all_updated(gate, Arc::new(Metrics::new()), Arc::default(), updates);
    let agree = async {
        tokio::time::sleep(ms(10)).await;
        let (applied_sender, done) = oneshot::channel();
        let update = Update::Agreed {
            fleet: None,
            until: started + ms(60_000),
            clock: None,
            applied: Some(applied_sender),
        };
        sender.send(update).await.expect("the engine runs");
        done.await.expect("the engine tells");
        assert!(started.elapsed() >= ms(20), "{:?}", started.elapsed());
    };
    tokio::join!(run, agree);
}

/// A worker agrees with the others before its engine runs. Redis read its clock in the first 300 ms
/// of these 400, so the time of the job may be 2,250 ms ahead and stays, although the job itself was
/// to wait for 2 s at most.
#[tokio::test(start_paused = true)]
async fn a_clock_that_was_read_before_the_engine_ran_moves_no_start_to_an_earlier_time() {
    const READ_MS: u64 = 1_700_000_000_000;
    let ms = Duration::from_millis;
    let (sender, updates) = mpsc::channel(1);
    let asked_at = Instant::now();
    tokio::time::advance(ms(300)).await;
    let clock = ClockReading {
        ms: READ_MS,
        asked_at,
        read_at: Instant::now(),
    };
    tokio::time::advance(ms(100)).await;
    let update = Update::Agreed {
        fleet: None,
        until: Instant::now() + ms(60_000),
        clock: Some(clock),
        applied: None,
    };
    sender.send(update).await.expect("there is room");
    let at_ms = READ_MS + 2_250;
    let mut waiting = deliveries("a", [1]).remove(0);
    let source = DeliverySource::Due;
    (waiting.source, waiting.tag.source) = (source, source);
    let waits = [
        headers::not_before(at_ms),
        (headers::RETRY_AFTER, HeaderValue::Int(2)),
    ];
    waiting.message = (Arc::unwrap_or_clone(waiting.message).with_headers(&waits, &[])).into();
    let stop = Stop::default();
    let broker = AckRecorder::ending(&stop, 1);
    let (_sender, events) = channel([BrokerEvent::Deliveries(vec![waiting])]);
    let gate = OpeningGate::after(Duration::ZERO);
    let engine = engine(&broker, &gate, &Arc::new(InstantHandler), ms(1_000));
    let scheduler = Scheduler::new(settings::open(1), 7).must_agree();
    let run = engine.run_updated(scheduler, events, updates, stop);
    let ended = tokio::time::timeout(ms(60_000), run).await;
    assert!(ended.is_ok(), "the job did not leave");
    let published = broker.published();
    assert_eq!(published.len(), 1);
    let not_before = published[0].message.header(headers::NOT_BEFORE);
    assert_eq!(not_before, Field::Int(at_ms as i64));
}

/// Takes its time, and counts the calls it has ended.
struct SlowHandler(Arc<AtomicUsize>);

impl Handler for SlowHandler {
    async fn handle(&self, _: &Job, _: Permit) -> Outcome {
        tokio::time::sleep(Duration::from_secs(5)).await;
        self.0.fetch_add(1, Ordering::Relaxed);
        Outcome::Done
    }
}

/// Learns the number of calls that it may get at a time.
#[derive(Default)]
struct ToldHandler(AtomicUsize);

impl PreparingHandler for ToldHandler {
    type Ready = ();

    fn at_once(&self) -> Option<()> {
        Some(())
    }
    fn set_concurrency(&self, calls: usize) {
        self.0.store(calls, Ordering::Relaxed);
    }
    async fn prepare(&self, _: &Job) -> Result<(), Attempt> {
        Ok(())
    }
    fn is_ready(&self, (): &mut ()) -> bool {
        true
    }
    async fn send(&self, _: &Job, (): (), _: Permit) -> Attempt {
        Outcome::Done.into()
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_learns_of_a_changed_concurrency() {
    let (told, stop) = (Arc::<ToldHandler>::default(), Stop::default());
    let (broker, gate) = (
        AckRecorder::without_end(),
        OpeningGate::after(Duration::ZERO),
    );
    let engine = engine(&broker, &gate, &told, Duration::ZERO);
    let (_sender, events) = channel([]);
    let (updates, changes) = mpsc::channel(1);
    let mut changed = settings::open(JOBS).live;
    changed.concurrency = 7;
    updates
        .try_send(Update::Settings(changed))
        .expect("there is room");
    let scheduler = Scheduler::new(settings::open(JOBS), 7);
    let run = engine.run_updated(scheduler, events, changes, stop.clone());
    let end = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.soft.cancel();
    };
    tokio::join!(run, end);
    assert_eq!(told.0.load(Ordering::Relaxed), 7);
}

/// The session began right before the signal, and the engine learns of it afterwards.
#[tokio::test(start_paused = true)]
async fn a_stopping_worker_is_not_ready_even_if_a_session_begins() {
    let (ended, stop) = (Arc::default(), Stop::default());
    let health = Arc::new(Health::default());
    let engine = Engine {
        health: Arc::clone(&health),
        ..engine(
            &AckRecorder::without_end(),
            &OpeningGate::after(Duration::ZERO),
            &Arc::new(SlowHandler(ended)),
            Duration::from_secs(30),
        )
    };
    let (sender, events) = channel([delivery(1)]);
    let run = engine.run(
        Scheduler::new(settings::open(JOBS), 7),
        events,
        stop.clone(),
    );
    let strike = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(health.missing(), [""; 0], "it is ready");
        let up = BrokerEvent::Up { session: 2 };
        sender.try_send(up).expect("there is room");
        stop.soft.cancel();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(health.missing(), ["no jobs are being taken"]);
    };
    tokio::join!(run, strike);
}

#[tokio::test(start_paused = true)]
async fn running_calls_may_end_after_a_lost_session_during_a_stop() {
    let ended = Arc::new(AtomicUsize::new(0));
    let stop = Stop::default();
    let gate = OpeningGate::after(Duration::ZERO);
    let one = Limit::concurrent("running", 1);
    let settings = EngineSettings {
        policy: one.expect("a limit").into(),
        ..settings::open(JOBS)
    };
    let engine = engine(
        &AckRecorder::without_end(),
        &gate,
        &Arc::new(SlowHandler(Arc::clone(&ended))),
        Duration::from_secs(30),
    );
    let (sender, events) = channel([delivery(1)]);
    let scheduler = Scheduler::new(settings, 7);
    let started = Instant::now();
    let run = engine.run(scheduler, events, stop.clone());
    let strike = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.soft.cancel();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let reason = "a test says so".to_owned();
        sender
            .send(BrokerEvent::Down { reason })
            .await
            .expect("there is room");
        drop(sender);
    };
    tokio::join!(run, strike);
    assert_eq!(ended.load(Ordering::Relaxed), 1);
    assert_eq!(
        gate.settled.load(Ordering::Relaxed),
        1,
        "its lease is given back"
    );
    // It does not wait until the end of shutdown-timeout.
    assert!(
        started.elapsed() < Duration::from_secs(7),
        "{:?}",
        started.elapsed()
    );
}

/// If the end of its call was reported first, the note of its beginning would stay and count as a
/// crash.
#[tokio::test(start_paused = true)]
async fn an_engine_that_ends_at_once_ends_its_notes_after_they_were_written() {
    let ms = Duration::from_millis;
    let stop = Stop::default();
    let gate = OpeningGate::that_takes(ms(200));
    let engine = engine(
        &AckRecorder::without_end(),
        &gate,
        &Arc::new(InstantHandler),
        ms(1000),
    );
    let mut again = deliveries("a", [1]);
    again[0].redelivered = true;
    let (_sender, events) = channel([BrokerEvent::Deliveries(again)]);
    let run = engine.run(
        Scheduler::new(settings::open(JOBS), 7),
        events,
        stop.clone(),
    );
    let strike = async {
        tokio::time::sleep(ms(100)).await;
        assert!(gate.noted.lock().unwrap().is_empty(), "it is on its way");
        stop.hard.cancel();
    };
    tokio::join!(run, strike);
    // Long enough for notes in flight, even if the engine did not wait for them.
    tokio::time::sleep(ms(1000)).await;
    let noted = gate.noted.lock().unwrap().clone();
    assert!(
        matches!(noted[..], [Note::Begin { .. }, Note::End { .. }]),
        "{noted:?}"
    );
}

#[tokio::test]
async fn a_large_body_is_read_while_other_jobs_continue() {
    let gate = OpeningGate::after(Duration::ZERO);
    let stop = Stop::default();
    let mut settings = settings::open(JOBS);
    settings.fields.tenant = TenantField::Json("/t".into());
    let engine = engine(
        &AckRecorder::ending(&stop, 2),
        &gate,
        &Arc::new(InstantHandler),
        Duration::from_secs(30),
    );
    let zeros = "0,".repeat(1 << 20);
    let bodies = [
        format!("{{\"pad\":[{zeros}0],\"t\":\"large\"}}"),
        "{\"t\":\"small\"}".into(),
    ];
    let mut both = deliveries("a", 1..=2);
    for (one, body) in both.iter_mut().zip(bodies) {
        Arc::make_mut(&mut one.message).body = body.into();
    }
    let (_sender, events) = channel([BrokerEvent::Deliveries(both)]);
    let scheduler = Scheduler::new(settings, 7);
    let metrics = Arc::clone(&engine.metrics);
    let most_in_memory = async {
        let mut most = 0;
        while !stop.soft.is_cancelled() {
            let [_, in_memory, _] = metrics.loads();
            most = most.max(in_memory);
            tokio::task::yield_now().await;
        }
        most
    };
    let run = engine.run(scheduler, events, stop.clone());
    let (_, most) = tokio::join!(run, most_in_memory);
    assert_eq!(most, 2, "a body that is being read is in memory");
    let mut rounds = gate.rounds.lock().expect("no panic").clone();
    // On a busy machine a permit may come too late, and its job asks again.
    rounds.dedup();
    assert_eq!(rounds, [["small"], ["large"]], "first who need not wait");
}

/// A broker that panics on publishing.
struct PanickingBroker;

impl Broker for PanickingBroker {
    async fn publish(&self, _: Vec<Outgoing>) -> Vec<Result<(), PublishError>> {
        panic!("a bug")
    }
    async fn publish_results(&self, _: Vec<ExternalMessage>) -> Vec<Result<(), PublishError>> {
        Vec::new()
    }
    async fn ack(&self, _: Vec<Tag>) {}
    async fn give_back(&self, _: Vec<Tag>) {}
    async fn rest(&self) {}
    async fn take(&self) {}
    async fn stop_consuming(&self) {}
    async fn close(&self) {}
}

#[tokio::test(start_paused = true)]
async fn an_engine_reports_a_panicked_task_and_a_silent_broker() {
    for (delivers, expected) in [
        (true, EngineEnd::Panicked("it panicked: a bug".to_owned())),
        (false, EngineEnd::BrokerLost),
    ] {
        let engine = engine(
            &Arc::new(PanickingBroker),
            &OpeningGate::after(Duration::ZERO),
            &Arc::new(InstantHandler),
            Duration::from_secs(30),
        );
        let mut unusable = deliveries("a", [1]);
        Arc::make_mut(&mut unusable[0].message).properties = BasicProperties::default();
        let unusable = BrokerEvent::Deliveries(unusable);
        let (sender, events) = channel(delivers.then_some(unusable));
        if !delivers {
            drop(sender);
        }
        let scheduler = Scheduler::new(settings::open(JOBS), 7);
        let over = engine.run(scheduler, events, Stop::default()).await;
        assert_eq!(over, expected);
    }
}

/// A broker that never answers results, and never stops consuming.
#[derive(Default)]
struct SilentBroker {
    /// Number of results whose answers are awaited.
    awaited: AtomicUsize,
    acked: AtomicUsize,
}

impl Broker for SilentBroker {
    async fn publish(&self, _: Vec<Outgoing>) -> Vec<Result<(), PublishError>> {
        Vec::new()
    }
    async fn publish_results(&self, batch: Vec<ExternalMessage>) -> Vec<Result<(), PublishError>> {
        struct Awaited<'a>(&'a AtomicUsize, usize);
        impl Drop for Awaited<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(self.1, Ordering::Relaxed);
            }
        }
        self.awaited.fetch_add(batch.len(), Ordering::Relaxed);
        let _awaited = Awaited(&self.awaited, batch.len());
        std::future::pending().await
    }
    async fn ack(&self, tags: Vec<Tag>) {
        self.acked.fetch_add(tags.len(), Ordering::Relaxed);
    }
    async fn give_back(&self, _: Vec<Tag>) {}
    async fn rest(&self) {}
    async fn take(&self) {}
    async fn stop_consuming(&self) {
        std::future::pending().await
    }
    async fn close(&self) {}
}

/// RabbitMQ may hang when the worker is to end.
#[tokio::test(start_paused = true)]
async fn an_engine_ends_in_time_although_its_broker_does_not_stop_consuming() {
    let long = Duration::from_secs(30);
    for (shutdown_timeout, hard_after) in [(Duration::ZERO, long), (long, Duration::ZERO)] {
        let engine = engine(
            &Arc::new(SilentBroker::default()),
            &OpeningGate::after(Duration::ZERO),
            &Arc::new(InstantHandler),
            shutdown_timeout,
        );
        let (_sender, events) = channel([]);
        let (scheduler, stop) = (Scheduler::new(settings::open(JOBS), 7), Stop::default());
        let run = engine.run(scheduler, events, stop.clone());
        let strike = async {
            stop.soft.cancel();
            tokio::time::sleep(hard_after).await;
            stop.hard.cancel();
            tokio::time::sleep(long).await;
        };
        let started = tokio::time::Instant::now();
        tokio::select! {
            end = run => assert_eq!(end, EngineEnd::Stopped),
            () = strike => panic!("it goes on after {:?}", started.elapsed()),
        }
        assert!(
            started.elapsed() < Duration::from_secs(1),
            "{:?}",
            started.elapsed()
        );
    }
}

/// Otherwise unanswered results would delay the results of other jobs.
#[tokio::test(start_paused = true)]
async fn a_result_that_is_given_up_is_not_published_any_more() {
    let broker = Arc::new(SilentBroker::default());
    let engine = engine(
        &broker,
        &OpeningGate::after(Duration::ZERO),
        &Arc::new(InstantHandler),
        Duration::from_secs(30),
    );
    let mut settings = settings::open(JOBS);
    settings.prefetch = 80;
    settings.results = Some(ResultSettings {
        to: ResultTarget::ReplyTo,
        max_body: 0,
    });
    let mut jobs = deliveries("a", 1..=40);
    for (n, job) in jobs.iter_mut().enumerate() {
        // Some have the same target.
        let target = format!("amq.rabbitmq.reply-to.{}", n / 2);
        let message = Arc::make_mut(&mut job.message);
        let properties = std::mem::take(&mut message.properties);
        message.properties = properties.with_reply_to(target.into());
    }
    let (_sender, events) = channel([BrokerEvent::Deliveries(jobs)]);
    let scheduler = Scheduler::new(settings, 7);
    let mut run = pin!(engine.run(scheduler, events, Stop::default()));
    let ran = tokio::time::timeout(Duration::from_secs(5), &mut run).await;
    assert!(ran.is_err(), "{ran:?}");
    let counts = [&broker.acked, &broker.awaited].map(|it| it.load(Ordering::Relaxed));
    assert_eq!(counts, [30, 10], "an eighth of the prefetch stays");
}
