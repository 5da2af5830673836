//! Moves jobs between broker, gate and handler. [`scheduler`] makes all decisions, and this loop
//! performs its actions.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test may have many cases")
)]
#![deny(missing_docs)]

pub mod action;
mod calls;
pub mod facts;
mod large_bodies;
mod line_limiter;
mod load;
mod observer;
pub mod outage;
mod perform;
mod prepared_calls;
mod redis_state;
mod reports;
pub mod scheduler;
pub mod shards;
mod watch;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::action::{JobKey, Update};
use crate::large_bodies::LargeBodies;
use crate::observer::Observer;
use crate::outage::Outage;
use crate::perform::DirectResults;
use crate::prepared_calls::PreparedCalls;
use crate::reports::TaskReport;
use crate::scheduler::Scheduler;
use crate::shards::Shards;
use broker::{Broker, BrokerEvent};
use gate::Gate;
use handler::PreparingHandler;
use rules::steering::Hold;
use rules::timing::lateness::CallSignal;
use runtime::tasks;
use telemetry::Health;
use telemetry::metrics::Metrics;

/// Maximum number of events that one turn handles, so that they share a round trip.
const MAX_EVENTS_PER_TURN: usize = 16;
/// Capacity of the channel for findings about calls in flight.
const MAX_FINDINGS: usize = 1024;

/// Time that a stopping worker has to end its notes in Redis on calls that it gives up.
const FINAL_NOTES_TIMEOUT: Duration = Duration::from_secs(1);

/// Tokens that stop a worker.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    /// Stops taking jobs, and lets running calls finish.
    pub soft: CancellationToken,
    /// Stops at once. Running jobs run again in another worker.
    pub hard: CancellationToken,
}

/// The servers and the handler between which jobs move.
pub struct Engine<B, G, H> {
    /// Delivers jobs and stores waiting ones.
    pub broker: Arc<B>,
    /// Decides when jobs may start.
    pub gate: Arc<G>,
    /// Calls the API.
    pub handler: Arc<H>,
    /// Served at `/metrics`.
    pub metrics: Arc<Metrics>,
    /// Served at `/readyz`.
    pub health: Arc<Health>,
    /// How long running jobs may take after a soft stop.
    pub shutdown_timeout: Duration,
}

/// Reason why an engine has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineEnd {
    /// It was stopped.
    Stopped,
    /// The broker's events ended, although nothing stopped the worker.
    BrokerLost,
    /// A task panicked. Its outcome is not known.
    Panicked(String),
}

impl<B: Broker, G: Gate, H: PreparingHandler> Engine<B, G, H> {
    /// Runs until `stop`, or until the broker's events end. After a soft stop, running calls may
    /// finish, even if the session with the broker is lost.
    pub async fn run(
        self,
        scheduler: Scheduler,
        events: mpsc::Receiver<BrokerEvent>,
        stop: Stop,
    ) -> EngineEnd {
        let (_sender, updates) = mpsc::channel(1);
        self.run_updated(scheduler, events, updates, stop).await
    }

    /// Runs like [`Engine::run`], and applies `updates` meanwhile.
    pub async fn run_updated(
        self,
        scheduler: Scheduler,
        events: mpsc::Receiver<BrokerEvent>,
        updates: mpsc::Receiver<Update>,
        stop: Stop,
    ) -> EngineEnd {
        let (signals, findings) = mpsc::channel(MAX_FINDINGS);
        let inputs = LoopInputs {
            events,
            updates,
            findings,
        };
        let mut engine_loop = EngineLoop::new(self, scheduler, signals);
        let end = engine_loop.run(inputs, &stop).await;
        engine_loop.close(&end).await;
        end
    }
}

/// The channels from which the loop receives its work. Tasks report through their own set.
struct LoopInputs {
    events: mpsc::Receiver<BrokerEvent>,
    updates: mpsc::Receiver<Update>,
    /// Findings about calls in flight.
    findings: mpsc::Receiver<(JobKey, CallSignal)>,
}

/// A running engine and the state of its loop.
struct EngineLoop<B, G, H: PreparingHandler> {
    engine: Engine<B, G, H>,
    scheduler: Scheduler,
    /// When the scheduler's time began.
    started: Instant,
    /// Receives findings about calls in flight.
    signals: mpsc::Sender<(JobKey, CallSignal)>,
    prepared: PreparedCalls<H::Ready>,
    direct: DirectResults,
    tasks: JoinSet<TaskReport<H::Ready>>,
    redis: Outage,
    reading: LargeBodies,
    observer: Observer,
    /// When calls in flight are given up, or `None` before a soft stop.
    give_up_at: Option<Instant>,
    unapplied: Option<UnappliedPolicies>,
}

/// New policies that are not the only enforced ones yet.
struct UnappliedPolicies {
    /// Confirms them.
    applied: oneshot::Sender<()>,
    /// The number of the last question that may have been asked under the previous policies.
    last_question: u64,
}

impl<B: Broker, G: Gate, H: PreparingHandler> EngineLoop<B, G, H> {
    fn new(
        engine: Engine<B, G, H>,
        mut scheduler: Scheduler,
        signals: mpsc::Sender<(JobKey, CallSignal)>,
    ) -> Self {
        let started = Instant::now();
        let gate = Arc::clone(&engine.gate);
        scheduler.shard_by(Shards::from_grouping(move |tenant| gate.shard(tenant)));
        Self {
            engine,
            scheduler,
            started,
            signals,
            prepared: PreparedCalls::default(),
            direct: DirectResults::default(),
            tasks: JoinSet::new(),
            redis: Outage::new("Redis"),
            reading: LargeBodies::default(),
            observer: Observer::default(),
            give_up_at: None,
            unapplied: None,
        }
    }

    /// Takes turns until `stop`, or until the broker's events end.
    async fn run(&mut self, mut inputs: LoopInputs, stop: &Stop) -> EngineEnd {
        let health = Arc::clone(&self.engine.health);
        let mut asked_to_turn = pin!(health.turn_requested());
        let (mut hard, mut soft) = (pin!(stop.hard.cancelled()), pin!(stop.soft.cancelled()));
        let mut events_go_on = true;
        loop {
            let now = self.now();
            self.turn(now).await;
            if self.is_stopping() && self.scheduler.is_idle() {
                return EngineEnd::Stopped;
            }
            let next_turn_at = self.next_turn_at(now);
            tokio::select! {
                biased;
                () = &mut hard => {
                    warn!(running = self.scheduler.running(), "ending at once: calls in flight \
                        will be repeated");
                    return EngineEnd::Stopped;
                }
                () = sleep_for(self.give_up_at) => {
                    warn!(running = self.scheduler.running(), "shutdown-timeout has passed: calls \
                        in flight will be repeated");
                    return EngineEnd::Stopped;
                }
                () = &mut soft, if !self.is_stopping() => self.stop_softly(&stop.hard).await,
                Some(report) = self.tasks.join_next() => {
                    if let Some(panic) = self.take_reports(report).await {
                        return EngineEnd::Panicked(panic);
                    }
                }
                Some((key, signal)) = inputs.findings.recv() => {
                    self.scheduler.record_finding(self.now(), key, signal);
                }
                Some(update) = inputs.updates.recv() => self.apply(update),
                event = inputs.events.recv(), if events_go_on => match event {
                    Some(event) => self.take_events(event, &mut inputs.events),
                    // A stopping broker does not reconnect. The calls that the API has received
                    // may still end, and are then settled with the gate.
                    None if self.is_stopping() => events_go_on = false,
                    None => return EngineEnd::BrokerLost,
                },
                () = sleep_for(next_turn_at) => {}
                // The request is only for a turn of this loop.
                () = &mut asked_to_turn => asked_to_turn.set(health.turn_requested()),
            }
        }
    }

    /// Asks the gate for ready jobs, reports the facts, and performs the scheduler's actions.
    async fn turn(&mut self, now: Duration) {
        self.engine.health.turned();
        // Confirms before the next question, which is asked under the current policies.
        self.confirm_policies();
        self.read_large_bodies();
        self.scheduler.tick(now);
        self.show_readiness(now);
        // Asks before the actions below are performed: a call that has ended leaves its
        // connection to the next one.
        self.ask(now);
        self.report_facts(now);
        let actions = self.scheduler.take_actions();
        self.perform(actions).await;
    }

    /// Returns the scheduler's time.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns true after a soft stop.
    fn is_stopping(&self) -> bool {
        self.give_up_at.is_some()
    }

    /// Confirms new policies if no question under the previous ones is in flight.
    fn confirm_policies(&mut self) {
        let is_answered = |it: &mut UnappliedPolicies| self.scheduler.is_answered(it.last_question);
        if let Some(policies) = self.unapplied.take_if(is_answered) {
            // A receiver that stopped waiting asks again.
            let _ = policies.applied.send(());
        }
    }

    /// Starts to read the next batch of large bodies, unless one is being read.
    fn read_large_bodies(&mut self) {
        if let Some(batch) = self.reading.next() {
            let fields = self.scheduler.fields().clone();
            self.tasks
                .spawn(async move { TaskReport::Read(large_bodies::read(batch, fields).await) });
        }
    }

    /// Shows at `/readyz` and in the metrics whether jobs can start.
    fn show_readiness(&mut self, now: Duration) {
        let Self {
            engine: Engine {
                health, metrics, ..
            },
            scheduler,
            ..
        } = self;
        let agreed = scheduler.is_agreed(now);
        health.set_agreed(agreed);
        metrics.agreed.set(i64::from(agreed));
        health.set_unfit(scheduler.unfit());
    }

    /// Assembles the next questions to the gate. Jobs whose calls can be made at once come first.
    fn ask(&mut self, now: Duration) {
        let (handler, prepared) = (&*self.engine.handler, &mut self.prepared);
        self.scheduler.ask(now, |key, tenant| {
            let at_once = || handler.at_once_for(tenant);
            prepared_calls::is_ready(prepared, key, |call| handler.is_ready(call), at_once)
        });
    }

    fn report_facts(&mut self, now: Duration) {
        (self.observer).turn(&self.engine.metrics, &mut self.scheduler, now);
    }

    /// Returns when the next turn is due even if nothing happens.
    fn next_turn_at(&self, now: Duration) -> Option<Instant> {
        let report_at = self.observer.next(self.scheduler.in_memory());
        let next = [self.scheduler.next_tick(now), report_at];
        next.into_iter().flatten().min().map(|at| self.started + at)
    }

    /// Takes no more jobs, and gives running calls time to finish. Returns early if the worker must
    /// end: a broker that hangs may not stop in time.
    async fn stop_softly(&mut self, hard: &CancellationToken) {
        info!(
            running = self.scheduler.running(),
            "stopping: taking no more jobs"
        );
        self.give_up_at = Some(Instant::now() + self.engine.shutdown_timeout);
        self.engine.health.set_consuming(false);
        self.scheduler.stop();
        tokio::select! {
            biased;
            () = self.engine.broker.stop_consuming() => {}
            () = hard.cancelled() => {}
            () = sleep_for(self.give_up_at) => {}
        }
    }

    /// Takes the report of a task that has ended, and the reports of all other ended tasks. Returns
    /// the message of a panic, or `None` if no task panicked.
    async fn take_reports(
        &mut self,
        first: Result<TaskReport<H::Ready>, JoinError>,
    ) -> Option<String> {
        // Lets tasks that are about to end go first, so that one turn handles all of them, and
        // sends their acks and questions together.
        tokio::task::yield_now().await;
        let mut panic = None;
        let mut next = Some(first);
        while let Some(report) = next {
            // Every task reports: none is aborted while this loop runs, and a handler's panic is
            // caught. A task that panics itself leaves its job without a report, so the engine
            // ends.
            match report {
                Ok(report) => self.take_report(report),
                Err(why) => panic = Some(panic_reason(why)),
            }
            next = self.tasks.try_join_next();
        }
        panic
    }

    /// Applies an update from outside the loop.
    fn apply(&mut self, update: Update) {
        match update {
            Update::Agreed {
                fleet,
                until,
                clock,
                applied,
            } => {
                if let Some(clock) = clock {
                    // Both may be before the scheduler's time began.
                    let now = Instant::now();
                    let [asked_ago, read_ago] =
                        [clock.asked_at, clock.read_at].map(|at| now.saturating_duration_since(at));
                    let now = now.saturating_duration_since(self.started);
                    (self.scheduler).clock_is(now, clock.ms, (asked_ago, read_ago));
                }
                let until = until.saturating_duration_since(self.started);
                self.scheduler.agreed(fleet, until);
                if let Some(applied) = applied {
                    let last_question = self.scheduler.asked();
                    self.unapplied = Some(UnappliedPolicies {
                        applied,
                        last_question,
                    });
                }
            }
            Update::Steer { steering, applied } => {
                let paused = steering.hold == Some(Hold::Paused);
                self.engine.health.set_paused(paused);
                self.scheduler.steer(self.now(), steering);
                // A receiver that stopped waiting asks again.
                let _ = applied.send(());
            }
            Update::Settings(changed) => {
                self.engine.handler.set_concurrency(changed.concurrency);
                self.scheduler.change(changed);
            }
        }
    }

    /// Takes `first` and the events that have arrived since, up to a limit.
    fn take_events(&mut self, first: BrokerEvent, events: &mut mpsc::Receiver<BrokerEvent>) {
        self.take_event(first);
        // An event is received only to be handled at once: a job in a dropped event would be lost.
        for _ in 1..MAX_EVENTS_PER_TURN {
            let Ok(event) = events.try_recv() else { break };
            self.take_event(event);
        }
    }

    fn take_event(&mut self, event: BrokerEvent) {
        let (now, is_stopping) = (self.now(), self.is_stopping());
        let Self {
            engine: Engine {
                health, metrics, ..
            },
            scheduler,
            ..
        } = self;
        match event {
            BrokerEvent::Up { session } => {
                info!(session, "RabbitMQ: consuming");
                health.set_rabbitmq(true);
                // This event may have been on its way when the stop began.
                health.set_consuming(!is_stopping);
                metrics.set_up("rabbitmq", true);
                scheduler.session_up(session);
                scheduler.timeout_is_unknown(now);
            }
            BrokerEvent::Resting => {
                health.set_consuming(false);
                scheduler.session_down();
            }
            BrokerEvent::Down { reason } => {
                // The broker itself logs once a minute that RabbitMQ is unreachable.
                info!(reason, "RabbitMQ: session lost");
                health.set_no_session(reason);
                health.set_consuming(false);
                metrics.set_up("rabbitmq", false);
                scheduler.session_down();
            }
            BrokerEvent::AckTimeout(timeout) => scheduler.timeout_is(now, timeout),
            BrokerEvent::Deliveries(deliveries) => {
                let small = self.reading.keep_large(deliveries, scheduler.fields());
                scheduler.set_unread(self.reading.unread());
                scheduler.delivered(now, small);
            }
        }
    }

    /// Reports the last facts, ends the notes on calls that are given up, and closes the broker.
    async fn close(&mut self, end: &EngineEnd) {
        let now = self.now();
        self.report_facts(now);
        self.observer.close(now);
        if !matches!(end, EngineEnd::Panicked(_)) {
            self.end_notes().await;
        }
        self.engine.broker.close().await;
    }

    /// Ends the notes in Redis on calls that the worker gives up, because it stops in order and has
    /// not crashed.
    async fn end_notes(&mut self) {
        let until = Instant::now() + FINAL_NOTES_TIMEOUT;
        // The note on the begin of a call must arrive before the note on its end.
        while self.scheduler.is_noting()
            && let Ok(Some(report)) = timeout_at(until, self.tasks.join_next()).await
        {
            if let Ok(TaskReport::Suspected(shard, _)) = report {
                self.scheduler.give_up_notes(shard);
            }
        }
        let notes = self.scheduler.final_notes();
        if notes.is_empty() {
            return;
        }
        let result = timeout_at(until, self.engine.gate.suspect(&notes)).await;
        if !matches!(result, Ok(Ok(_))) {
            let jobs = notes.len();
            warn!(
                jobs,
                "the end of calls could not be stored: each may count as a crash"
            );
        }
    }
}

/// Returns the panic message of a task.
fn panic_reason(why: JoinError) -> String {
    match why.try_into_panic() {
        Ok(panic) => format!("it panicked: {}", tasks::message(&*panic)),
        Err(why) => why.to_string(),
    }
}

/// Sleeps until `at`, or forever without one.
async fn sleep_for(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
