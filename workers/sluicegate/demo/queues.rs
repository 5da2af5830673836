//! The demo's own queues: publishes with confirms, reads dead letters, and deletes everything at
//! the end. This is plain AMQP as any publisher would write it, without the worker's code.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use config::SecretUrl;
use lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use rules::delays::{DelayLevels, QueueNames};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use trial::amqp::text;

use super::DemoError;
use super::scenario::Scenario;
use super::workload::{DemoJob, Workload};

/// `delay.max-delay` of the demo's workers. It determines the delay queues.
pub const MAX_DELAY: Duration = Duration::from_secs(300);
/// Timeout for a request to RabbitMQ, and for a batch of confirms.
const REQUEST: Duration = Duration::from_secs(30);
/// Number of jobs published before their confirms are awaited.
const BATCH: usize = 100;

/// The parts of a dead letter that the figures use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its `message_id`.
    pub id: String,
    /// `x-sluicegate-reason`.
    pub reason: String,
    /// The names of its headers, without the delivery count of the dead-letter queue itself.
    pub headers: Vec<String>,
    /// Size of its headers' names and values in bytes.
    pub header_bytes: usize,
}

/// The demo's queues, on their own connection.
pub struct DemoQueues {
    work: String,
    connection: Connection,
    names: QueueNames,
}

impl DemoQueues {
    /// Connects. The queues are named after `work` and declared by the workers.
    ///
    /// # Errors
    /// RabbitMQ can't be reached or refuses.
    pub async fn connect(url: &SecretUrl, work: &str) -> Result<Self, DemoError> {
        let connecting = Connection::connect(url.expose(), ConnectionProperties::default());
        let connection = within(&format!("connecting to {url}"), connecting).await?;
        let names = QueueNames::new(work, &DelayLevels::new(MAX_DELAY));
        Ok(Self {
            work: work.to_owned(),
            connection,
            names,
        })
    }

    /// Returns the name that the queues are named after.
    pub fn work(&self) -> &str {
        &self.work
    }

    /// Opens a channel on the connection.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn channel(&self) -> Result<Channel, DemoError> {
        within("opening a channel", self.connection.create_channel()).await
    }

    /// Publishes one tenant's jobs, counts confirmed ones and returns them. A portion marked to
    /// wait is published only after `begin` becomes true. A batch with an unconfirmed job is
    /// published again, up to twice: jobs are delivered at least once in any case.
    ///
    /// # Errors
    /// The connection failed, or RabbitMQ kept refusing.
    pub async fn publish(
        &self,
        plan: &Workload,
        tenant: usize,
        confirmed: &AtomicUsize,
        mut begin: watch::Receiver<bool>,
    ) -> Result<Vec<DemoJob>, DemoError> {
        let channel = self.channel().await?;
        within(
            "confirm.select",
            channel.confirm_select(ConfirmSelectOptions::default()),
        )
        .await?;
        let mut all = Vec::with_capacity(plan.jobs);
        let mut since = Instant::now();
        let mut has_waited = false;
        for portion in plan.portions() {
            if portion.waits && !has_waited {
                // The sender is dropped only when the demo ends.
                let _ = begin.wait_for(|started| *started).await;
                (since, has_waited) = (Instant::now(), true);
            }
            sleep_until(since + portion.at).await;
            let jobs: Vec<DemoJob> = (portion.jobs)
                .map(|number| DemoJob { tenant, number })
                .collect();
            for batch in jobs.chunks(BATCH) {
                let mut attempt = 1;
                while let Err(error) = self.publish_batch(&channel, plan, batch).await {
                    if attempt == 3 {
                        return Err(error);
                    }
                    attempt += 1;
                }
                confirmed.fetch_add(batch.len(), Ordering::Relaxed);
            }
            all.extend(jobs);
        }
        Ok(all)
    }

    /// Succeeds if RabbitMQ has confirmed every job of the batch and returned none. All confirms
    /// are awaited first, since a return can be attributed to another job of the batch.
    async fn publish_batch(
        &self,
        channel: &Channel,
        plan: &Workload,
        batch: &[DemoJob],
    ) -> Result<(), DemoError> {
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let mut confirms = Vec::with_capacity(batch.len());
        for job in batch {
            let tenant = plan.tenant(job.tenant);
            let body = format!(r#"{{"tenant":"{tenant}","number":{}}}"#, job.number);
            let mut headers = FieldTable::default();
            headers.insert("x-tenant".into(), AMQPValue::LongString(tenant.into()));
            headers.insert(
                "x-cost".into(),
                AMQPValue::LongLongInt(plan.cost(*job).asked.cast_signed()),
            );
            let id = plan.id(*job).to_string();
            let mut properties = BasicProperties::default()
                .with_message_id(id.clone().into())
                .with_content_type("application/json".into())
                .with_delivery_mode(2)
                .with_headers(headers);
            if plan.scenario == Scenario::Results {
                let reply_to = self.results().into();
                properties = properties
                    .with_reply_to(reply_to)
                    .with_correlation_id(id.into());
            }
            let queue = (&*self.names.fresh).into();
            let sent =
                channel.basic_publish("".into(), queue, options, body.as_bytes(), properties);
            confirms.push(within("publishing", sent).await?);
        }
        let mut refused = 0;
        for confirm in confirms {
            if within("a confirm", confirm).await? != Confirmation::Ack(None) {
                refused += 1;
            }
        }
        match refused {
            0 => Ok(()),
            _ => Err(DemoError(format!(
                "RabbitMQ refused {refused} of {} jobs",
                batch.len()
            ))),
        }
    }

    /// Returns the number of dead letters.
    ///
    /// # Errors
    /// The connection failed, or the queue does not exist.
    pub async fn dead_count(&self) -> Result<usize, DemoError> {
        let channel = self.channel().await?;
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let name = (&*self.names.dead).into();
        let declared = channel.queue_declare(name, passive, FieldTable::default());
        let count = within("counting dead letters", declared)
            .await?
            .message_count();
        within("closing a channel", channel.close(200, "done".into())).await?;
        Ok(count as usize)
    }

    /// Takes up to `at_most` dead letters.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn take_dead(&self, at_most: usize) -> Result<Vec<DeadLetter>, DemoError> {
        let channel = self.channel().await?;
        let mut dead = Vec::new();
        while dead.len() < at_most {
            let name = (&*self.names.dead).into();
            let got = channel.basic_get(name, BasicGetOptions::default());
            let Some(message) = within("reading dead letters", got).await? else {
                break;
            };
            dead.push(dead_letter(&message.delivery.properties));
            let acked = message.delivery.ack(BasicAckOptions::default());
            within("acking a dead letter", acked).await?;
        }
        Ok(dead)
    }

    /// Deletes all queues and returns the number of messages left in them.
    ///
    /// # Errors
    /// The connection failed. Messages and queues may remain in RabbitMQ.
    pub async fn delete(&self) -> Result<usize, DemoError> {
        let channel = self.channel().await?;
        let QueueNames {
            fresh,
            due,
            recheck,
            dead,
            ..
        } = &self.names;
        let results = self.results().into();
        // Deleting a missing queue is no error.
        let unique: HashSet<_> = [fresh, due, recheck, dead, &results]
            .into_iter()
            .chain(self.names.delays())
            .collect();
        let mut left = 0;
        for name in unique {
            let deleted = channel.queue_delete((&**name).into(), QueueDeleteOptions::default());
            left += within(&format!("deleting the queue {name}"), deleted).await? as usize;
        }
        Ok(left)
    }
}

/// Waits for an answer of RabbitMQ for up to [`REQUEST`].
///
/// # Errors
/// RabbitMQ refused or did not answer.
pub async fn within<T>(
    what: &str,
    answer: impl Future<Output = lapin::Result<T>>,
) -> Result<T, DemoError> {
    match timeout(REQUEST, answer).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(DemoError(format!("RabbitMQ, {what}: {error}"))),
        Err(_) => Err(DemoError(format!(
            "RabbitMQ, {what}: no answer in {REQUEST:?}"
        ))),
    }
}

fn dead_letter(properties: &BasicProperties) -> DeadLetter {
    let none = FieldTable::default();
    let headers = properties.headers().as_ref().unwrap_or(&none);
    DeadLetter {
        id: properties
            .message_id()
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        reason: text(properties, "x-sluicegate-reason").unwrap_or_default(),
        headers: headers
            .inner()
            .iter()
            .filter(|(name, value)| !is_first_delivery(name.as_str(), value))
            .map(|(name, _)| name.to_string())
            .collect(),
        header_bytes: table_bytes(headers),
    }
}

/// Returns true for a quorum queue's own delivery count of 0. A higher count would have traveled
/// with the job.
fn is_first_delivery(name: &str, value: &AMQPValue) -> bool {
    name == "x-delivery-count" && matches!(value, AMQPValue::LongLongInt(0) | AMQPValue::LongInt(0))
}

fn table_bytes(table: &FieldTable) -> usize {
    table
        .inner()
        .iter()
        .map(|(name, value)| name.as_str().len() + value_bytes(value))
        .sum()
}

fn value_bytes(value: &AMQPValue) -> usize {
    match value {
        AMQPValue::LongString(text) => text.as_bytes().len(),
        AMQPValue::ShortString(text) => text.as_str().len(),
        AMQPValue::ByteArray(bytes) => bytes.as_slice().len(),
        AMQPValue::FieldTable(table) => table_bytes(table),
        AMQPValue::FieldArray(values) => values.as_slice().iter().map(value_bytes).sum(),
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_count_is_shown_only_after_a_redelivery() {
        let names = |count| {
            let mut headers = FieldTable::default();
            headers.insert("x-delivery-count".into(), AMQPValue::LongLongInt(count));
            headers.insert("x-tenant".into(), AMQPValue::LongString("a".into()));
            dead_letter(&BasicProperties::default().with_headers(headers)).headers
        };
        assert_eq!(names(0), ["x-tenant"]);
        assert_eq!(names(1), ["x-delivery-count", "x-tenant"]);
    }
}
