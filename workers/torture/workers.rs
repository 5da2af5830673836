//! The workers: processes of `sluicegate run`, each with a configuration and a log of its own, and
//! with proxies on its connections.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kit::proxy::{Proxy, Transfers};
use tokio::time::{Instant, sleep};
use trial::worker::{self, WorkerProcess};

use crate::RunFailure;
use crate::clocks::{self, Clocks, replace};
use crate::run_plan::{MAX, PerWorkerSettings, RunPlan};

/// Maximum time from SIGTERM to the end, during any fault: `shutdown-timeout` plus the time for
/// closing connections.
pub const STOP: Duration = Duration::from_secs(60);
/// Interval between two checks of a worker's limit.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Data shared by all workers.
pub struct Common {
    pub plan: RunPlan,
    /// The program.
    pub program: PathBuf,
    /// Folder for configurations and logs.
    pub folder: PathBuf,
    pub queue: String,
    /// Gives workers a wrong clock, for faults that need it.
    pub clocks: Option<Clocks>,
    /// URLs of the servers. Workers get them with the address of a proxy.
    pub rabbit: Vec<url::Url>,
    pub redis: url::Url,
    /// Replaces `redis` if workers find the servers by themselves.
    pub found_by: Option<String>,
    pub downstream: SocketAddr,
}

impl Common {
    /// Writes a configuration for commands: like a worker's, but with direct connections to the
    /// servers.
    ///
    /// # Errors
    /// Returns an error if it can't be written.
    pub fn operators_config(&self) -> Result<PathBuf, RunFailure> {
        let amqp: Vec<&str> = self.rabbit.iter().map(url::Url::as_str).collect();
        let redis = format!("  url: {}\n", self.redis);
        let text = self.plan.yaml(&PerWorkerSettings {
            amqp: &amqp.join(","),
            redis: self.found_by.as_ref().unwrap_or(&redis),
            queue: &self.queue,
            downstream: &format!("http://{}", self.downstream),
            worker: (0, 0),
            admin: (Ipv4Addr::LOCALHOST, 0).into(),
            max: MAX,
        });
        let path = self.folder.join("operator.yaml");
        replace(&path, &text)?;
        Ok(path)
    }
}

/// The parameters of a worker.
struct WorkerSetup {
    number: usize,
    life: u32,
    admin: SocketAddr,
    max: u64,
    common: Arc<Common>,
    to_rabbit: Arc<Proxy>,
    to_redis: Arc<Proxy>,
    to_downstream: Arc<Proxy>,
}

/// A worker in its current life.
pub struct RunningWorker {
    setup: WorkerSetup,
    pub process: WorkerProcess,
}

impl WorkerSetup {
    /// Starts the process. Its configuration is written anew, since it contains the life that the
    /// downstream records.
    fn spawn(&self) -> Result<WorkerProcess, RunFailure> {
        self.write_config()?;
        let mut command = worker::command(&self.common.program);
        if let Some(clocks) = &self.common.clocks {
            command.envs(clocks.variables(&self.file("clock")));
        }
        let process =
            WorkerProcess::start(command, &self.file("yaml"), &self.file("log"), self.admin);
        process.map_err(|error| {
            let program = self.common.program.display();
            RunFailure::new(format!("{program} can't be started: {error}"))
        })
    }

    /// Returns the path of its file with this extension.
    fn file(&self, extension: &str) -> PathBuf {
        let name = format!("worker-{}.{extension}", self.number);
        self.common.folder.join(name)
    }

    fn write_config(&self) -> Result<(), RunFailure> {
        let common = &self.common;
        let rabbit = behind(&common.rabbit, &self.to_rabbit);
        let redis = behind(std::slice::from_ref(&common.redis), &self.to_redis);
        let redis = format!("  url: {redis}\n");
        let text = common.plan.yaml(&PerWorkerSettings {
            amqp: &rabbit,
            redis: common.found_by.as_ref().unwrap_or(&redis),
            queue: &common.queue,
            downstream: &format!("http://{}", self.to_downstream.door.address),
            worker: (self.number, self.life),
            admin: self.admin,
            max: self.max,
        });
        Ok(replace(&self.file("yaml"), &text)?)
    }
}

/// Returns `urls` with the ports of the proxy, separated by commas.
fn behind(urls: &[url::Url], proxy: &Proxy) -> String {
    let moved = urls.iter().zip(proxy.addresses()).map(|(url, address)| {
        let mut url = url.clone();
        // Fails only for a URL without a host; that of a private server has one.
        let _ = url.set_port(Some(address.port()));
        String::from(url)
    });
    moved.collect::<Vec<_>>().join(",")
}

impl RunningWorker {
    /// Starts worker `number` with a limit of `max`.
    ///
    /// # Errors
    /// Returns the system's error if it can't be started.
    pub async fn start(common: Arc<Common>, number: usize, max: u64) -> Result<Self, RunFailure> {
        let nodes = common.rabbit.iter().map(address);
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        let redis = address(&common.redis)?;
        let setup = WorkerSetup {
            number,
            life: 1,
            admin: worker::free_port(host(number)?.into())?,
            max,
            to_rabbit: Arc::new(Proxy::start_all(&nodes, Transfers::OPEN, 0).await),
            to_redis: Arc::new(Proxy::start(redis, Transfers::OPEN, 0).await),
            to_downstream: Arc::new(Proxy::start(common.downstream, Transfers::OPEN, 0).await),
            common,
        };
        clocks::step(&setup.file("clock"), 0)?;
        let process = setup.spawn()?;
        Ok(Self { setup, process })
    }

    /// Returns the proxy to RabbitMQ.
    pub fn to_rabbit(&self) -> Arc<Proxy> {
        Arc::clone(&self.setup.to_rabbit)
    }

    /// Returns the proxy to Redis.
    pub fn to_redis(&self) -> Arc<Proxy> {
        Arc::clone(&self.setup.to_redis)
    }

    /// Returns the proxy to the downstream.
    pub fn to_downstream(&self) -> Arc<Proxy> {
        Arc::clone(&self.setup.to_downstream)
    }

    /// Starts a new life after the old one ended.
    ///
    /// # Errors
    /// Returns the system's error if it can't be started.
    pub fn revive(&mut self) -> Result<(), RunFailure> {
        self.setup.life += 1;
        self.process = self.setup.spawn()?;
        Ok(())
    }

    /// Sets the wall clock to this number of seconds from the true time. The monotonic clock is not
    /// affected.
    ///
    /// # Errors
    /// Returns an error if the file can't be written.
    pub fn step(&self, seconds: i64) -> Result<(), RunFailure> {
        Ok(clocks::step(&self.setup.file("clock"), 1000 * seconds)?)
    }

    /// Sets the limit of its next life.
    pub fn next_limit(&mut self, max: u64) {
        self.setup.max = max;
    }

    /// Changes its limit through its file. Returns true if it reported within `patience` that it
    /// has applied it.
    ///
    /// # Errors
    /// Returns an error if the file can't be written.
    pub async fn limit(&mut self, max: u64, patience: Duration) -> Result<bool, RunFailure> {
        let until = Instant::now() + patience;
        let mut before = self.reloads().await;
        while before.is_none() && Instant::now() < until {
            sleep(CHECK_INTERVAL).await;
            before = self.reloads().await;
        }
        self.setup.max = max;
        self.setup.write_config()?;
        let until = Instant::now() + patience;
        loop {
            let has_applied = before
                .zip(self.reloads().await)
                .is_some_and(|(before, now)| now > before);
            if has_applied || Instant::now() > until {
                return Ok(has_applied);
            }
            sleep(CHECK_INTERVAL).await;
        }
    }

    /// Returns the number of changed files that it has applied; `None` if it does not answer.
    async fn reloads(&self) -> Option<u64> {
        let text = self.process.metrics().await.ok()?;
        let applied = &["result=\"applied\""];
        worker::sum(&text, "sluicegate_config_reloads_total", applied)
    }
}

fn address(url: &url::Url) -> Result<SocketAddr, RunFailure> {
    let port = url.port();
    let port =
        port.ok_or_else(|| RunFailure::new("a private server's URL has no port".to_owned()))?;
    Ok((Ipv4Addr::LOCALHOST, port).into())
}

/// Returns an address that no outgoing connection uses, so that a worker's port stays free while it
/// is down.
fn host(number: usize) -> io::Result<Ipv4Addr> {
    let last = u8::try_from(number + 2).map_err(io::Error::other)?;
    Ok(Ipv4Addr::new(127, 0, 0, last))
}
