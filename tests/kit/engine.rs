//! An engine without queues: its events, and a broker that records acks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::{
    Broker, BrokerEvent, Delivery, DeliverySource, ExternalMessage, Outgoing, PublishError, Tag,
};
use engine::{Engine, Stop};
use telemetry::metrics::Metrics;
use tokio::sync::mpsc::{self, Receiver, Sender};

/// Records acks, and ends the engine after all expected ones. Published messages are lost.
pub struct AckRecorder {
    tags: Mutex<Vec<u64>>,
    published: Mutex<Vec<Outgoing>>,
    expected: usize,
    stop: Stop,
}

impl AckRecorder {
    /// Creates a broker that ends the engine by `stop` after this many acks.
    pub fn ending(stop: &Stop, expected: usize) -> Arc<Self> {
        Arc::new(Self {
            tags: Mutex::default(),
            published: Mutex::default(),
            expected,
            stop: stop.clone(),
        })
    }

    /// Creates a broker that never ends the engine.
    pub fn without_end() -> Arc<Self> {
        Self::ending(&Stop::default(), usize::MAX)
    }

    /// Returns the acked tags in the order of their acks.
    pub fn acked(&self) -> Vec<u64> {
        self.tags.lock().expect("no panic").clone()
    }

    /// Returns the published messages.
    pub fn published(&self) -> Vec<Outgoing> {
        self.published.lock().expect("no panic").clone()
    }
}

impl Broker for AckRecorder {
    async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Result<(), PublishError>> {
        let answers = batch.iter().map(|_| Ok(())).collect();
        self.published.lock().expect("no panic").extend(batch);
        answers
    }
    async fn publish_results(&self, batch: Vec<ExternalMessage>) -> Vec<Result<(), PublishError>> {
        batch.iter().map(|_| Ok(())).collect()
    }
    async fn ack(&self, tags: Vec<Tag>) {
        let mut acked = self.tags.lock().expect("no panic");
        acked.extend(tags.iter().map(|tag| tag.tag));
        if acked.len() == self.expected {
            self.stop.soft.cancel();
        }
    }
    async fn give_back(&self, _: Vec<Tag>) {}
    async fn rest(&self) {}

    async fn take(&self) {}

    async fn stop_consuming(&self) {}
    async fn close(&self) {}
}

/// Returns new jobs of `tenant`, whose tags are their IDs.
pub fn deliveries(tenant: &str, tags: impl IntoIterator<Item = u64>) -> Vec<Delivery> {
    let source = DeliverySource::Fresh;
    let delivery = |tag: u64| Delivery {
        source,
        tag: Tag {
            session: 1,
            source,
            tag,
        },
        redelivered: false,
        message: crate::job(tenant, tag).into(),
    };
    tags.into_iter().map(delivery).collect()
}

/// Returns a channel that holds a session's start and then `events`, with room for one more.
pub fn channel(
    events: impl IntoIterator<Item = BrokerEvent>,
) -> (Sender<BrokerEvent>, Receiver<BrokerEvent>) {
    let up = BrokerEvent::Up { session: 1 };
    let all: Vec<_> = [up].into_iter().chain(events).collect();
    let (sender, receiver) = mpsc::channel(all.len() + 1);
    for event in all {
        sender.try_send(event).expect("there is room");
    }
    (sender, receiver)
}

/// Returns an engine without telemetry.
pub fn engine<B, G, H>(
    broker: &Arc<B>,
    gate: &Arc<G>,
    handler: &Arc<H>,
    shutdown_timeout: Duration,
) -> Engine<B, G, H> {
    Engine {
        broker: Arc::clone(broker),
        gate: Arc::clone(gate),
        handler: Arc::clone(handler),
        metrics: Arc::new(Metrics::new()),
        health: Arc::default(),
        shutdown_timeout,
    }
}
