//! Delay queues that earlier versions left next to a work queue. Their jobs are moved, and the
//! queues are deleted.

use std::sync::Arc;
use std::time::Duration;

use lapin::options::QueueDeleteOptions;
use lapin::types::ShortString;

use super::client::Client;
use super::connection::Link;
use super::inventory::{QueueProbe, depth};
use super::nodes::Nodes;
use crate::broker::{BrokerError, Outgoing};
use crate::config;
use crate::rules::delays::DelayLevels;
use crate::rules::delays::earlier::delay_queues;

/// The connection's name in RabbitMQ's tools.
const NAME: &str = "sluicegate queues";
/// Maximum number of jobs that are published before their confirms are awaited, and the body bytes
/// at which a batch ends.
const BATCH: usize = 100;
const BATCH_BYTES: usize = 4 << 20;

/// The leftover queues of one work queue.
pub struct Leftovers {
    client: Client,
    link: Link,
    names: Vec<Arc<str>>,
}

impl Leftovers {
    /// Finds the leftover queues of each of `max_delays`. Every `delay.max-delay` had queues of its
    /// own.
    ///
    /// # Errors
    /// [`BrokerError`] says what is wrong, where, and what to do. [`BrokerError::NoQueue`] if the
    /// work queue does not exist.
    pub async fn find(
        amqp: &config::Amqp,
        levels: &DelayLevels,
        max_delays: &[Duration],
    ) -> Result<Self, BrokerError> {
        let client = Client::connect_existing(amqp, levels).await?;
        let link = Nodes::new(amqp)?.turns().open(NAME).await?;
        let sets = max_delays.iter().map(|max| delay_queues(&amqp.queue, *max));
        let mut found = Self {
            client,
            link,
            names: Vec::new(),
        };
        let mut candidates: Vec<String> = sets.flatten().collect();
        candidates.sort_unstable();
        candidates.dedup();
        let looking = Link::open(&found.link.target, NAME).await?;
        let mut looks = QueueProbe::over(looking, NAME).await?;
        for name in candidates {
            if looks.depth(&name).await?.is_some() {
                found.names.push(name.into());
            }
        }
        looks.close().await;
        Ok(found)
    }

    /// Returns the queues that exist.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Returns true if a worker of an earlier version may be running. Such a worker consumes from
    /// `jobs.due` and from no delay queue of this version. A worker of this version that is just
    /// starting may look the same.
    ///
    /// # Errors
    /// [`BrokerError`] if the connection failed, or if a queue is gone.
    pub async fn has_earlier_workers(&self) -> Result<bool, BrokerError> {
        let names = self.client.names();
        let channel = self.link.channel().await?;
        let mut consumers = [0; 2];
        let queues = [&names.due, &names.delays()[0]];
        for (queue, consumers) in queues.into_iter().zip(&mut consumers) {
            let found = depth(&self.link.target, &channel, queue).await?;
            *consumers = found.map_or(0, |(_, consumers)| consumers);
        }
        Ok(consumers[0] > consumers[1])
    }

    /// Moves all jobs to `jobs.due`, and returns their number. Each job is published and confirmed
    /// before it is acked.
    ///
    /// # Errors
    /// [`BrokerError`] if the connection failed, or if a publish was refused. Jobs that were not
    /// moved stay in their queues.
    pub async fn drain(&self) -> Result<u64, BrokerError> {
        let mut moved = 0;
        for name in &self.names {
            loop {
                let batch = self.batch(name).await?;
                if batch.is_empty() {
                    break;
                }
                moved += batch.len() as u64;
            }
        }
        Ok(moved)
    }

    async fn batch(&self, queue: &Arc<str>) -> Result<Vec<u64>, BrokerError> {
        let (mut tags, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0);
        while batch.len() < BATCH && bytes < BATCH_BYTES {
            let Some(fetched) = self.client.get(queue).await? else {
                break;
            };
            bytes += fetched.message.body.len();
            tags.push(fetched.tag);
            batch.push(Outgoing {
                queue: Arc::clone(&self.client.names().due),
                message: fetched.message,
            });
        }
        for published in self.client.publish(&batch).await? {
            let refused = |why| self.link.target.failed(format!("{queue}: {why}"));
            published.map_err(refused)?;
        }
        for tag in &tags {
            self.client.ack(*tag).await?;
        }
        Ok(tags)
    }

    /// Deletes the queues that are empty and have no consumers, and returns the others. RabbitMQ
    /// can't check these conditions itself for quorum queues, so nothing may publish to them
    /// meanwhile.
    ///
    /// # Errors
    /// [`BrokerError`] if the connection failed, or if the user may not delete them.
    pub async fn delete(&self) -> Result<Vec<Arc<str>>, BrokerError> {
        let target = &self.link.target;
        let mut channel = self.link.channel().await?;
        let mut left = Vec::new();
        for name in &self.names {
            match depth(target, &channel, name).await? {
                Some((0, 0)) => {
                    let short = ShortString::from(&**name);
                    let deleting = channel.queue_delete(short, QueueDeleteOptions::default());
                    target.rpc("queue.delete", deleting).await?;
                }
                Some(_) => left.push(Arc::clone(name)),
                // Another client has deleted it.
                None => channel = self.link.channel().await?,
            }
        }
        Ok(left)
    }

    /// Closes the connections. Messages that were fetched and not acked go back to their queues.
    pub async fn close(self) {
        self.link.close().await;
        self.client.close().await;
    }
}
