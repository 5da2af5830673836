//! The base of the broker's tests: a session that can be cut, and its deliveries.

use std::sync::Arc;
use std::time::Duration;

use broker::amqp::AmqpBroker;
use broker::memory::MemoryBroker;
use broker::{Broker, BrokerEvent, Delivery, Message, Outgoing, PublishError, Tag};
use bytes::Bytes;
use config::{Amqp, AmqpServers, QueueType, SecretUrl, Tls};
use kit::PATIENCE;
use kit::proxy::{Proxy, Transfers};
use kit::servers::{Rabbit, shared_rabbit, unique};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use rules::delays::{DelayLevels, QueueNames};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

/// Short trips, so that tests are short.
pub fn levels() -> DelayLevels {
    DelayLevels::new(Duration::from_millis(200))
}

/// Small enough that batches, prefetch and queue lengths all matter.
pub const PREFETCH: u16 = 100;
/// Size of a worker's window of each delay queue.
pub const WINDOW: usize = 12;

/// Opens a channel to the shared RabbitMQ for another client's actions.
pub async fn channel() -> Channel {
    let properties = ConnectionProperties::default();
    let link = Connection::connect(shared_rabbit().url(), properties).await;
    let link = link.expect("RabbitMQ answers");
    link.create_channel().await.expect("a channel")
}

/// Returns a configuration for `url`, which may be several URLs separated by commas.
pub fn amqp(url: &str, queue: &str, queue_type: QueueType) -> Amqp {
    Amqp {
        url: AmqpServers {
            urls: url.split(',').map(SecretUrl::new).collect(),
        },
        tls: Tls::default(),
        queues: Default::default(),
        declare: true,
        queue: queue.to_owned(),
        queue_type,
        prefetch: PREFETCH,
        consumer_timeout: Duration::from_secs(1_800),
    }
}

/// A broker whose session can be cut.
pub struct Bed<B> {
    pub broker: B,
    pub names: QueueNames,
    pub events: mpsc::Receiver<BrokerEvent>,
    pub session: u64,
    /// Number of times that acks right before a clean close may be lost: RabbitMQ loses those of a
    /// quorum queue that is slow at that moment.
    pub lost_acks: usize,
    /// Whether the publishing connection was up in this session.
    publishes: bool,
    cut: Box<dyn Fn() + Send + Sync>,
    another: BrokerFactory<B>,
}

/// Creates another broker on the same queues.
type BrokerFactory<B> = Arc<dyn Fn() -> (B, mpsc::Receiver<BrokerEvent>) + Send + Sync>;

/// Creates a bed in memory.
pub async fn memory() -> Bed<MemoryBroker> {
    let (broker, events) = MemoryBroker::start("jobs", &levels(), PREFETCH, WINDOW);
    let (killer, server) = (broker.clone(), broker.clone());
    let names = broker.names();
    let cut = Box::new(move || killer.kill_session_for(Duration::ZERO));
    let another = Arc::new(move || server.join(PREFETCH, WINDOW));
    Bed::up(broker, names, events, cut, another).await
}

/// Creates a bed on the shared RabbitMQ, through a proxy that can be cut.
pub async fn rabbit(queue_type: QueueType) -> Bed<AmqpBroker> {
    on(shared_rabbit(), &unique("jobs"), queue_type).await
}

/// Creates a bed with quorum queues on the shared RabbitMQ.
pub async fn quorum() -> Bed<AmqpBroker> {
    rabbit(QueueType::Quorum).await
}

/// Creates a bed with classic work queues on the shared RabbitMQ.
pub async fn classic() -> Bed<AmqpBroker> {
    rabbit(QueueType::Classic).await
}

/// Creates a bed with `queue` on a RabbitMQ, through a proxy that can be cut.
pub async fn on(rabbit: &Rabbit, queue: &str, queue_type: QueueType) -> Bed<AmqpBroker> {
    let (proxy, url) = Proxy::before(rabbit.url(), Transfers::OPEN, 0).await;
    let amqp = amqp(&url, queue, queue_type);
    let another =
        Arc::new(move || AmqpBroker::start(&amqp, &levels(), WINDOW).expect("the config is fine"));
    let (broker, events) = another();
    let names = broker.names().clone();
    let cut = Box::new(move || proxy.door.cut());
    let mut bed = Bed::up(broker, names, events, cut, another).await;
    bed.lost_acks = usize::from(queue_type == QueueType::Quorum);
    bed
}

impl<B: Broker> Bed<B> {
    async fn up(
        broker: B,
        names: QueueNames,
        events: mpsc::Receiver<BrokerEvent>,
        cut: Box<dyn Fn() + Send + Sync>,
        another: BrokerFactory<B>,
    ) -> Self {
        let mut bed = Self {
            broker,
            names,
            events,
            session: 0,
            lost_acks: 0,
            publishes: false,
            cut,
            another,
        };
        bed.wait_up().await;
        bed
    }

    pub async fn event(&mut self) -> BrokerEvent {
        let event = timeout(PATIENCE, self.events.recv()).await;
        event.expect("an event in time").expect("events go on")
    }

    /// Waits for the next session. Earlier events are dropped.
    pub async fn wait_up(&mut self) {
        loop {
            if let BrokerEvent::Up { session } = self.event().await {
                assert!(session > self.session, "{session}");
                self.session = session;
                self.publishes = false;
                return;
            }
        }
    }

    /// Cuts the session and waits for the next one.
    pub async fn cut(&mut self) {
        (self.cut)();
        self.wait_up().await;
    }

    /// Cuts all connections.
    pub fn lose_connections(&self) {
        (self.cut)();
    }

    /// Cuts the session of a stopped broker, whose events then end.
    pub async fn cut_for_good(&mut self) {
        (self.cut)();
        self.publishes = false;
        let mut lost = 0;
        while let Some(event) = timeout(PATIENCE, self.events.recv()).await.expect("an end") {
            assert!(matches!(event, BrokerEvent::Down { .. }), "{event:?}");
            lost += 1;
        }
        assert_eq!(lost, 1);
    }

    /// Creates another client of the same queues. Its session can't be cut.
    pub async fn join(&self) -> Self {
        let (broker, events) = (self.another)();
        let another = Arc::clone(&self.another);
        let cut = Box::new(|| panic!("it has no way of its own"));
        Self::up(broker, self.names.clone(), events, cut, another).await
    }

    /// Closes the broker cleanly, which sends all earlier acks, and continues with another broker
    /// on the same queues. A cut may lose acks in flight.
    pub async fn reopen(&mut self) {
        self.broker.close().await;
        (self.broker, self.events) = (self.another)();
        self.session = 0;
        self.wait_up().await;
    }

    /// Takes the next `count` deliveries.
    pub async fn take(&mut self, count: usize) -> Vec<Delivery> {
        let mut taken = Vec::new();
        while taken.len() < count {
            match self.event().await {
                BrokerEvent::Deliveries(batch) => {
                    assert!(!batch.is_empty());
                    taken.extend(batch);
                }
                other => panic!("{other:?} instead of deliveries"),
            }
        }
        assert_eq!(taken.len(), count, "more came than expected");
        taken
    }

    /// Checks that nothing else is queued: a message published now is the next delivery.
    pub async fn nothing_but_a_marker(&mut self) {
        let before = self.before_a_marker().await;
        assert!(before.is_empty(), "{:?}", ids(&before));
    }

    /// Returns the deliveries before a marker that is published now.
    pub async fn before_a_marker(&mut self) -> Vec<Delivery> {
        let marker = unique("marker");
        self.publish_fresh(&[&marker]).await;
        let mut taken = Vec::new();
        loop {
            match self.event().await {
                BrokerEvent::Deliveries(batch) => taken.extend(batch),
                other => panic!("{other:?} instead of deliveries"),
            }
            let is_marker = |delivery: &Delivery| delivery.message.id() == Some(&*marker);
            if let Some(at) = taken.iter().position(is_marker) {
                let marker = taken.remove(at);
                self.broker.ack(vec![marker.tag]).await;
                return taken;
            }
        }
    }

    /// Publishes a batch. The first call in a session waits for the publishing connection, which
    /// comes up by itself, possibly after several attempts. Nothing was sent before.
    pub async fn publish(&mut self, batch: Vec<Outgoing>) -> Vec<Result<(), PublishError>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answers = self.broker.publish(batch.clone()).await;
            let down = |answer: &_| matches!(answer, Err(PublishError::Down(_)));
            self.publishes |= !answers.iter().all(down);
            if self.publishes || answers.is_empty() || Instant::now() > deadline {
                return answers;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Publishes to the work queue.
    pub async fn publish_fresh(&mut self, ids: &[&str]) {
        let batch = ids.iter().map(|id| to(&self.names.fresh, id)).collect();
        assert_eq!(self.publish(batch).await, vec![Ok(()); ids.len()]);
    }
}

pub fn message(id: &str) -> Message {
    Message {
        routing_key: String::new(),
        properties: BasicProperties::default().with_message_id(id.into()),
        body: Bytes::from(format!("body of {id}")),
    }
}

pub fn to(queue: &Arc<str>, id: &str) -> Outgoing {
    Outgoing {
        queue: queue.clone(),
        message: message(id),
    }
}

pub fn ids(deliveries: &[Delivery]) -> Vec<String> {
    let id = |delivery: &Delivery| delivery.message.id().expect("an id").to_owned();
    deliveries.iter().map(id).collect()
}

pub fn tags(deliveries: &[Delivery]) -> Vec<Tag> {
    deliveries.iter().map(|delivery| delivery.tag).collect()
}
