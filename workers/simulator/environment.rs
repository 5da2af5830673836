//! The environment of simulated workers: an in-memory broker and gate, and the simulated time of
//! both.

use std::sync::Arc;
use std::time::Duration;

use broker::memory::MemoryBroker;
use broker::{Broker, BrokerEvent};
use engine::Engine;
use engine::action::EngineSettings;
use gate::memory::MemoryGate;
use rules::delays::{self, DelayLevels};
use telemetry::Health;
use telemetry::metrics::Metrics;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// The gate's clock: microseconds since the Unix epoch.
pub type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// The work queue of all simulations.
pub const QUEUE: &str = "jobs";

/// A broker and a gate that all simulated workers share.
pub struct Environment {
    /// When simulated time began.
    pub began: Instant,
    /// The same moment in microseconds since the Unix epoch.
    pub epoch_us: u64,
    /// The publisher's client of the broker. It takes no jobs.
    pub server: MemoryBroker,
    /// The gate's model.
    pub gate: Arc<MemoryGate<Clock>>,
}

impl Environment {
    /// Creates an empty environment whose time begins at `epoch_us`, with the delay queues of
    /// `levels`. The caller must receive the events of the publisher's client, which are returned
    /// as well. Must be called within [`in_simulated_time`].
    pub async fn begin(epoch_us: u64, levels: &DelayLevels) -> (Self, mpsc::Receiver<BrokerEvent>) {
        let (server, events) = MemoryBroker::start(QUEUE, levels, 1, 1);
        server.stop_consuming().await;
        let began = Instant::now();
        let clock: Clock = Box::new(move || epoch_us + micros(began.elapsed()));
        let environment = Self {
            began,
            epoch_us,
            server,
            gate: Arc::new(MemoryGate::new(clock)),
        };
        (environment, events)
    }

    /// Returns the time of the gate's clock, in microseconds since the Unix epoch.
    pub fn now_us(&self) -> u64 {
        self.epoch_us + micros(self.began.elapsed())
    }

    /// Connects a worker. It takes as many jobs as a worker with this prefetch and concurrency
    /// does.
    pub fn join(
        &self,
        prefetch: u16,
        concurrency: usize,
    ) -> (MemoryBroker, mpsc::Receiver<BrokerEvent>) {
        let window = delays::delivery_window(usize::from(prefetch), concurrency);
        self.server.join(prefetch, window)
    }

    /// Returns the number of messages that are not done: all but the dead letters.
    pub fn left(&self) -> usize {
        self.server.ready() + self.server.unacked() + self.server.waiting()
    }
}

/// Builds a worker's engine from any broker, gate and handler.
pub fn engine<B, G, H>(
    (broker, gate, handler): (B, Arc<G>, H),
    metrics: &Arc<Metrics>,
    shutdown_timeout: Duration,
) -> Engine<B, G, H> {
    Engine {
        broker: Arc::new(broker),
        gate,
        handler: Arc::new(handler),
        metrics: Arc::clone(metrics),
        health: Arc::new(Health::default()),
        shutdown_timeout,
    }
}

/// Returns `settings` with the queue names of the worker's `client`.
pub fn settings(mut settings: EngineSettings, client: &MemoryBroker) -> EngineSettings {
    settings.names = client.names();
    settings
}

/// Runs `play` to its end in simulated time: when every task waits, the clock jumps to the next
/// timer.
///
/// # Panics
/// Panics if the runtime can't be built, which needs no resources of the system.
pub fn in_simulated_time<T>(play: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime of one thread without I/O needs nothing of the system");
    runtime.block_on(play)
}

/// Converts to whole microseconds.
pub fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}
