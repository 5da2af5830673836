//! A reconnecting connection for jobs that go to workers of another system (`dispatch.forward`),
//! and for their answers.
//!
//! It is separate from the connections of [`super::AmqpBroker`]: an exchange that does not exist
//! closes a channel, and messages that strangers send to the done queue must not hold up
//! deliveries.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicQosOptions, ExchangeDeclareOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Consumer, ExchangeKind};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::attempts::Attempts;
use super::connection::AmqpLink;
use super::inventory::{depth, not_found};
use super::lane::{LaneEnd, OnlyLane};
use super::nodes::{NodeRotation, Nodes};
use super::publish::{PublishRequests, Publisher};
use crate::forwarding::{ExpectedEnd, Forwarding, PendingEnds};
use crate::{BrokerError, ExternalMessage, PublishError};
use runtime::tasks::WatchedTask;

/// The connection's name in logs and in RabbitMQ's tools.
const NAME: &str = "sluicegate forward";
/// Maximum number of unacked messages of the done queue.
const PREFETCH: u16 = 64;
/// Milliseconds after which RabbitMQ deletes a done queue without consumers.
const EXPIRES_MS: i64 = 10 * 60 * 1000;
/// Maximum number of messages in the done queue.
const MAX_DONE_MESSAGES: i64 = 100_000;
/// Maximum number of bytes in the done queue.
const MAX_DONE_BYTES: i64 = 64 << 20;
/// Minimum interval between warnings about messages of unknown jobs.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Timeout for a clean close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Publishes jobs and receives their ends.
#[derive(Debug)]
pub struct Forwarder {
    publisher: Publisher,
    state: Arc<ForwarderState>,
    supervisor: WatchedTask,
}

#[derive(Debug)]
struct ForwarderState {
    nodes: Nodes,
    /// The queue in which workers report that a job is done, or `None` if they don't report.
    done: Option<String>,
    ends: PendingEnds,
    up: watch::Sender<bool>,
    closed: CancellationToken,
}

impl Forwarder {
    /// Connects in the background, forever. `done` names the queue for reports of workers, which is
    /// declared. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`BrokerError::Url`] if the URL can't be used.
    pub fn start(amqp: &config::Amqp, done: Option<String>) -> Result<Self, BrokerError> {
        let state = Arc::new(ForwarderState {
            nodes: Nodes::new(amqp)?,
            done,
            ends: PendingEnds::default(),
            up: watch::Sender::new(false),
            closed: CancellationToken::new(),
        });
        let (publisher, requests) = Publisher::new();
        let supervised = Arc::clone(&state);
        let supervisor = WatchedTask::spawn(async move {
            supervise(supervised, requests).await;
            "it was closed"
        });
        Ok(Self {
            publisher,
            state,
            supervisor,
        })
    }

    /// Deletes the done queue and closes the connection.
    pub async fn close(&self) {
        self.state.closed.cancel();
        if timeout(CLOSE_TIMEOUT, self.supervisor.ended())
            .await
            .is_err()
        {
            self.supervisor.abort();
        }
    }
}

impl Forwarding for Forwarder {
    fn is_up(&self) -> bool {
        *self.state.up.borrow()
    }

    async fn up(&self) {
        // The sender lives as long as `self`.
        let _ = self.state.up.subscribe().wait_for(|up| *up).await;
    }

    fn done_queue(&self) -> Option<&str> {
        self.state.done.as_deref()
    }

    fn expect(&self, token: String) -> ExpectedEnd {
        self.state.ends.expect(token)
    }

    async fn publish(&self, outgoing: ExternalMessage) -> Result<(), PublishError> {
        let mut answers = self.publisher.publish(vec![outgoing.into()]).await;
        answers.pop().unwrap_or(Err(PublishError::Nacked))
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.state.closed.cancel();
    }
}

/// Keeps a session up until the forwarder is closed.
async fn supervise(state: Arc<ForwarderState>, requests: Arc<PublishRequests>) {
    let (mut attempts, mut turns) = (Attempts::new(NAME), state.nodes.turns());
    loop {
        let mut up = None;
        let ended = run(&state, &mut turns, &mut up, &requests).await;
        state.up.send_replace(false);
        let error = match ended {
            Ok(None) => break,
            // The message will be published alone or has its answer, so the messages behind it need
            // not wait.
            Ok(Some(LaneEnd::Blamed(_))) => continue,
            Ok(Some(LaneEnd::Lost(error))) | Err(error) => error,
        };
        requests.fail_waiting().await;
        attempts.ended(up);
        attempts.log(&error);
        if !attempts.pause(&state.closed).await {
            break;
        }
    }
    requests.close().await;
}

/// Runs one session and sets `up` once it is connected. Returns `None` if the forwarder was closed.
async fn run(
    state: &Arc<ForwarderState>,
    turns: &mut NodeRotation<'_>,
    up: &mut Option<Instant>,
    requests: &Arc<PublishRequests>,
) -> Result<Option<LaneEnd>, BrokerError> {
    let open = async {
        let link = Arc::new(turns.open(NAME).await?);
        let done = match &state.done {
            Some(queue) => Some(consume(&link, queue).await?),
            None => None,
        };
        Ok::<_, BrokerError>((link, done))
    };
    let (link, done) = tokio::select! {
        () = state.closed.cancelled() => return Ok(None),
        opened = open => opened?,
    };
    *up = Some(Instant::now());
    state.up.send_replace(true);
    let mut lane = OnlyLane::start(link.clone(), requests);
    let (reader, consumer) = done.unzip();
    let end = tokio::select! {
        () = state.closed.cancelled() => None,
        end = lane.ended(NAME, |blocked| { state.up.send_replace(!blocked); }) => Some(end),
        () = receive_done(state, consumer) => Some(LaneEnd::Lost(link.target.failed("the done \
            queue can't be read"))),
    };
    if let (None, Some(queue), Some(reader)) = (&end, &state.done, &reader) {
        let deleting = reader.queue_delete(queue.as_str().into(), QueueDeleteOptions::default());
        // If this fails, the queue expires.
        let _ = link.target.rpc("queue.delete", deleting).await;
    }
    lane.close().await;
    Ok(end)
}

/// Declares the done queue and starts reading it.
async fn consume(link: &AmqpLink, queue: &str) -> Result<(Channel, Consumer), BrokerError> {
    let channel = link.channel().await?;
    let text = |text: &str| AMQPValue::LongString(text.into());
    let arguments = BTreeMap::from([
        // RabbitMQ lets no node declare a classic queue again while the queue's node is down.
        (ShortString::from("x-queue-type"), text("quorum")),
        ("x-expires".into(), AMQPValue::LongLongInt(EXPIRES_MS)),
        (
            "x-max-length".into(),
            AMQPValue::LongLongInt(MAX_DONE_MESSAGES),
        ),
        (
            "x-max-length-bytes".into(),
            AMQPValue::LongLongInt(MAX_DONE_BYTES),
        ),
    ]);
    let options = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let declaring = channel.queue_declare(queue.into(), options, FieldTable::from(arguments));
    link.target.rpc("queue.declare", declaring).await?;
    let limiting = channel.basic_qos(PREFETCH, BasicQosOptions::default());
    link.target.rpc("basic.qos", limiting).await?;
    let options = BasicConsumeOptions::default();
    let consuming =
        channel.basic_consume(queue.into(), "done".into(), options, FieldTable::default());
    let consumer = link.target.rpc("basic.consume", consuming).await?;
    Ok((channel, consumer))
}

/// Passes each message of the done queue to the call that waits for it, and drops the others.
/// Returns when the consumer ends, and never without one.
async fn receive_done(state: &ForwarderState, consumer: Option<Consumer>) {
    let Some(mut consumer) = consumer else {
        return std::future::pending().await;
    };
    let (mut unknown, mut told_at) = (0_u64, None::<Instant>);
    while let Some(Ok(delivery)) = consumer.next().await {
        let token = delivery.properties.correlation_id().as_ref();
        let body = Bytes::from(delivery.data);
        let is_known = token.is_some_and(|token| state.ends.report(token.as_str(), body));
        let acked = delivery.acker.ack(BasicAckOptions::default()).await;
        if !is_known {
            unknown += 1;
            if told_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
                told_at = Some(Instant::now());
                tracing::warn!(
                    messages = unknown,
                    "the done queue received messages without a known job"
                );
            }
        }
        if acked.is_err() {
            return;
        }
    }
}

/// Returns true if the exchange exists. If `exchange` is empty, returns true if a queue named `key`
/// exists.
///
/// # Errors
/// [`BrokerError`] if this can't be determined.
pub async fn target_exists(
    amqp: &config::Amqp,
    exchange: &str,
    key: &str,
) -> Result<bool, BrokerError> {
    let link = Nodes::new(amqp)?.turns().open(NAME).await?;
    let channel = link.channel().await?;
    let found = match exchange {
        "" => (depth(&link.target, &channel, key).await).map(|found| found.is_some()),
        exchange => {
            let options = ExchangeDeclareOptions {
                passive: true,
                ..ExchangeDeclareOptions::default()
            };
            let (kind, none) = (ExchangeKind::Direct, FieldTable::default());
            let asking = channel.exchange_declare(exchange.into(), kind, options, none);
            let asking = link.target.rpc("exchange.declare", not_found(asking)).await;
            asking.map(|found| found.is_some())
        }
    };
    link.close().await;
    found
}
