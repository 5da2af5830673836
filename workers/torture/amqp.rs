//! Plain AMQP, as any client of RabbitMQ uses it.

use std::time::Duration;

use lapin::options::{BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, Consumer};
use tokio::time::timeout;

use crate::RunFailure;

/// Timeout of a connect, or of one request or batch.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before a new attempt.
pub const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Maximum number of unacked messages: more than the workers hand over.
const PREFETCH: u16 = 200;

/// Connects, and opens a channel.
///
/// # Errors
/// Returns an error if RabbitMQ does not answer.
pub async fn connect(url: &str) -> Result<(Connection, Channel), RunFailure> {
    let connecting = Connection::connect(url, ConnectionProperties::default());
    let connection = timeout(REQUEST_TIMEOUT, connecting).await??;
    let channel = timeout(REQUEST_TIMEOUT, connection.create_channel()).await??;
    Ok((connection, channel))
}

/// Begins to consume `queue`.
///
/// # Errors
/// Returns an error if RabbitMQ does not answer.
pub async fn consume(channel: &Channel, queue: String) -> Result<Consumer, RunFailure> {
    let qos = channel.basic_qos(PREFETCH, BasicQosOptions::default());
    timeout(REQUEST_TIMEOUT, qos).await??;
    let options = BasicConsumeOptions::default();
    let consuming = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default());
    Ok(timeout(REQUEST_TIMEOUT, consuming).await??)
}

/// Declares a quorum queue.
///
/// # Errors
/// Returns an error if RabbitMQ does not answer.
pub async fn declare(channel: &Channel, queue: &str) -> Result<(), RunFailure> {
    let durable = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let mut arguments = FieldTable::default();
    let kind = AMQPValue::LongString("quorum".into());
    arguments.insert("x-queue-type".into(), kind);
    let declaring = channel.queue_declare(queue.into(), durable, arguments);
    timeout(REQUEST_TIMEOUT, declaring).await??;
    Ok(())
}
