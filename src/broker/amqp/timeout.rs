//! Detects RabbitMQ's `consumer_timeout`, which no request returns. The worker leaves a message of
//! its own unacked, on a separate channel. RabbitMQ closes that channel when the timeout is over,
//! and reports its length. No job is lost for it, because the message was delivered before every
//! job that waits as long.

use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Consumer};

use super::confirm_channel::ConfirmChannel;
use super::connection::AmqpLink;
use crate::{BrokerError, Message, Outgoing};

/// The connection's name in logs and in RabbitMQ's tools.
const NAME: &str = "sluicegate timeout";

/// Waits for the timeout. Returns `None` if this session can't find it. The message's queue is
/// named after the work queue `work`.
pub(super) async fn found(link: &AmqpLink, work: &str) -> Option<Duration> {
    // The name looks like a delay queue's, so the worker needs no further permissions.
    let queue = format!("{work}.delay.timeout-{:016x}", rand::random::<u64>());
    let (_channel, mut consumer) = match held(link, &queue).await {
        Ok(held) => held,
        Err(why) => {
            tracing::debug!(%why, "RabbitMQ's consumer_timeout was not checked");
            return None;
        }
    };
    while let Some(delivered) = consumer.next().await {
        if let Err(error) = delivered {
            return link.target.error(&error).ack_timeout();
        }
    }
    None
}

/// Consumes a message and leaves it unacked.
async fn held(link: &AmqpLink, queue: &str) -> Result<(Channel, Consumer), BrokerError> {
    let channel = link.channel().await?;
    let options = QueueDeclareOptions {
        exclusive: true,
        auto_delete: true,
        ..QueueDeclareOptions::default()
    };
    let declaring = channel.queue_declare(queue.into(), options, FieldTable::default());
    link.target.rpc("queue.declare", declaring).await?;
    let options = BasicConsumeOptions::default();
    let consuming = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default());
    let consumer = link.target.rpc("basic.consume", consuming).await?;
    // During an alarm RabbitMQ blocks connections that have published, and their acks with them.
    let other = AmqpLink::open(&link.target, NAME).await?;
    let published = publish(&other, queue).await;
    other.close().await;
    published.map(|()| (channel, consumer))
}

async fn publish(link: &AmqpLink, queue: &str) -> Result<(), BrokerError> {
    let mut channel = ConfirmChannel::open(link).await?;
    let batch = [Outgoing {
        queue: queue.into(),
        message: Message::default(),
    }];
    let publishing = channel.publish(&batch);
    (link.target.rpc("basic.publish", publishing).await).map(drop)
}
