//! A connection for one command: it fails fast, with a typed error, and never reconnects.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicGetOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use tokio::sync::Mutex;

use super::confirm::ConfirmChannel;
use super::connection::Link;
use super::inventory::depth;
use super::nodes::Nodes;
use crate::broker::topology::{Queue, Topology};
use crate::broker::{BrokerError, Message, Outgoing, PublishError};
use crate::config;
use crate::rules::delays::{DelayLevels, QueueNames};

/// For all confirms of one [`Client::publish`].
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(30);
/// The connection's name in the broker's tools.
const NAME: &str = "sluicegate command";

/// What `publish` and `dead` use. All queues exist once it is connected.
pub struct Client {
    topology: Topology,
    queue_type: config::QueueType,
    publisher: Mutex<ConfirmChannel>,
    reader: Channel,
    link: Link,
}

/// As the `reply_to` of a message: whoever publishes it gets what is sent back, on its own channel and without a queue.
pub const REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// What is sent back to a client. What nobody takes is lost with its connection.
pub struct Replies(lapin::Consumer);

impl Replies {
    /// The next one; `None`: the connection has ended.
    pub async fn next(&mut self) -> Option<Message> {
        let delivery = self.0.next().await?.ok()?;
        Some(Message::from_lapin(delivery))
    }
}

/// A message that was fetched. Unless it is acked by its tag, it goes back when the client closes.
#[derive(Debug)]
pub struct Fetched {
    /// For [`Client::ack`].
    pub tag: u64,
    /// The message.
    pub message: Message,
    /// How many are left behind it.
    pub left: u32,
}

impl Client {
    /// Connects once and declares the queues.
    ///
    /// # Errors
    /// [`BrokerError`] says what is wrong, where, and what to do.
    pub async fn connect(amqp: &config::Amqp, levels: &DelayLevels) -> Result<Self, BrokerError> {
        Self::open(amqp, levels, false).await
    }

    /// Connects once, where the work queue has its dead letters' queue already: of a name that nobody uses it makes
    /// no queues. What else is missing is declared.
    ///
    /// # Errors
    /// [`BrokerError`] says what is wrong, where, and what to do; [`BrokerError::NoQueue`]: there is no such queue.
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

    /// The queues' names.
    pub fn names(&self) -> &QueueNames {
        &self.topology.names
    }

    /// Publishes `batch` (mandatory, persistent) and waits for all confirms; results in its order.
    ///
    /// # Errors
    /// [`BrokerError`]: the connection failed, or the confirms did not come in time; nothing is known
    /// of any message of the batch then.
    pub async fn publish(
        &self,
        batch: &[Outgoing],
    ) -> Result<Vec<Result<(), PublishError>>, BrokerError> {
        let mut channel = self.publisher.lock().await;
        match tokio::time::timeout(CONFIRM_TIMEOUT, channel.publish(batch)).await {
            Ok(result) => result.map_err(|error| self.link.target.error(&error)),
            Err(_) if self.link.blocked() => Err((self.link.target).failed(
                "it blocks publishing (a memory or disk alarm); see rabbitmq-diagnostics alarms",
            )),
            Err(_) => {
                Err((self.link.target).failed(format!("no confirms within {CONFIRM_TIMEOUT:?}")))
            }
        }
    }

    /// What is sent back to [`REPLY_TO`] of messages that this client publishes from now on. To be asked for once.
    ///
    /// # Errors
    /// [`BrokerError`]: the connection failed.
    pub async fn replies(&self) -> Result<Replies, BrokerError> {
        let channel = self.publisher.lock().await;
        let consuming = channel.replies();
        let consumer = self.link.target.rpc("basic.consume", consuming).await?;
        Ok(Replies(consumer))
    }

    /// The next message of `queue`, unacked; `None`: there is none.
    ///
    /// # Errors
    /// [`BrokerError`]: there is no such queue, or the connection failed.
    pub async fn get(&self, queue: &Arc<str>) -> Result<Option<Fetched>, BrokerError> {
        let getting = (self.reader).basic_get(self.name(queue)?, BasicGetOptions::default());
        let got = self.link.target.rpc("basic.get", getting).await?;
        Ok(got.map(|got| Fetched {
            tag: got.delivery.delivery_tag,
            left: got.message_count,
            message: Message::from_lapin(got.delivery),
        }))
    }

    /// Acks one fetched message: it is gone.
    ///
    /// # Errors
    /// [`BrokerError`]: the connection failed; the message goes back to its queue.
    pub async fn ack(&self, tag: u64) -> Result<(), BrokerError> {
        let acking = self.reader.basic_ack(tag, BasicAckOptions::default());
        self.link.target.rpc("basic.ack", acking).await
    }

    /// Makes `queue`, which keeps its messages as the work queue does, where there is none.
    ///
    /// # Errors
    /// [`BrokerError`]: the user may not make it, or the connection failed.
    pub async fn make(&self, queue: &Arc<str>) -> Result<(), BrokerError> {
        let target = &self.link.target;
        let channel = self.link.channel().await?;
        if depth(target, &channel, queue).await?.is_some() {
            return Ok(());
        }
        // The refusal closed it.
        let channel = self.link.channel().await?;
        let queue = Queue::kept(queue, self.queue_type);
        target.rpc("queue.declare", queue.declare(&channel)).await
    }

    /// How many messages are ready in `queue`.
    ///
    /// # Errors
    /// [`BrokerError`]: there is no such queue, or the connection failed.
    pub async fn depth(&self, queue: &Arc<str>) -> Result<u32, BrokerError> {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let asking = (self.reader).queue_declare(self.name(queue)?, options, FieldTable::default());
        let found = self.link.target.rpc("queue.declare", asking).await?;
        Ok(found.message_count())
    }

    /// Closes; what was fetched and not acked goes back to its queue.
    pub async fn close(self) {
        self.link.close().await;
    }

    fn name(&self, queue: &str) -> Result<ShortString, BrokerError> {
        ShortString::try_new(queue).map_err(|_| BrokerError::QueueName(queue.len()))
    }
}
