//! Measures for `check` how long RabbitMQ takes to confirm. Uses a temporary queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::options::QueueDeleteOptions;
use lapin::types::ShortString;
use tokio::time::timeout;
use ulid::Ulid;

use super::confirm_channel::ConfirmChannel;
use super::connection::{AmqpLink, NodeTarget};
use super::nodes::Nodes;
use super::publish::{CHANNELS, MAX_BATCH};
use crate::topology::Queue;
use crate::{BrokerError, Message, Outgoing};
use rules::headers::HeaderValue;

/// The connection's name in RabbitMQ's tools.
const NAME: &str = "sluicegate check";
/// Number of messages that are published, one after the other.
const MESSAGES: usize = 10;
/// Timeout for all confirms together.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);
/// Milliseconds after which RabbitMQ deletes the unused queue if this process could not.
const EXPIRES_MS: i64 = 60_000;
/// Number of jobs that a worker publishes before it waits for their confirms.
pub const MOVED_AT_ONCE: usize = MAX_BATCH * CHANNELS;

/// The result of [`confirms`].
#[derive(Debug)]
pub enum Confirms {
    /// The time that each confirm took.
    Measured(Vec<Duration>),
    /// No confirm came in time, or RabbitMQ refused the messages, for this reason.
    None(String),
    /// The user may not declare the queue, or not publish.
    Forbidden(BrokerError),
    /// The queue could not be created or used, for this reason.
    Unknown(BrokerError),
}

/// Publishes some messages to a queue of the work queue's type, one after the other. The queue has
/// a unique name and is deleted afterwards. Opens two connections, as a worker does, and `more`.
pub async fn confirms(amqp: &config::Amqp, more: usize) -> Confirms {
    match measured(amqp, more).await {
        Ok(confirms) => confirms,
        Err(why @ BrokerError::Forbidden { .. }) => Confirms::Forbidden(why),
        Err(why) => Confirms::Unknown(why),
    }
}

async fn measured(amqp: &config::Amqp, more: usize) -> Result<Confirms, BrokerError> {
    let link = Nodes::new(amqp)?.turns().open(NAME).await?;
    // A user that may declare delay queues may declare this queue, too.
    let name: Arc<str> = format!("{}.delay.check-{}", amqp.queue, Ulid::new()).into();
    let found = with_queue(&link, &name, (amqp.queue_type, more)).await;
    link.close().await;
    found
}

/// Measures with a queue that `link` declares and deletes. `link` publishes nothing, so RabbitMQ
/// reads from it even during an alarm.
async fn with_queue(
    link: &AmqpLink,
    name: &Arc<str>,
    (queue_type, more): (config::QueueType, usize),
) -> Result<Confirms, BrokerError> {
    let mut queue = Queue::reliable(name, queue_type);
    (queue.arguments).push(("x-expires", HeaderValue::Int(EXPIRES_MS)));
    let (target, channel) = (&link.target, link.channel().await?);
    target.rpc("queue.declare", queue.declare(&channel)).await?;
    let confirms = confirms_of(target, name, more).await;
    // The name fits: the work queue's length is bounded.
    let name = ShortString::from(&**name);
    let deleting = channel.queue_delete(name, QueueDeleteOptions::default());
    target.rpc("queue.delete", deleting).await?;
    confirms
}

async fn confirms_of(
    target: &NodeTarget,
    queue: &Arc<str>,
    more: usize,
) -> Result<Confirms, BrokerError> {
    let link = AmqpLink::open(target, NAME).await?;
    let mut others = Vec::with_capacity(more);
    for _ in 0..more {
        others.push(AmqpLink::open(target, NAME).await?);
    }
    let confirms = match timeout(CONFIRM_TIMEOUT, published(&link, queue)).await {
        Ok(published) => published,
        Err(_) if link.blocked() => {
            let why =
                "it blocks publishes (a memory or disk alarm); run rabbitmq-diagnostics alarms";
            Ok(Confirms::None(why.to_owned()))
        }
        Err(_) => Ok(Confirms::None(format!(
            "no confirm within {CONFIRM_TIMEOUT:?}"
        ))),
    };
    for link in others.into_iter().chain([link]) {
        link.close().await;
    }
    confirms
}

async fn published(link: &AmqpLink, name: &Arc<str>) -> Result<Confirms, BrokerError> {
    let mut publisher = ConfirmChannel::open(link).await?;
    let batch = [Outgoing {
        queue: Arc::clone(name),
        message: Message::default(),
    }];
    let mut took = Vec::with_capacity(MESSAGES);
    while took.len() < MESSAGES {
        let started = Instant::now();
        let answers = publisher.publish(&batch).await;
        let answers = answers.map_err(|error| link.target.error(&error))?;
        if let Some(Err(why)) = answers.into_iter().next() {
            return Ok(Confirms::None(why.to_string()));
        }
        took.push(started.elapsed());
    }
    Ok(Confirms::Measured(took))
}
