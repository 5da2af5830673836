//! `sluicegate run` as a process of its own, with its log in a file and its admin port.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::fetch;

/// Interval between two checks whether a worker is ready.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Number of lines in the end of a log.
const TAIL: usize = 15;

/// Returns a command of `program` without our variables, which would override its configuration.
/// Dropping the process kills it.
pub fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (variable, _) in std::env::vars_os() {
        if variable.as_encoded_bytes().starts_with(b"SLUICEGATE_") {
            command.env_remove(variable);
        }
    }
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// Returns a port of `host` that is free now. The worker reports an error if another process takes
/// it in between.
///
/// # Errors
/// The system's error, if no port is available.
pub fn free_port(host: IpAddr) -> io::Result<SocketAddr> {
    TcpListener::bind((host, 0))?.local_addr()
}

/// A worker. Dropping it kills the process.
pub struct WorkerProcess {
    child: Child,
    log: PathBuf,
    admin: SocketAddr,
}

impl WorkerProcess {
    /// Starts a worker with the configuration in `config`, which names `admin` as its admin port,
    /// and appends its output to `log`.
    ///
    /// # Errors
    /// The system's error.
    pub fn start(
        mut command: Command,
        config: &Path,
        log: &Path,
        admin: SocketAddr,
    ) -> io::Result<Self> {
        let out = OpenOptions::new().create(true).append(true).open(log)?;
        command.args(["run", "--config"]).arg(config);
        command.stdout(out.try_clone()?).stderr(out);
        Ok(Self {
            child: command.spawn()?,
            log: log.to_owned(),
            admin,
        })
    }

    /// Returns its process ID, or `None` if it has ended.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Sends a signal. Does nothing if the process has ended.
    pub fn signal(&self, signal: Signal) {
        let pid = (self.child.id()).and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal);
        }
    }

    /// Sends SIGKILL and waits for the end.
    ///
    /// # Errors
    /// The system's error, if it can't be waited for.
    pub async fn kill(&mut self) -> io::Result<()> {
        self.child.kill().await
    }

    /// Sends SIGTERM and returns the exit status; `None` if the process did not end within
    /// `patience` and was killed.
    ///
    /// # Errors
    /// The system's error, if it can't be waited for.
    pub async fn terminate(&mut self, patience: Duration) -> io::Result<Option<ExitStatus>> {
        self.signal(Signal::TERM);
        match timeout(patience, self.child.wait()).await {
            Ok(status) => status.map(Some),
            Err(_) => self.kill().await.map(|()| None),
        }
    }

    /// Returns the exit status if the process has ended.
    ///
    /// # Errors
    /// The system's error, if that can't be determined.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for a positive answer at `path`, such as `/readyz`. Returns false if none comes within
    /// `patience`, or if the process ends.
    ///
    /// # Errors
    /// The system's error, if the process can't be watched.
    pub async fn ready(&mut self, path: &str, patience: Duration) -> io::Result<bool> {
        let until = Instant::now() + patience;
        while fetch::get(self.admin, path).await.is_err() {
            if self.ended()?.is_some() || Instant::now() > until {
                return Ok(false);
            }
            sleep(CHECK_INTERVAL).await;
        }
        Ok(true)
    }

    /// Returns its metrics as text.
    ///
    /// # Errors
    /// A text, if they can't be read.
    pub async fn metrics(&self) -> Result<String, String> {
        fetch::get(self.admin, "/metrics").await
    }

    /// Returns the end of its log.
    pub fn tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }
}

/// Sums a metric in the Prometheus text format over the series that have all of `labels`. Returns
/// `None` if there are none.
pub fn sum(text: &str, metric: &str, labels: &[&str]) -> Option<u64> {
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
