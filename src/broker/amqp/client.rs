//! A connection for one command: it fails fast, with a typed error, and never reconnects.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicNackOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use tokio::sync::Mutex;

use super::confirm_channel::ConfirmChannel;
use super::connection::AmqpLink;
use super::inventory::depth;
use super::nodes::Nodes;
use crate::topology::{Queue, Topology};
use crate::{BrokerError, Message, Outgoing, PublishError};
use rules::delays::{DelayLevels, QueueNames};

/// Timeout for all confirms of one [`Client::publish`].
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(30);
/// The connection's name in RabbitMQ's tools.
const NAME: &str = "sluicegate command";

/// A connection for commands such as `publish` and `dead`. Once it is connected, all queues exist.
pub struct Client {
    topology: Topology,
    queue_type: config::QueueType,
    publisher: Mutex<ConfirmChannel>,
    reader: Channel,
    link: AmqpLink,
}

/// The `reply_to` of a message whose publisher receives replies on its own channel, without a
/// queue.
pub const REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// Replies to a client. Replies that are not taken are lost with the connection.
pub struct Replies(lapin::Consumer);

impl Replies {
    /// Waits for the next reply. Returns `None` if the connection has ended.
    pub async fn next(&mut self) -> Option<Message> {
        let delivery = self.0.next().await?.ok()?;
        Some(Message::from_lapin(delivery))
    }
}

/// A fetched message. Unless it is acked, it goes back to its queue when the client closes.
#[derive(Debug)]
pub struct FetchedMessage {
    /// The tag for [`Client::ack`].
    pub tag: u64,
    /// The message.
    pub message: Message,
    /// Number of messages left in the queue.
    pub left: u32,
}

impl Client {
    /// Connects once and declares the queues.
    ///
    /// # Errors
    /// [`BrokerError`] names the problem, the place and the remedy.
    pub async fn connect(amqp: &config::Amqp, levels: &DelayLevels) -> Result<Self, BrokerError> {
        Self::open(amqp, levels, false).await
    }

    /// Connects once, provided that the work queue's dead-letter queue exists, so that a mistyped
    /// name creates no queues. Declares any other missing queue.
    ///
    /// # Errors
    /// [`BrokerError`] names the problem, the place and the remedy. [`BrokerError::NoQueue`] if the
    /// dead-letter queue does not exist.
    pub async fn connect_existing(
        amqp: &config::Amqp,
        levels: &DelayLevels,
    ) -> Result<Self, BrokerError> {
        Self::open(amqp, levels, true).await
    }

    async fn open(
        amqp: &config::Amqp,
        levels: &DelayLevels,
        existing: bool,
    ) -> Result<Self, BrokerError> {
        let nodes = Nodes::new(amqp)?;
        let topology = Topology::wanted(amqp, levels)?;
        let link = nodes.turns().open(NAME).await?;
        let target = &link.target;
        if existing {
            let dead = &topology.names.dead;
            if depth(target, &link.channel().await?, dead).await?.is_none() {
                link.close().await;
                return Err(BrokerError::NoQueue {
                    at: target.at.clone(),
                    queue: dead.to_string(),
                });
            }
        }
        let reader = link.channel().await?;
        topology.declare(&reader, &target.at).await?;
        Ok(Self {
            publisher: Mutex::new(ConfirmChannel::open(&link).await?),
            topology,
            queue_type: amqp.queue_type,
            reader,
            link,
        })
    }

    /// Returns the queues' names.
    pub fn names(&self) -> &QueueNames {
        &self.topology.names
    }

    /// Publishes `batch` (mandatory, persistent) and waits for all confirms. Returns the results in
    /// the order of `batch`.
    ///
    /// # Errors
    /// [`BrokerError`] if the connection failed, or if the confirms did not come in time. Then the
    /// outcome of every message of the batch is unknown.
    pub async fn publish(
        &self,
        batch: &[Outgoing],
    ) -> Result<Vec<Result<(), PublishError>>, BrokerError> {
        let mut channel = self.publisher.lock().await;
        match tokio::time::timeout(CONFIRM_TIMEOUT, channel.publish(batch)).await {
            Ok(result) => result.map_err(|error| self.link.target.error(&error)),
            Err(_) if self.link.blocked() => Err((self.link.target).failed(
                "it blocks publishes (a memory or disk alarm); run rabbitmq-diagnostics alarms",
            )),
            Err(_) => {
                Err((self.link.target).failed(format!("no confirms within {CONFIRM_TIMEOUT:?}")))
            }
        }
    }

    /// Returns the replies to messages with [`REPLY_TO`] that this client publishes from now on.
    /// May be called once.
    ///
    /// # Errors
    /// [`BrokerError`] if the connection failed.
    pub async fn replies(&self) -> Result<Replies, BrokerError> {
        let channel = self.publisher.lock().await;
        let consuming = channel.replies();
        let consumer = self.link.target.rpc("basic.consume", consuming).await?;
        Ok(Replies(consumer))
    }

    /// Fetches the next message of `queue` without acking it. Returns `None` if the queue is empty.
    ///
    /// # Errors
    /// [`BrokerError`] if the queue does not exist, or if the connection failed.
    pub async fn get(&self, queue: &Arc<str>) -> Result<Option<FetchedMessage>, BrokerError> {
        let getting = (self.reader).basic_get(self.name(queue)?, BasicGetOptions::default());
        let got = self.link.target.rpc("basic.get", getting).await?;
        Ok(got.map(|got| FetchedMessage {
            tag: got.delivery.delivery_tag,
            left: got.message_count,
            message: Message::from_lapin(got.delivery),
        }))
    }

    /// Acks one fetched message, which removes it from its queue.
    ///
    /// # Errors
    /// [`BrokerError`] if the connection failed. The message then goes back to its queue.
    pub async fn ack(&self, tag: u64) -> Result<(), BrokerError> {
        let acking = self.reader.basic_ack(tag, BasicAckOptions::default());
        self.link.target.rpc("basic.ack", acking).await
    }

    /// Waits until all acks have reached `queue`. A channel of RabbitMQ holds the acks that follow
    /// 32 others until a quorum queue has applied these, and loses them when it is closed. The
    /// queue answers a get after the acks before it. A message that it returns goes back when the
    /// connection is closed.
    ///
    /// # Errors
    /// [`BrokerError`] if the queue does not exist, or if the connection failed. Acked messages may
    /// then go back to their queue.
    pub async fn acks_applied(&self, queue: &Arc<str>) -> Result<(), BrokerError> {
        self.get(queue).await.map(drop)
    }

    /// Returns all fetched messages that are not acked to their queues, each to its place.
    ///
    /// # Errors
    /// [`BrokerError`] if the connection failed, which returns them, too.
    pub async fn return_all(&self) -> Result<(), BrokerError> {
        let options = BasicNackOptions {
            multiple: true,
            requeue: true,
        };
        let returning = self.reader.basic_nack(0, options);
        self.link.target.rpc("basic.nack", returning).await
    }

    /// Creates `queue` if it does not exist, with the arguments of the work queue.
    ///
    /// # Errors
    /// [`BrokerError`] if the user may not create it, or if the connection failed.
    pub async fn make(&self, queue: &Arc<str>) -> Result<(), BrokerError> {
        let target = &self.link.target;
        let channel = self.link.channel().await?;
        if depth(target, &channel, queue).await?.is_some() {
            return Ok(());
        }
        // The refusal closed the channel.
        let channel = self.link.channel().await?;
        let queue = Queue::reliable(queue, self.queue_type);
        target.rpc("queue.declare", queue.declare(&channel)).await
    }

    /// Returns the number of messages that are ready in `queue`.
    ///
    /// # Errors
    /// [`BrokerError`] if the queue does not exist, or if the connection failed.
    pub async fn depth(&self, queue: &Arc<str>) -> Result<u32, BrokerError> {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let asking = (self.reader).queue_declare(self.name(queue)?, options, FieldTable::default());
        let found = self.link.target.rpc("queue.declare", asking).await?;
        Ok(found.message_count())
    }

    /// Closes the connection. Messages that were fetched and not acked go back to their queues.
    pub async fn close(self) {
        self.link.close().await;
    }

    fn name(&self, queue: &str) -> Result<ShortString, BrokerError> {
        ShortString::try_new(queue).map_err(|_| BrokerError::QueueName(queue.len()))
    }
}
