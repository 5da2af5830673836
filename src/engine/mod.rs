//! Moves jobs between broker, gate and handler. It decides nothing: [`scheduler`] does, and this loop
//! performs what it says.

mod abandoned;
pub mod action;
mod away;
mod blocks;
mod breakers;
mod budget;
mod calls;
mod closing;
mod heard;
mod ledger;
mod moves;
mod notes;
mod old;
pub(crate) mod outage;
pub mod partitions;
mod places;
mod queues;
mod reading;
mod ready;
mod round_size;
pub mod scheduler;
mod watch;
mod windows;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::admin::{self, Health};
use crate::broker::{Broker, Delivery, Event, PublishError};
use crate::engine::action::{Action, Block, Key, Update};
use crate::engine::calls::Ended;
use crate::engine::outage::Outage;
use crate::engine::partitions::Partitions;
use crate::engine::reading::Reading;
use crate::engine::ready::Prepared;
use crate::engine::scheduler::Scheduler;
use crate::engine::watch::Watch;
use crate::gate::{
    Gate, GateError, Partition, Replies, SettleReplies, Standings, Suspected, Verdicts,
};
use crate::handler::{Outcome, Permit, PreparingHandler};
use crate::metrics::Metrics;
use crate::rules::job::InBody;
use crate::rules::lateness::Heard;
use crate::tasks;

/// So many events are taken together at most, so that one round trip serves them.
const MOST_EVENTS: usize = 16;
/// So much that was heard of calls may wait to be taken.
const MOST_HEARD: usize = 1024;

/// So long a worker that ends tells the gate of the calls that it gives up.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How a worker is told to end.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    /// Take no more jobs, finish what runs.
    pub soft: CancellationToken,
    /// End at once; what runs is run again by somebody else.
    pub hard: CancellationToken,
}

/// The servers and the handler that jobs move between.
pub struct Engine<B, G, H> {
    /// Where jobs come from and wait.
    pub broker: Arc<B>,
    /// Who says when they may start.
    pub gate: Arc<G>,
    /// What does their work.
    pub handler: Arc<H>,
    /// For `/metrics`.
    pub metrics: Arc<Metrics>,
    /// For `/readyz`.
    pub health: Arc<Health>,
    /// How long running jobs may take after a soft stop.
    pub shutdown_timeout: Duration,
}

/// Why an engine is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Over {
    /// It was stopped.
    Stopped,
    /// The broker tells of nothing any more, though nobody stopped it.
    Deaf,
    /// A task of it panicked: what it was to do, or has done, is not known.
    Panicked(String),
}

/// What comes back from a task.
enum Report<R> {
    Answered(Partition, Result<Replies, GateError>),
    Settled(Partition, Result<SettleReplies, GateError>),
    Blocked(Block, Result<(), GateError>),
    Advertised(Result<(), GateError>),
    Reported(Result<Standings, GateError>),
    Suspected(Partition, Result<Verdicts, GateError>),
    Moved(Vec<(Key, Result<(), PublishError>)>),
    /// With the time that it took, unless it was there at once.
    Prepared(Key, Result<R, Outcome>, Option<Duration>),
    Finished(Key, Ended),
    /// Deliveries with large bodies, and what these say.
    Read(Vec<(Delivery, InBody)>),
    /// The name of its permit, and whether it has ended.
    Abandoned(String, bool),
}

impl<B: Broker, G: Gate, H: PreparingHandler> Engine<B, G, H> {
    /// Runs until `stop`, or until the broker's events end. After a soft stop what runs may end, with a session or without.
    pub async fn run(
        self,
        scheduler: Scheduler,
        events: mpsc::Receiver<Event>,
        stop: Stop,
    ) -> Over {
        let (_nobody, updates) = mpsc::channel(1);
        self.run_updated(scheduler, events, updates, stop).await
    }

    /// [`Engine::run`], with what changes meanwhile.
    pub async fn run_updated(
        self,
        mut scheduler: Scheduler,
        mut events: mpsc::Receiver<Event>,
        mut updates: mpsc::Receiver<Update>,
        stop: Stop,
    ) -> Over {
        let started = Instant::now();
        let gate = Arc::clone(&self.gate);
        scheduler.partition(Partitions::by(move |tenant| gate.partition(tenant)));
        let mut tasks = JoinSet::new();
        let mut prepared = Prepared::default();
        let mut redis = Outage::new("Redis");
        let mut reading = Reading::default();
        let mut give_up_at: Option<Instant> = None;
        let (heard, mut heard_of) = mpsc::channel(MOST_HEARD);
        // Who waits, and the last question that may have been asked with what was in force before.
        let mut unapplied: Option<(oneshot::Sender<()>, u64)> = None;
        let mut events_go_on = true;
        let mut over = Over::Stopped;
        loop {
            let now = started.elapsed();
            // Before the next question, which is asked with what is in force now.
            if let Some((applied, _)) = unapplied.take_if(|(_, last)| scheduler.is_answered(*last))
            {
                // Whoever does not wait any more asks again.
                let _ = applied.send(());
            }
            if let Some(batch) = reading.next() {
                let fields = scheduler.fields().clone();
                tasks.spawn(async move { Report::Read(reading::read(batch, fields).await) });
            }
            scheduler.tick(now);
            let agreed = scheduler.is_agreed(now);
            self.health.set_agreed(agreed);
            self.metrics.set_agreed(agreed);
            // Before what follows from it is looked at: a call that ends leaves its connection to the next one.
            let handler = &*self.handler;
            scheduler.ask(now, |key| {
                prepared.is_ready(key, |call| handler.is_ready(call), || handler.at_once())
            });
            let watch = (started, &heard);
            self.perform(scheduler.take_actions(), watch, &mut tasks, &mut prepared)
                .await;
            if give_up_at.is_some() && scheduler.is_idle() {
                break;
            }
            let timer = scheduler.next_tick(now).map(|at| started + at);
            tokio::select! {
                biased;
                () = stop.hard.cancelled() => {
                    warn!(running = scheduler.running(), "ending at once: what runs will run again");
                    break;
                }
                () = sleep_for(give_up_at) => {
                    warn!(running = scheduler.running(), "shutdown-timeout is over: what still runs will run again");
                    break;
                }
                () = stop.soft.cancelled(), if give_up_at.is_none() => {
                    info!(running = scheduler.running(), "stopping: no more jobs are taken");
                    give_up_at = Some(Instant::now() + self.shutdown_timeout);
                    self.health.set_consuming(false);
                    scheduler.drain();
                    self.broker.stop_consuming().await;
                }
                Some(report) = tasks.join_next() => {
                    let mut next = Some(report);
                    while let Some(report) = next {
                        // A task ends by its report, for it is never aborted while this loop runs and a handler's panic
                        // is caught; or it panicked, and its report would be waited for, for ever.
                        match report {
                            Ok(report) => {
                                let now = started.elapsed();
                                let rooms = (&mut redis, &mut reading);
                                self.take_report(&mut scheduler, now, report, rooms, &mut prepared);
                            }
                            Err(why) => over = Over::Panicked(last_words(why)),
                        }
                        next = tasks.try_join_next();
                    }
                    if over != Over::Stopped {
                        break;
                    }
                }
                Some((key, heard)) = heard_of.recv() => {
                    scheduler.heard_of(started.elapsed(), key, heard);
                }
                Some(update) = updates.recv() => match update {
                    Update::Agreed { fleet, until, applied } => {
                        scheduler.agreed(fleet, until.saturating_duration_since(started));
                        let asked = scheduler.asked();
                        unapplied = applied.map(|applied| (applied, asked)).or(unapplied);
                    }
                    Update::Settings(changed) => scheduler.change(changed),
                },
                event = events.recv(), if events_go_on => {
                    let Some(event) = event else {
                        // Whoever stops looks for no other session. What runs may end all the same: the API has its
                        // call, and the gate is told that it is over.
                        if give_up_at.is_some() {
                            events_go_on = false;
                            continue;
                        }
                        over = Over::Deaf;
                        break;
                    };
                    self.take_event(&mut scheduler, &mut reading, started.elapsed(), event);
                    // Taken only when it is taken care of: a received event that is dropped is a lost job.
                    for _ in 1..MOST_EVENTS {
                        let Ok(event) = events.try_recv() else { break };
                        self.take_event(&mut scheduler, &mut reading, started.elapsed(), event);
                    }
                }
                () = sleep_for(timer) => {}
            }
        }
        if !matches!(over, Over::Panicked(_)) {
            self.say_last_words(scheduler.last_words()).await;
        }
        self.broker.close().await;
        over
    }

    /// A worker that ends in order has not crashed, whatever it leaves behind.
    async fn say_last_words(&self, words: Vec<Suspected>) {
        if words.is_empty() {
            return;
        }
        let said = timeout(LAST_WORDS, self.gate.suspect(&words)).await;
        if !matches!(said, Ok(Ok(_))) {
            let jobs = words.len();
            warn!(
                jobs,
                "the gate was not told that these calls are given up in order: each may count as a crash"
            );
        }
    }

    fn take_event(
        &self,
        scheduler: &mut Scheduler,
        reading: &mut Reading,
        now: Duration,
        event: Event,
    ) {
        match event {
            Event::Up { session } => {
                info!(session, "RabbitMQ: consuming");
                self.health.set_rabbitmq(true);
                self.health.set_consuming(true);
                self.metrics.set_up("rabbitmq", true);
                scheduler.session_up(session);
            }
            Event::Resting => {
                warn!(
                    "no job may start here: what was delivered is given back, and nothing is taken until one may"
                );
                self.health.set_consuming(false);
                scheduler.session_down();
            }
            Event::Down { reason } => {
                // The broker says itself, once a minute, that it can't be reached.
                info!(reason, "RabbitMQ: the session is gone");
                self.health.set_rabbitmq(false);
                self.health.set_consuming(false);
                self.metrics.set_up("rabbitmq", false);
                scheduler.session_down();
            }
            Event::Deliveries(deliveries) => {
                let small = reading.keep_large(deliveries, scheduler.fields());
                scheduler.delivered(now, small);
            }
        }
    }

    fn take_report(
        &self,
        scheduler: &mut Scheduler,
        now: Duration,
        report: Report<H::Ready>,
        (redis, reading): (&mut Outage, &mut Reading),
        prepared: &mut Prepared<H::Ready>,
    ) {
        match report {
            Report::Answered(partition, result) => {
                if let Some(Seen { answers, cold }) = Seen::of(&result) {
                    self.health.set_redis(answers);
                    self.metrics.set_up("redis", answers);
                    let primaries = self.gate.primaries();
                    admin::tell_memory(&self.health, &self.metrics, cold, primaries);
                    match &result {
                        Err(why) if !answers => {
                            redis.failed(now, why);
                        }
                        _ => redis.over(now),
                    }
                }
                scheduler.set_base(self.gate.base());
                scheduler.answered(now, partition, result);
            }
            Report::Settled(partition, result) => scheduler.settled(now, partition, result),
            Report::Blocked(block, result) => scheduler.blocked(now, block, result),
            Report::Advertised(result) => scheduler.told(now, result),
            Report::Reported(result) => scheduler.reported(now, result),
            Report::Suspected(partition, result) => scheduler.suspected(now, partition, result),
            Report::Moved(results) => scheduler.moved(now, results),
            Report::Prepared(key, result, took) => {
                let result = result.map(|call| prepared.put(key, call));
                scheduler.prepared(now, key, took, result);
            }
            Report::Read(read) => {
                reading.done();
                scheduler.delivered_read(now, read);
            }
            Report::Finished(key, ended) => {
                if let Some(heard) = ended.heard {
                    scheduler.heard_of(now, key, heard);
                }
                scheduler.finished(now, key, ended.took, ended.attempt);
            }
            Report::Abandoned(permit, ended) => scheduler.abandoned_is_over(&permit, ended),
        }
    }

    async fn perform(
        &self,
        actions: Vec<Action>,
        (started, heard): (Instant, &mpsc::Sender<(Key, Heard)>),
        tasks: &mut JoinSet<Report<H::Ready>>,
        prepared: &mut Prepared<H::Ready>,
    ) {
        let mut acks = Vec::new();
        for action in actions {
            match action {
                Action::Ack(tags) => acks.extend(tags),
                Action::Ask(partition, batch) => {
                    let gate = Arc::clone(&self.gate);
                    tasks.spawn(async move { Report::Answered(partition, gate.ask(&batch).await) });
                }
                Action::Settle(partition, batch) => {
                    let gate = Arc::clone(&self.gate);
                    tasks.spawn(
                        async move { Report::Settled(partition, gate.settle(&batch).await) },
                    );
                }
                Action::Block(block, duration) => {
                    let gate = Arc::clone(&self.gate);
                    tasks.spawn(async move {
                        let result = gate.block(&block.whose, duration, &block.by).await;
                        Report::Blocked(block, result)
                    });
                }
                Action::Advertised(batch) => {
                    let gate = Arc::clone(&self.gate);
                    tasks.spawn(async move { Report::Advertised(gate.advertised(&batch).await) });
                }
                Action::Rest => self.broker.rest().await,
                Action::Take => {
                    info!("jobs may start again: they are taken");
                    self.broker.take().await;
                }
                Action::Report(rule, batch) => {
                    let gate = Arc::clone(&self.gate);
                    tasks.spawn(async move { Report::Reported(gate.report(&rule, &batch).await) });
                }
                Action::Suspect(partition, batch) => {
                    let gate = Arc::clone(&self.gate);
                    tasks.spawn(
                        async move { Report::Suspected(partition, gate.suspect(&batch).await) },
                    );
                }
                Action::Publish(batch) => {
                    let broker = Arc::clone(&self.broker);
                    tasks.spawn(async move {
                        let (keys, outgoing): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
                        let results = broker.publish(outgoing).await;
                        Report::Moved(keys.into_iter().zip(results).collect())
                    });
                }
                Action::Await {
                    permit,
                    lease,
                    ended,
                } => {
                    tasks.spawn(async move {
                        let ended = timeout(lease, ended).await.is_ok();
                        Report::Abandoned(permit, ended)
                    });
                }
                Action::Release(keys) => keys.into_iter().for_each(|key| drop(prepared.take(key))),
                Action::Prepare { key, job } => {
                    let handler = Arc::clone(&self.handler);
                    match handler.at_once() {
                        Some(call) => {
                            tasks.spawn(async move { Report::Prepared(key, Ok(call), None) })
                        }
                        None => tasks.spawn(async move {
                            let (call, took) = calls::prepare(&*handler, &job).await;
                            Report::Prepared(key, call, Some(took))
                        }),
                    };
                }
                Action::Dispatch {
                    key,
                    job,
                    deadline,
                    look,
                } => {
                    let handler = Arc::clone(&self.handler);
                    let call = prepared.take(key).or_else(|| handler.at_once());
                    let permit = Permit::until(started + deadline);
                    let watch = look.map(|look| Watch {
                        key,
                        look,
                        started,
                        heard: heard.clone(),
                    });
                    tasks.spawn(async move {
                        let ended = calls::attempt(&*handler, &job, call, permit, watch).await;
                        Report::Finished(key, ended)
                    });
                }
            }
        }
        if !acks.is_empty() {
            self.broker.ack(acks).await;
        }
    }
}

/// What a task said that panicked.
fn last_words(why: JoinError) -> String {
    match why.try_into_panic() {
        Ok(panic) => format!("it panicked: {}", tasks::message(&*panic)),
        Err(why) => why.to_string(),
    }
}

/// What a round trip says of Redis as a whole.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    answers: bool,
    /// It answers that nothing starts; the gate itself says why.
    cold: bool,
}

impl Seen {
    /// `None`: only some primaries of a cluster were asked, and none of them decided, so the others are not known.
    fn of(result: &Result<Replies, GateError>) -> Option<Self> {
        let (answers, cold) = match result {
            // What a server refuses is an answer, too.
            Ok(replies)
                if replies
                    .iter()
                    .any(|reply| matches!(reply, Ok(_) | Err(GateError::Refused(_)))) =>
            {
                (true, false)
            }
            Ok(_) => return None,
            Err(GateError::Cold { .. }) => (true, true),
            Err(_) => (false, false),
        };
        Some(Self { answers, cold })
    }
}

/// Sleeps until `at`; for ever without one.
async fn sleep_for(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::TenantReply;

    #[test]
    fn some_primaries_without_a_decision_say_nothing_of_the_others() {
        let cold = || GateError::Cold {
            wait: Duration::from_secs(1),
            why: "a test".to_owned(),
        };
        let away = || GateError::Unreachable("a test".to_owned());
        let decided = || TenantReply {
            now_ms: 1,
            blocked_until_ms: 0,
            has_failures: false,
            answers: Vec::new(),
        };
        let seen = |answers, cold| Some(Seen { answers, cold });
        assert_eq!(Seen::of(&Ok(vec![Err(cold()), Err(away())])), None);
        let mixed = Ok(vec![Err(cold()), Ok(decided())]);
        assert_eq!(Seen::of(&mixed), seen(true, false));
        assert_eq!(Seen::of(&Err(cold())), seen(true, true));
        assert_eq!(Seen::of(&Err(away())), seen(false, false));
    }
}
