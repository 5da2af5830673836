//! The demo's workers: processes of this very program, `sluicegate run`, with a configuration in a
//! temporary folder, their logs beside it.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sluicegate::config::{Config, QueueType};
use sluicegate::rules::limit::Limit;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};
use trial::fetch;

use super::pipelines::Pipeline;
use super::queues::MAX_DELAY;
use super::scenario::Scenario;
use super::{DemoError, Part};

/// From the start of a worker until `/readyz` says yes: it declares some forty queues in that time.
const READY: Duration = Duration::from_secs(60);
/// From SIGTERM to the end.
const STOP: Duration = Duration::from_secs(20);
/// Lines of a failed worker's log that are shown.
const TAIL: usize = 15;

/// A folder that only this user can read (configurations hold passwords); deleted when dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// Makes `name` in the system's temporary folder.
    ///
    /// # Errors
    /// The folder cannot be made, or exists.
    pub fn new(name: &str) -> Result<Self, DemoError> {
        let path = std::env::temp_dir().join(name);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| DemoError(format!("{}: {error}", path.display())))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{} was not removed: {error}", self.0.display());
        }
    }
}

/// What all workers share.
pub struct Settings<'a> {
    /// Where RabbitMQ and Redis are, and of which type the queues are.
    pub config: &'a Config,
    /// What the keys in Redis begin with.
    pub prefix: &'a str,
    /// Each pipeline's own.
    pub parts: &'a [Part],
}

impl Settings<'_> {
    /// A worker's configuration. JSON is YAML, too.
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

/// What is of one pipeline alone.
fn sections(part: &Part) -> Value {
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

/// An entry of `rate-limiter.limits`.
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

/// Adds the keys of `more` to those that are there.
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

/// What a worker's metrics say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Deliveries that it got from RabbitMQ, of all queues.
    pub deliveries: u64,
    /// Calls that failed.
    pub failed_calls: u64,
    /// How often a pipeline was started again.
    pub restarts: u64,
}

impl Counted {
    /// And what another worker says.
    pub fn add(&mut self, other: Self) {
        self.deliveries += other.deliveries;
        self.failed_calls += other.failed_calls;
        self.restarts += other.restarts;
    }
}

/// One worker process; dropped, it is killed.
pub struct Worker {
    name: String,
    child: Child,
    log: PathBuf,
    admin: SocketAddr,
}

impl Worker {
    /// Starts worker `number`.
    ///
    /// # Errors
    /// The system said why it cannot be started.
    pub fn start(
        folder: &Folder,
        number: usize,
        settings: &Settings<'_>,
    ) -> Result<Self, DemoError> {
        let name = format!("worker-{number}");
        let failed = |error: std::io::Error| DemoError(format!("{name} can't be started: {error}"));
        let admin = free_port().map_err(failed)?;
        let config = folder.0.join(format!("{name}.yaml"));
        let log = folder.0.join(format!("{name}.log"));
        write_private(&config, &settings.yaml(admin)).map_err(failed)?;
        let out = File::create(&log).map_err(failed)?;
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        // The environment overrides the file: what is set for this process is in `settings` already.
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
            // Ctrl-C in a terminal goes to the demo alone, which then ends its workers in order.
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

    /// Waits until it consumes, in each of `parts`.
    ///
    /// # Errors
    /// It ended, or did not become ready; with the last lines of its log.
    pub async fn ready(&mut self, parts: &[Part]) -> Result<(), DemoError> {
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

    /// Checks that it still runs.
    ///
    /// # Errors
    /// It ended; with the last lines of its log.
    pub fn alive(&mut self) -> Result<(), DemoError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.failure(&format!("ended: {status}"))),
            Err(error) => Err(self.failure(&format!("is lost: {error}"))),
        }
    }

    /// What it counted for a pipeline.
    ///
    /// # Errors
    /// Its metrics cannot be read.
    pub async fn counted(&self, pipeline: Option<Pipeline>) -> Result<Counted, DemoError> {
        let text = fetch::get(self.admin, "/metrics")
            .await
            .map_err(|error| self.failure(&error))?;
        let of = pipeline.map(|pipeline| format!("pipeline=\"{}\"", pipeline.name()));
        let sum = |metric: &str, label: &str| {
            let labels: Vec<&str> = of.iter().map(|of| &**of).chain([label]).collect();
            sum(&text, metric, &labels)
                .ok_or_else(|| self.failure(&format!("has no metric {metric}")))
        };
        Ok(Counted {
            deliveries: sum("sluicegate_deliveries_total", "")?,
            failed_calls: sum("sluicegate_dispatches_total", "outcome=\"retry\"")?,
            // Nobody starts the only one again.
            restarts: match of {
                Some(_) => sum("sluicegate_pipeline_restarts_total", "")?,
                None => 0,
            },
        })
    }

    /// SIGTERM, then SIGKILL when it does not end in time.
    ///
    /// # Errors
    /// It did not end by itself, or not with 0; with the last lines of its log.
    pub async fn stop(mut self) -> Result<(), DemoError> {
        let pid = self
            .child
            .id()
            .and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(pid) = pid {
            // It may have ended in between; `wait` tells.
            let _ = kill_process(pid, Signal::TERM);
        }
        match timeout(STOP, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(self.failure(&format!("ended: {status}"))),
            Ok(Err(error)) => Err(self.failure(&format!("is lost: {error}"))),
            Err(_) => {
                let error = self.failure(&format!("did not end within {STOP:?} of SIGTERM"));
                let _ = self.child.kill().await; // it is gone already otherwise
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

/// A port that is free now. The worker says so if somebody takes it in between.
fn free_port() -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())
}

/// The sum of a metric over those of its labels that hold all of `labels`, in the Prometheus text format; `None` when it is not there.
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
