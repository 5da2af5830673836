//! The baseline: the same queues with plain lapin instead of Sluicegate.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use broker::amqp::Client;
use config::{Amqp, QueueType, SecretUrl};
use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer};
use rules::delays::DelayLevels;

const PREFETCH: u16 = 500;
/// Number of confirms and acks that are awaited together, as a careful loop does.
const GROUP: usize = 50;

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
        let connection = Connection::connect(url, ConnectionProperties::default())
            .await
            .expect("RabbitMQ");
        let publisher = connection.create_channel().await.expect("a channel");
        let confirms = ConfirmSelectOptions::default();
        publisher.confirm_select(confirms).await.expect("confirms");
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
            let sent = self.send(&self.queue, body.as_ref(), properties);
            confirms.push(sent.await);
            if confirms.len() == GROUP || n + 1 == count {
                for confirm in confirms.drain(..) {
                    assert!(confirm.await.expect("a confirm").is_ack());
                }
            }
        }
    }

    async fn send(
        &self,
        queue: &str,
        body: &[u8],
        properties: BasicProperties,
    ) -> lapin::PublisherConfirm {
        let options = BasicPublishOptions {
            mandatory: true,
            immediate: false,
        };
        (self.publisher)
            .basic_publish("".into(), queue.into(), options, body, properties)
            .await
            .expect("a publish")
    }

    async fn consume(&self) -> (Channel, Consumer) {
        let channel = self.connection.create_channel().await.expect("a channel");
        let qos = BasicQosOptions::default();
        channel.basic_qos(PREFETCH, qos).await.expect("a prefetch");
        let options = BasicConsumeOptions::default();
        let consuming = channel.basic_consume(
            self.queue.as_str().into(),
            "".into(),
            options,
            FieldTable::default(),
        );
        let consumer = consuming.await.expect("a consumer");
        (channel, consumer)
    }

    /// Consumes and acks jobs one by one.
    pub async fn ack_all(&self, count: usize) -> Duration {
        let started = Instant::now();
        let (channel, mut consumer) = self.consume().await;
        for _ in 0..count {
            let delivery = consumer
                .next()
                .await
                .expect("a delivery")
                .expect("a delivery");
            let ack = BasicAckOptions::default();
            channel
                .basic_ack(delivery.delivery_tag, ack)
                .await
                .expect("an ack");
        }
        let took = started.elapsed();
        channel.close(200, "done".into()).await.expect("closed");
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
        let (sender, mut receiver) =
            tokio::sync::mpsc::channel::<(lapin::PublisherConfirm, u64)>(1000);
        let acks = tokio::spawn(async move {
            for n in 1..=count {
                let (confirm, tag) = receiver.recv().await.expect("a publish");
                assert!(confirm.await.expect("a confirm").is_ack());
                if n % GROUP == 0 || n == count {
                    let ack = BasicAckOptions { multiple: true };
                    acker.basic_ack(tag, ack).await.expect("an ack");
                }
            }
        });
        for _ in 0..count {
            let delivery = consumer
                .next()
                .await
                .expect("a delivery")
                .expect("a delivery");
            let properties = delivery.properties.clone().with_delivery_mode(2);
            let confirm = self.send(&delay_queue, &delivery.data, properties).await;
            sender
                .send((confirm, delivery.delivery_tag))
                .await
                .expect("the acks");
        }
        acks.await.expect("the acks");
        let took = started.elapsed();
        channel.close(200, "done".into()).await.expect("closed");
        took
    }

    /// Returns the number of ready messages in all queues.
    pub async fn ready(&self) -> u32 {
        let mut all = 0;
        for name in self.names() {
            all += self.client.depth(name).await.expect("a depth");
        }
        all
    }

    /// Deletes all queues.
    pub async fn remove(&self) {
        for name in self.names() {
            let options = QueueDeleteOptions::default();
            let deleted = self.publisher.queue_delete((&**name).into(), options);
            deleted.await.expect("deleted");
        }
    }

    fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        let names = self.client.names();
        [&names.fresh, &names.due, &names.recheck, &names.dead]
            .into_iter()
            .chain(names.delays())
    }

    /// Waits until the work queue has no ready message.
    pub async fn until_empty(&self) {
        let fresh = self.client.names().fresh.clone();
        while self.client.depth(&fresh).await.expect("a depth") > 0 {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
}

/// Returns now in nanoseconds since the Unix epoch.
pub fn now_ns() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_nanos()
}
