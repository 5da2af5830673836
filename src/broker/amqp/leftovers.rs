//! Delay queues that earlier versions left next to a work queue: their jobs move on, and the queues are deleted.

use std::sync::Arc;
use std::time::Duration;

use lapin::options::QueueDeleteOptions;
use lapin::types::ShortString;

use super::client::Client;
use super::connection::Link;
use super::inventory::{Looks, depth};
use super::nodes::Nodes;
use crate::broker::{BrokerError, Outgoing};
use crate::config;
use crate::rules::delays::DelayLevels;
use crate::rules::delays::earlier::delay_queues;

/// The connection's name in the broker's tools.
const NAME: &str = "sluicegate queues";
/// Jobs that are published before their confirms are awaited, and bytes of their bodies, and one job more.
const BATCH: usize = 100;
const BATCH_BYTES: usize = 4 << 20;

/// What there is of them.
pub struct Leftovers {
    client: Client,
    link: Link,
    names: Vec<Arc<str>>,
}

impl Leftovers {
    /// Looks for those of each of `max_delays`: every `delay.max-delay` had queues of its own.
    ///
    /// # Errors
    /// [`BrokerError`] says what is wrong, where, and what to do; [`BrokerError::NoQueue`]: there is no such work queue.
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
        let mut looks = Looks::over(looking, NAME).await?;
        for name in candidates {
            if looks.depth(&name).await?.is_some() {
                found.names.push(name.into());
            }
        }
        looks.close().await;
        Ok(found)
    }

    /// The queues that exist.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Whether a worker of an earlier version may run: it takes jobs from `jobs.due`, and from no delay queue of this version. One of
    /// this version that starts just now may look like it.
    ///
    /// # Errors
    /// [`BrokerError`]: the connection failed, or a queue is gone.
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

    /// Moves all jobs to `jobs.due`, each published and confirmed before it is acked, and says how many.
    ///
    /// # Errors
    /// [`BrokerError`]: the connection failed, or a publish was refused. What was not moved is where it was.
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

    /// Deletes the queues that are empty and that nothing consumes from; returns the others. Quorum queues can't be deleted on these
    /// conditions by RabbitMQ itself, so nothing may publish to them meanwhile.
    ///
    /// # Errors
    /// [`BrokerError`]: the connection failed, or the user may not delete them.
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
                // Somebody else has deleted it.
                None => channel = self.link.channel().await?,
            }
        }
        Ok(left)
    }

    /// Closes; what was fetched and not acked goes back to its queue.
    pub async fn close(self) {
        self.link.close().await;
        self.client.close().await;
    }
}
