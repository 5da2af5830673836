//! A task that publishes batch after batch on a channel of its own, and says of each message what became of it.
//!
//! What one message does to its channel or its queue is not to cost the others theirs. A batch over which RabbitMQ closes the channel
//! is published again one by one, so that the message that it closes the channel for is found. Messages that are not confirmed within a
//! second are waited for on the channel that they were sent on, and those behind them take another one.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::Shared;
use super::confirm::{Answer, ConfirmChannel, Flight, Publishing, down};
use super::connection::Link;
use super::publish::{Batch, Requests};
use crate::broker::{BrokerError, PublishError};

/// Time for all confirms of a batch.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);
/// After this time messages without a confirm are late, and no others wait behind them.
const LATE_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of channels on which late messages are waited for. With more, the messages behind them wait, too.
const MAX_LATE_CHANNELS: usize = 12;
/// Pause between a channel's error and the next channel.
const CHANNEL_PAUSE: Duration = Duration::from_millis(200);
/// A channel whose messages are refused is renewed at most once in this time.
const RENEW_PAUSE: Duration = Duration::from_secs(1);
/// RabbitMQ closes connections with this code when it stops or an operator says so: no message is to blame.
const CONNECTION_FORCED: u16 = 320;

/// Why a lane ended.
pub(super) enum End {
    /// The connection is gone.
    Lost(BrokerError),
    /// RabbitMQ closed the connection over a message, which is known or is being found.
    Blamed(BrokerError),
}

/// The code by which RabbitMQ closed the channel or the connection.
fn code(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(refusal) => Some(refusal.get_id()),
        _ => None,
    }
}

/// What a lane publishes on.
pub(super) struct Lane<M> {
    pub link: Arc<Link>,
    pub requests: Arc<Requests<M>>,
    /// Hears of queues of ours that are missing.
    pub shared: Option<Arc<Shared>>,
    /// Nothing else is published on this connection: if RabbitMQ closes it, it is over a message of this lane.
    pub is_alone: bool,
}

impl<M: Publishing> Lane<M> {
    /// Publishes what is requested until the connection ends.
    pub async fn run(self) -> End {
        match self.serve().await {
            Ok(end) => end,
            Err(error) => End::Lost(error),
        }
    }

    async fn serve(&self) -> Result<End, BrokerError> {
        let mut channel = ConfirmChannel::open(&self.link).await?;
        let mut renewed_at = Instant::now();
        let mut late = JoinSet::new();
        loop {
            let batch = tokio::select! {
                Some(ended) = late.join_next() => {
                    ended.map_err(|error| self.failed(format!("a publishing task failed: {error}")))??;
                    continue;
                }
                batch = self.requests.next_batch() => batch,
            };
            let Some(mut batch) = batch else {
                return Ok(End::Lost(self.failed("closed")));
            };
            let sent = self.send(&mut channel, &mut batch).await?;
            let result = match sent {
                Ok(mut flight) => match self.wait(&mut flight, late.len()).await {
                    Some(result) => result.map(|()| flight),
                    None => {
                        let waiting = wait_for_late(self.link.clone(), channel, flight, batch);
                        if late.len() < MAX_LATE_CHANNELS {
                            late.spawn(waiting);
                        } else {
                            waiting.await?;
                        }
                        channel = ConfirmChannel::open(&self.link).await?;
                        continue;
                    }
                },
                Err(error) => Err(error),
            };
            match result {
                Ok(flight) => {
                    let answers = flight.answers();
                    let has = |what: PublishError| answers.contains(&Some(Err(what)));
                    if let Some(shared) = self.shared.as_ref().filter(|_| M::TO_OUR_QUEUES)
                        && has(PublishError::Returned)
                    {
                        shared.heal.notify_one();
                    }
                    let is_nacked = has(PublishError::Nacked);
                    batch.answer(answers);
                    if is_nacked && renewed_at.elapsed() >= RENEW_PAUSE {
                        channel = channel.renew(&self.link).await?;
                        renewed_at = Instant::now();
                    }
                }
                Err(error) => {
                    let is_blamed = self.blame(batch, &error);
                    tokio::time::sleep(CHANNEL_PAUSE).await;
                    // A message that the broker refuses by closing the channel does not cost the connection.
                    if !self.link.connected() {
                        let error = self.link.target.error(&error);
                        return Ok(match is_blamed {
                            true => End::Blamed(error),
                            false => End::Lost(error),
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

    /// Writes a batch. An error of its own: the connection takes nothing.
    async fn send(
        &self,
        channel: &mut ConfirmChannel,
        batch: &mut Batch<M>,
    ) -> Result<lapin::Result<Flight>, BrokerError> {
        let result = {
            let mut sending = std::pin::pin!(channel.send_all(&batch.messages));
            let mut blocked = false;
            loop {
                match timeout(CONFIRM_TIMEOUT, &mut sending).await {
                    Ok(result) => break Some(result),
                    // What is written when the alarm ends is waited for: a new connection would be blocked, too.
                    Err(_) if self.link.blocked() => blocked = true,
                    // It has just ended.
                    Err(_) if std::mem::take(&mut blocked) => {}
                    Err(_) => break None,
                }
            }
        };
        match result {
            Some(result) => Ok(result),
            None => {
                let reason = format!("it takes no messages within {CONFIRM_TIMEOUT:?}");
                batch.answer_rest(&Err(down(&reason)));
                Err(self.failed(reason))
            }
        }
    }

    /// Waits for the confirms of a batch; `None`: some are late. While RabbitMQ blocks publishers, none is.
    async fn wait(&self, flight: &mut Flight, late: usize) -> Option<lapin::Result<()>> {
        let within = match late < MAX_LATE_CHANNELS {
            true => LATE_AFTER,
            false => CONFIRM_TIMEOUT,
        };
        let mut blocked = false;
        loop {
            match timeout(within, flight.confirmed()).await {
                Ok(result) => return Some(result),
                Err(_) if self.link.blocked() => blocked = true,
                // It has just ended.
                Err(_) if std::mem::take(&mut blocked) => {}
                Err(_) => return None,
            }
        }
    }

    /// The channel was closed with this batch on it: its only message is told so, several are published again one by one. True: the
    /// connection was closed over it, too.
    fn blame(&self, mut batch: Batch<M>, error: &lapin::Error) -> bool {
        let (code, is_up) = (code(error), !error.is_amqp_hard_error());
        let shown = self.link.target.error(error).to_string();
        if code == Some(404) && !M::TO_OUR_QUEUES {
            // All that goes to strangers on this connection goes to one exchange.
            batch.answer_rest(&Err(PublishError::Returned));
            return false;
        }
        let is_to_blame = code.is_some_and(|code| code != CONNECTION_FORCED);
        if !is_to_blame || !(is_up || self.is_alone) {
            batch.answer_rest(&Err(down(&shown)));
            return false;
        }
        if batch.messages.len() == 1 {
            tracing::debug!(
                error = shown,
                "RabbitMQ closed a channel or a connection over a message"
            );
            batch.answer_rest(&Err(PublishError::Refused(shown)));
        } else {
            self.requests.publish_alone(batch);
        }
        !is_up
    }
}

/// Answers what is confirmed, and waits for the rest of a batch on its own channel. An error: the connection is of no use.
async fn wait_for_late<M: Publishing>(
    link: Arc<Link>,
    channel: ConfirmChannel,
    mut flight: Flight,
    mut batch: Batch<M>,
) -> Result<(), BrokerError> {
    let mut until = Instant::now() + CONFIRM_TIMEOUT;
    let mut result = flight.look();
    batch.answer(flight.answers());
    while result.is_ok() {
        match timeout_at(until, flight.confirmed()).await {
            Ok(confirmed) => {
                result = confirmed;
                break;
            }
            Err(_) if link.blocked() => until = Instant::now() + CONFIRM_TIMEOUT,
            Err(_) => break,
        }
    }
    let answers: Vec<Option<Answer>> = flight.answers();
    let is_complete = answers.iter().all(Option::is_some);
    batch.answer(answers);
    if let Err(error) = result {
        batch.answer_rest(&Err(down(&link.target.error(&error).to_string())));
        return Ok(());
    }
    if is_complete {
        return channel.close(&link).await;
    }
    // If RabbitMQ answers here, the connection is sound, and it is the messages' queues that are not.
    match channel.close(&link).await {
        Ok(()) => {
            batch.answer_rest(&Err(PublishError::Unconfirmed));
            Ok(())
        }
        Err(error) => {
            batch.answer_rest(&Err(down(&error.to_string())));
            Err(error)
        }
    }
}
