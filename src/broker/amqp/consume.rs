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

use super::connection::Link;
use super::inventory::depth;
use super::nodes::Turns;
use super::supervise::Attempts;
use super::{Shared, Taking, timeout};
use crate::broker::{BrokerError, Delivery, Event, Message, Source, Tag};
use crate::rules::delays::QueueNames;

/// Maximum number of deliveries of one consumer in one event.
const GATHER: usize = 128;
/// Divisor of the prefetch for the recheck queue.
const RECHECK_SHARE: u16 = 8;
/// Maximum number of queues of new jobs that a log line names.
const MOST_NAMED: usize = 8;
/// Maximum number of missing delay queues that a session finds before it stops looking.
const MAX_MISSING: usize = 8;
/// Minimum pause between two declarations of the queues.
const HEAL_PAUSE: Duration = Duration::from_secs(1);
/// The connection's name in logs and in RabbitMQ's tools.
const NAME: &str = "sluicegate consume";

/// Keeps a session up until the broker is closed or stopped.
pub(super) async fn supervise(shared: Arc<Shared>, events: mpsc::Sender<Event>) {
    // However this task ends, `stop_consuming` must not wait for it any longer.
    let _stopped = shared.stopped.clone().drop_guard();
    let (mut attempts, mut turns) = (Attempts::new(NAME), shared.nodes.turns());
    let mut session = 1;
    loop {
        let taking = tokio::select! {
            () = shared.stop.cancelled() => return,
            taking = shared.wants_other(Taking::Nothing) => taking,
        };
        let mut up = None;
        let ended = run(&shared, &mut turns, (session, taking), &mut up, &events).await;
        shared.acks.end();
        let error = match ended {
            Ok(End::Closed) => return,
            Ok(End::Resting) => {
                session += u64::from(up.is_some());
                tokio::select! {
                    () = shared.closed.cancelled() => return,
                    sent = events.send(Event::Resting) => if sent.is_err() { return },
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
                sent = events.send(Event::AckTimeout(timeout)) => if sent.is_err() { return },
            }
        }
        if attempts.tell(&error) || up.is_some() {
            let reason = error.to_string();
            tokio::select! {
                () = shared.closed.cancelled() => return,
                sent = events.send(Event::Down { reason }) => if sent.is_err() { return },
            }
        }
        if !attempts.pause(&shared.stop).await {
            return;
        }
    }
}

/// Reason why a session ended without an error.
enum End {
    /// The broker is closed, or the engine is gone.
    Closed,
    /// The deliveries go back to their queues, for other workers.
    Resting,
}

/// Runs one session, and sets `up` once it is connected. Returns `Ok` if it ended as requested.
async fn run(
    shared: &Shared,
    turns: &mut Turns<'_>,
    (session, taking): (u64, Taking),
    up: &mut Option<Instant>,
    events: &mpsc::Sender<Event>,
) -> Result<End, BrokerError> {
    let opening = async {
        let link = turns.open(NAME).await?;
        let taps = open_taps(shared, &link, taking).await?;
        Ok::<_, BrokerError>((link, taps))
    };
    let (link, taps) = tokio::select! {
        () = shared.stop.cancelled() => return Ok(End::Closed),
        opened = opening => opened?,
    };
    *up = Some(Instant::now());
    let result = consume(shared, &link, taps, (session, taking), events).await;
    link.close_after(shared.acks.close_channels()).await;
    result
}

/// A consumer and the queue it consumes.
struct Tap {
    source: Source,
    queue: Arc<str>,
    /// Maximum number of its unacked deliveries.
    prefetch: u16,
    channel: Channel,
    /// The consumer, or `None` while it takes nothing.
    consumer: Option<Consumer>,
    /// Whether it is being cancelled. Deliveries that `lapin` still holds keep coming.
    ends: bool,
}

impl Tap {
    /// Creates a tap that takes nothing yet.
    fn new(channel: &Channel, source: Source, (queue, prefetch): (&Arc<str>, u16)) -> Self {
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
    async fn turn(&mut self, link: &Link, on: bool) -> Result<(), BrokerError> {
        match &self.consumer {
            Some(consumer) if !on && !self.ends => {
                let options = BasicCancelOptions::default();
                let cancelling = self.channel.basic_cancel(consumer.tag(), options);
                self.ends = true;
                link.target.rpc("basic.cancel", cancelling).await
            }
            None if on => {
                limit(link, &self.channel, self.prefetch).await?;
                self.consumer = Some(self.consume(link).await?);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn consume(&self, link: &Link) -> Result<Consumer, BrokerError> {
        let (queue, options) = (&*self.queue, BasicConsumeOptions::default());
        let table = FieldTable::default();
        let consume = (self.channel).basic_consume(queue.into(), "".into(), options, table);
        link.target.rpc("basic.consume", consume).await
    }
}

/// Declares the queues and starts consuming.
async fn open_taps(shared: &Shared, link: &Link, taking: Taking) -> Result<Vec<Tap>, BrokerError> {
    say_lost_delay_queues(shared, link).await?;
    declare(shared, link).await?;
    let names = &shared.topology.names;
    let at_most = |prefetch: u16| match taking {
        Taking::Few => 1,
        _ => prefetch,
    };
    let (main, rechecks) = (
        at_most(shared.prefetch),
        at_most((shared.prefetch / RECHECK_SHARE).max(1)),
    );
    // In the order in which they are gathered: jobs that have waited come first.
    let window = at_most(shared.window);
    let mut taps = open_taps_of(link, names, names.delay_sources(), window).await?;
    taps.extend(open_taps_of(link, names, [Source::Due], main).await?);
    taps.extend(open_taps_of_new(link, shared, main).await?);
    taps.extend(open_taps_of(link, names, [Source::Recheck], rechecks).await?);
    Ok(taps)
}

/// Lists the queues of new jobs for the log, the work queue first.
fn in_words(shares: &[(Arc<str>, u16)]) -> String {
    let named = shares.iter().take(MOST_NAMED).map(|(name, _)| &**name);
    let mut text = named.collect::<Vec<_>>().join(", ");
    if let more @ 1.. = shares.len().saturating_sub(MOST_NAMED) {
        text += &format!(" and {more} more");
    }
    text
}

/// Passes deliveries to the engine until the session ends.
async fn consume(
    shared: &Shared,
    link: &Link,
    mut taps: Vec<Tap>,
    (session, taking): (u64, Taking),
    events: &mpsc::Sender<Event>,
) -> Result<End, BrokerError> {
    let channels = taps.iter().map(|tap| (tap.source, tap.channel.clone()));
    shared.acks.begin(session, channels);
    let (queue, node) = (in_words(&shared.shares), &link.target.at);
    tracing::info!(session, %queue, %node, "consuming");

    let mut waiting = VecDeque::from([Event::Up { session }]);
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
            () = shared.closed.cancelled() => return Ok(End::Closed),
            _ = shared.wants_other(taking), if !stopped => return Ok(End::Resting),
            () = shared.stop.cancelled(), if !stopped => {
                stop(link, &taps).await?;
                stopped = true;
                waiting.clear();
                shared.stopped.cancel();
            }
            Ok(()) = taking_new.changed(), if !stopped => {
                let on = *taking_new.borrow_and_update();
                turn_new(link, &mut taps, on).await?;
            }
            error = &mut failure => return Err(error),
            error = &mut healing => return Err(error),
            found = &mut timeout => waiting.extend(found.map(Event::AckTimeout)),
            permit = events.reserve(), if !waiting.is_empty() => match (permit, waiting.pop_front()) {
                (Ok(permit), Some(event)) => permit.send(event),
                // The engine is gone.
                (Err(_), _) => return Ok(End::Closed),
                (Ok(_), None) => {}
            },
            gathered = gather(&mut taps, session), if waiting.is_empty() && !stopped => {
                let batch = gathered.map_err(|reason| match reason {
                    Some(error) => link.target.error(&error),
                    None => link.target.failed("the broker cancelled a consumer: a queue was deleted or moved"),
                })?;
                let on = *taking_new.borrow();
                turn_new(link, &mut taps, on).await?;
                if batch.is_empty() {
                    continue;
                }
                shared.acks.delivered(batch.iter().map(|delivery| delivery.tag));
                waiting.push_back(Event::Deliveries(batch));
            }
        }
    }
}

/// Starts or stops consuming new jobs.
async fn turn_new(link: &Link, taps: &mut [Tap], on: bool) -> Result<(), BrokerError> {
    for tap in taps.iter_mut().filter(|tap| tap.source == Source::Fresh) {
        tap.turn(link, on).await?;
    }
    Ok(())
}

/// Opens consumers on one channel, each with a prefetch of its own.
async fn open_taps_of(
    link: &Link,
    names: &QueueNames,
    sources: impl IntoIterator<Item = Source>,
    prefetch: u16,
) -> Result<Vec<Tap>, BrokerError> {
    let channel = link.channel().await?;
    limit(link, &channel, prefetch).await?;
    let opening = sources.into_iter().map(async |source| {
        let mut tap = Tap::new(&channel, source, (names.of(source), prefetch));
        tap.consumer = Some(tap.consume(link).await?);
        Ok(tap)
    });
    future::try_join_all(opening).await
}

/// Opens consumers of all queues of new jobs on one channel. Each has its share of the prefetch,
/// and at most `prefetch`. They consume only if new jobs are wanted. All of them count as one
/// source.
async fn open_taps_of_new(
    link: &Link,
    shared: &Shared,
    prefetch: u16,
) -> Result<Vec<Tap>, BrokerError> {
    let channel = link.channel().await?;
    let wants_new = *shared.taking_new.borrow();
    let mut taps = Vec::with_capacity(shared.shares.len());
    for (queue, share) in &shared.shares {
        let mut tap = Tap::new(&channel, Source::Fresh, (queue, prefetch.min(*share)));
        tap.turn(link, wants_new).await?;
        taps.push(tap);
    }
    Ok(taps)
}

/// Sets the maximum number of unacked deliveries for each consumer that starts on `channel` from
/// now on.
async fn limit(link: &Link, channel: &Channel, prefetch: u16) -> Result<(), BrokerError> {
    let qos = channel.basic_qos(prefetch, BasicQosOptions::default());
    link.target.rpc("basic.qos", qos).await
}

/// Gathers the deliveries that have arrived. The batch is empty if a consumer has ended as
/// requested. `Err(None)` means that the broker cancelled a consumer.
///
/// `lapin` reports a channel's error or a cancel once and then stays silent forever, so both end
/// the session. Deliveries gathered in the same poll are delivered again.
async fn gather(taps: &mut [Tap], session: u64) -> Result<Vec<Delivery>, Option<lapin::Error>> {
    future::poll_fn(|cx| {
        let (mut batch, mut ended) = (Vec::new(), false);
        for tap in &mut *taps {
            for _ in 0..GATHER {
                let Some(consumer) = &mut tap.consumer else {
                    break;
                };
                match consumer.poll_next_unpin(cx) {
                    Poll::Ready(None) if tap.ends => {
                        (tap.consumer, tap.ends) = (None, false);
                        ended = true;
                    }
                    Poll::Pending => break,
                    Poll::Ready(None) => return Poll::Ready(Err(None)),
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(Some(error))),
                    Poll::Ready(Some(Ok(delivery))) => {
                        batch.push(taken(tap.source, session, delivery));
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

fn taken(source: Source, session: u64, delivery: lapin::message::Delivery) -> Delivery {
    Delivery {
        source,
        tag: Tag {
            session,
            source,
            tag: delivery.delivery_tag,
        },
        redelivered: delivery.redelivered,
        message: Message::from_lapin(delivery),
    }
}

/// Cancels the consumers. Deliveries that `lapin` still holds go back when the session ends.
async fn stop(link: &Link, taps: &[Tap]) -> Result<(), BrokerError> {
    let cancels = taps.iter().filter_map(|tap| {
        let consumer = tap.consumer.as_ref().filter(|_| !tap.ends)?;
        let options = BasicCancelOptions::default();
        Some((tap.channel).basic_cancel(consumer.tag(), options))
    });
    let cancelled = future::try_join_all(cancels);
    link.target.rpc("basic.cancel", cancelled).await?;
    Ok(())
}

async fn declare(shared: &Shared, link: &Link) -> Result<(), BrokerError> {
    let channel = link.channel().await?;
    shared.topology.declare(&channel, &link.target.at).await?;
    let closing = channel.close(200, "declared".into());
    link.target.rpc("channel.close", closing).await
}

/// Logs delay queues that were deleted together with their jobs: they are missing although others
/// exist. An operator deleted them, or a policy with `expires` while no worker ran. They are
/// declared again later.
async fn say_lost_delay_queues(shared: &Shared, link: &Link) -> Result<(), BrokerError> {
    for queue in lost_delay_queues(link, &shared.topology.names).await? {
        tracing::warn!(%queue, "a delay queue was deleted with its jobs; declaring it again: does a policy with expires match it?");
    }
    Ok(())
}

/// Returns the delay queues that are missing although a later one exists. Queues after the last
/// existing one were never declared, or another process is declaring them right now, in order. Each
/// check of a missing queue costs the session a channel, so their number is limited to
/// [`MAX_MISSING`].
async fn lost_delay_queues(link: &Link, names: &QueueNames) -> Result<Vec<Arc<str>>, BrokerError> {
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
async fn heal(shared: &Shared, link: &Link) -> BrokerError {
    loop {
        shared.heal.notified().await;
        tracing::warn!("a publish found no queue; declaring all queues again");
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
            in_words(&shares.collect::<Vec<_>>())
        };
        assert_eq!(words(1), "q0");
        assert_eq!(words(3), "q0, q1, q2");
        assert!(words(8).ends_with("q7"));
        assert!(words(10).ends_with("q7 and 2 more"));
    }
}
