//! Publishers, one for each tenant, which record what RabbitMQ confirmed. They use plain AMQP, as
//! any client would, and share no code with the worker. After any error they reconnect and continue
//! with other jobs.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::{sleep, timeout};

use crate::amqp::{self, REQUEST_TIMEOUT, RETRY_DELAY};
use crate::history::{EventKind, History, JobId};
use crate::job_attributes::JobAttributes;
use crate::results;

/// An error of the connection. The jobs in flight are neither confirmed nor refused.
type Trouble = Box<dyn Error + Send + Sync>;

/// A tenant's publisher.
pub struct TenantPublisher {
    pub tenant: u32,
    /// Nodes to connect to, in turn.
    pub urls: Vec<String>,
    pub queue: String,
    pub seed: u64,
    /// Publishes another batch when fewer jobs than this wait.
    pub backlog: usize,
    /// Maximum size of a batch.
    pub batch: u32,
    pub history: Arc<History>,
    /// Stops the publisher for good when it is set.
    pub enough: Arc<AtomicBool>,
    /// Stops the publisher while it is set.
    pub silence: Arc<AtomicBool>,
    /// Milliseconds by which the publisher's clock is behind.
    pub behind: Arc<AtomicU64>,
}

impl TenantPublisher {
    /// Publishes until `enough` is set.
    pub async fn run(self) {
        let mut random = StdRng::seed_from_u64(self.seed ^ u64::from(self.tenant) << 40);
        let mut number = 0;
        let mut urls = self.urls.iter().cycle().skip(self.tenant as usize);
        while !self.enough() {
            // Errors are expected here. The history shows which jobs were not confirmed.
            if let Some(url) = urls.next() {
                let _ = self.session(url, &mut random, &mut number).await;
            }
            sleep(RETRY_DELAY).await;
        }
    }

    fn enough(&self) -> bool {
        self.enough.load(Ordering::Relaxed)
    }

    async fn session(
        &self,
        url: &str,
        random: &mut StdRng,
        number: &mut u32,
    ) -> Result<(), Trouble> {
        let (connection, channel) = amqp::connect(url).await?;
        let result = self.publish(&channel, random, number).await;
        // The connection may already be broken.
        let _ = timeout(REQUEST_TIMEOUT, connection.close(200, "done".into())).await;
        result
    }

    async fn publish(
        &self,
        channel: &Channel,
        random: &mut StdRng,
        number: &mut u32,
    ) -> Result<(), Trouble> {
        let select = channel.confirm_select(ConfirmSelectOptions::default());
        timeout(REQUEST_TIMEOUT, select).await??;
        while !self.enough() {
            let silence = self.silence.load(Ordering::Relaxed);
            if !silence && self.history.waiting(self.tenant) < self.backlog {
                let jobs: Vec<JobId> = (0..random.random_range(1..=self.batch))
                    .map(|n| JobId::new(self.tenant, *number + n))
                    .collect();
                *number += u32::try_from(jobs.len()).unwrap_or(u32::MAX);
                timeout(REQUEST_TIMEOUT, self.batch(channel, &jobs)).await??;
            }
            sleep(Duration::from_millis(random.random_range(10..300))).await;
        }
        Ok(())
    }

    /// Records a job's earliest start and its dedupe key, before the job is published.
    fn note(&self, job: JobId, attributes: JobAttributes) {
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        if let Some(start) = attributes.start {
            let from = self.history.now() + nanos(start.after());
            self.history.add(EventKind::Starts { job, from });
        }
        if let Some(key) = attributes.key {
            self.history.add(EventKind::Keyed {
                job,
                key: key.number,
                lasts: nanos(key.lasts()),
                twice: key.twice,
            });
        }
    }

    /// Publishes a batch and waits for all of its confirms. Otherwise a returned job could be taken
    /// for another one.
    async fn batch(&self, channel: &Channel, jobs: &[JobId]) -> Result<(), Trouble> {
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let mut confirms = Vec::with_capacity(jobs.len());
        for job in jobs {
            let tenant = AMQPValue::LongString(job.tenant_name().into());
            let mut headers = FieldTable::default();
            headers.insert("x-tenant".into(), tenant);
            let attributes = JobAttributes::of(self.seed, *job);
            self.history.add(EventKind::Publishing { job: *job });
            self.note(*job, attributes);
            let behind = Duration::from_millis(self.behind.load(Ordering::Relaxed));
            attributes.add_to(&mut headers, SystemTime::now() - behind);
            let (id, results) = (job.to_string(), results::queue(&self.queue));
            let properties = BasicProperties::default()
                .with_message_id(id.clone().into())
                .with_correlation_id(id.into())
                .with_reply_to(results.into())
                .with_delivery_mode(2)
                .with_headers(headers);
            let body = job.body();
            let copies = 1 + usize::from(attributes.key.is_some_and(|key| key.twice));
            for _ in 0..copies {
                let (queue, properties) = (self.queue.as_str().into(), properties.clone());
                let sent =
                    channel.basic_publish("".into(), queue, options, body.as_bytes(), properties);
                confirms.push(sent.await?);
            }
        }
        let mut outcomes = Vec::with_capacity(jobs.len());
        for confirm in confirms {
            outcomes.push(confirm.await?);
        }
        if outcomes
            .iter()
            .any(|outcome| *outcome != Confirmation::Ack(None))
        {
            return Err("RabbitMQ refused a job".into());
        }
        for job in jobs {
            self.history.add(EventKind::Confirmed { job: *job });
        }
        Ok(())
    }
}
