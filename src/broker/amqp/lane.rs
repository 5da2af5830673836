//! A task that publishes batches on its own channel and reports the outcome of each message.
//!
//! A message that breaks its channel or whose queue stalls must not affect other messages. If
//! RabbitMQ closes the channel over a batch, its unconfirmed messages are published again one by
//! one, which finds the message at fault. Bodies of its size are then published alone. If messages
//! are not confirmed within a second, their channel is kept to wait for them, and the lane
//! publishes further messages on a new channel.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout};

use super::BrokerState;
use super::confirm_channel::{Answer, ConfirmChannel, SentBatch, down};
use super::connection::AmqpLink;
use super::publish::{Batch, CHANNELS, PublishRequests};
use crate::{BrokerError, PublishError};

/// Maximum time for all confirms of a batch.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which unconfirmed messages are late, so that the lane continues on a new channel.
const LATE_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of a lane's late channels, and of its unclosed ones, if the connection allows
/// them.
const MAX_STUCK_CHANNELS: usize = 12;
/// Pause between a channel's error and the next channel.
const CHANNEL_PAUSE: Duration = Duration::from_millis(200);
/// Minimum interval between renewals of a channel after nacks.
const RENEW_PAUSE: Duration = Duration::from_secs(1);
/// Maximum time to find out whether a message closed the connection.
const BLAME_TIMEOUT: Duration = Duration::from_secs(1);
/// Code with which RabbitMQ closes connections when it stops or an operator asks for it. No message
/// is to blame.
const CONNECTION_FORCED: u16 = 320;

/// Code with which RabbitMQ closes a channel if the user may not publish. No message is to blame: all
/// messages to the worker's own queues need the same permission.
const ACCESS_REFUSED: u16 = 403;
/// Code with which RabbitMQ closes a channel over a message above `max_message_size`.
const PRECONDITION_FAILED: u16 = 406;

/// Why a lane ended.
pub(super) enum LaneEnd {
    /// The connection is gone.
    Lost(BrokerError),
    /// RabbitMQ closed the connection because of a message. It is known, or is found by publishing
    /// the batch's messages one by one.
    Blamed(BrokerError),
}

/// Returns true if RabbitMQ's `code` for closing a channel or a connection means that it refused a
/// message. `to_ours`: the message goes to one of the worker's own queues.
fn is_message_to_blame(code: Option<u16>, to_ours: bool) -> bool {
    code.is_some_and(|code| match code {
        CONNECTION_FORCED => false,
        ACCESS_REFUSED => !to_ours,
        _ => true,
    })
}

/// A lane: its connection and the requests it publishes.
pub(super) struct Lane {
    pub link: Arc<AmqpLink>,
    pub requests: Arc<PublishRequests>,
    /// Notified if one of the worker's own queues is missing. `None` if the lane publishes to
    /// external targets.
    pub shared: Option<Arc<BrokerState>>,
    /// Whether this lane is the only one on its connection. If RabbitMQ closes the connection, a
    /// message of this lane is then to blame.
    pub is_alone: bool,
}

/// Returns the maximum number of a lane's late channels, on which late messages wait, and of its
/// unclosed ones, whose close RabbitMQ has not answered because one of their queues hangs. All lanes
/// of a connection with `channels` can then have them, with a channel for each probe.
fn max_stuck(channels: u16) -> usize {
    // Each lane also has its own channel and one more unclosed one. Another channel counts messages.
    let (lanes, counters) = (CHANNELS + 1, 1);
    let spare = usize::from(channels).saturating_sub(2 * lanes + counters);
    (spare / (3 * lanes)).clamp(1, MAX_STUCK_CHANNELS)
}

impl Lane {
    /// Publishes requests until the connection ends.
    pub async fn run(self) -> LaneEnd {
        match self.serve().await {
            Ok(end) => end,
            Err(error) => LaneEnd::Lost(error),
        }
    }

    async fn serve(&self) -> Result<LaneEnd, BrokerError> {
        let mut channel = ConfirmChannel::open(&self.link).await?;
        let mut renewed_at = Instant::now();
        let (mut late, mut unclosed) = (JoinSet::new(), 0);
        // Once all late channels are in use, the lane itself waits for late messages. A new
        // connection ends unclosed channels.
        let max_stuck = max_stuck(self.link.channels());
        loop {
            if unclosed > max_stuck {
                return Ok(LaneEnd::Lost(
                    self.failed("too many channels did not close"),
                ));
            }
            let batch = tokio::select! {
                Some(ended) = late.join_next() => {
                    let is_closed: Result<bool, BrokerError> = ended
                        .map_err(|error| self.failed(format!("a publishing task failed: {error}")))?;
                    unclosed += usize::from(!is_closed?);
                    continue;
                }
                batch = self.requests.next_batch() => batch,
            };
            let Some(mut batch) = batch else {
                return Ok(LaneEnd::Lost(self.failed("closed")));
            };
            let mut batch_sent = self.send(&mut channel, &mut batch).await?;
            let may_wait = late.len() < max_stuck;
            let Some(result) = self.wait(&mut batch_sent, may_wait).await else {
                let waiting = wait_for_late(
                    self.link.clone(),
                    self.requests.clone(),
                    channel,
                    batch_sent,
                    batch,
                );
                if may_wait {
                    late.spawn(waiting);
                } else {
                    unclosed += usize::from(!waiting.await?);
                }
                channel = ConfirmChannel::open(&self.link).await?;
                continue;
            };
            let answers = batch_sent.answers();
            let has = |what: PublishError| answers.contains(&Some(Err(what)));
            if let Some(shared) = &self.shared
                && has(PublishError::Returned)
            {
                shared.heal.notify_one();
            }
            let is_nacked = has(PublishError::Nacked);
            batch.answer(answers);
            match result {
                Ok(()) => {
                    self.requests.accepted(&batch);
                    if is_nacked && renewed_at.elapsed() >= RENEW_PAUSE {
                        channel = channel.renew(&self.link).await?;
                        renewed_at = Instant::now();
                    }
                }
                Err(error) => {
                    let is_blamed = self.blame(batch, &error);
                    // The connection survives if the broker closed only the channel.
                    let is_closed = error.is_amqp_hard_error();
                    if !is_closed {
                        tokio::time::sleep(CHANNEL_PAUSE).await;
                    }
                    if is_closed || !self.link.connected() {
                        let error = self.link.target.error(&error);
                        return Ok(match is_blamed {
                            true => LaneEnd::Blamed(error),
                            false => LaneEnd::Lost(error),
                        });
                    }
                    channel = ConfirmChannel::open(&self.link).await?;
                }
            }
        }
    }

    fn failed(&self, reason: impl Into<String>) -> BrokerError {
        self.link.target.failed(reason)
    }

    /// Writes a batch.
    ///
    /// # Errors
    /// [`BrokerError`] if the connection accepts no messages.
    async fn send(
        &self,
        channel: &mut ConfirmChannel,
        batch: &mut Batch,
    ) -> Result<SentBatch, BrokerError> {
        // The write goes on after an alarm. A new connection would be blocked, too.
        let sending = channel.send_all(&batch.messages);
        match timeout_unless_blocked(&self.link, CONFIRM_TIMEOUT, sending).await {
            Some(batch_sent) => Ok(batch_sent),
            None => {
                let reason = format!("it accepted no messages within {CONFIRM_TIMEOUT:?}");
                batch.answer_rest(&Err(down(&reason)));
                Err(self.failed(reason))
            }
        }
    }

    /// Waits for the confirms of a batch. Returns `None` if some are late, which is sooner if they
    /// `may_wait` on a late channel. No confirm is late while RabbitMQ blocks publishers.
    async fn wait(&self, batch_sent: &mut SentBatch, may_wait: bool) -> Option<lapin::Result<()>> {
        let within = match may_wait {
            true => LATE_AFTER,
            false => CONFIRM_TIMEOUT,
        };
        timeout_unless_blocked(&self.link, within, batch_sent.confirmed()).await
    }

    /// Handles a batch whose channel was closed. If a message is to blame and is the only one,
    /// reports it as refused. If there are several, queues each to be published alone. Returns true
    /// if the batch closed the connection, too.
    fn blame(&self, mut batch: Batch, error: &lapin::Error) -> bool {
        let (code, is_up) = (BrokerError::reply_code(error), !error.is_amqp_hard_error());
        let to_ours = self.shared.is_some();
        let shown = self.link.target.error(error).to_string();
        if code == Some(404) && !to_ours {
            // All messages to external targets on this connection go to one exchange, which does
            // not exist.
            batch.answer_rest(&Err(PublishError::Returned));
            return false;
        }
        if !is_message_to_blame(code, to_ours) || !(is_up || self.is_alone) {
            batch.answer_rest(&Err(down(&shown)));
            return false;
        }
        if let [message] = &batch.messages[..] {
            tracing::debug!(
                error = shown,
                "RabbitMQ closed a channel or a connection because of a message"
            );
            if code == Some(PRECONDITION_FAILED) {
                self.requests.isolate(message);
            }
            if !is_up && message.is_direct() {
                self.requests.refuse(message, &shown);
            }
            batch.answer_rest(&Err(match code {
                Some(ACCESS_REFUSED) => PublishError::Forbidden(shown),
                _ => PublishError::Refused(shown),
            }));
        } else {
            self.requests.publish_alone(batch);
        }
        !is_up
    }
}

/// The task of a lane that has a connection to itself.
pub(super) struct OnlyLane {
    link: Arc<AmqpLink>,
    requests: Arc<PublishRequests>,
    publishing: JoinHandle<LaneEnd>,
}

impl OnlyLane {
    /// Publishes `requests` over `link` from now on.
    pub fn start(link: Arc<AmqpLink>, requests: &Arc<PublishRequests>) -> Self {
        let lane = Lane {
            link: link.clone(),
            requests: requests.clone(),
            shared: None,
            is_alone: true,
        };
        Self {
            link,
            requests: requests.clone(),
            publishing: tokio::spawn(lane.run()),
        }
    }

    /// Waits for the end of the lane or of its connection. `name` is the connection's name in logs.
    /// Calls `blocks` when RabbitMQ blocks publishers, and when it no longer does.
    pub async fn ended(&mut self, name: &str, blocks: impl Fn(bool)) -> LaneEnd {
        let Self {
            link,
            requests,
            publishing,
        } = self;
        let failed = |why| {
            let why = format!("a publishing task failed: {why}");
            LaneEnd::Lost(link.target.failed(why))
        };
        let blocked = |is_blocked| {
            requests.block(is_blocked);
            blocks(is_blocked);
        };
        tokio::select! {
            error = link.failure(name, blocked) => {
                let blamed = timeout(BLAME_TIMEOUT, &mut *publishing).await;
                blamed.map_or(LaneEnd::Lost(error), |ended| ended.unwrap_or_else(failed))
            }
            ended = &mut *publishing => ended.unwrap_or_else(failed),
        }
    }

    /// Closes the connection and ends the lane.
    pub async fn close(self) {
        self.requests.block(false);
        // Close the link first: the task owns its channel.
        self.link.close().await;
        self.publishing.abort();
    }
}

/// Waits for `work`. Returns `None` if it takes longer than `within`. Time in which RabbitMQ blocks
/// publishers does not count.
async fn timeout_unless_blocked<T>(
    link: &AmqpLink,
    within: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    let (mut work, mut blocked) = (pin!(work), false);
    loop {
        match timeout(within, &mut work).await {
            Ok(result) => return Some(result),
            Err(_) if link.blocked() => blocked = true,
            // The alarm has just ended.
            Err(_) if std::mem::take(&mut blocked) => {}
            Err(_) => return None,
        }
    }
}

/// Answers confirmed messages and waits for the rest of a batch on its own channel. Returns true if
/// the channel is closed. An error means that the connection is unusable.
async fn wait_for_late(
    link: Arc<AmqpLink>,
    requests: Arc<PublishRequests>,
    channel: ConfirmChannel,
    mut batch_sent: SentBatch,
    mut batch: Batch,
) -> Result<bool, BrokerError> {
    batch_sent.collect_confirms();
    batch.answer(batch_sent.answers());
    let confirming = timeout_unless_blocked(&link, CONFIRM_TIMEOUT, batch_sent.confirmed());
    let result = confirming.await.unwrap_or(Ok(()));
    let answers: Vec<Option<Answer>> = batch_sent.answers();
    let is_complete = answers.iter().all(Option::is_some);
    batch.answer(answers);
    if let Err(error) = result {
        batch.answer_rest(&Err(down(&link.target.error(&error).to_string())));
        return Ok(true);
    }
    if is_complete {
        requests.accepted(&batch);
        channel.close(&link).await?;
        return Ok(true);
    }
    // If RabbitMQ answers on another channel, the connection works and the messages' queues are at
    // fault. The close of this channel is no proof: RabbitMQ does not answer it while a queue hangs.
    let probe = async { ConfirmChannel::open(&link).await?.close(&link).await };
    if let Err(error) = probe.await {
        batch.answer_rest(&Err(down(&error.to_string())));
        return Err(error);
    }
    batch.answer_rest(&Err(PublishError::Unconfirmed));
    Ok(channel.close(&link).await.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp::connection::MIN_CHANNELS;

    #[test]
    fn a_connection_has_channels_for_the_stuck_ones_of_all_lanes() {
        assert_eq!([MIN_CHANNELS, 63, 2047].map(max_stuck), [1, 6, 12]);
        for channels in MIN_CHANNELS..=2047 {
            let stuck = max_stuck(channels);
            // Its own, the late ones with their probes, and the unclosed ones with one too many.
            let lane = 1 + 2 * stuck + stuck + 1;
            assert!(3 * lane < usize::from(channels), "{channels}");
        }
    }

    #[test]
    fn no_message_is_to_blame_for_a_stopped_server_or_a_missing_permission() {
        for (code, to_ours, expected) in [
            (None, true, false),
            (Some(CONNECTION_FORCED), true, false),
            (Some(CONNECTION_FORCED), false, false),
            (Some(ACCESS_REFUSED), true, false),
            // The publisher of a job may have named the target.
            (Some(ACCESS_REFUSED), false, true),
            (Some(406), true, true),
            (Some(541), false, true),
        ] {
            let found = is_message_to_blame(code, to_ours);
            assert_eq!(found, expected, "{code:?} {to_ours}");
        }
    }
}
