//! Moves jobs between broker, gate and handler. [`scheduler`] makes all decisions, and this loop
//! performs its actions.

pub mod action;
mod calls;
pub mod facts;
mod large_bodies;
mod line_limiter;
mod load;
mod observer;
pub(crate) mod outage;
mod perform;
mod prepared_calls;
mod redis_state;
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

use crate::admin::{self, Health};
use crate::broker::{Broker, BrokerEvent};
use crate::engine::action::Update;
use crate::engine::large_bodies::LargeBodies;
use crate::engine::observer::Observer;
use crate::engine::outage::Outage;
use crate::engine::perform::{DirectResults, TaskReport};
use crate::engine::prepared_calls::PreparedCalls;
use crate::engine::redis_state::RedisState;
use crate::engine::scheduler::Scheduler;
use crate::engine::shards::Shards;
use crate::gate::Gate;
use crate::handler::PreparingHandler;
use crate::metrics::Metrics;
use crate::tasks;

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
        mut scheduler: Scheduler,
        mut events: mpsc::Receiver<BrokerEvent>,
        mut updates: mpsc::Receiver<Update>,
        stop: Stop,
    ) -> EngineEnd {
        let started = Instant::now();
        let gate = Arc::clone(&self.gate);
        scheduler.shard_by(Shards::from_grouping(move |tenant| gate.shard(tenant)));
        let mut tasks = JoinSet::new();
        let (mut prepared, mut direct) = (PreparedCalls::default(), DirectResults::default());
        let mut redis = Outage::new("Redis");
        let mut reading = LargeBodies::default();
        let mut observer = Observer::default();
        let mut give_up_at: Option<Instant> = None;
        let (signals, mut findings) = mpsc::channel(MAX_FINDINGS);
        // A sender that confirms new policies, and the number of the last question that may have
        // been asked under the previous ones.
        let mut unapplied: Option<(oneshot::Sender<()>, u64)> = None;
        let mut events_go_on = true;
        let mut over = EngineEnd::Stopped;
        let health = Arc::clone(&self.health);
        let mut asked_to_turn = pin!(health.turn_requested());
        let (mut hard, mut soft) = (pin!(stop.hard.cancelled()), pin!(stop.soft.cancelled()));
        loop {
            health.turned();
            let now = started.elapsed();
            // Confirms before the next question, which is asked under the current policies.
            if let Some((applied, _)) = unapplied.take_if(|(_, last)| scheduler.is_answered(*last))
            {
                // A receiver that stopped waiting asks again.
                let _ = applied.send(());
            }
            if let Some(batch) = reading.next() {
                let fields = scheduler.fields().clone();
                tasks.spawn(
                    async move { TaskReport::Read(large_bodies::read(batch, fields).await) },
                );
            }
            scheduler.tick(now);
            let agreed = scheduler.is_agreed(now);
            self.health.set_agreed(agreed);
            self.metrics.set_agreed(agreed);
            self.health.set_stuck(scheduler.stuck(now));
            self.health.set_unfit(scheduler.unfit());
            // Asks before the actions below are performed: a call that has ended leaves its
            // connection to the next one.
            let handler = &*self.handler;
            scheduler.ask(now, |key, tenant| {
                let at_once = || handler.at_once_for(tenant);
                prepared.is_ready(key, |call| handler.is_ready(call), at_once)
            });
            observer.turn(&self.metrics, &mut scheduler, now);
            let watch = (started, &signals);
            let kept = (&mut prepared, &mut direct);
            self.perform(scheduler.take_actions(), watch, &mut tasks, kept)
                .await;
            if give_up_at.is_some() && scheduler.is_idle() {
                break;
            }
            let report_at = observer.next(scheduler.in_memory());
            let next = [scheduler.next_tick(now), report_at];
            let timer = next.into_iter().flatten().min().map(|at| started + at);
            tokio::select! {
                biased;
                () = &mut hard => {
                    warn!(running = scheduler.running(), "ending at once: calls in flight will be \
                        repeated");
                    break;
                }
                () = sleep_for(give_up_at) => {
                    warn!(running = scheduler.running(), "shutdown-timeout has passed: calls in \
                        flight will be repeated");
                    break;
                }
                () = &mut soft, if give_up_at.is_none() => {
                    info!(running = scheduler.running(), "stopping: taking no more jobs");
                    give_up_at = Some(Instant::now() + self.shutdown_timeout);
                    self.health.set_consuming(false);
                    scheduler.drain();
                    self.broker.stop_consuming().await;
                }
                Some(report) = tasks.join_next() => {
                    // Lets tasks that are about to end go first, so that one turn handles all of
                    // them, and sends their acks and questions together.
                    tokio::task::yield_now().await;
                    let mut next = Some(report);
                    while let Some(report) = next {
                        // Every task reports: none is aborted while this loop runs, and a handler's
                        // panic is caught. A task that panics itself leaves its job without a
                        // report, so the engine ends.
                        match report {
                            Ok(report) => {
                                let now = started.elapsed();
                                let state = (&mut redis, &mut reading);
                                let kept = (&mut prepared, &mut direct);
                                self.take_report(&mut scheduler, now, report, state, kept);
                            }
                            Err(why) => over = EngineEnd::Panicked(panic_reason(why)),
                        }
                        next = tasks.try_join_next();
                    }
                    if over != EngineEnd::Stopped {
                        break;
                    }
                }
                Some((key, signal)) = findings.recv() => {
                    scheduler.record_finding(started.elapsed(), key, signal);
                }
                Some(update) = updates.recv() => match update {
                    Update::Agreed { fleet, until, clock, applied } => {
                        if let Some(clock) = clock {
                            let [asked_at, read_at] = [clock.asked_at, clock.read_at]
                                .map(|at| at.saturating_duration_since(started));
                            scheduler.clock_is(started.elapsed(), clock.ms, (asked_at, read_at));
                        }
                        scheduler.agreed(fleet, until.saturating_duration_since(started));
                        let asked = scheduler.asked();
                        unapplied = applied.map(|applied| (applied, asked)).or(unapplied);
                    }
                    Update::Steer { steering, applied } => {
                        self.health.set_held(steering.hold);
                        scheduler.steer(started.elapsed(), steering);
                        // A receiver that stopped waiting asks again.
                        let _ = applied.send(());
                    }
                    Update::Settings(changed) => scheduler.change(changed),
                },
                event = events.recv(), if events_go_on => {
                    let Some(event) = event else {
                        // A stopping broker does not reconnect. The calls that the API has received
                        // may still end, and are then settled with the gate.
                        if give_up_at.is_some() {
                            events_go_on = false;
                            continue;
                        }
                        over = EngineEnd::BrokerLost;
                        break;
                    };
                    self.take_event(&mut scheduler, &mut reading, started.elapsed(), event);
                    // An event is received only to be handled at once: a job in a dropped event
                    // would be lost.
                    for _ in 1..MAX_EVENTS_PER_TURN {
                        let Ok(event) = events.try_recv() else { break };
                        self.take_event(&mut scheduler, &mut reading, started.elapsed(), event);
                    }
                }
                () = sleep_for(timer) => {}
                // The request is only for a turn of this loop.
                () = &mut asked_to_turn => asked_to_turn.set(health.turn_requested()),
            }
        }
        let now = started.elapsed();
        observer.turn(&self.metrics, &mut scheduler, now);
        observer.close(now);
        if !matches!(over, EngineEnd::Panicked(_)) {
            self.end_notes(&mut scheduler, &mut tasks).await;
        }
        self.broker.close().await;
        over
    }

    /// Ends the notes in Redis on calls that the worker gives up, because it stops in order and has
    /// not crashed.
    async fn end_notes(
        &self,
        scheduler: &mut Scheduler,
        tasks: &mut JoinSet<TaskReport<H::Ready>>,
    ) {
        let until = Instant::now() + FINAL_NOTES_TIMEOUT;
        // A note that begins a call must not arrive after the one that ends it.
        while scheduler.is_noting()
            && let Ok(Some(report)) = timeout_at(until, tasks.join_next()).await
        {
            if let Ok(TaskReport::Suspected(shard, _)) = report {
                scheduler.give_up_notes(shard);
            }
        }
        let notes = scheduler.final_notes();
        if notes.is_empty() {
            return;
        }
        let result = timeout_at(until, self.gate.suspect(&notes)).await;
        if !matches!(result, Ok(Ok(_))) {
            let jobs = notes.len();
            warn!(
                jobs,
                "the end of calls could not be stored: each may count as a crash"
            );
        }
    }

    fn take_event(
        &self,
        scheduler: &mut Scheduler,
        reading: &mut LargeBodies,
        now: Duration,
        event: BrokerEvent,
    ) {
        match event {
            BrokerEvent::Up { session } => {
                info!(session, "RabbitMQ: consuming");
                self.health.set_rabbitmq(true);
                self.health.set_consuming(true);
                self.metrics.set_up("rabbitmq", true);
                scheduler.session_up(session);
                scheduler.timeout_is_unknown(now);
            }
            BrokerEvent::Resting => {
                warn!("returned all deliveries to their queues: taking none for now");
                self.health.set_consuming(false);
                scheduler.session_down();
            }
            BrokerEvent::Down { reason } => {
                // The broker itself logs once a minute that RabbitMQ is unreachable.
                info!(reason, "RabbitMQ: session lost");
                self.health.set_no_session(reason);
                self.health.set_consuming(false);
                self.metrics.set_up("rabbitmq", false);
                scheduler.session_down();
            }
            BrokerEvent::AckTimeout(timeout) => scheduler.timeout_is(now, timeout),
            BrokerEvent::Deliveries(deliveries) => {
                let small = reading.keep_large(deliveries, scheduler.fields());
                scheduler.delivered(now, small);
            }
        }
    }

    fn take_report(
        &self,
        scheduler: &mut Scheduler,
        now: Duration,
        report: TaskReport<H::Ready>,
        (redis, reading): (&mut Outage, &mut LargeBodies),
        (prepared, direct): (&mut PreparedCalls<H::Ready>, &mut DirectResults),
    ) {
        match report {
            TaskReport::Answered(shard, result) => {
                if let Some(RedisState { answers, cold }) = RedisState::of(&result) {
                    self.health.set_redis(answers);
                    self.metrics.set_up("redis", answers);
                    let primaries = self.gate.primaries();
                    admin::show_recovery(&self.health, &self.metrics, cold, primaries);
                    match &result {
                        Err(why) if !answers => {
                            redis.failed(now, why);
                        }
                        _ => redis.over(now),
                    }
                }
                let base = self.gate.base();
                self.metrics.set_gate_base(base);
                scheduler.set_base(base);
                scheduler.answered(now, shard, result);
            }
            TaskReport::Settled(shard, result) => scheduler.settled(now, shard, result),
            TaskReport::Blocked(block, result) => scheduler.blocked(now, block, result),
            TaskReport::Advertised(result) => scheduler.advertised_result(now, result),
            TaskReport::Learned(result) => scheduler.learned(now, result),
            TaskReport::Reported(result) => scheduler.reported(now, result),
            TaskReport::Suspected(shard, result) => scheduler.suspected(now, shard, result),
            TaskReport::Deduped(shard, result) => scheduler.deduped(now, shard, result),
            TaskReport::Sighted(result) => scheduler.sighted(now, &result),
            TaskReport::Replied(results) => {
                results.iter().for_each(|(key, _)| _ = direct.remove(key));
                scheduler.replied_to(now, results);
            }
            TaskReport::Moved(results) => scheduler.moved(now, results),
            TaskReport::Prepared(key, result, took) => {
                let result = result.map(|call| prepared.put(key, call));
                scheduler.prepared(now, key, took, result);
            }
            TaskReport::Read(read) => {
                reading.done();
                scheduler.delivered_read(now, read);
            }
            TaskReport::Finished(key, ended) => {
                if let Some(signal) = ended.signal {
                    scheduler.record_finding(now, key, signal);
                }
                scheduler.finished(now, key, ended.took, ended.attempt);
            }
            TaskReport::Abandoned(permit, ended) => scheduler.abandoned_is_over(&permit, ended),
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
