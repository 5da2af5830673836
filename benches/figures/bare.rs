//! The baseline: the same queues with plain lapin instead of Sluicegate.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use broker::amqp::Client;
use config::{Amqp, QueueType, SecretUrl};
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, Consumer, PublisherConfirm,
};
use rules::delays::{DelayLevels, QueueNames};
use tokio::time::timeout;

/// Unacked jobs per queue of a worker or a loop.
pub const PREFETCH: u16 = 500;
/// Number of confirms and acks that are awaited together, as a careful loop does.
const GROUP: usize = 50;
/// Time within which a channel passes its acks to the queue.
const ACK_TIME: Duration = Duration::from_secs(2);
/// Deadline for anything that must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Deadline for a wait that progresses.
const LONGEST: Duration = Duration::from_secs(900);

/// Opens a connection with a channel.
pub async fn open(url: &str) -> (Connection, Channel) {
    let connection = Connection::connect(url, ConnectionProperties::default()).await;
    let connection = connection.expect("RabbitMQ");
    let channel = connection.create_channel().await.expect("a channel");
    (connection, channel)
}

/// Makes RabbitMQ confirm what is published on `channel`.
pub async fn select_confirms(channel: &Channel) {
    let confirms = channel.confirm_select(ConfirmSelectOptions::default());
    confirms.await.expect("confirms");
}

/// Declares a durable quorum queue.
pub async fn declare(channel: &Channel, queue: &str, mut arguments: FieldTable) {
    let quorum = AMQPValue::LongString("quorum".into());
    arguments.insert("x-queue-type".into(), quorum);
    let options = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let declared = channel.queue_declare(queue.into(), options, arguments);
    declared.await.expect("declared");
}

/// Deletes a queue.
pub async fn delete(channel: &Channel, queue: &str) {
    let deleted = channel.queue_delete(queue.into(), QueueDeleteOptions::default());
    deleted.await.expect("deleted");
}

/// Publishes a message. Returns its confirm, which has yet to come.
pub async fn send(
    channel: &Channel,
    queue: &str,
    body: &[u8],
    properties: BasicProperties,
) -> PublisherConfirm {
    let options = BasicPublishOptions {
        mandatory: true,
        immediate: false,
    };
    let sent = channel.basic_publish("".into(), queue.into(), options, body, properties);
    sent.await.expect("a publish")
}

/// Waits until RabbitMQ confirms that it has the message, for at most [`PATIENCE`].
pub async fn confirmed(confirm: PublisherConfirm) {
    let confirm = timeout(PATIENCE, confirm).await.expect("a confirm in time");
    assert!(confirm.expect("a confirm").is_ack());
}

/// Consumes a queue, with [`PREFETCH`].
pub async fn consume(channel: &Channel, queue: &str) -> Consumer {
    let qos = channel.basic_qos(PREFETCH, BasicQosOptions::default());
    qos.await.expect("a prefetch");
    let options = BasicConsumeOptions::default();
    let none = FieldTable::default();
    let consuming = channel.basic_consume(queue.into(), "".into(), options, none);
    consuming.await.expect("a consumer")
}

/// Acks a delivery.
pub async fn ack(channel: &Channel, delivery: &Delivery) {
    let acked = channel.basic_ack(delivery.delivery_tag, BasicAckOptions::default());
    acked.await.expect("an ack");
}

/// Closes a channel. The answer comes after all acks were processed.
pub async fn close(channel: &Channel) {
    let closed = channel.close(200, "done".into()).await;
    closed.expect("closed");
}

/// Returns all queues of a worker but those for more publishers.
pub fn all_queues(names: &QueueNames) -> impl Iterator<Item = &Arc<str>> {
    [&names.fresh, &names.due, &names.recheck, &names.dead]
        .into_iter()
        .chain(names.delays())
}

/// A connection, the declared queues, and a publishing channel.
pub struct BareConnection {
    connection: Connection,
    publisher: Channel,
    client: Client,
    queue: String,
}

impl BareConnection {
    /// Declares the queues that a worker on `queue` declares.
    pub async fn connect(url: &str, queue: &str) -> Self {
        Self::connect_to(url, queue, QueueType::Quorum).await
    }

    /// Like [`BareConnection::connect`], with queues of this type.
    pub async fn connect_to(url: &str, queue: &str, queue_type: QueueType) -> Self {
        let amqp = Amqp {
            url: SecretUrl::new(url).into(),
            tls: Default::default(),
            queue: queue.to_owned(),
            queues: Default::default(),
            declare: true,
            queue_type,
            prefetch: PREFETCH,
            consumer_timeout: Duration::from_secs(1_800),
        };
        let levels = DelayLevels::new(Duration::from_secs(300));
        let client = Client::connect(&amqp, &levels).await.expect("queues");
        let (connection, publisher) = open(url).await;
        select_confirms(&publisher).await;
        Self {
            connection,
            publisher,
            client,
            queue: queue.to_owned(),
        }
    }

    /// Publishes `count` jobs with the time (ns since the Unix epoch) as body, and waits for the
    /// confirms.
    pub async fn publish(&self, count: usize, tenant: impl Fn(usize) -> String) {
        let job = |n: usize| (n.to_string(), tenant(n), now_ns().to_be_bytes());
        self.publish_jobs(count, job).await;
    }

    /// Publishes `count` jobs with the IDs, tenants and bodies from `job`, and waits for the
    /// confirms.
    pub async fn publish_jobs<B: AsRef<[u8]>>(
        &self,
        count: usize,
        job: impl Fn(usize) -> (String, String, B),
    ) {
        let mut confirms = Vec::with_capacity(GROUP);
        for n in 0..count {
            let mut headers = FieldTable::default();
            let (id, tenant, body) = job(n);
            headers.insert("x-tenant".into(), AMQPValue::LongString(tenant.into()));
            let properties = BasicProperties::default()
                .with_delivery_mode(2)
                .with_message_id(id.into())
                .with_headers(headers);
            let sent = send(&self.publisher, &self.queue, body.as_ref(), properties);
            confirms.push(sent.await);
            if confirms.len() == GROUP || n + 1 == count {
                for confirm in confirms.drain(..) {
                    confirmed(confirm).await;
                }
            }
        }
    }

    async fn consume(&self) -> (Channel, Consumer) {
        let channel = self.connection.create_channel().await.expect("a channel");
        let consumer = consume(&channel, &self.queue).await;
        (channel, consumer)
    }

    /// Consumes and acks jobs one by one.
    pub async fn ack_all(&self, count: usize) -> Duration {
        let started = Instant::now();
        let (channel, mut consumer) = self.consume().await;
        for _ in 0..count {
            ack(&channel, &next(&mut consumer).await).await;
        }
        let took = started.elapsed();
        // A quorum queue loses acks that the channel still holds when it is closed.
        tokio::time::sleep(ACK_TIME).await;
        close(&channel).await;
        took
    }

    /// Consumes jobs, publishes each to the longest delay queue, waits for the confirm, and acks
    /// it; with many in flight.
    pub async fn park_all(&self, count: usize) -> Duration {
        let delay_queues = self.client.names().delays();
        let delay_queue = delay_queues.last().expect("a delay queue").to_string();
        let started = Instant::now();
        let (channel, mut consumer) = self.consume().await;
        let acker = channel.clone();
        let (sender, mut receiver) = tokio::sync::mpsc::channel::<(PublisherConfirm, u64)>(1000);
        let acks = tokio::spawn(async move {
            for n in 1..=count {
                let (confirm, tag) = receiver.recv().await.expect("a publish");
                confirmed(confirm).await;
                if n % GROUP == 0 || n == count {
                    let ack = BasicAckOptions { multiple: true };
                    acker.basic_ack(tag, ack).await.expect("an ack");
                }
            }
        });
        for _ in 0..count {
            let delivery = next(&mut consumer).await;
            let properties = delivery.properties.clone().with_delivery_mode(2);
            let sent = send(&self.publisher, &delay_queue, &delivery.data, properties);
            let confirm = sent.await;
            sender
                .send((confirm, delivery.delivery_tag))
                .await
                .expect("the acks");
        }
        acks.await.expect("the acks");
        let took = started.elapsed();
        close(&channel).await;
        took
    }

    /// Returns the number of ready messages in all queues.
    pub async fn ready(&self) -> u32 {
        let mut all = 0;
        for name in all_queues(self.client.names()) {
            all += self.client.depth(name).await.expect("a depth");
        }
        all
    }

    /// Deletes all queues.
    pub async fn remove(&self) {
        for name in all_queues(self.client.names()) {
            delete(&self.publisher, name).await;
        }
    }

    /// Waits until the work queue has no ready message. Returns false if its messages stay there.
    pub async fn until_empty(&self) -> bool {
        let fresh = &self.client.names().fresh;
        let depth = async || self.client.depth(fresh).await.expect("a depth");
        let is_empty = until(Duration::from_millis(200), depth, |depth| *depth == 0).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        is_empty
    }
}

/// Waits for a delivery, for at most [`PATIENCE`].
async fn next(consumer: &mut Consumer) -> Delivery {
    let delivery = timeout(PATIENCE, consumer.next()).await;
    let delivery = delivery.expect("a delivery in time");
    delivery.expect("a delivery").expect("a delivery")
}

/// Reads a value at each `interval` until it is as expected. Returns false if it has not changed
/// for [`PATIENCE`], or after [`LONGEST`].
pub async fn until<T: PartialEq>(
    interval: Duration,
    read: impl AsyncFn() -> T,
    is_expected: impl Fn(&T) -> bool,
) -> bool {
    let started = Instant::now();
    let (mut last, mut since) = (read().await, started);
    while !is_expected(&last) {
        if since.elapsed() > PATIENCE || started.elapsed() > LONGEST {
            return false;
        }
        tokio::time::sleep(interval).await;
        let value = read().await;
        if value != last {
            (last, since) = (value, Instant::now());
        }
    }
    true
}

/// Returns now in nanoseconds since the Unix epoch.
pub fn now_ns() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_nanos()
}
