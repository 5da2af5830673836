//! Somebody else's workers, to whom jobs are forwarded: they take each from a queue, call the downstream, and say when it is done.
//! Plain AMQP as anybody would write it.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::Failure;
use crate::downstream::{CLOSED, Caller, Downstream};
use crate::history::Answer;

/// A connect, or one request.
const WITHIN: Duration = Duration::from_secs(10);
/// Before another try.
const PAUSE: Duration = Duration::from_millis(500);
/// Jobs that they have at once: more than the workers hand over.
const PREFETCH: u16 = 200;
/// They give a call up, and say nothing, when Sluicegate has given up waiting for them.
const GIVES_UP: Duration = Duration::from_secs(6);

/// `dispatch.forward.timeout`.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// The exchange, and the queue, of forwarded jobs of the queue `work`.
pub fn name(work: &str) -> String {
    format!("{work}-forwarded")
}

/// With what `worker` forwards in its life number `life`.
pub fn routing_key(worker: usize, life: u32) -> String {
    format!("{{attempt}}.{worker}.{life}")
}

/// Take jobs until they are dropped.
pub struct Others {
    /// The nodes that they may connect to, in turn.
    pub urls: Vec<String>,
    /// The work queue.
    pub work: String,
    pub downstream: Arc<Downstream>,
}

impl Others {
    /// Makes exchange and queue.
    ///
    /// # Errors
    /// RabbitMQ does not answer.
    pub async fn declare(&self) -> Result<(), Failure> {
        let url = self.urls.first().map_or("", String::as_str);
        let connecting = Connection::connect(url, ConnectionProperties::default());
        let connection = timeout(WITHIN, connecting).await??;
        let channel = timeout(WITHIN, connection.create_channel()).await??;
        let name = name(&self.work);
        let mut arguments = FieldTable::default();
        let kind = AMQPValue::LongString("quorum".into());
        arguments.insert("x-queue-type".into(), kind);
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let declaring = channel.queue_declare(name.as_str().into(), durable, arguments);
        timeout(WITHIN, declaring).await??;
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
        timeout(WITHIN, declaring).await??;
        let binding = channel.queue_bind(
            name.as_str().into(),
            name.as_str().into(),
            "#".into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        timeout(WITHIN, binding).await??;
        timeout(WITHIN, connection.close(200, "done".into())).await??;
        Ok(())
    }

    /// Takes jobs; after any trouble it connects anew, and what it had comes again.
    pub async fn run(self) {
        for url in self.urls.iter().cycle() {
            // Trouble is what this is made for.
            let _ = self.session(url).await;
            sleep(PAUSE).await;
        }
    }

    async fn session(&self, url: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        let connecting = Connection::connect(url, ConnectionProperties::default());
        let connection = timeout(WITHIN, connecting).await??;
        let channel: Channel = timeout(WITHIN, connection.create_channel()).await??;
        let qos = channel.basic_qos(PREFETCH, BasicQosOptions::default());
        timeout(WITHIN, qos).await??;
        let consuming = channel.basic_consume(
            name(&self.work).into(),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let mut jobs = timeout(WITHIN, consuming).await??;
        // As many as the prefetch; they end with the session, as with a process that dies.
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

/// Calls the downstream, says how that ended, and acks: in this order, or a job could be neither done nor anywhere.
async fn work(downstream: Arc<Downstream>, channel: Channel, job: Delivery) -> lapin::Result<()> {
    if let Some((caller, is_its_jobs)) = caller(&job) {
        let answer = timeout(GIVES_UP, downstream.call(caller, is_its_jobs)).await;
        if let (Ok(answer), Some((queue, token))) = (answer, asks_to_be_told(&job))
            && let Some(said) = said(answer)
        {
            let properties = BasicProperties::default().with_correlation_id(token);
            let options = BasicPublishOptions::default();
            let publish = channel.basic_publish("".into(), queue, options, &said, properties);
            publish.await?.await?;
        }
    }
    job.ack(BasicAckOptions::default()).await?;
    Ok(())
}

/// Whose call it is, and whether body and tenant are the job's. `None`: nobody's job.
fn caller(job: &Delivery) -> Option<(Caller, bool)> {
    let mut way = job.routing_key.as_str().splitn(3, '.');
    let id = job.properties.message_id().as_ref()?;
    let caller = Caller {
        attempt: way.next()?.parse().ok()?,
        worker: way.next()?.parse().ok()?,
        life: way.next()?.parse().ok()?,
        job: id.as_str().parse().ok()?,
    };
    let tenant = header(job, "x-tenant");
    let is_its_jobs = job.data == caller.job.body().as_bytes()
        && tenant.is_some_and(|tenant| *tenant == *caller.job.tenant_name());
    Some((caller, is_its_jobs))
}

/// The queue where it is to be said that the job is done, and what with.
fn asks_to_be_told(job: &Delivery) -> Option<(ShortString, ShortString)> {
    let queue = header(job, "x-sluicegate-done")?;
    let token = header(job, "x-sluicegate-done-token")?;
    Some((queue.into(), token.into()))
}

fn header(job: &Delivery, name: &str) -> Option<String> {
    let headers = job.properties.headers().as_ref()?;
    match headers.inner().get(name)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        _ => None,
    }
}

/// What is said of a call with this answer; `None`: nothing, as by who died.
fn said(answer: Answer) -> Option<Vec<u8>> {
    let said = match answer {
        Answer::Done => json!({"outcome": "done", "status": 200}),
        Answer::Rejected => json!({"outcome": "reject", "status": 422}),
        Answer::Throttled => {
            json!({"outcome": "throttled", "after": CLOSED.as_secs(), "status": 429})
        }
        Answer::Failed => json!({"outcome": "retry", "reason": "500", "status": 500}),
        Answer::Cut | Answer::Gone => return None,
    };
    Some(said.to_string().into_bytes())
}
