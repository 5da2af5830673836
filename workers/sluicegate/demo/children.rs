//! The demo's workers: processes of this program, `sluicegate run`, with a configuration in a
//! temporary folder and their logs next to it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use config::{Config, QueueType};
use rules::limit::Limit;
use rules::named::Named;
use serde_json::{Value, json};
use trial::worker::{self, WorkerProcess};

use super::pipelines::PipelineRole;
use super::queues::MAX_DELAY;
use super::scenario::Scenario;
use super::{DemoError, PipelineSetup};

/// Deadline from a worker's start until a pipeline is ready. It declares some forty queues in that
/// time.
const READY: Duration = Duration::from_secs(60);
/// Deadline from SIGTERM to the end.
const STOP: Duration = Duration::from_secs(20);

/// The settings that all workers share.
pub struct WorkerSettings<'a> {
    /// The addresses of RabbitMQ and Redis, and the type of the queues.
    pub config: &'a Config,
    /// The prefix of the keys in Redis.
    pub prefix: &'a str,
    /// The settings of each pipeline.
    pub parts: &'a [PipelineSetup],
}

impl WorkerSettings<'_> {
    /// Returns a worker's configuration, as JSON, which is valid YAML.
    fn yaml(&self, admin: SocketAddr) -> String {
        let mut all = json!({
            "amqp": {
                "url": self.config.amqp.url.expose(),
                "queue-type": match self.config.amqp.queue_type {
                    QueueType::Quorum => "quorum",
                    QueueType::Classic => "classic",
                },
                "prefetch": self.config.amqp.prefetch,
            },
            "redis": {"url": self.config.redis.url.urls[0].expose(), "prefix": self.prefix},
            "dispatch": {"concurrency": self.config.dispatch.concurrency},
            "delay": {"max-delay": format!("{}s", MAX_DELAY.as_secs())},
            "admin": {"listen": admin.to_string()},
        });
        for part in self.parts {
            match part.plan.pipeline {
                Some(pipeline) => all["pipelines"][pipeline.name()] = sections(part),
                None => add(&mut all, sections(part)),
            }
        }
        all.to_string()
    }
}

/// Returns the settings of one pipeline.
fn sections(part: &PipelineSetup) -> Value {
    let mut dispatch = json!({"http": {"url": part.downstream.url(), "timeout": "10s"}});
    if part.plan.scenario == Scenario::Results {
        dispatch["results"] = json!({"to": "reply-to"});
    }
    let limits: Vec<Value> = part.plan.limits.iter().map(limit).collect();
    json!({
        "amqp": {"queue": part.queues.work()},
        "rate-limiter": {"limits": limits},
        "dispatch": dispatch,
    })
}

/// Returns an entry of `rate-limiter.limits`.
fn limit(limit: &Limit) -> Value {
    json!({
        "name": limit.name(),
        "use-algo": limit.algorithm().name(),
        "unit": limit.unit().name(),
        "max-requests": limit.max(),
        "window-size": format!("{}ms", limit.window_ms()),
        "guard": format!("{}ms", limit.guard_ms()),
    })
}

/// Merges the keys of `more` into `all`.
fn add(all: &mut Value, more: Value) {
    match (all, more) {
        (Value::Object(all), Value::Object(more)) => {
            for (key, value) in more {
                add(all.entry(key).or_insert(Value::Null), value);
            }
        }
        (all, more) => *all = more,
    }
}

/// Counts from a worker's metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerCounts {
    /// Deliveries from RabbitMQ, from all queues.
    pub deliveries: u64,
    /// Failed calls.
    pub failed_calls: u64,
    /// Restarts of a pipeline.
    pub restarts: u64,
}

impl WorkerCounts {
    /// Adds another worker's counts.
    pub fn add(&mut self, other: Self) {
        self.deliveries += other.deliveries;
        self.failed_calls += other.failed_calls;
        self.restarts += other.restarts;
    }
}

/// One worker of the demo.
pub struct DemoWorker {
    name: String,
    process: WorkerProcess,
}

impl DemoWorker {
    /// Starts worker `number`.
    ///
    /// # Errors
    /// The system's error, if it can't be started.
    pub fn start(
        folder: &Path,
        number: usize,
        settings: &WorkerSettings<'_>,
    ) -> Result<Self, DemoError> {
        let name = format!("worker-{number}");
        let failed = |error: std::io::Error| DemoError(format!("{name} can't be started: {error}"));
        let admin = worker::free_port(Ipv4Addr::LOCALHOST.into()).map_err(failed)?;
        let config = folder.join(format!("{name}.yaml"));
        let log = folder.join(format!("{name}.log"));
        fs::write(&config, settings.yaml(admin)).map_err(failed)?;
        // This process's variables are in `settings` already.
        let mut command = worker::command(&std::env::current_exe().map_err(failed)?);
        // Ctrl-C in a terminal goes only to the demo, which then stops its workers gracefully.
        command.process_group(0);
        let process = WorkerProcess::start(command, &config, &log, admin).map_err(failed)?;
        Ok(Self { name, process })
    }

    /// Waits until the worker consumes in each of `parts`.
    ///
    /// # Errors
    /// The worker ended or did not become ready; includes the last lines of its log.
    pub async fn ready(&mut self, parts: &[PipelineSetup]) -> Result<(), DemoError> {
        for part in parts {
            let path = match part.plan.pipeline {
                Some(pipeline) => format!("/readyz/{}", pipeline.name()),
                None => "/readyz".to_owned(),
            };
            let ready = self.process.ready(&path, READY).await;
            if !ready.map_err(|error| self.lost(&error))? {
                self.alive()?;
                return Err(self.failure(&format!("was not ready within {READY:?}")));
            }
        }
        Ok(())
    }

    /// Returns its process ID, or `None` if it has ended.
    pub fn id(&self) -> Option<u32> {
        self.process.id()
    }

    /// Checks that the worker still runs.
    ///
    /// # Errors
    /// The worker ended; includes the last lines of its log.
    pub fn alive(&mut self) -> Result<(), DemoError> {
        match self.process.ended().map_err(|error| self.lost(&error))? {
            None => Ok(()),
            Some(status) => Err(self.failure(&format!("ended: {status}"))),
        }
    }

    /// Returns its counts for a pipeline.
    ///
    /// # Errors
    /// Its metrics can't be read.
    pub async fn counted(&self, pipeline: Option<PipelineRole>) -> Result<WorkerCounts, DemoError> {
        let text = self.process.metrics().await;
        let text = text.map_err(|error| self.failure(&error))?;
        let of = pipeline.map(|pipeline| format!("pipeline=\"{}\"", pipeline.name()));
        let sum = |metric: &str, label: &str| {
            let labels: Vec<&str> = of.iter().map(|of| &**of).chain([label]).collect();
            worker::sum(&text, metric, &labels)
                .ok_or_else(|| self.failure(&format!("has no metric {metric}")))
        };
        Ok(WorkerCounts {
            deliveries: sum("sluicegate_deliveries_total", "")?,
            failed_calls: sum("sluicegate_dispatches_total", "outcome=\"retry\"")?,
            // A single pipeline is never restarted.
            restarts: match of {
                Some(_) => sum("sluicegate_pipeline_restarts_total", "")?,
                None => 0,
            },
        })
    }

    /// Sends SIGTERM, then SIGKILL if the worker does not end in time.
    ///
    /// # Errors
    /// The worker did not end by itself, or its exit status was not 0; includes the last lines of
    /// its log.
    pub async fn stop(mut self) -> Result<(), DemoError> {
        let ended = self.process.terminate(STOP).await;
        match ended.map_err(|error| self.lost(&error))? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(self.failure(&format!("ended: {status}"))),
            None => Err(self.failure(&format!("did not end within {STOP:?} of SIGTERM"))),
        }
    }

    fn lost(&self, error: &std::io::Error) -> DemoError {
        self.failure(&format!("is lost: {error}"))
    }

    fn failure(&self, what: &str) -> DemoError {
        let tail = self.process.tail();
        DemoError(format!("{} {what}\nThe end of its log:\n{tail}", self.name))
    }
}
