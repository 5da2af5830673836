//! Channels in confirm mode: batches of messages, their confirms, and returned messages.
//!
//! `lapin` 4.12.3 attributes returned messages to the wrong publish when confirms come in bulk, and
//! swaps confirms when several tasks publish on one channel. So each channel has one task and one
//! batch at a time, and a returned message is recognized by its queue and ID instead of the confirm
//! it came with. A batch waits for all of its confirms. If some are missing after a second, the
//! confirmed messages are answered.

use std::collections::{HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use lapin::options::{BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Confirmation, PublisherConfirm};

use super::client::REPLY_TO;
use super::connection::AmqpLink;
use crate::message::as_sent;
use crate::{BrokerError, ExternalMessage, Message, Outgoing, PublishError};

/// The outcome of a message.
pub(super) type Answer = Result<(), PublishError>;

/// A message to publish.
#[derive(Debug, Clone)]
pub(super) struct Publish {
    /// The exchange of a message to an external target, or `None` for one of the worker's own
    /// queues.
    exchange: Option<Arc<str>>,
    pub key: Arc<str>,
    message: Message,
}

impl From<Outgoing> for Publish {
    fn from(outgoing: Outgoing) -> Self {
        Self {
            exchange: None,
            key: outgoing.queue,
            message: outgoing.message,
        }
    }
}

impl From<ExternalMessage> for Publish {
    fn from(outgoing: ExternalMessage) -> Self {
        Self {
            exchange: Some(outgoing.exchange),
            key: outgoing.routing_key,
            message: outgoing.message,
        }
    }
}

impl Publish {
    fn exchange(&self) -> &str {
        self.exchange.as_deref().unwrap_or_default()
    }

    /// Returns the size of the body.
    pub fn bytes(&self) -> usize {
        self.message.body.len()
    }

    /// Returns true if the target is a client's direct reply-to, which is not a queue.
    pub fn is_direct(&self) -> bool {
        let exchange = self.exchange.as_deref();
        exchange.is_some_and(|exchange| ExternalMessage::is_direct_target(exchange, &self.key))
    }
}

/// A channel in confirm mode. `&mut` keeps it to one batch at a time.
pub(super) struct ConfirmChannel(Channel);

impl ConfirmChannel {
    pub async fn open(link: &AmqpLink) -> Result<Self, BrokerError> {
        let channel = link.channel().await?;
        let selecting = channel.confirm_select(ConfirmSelectOptions::default());
        link.target.rpc("confirm.select", selecting).await?;
        Ok(Self(channel))
    }

    /// Consumes the replies to this channel's direct reply-to.
    pub async fn replies(&self) -> lapin::Result<lapin::Consumer> {
        let options = BasicConsumeOptions {
            no_ack: true,
            ..BasicConsumeOptions::default()
        };
        let (queue, tag) = (REPLY_TO.into(), "replies".into());
        let arguments = FieldTable::default();
        self.0.basic_consume(queue, tag, options, arguments).await
    }

    /// Replaces the channel. RabbitMQ remembers a queue's leader per channel: a channel that first
    /// published to a quorum queue whose leader had just died gets a nack for each message until
    /// that node is back, even though the queue has a new leader (seen on 3.10.8;
    /// rabbitmq-server#9241).
    pub async fn renew(self, link: &AmqpLink) -> Result<Self, BrokerError> {
        self.close(link).await?;
        Self::open(link).await
    }

    /// Publishes `batch` and waits for all of its confirms. The caller bounds the time. If the channel
    /// is closed after some confirms, the outcome of the other messages is unknown. On an error the
    /// channel is gone, and the outcome of every message of the batch is unknown.
    pub async fn publish(&mut self, batch: &[Outgoing]) -> lapin::Result<Vec<Answer>> {
        let batch: Vec<_> = batch.iter().cloned().map(Publish::from).collect();
        let mut batch_sent = self.send_all(&batch).await;
        let ended = batch_sent.confirmed().await;
        let mut answers = batch_sent.answers();
        answers.resize(batch.len(), None);
        let why = match ended {
            Ok(()) => PublishError::Unconfirmed,
            Err(error) if answers.contains(&Some(Ok(()))) => PublishError::Down(error.to_string()),
            Err(error) => return Err(error),
        };
        let answers = answers.into_iter();
        Ok(answers
            .map(|answer| answer.unwrap_or_else(|| Err(why.clone())))
            .collect())
    }

    /// Writes `batch` to the connection.
    pub async fn send_all(&mut self, batch: &[Publish]) -> SentBatch {
        let sends: Vec<_> = batch.iter().map(|outgoing| self.send(outgoing)).collect();
        let mut batch_sent = SentBatch::default();
        for (number, (send, outgoing)) in sends.into_iter().zip(batch).enumerate() {
            let id = outgoing.message.properties.message_id().clone();
            batch_sent
                .names
                .push(short(&outgoing.key).map(|key| (key, id)));
            batch_sent.answers.push(None);
            match send {
                Some(send) => match send.written().await {
                    Ok(confirm) => batch_sent.pending.push_back((number, confirm)),
                    Err(error) => {
                        batch_sent.error = Some(error);
                        break;
                    }
                },
                None => batch_sent.answers[number] = Some(Err(PublishError::Returned)),
            }
        }
        batch_sent
    }

    /// Closes the channel. Messages without a confirm stay unconfirmed.
    pub async fn close(self, link: &AmqpLink) -> Result<(), BrokerError> {
        let closing = self.0.close(200, "closed".into());
        link.target.rpc("channel.close", closing).await
    }

    /// Hands a message to the connection at once, so that messages go out in the order of the
    /// calls. Returns `None` if no exchange or queue can have this name.
    fn send<'a>(&'a self, outgoing: &'a Publish) -> Option<PendingWrite<'a>> {
        let (exchange, key) = (short(outgoing.exchange())?, short(&outgoing.key)?);
        let options = BasicPublishOptions {
            mandatory: !outgoing.is_direct(),
            immediate: false,
        };
        let message = &outgoing.message;
        let properties = as_sent(message.properties.clone());
        let mut sending =
            Box::pin(
                self.0
                    .basic_publish(exchange, key, options, &message.body, properties),
            );
        // The first poll queues the frames. Later polls wait until they are written.
        Some(
            match sending
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
            {
                Poll::Ready(result) => PendingWrite::Written(result),
                Poll::Pending => PendingWrite::Queued(sending),
            },
        )
    }
}

/// The routing key and the ID of a message. They identify a returned message.
type MessageIdentity = (ShortString, Option<ShortString>);

/// The messages of a written batch, and their confirms.
#[derive(Default)]
pub(super) struct SentBatch {
    names: Vec<Option<MessageIdentity>>,
    answers: Vec<Option<Answer>>,
    pending: VecDeque<(usize, PublisherConfirm)>,
    returned: HashSet<MessageIdentity>,
    /// The error with which the channel ended, if it did.
    error: Option<lapin::Error>,
}

impl SentBatch {
    /// Waits until all messages are confirmed. It is cancel safe. On an error the channel is gone,
    /// and messages that were not confirmed before have no answer.
    pub async fn confirmed(&mut self) -> lapin::Result<()> {
        while let Some((number, confirm)) = self.pending.front_mut() {
            let (number, confirmation) = (*number, confirm.await);
            self.pending.pop_front();
            self.note(number, confirmation);
        }
        self.error.clone().map_or(Ok(()), Err)
    }

    /// Collects confirms that came after missing ones, without waiting.
    pub fn collect_confirms(&mut self) {
        for _ in 0..self.pending.len() {
            let Some((number, mut confirm)) = self.pending.pop_front() else {
                break;
            };
            match (&mut confirm).now_or_never() {
                Some(confirmation) => self.note(number, confirmation),
                None => self.pending.push_back((number, confirm)),
            }
        }
    }

    fn note(&mut self, number: usize, confirmation: lapin::Result<Confirmation>) {
        let confirmation = match confirmation {
            Ok(confirmation) => confirmation,
            Err(error) => {
                self.error.get_or_insert(error);
                return;
            }
        };
        self.answers[number] = Some(match &confirmation {
            Confirmation::Ack(_) => Ok(()),
            Confirmation::Nack(_) => Err(PublishError::Nacked),
            // The channel is in confirm mode, so this is no confirm.
            Confirmation::NotRequested => Err(down("the channel does not confirm")),
        });
        if let Some(message) = confirmation.take_message() {
            let id = message.properties.message_id().clone();
            self.returned.insert((message.delivery.routing_key, id));
        }
    }

    /// Returns the answer to each message, or `None` if it has none yet. RabbitMQ confirms a
    /// returned message at once and in order, so a message that counts as confirmed here is not
    /// returned later.
    pub fn answers(&self) -> Vec<Option<Answer>> {
        let both = self.answers.iter().zip(&self.names);
        both.map(|(answer, name)| {
            let is_returned = name.as_ref().is_some_and(|it| self.returned.contains(it));
            match is_returned {
                true => Some(Err(PublishError::Returned)),
                false => answer.clone(),
            }
        })
        .collect()
    }
}

/// A message being written to the socket.
enum PendingWrite<'a> {
    Queued(Pin<Box<dyn Future<Output = lapin::Result<PublisherConfirm>> + Send + 'a>>),
    Written(lapin::Result<PublisherConfirm>),
}

impl PendingWrite<'_> {
    async fn written(self) -> lapin::Result<PublisherConfirm> {
        match self {
            Self::Queued(sending) => sending.await,
            Self::Written(result) => result,
        }
    }
}

fn short(name: &str) -> Option<ShortString> {
    ShortString::try_new(name).ok()
}

/// Returns the error for a message whose outcome is unknown.
pub(super) fn down(reason: &str) -> PublishError {
    PublishError::Down(reason.to_owned())
}
