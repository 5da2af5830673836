//! Connections to RabbitMQ.

use std::time::Duration;

use tokio::time::timeout;

use super::NotDone;
use broker::amqp::Client;
use config::Config;
use rules::delays::DelayLevels;

/// Timeout for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for returning fetched messages. After that, RabbitMQ returns them itself when it notices
/// the lost connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for reading dead letters.
pub const LETTERS_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects to the existing queues of `config`.
///
/// # Errors
/// [`NotDone::RabbitMq`]
pub async fn open(config: &Config) -> Result<Client, NotDone> {
    let levels = DelayLevels::new(config.delay.max_delay);
    Ok(Client::connect_existing(&config.amqp, &levels).await?)
}

/// Connects as [`open`] does, within 10 s, for one look at dead letters.
///
/// # Errors
/// [`NotDone::RabbitMq`], [`NotDone::Failed`] if RabbitMQ does not answer
pub async fn connect(config: &Config) -> Result<Client, NotDone> {
    let late = |_| {
        NotDone::Failed(format!(
            "RabbitMQ: no connection within {CONNECT_TIMEOUT:?}"
        ))
    };
    timeout(CONNECT_TIMEOUT, open(config)).await.map_err(late)?
}

/// Closes the connection. All fetched messages without an ack return to their queue.
pub async fn close(client: Client) {
    let _ = timeout(CLOSE_TIMEOUT, client.close()).await;
}
