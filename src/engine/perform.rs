//! Performs the scheduler's actions. Each runs in a task that ends with a report, unless it is done
//! at once. Tasks that may log inherit the span of the engine's pipeline.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use futures_util::future::OptionFuture;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::{Instrument, info};

use crate::EngineLoop;
use crate::action::{Action, JobKey};
use crate::calls;
use crate::reports::TaskReport;
use crate::watch::CallWatch;
use broker::{Broker, ExternalMessage, Outgoing, Tag};
use gate::Gate;
use handler::{LateEnd, Permit, PreparingHandler};
use rules::job::Job;
use rules::timing::lateness::CallCheck;

/// Results for one target, and the keys of their jobs.
type TargetResults = (Vec<JobKey>, Vec<ExternalMessage>);

/// Unanswered results for direct reply-to targets. Removing one stops its publish, so that a result
/// that was given up does not delay others.
pub(super) type DirectResults = HashMap<JobKey, oneshot::Sender<()>, RandomState>;

/// Splits results by target, in order of first appearance, so that no result waits for a confirm of
/// another queue. Results for direct reply-to targets, which can be given up, are alone.
fn by_target(batch: Vec<(JobKey, ExternalMessage)>) -> Vec<TargetResults> {
    let mut indexes = HashMap::new();
    let mut all: Vec<TargetResults> = Vec::new();
    for (key, message) in batch {
        let target = (message.exchange.clone(), message.routing_key.clone());
        let mut new = || {
            all.push(TargetResults::default());
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

/// Actions that are performed after all others.
#[derive(Default)]
struct LastActions {
    acks: Vec<Tag>,
    returns: Vec<Tag>,
    /// Whether to return all deliveries to their queues.
    rests: bool,
}

impl<B: Broker, G: Gate, H: PreparingHandler> EngineLoop<B, G, H> {
    /// Performs `actions` in order. Acks come last, followed only by returns of deliveries.
    pub(super) async fn perform(&mut self, actions: Vec<Action>) {
        let mut last = LastActions::default();
        for action in actions {
            match action {
                Action::Ack(tags) => last.acks.extend(tags),
                Action::GiveBack(tags) => last.returns.extend(tags),
                Action::ReturnDeliveries => last.rests = true,
                Action::Take => {
                    info!("taking all deliveries again");
                    self.engine.broker.take().await;
                }
                Action::TakeFew => self.engine.broker.take_few().await,
                Action::TakeNew(enabled) => self.engine.broker.take_new(enabled).await,
                Action::Publish(batch) => self.publish(batch),
                Action::PublishResults(batch) => self.publish_results(batch),
                Action::Ask(shard, batch) => self.call_gate(|gate| {
                    // Boxed first: each later step copies the future, which is kilobytes large.
                    Box::pin(async move { TaskReport::Answered(shard, gate.ask(&batch).await) })
                }),
                Action::Settle(shard, batch) => self.call_gate(async move |gate| {
                    TaskReport::Settled(shard, gate.settle(&batch).await)
                }),
                Action::Suspect(shard, batch) => self.call_gate(async move |gate| {
                    TaskReport::Suspected(shard, gate.suspect(&batch).await)
                }),
                Action::Dedupe(shard, batch) => self.call_gate(async move |gate| {
                    TaskReport::Deduped(shard, gate.dedupe(&batch).await)
                }),
                Action::Block(block, duration) => self.call_gate(async move |gate| {
                    let result = gate.block(&block.scope, duration, &block.reason).await;
                    TaskReport::Blocked(block, result)
                }),
                Action::Advertised(batch) => self.call_gate(async move |gate| {
                    TaskReport::Advertised(gate.advertised(&batch).await)
                }),
                Action::Learn(batch) => {
                    self.call_gate(async move |gate| TaskReport::Learned(gate.learn(&batch).await))
                }
                Action::Report(rule, batch) => self.call_gate(async move |gate| {
                    TaskReport::Reported(gate.report(&rule, &batch).await)
                }),
                Action::Sighted(batch) => self
                    .call_gate(async move |gate| TaskReport::Sighted(gate.sighted(&batch).await)),
                Action::Prepare { key, job } => self.prepare(key, job),
                Action::Dispatch {
                    key,
                    job,
                    deadline,
                    check,
                } => self.dispatch(key, job, deadline, check),
                Action::Await {
                    permit,
                    lease,
                    ended,
                } => self.await_end(permit, lease, ended),
                Action::Release(keys) => self.release(keys),
            }
        }
        self.perform_last(last).await;
    }

    async fn perform_last(&mut self, last: LastActions) {
        let broker = &self.engine.broker;
        if !last.acks.is_empty() {
            broker.ack(last.acks).await;
        }
        if !last.returns.is_empty() {
            broker.give_back(last.returns).await;
        }
        // Comes after the acks, so that acked deliveries are not returned.
        if last.rests {
            broker.rest().await;
        }
    }

    /// Calls the gate in a task.
    fn call_gate<F>(&mut self, call: impl FnOnce(Arc<G>) -> F)
    where
        F: Future<Output = TaskReport<H::Ready>> + Send + 'static,
    {
        let gate = Arc::clone(&self.engine.gate);
        self.tasks.spawn(call(gate).in_current_span());
    }

    /// Publishes messages of jobs that move.
    fn publish(&mut self, batch: Vec<(JobKey, Outgoing)>) {
        let broker = Arc::clone(&self.engine.broker);
        self.tasks.spawn(async move {
            let (keys, outgoing): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            let results = broker.publish(outgoing).await;
            TaskReport::Moved(keys.into_iter().zip(results).collect())
        });
    }

    /// Publishes results.
    fn publish_results(&mut self, batch: Vec<(JobKey, ExternalMessage)>) {
        for (keys, messages) in by_target(batch) {
            let broker = Arc::clone(&self.engine.broker);
            let is_direct = messages.iter().any(ExternalMessage::is_direct);
            let (wanted, given_up) = is_direct.then(oneshot::channel).unzip();
            self.direct.extend(keys.first().copied().zip(wanted));
            self.tasks.spawn(async move {
                let results = tokio::select! {
                    biased;
                    results = broker.publish_results(messages) => results,
                    _ = OptionFuture::from(given_up), if is_direct => Vec::new(),
                };
                TaskReport::Replied(keys.into_iter().zip(results).collect())
            });
        }
    }

    /// Prepares the call of a job.
    fn prepare(&mut self, key: JobKey, job: Box<Job>) {
        let handler = Arc::clone(&self.engine.handler);
        match handler.at_once_for(&job.tenant) {
            Some(call) => (self.tasks)
                .spawn(async move { TaskReport::Prepared(key, Box::new(Ok(call)), None) }),
            None => {
                let prepares = async move {
                    let (call, took) = calls::prepare(&*handler, &job).await;
                    TaskReport::Prepared(key, Box::new(call), Some(took))
                };
                self.tasks.spawn(prepares.in_current_span())
            }
        };
    }

    /// Calls the handler until `deadline`. `check`: when to check the call while it is in flight.
    fn dispatch(
        &mut self,
        key: JobKey,
        job: Box<Job>,
        deadline: Duration,
        check: Option<CallCheck>,
    ) {
        let handler = Arc::clone(&self.engine.handler);
        let call = self.prepared.remove(&key);
        let call = call.or_else(|| handler.at_once_for(&job.tenant));
        let permit = Permit::until(self.started + deadline);
        let watch = check.map(|check| CallWatch {
            key,
            check,
            started: self.started,
            signals: self.signals.clone(),
        });
        let calls = async move {
            let ended = calls::attempt(&*handler, &job, call, &permit, watch.as_ref()).await;
            TaskReport::Finished(key, Box::new(ended))
        };
        self.tasks.spawn(Box::pin(calls).in_current_span());
    }

    /// Waits for the end of an abandoned call, for at most `lease`.
    fn await_end(&mut self, permit: String, lease: Duration, ended: LateEnd) {
        self.tasks.spawn(async move {
            let ended = timeout(lease, ended).await.is_ok();
            TaskReport::Abandoned(permit, ended)
        });
    }

    /// Drops the prepared calls of jobs, and stops publishing their direct results.
    fn release(&mut self, keys: Vec<JobKey>) {
        for key in keys {
            self.prepared.remove(&key);
            self.direct.remove(&key);
        }
    }
}
