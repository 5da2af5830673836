//! Real servers for the tests: on free ports of 127.0.0.1, with data in a temporary folder. A
//! watchdog in the scripts removes them when their owner ends for any reason.
//!
//! `shared_redis` and `shared_rabbit` serve all tests of a run; each test takes names of its own by
//! [`unique`]. cargo-nextest runs each test in a process of its own: `scripts/lib/test-run` names a
//! folder in which the first test starts the servers and the others find them. Without that folder
//! the servers belong to this process.
//!
//! A test that kills, freezes or reconfigures a server starts its own. The calls block: in an async
//! test with other running tasks, use `#[tokio::test(flavor = "multi_thread")]`.

use std::fs::{self, File};
use std::net::TcpListener;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::command_stats::CommandStats;

/// The test run that this process is part of, as `scripts/lib/test-run` describes it to
/// cargo-nextest.
struct Run {
    folder: PathBuf,
    /// The process whose end is the end of the run.
    owner: String,
}

/// Returns the run, or `None` if this process is a run of its own.
fn run() -> Option<&'static Run> {
    static RUN: OnceLock<Option<Run>> = OnceLock::new();
    let read = || {
        Some(Run {
            folder: std::env::var_os("TEST_RUN_FOLDER")?.into(),
            owner: std::env::var("TEST_RUN_OWNER").ok()?,
        })
    };
    RUN.get_or_init(read).as_ref()
}

/// Calls `action` once in a run, in the first process that asks. The others wait until it has
/// returned.
pub(crate) fn once_per_run(name: &str, action: impl FnOnce()) {
    let Some(run) = run() else { return action() };
    let done = run.folder.join(format!("{name}.done"));
    let lock = File::create(run.folder.join(format!("{name}.lock"))).expect("the run's folder");
    lock.lock().expect("a lock");
    if !done.exists() {
        action();
        fs::write(done, "").expect("the run's folder");
    }
}

/// Returns the Redis that all tests share.
pub fn shared_redis() -> &'static Redis {
    static SHARED: OnceLock<Redis> = OnceLock::new();
    SHARED.get_or_init(|| Redis::shared("redis", &[]))
}

/// Policy for delay queues of tests that have ended: RabbitMQ removes a queue that had no consumer
/// for 120 s.
const EXPIRE_UNUSED: &str = r#"{"expires":120000}"#;

/// Setting of the shared RabbitMQ: each quorum queue refreshes its metrics every 120 s, not every
/// 5 s. With the thousands of delay queues that a run leaves behind, that would take half a core.
const RARE_METRICS: &str = "advanced {rabbit, [{quorum_tick_interval, 120000}]}";

/// Returns the RabbitMQ that all tests share. The first call of a run takes about 7 s.
pub fn shared_rabbit() -> &'static Rabbit {
    static SHARED: OnceLock<Rabbit> = OnceLock::new();
    SHARED.get_or_init(|| {
        let rabbit = Rabbit::shared("rabbitmq", &[RARE_METRICS]);
        once_per_run("rabbitmq-policy", || {
            // Each quorum queue takes three file handles. With the delay queues of all tests
            // RabbitMQ would run out of them and answer no new connection. A test's own policy is
            // stronger.
            let policy = ["set_policy", "left-over", r"\.delay\.", EXPIRE_UNUSED];
            let options = ["--apply-to", "queues", "--priority", "-1"];
            rabbit.ctl(&[&policy[..], &options].concat());
        });
        rabbit
    })
}

/// Returns a unique name for queues, key prefixes and folders.
pub fn unique(name: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("the clock is after 1970");
    format!(
        "{name}-{}-{:x}-{count}",
        std::process::id(),
        now.as_micros()
    )
}

/// Returns a free port in a range that neither the kernel nor our scripts use, and that no other
/// test of this run was given.
pub fn free_port() -> u16 {
    let is_ours = |port: &u16| {
        let claim = |run: &Run| File::create_new(run.folder.join(format!("port-{port}"))).is_ok();
        run().is_none_or(claim)
    };
    (0..1000)
        .map(|_| rand::random_range(10_000..20_000))
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok() && is_ours(port))
        .expect("a free port")
}

/// A private Redis. Dropping it kills it and deletes its data.
pub struct Redis(Server);

impl Redis {
    /// Starts a Redis.
    pub fn start() -> Self {
        Self::start_with(&[])
    }
    /// Starts a Redis with settings of redis.conf, such as `maxmemory 10mb`.
    pub fn start_with(settings: &[&str]) -> Self {
        Self(Server::start("private-redis", settings))
    }
    /// Returns the Redis called `name` of this run, which its first caller starts with these
    /// settings.
    pub(crate) fn shared(name: &str, settings: &[&str]) -> Self {
        let mut server = Server::of_run("private-redis", name, settings);
        once_per_run(name, || server.url = server.launch());
        server.find();
        Self(server)
    }
    /// Restarts it with the same port and without data, as after a lost disk, after a kill if it
    /// still runs.
    pub fn restart_empty(&self) {
        self.kill();
        self.script("wipe", &[]);
        self.restart();
    }
    /// Sets its statistics to zero.
    pub fn reset_stats(&self) {
        self.ctl(&["config", "resetstat"]);
    }
    /// Returns the commands since [`Self::reset_stats`].
    pub fn command_stats(&self) -> CommandStats {
        CommandStats::read(&self.ctl(&["info", "commandstats"]))
    }
    /// Runs `redis-cli` and returns its output.
    pub fn ctl(&self, args: &[&str]) -> String {
        self.script("ctl", args)
    }
    /// Like [`Self::ctl`], or returns `None` if Redis can't be reached.
    pub fn try_ctl(&self, args: &[&str]) -> Option<String> {
        self.try_script("ctl", args).ok()
    }
}

/// A private RabbitMQ. Dropping it kills it and deletes its data.
pub struct Rabbit(Server);

impl Rabbit {
    /// Starts a RabbitMQ, which takes about 5 s.
    pub fn start() -> Self {
        Self::start_with(&[])
    }
    /// Starts a RabbitMQ with lines of rabbitmq.conf, such as `heartbeat = 5`.
    pub fn start_with(settings: &[&str]) -> Self {
        Self(Server::start("private-rabbitmq", settings))
    }
    /// Returns the RabbitMQ called `name` of this run, which its first caller starts with these
    /// settings.
    pub fn shared(name: &str, settings: &[&str]) -> Self {
        let mut server = Server::of_run("private-rabbitmq", name, settings);
        once_per_run(name, || server.url = server.launch());
        server.find();
        Self(server)
    }
    /// Starts a node of the cluster of `first`, which must outlive it. It takes about 7 s.
    pub fn join(first: &Self, settings: &[&str]) -> Self {
        Self(Server::start_beside(
            Some(first.folder()),
            "private-rabbitmq",
            settings,
        ))
    }
    /// Runs `rabbitmqctl -q` and returns its output. It is an Erlang node itself, which may give up
    /// on a busy machine before it has joined, so it is tried three times.
    pub fn ctl(&self, args: &[&str]) -> String {
        let mut tries = (0..2).map(|_| self.try_script("ctl", args));
        match tries.find_map(Result::ok) {
            Some(output) => output,
            None => self.script("ctl", args),
        }
    }
}

impl Deref for Redis {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl Deref for Rabbit {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

/// The common part of both: a script and the folder it keeps the server in.
pub struct Server {
    script: PathBuf,
    folder: PathBuf,
    /// The process whose end ends the server.
    owner: String,
    settings: Vec<String>,
    /// The folder of another server whose cluster it joins.
    first: Option<PathBuf>,
    url: String,
}

impl Server {
    fn start(script: &str, settings: &[&str]) -> Self {
        Self::start_beside(None, script, settings)
    }

    fn start_beside(first: Option<&Path>, script: &str, settings: &[&str]) -> Self {
        let folder = std::env::temp_dir().join(unique(script));
        let mut server = Self::new(script, folder, settings);
        server.first = first.map(Path::to_owned);
        server.url = server.launch();
        server
    }

    /// Describes a server of this run, or of this process if it is a run of its own; starts
    /// nothing.
    fn of_run(script: &str, name: &str, settings: &[&str]) -> Self {
        let Some(run) = run() else {
            return Self::new(script, std::env::temp_dir().join(unique(name)), settings);
        };
        let mut server = Self::new(script, run.folder.join(name), settings);
        server.owner = run.owner.clone();
        server
    }

    fn new(script: &str, folder: PathBuf, settings: &[&str]) -> Self {
        Self {
            script: crate::root().join("scripts/lib").join(script),
            folder,
            owner: std::process::id().to_string(),
            settings: settings.iter().map(ToString::to_string).collect(),
            first: None,
            url: String::new(),
        }
    }

    /// Asks for the address of a server that another process of this run has started.
    fn find(&mut self) {
        if self.url.is_empty() {
            self.url = self.script("url", &[]);
        }
    }

    fn launch(&self) -> String {
        let mut args = vec!["--owner", &self.owner];
        for setting in &self.settings {
            args.extend(["--set", setting]);
        }
        let first = (self.first.as_ref()).map(|folder| folder.to_string_lossy());
        if let Some(folder) = &first {
            args.extend(["--join", folder]);
        }
        self.script("start", &args)
    }

    /// `redis://127.0.0.1:PORT` or `amqp://guest:guest@127.0.0.1:PORT/%2f`
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns its data folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Sends SIGKILL. What Redis confirmed is on disk and present after [`Self::restart`].
    pub fn kill(&self) {
        self.script("kill", &[]);
    }

    /// Stops it gracefully.
    pub fn stop(&self) {
        self.script("stop", &[]);
    }

    /// Freezes it: connections stay open without answers.
    pub fn pause(&self) {
        self.script("pause", &[]);
    }

    /// Ends [`Self::pause`].
    pub fn resume(&self) {
        self.script("resume", &[]);
    }

    /// Restarts it with the same port and data, after a kill if it still runs.
    pub fn restart(&self) {
        self.script("kill", &[]);
        let url = self.launch();
        assert_eq!(url, self.url, "a restarted server has another address");
    }

    /// Runs `script command folder args...` and returns its output.
    fn script(&self, command: &str, args: &[&str]) -> String {
        self.try_script(command, args).unwrap_or_else(|errors| {
            panic!(
                "{} {command} failed.\n{}\nThe tests need real servers: run scripts/test, which installs them.",
                self.script.display(),
                errors.trim_end(),
            )
        })
    }

    /// Like [`Self::script`], with the script's output as the error.
    fn try_script(&self, command: &str, args: &[&str]) -> Result<String, String> {
        let output = Command::new(&self.script)
            .arg(command)
            .arg(&self.folder)
            .args(args)
            .output()
            .unwrap_or_else(|error| panic!("{} can't be run: {error}", self.script.display()));
        let text = |bytes| String::from_utf8_lossy(bytes).trim_end().to_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stderr)),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Not an assertion, since a panic here would hide the test's own. The watchdog removes it
        // otherwise.
        let removed = Command::new(&self.script)
            .arg("remove")
            .arg(&self.folder)
            .status();
        if !removed.is_ok_and(|status| status.success()) {
            eprintln!("{} was not removed", self.folder.display());
        }
    }
}
