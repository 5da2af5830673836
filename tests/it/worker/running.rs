//! A worker that runs in the test's process until it is stopped.

use std::sync::Arc;

use sluicegate::app::{AppError, Worker};
use sluicegate::engine::Stop;
use sluicegate::handler::Handler;
use sluicegate::metrics::Metrics;
use tokio::task::JoinHandle;

use crate::cli::servers::config;

pub struct Running {
    metrics: Arc<Metrics>,
    stop: Stop,
    task: JoinHandle<Result<(), AppError>>,
}

impl Running {
    pub fn start<H: Handler>(worker: Worker<H>) -> Self {
        let (metrics, stop) = (worker.metrics(), Stop::default());
        let task = tokio::spawn(worker.run(stop.clone()));
        Self {
            metrics,
            stop,
            task,
        }
    }

    /// Starts a worker with the configuration `yaml`.
    pub fn configured<H: Handler>(yaml: &str, handler: H) -> Self {
        let config = config(&format!("{yaml}admin: {{listen: '127.0.0.1:0'}}\n"));
        Self::start(Worker::new(config, handler).expect("a worker"))
    }

    /// Returns all metrics, one series per line.
    pub fn metrics(&self) -> String {
        self.metrics.encode()
    }

    pub fn shows(&self, series: &str) -> bool {
        self.metrics().lines().any(|line| line == series)
    }

    pub async fn stop(self) {
        self.stop.soft.cancel();
        let ended = self.task.await.expect("no panic");
        ended.expect("it started");
    }
}
