//! The consuming connection: declares queues, consumes, gathers deliveries, and reconnects forever.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, future};
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Consumer};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::attempts::Attempts;
use super::connection::AmqpLink;
use super::inventory::depth;
use super::nodes::NodeRotation;
use super::{BrokerState, WantedDeliveries, existing, timeout};
use crate::{BrokerError, BrokerEvent, Delivery, DeliverySource, Message, Tag};
use rules::delays::QueueNames;

/// Maximum number of deliveries of one consumer in one event.
const MAX_DELIVERIES_PER_EVENT: usize = 128;
/// The recheck queue's prefetch is that of the main queues divided by this.
const RECHECK_SHARE: u16 = 8;
/// Maximum number of queues of new jobs that a log line names.
const MAX_QUEUES_NAMED: usize = 8;
/// Maximum number of missing delay queues that a session looks for.
const MAX_MISSING: usize = 8;
/// Minimum pause between two declarations of the queues.
const HEAL_PAUSE: Duration = Duration::from_secs(1);
/// Name of the connection in logs and in RabbitMQ's tools.
const NAME: &str = "sluicegate consume";

/// Keeps a session up until the broker is closed or stopped.
pub(super) async fn supervise(shared: Arc<BrokerState>, events: mpsc::Sender<BrokerEvent>) {
    // Lets `stop_consuming` continue however this task ends.
    let _stopped = shared.stopped.clone().drop_guard();
    let (mut attempts, mut turns) = (Attempts::new(NAME), shared.nodes.turns());
    let mut session = 1;
    loop {
        let taking = tokio::select! {
            () = shared.stop.cancelled() => return,
            taking = shared.wants_other(WantedDeliveries::Nothing) => taking,
        };
        let mut up = None;
        let ended = run(&shared, &mut turns, (session, taking), &mut up, &events).await;
        shared.acks.end();
        let error = match ended {
            Ok(SessionEnd::Closed) => return,
            Ok(SessionEnd::Resting) => {
                session += u64::from(up.is_some());
                // The last session was good, so the next failure is reported in any case.
                attempts = Attempts::new(NAME);
                tokio::select! {
                    () = shared.closed.cancelled() => return,
                    sent = events.send(BrokerEvent::Resting) => if sent.is_err() { return },
                }
                continue;
            }
            Err(error) => error,
        };
        session += u64::from(up.is_some());
        attempts.ended(up);
        if let Some(timeout) = error.ack_timeout() {
            tokio::select! {
                () = shared.closed.cancelled() => return,
                sent = events.send(BrokerEvent::AckTimeout(timeout)) => if sent.is_err() { return },
            }
        }
        if attempts.log(&error) || up.is_some() {
            let reason = error.to_string();
            tokio::select! {
                () = shared.closed.cancelled() => return,
                sent = events.send(BrokerEvent::Down { reason }) => if sent.is_err() { return },
            }
        }
        if !attempts.pause(&shared.stop).await {
            return;
        }
    }
}

/// Reason why a session ended without an error.
enum SessionEnd {
    /// The broker is closed, or the engine is gone.
    Closed,
    /// The worker returns its deliveries to their queues, for other workers.
    Resting,
}

/// Runs one session, and sets `up` once it is connected. Returns `Ok` if it ended as requested.
async fn run(
    shared: &BrokerState,
    turns: &mut NodeRotation<'_>,
    (session, taking): (u64, WantedDeliveries),
    up: &mut Option<Instant>,
    events: &mpsc::Sender<BrokerEvent>,
) -> Result<SessionEnd, BrokerError> {
    let opening = async {
        let link = turns.open(NAME).await?;
        let slots = open_consumers(shared, &link, taking).await?;
        Ok::<_, BrokerError>((link, slots))
    };
    let (link, slots) = tokio::select! {
        () = shared.stop.cancelled() => return Ok(SessionEnd::Closed),
        opened = opening => opened?,
    };
    *up = Some(Instant::now());
    // A request that RabbitMQ does not answer must not delay the end.
    let result = tokio::select! {
        biased;
        () = shared.closed.cancelled() => Ok(SessionEnd::Closed),
        result = consume(shared, &link, slots, (session, taking), events) => result,
    };
    link.close_after(shared.acks.close_channels()).await;
    result
}

/// A consumer and the queue it consumes.
struct ConsumerSlot {
    source: DeliverySource,
    queue: Arc<str>,
    /// Maximum number of its unacked deliveries.
    prefetch: u16,
    channel: Channel,
    /// The consumer, or `None` while this slot takes no deliveries.
    consumer: Option<Consumer>,
    /// Whether the consumer is being canceled. Deliveries that `lapin` still holds keep arriving.
    ends: bool,
}

impl ConsumerSlot {
    /// Creates a slot that does not consume yet.
    fn new(channel: &Channel, source: DeliverySource, (queue, prefetch): (&Arc<str>, u16)) -> Self {
        Self {
            source,
            queue: Arc::clone(queue),
            prefetch,
            channel: channel.clone(),
            consumer: None,
            ends: false,
        }
    }

    /// Starts or cancels the consumer. Its unacked deliveries stay with the worker.
    async fn turn(&mut self, link: &AmqpLink, on: bool) -> Result<(), BrokerError> {
        match &self.consumer {
            Some(consumer) if !on && !self.ends => {
                let options = BasicCancelOptions::default();
                let canceling = self.channel.basic_cancel(consumer.tag(), options);
                self.ends = true;
                link.target.rpc("basic.cancel", canceling).await
            }
            None if on => {
                limit(link, &self.channel, self.prefetch).await?;
                self.consumer = Some(self.consume(link).await?);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn consume(&self, link: &AmqpLink) -> Result<Consumer, BrokerError> {
        let (queue, options) = (&*self.queue, BasicConsumeOptions::default());
        let table = FieldTable::default();
        let consume = (self.channel).basic_consume(queue.into(), "".into(), options, table);
        link.target.rpc("basic.consume", consume).await
    }
}

/// Declares the queues and starts consuming.
async fn open_consumers(
    shared: &BrokerState,
    link: &AmqpLink,
    taking: WantedDeliveries,
) -> Result<Vec<ConsumerSlot>, BrokerError> {
    log_lost_delay_queues(shared, link).await?;
    declare(shared, link).await?;
    existing::check(shared, link).await?;
    let names = &shared.topology.names;
    let at_most = |prefetch: u16| match taking {
        WantedDeliveries::Few => 1,
        _ => prefetch,
    };
    let (main, rechecks) = (
        at_most(shared.prefetch),
        at_most((shared.prefetch / RECHECK_SHARE).max(1)),
    );
    // This is the order in which deliveries are gathered: jobs that have waited come first.
    let window = at_most(shared.window);
    let mut slots = open_consumers_of(link, names, names.delay_sources(), window).await?;
    slots.extend(open_consumers_of(link, names, [DeliverySource::Due], main).await?);
    slots.extend(open_consumers_of_new(link, shared, main).await?);
    slots.extend(open_consumers_of(link, names, [DeliverySource::Recheck], rechecks).await?);
    Ok(slots)
}

/// Lists the queues of new jobs for the log, the work queue first.
fn queue_list(shares: &[(Arc<str>, u16)]) -> String {
    let named = shares
        .iter()
        .take(MAX_QUEUES_NAMED)
        .map(|(name, _)| &**name);
    let mut text = named.collect::<Vec<_>>().join(", ");
    if let more @ 1.. = shares.len().saturating_sub(MAX_QUEUES_NAMED) {
        text += &format!(" and {more} more");
    }
    text
}

/// Passes deliveries to the engine until the session ends.
async fn consume(
    shared: &BrokerState,
    link: &AmqpLink,
    mut slots: Vec<ConsumerSlot>,
    (session, taking): (u64, WantedDeliveries),
    events: &mpsc::Sender<BrokerEvent>,
) -> Result<SessionEnd, BrokerError> {
    let channels = slots.iter().map(|slot| (slot.source, slot.channel.clone()));
    shared.acks.begin(session, channels);
    let (queue, node) = (queue_list(&shared.shares), &link.target.at);
    tracing::info!(session, %queue, %node, "consuming");

    let mut waiting = VecDeque::from([BrokerEvent::Up { session }]);
    let mut failure = pin!(link.failure(NAME, |_| ()));
    let mut healing = pin!(heal(shared, link));
    let mut timeout = pin!(timeout::found(link, &shared.topology.names.fresh).fuse());
    let mut stopped = false;
    let mut taking_new = shared.taking_new.subscribe();
    // The value may have changed since the consumers were started.
    taking_new.mark_changed();
    loop {
        tokio::select! {
            biased;
            _ = shared.wants_other(taking), if !stopped => return Ok(SessionEnd::Resting),
            () = shared.stop.cancelled(), if !stopped => {
                stop(link, &slots).await?;
                stopped = true;
                waiting.clear();
                shared.stopped.cancel();
            }
            Ok(()) = taking_new.changed(), if !stopped => {
                let on = *taking_new.borrow_and_update();
                turn_new(link, &mut slots, on).await?;
            }
            error = &mut failure => return Err(error),
            error = &mut healing => return Err(error),
            found = &mut timeout => waiting.extend(found.map(BrokerEvent::AckTimeout)),
            permit = events.reserve(), if !waiting.is_empty() => match (permit, waiting.pop_front()) {
                (Ok(permit), Some(event)) => permit.send(event),
                // The engine is gone.
                (Err(_), _) => return Ok(SessionEnd::Closed),
                (Ok(_), None) => {}
            },
            gathered = gather(&mut slots, session), if waiting.is_empty() && !stopped => {
                let batch = gathered.map_err(|reason| match reason {
                    Some(error) => link.target.error(&error),
                    None => link.target.failed("RabbitMQ canceled a consumer: a queue was deleted \
                        or moved"),
                })?;
                let on = *taking_new.borrow();
                turn_new(link, &mut slots, on).await?;
                if batch.is_empty() {
                    continue;
                }
                shared.acks.delivered(batch.iter().map(|delivery| delivery.tag));
                waiting.push_back(BrokerEvent::Deliveries(batch));
            }
        }
    }
}

/// Starts or stops consuming new jobs.
async fn turn_new(
    link: &AmqpLink,
    slots: &mut [ConsumerSlot],
    on: bool,
) -> Result<(), BrokerError> {
    for slot in slots
        .iter_mut()
        .filter(|slot| slot.source == DeliverySource::Fresh)
    {
        slot.turn(link, on).await?;
    }
    Ok(())
}

/// Opens consumers on one channel. Each has the prefetch `prefetch`.
async fn open_consumers_of(
    link: &AmqpLink,
    names: &QueueNames,
    sources: impl IntoIterator<Item = DeliverySource>,
    prefetch: u16,
) -> Result<Vec<ConsumerSlot>, BrokerError> {
    let channel = link.channel().await?;
    limit(link, &channel, prefetch).await?;
    let opening = sources.into_iter().map(async |source| {
        let mut slot = ConsumerSlot::new(&channel, source, (names.of(source), prefetch));
        slot.consumer = Some(slot.consume(link).await?);
        Ok(slot)
    });
    future::try_join_all(opening).await
}

/// Opens consumers of all queues of new jobs on one channel. Each consumer's prefetch is its
/// queue's configured share (`BrokerState::shares`), or `prefetch` if that is smaller. They start
/// only if new jobs are wanted. All of them count as one source.
async fn open_consumers_of_new(
    link: &AmqpLink,
    shared: &BrokerState,
    prefetch: u16,
) -> Result<Vec<ConsumerSlot>, BrokerError> {
    let channel = link.channel().await?;
    let wants_new = *shared.taking_new.borrow();
    let mut slots = Vec::with_capacity(shared.shares.len());
    for (queue, share) in &shared.shares {
        let mut slot = ConsumerSlot::new(
            &channel,
            DeliverySource::Fresh,
            (queue, prefetch.min(*share)),
        );
        slot.turn(link, wants_new).await?;
        slots.push(slot);
    }
    Ok(slots)
}

/// Sets the maximum number of unacked deliveries for each consumer that starts on `channel` from
/// now on.
async fn limit(link: &AmqpLink, channel: &Channel, prefetch: u16) -> Result<(), BrokerError> {
    let qos = channel.basic_qos(prefetch, BasicQosOptions::default());
    link.target.rpc("basic.qos", qos).await
}

/// Waits for deliveries and returns those that have arrived. The batch is empty if a consumer ended
/// as requested. `Err(None)` means that the broker canceled a consumer.
///
/// `lapin` reports a channel's error or a canceled consumer only once, so the caller must end the
/// session. RabbitMQ then delivers again what was gathered in the same poll.
async fn gather(
    slots: &mut [ConsumerSlot],
    session: u64,
) -> Result<Vec<Delivery>, Option<lapin::Error>> {
    future::poll_fn(|cx| {
        let (mut batch, mut ended) = (Vec::new(), false);
        for slot in &mut *slots {
            for _ in 0..MAX_DELIVERIES_PER_EVENT {
                let Some(consumer) = &mut slot.consumer else {
                    break;
                };
                match consumer.poll_next_unpin(cx) {
                    Poll::Ready(None) if slot.ends => {
                        (slot.consumer, slot.ends) = (None, false);
                        ended = true;
                    }
                    Poll::Pending => break,
                    Poll::Ready(None) => return Poll::Ready(Err(None)),
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(Some(error))),
                    Poll::Ready(Some(Ok(delivery))) => {
                        batch.push(taken(slot.source, session, delivery));
                    }
                }
            }
        }
        if batch.is_empty() && !ended {
            Poll::Pending
        } else {
            Poll::Ready(Ok(batch))
        }
    })
    .await
}

fn taken(source: DeliverySource, session: u64, delivery: lapin::message::Delivery) -> Delivery {
    Delivery {
        source,
        tag: Tag {
            session,
            source,
            tag: delivery.delivery_tag,
        },
        redelivered: delivery.redelivered,
        message: Message::from_lapin(delivery).into(),
    }
}

/// Cancels the consumers. Deliveries that `lapin` still holds return to their queues when the
/// session ends.
async fn stop(link: &AmqpLink, slots: &[ConsumerSlot]) -> Result<(), BrokerError> {
    let cancels = slots.iter().filter_map(|slot| {
        let consumer = slot.consumer.as_ref().filter(|_| !slot.ends)?;
        let options = BasicCancelOptions::default();
        Some((slot.channel).basic_cancel(consumer.tag(), options))
    });
    let canceled = future::try_join_all(cancels);
    link.target.rpc("basic.cancel", canceled).await?;
    Ok(())
}

async fn declare(shared: &BrokerState, link: &AmqpLink) -> Result<(), BrokerError> {
    let channel = link.channel().await?;
    shared.topology.declare(&channel, &link.target.at).await?;
    let closing = channel.close(200, "declared".into());
    link.target.rpc("channel.close", closing).await
}

/// Logs delay queues that were deleted together with their jobs, by an operator, or by a policy
/// with `expires` while no worker ran. The caller declares them again.
async fn log_lost_delay_queues(shared: &BrokerState, link: &AmqpLink) -> Result<(), BrokerError> {
    for queue in lost_delay_queues(link, &shared.topology.names).await? {
        tracing::warn!(%queue, "a delay queue was deleted with its jobs: declaring it again; \
            check for a policy with expires that matches it");
    }
    Ok(())
}

/// Returns the delay queues that are missing although a later one exists. Queues are declared in
/// order, so queues after the last existing one were never declared, or another process is
/// declaring them now. Each check of a missing queue closes a channel, so at most [`MAX_MISSING`]
/// missing queues are found.
async fn lost_delay_queues(
    link: &AmqpLink,
    names: &QueueNames,
) -> Result<Vec<Arc<str>>, BrokerError> {
    let mut channel = link.channel().await?;
    let (mut lost, mut missing, mut is_declared) = (Vec::new(), 0, false);
    for queue in names.delays().iter().rev() {
        if depth(&link.target, &channel, queue).await?.is_some() {
            is_declared = true;
            continue;
        }
        if is_declared {
            lost.push(Arc::clone(queue));
        }
        missing += 1;
        if missing == MAX_MISSING {
            return Ok(lost);
        }
        // The refusal closed the channel.
        channel = link.channel().await?;
    }
    let closing = channel.close(200, "looked".into());
    link.target.rpc("channel.close", closing).await?;
    Ok(lost)
}

/// Declares the queues again whenever a publish was returned. Returns the first error.
async fn heal(shared: &BrokerState, link: &AmqpLink) -> BrokerError {
    loop {
        shared.heal.notified().await;
        tracing::warn!("a published message had no queue: declaring all queues again");
        if let Err(error) = declare(shared, link).await {
            return error;
        }
        tokio::time::sleep(HEAL_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_queues_of_new_jobs_are_named_up_to_a_bound() {
        let words = |number: usize| {
            let shares = (0..number).map(|n| (Arc::from(format!("q{n}")), 1));
            queue_list(&shares.collect::<Vec<_>>())
        };
        assert_eq!(words(1), "q0");
        assert_eq!(words(3), "q0, q1, q2");
        assert!(words(8).ends_with("q7"));
        assert!(words(10).ends_with("q7 and 2 more"));
    }
}
