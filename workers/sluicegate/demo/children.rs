//! The demo's workers: processes of this program, `sluicegate run`, with a configuration in a
//! temporary folder and their logs next to it.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sluicegate::config::{Config, QueueType};
use sluicegate::rules::limit::Limit;
use sluicegate::rules::named::Named;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};
use trial::fetch;

use super::pipelines::PipelineRole;
use super::queues::MAX_DELAY;
use super::scenario::Scenario;
use super::{DemoError, PipelineSetup};

/// Deadline from a worker's start until `/readyz` succeeds. It declares some forty queues in that
/// time.
const READY: Duration = Duration::from_secs(60);
/// Deadline from SIGTERM to the end.
const STOP: Duration = Duration::from_secs(20);
/// Number of log lines shown for a failed worker.
const TAIL: usize = 15;

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

/// One worker process. Dropping it kills the process.
pub struct WorkerProcess {
    name: String,
    child: Child,
    log: PathBuf,
    admin: SocketAddr,
}

impl WorkerProcess {
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
        let admin = free_port().map_err(failed)?;
        let config = folder.join(format!("{name}.yaml"));
        let log = folder.join(format!("{name}.log"));
        fs::write(&config, settings.yaml(admin)).map_err(failed)?;
        let out = File::create(&log).map_err(failed)?;
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        // The environment would override the file. This process's variables are in `settings`
        // already.
        for (variable, _) in std::env::vars_os() {
            if variable.as_encoded_bytes().starts_with(b"SLUICEGATE_") {
                command.env_remove(variable);
            }
        }
        let child = command
            .arg("run")
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(out.try_clone().map_err(failed)?)
            .stderr(out)
            // Ctrl-C in a terminal goes only to the demo, which then stops its workers gracefully.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        Ok(Self {
            name,
            child,
            log,
            admin,
        })
    }

    /// Waits until the worker consumes in each of `parts`.
    ///
    /// # Errors
    /// The worker ended or did not become ready; includes the last lines of its log.
    pub async fn ready(&mut self, parts: &[PipelineSetup]) -> Result<(), DemoError> {
        let until = Instant::now() + READY;
        for part in parts {
            let path = match part.plan.pipeline {
                Some(pipeline) => format!("/readyz/{}", pipeline.name()),
                None => "/readyz".to_owned(),
            };
            while fetch::get(self.admin, &path).await.is_err() {
                self.alive()?;
                if Instant::now() > until {
                    return Err(self.failure(&format!("was not ready within {READY:?}")));
                }
                sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    /// Checks that the worker still runs.
    ///
    /// # Errors
    /// The worker ended; includes the last lines of its log.
    pub fn alive(&mut self) -> Result<(), DemoError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.failure(&format!("ended: {status}"))),
            Err(error) => Err(self.failure(&format!("is lost: {error}"))),
        }
    }

    /// Returns its counts for a pipeline.
    ///
    /// # Errors
    /// Its metrics can't be read.
    pub async fn counted(&self, pipeline: Option<PipelineRole>) -> Result<WorkerCounts, DemoError> {
        let text = fetch::get(self.admin, "/metrics")
            .await
            .map_err(|error| self.failure(&error))?;
        let of = pipeline.map(|pipeline| format!("pipeline=\"{}\"", pipeline.name()));
        let sum = |metric: &str, label: &str| {
            let labels: Vec<&str> = of.iter().map(|of| &**of).chain([label]).collect();
            sum(&text, metric, &labels)
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
        let pid = self
            .child
            .id()
            .and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(pid) = pid {
            // It may have ended in the meantime, which `wait` reports.
            let _ = kill_process(pid, Signal::TERM);
        }
        match timeout(STOP, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(self.failure(&format!("ended: {status}"))),
            Ok(Err(error)) => Err(self.failure(&format!("is lost: {error}"))),
            Err(_) => {
                let error = self.failure(&format!("did not end within {STOP:?} of SIGTERM"));
                let _ = self.child.kill().await; // otherwise it is gone already
                Err(error)
            }
        }
    }

    fn failure(&self, what: &str) -> DemoError {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n");
        DemoError(format!("{} {what}\nThe end of its log:\n{tail}", self.name))
    }
}

/// Returns a port that is free now. The worker reports an error if another process takes it in
/// between.
fn free_port() -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Sums a metric in the Prometheus text format over the series that have all of `labels`. Returns
/// `None` if there are none.
fn sum(text: &str, metric: &str, labels: &[&str]) -> Option<u64> {
    text.lines()
        .filter_map(|line| {
            let rest = line.strip_prefix(metric)?;
            let (of, value) = match rest.strip_prefix('{') {
                Some(of) => of.rsplit_once('}')?,
                None => ("", rest.strip_prefix(' ')?),
            };
            if !labels.iter().all(|label| of.contains(label)) {
                return None;
            }
            value.split_whitespace().next()?.parse::<u64>().ok()
        })
        .reduce(|a, b| a + b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_summed_over_its_labels_and_no_other_is() {
        let text = "# TYPE sluicegate_deliveries counter\n\
            sluicegate_deliveries_total{source=\"fresh\"} 7\n\
            sluicegate_deliveries_total{source=\"}due\"} 5\n\
            sluicegate_deliveries_total_other 100\n\
            sluicegate_dead_letters_total 3\n";
        assert_eq!(sum(text, "sluicegate_deliveries_total", &[""]), Some(12));
        let fresh = &["source=\"fresh\""];
        assert_eq!(sum(text, "sluicegate_deliveries_total", fresh), Some(7));
        assert_eq!(sum(text, "sluicegate_dead_letters_total", &[]), Some(3));
        assert_eq!(sum(text, "sluicegate_dead_letters_total", fresh), None);
        assert_eq!(sum(text, "sluicegate_absent_total", &[]), None);
    }
}
