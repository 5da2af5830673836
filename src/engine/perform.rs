//! Performs the scheduler's actions. Each runs in a task that ends with a report, unless it is done
//! at once. Tasks that may log inherit the span of the engine's pipeline.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use futures_util::future::OptionFuture;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tracing::{Instrument, info};

use crate::broker::{Broker, Delivery, PublishError, Reply};
use crate::engine::Engine;
use crate::engine::action::{Action, Block, JobKey};
use crate::engine::calls::{self, CallEnd};
use crate::engine::prepared_calls::PreparedCalls;
use crate::engine::watch::CallWatch;
use crate::gate::{
    DedupedAll, Gate, GateError, LearnedAll, Replies, SettleReplies, ShardId, Standings, Verdicts,
};
use crate::handler::{Attempt, Permit, PreparingHandler};
use rules::job::InBody;
use rules::timing::lateness::CallSignal;

/// The report of a task.
pub(super) enum TaskReport<R> {
    Answered(ShardId, Result<Replies, GateError>),
    Settled(ShardId, Result<SettleReplies, GateError>),
    Blocked(Block, Result<(), GateError>),
    Advertised(Result<(), GateError>),
    Learned(Result<LearnedAll, GateError>),
    Reported(Result<Standings, GateError>),
    Suspected(ShardId, Result<Verdicts, GateError>),
    Deduped(ShardId, Result<DedupedAll, GateError>),
    Sighted(Result<(), GateError>),
    Replied(Vec<(JobKey, Result<(), PublishError>)>),
    Moved(Vec<(JobKey, Result<(), PublishError>)>),
    /// A prepared call, and the time that preparing took; `None` if the call was available at once.
    Prepared(JobKey, Result<R, Attempt>, Option<Duration>),
    Finished(JobKey, CallEnd),
    /// Deliveries with large bodies, and the values in them.
    Read(Vec<(Delivery, InBody)>),
    /// The name of an abandoned call's permit, and whether the call ended before its lease.
    Abandoned(String, bool),
}

/// Results for one target, and the keys of their jobs.
type TargetReplies = (Vec<JobKey>, Vec<Reply>);

/// Unanswered results for direct reply-to targets. Removing one stops its publish, so that a result
/// that was given up does not delay others.
pub(super) type DirectResults = HashMap<JobKey, oneshot::Sender<()>, RandomState>;

/// Splits results by target, in order of first appearance, so that no result waits for a confirm of
/// another queue. Results for direct reply-to targets, which can be given up, are alone.
fn by_target(batch: Vec<(JobKey, Reply)>) -> Vec<TargetReplies> {
    let mut indexes = HashMap::new();
    let mut all: Vec<TargetReplies> = Vec::new();
    for (key, message) in batch {
        let target = (message.exchange.clone(), message.routing_key.clone());
        let mut new = || {
            all.push(TargetReplies::default());
            all.len() - 1
        };
        let index = match message.is_direct() {
            true => new(),
            false => *indexes.entry(target).or_insert_with(new),
        };
        all[index].0.push(key);
        all[index].1.push(message);
    }
    all
}

impl<B: Broker, G: Gate, H: PreparingHandler> Engine<B, G, H> {
    /// Performs `actions` in order. Acks come last, followed only by returns of deliveries.
    /// Findings about calls in flight are sent to `signals`.
    pub(super) async fn perform(
        &self,
        actions: Vec<Action>,
        (started, signals): (Instant, &mpsc::Sender<(JobKey, CallSignal)>),
        tasks: &mut JoinSet<TaskReport<H::Ready>>,
        (prepared, direct): (&mut PreparedCalls<H::Ready>, &mut DirectResults),
    ) {
        let (mut acks, mut returns, mut rests) = (Vec::new(), Vec::new(), false);
        for action in actions {
            match action {
                Action::Ack(tags) => acks.extend(tags),
                Action::GiveBack(tags) => returns.extend(tags),
                Action::Ask(shard, batch) => {
                    let gate = Arc::clone(&self.gate);
                    // Boxed first: each later step copies the future, which is kilobytes large.
                    let asks = async move { TaskReport::Answered(shard, gate.ask(&batch).await) };
                    tasks.spawn(Box::pin(asks).in_current_span());
                }
                Action::Settle(shard, batch) => {
                    let gate = Arc::clone(&self.gate);
                    let settles =
                        async move { TaskReport::Settled(shard, gate.settle(&batch).await) };
                    tasks.spawn(settles.in_current_span());
                }
                Action::Block(block, duration) => {
                    let gate = Arc::clone(&self.gate);
                    tasks.spawn(async move {
                        let result = gate.block(&block.scope, duration, &block.reason).await;
                        TaskReport::Blocked(block, result)
                    });
                }
                Action::Advertised(batch) => {
                    let gate = Arc::clone(&self.gate);
                    tasks.spawn(
                        async move { TaskReport::Advertised(gate.advertised(&batch).await) },
                    );
                }
                Action::Learn(batch) => {
                    let gate = Arc::clone(&self.gate);
                    tasks.spawn(async move { TaskReport::Learned(gate.learn(&batch).await) });
                }
                Action::ReturnDeliveries => rests = true,
                Action::Take => {
                    info!("taking all deliveries again");
                    self.broker.take().await;
                }
                Action::TakeFew => self.broker.take_few().await,
                Action::TakeNew(enabled) => self.broker.take_new(enabled).await,
                Action::Sighted(batch) => {
                    let gate = Arc::clone(&self.gate);
                    tasks.spawn(async move { TaskReport::Sighted(gate.sighted(&batch).await) });
                }
                Action::Report(rule, batch) => {
                    let gate = Arc::clone(&self.gate);
                    tasks.spawn(
                        async move { TaskReport::Reported(gate.report(&rule, &batch).await) },
                    );
                }
                Action::Suspect(shard, batch) => {
                    let gate = Arc::clone(&self.gate);
                    let notes =
                        async move { TaskReport::Suspected(shard, gate.suspect(&batch).await) };
                    tasks.spawn(notes.in_current_span());
                }
                Action::Dedupe(shard, batch) => {
                    let gate = Arc::clone(&self.gate);
                    tasks.spawn(
                        async move { TaskReport::Deduped(shard, gate.dedupe(&batch).await) },
                    );
                }
                Action::Publish(batch) => {
                    let broker = Arc::clone(&self.broker);
                    tasks.spawn(async move {
                        let (keys, outgoing): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
                        let results = broker.publish(outgoing).await;
                        TaskReport::Moved(keys.into_iter().zip(results).collect())
                    });
                }
                Action::Reply(batch) => {
                    for (keys, replies) in by_target(batch) {
                        let broker = Arc::clone(&self.broker);
                        let is_direct = replies.iter().any(Reply::is_direct);
                        let (wanted, given_up) = is_direct.then(oneshot::channel).unzip();
                        direct.extend(keys.first().copied().zip(wanted));
                        tasks.spawn(async move {
                            let results = tokio::select! {
                                biased;
                                results = broker.reply(replies) => results,
                                _ = OptionFuture::from(given_up), if is_direct => Vec::new(),
                            };
                            TaskReport::Replied(keys.into_iter().zip(results).collect())
                        });
                    }
                }
                Action::Await {
                    permit,
                    lease,
                    ended,
                } => {
                    tasks.spawn(async move {
                        let ended = timeout(lease, ended).await.is_ok();
                        TaskReport::Abandoned(permit, ended)
                    });
                }
                Action::Release(keys) => keys.into_iter().for_each(|key| {
                    prepared.take(key);
                    direct.remove(&key);
                }),
                Action::Prepare { key, job } => {
                    let handler = Arc::clone(&self.handler);
                    match handler.at_once_for(&job.tenant) {
                        Some(call) => {
                            tasks.spawn(async move { TaskReport::Prepared(key, Ok(call), None) })
                        }
                        None => {
                            let prepares = async move {
                                let (call, took) = calls::prepare(&*handler, &job).await;
                                TaskReport::Prepared(key, call, Some(took))
                            };
                            tasks.spawn(prepares.in_current_span())
                        }
                    };
                }
                Action::Dispatch {
                    key,
                    job,
                    deadline,
                    check,
                } => {
                    let handler = Arc::clone(&self.handler);
                    let call = prepared.take(key);
                    let call = call.or_else(|| handler.at_once_for(&job.tenant));
                    let permit = Permit::until(started + deadline);
                    let watch = check.map(|check| CallWatch {
                        key,
                        check,
                        started,
                        signals: signals.clone(),
                    });
                    let calls = async move {
                        let ended = calls::attempt(&*handler, &job, call, permit, watch).await;
                        TaskReport::Finished(key, ended)
                    };
                    tasks.spawn(Box::pin(calls).in_current_span());
                }
            }
        }
        if !acks.is_empty() {
            self.broker.ack(acks).await;
        }
        if !returns.is_empty() {
            self.broker.give_back(returns).await;
        }
        // Comes after the acks, so that acked deliveries are not returned.
        if rests {
            self.broker.rest().await;
        }
    }
}
