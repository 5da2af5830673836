//! The workers: processes `sluicegate run`, each with a configuration of its own and a log, and proxies on its ways to
//! RabbitMQ and Redis.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use kit::proxy::{Proxy, Ways};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};
use trial::fetch;

use crate::Failure;
use crate::clocks::{self, Clocks, replace};
use crate::plan::{MAX, Plan, Settings};

/// From SIGTERM to the end, whatever is broken meanwhile: `shutdown-timeout`, and what closing may take.
const STOP: Duration = Duration::from_secs(60);
/// Between two looks whether a worker is as it should be.
const LOOK: Duration = Duration::from_millis(100);

/// What all workers share.
pub struct Common {
    pub plan: Plan,
    /// The program.
    pub program: PathBuf,
    /// Configurations and logs.
    pub folder: PathBuf,
    pub queue: String,
    /// What lets workers see another time, where a fault needs it.
    pub clocks: Option<Clocks>,
    /// Servers, as URLs whose addresses are replaced by a proxy's.
    pub rabbit: Vec<url::Url>,
    pub redis: url::Url,
    /// Instead of `redis`, where workers find the servers by themselves.
    pub found_by: Option<String>,
    pub downstream: SocketAddr,
}

impl Common {
    /// A configuration for commands: as a worker's, and straight to the servers.
    ///
    /// # Errors
    /// It can't be written.
    pub fn operators_config(&self) -> Result<PathBuf, Failure> {
        let amqp: Vec<&str> = self.rabbit.iter().map(url::Url::as_str).collect();
        let redis = format!("  url: {}\n", self.redis);
        let text = self.plan.yaml(&Settings {
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

/// What a worker is started from.
struct Setup {
    number: usize,
    life: u32,
    admin: SocketAddr,
    max: u64,
    common: Arc<Common>,
    to_rabbit: Arc<Proxy>,
    to_redis: Arc<Proxy>,
    to_downstream: Arc<Proxy>,
}

/// One worker, in its present life.
pub struct Worker {
    setup: Setup,
    child: Child,
}

impl Setup {
    /// Starts the process. Its configuration is written anew, since the downstream knows a life by what is in it.
    fn spawn(&self) -> Result<Child, Failure> {
        let folder = &self.common.folder;
        self.write_config()?;
        let log = folder.join(format!("worker-{}.log", self.number));
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        let mut command = Command::new(&self.common.program);
        without_our_variables(&mut command);
        if let Some(clocks) = &self.common.clocks {
            command.envs(clocks.variables(&self.clock()));
        }
        let child = command
            .arg("run")
            .arg("--config")
            .arg(self.config())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn();
        child.map_err(|error| {
            let program = self.common.program.display();
            Failure::new(format!("{program} can't be started: {error}"))
        })
    }

    fn config(&self) -> PathBuf {
        let name = format!("worker-{}.yaml", self.number);
        self.common.folder.join(name)
    }

    fn clock(&self) -> PathBuf {
        let name = format!("worker-{}.clock", self.number);
        self.common.folder.join(name)
    }

    fn write_config(&self) -> Result<(), Failure> {
        let common = &self.common;
        let rabbit = behind(&common.rabbit, &self.to_rabbit);
        let redis = behind(std::slice::from_ref(&common.redis), &self.to_redis);
        let redis = format!("  url: {redis}\n");
        let text = common.plan.yaml(&Settings {
            amqp: &rabbit,
            redis: common.found_by.as_ref().unwrap_or(&redis),
            queue: &common.queue,
            downstream: &format!("http://{}", self.to_downstream.door.address),
            worker: (self.number, self.life),
            admin: self.admin,
            max: self.max,
        });
        Ok(replace(&self.config(), &text)?)
    }
}

/// The environment overrides the file.
pub fn without_our_variables(command: &mut Command) {
    for (variable, _) in std::env::vars_os() {
        if variable.as_encoded_bytes().starts_with(b"SLUICEGATE_") {
            command.env_remove(variable);
        }
    }
}

/// `urls` with the proxy's ports and commas between them.
fn behind(urls: &[url::Url], proxy: &Proxy) -> String {
    let moved = urls.iter().zip(proxy.addresses()).map(|(url, address)| {
        let mut url = url.clone();
        // It fails only where there is no host, and a private server's URL has one.
        let _ = url.set_port(Some(address.port()));
        String::from(url)
    });
    moved.collect::<Vec<_>>().join(",")
}

impl Worker {
    /// Starts worker `number` with a limit of `max`.
    ///
    /// # Errors
    /// The system said why it can't be started.
    pub async fn start(common: Arc<Common>, number: usize, max: u64) -> Result<Self, Failure> {
        let nodes = common.rabbit.iter().map(address);
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        let redis = address(&common.redis)?;
        let setup = Setup {
            number,
            life: 1,
            admin: admin(number)?,
            max,
            to_rabbit: Arc::new(Proxy::start_all(&nodes, Ways::OPEN, 0).await),
            to_redis: Arc::new(Proxy::start(redis, Ways::OPEN, 0).await),
            to_downstream: Arc::new(Proxy::start(common.downstream, Ways::OPEN, 0).await),
            common,
        };
        clocks::step(&setup.clock(), 0)?;
        let child = setup.spawn()?;
        Ok(Self { setup, child })
    }

    /// What is on its way to RabbitMQ.
    pub fn to_rabbit(&self) -> Arc<Proxy> {
        Arc::clone(&self.setup.to_rabbit)
    }

    /// What is on its way to Redis.
    pub fn to_redis(&self) -> Arc<Proxy> {
        Arc::clone(&self.setup.to_redis)
    }

    /// The way to the downstream.
    pub fn to_downstream(&self) -> Arc<Proxy> {
        Arc::clone(&self.setup.to_downstream)
    }

    /// SIGKILL.
    ///
    /// # Errors
    /// The system said why not.
    pub async fn kill(&mut self) -> Result<(), Failure> {
        Ok(self.child.kill().await?)
    }

    /// A new life, after the old one ended.
    ///
    /// # Errors
    /// The system said why it can't be started.
    pub fn revive(&mut self) -> Result<(), Failure> {
        self.setup.life += 1;
        self.child = self.setup.spawn()?;
        Ok(())
    }

    /// Sends a signal; a process that is gone does not get it.
    pub fn signal(&self, signal: Signal) {
        let pid = (self.child.id()).and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal);
        }
    }

    /// SIGTERM, and how it ended; `None`: it did not within a minute, and was killed.
    ///
    /// # Errors
    /// The system said why it can't be waited for.
    pub async fn terminate(&mut self) -> Result<Option<ExitStatus>, Failure> {
        self.signal(Signal::TERM);
        match timeout(STOP, self.child.wait()).await {
            Ok(status) => Ok(Some(status?)),
            Err(_) => {
                self.kill().await?;
                Ok(None)
            }
        }
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// The system said why that can't be known.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, Failure> {
        Ok(self.child.try_wait()?)
    }

    /// Waits until `/readyz` says yes; whether it did, within `patience`.
    pub async fn ready(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        while fetch::get(self.setup.admin, "/readyz").await.is_err() {
            if Instant::now() > until {
                return false;
            }
            sleep(LOOK).await;
        }
        true
    }

    /// Steps its wall clock to so many seconds from the true one; its monotonic clock goes on.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn step(&self, seconds: i64) -> Result<(), Failure> {
        Ok(clocks::step(&self.setup.clock(), 1000 * seconds)?)
    }

    /// The limit of its next life.
    pub fn next_limit(&mut self, max: u64) {
        self.setup.max = max;
    }

    /// Gives it another limit by its file; whether it said within `patience` that it has it.
    ///
    /// # Errors
    /// The file can't be written.
    pub async fn limit(&mut self, max: u64, patience: Duration) -> Result<bool, Failure> {
        let before = self.reloads().await;
        self.setup.max = max;
        self.setup.write_config()?;
        let until = Instant::now() + patience;
        while self.reloads().await <= before {
            if Instant::now() > until {
                return Ok(false);
            }
            sleep(LOOK).await;
        }
        Ok(true)
    }

    /// Changed files that it has applied.
    async fn reloads(&self) -> Option<u64> {
        let text = fetch::get(self.setup.admin, "/metrics").await.ok()?;
        let series = "sluicegate_config_reloads_total{result=\"applied\"} ";
        (text.lines()).find_map(|line| line.strip_prefix(series)?.parse().ok())
    }
}

fn address(url: &url::Url) -> Result<SocketAddr, Failure> {
    let port = url.port();
    let port = port.ok_or_else(|| Failure::new("a private server's URL has no port".to_owned()))?;
    Ok((Ipv4Addr::LOCALHOST, port).into())
}

/// A free port of an address that no outgoing connection uses: nobody else takes it while the worker is away.
fn admin(number: usize) -> io::Result<SocketAddr> {
    let last = u8::try_from(number + 2).map_err(io::Error::other)?;
    TcpListener::bind((Ipv4Addr::new(127, 0, 0, last), 0))?.local_addr()
}

/// The last lines of a worker's log.
pub fn tail(folder: &Path, number: usize) -> String {
    let log = fs::read_to_string(folder.join(format!("worker-{number}.log"))).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
