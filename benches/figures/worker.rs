//! A worker in this process with a handler that does nothing.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use app::Worker;
use config::Config;
use engine::Stop;
use handler::{Handler, Outcome, Permit};
use kit::servers::{shared_rabbit, shared_redis};
use rules::job::Job;
use telemetry::metrics::Metrics;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::bare::{PATIENCE, now_ns, until};
use crate::counts;

/// How often the worker's series are read.
const INTERVAL: Duration = Duration::from_millis(10);

/// A job that came to the handler.
pub struct HandledJob {
    pub id: String,
    /// The time from publishing to the handler.
    pub took: Duration,
}

type HandledJobs = Arc<Mutex<Vec<HandledJob>>>;

/// Does nothing but record the jobs.
struct RecordingHandler(HandledJobs);

impl Handler for RecordingHandler {
    async fn handle(&self, job: &Job, _: Permit) -> Outcome {
        let sent = <[u8; 16]>::try_from(&job.body[..]).map_or(0, u128::from_be_bytes);
        let took = now_ns().saturating_sub(sent);
        let job = HandledJob {
            id: job.id.clone(),
            took: Duration::from_nanos(u64::try_from(took).unwrap_or(u64::MAX)),
        };
        let mut all = self.0.lock().expect("no panic while it is held");
        all.push(job);
        Outcome::Done
    }
}

/// A worker that runs in this process.
pub struct Running {
    metrics: Arc<Metrics>,
    jobs: HandledJobs,
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
        let jobs = HandledJobs::default();
        let worker = Worker::new(config).expect("a worker");
        let (metrics, stop) = (worker.metrics(), Stop::default());
        let running = worker.run(RecordingHandler(Arc::clone(&jobs)), stop.clone());
        let task = tokio::spawn(async move { running.await.expect("a worker that starts") });
        Self {
            metrics,
            jobs,
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

    /// Waits until a series has reached `value`. Returns false if it does not increase any more.
    pub async fn until(&self, series: &str, value: f64) -> bool {
        until(INTERVAL, async || self.metric(series), |now| *now >= value).await
    }

    /// Waits until `count` new jobs were taken and all but a few of those in memory wait there,
    /// including those in a delay queue's window. Returns false if that takes too long.
    pub async fn until_parked(&self, count: usize) -> bool {
        let fresh = "sluicegate_deliveries_total{queue=\"new\"}";
        let mut is_parked = self.until(fresh, count as f64).await;
        let taken = Instant::now();
        while is_parked && counts::moving(|series| self.metric(series)) > 100.0 {
            tokio::time::sleep(INTERVAL).await;
            is_parked = taken.elapsed() < PATIENCE;
        }
        is_parked
    }

    /// Waits until `count` jobs whose IDs begin with `prefix` came to the handler, or no more do.
    pub async fn until_handled(&self, prefix: &str, count: usize) {
        let handled = async || {
            let jobs = self.jobs.lock().expect("no panic while it is held");
            jobs.iter().filter(|job| job.id.starts_with(prefix)).count()
        };
        until(INTERVAL, handled, |handled| *handled >= count).await;
    }

    /// Stops it gracefully. Returns all jobs that came to the handler.
    pub async fn stop(self) -> Vec<HandledJob> {
        self.stop.soft.cancel();
        let ended = timeout(PATIENCE, self.task).await;
        ended.expect("an end in time").expect("a worker that ends");
        std::mem::take(&mut *self.jobs.lock().expect("no panic while it is held"))
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
