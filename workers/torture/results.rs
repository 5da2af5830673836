//! Takes the results of jobs from a queue, and records each when it comes.

use std::sync::Arc;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::BasicAckOptions;
use tokio::time::{sleep, timeout};
use trial::amqp::{number, text};

use crate::RunFailure;
use crate::amqp::{self, REQUEST_TIMEOUT, RETRY_DELAY};
use crate::history::{EventKind, History};

/// Returns the name of the queue for results of the jobs in `work`.
pub fn queue(work: &str) -> String {
    format!("{work}-results")
}

/// Declares a quorum queue for results.
///
/// # Errors
/// Returns an error if RabbitMQ does not answer.
pub async fn declare(url: &str, queue: &str) -> Result<(), RunFailure> {
    let (connection, channel) = amqp::connect(url).await?;
    amqp::declare(&channel, queue).await?;
    timeout(REQUEST_TIMEOUT, connection.close(200, "done".into())).await??;
    Ok(())
}

/// Takes results until it is dropped.
pub struct Listener {
    /// Nodes to connect to, in turn.
    pub urls: Vec<String>,
    /// The work queue.
    pub work: String,
    pub history: Arc<History>,
}

impl Listener {
    /// Declares the queue: without it, jobs end without a result.
    ///
    /// # Errors
    /// Returns an error if RabbitMQ does not answer.
    pub async fn declare(&self) -> Result<(), RunFailure> {
        let url = self.urls.first().map_or("", String::as_str);
        declare(url, &queue(&self.work)).await
    }

    /// Takes results. After any error it reconnects, and a result may come again.
    pub async fn run(self) {
        for url in self.urls.iter().cycle() {
            // Errors are expected here.
            let _ = self.session(url).await;
            sleep(RETRY_DELAY).await;
        }
    }

    async fn session(&self, url: &str) -> Result<(), RunFailure> {
        let (_connection, channel) = amqp::connect(url).await?;
        let mut results = amqp::consume(&channel, queue(&self.work)).await?;
        while let Some(result) = results.next().await {
            let result = result?;
            self.history.add(to_event(&result));
            timeout(REQUEST_TIMEOUT, result.ack(BasicAckOptions::default())).await??;
        }
        Ok(())
    }
}

/// Converts a result to an event.
fn to_event(result: &Delivery) -> EventKind {
    let properties = &result.properties;
    let id = properties.correlation_id().as_ref();
    EventKind::Told {
        job: id.and_then(|id| id.as_str().parse().ok()),
        ended: text(properties, "x-sluicegate-result").unwrap_or_default(),
        status: number(properties, "x-sluicegate-status").and_then(|status| status.try_into().ok()),
    }
}
