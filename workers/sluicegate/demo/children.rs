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
use sluicegate::config::{Config, QueueType};
use sluicegate::rules::limit::Limit;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};
use trial::fetch;

use super::DemoError;
use super::plan::Plan;
use super::queues::MAX_DELAY;
use super::scenario::Scenario;

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
    /// The limits.
    pub plan: &'a Plan,
    /// The work queue.
    pub queue: &'a str,
    /// What the keys in Redis begin with.
    pub prefix: &'a str,
    /// The downstream.
    pub url: &'a str,
}

impl Settings<'_> {
    /// A worker's configuration. JSON strings are YAML strings too.
    fn yaml(&self, admin: SocketAddr) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let limits: String = self.plan.limits.iter().map(limit).collect();
        let queue_type = match self.config.amqp.queue_type {
            QueueType::Quorum => "quorum",
            QueueType::Classic => "classic",
        };
        format!(
            "amqp:\n  url: {amqp}\n  queue: {queue}\n  queue-type: {queue_type}\n  prefetch: {prefetch}\n\
             redis:\n  url: {redis}\n  prefix: {prefix}\n\
             rate-limiter:\n  limits:\n{limits}\
             dispatch:\n  concurrency: {concurrency}\n  http:\n    url: {url}\n    timeout: 10s\n{results}\
             delay:\n  max-delay: {max_delay}s\n\
             admin:\n  listen: {admin}\n",
            amqp = quoted(&self.config.amqp.url.expose()),
            queue = quoted(self.queue),
            prefetch = self.config.amqp.prefetch,
            redis = quoted(self.config.redis.url.urls[0].expose()),
            prefix = quoted(self.prefix),
            concurrency = self.config.dispatch.concurrency,
            url = quoted(self.url),
            results = match self.plan.scenario {
                Scenario::Results => "  results: {to: reply-to}\n",
                _ => "",
            },
            max_delay = MAX_DELAY.as_secs(),
            admin = quoted(&admin.to_string()),
        )
    }
}

/// A line of `rate-limiter.limits`.
fn limit(limit: &Limit) -> String {
    format!(
        "    - {{name: {}, use-algo: {}, unit: {}, max-requests: {}, window-size: {}ms, guard: {}ms}}\n",
        limit.name(),
        limit.algorithm().name(),
        limit.unit().name(),
        limit.max(),
        limit.window_ms(),
        limit.guard_ms(),
    )
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

    /// Waits until it consumes.
    ///
    /// # Errors
    /// It ended, or did not become ready; with the last lines of its log.
    pub async fn ready(&mut self) -> Result<(), DemoError> {
        let until = Instant::now() + READY;
        loop {
            self.alive()?;
            if fetch::get(self.admin, "/readyz").await.is_ok() {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(self.failure(&format!("was not ready within {READY:?}")));
            }
            sleep(Duration::from_millis(50)).await;
        }
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

    /// Deliveries that it got from RabbitMQ, of all its queues.
    ///
    /// # Errors
    /// Its metrics cannot be read.
    pub async fn deliveries(&self) -> Result<u64, DemoError> {
        let text = fetch::get(self.admin, "/metrics")
            .await
            .map_err(|error| self.failure(&error))?;
        sum(&text, "sluicegate_deliveries_total")
            .ok_or_else(|| self.failure("has no metric sluicegate_deliveries_total"))
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

/// The sum of a metric over its labels, in the Prometheus text format; `None` when it is not there.
fn sum(text: &str, metric: &str) -> Option<u64> {
    text.lines()
        .filter_map(|line| {
            let rest = line.strip_prefix(metric)?;
            let value = match rest.strip_prefix('{') {
                Some(labels) => labels.rsplit_once('}')?.1,
                None => rest.strip_prefix(' ')?,
            };
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
        assert_eq!(sum(text, "sluicegate_deliveries_total"), Some(12));
        assert_eq!(sum(text, "sluicegate_dead_letters_total"), Some(3));
        assert_eq!(sum(text, "sluicegate_absent_total"), None);
    }
}
