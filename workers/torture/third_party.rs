//! Third-party workers to which jobs are forwarded. They take jobs from a queue, call the
//! downstream, and report the end. They use plain AMQP, as any client would.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicPublishOptions, ExchangeDeclareOptions, QueueBindOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel, ExchangeKind};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use trial::amqp::text;

use crate::RunFailure;
use crate::amqp::{self, REQUEST_TIMEOUT, RETRY_DELAY};
use crate::downstream::{CLOSED, CallOrigin, Downstream};
use crate::history::DownstreamAnswer;

/// Time after which they give up a call without a report; Sluicegate has stopped waiting by then.
const CALL_TIMEOUT: Duration = Duration::from_secs(6);

/// The value of `dispatch.forward.timeout`.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the name of the exchange and queue for forwarded jobs of the queue `work`.
pub fn name(work: &str) -> String {
    format!("{work}-forwarded")
}

/// Returns the routing key with which `worker` forwards in its life number `life`.
pub fn routing_key(worker: usize, life: u32) -> String {
    format!("{{attempt}}.{worker}.{life}")
}

/// Third-party workers. They take jobs until they are dropped.
pub struct ThirdParty {
    /// Nodes to connect to, in turn.
    pub urls: Vec<String>,
    /// The work queue.
    pub work: String,
    pub downstream: Arc<Downstream>,
}

impl ThirdParty {
    /// Declares the exchange and the queue.
    ///
    /// # Errors
    /// Returns an error if RabbitMQ does not answer.
    pub async fn declare(&self) -> Result<(), RunFailure> {
        let url = self.urls.first().map_or("", String::as_str);
        let (connection, channel) = amqp::connect(url).await?;
        let name = name(&self.work);
        amqp::declare(&channel, &name).await?;
        let durable = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        let declaring = channel.exchange_declare(
            name.as_str().into(),
            ExchangeKind::Topic,
            durable,
            FieldTable::default(),
        );
        timeout(REQUEST_TIMEOUT, declaring).await??;
        let binding = channel.queue_bind(
            name.as_str().into(),
            name.as_str().into(),
            "#".into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        timeout(REQUEST_TIMEOUT, binding).await??;
        timeout(REQUEST_TIMEOUT, connection.close(200, "done".into())).await??;
        Ok(())
    }

    /// Takes jobs. After any error it reconnects, and RabbitMQ delivers unacked jobs again.
    pub async fn run(self) {
        for url in self.urls.iter().cycle() {
            // Errors are expected here.
            let _ = self.session(url).await;
            sleep(RETRY_DELAY).await;
        }
    }

    async fn session(&self, url: &str) -> Result<(), RunFailure> {
        let (_connection, channel) = amqp::connect(url).await?;
        let mut jobs = amqp::consume(&channel, name(&self.work)).await?;
        // Their number is bounded by the prefetch. They end with the session, as if the process had
        // died.
        let mut under_way = JoinSet::new();
        loop {
            tokio::select! {
                Some(ended) = under_way.join_next() => ended??,
                job = jobs.next() => {
                    let Some(job) = job else { return Ok(()) };
                    under_way.spawn(work(Arc::clone(&self.downstream), channel.clone(), job?));
                }
            }
        }
    }
}

/// Calls the downstream, reports the end, and acks. In another order, a job could be neither done
/// nor in any queue.
async fn work(downstream: Arc<Downstream>, channel: Channel, job: Delivery) -> lapin::Result<()> {
    if let Some((caller, is_its_jobs)) = caller(&job) {
        let answer = timeout(CALL_TIMEOUT, downstream.call(caller, is_its_jobs)).await;
        if let (Ok(answer), Some((queue, token))) = (answer, reporting_target(&job))
            && let Some(report) = report_body(answer)
        {
            let properties = BasicProperties::default().with_correlation_id(token);
            let options = BasicPublishOptions::default();
            let publish = channel.basic_publish("".into(), queue, options, &report, properties);
            publish.await?.await?;
        }
    }
    job.ack(BasicAckOptions::default()).await?;
    Ok(())
}

/// Returns the origin of the call, and whether body and tenant are the job's; `None` for an unknown
/// job.
fn caller(job: &Delivery) -> Option<(CallOrigin, bool)> {
    let mut way = job.routing_key.as_str().splitn(3, '.');
    let id = job.properties.message_id().as_ref()?;
    let caller = CallOrigin {
        attempt: way.next()?.parse().ok()?,
        worker: way.next()?.parse().ok()?,
        life: way.next()?.parse().ok()?,
        job: id.as_str().parse().ok()?,
    };
    let tenant = text(&job.properties, "x-tenant");
    let is_its_jobs = job.data == caller.job.body().as_bytes()
        && tenant.is_some_and(|tenant| *tenant == *caller.job.tenant_name());
    Some((caller, is_its_jobs))
}

/// Returns the queue in which the end is to be reported, and the token for it.
fn reporting_target(job: &Delivery) -> Option<(ShortString, ShortString)> {
    let queue = text(&job.properties, "x-sluicegate-done")?;
    let token = text(&job.properties, "x-sluicegate-done-token")?;
    Some((queue.into(), token.into()))
}

/// Returns the report of a call with this answer; `None` if there is none, as after a crash.
fn report_body(answer: DownstreamAnswer) -> Option<Vec<u8>> {
    let report = match answer {
        DownstreamAnswer::Done => json!({"outcome": "done", "status": 200}),
        DownstreamAnswer::Rejected => json!({"outcome": "reject", "status": 422}),
        DownstreamAnswer::Throttled => {
            json!({"outcome": "throttled", "after": CLOSED.as_secs(), "status": 429})
        }
        DownstreamAnswer::Failed => json!({"outcome": "retry", "reason": "500", "status": 500}),
        DownstreamAnswer::Cut | DownstreamAnswer::Gone => return None,
    };
    Some(report.to_string().into_bytes())
}
