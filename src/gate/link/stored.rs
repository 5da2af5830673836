//! The connection to a store in place of servers, the counterpart of [`node`](super::node).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::redis::{Pipeline, Value};
use tokio::time::{Instant, timeout};

use super::node::TIMEOUT_IN_ALL;
use crate::GateError;
use crate::store::Store;
use rules::timing::latency::LatencyEstimator;

/// The connection to one store, shared by all callers.
pub struct StoreLink {
    store: Arc<dyn Store>,
    /// Round-trip times, by the time since `made`.
    latency: Mutex<LatencyEstimator>,
    made: Instant,
    round_trips: Arc<AtomicU64>,
}

impl StoreLink {
    pub fn new(store: Arc<dyn Store>, round_trips: Arc<AtomicU64>) -> Self {
        Self {
            store,
            latency: Mutex::default(),
            made: Instant::now(),
            round_trips,
        }
    }

    /// Returns the minimum round-trip time, or `None` if it is not known yet.
    pub fn base(&self) -> Option<Duration> {
        let latency = self.latency.lock().unwrap_or_else(PoisonError::into_inner);
        latency.is_known().then(|| latency.base())
    }

    /// Makes one round trip. Returns one value per command of the pipeline.
    pub async fn send(&self, pipeline: &Pipeline) -> Result<Vec<Value>, GateError> {
        self.round_trips.fetch_add(1, Ordering::Relaxed);
        let started = Instant::now();
        let late = |_| GateError::Unreachable("the store: no answer in time".to_owned());
        let run = timeout(TIMEOUT_IN_ALL, self.store.run(pipeline));
        let answers = run.await.map_err(late)??;
        if answers.len() != pipeline.cmd_iter().count() {
            let why = "the store: an answer is missing".to_owned();
            return Err(GateError::Unreachable(why));
        }
        let mut latency = self.latency.lock().unwrap_or_else(PoisonError::into_inner);
        latency.learn(self.made.elapsed(), started.elapsed());
        Ok(answers)
    }
}
