//! A worker that runs in the test's process until it is stopped, and a handler that records its
//! calls.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use app::{AppError, Worker};
use engine::Stop;
use handler::{Handler, Outcome, Permit};
use kit::until;
use rules::job::Job;
use telemetry::metrics::Metrics;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::cli::servers::config;

pub struct Running {
    metrics: Arc<Metrics>,
    stop: Stop,
    task: JoinHandle<Result<(), AppError>>,
}

impl Running {
    pub fn start<H: Handler>(worker: Worker, handler: H) -> Self {
        let (metrics, stop) = (worker.metrics(), Stop::default());
        let task = tokio::spawn(worker.run(handler, stop.clone()));
        Self {
            metrics,
            stop,
            task,
        }
    }

    /// Starts a worker with the configuration `yaml`.
    pub fn configured<H: Handler>(yaml: &str, handler: H) -> Self {
        let config = config(&format!("{yaml}admin: {{listen: '127.0.0.1:0'}}\n"));
        Self::start(Worker::new(config).expect("a worker"), handler)
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

/// Records its calls. Calls of jobs `slow-*` last until they are released.
#[derive(Clone)]
pub struct Calls {
    made: Arc<Mutex<Vec<Call>>>,
    pub go: Arc<Semaphore>,
}

struct Call {
    tenant: String,
    id: String,
    body: String,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            made: Arc::default(),
            go: Arc::new(Semaphore::new(0)),
        }
    }
}

impl Handler for Calls {
    async fn handle(&self, job: &Job, _: Permit) -> Outcome {
        let call = Call {
            tenant: job.tenant.to_string(),
            id: job.id.clone(),
            body: String::from_utf8_lossy(&job.body).into_owned(),
        };
        let is_slow = call.id.starts_with("slow-");
        self.made.lock().expect("no panic").push(call);
        if is_slow {
            self.go.acquire().await.expect("open").forget();
        }
        Outcome::Done
    }
}

impl Calls {
    fn count(&self, is_counted: impl Fn(&Call) -> bool) -> usize {
        let made = self.made.lock().expect("no panic");
        made.iter().filter(|call| is_counted(call)).count()
    }

    pub fn of_job(&self, id: &str) -> usize {
        self.count(|call| call.id == id)
    }

    pub fn of_tenant(&self, tenant: &str) -> usize {
        self.count(|call| call.tenant == tenant)
    }

    pub fn all(&self) -> usize {
        self.count(|_| true)
    }

    /// Returns the number of calls of each `TENANT BODY`.
    pub fn by_body(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for call in &*self.made.lock().expect("no panic") {
            let name = format!("{} {}", call.tenant, call.body);
            *counts.entry(name).or_default() += 1;
        }
        counts
    }

    /// Waits until this many calls were made. More are an error.
    pub async fn are(&self, number: usize) {
        until(&format!("{number} calls"), || self.all() >= number).await;
        assert_eq!(self.all(), number);
    }

    /// Waits until this many calls of the tenant were made.
    pub async fn are_of_tenant(&self, tenant: &str, number: usize) {
        let what = format!("{number} calls of {tenant}");
        until(&what, || self.of_tenant(tenant) >= number).await;
    }
}
