//! The broker: deliveries in, confirmed publishes and acks out. The engine sees only this module.
//! The AMQP client and the in-memory broker pass one conformance suite.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test may have many cases")
)]
#![deny(missing_docs)]

pub mod amqp;
pub mod error;
pub mod forwarding;
pub mod memory;
pub mod message;
pub mod topology;

use std::future::Future;
use std::sync::Arc;

pub use error::{BrokerError, QueueDifference};
pub use message::Message;
use strum::IntoStaticStr;

pub use rules::delays::DeliverySource;

/// Identifies one delivery until it is acked. A tag of an earlier session is stale: acking it does
/// nothing, and the broker delivers that message again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    /// Number of the session, counted from 1.
    pub session: u64,
    /// The queue it came from.
    pub source: DeliverySource,
    /// The broker's own delivery tag.
    pub tag: u64,
}

/// A message that the worker holds until it is acked.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// The queue it came from.
    pub source: DeliverySource,
    /// The tag to ack it with.
    pub tag: Tag,
    /// Whether the broker has delivered it before.
    pub redelivered: bool,
    /// The message itself. Moves of a delivery do not copy it.
    pub message: Arc<Message>,
}

/// An event for the engine.
#[derive(Debug, Clone, PartialEq)]
pub enum BrokerEvent {
    /// A session is up and consuming has begun.
    Up {
        /// The session's number.
        session: u64,
    },
    /// The messages that have arrived since the last event, at least one.
    Deliveries(Vec<Delivery>),
    /// The broker gives up deliveries that are unacked for longer than this, and ends the session.
    AckTimeout(std::time::Duration),
    /// The session was ended by [`Broker::rest`]. All of its tags are stale, and no session begins
    /// before [`Broker::take`].
    Resting,
    /// The session is gone, and all of its tags are stale. The broker reconnects by itself, with
    /// backoff.
    Down {
        /// The reason for the log, without secrets.
        reason: String,
    },
}

/// Number of jobs in the queues, without those that workers have in memory.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct QueueBacklog {
    /// Jobs that workers may take: new jobs, and jobs in `jobs.due` and `jobs.recheck`.
    pub ready: u64,
    /// Jobs in delay queues.
    pub waiting: u64,
    /// Dead letters.
    pub dead: u64,
}

/// A message to publish to a queue by its name (default exchange, mandatory, persistent).
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The queue's name.
    pub queue: Arc<str>,
    /// The message. It must have a message ID.
    pub message: Message,
}

/// A message to a target that is not ours and may not exist: a job's result, or a forwarded job. It
/// is persistent, and mandatory unless it goes to a client's direct reply-to.
#[derive(Debug, Clone, PartialEq)]
pub struct ExternalMessage {
    /// The exchange's name. Empty for the default exchange, whose routing keys are names of queues.
    pub exchange: Arc<str>,
    /// The routing key.
    pub routing_key: Arc<str>,
    /// The message. It must have a message ID.
    pub message: Message,
}

impl ExternalMessage {
    /// Prefix of the names of clients' direct reply-to targets.
    const DIRECT: &str = "amq.rabbitmq.reply-to.";

    /// Returns true if the target is a client's direct reply-to. That is not a queue: RabbitMQ
    /// always calls the message unroutable, drops it silently if there is no such client, and
    /// closes the connection over some names.
    pub fn is_direct(&self) -> bool {
        Self::is_direct_target(&self.exchange, &self.routing_key)
    }

    /// Returns true if messages to `exchange` with `routing_key` go to a client's direct reply-to.
    pub fn is_direct_target(exchange: &str, routing_key: &str) -> bool {
        exchange.is_empty() && routing_key.starts_with(Self::DIRECT)
    }
}

/// The kind of a message that a worker publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// A job's result.
    Result,
    /// A dead letter.
    DeadLetter,
    /// A job that waits, or goes to another queue.
    Job,
}

impl MessageKind {
    /// All kinds with their names, in the order of their numbers.
    pub const NAMES: [(Self, &str); 3] = [
        (Self::Result, "result"),
        (Self::DeadLetter, "dead-letter"),
        (Self::Job, "job"),
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }
}

/// Reason why a publish was not confirmed. The original stays unacked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum PublishError {
    /// The queue does not exist (the broker returned the mandatory message), or a result's exchange
    /// does not.
    #[error("no queue received it")]
    Returned,
    /// The broker refused it (the queue is full or unavailable).
    #[error("the broker refused it")]
    Nacked,
    /// The broker closed the channel or the connection over this message, which was alone on it.
    #[error("the broker closed the connection because of it: {0}")]
    Refused(String),
    /// The user may not publish to the exchange.
    #[error("the user may not publish it: {0}")]
    #[strum(serialize = "refused")]
    Forbidden(String),
    /// The broker does not confirm the message, but still answers on the same connection: the
    /// message's queue may have lost its majority. The message may or may not have been stored.
    #[error("the broker does not confirm it: a queue may have lost its majority")]
    Unconfirmed,
    /// The connection failed, or the confirm did not come in time. The message may or may not have
    /// been stored.
    #[error("the connection failed: {0}")]
    Down(String),
}

/// A connected broker. All methods may be called concurrently.
pub trait Broker: Send + Sync + 'static {
    /// Publishes `batch` and waits for all of its confirms. Returns the results in the order of
    /// `batch`. Returns after a bounded time, except while the server blocks publishers: it has the
    /// batch then, so its answer is awaited.
    fn publish(
        &self,
        batch: Vec<Outgoing>,
    ) -> impl Future<Output = Vec<Result<(), PublishError>>> + Send;

    /// Publishes results and waits for all of their confirms. Returns the outcomes in the order of
    /// `batch`. A result whose target does not exist is [`PublishError::Returned`] and affects no
    /// other result. Its time is bounded like that of [`Broker::publish`].
    fn publish_results(
        &self,
        batch: Vec<ExternalMessage>,
    ) -> impl Future<Output = Vec<Result<(), PublishError>>> + Send;

    /// Acks deliveries. Ignores stale tags. On an error the broker delivers them again.
    fn ack(&self, tags: Vec<Tag>) -> impl Future<Output = ()> + Send;

    /// Returns these deliveries to their queues, which deliver them again. Ignores stale tags.
    fn give_back(&self, tags: Vec<Tag>) -> impl Future<Output = ()> + Send;

    /// Returns all unacked deliveries to their queues, for other workers, and takes nothing until
    /// [`Broker::take`]. [`BrokerEvent::Resting`] follows.
    fn rest(&self) -> impl Future<Output = ()> + Send;

    /// Takes deliveries again.
    fn take(&self) -> impl Future<Output = ()> + Send;

    /// Takes deliveries again, one at a time from each queue. To take more, rest first. The default
    /// implementation takes all.
    fn take_few(&self) -> impl Future<Output = ()> + Send {
        self.take()
    }

    /// Sets whether new jobs are taken from the work queue, or only jobs that come back. This
    /// applies to later sessions, too.
    fn take_new(&self, enabled: bool) -> impl Future<Output = ()> + Send {
        let _ = enabled;
        std::future::ready(())
    }

    /// Stops taking deliveries. Acks and publishes still work.
    fn stop_consuming(&self) -> impl Future<Output = ()> + Send;

    /// Closes the connections. All unacked deliveries go back to their queues.
    fn close(&self) -> impl Future<Output = ()> + Send;
}
