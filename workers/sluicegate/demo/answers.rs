//! The results that the demo's publishers receive, if the scenario has results: their queue and its
//! contents.

use lapin::options::{BasicAckOptions, BasicGetOptions, QueueDeclareOptions};
use lapin::types::FieldTable;

use trial::amqp::{number, text};

use super::DemoError;
use super::queues::{DemoQueues, within};

/// The parts of a result that the figures use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedResult {
    /// The job's ID: its `correlation_id`.
    pub id: String,
    /// How the job ended.
    pub ended: String,
    /// The status of the API's answer.
    pub status: Option<u16>,
    /// The API's answer.
    pub body: String,
}

/// Returns the API's answer to the call with this number.
pub fn words_of(call: usize, words: &str) -> String {
    format!("call {call}: {words}")
}

impl ReportedResult {
    /// Returns the number of the call that it reports.
    pub fn call(&self) -> Option<usize> {
        let (number, _) = self.body.strip_prefix("call ")?.split_once(':')?;
        number.parse().ok()
    }
}

impl DemoQueues {
    /// Returns the name of the queue for results.
    pub fn results(&self) -> String {
        format!("{}-results", self.work())
    }

    /// Declares the queue.
    ///
    /// # Errors
    /// The connection failed, or RabbitMQ refused.
    pub async fn declare_results(&self) -> Result<(), DemoError> {
        let channel = self.channel().await?;
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let name = self.results().into();
        let declared = channel.queue_declare(name, durable, FieldTable::default());
        within("creating the results queue", declared).await?;
        within("closing a channel", channel.close(200, "done".into())).await
    }

    /// Takes up to `at_most` results.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn take_results(&self, at_most: usize) -> Result<Vec<ReportedResult>, DemoError> {
        let channel = self.channel().await?;
        let mut results = Vec::new();
        while results.len() < at_most {
            let got = channel.basic_get(self.results().into(), BasicGetOptions::default());
            let Some(message) = within("reading results", got).await? else {
                break;
            };
            let properties = &message.delivery.properties;
            results.push(ReportedResult {
                id: properties
                    .correlation_id()
                    .as_ref()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
                ended: text(properties, "x-sluicegate-result").unwrap_or_default(),
                status: number(properties, "x-sluicegate-status")
                    .and_then(|status| status.try_into().ok()),
                body: String::from_utf8_lossy(&message.delivery.data).into_owned(),
            });
            let acked = message.delivery.ack(BasicAckOptions::default());
            within("acking a result", acked).await?;
        }
        Ok(results)
    }
}
