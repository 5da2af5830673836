//! How long RabbitMQ takes to confirm, for `check`: by a queue of its own, which is deleted again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::BasicProperties;
use lapin::options::QueueDeleteOptions;
use lapin::types::ShortString;
use tokio::time::timeout;
use ulid::Ulid;

use super::confirm::ConfirmChannel;
use super::connection::{Link, Target};
use super::nodes::Nodes;
use super::publish::{BATCH, CHANNELS};
use crate::broker::topology::Queue;
use crate::broker::{BrokerError, Message, Outgoing};
use crate::config;
use crate::rules::headers::HeaderValue;

/// The connection's name in the broker's tools.
const NAME: &str = "sluicegate check";
/// So many messages, one after the other.
const MESSAGES: usize = 10;
/// For all of them.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);
/// Where nobody could delete the queue, it goes after so long, in milliseconds.
const EXPIRES_MS: i64 = 60_000;
/// A worker publishes so many jobs before it waits for their confirms.
pub const MOVED_AT_ONCE: usize = BATCH * CHANNELS;

/// What [`confirms`] found.
#[derive(Debug)]
pub enum Confirms {
    /// Each took so long.
    Took(Vec<Duration>),
    /// None came in time, or RabbitMQ refused the messages: why.
    None(String),
    /// Its user may not make the queue for it, or something else is in the way: why.
    Unknown(BrokerError),
}

/// Publishes some messages to a queue of the type of the work queue, one after the other. Nobody else knows of that queue, and it is
/// deleted.
pub async fn confirms(amqp: &config::Amqp) -> Confirms {
    match measured(amqp).await {
        Ok(confirms) => confirms,
        Err(why) => Confirms::Unknown(why),
    }
}

async fn measured(amqp: &config::Amqp) -> Result<Confirms, BrokerError> {
    let link = Nodes::new(amqp)?.turns().open(NAME).await?;
    // Who may make delay queues may make it, too.
    let name: Arc<str> = format!("{}.delay.check-{}", amqp.queue, Ulid::new()).into();
    let found = with_queue(&link, &name, amqp.queue_type).await;
    link.close().await;
    found
}

/// Measures with a queue that `link` makes and deletes. `link` publishes nothing, so RabbitMQ reads from it during an alarm, too.
async fn with_queue(
    link: &Link,
    name: &Arc<str>,
    queue_type: config::QueueType,
) -> Result<Confirms, BrokerError> {
    let mut queue = Queue::kept(name, queue_type);
    (queue.arguments).push(("x-expires", HeaderValue::Int(EXPIRES_MS)));
    let (target, channel) = (&link.target, link.channel().await?);
    target.rpc("queue.declare", queue.declare(&channel)).await?;
    let confirms = confirms_of(target, name).await;
    // Its length is bounded by the work queue's.
    let name = ShortString::from(&**name);
    let deleting = channel.queue_delete(name, QueueDeleteOptions::default());
    target.rpc("queue.delete", deleting).await?;
    confirms
}

async fn confirms_of(target: &Target, queue: &Arc<str>) -> Result<Confirms, BrokerError> {
    let link = Link::open(target, NAME).await?;
    let confirms = match timeout(CONFIRM_TIMEOUT, published(&link, queue)).await {
        Ok(published) => published,
        Err(_) if link.blocked() => {
            let why =
                "it blocks publishing (a memory or disk alarm); see rabbitmq-diagnostics alarms";
            Ok(Confirms::None(why.to_owned()))
        }
        Err(_) => Ok(Confirms::None(format!(
            "no confirm within {CONFIRM_TIMEOUT:?}"
        ))),
    };
    link.close().await;
    confirms
}

async fn published(link: &Link, name: &Arc<str>) -> Result<Confirms, BrokerError> {
    let mut publisher = ConfirmChannel::open(link).await?;
    let batch = [Outgoing {
        queue: Arc::clone(name),
        message: Message {
            routing_key: String::new(),
            properties: BasicProperties::default(),
            body: "".into(),
        },
    }];
    let mut took = Vec::with_capacity(MESSAGES);
    while took.len() < MESSAGES {
        let begun = Instant::now();
        let answers = publisher.publish(&batch).await;
        let answers = answers.map_err(|error| link.target.error(&error))?;
        if let Some(Err(why)) = answers.into_iter().next() {
            return Ok(Confirms::None(why.to_string()));
        }
        took.push(begun.elapsed());
    }
    Ok(Confirms::Took(took))
}
