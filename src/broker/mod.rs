//! The queue's side: deliveries in, confirmed publishes and acks out. The engine sees only this module;
//! the AMQP client and the in-memory broker pass one conformance suite.

pub mod amqp;
pub mod error;
pub mod forwarding;
pub mod memory;
pub mod message;
pub mod topology;

use std::future::Future;
use std::sync::Arc;

pub use error::{BrokerError, QueueDiffers};
pub use message::Message;

use crate::rules::delays::QueueNames;

/// Which of our queues a delivery came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// `jobs`: fresh work. Our own headers on it were not set by us and count for nothing.
    Fresh,
    /// `jobs.due`: it comes from a delay queue of an earlier version.
    Due,
    /// `jobs.recheck`: the same, for waits that were longer than the longest of those delay queues.
    Recheck,
    /// A delay queue, by its position: it waits there for its time.
    Delay(u8),
}

impl QueueNames {
    /// All delay queues.
    pub fn delay_sources(&self) -> impl Iterator<Item = Source> + use<> {
        // Some thirty, by the longest trip.
        (0..u8::try_from(self.delays().len()).unwrap_or(u8::MAX)).map(Source::Delay)
    }

    /// The queue that a delivery of `source` came from.
    pub fn of(&self, source: Source) -> &Arc<str> {
        match source {
            Source::Fresh => &self.fresh,
            Source::Due => &self.due,
            Source::Recheck => &self.recheck,
            Source::Delay(level) => self.delays().get(usize::from(level)).unwrap_or(&self.due),
        }
    }
}

/// Names one delivery until it is acked. A tag of an earlier session is stale: acking it does nothing,
/// and the broker delivers that message again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    /// Counts the connections of this broker, from 1.
    pub session: u64,
    /// The consumer it arrived on.
    pub source: Source,
    /// The broker's own delivery tag.
    pub tag: u64,
}

/// A message that is ours until it is acked.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// Where it came from.
    pub source: Source,
    /// Its name for the ack.
    pub tag: Tag,
    /// The broker delivered it before.
    pub redelivered: bool,
    /// The message itself.
    pub message: Message,
}

/// What the broker tells the engine.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A session is up and consuming has begun.
    Up {
        /// The session's number.
        session: u64,
    },
    /// What has arrived since the last event, at least one.
    Deliveries(Vec<Delivery>),
    /// The broker gives up deliveries that are unacked for longer than this, and ends the session.
    AckTimeout(std::time::Duration),
    /// The session was ended by [`Broker::rest`]: every tag of it is stale, and none begins before [`Broker::take`].
    Resting,
    /// The session is gone; every tag of it is stale. The broker reconnects by itself, with backoff.
    Down {
        /// For the log; without secrets.
        reason: String,
    },
}

/// How many jobs are in the queues, without those that workers have in memory.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// They may be taken: new ones, and those that come back from queues of earlier versions.
    pub ready: u64,
    /// They are in delay queues.
    pub waiting: u64,
    /// They are dead letters.
    pub dead: u64,
}

/// A message to publish to a queue by its name (default exchange, mandatory, persistent).
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The queue's name.
    pub queue: Arc<str>,
    /// What is published; it must have a message id.
    pub message: Message,
}

/// A job's result or a forwarded job (mandatory, persistent). Its target is not ours and may not exist.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// The exchange's name; empty: the default exchange, which takes a queue's name as the key.
    pub exchange: Arc<str>,
    /// The routing key.
    pub routing_key: Arc<str>,
    /// What is published; it must have a message id.
    pub message: Message,
}

impl Reply {
    /// What the name of a client's direct reply-to begins with.
    const DIRECT: &str = "amq.rabbitmq.reply-to.";

    /// Returns true if the target is a client's direct reply-to. That is not a queue: RabbitMQ always calls the message unroutable, drops
    /// it silently if there is no such client, and closes the connection over some names.
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

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }
}

/// Why a publish was not confirmed. The original stays unacked, and the publish is tried again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The queue does not exist (the broker returned the mandatory message), or a result's exchange does not.
    #[error("no queue takes it")]
    Returned,
    /// The broker refused it (the queue is full or unavailable).
    #[error("the broker refused it")]
    Nacked,
    /// The broker closed the channel or the connection over this message, which was alone on it.
    #[error("the broker closed the connection over it: {0}")]
    Refused(String),
    /// The broker does not confirm the message, but still answers on the same connection: the message's queue may have lost its majority.
    /// The message may or may not have been stored.
    #[error("the broker does not confirm it: a queue may have lost its majority")]
    Unconfirmed,
    /// The connection failed, or the confirm did not come in time: it may or may not have been stored.
    #[error("the connection failed: {0}")]
    Down(String),
}

/// A connected broker. All methods may be called concurrently.
pub trait Broker: Send + Sync + 'static {
    /// Publishes `batch` and waits for all its confirms; results in the order of `batch`.
    /// Ends after a bounded time whatever the server does, but for one that blocks publishers: its answer is waited for, since
    /// it has the batch.
    fn publish(
        &self,
        batch: Vec<Outgoing>,
    ) -> impl Future<Output = Vec<Result<(), PublishError>>> + Send;

    /// Publishes results and waits for all their confirms; results of that in the order of `batch`. One whose target does not exist is
    /// [`PublishError::Returned`], and harms no other. It ends as [`Broker::publish`] does.
    fn reply(
        &self,
        batch: Vec<Reply>,
    ) -> impl Future<Output = Vec<Result<(), PublishError>>> + Send;

    /// Acks deliveries; stale tags are ignored. On an error the broker delivers them again.
    fn ack(&self, tags: Vec<Tag>) -> impl Future<Output = ()> + Send;

    /// Gives everything unacked back to its queue, for other workers, and takes nothing until [`Broker::take`]. What comes of it is
    /// told by [`Event::Resting`].
    fn rest(&self) -> impl Future<Output = ()> + Send;

    /// Takes deliveries again.
    fn take(&self) -> impl Future<Output = ()> + Send;

    /// Takes deliveries again, one at a time from each queue. To take more, rest first. By default it takes all.
    fn take_few(&self) -> impl Future<Output = ()> + Send {
        self.take()
    }

    /// Takes new jobs from the work queue, or none: only those that come back. It holds for later sessions, too.
    fn take_new(&self, wanted: bool) -> impl Future<Output = ()> + Send {
        let _ = wanted;
        std::future::ready(())
    }

    /// Stops taking deliveries; acks and publishes still work.
    fn stop_consuming(&self) -> impl Future<Output = ()> + Send;

    /// Closes; everything unacked goes back to its queue.
    fn close(&self) -> impl Future<Output = ()> + Send;
}
