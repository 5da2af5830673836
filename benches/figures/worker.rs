//! A worker in this process with a handler that does nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use app::Worker;
use config::Config;
use engine::Stop;
use handler::{Handler, Outcome, Permit};
use kit::servers::{shared_rabbit, shared_redis};
use rules::job::Job;
use telemetry::metrics::Metrics;
use tokio::task::JoinHandle;

use crate::bare::now_ns;
use crate::counts;

type Latencies = Arc<Mutex<HashMap<String, Vec<Duration>>>>;

/// Does nothing but record how long calm tenants' jobs took from publishing to the handler.
struct LatencyHandler(Latencies);

impl Handler for LatencyHandler {
    async fn handle(&self, job: &Job, _: Permit) -> Outcome {
        if job.tenant.as_str() == "calm"
            && let Ok(sent) = <[u8; 16]>::try_from(&job.body[..])
        {
            let took = now_ns().saturating_sub(u128::from_be_bytes(sent));
            let took = Duration::from_nanos(u64::try_from(took).unwrap_or(u64::MAX));
            let mut all = self.0.lock().expect("no panic while it is held");
            all.entry(job.tenant.to_string()).or_default().push(took);
        }
        Outcome::Done
    }
}

/// A worker that runs in this process.
pub struct Running {
    metrics: Arc<Metrics>,
    latencies: Latencies,
    stop: Stop,
    task: JoinHandle<()>,
}

impl Running {
    /// Starts a worker on `queue` of the shared servers.
    pub fn start(queue: &str, max_requests: u32, window: &str) -> Self {
        let text = config(
            shared_rabbit().url(),
            shared_redis().url(),
            queue,
            max_requests,
            window,
        );
        let config = Config::parse("figures", &text, std::iter::empty()).expect("a config");
        let latencies = Latencies::default();
        let worker = Worker::new(config, LatencyHandler(Arc::clone(&latencies))).expect("a worker");
        let (metrics, stop) = (worker.metrics(), Stop::default());
        let running = worker.run(stop.clone());
        let task = tokio::spawn(async move { running.await.expect("a worker that starts") });
        Self {
            metrics,
            latencies,
            stop,
            task,
        }
    }

    /// Returns the value of one series.
    pub fn metric(&self, series: &str) -> f64 {
        counts::value(&self.metrics.encode(), series)
    }

    /// Returns the number of deliveries so far.
    pub fn deliveries(&self) -> f64 {
        counts::deliveries(|series| self.metric(series))
    }

    /// Waits until a series has reached `value`.
    pub async fn until(&self, series: &str, value: f64) {
        while self.metric(series) < value {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until `count` new jobs were taken and all but a few of those in memory wait there,
    /// including those in a delay queue's window.
    pub async fn until_parked(&self, count: usize) {
        self.until("sluicegate_deliveries_total{queue=\"fresh\"}", count as f64)
            .await;
        while counts::moving(|series| self.metric(series)) > 100.0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Returns how long the jobs of `tenant` took from publishing to arrival.
    pub fn latencies(&self, tenant: &str) -> Vec<Duration> {
        let all = self.latencies.lock().expect("no panic while it is held");
        all.get(tenant).cloned().unwrap_or_default()
    }

    /// Stops it gracefully.
    pub async fn stop(self) {
        self.stop.soft.cancel();
        self.task.await.expect("a worker that ends");
    }
}

/// Returns a worker's configuration. No server listens at the address of its API.
pub fn config(amqp: &str, redis: &str, queue: &str, max_requests: u32, window: &str) -> String {
    format!(
        "amqp: {{url: \"{amqp}\", queue: \"{queue}\", prefetch: 500}}\n\
         redis: {{url: \"{redis}\", prefix: \"{queue}\"}}\n\
         rate-limiter: {{max-requests: {max_requests}, window-size: {window}}}\n\
         dispatch: {{concurrency: 256, http: {{url: \"http://127.0.0.1:9/\"}}}}\n\
         admin: {{listen: \"127.0.0.1:0\"}}\n"
    )
}
