//! `sluicegate run` as a process of its own, with its log, its metrics and its memory usage.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::{NamedTempFile, TempPath};

use crate::usage;

/// The series of done jobs in a worker's metrics.
pub const DONE: &str = "sluicegate_dispatches_total{outcome=\"done\"}";
/// A deadline that ends a hanging test. No step takes this long.
const PATIENCE: Duration = Duration::from_secs(150);

/// The path of `sluicegate`. Cargo provides it only to tests and benches of its package, as
/// `env!("CARGO_BIN_EXE_sluicegate")`.
#[derive(Debug, Clone, Copy)]
pub struct Program(pub &'static str);

impl Program {
    /// Starts a worker with `yaml` as its configuration.
    pub fn start(self, yaml: &str) -> Process {
        let mut config = NamedTempFile::with_suffix(".yaml").expect("a config file");
        config.write_all(yaml.as_bytes()).expect("written");
        let config = config.into_temp_path();
        let mut process = self.start_with(&config);
        process.config = Some(config);
        process
    }

    /// Starts a worker, and waits until it takes jobs.
    pub async fn start_consuming(self, yaml: &str) -> Process {
        let worker = self.start(yaml);
        worker.logs(&["RabbitMQ: consuming"]).await;
        worker
    }

    /// Starts a worker with the configuration in `file`.
    pub fn start_with(self, file: &Path) -> Process {
        let mut command = Command::new(self.0);
        command.args(["run", "--config"]).arg(file);
        command.stdin(Stdio::null());
        Process::start(command)
    }
}

/// A worker or another program of a test or bench. Dropping it kills the process.
pub struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    /// Its configuration, if it is used only here.
    config: Option<TempPath>,
}

impl Process {
    /// Starts any program. Its output is its log.
    pub fn start(mut command: Command) -> Self {
        let mut child = command
            // A process's resource usage must not depend on the number of processors.
            .env("TOKIO_WORKER_THREADS", "2")
            .env("MALLOC_ARENA_MAX", "2")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let readers: [Box<dyn BufRead + Send>; 2] = [
            Box::new(BufReader::new(out.expect("piped"))),
            Box::new(BufReader::new(err.expect("piped"))),
        ];
        for reader in readers {
            let lines = Arc::clone(&lines);
            std::thread::spawn(move || {
                for line in reader.lines().map_while(Result::ok) {
                    lines.lock().expect("no panic").push(line);
                }
            });
        }
        Self {
            child,
            lines,
            config: None,
        }
    }

    /// Returns its log so far.
    pub fn log(&self) -> Vec<String> {
        self.lines.lock().expect("no panic").clone()
    }

    /// Returns the number of lines in its log that contain all of `words`.
    pub fn count(&self, words: &[&str]) -> usize {
        let lines = self.lines.lock().expect("no panic");
        let has_all = |line: &&String| words.iter().all(|word| line.contains(word));
        lines.iter().filter(has_all).count()
    }

    /// Waits until its log has a line with all of `words`.
    pub async fn logs(&self, words: &[&str]) {
        let started = Instant::now();
        while self.count(words) == 0 {
            let log = || self.log().join("\n");
            assert!(started.elapsed() < PATIENCE, "no {words:?} in:\n{}", log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Returns the address of its admin port, once it has logged it.
    pub fn listen(&self) -> Option<String> {
        self.log().iter().find_map(|line| listen_of(line))
    }

    /// Returns the answer of its admin port at `path`, such as `/metrics`, or `None` if it can't be
    /// reached.
    pub fn get(&self, path: &str) -> Option<String> {
        get(self.listen()?, path)
    }

    /// Returns the value of `series` in its metrics, written as there: `NAME{LABELS}`.
    pub fn metric(&self, series: &str) -> Option<f64> {
        value(&self.get("/metrics")?, series)
    }

    /// Returns its process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).expect("an id");
        kill_process(Pid::from_raw(id).expect("an id"), signal).expect("it runs");
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }

    /// Stops it gracefully. Its exit status must be 0.
    pub fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.ended();
        assert!(status.success(), "{status}:\n{}", self.log().join("\n"));
    }

    /// Returns its current memory in kB.
    pub fn resident_kb(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// Returns its peak memory in kB.
    pub fn peak_kb(&self) -> u64 {
        self.status("VmHWM:")
    }

    /// Returns the processor time since its start, in user space and in the kernel, in steps of 10
    /// ms. It may have ended.
    pub fn cpu(&self) -> Duration {
        usage::cpu(self.child.id())
    }

    fn status(&self, field: &str) -> u64 {
        usage::status(self.child.id(), field)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the address of the admin port in a worker's log.
pub fn listen_of(log: &str) -> Option<String> {
    let (_, address) = log.split_once("admin.listen=")?;
    address.split_whitespace().next().map(str::to_owned)
}

/// Returns the sum of `series` over the workers that show it.
pub fn sum(workers: &[Process], series: &str) -> f64 {
    let of_each = workers.iter().filter_map(|worker| worker.metric(series));
    of_each.sum()
}

/// Returns the value of `series` in metrics, written as there: `NAME{LABELS}`.
pub fn value(metrics: &str, series: &str) -> Option<f64> {
    let of = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
    metrics.lines().find_map(of)
}

/// Returns the body of a server's answer at `path`, or `None` if it can't be reached.
pub(crate) fn get(address: impl ToSocketAddrs, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    // An HTTP/1.0 answer is never chunked.
    let request = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer.split_once("\r\n\r\n")?.1.to_owned())
}
