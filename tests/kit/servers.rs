//! Real servers for the tests, private to this process: on free ports of 127.0.0.1, with data in a
//! temporary folder, gone when the process ends, however it ends (a watchdog in the scripts sees to it).
//!
//! `shared_redis` and `shared_rabbit` serve all tests; each test takes names of its own by [`unique`].
//! A test that kills, freezes or reconfigures a server starts its own one. The calls block: in an async
//! test beside running tasks use `#[tokio::test(flavor = "multi_thread")]`.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The Redis that all tests share.
pub fn shared_redis() -> &'static Redis {
    static SHARED: OnceLock<Redis> = OnceLock::new();
    SHARED.get_or_init(Redis::start)
}

/// Delay queues that nobody has consumed for so long are those of tests that have ended, in milliseconds.
const LEFT_OVER: &str = r#"{"expires":180000}"#;

/// The RabbitMQ that all tests share. The first call takes about 7 s.
pub fn shared_rabbit() -> &'static Rabbit {
    static SHARED: OnceLock<Rabbit> = OnceLock::new();
    SHARED.get_or_init(|| {
        let rabbit = Rabbit::start();
        // Each quorum queue takes three file handles. With the delay queues of all tests RabbitMQ would run out of them, and
        // answer no new connection. A test's own policy is stronger.
        let policy = ["set_policy", "left-over", r"\.delay\.", LEFT_OVER];
        rabbit.ctl(&[&policy[..], &["--apply-to", "queues", "--priority", "-1"]].concat());
        rabbit
    })
}

/// A name that nothing else has: for queues, key prefixes and folders.
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

/// A free port where neither the kernel nor our scripts look for one.
pub fn free_port() -> u16 {
    (0..1000)
        .map(|_| rand::random_range(10_000..20_000))
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port")
}

/// A private Redis; dropped, it is killed and its data deleted.
pub struct Redis(Server);

impl Redis {
    /// Starts one.
    pub fn start() -> Self {
        Self::start_with(&[])
    }
    /// Starts one with settings of redis.conf, such as `maxmemory 10mb`.
    pub fn start_with(settings: &[&str]) -> Self {
        Self(Server::start("private-redis", settings))
    }
    /// `redis://127.0.0.1:PORT`
    pub fn url(&self) -> &str {
        &self.0.url
    }
    /// Where it keeps its data.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }
    /// SIGKILL. What was answered is on disk and is there again after [`Self::restart`].
    pub fn kill(&self) {
        self.0.script("kill", &[]);
    }
    /// Ends it in order.
    pub fn stop(&self) {
        self.0.script("stop", &[]);
    }
    /// Starts it again, after a kill when it still runs: same port, same data.
    pub fn restart(&self) {
        self.0.restart();
    }
    /// Starts it again, after a kill when it still runs: same port, no data, as after a lost disk.
    pub fn restart_empty(&self) {
        self.kill();
        self.0.script("wipe", &[]);
        self.0.restart();
    }
    /// Freezes it: connections stay open, nothing is answered.
    pub fn pause(&self) {
        self.0.script("pause", &[]);
    }
    /// Ends [`Self::pause`].
    pub fn resume(&self) {
        self.0.script("resume", &[]);
    }
    /// `redis-cli`: its output.
    pub fn ctl(&self, args: &[&str]) -> String {
        self.0.script("ctl", args)
    }
    /// The same; `None`: it can't be reached.
    pub fn try_ctl(&self, args: &[&str]) -> Option<String> {
        self.0.try_script("ctl", args).ok()
    }
}

/// A private RabbitMQ; dropped, it is killed and its data deleted.
pub struct Rabbit(Server);

impl Rabbit {
    /// Starts one; it takes about 5 s.
    pub fn start() -> Self {
        Self::start_with(&[])
    }
    /// Starts one with lines of rabbitmq.conf, such as `heartbeat = 5`.
    pub fn start_with(settings: &[&str]) -> Self {
        Self(Server::start("private-rabbitmq", settings))
    }
    /// Starts a node of the cluster of `first`, which must outlive it. It takes about 7 s.
    pub fn join(first: &Self, settings: &[&str]) -> Self {
        Self(Server::start_beside(
            Some(&first.0.folder),
            "private-rabbitmq",
            settings,
        ))
    }
    /// `amqp://guest:guest@127.0.0.1:PORT/%2f`
    pub fn url(&self) -> &str {
        &self.0.url
    }
    /// Where it keeps its data.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }
    /// SIGKILL.
    pub fn kill(&self) {
        self.0.script("kill", &[]);
    }
    /// Ends it in order.
    pub fn stop(&self) {
        self.0.script("stop", &[]);
    }
    /// Starts it again, after a kill when it still runs: same port, same data.
    pub fn restart(&self) {
        self.0.restart();
    }
    /// Freezes it: connections stay open, nothing is answered.
    pub fn pause(&self) {
        self.0.script("pause", &[]);
    }
    /// Ends [`Self::pause`].
    pub fn resume(&self) {
        self.0.script("resume", &[]);
    }
    /// `rabbitmqctl -q`: its output. It is an Erlang node of its own, which on a busy machine may give up before it has
    /// joined: so it is tried three times.
    pub fn ctl(&self, args: &[&str]) -> String {
        let mut tries = (0..2).map(|_| self.0.try_script("ctl", args));
        match tries.find_map(Result::ok) {
            Some(output) => output,
            None => self.0.script("ctl", args),
        }
    }
}

/// What both are: a script and the folder that it keeps the server in.
struct Server {
    script: PathBuf,
    folder: PathBuf,
    settings: Vec<String>,
    /// The folder of another server, whose cluster it joins.
    first: Option<PathBuf>,
    url: String,
}

impl Server {
    fn start(script: &str, settings: &[&str]) -> Self {
        Self::start_beside(None, script, settings)
    }

    fn start_beside(first: Option<&Path>, script: &str, settings: &[&str]) -> Self {
        let scripts = crate::root().join("scripts/lib");
        let mut server = Self {
            script: scripts.join(script),
            folder: std::env::temp_dir().join(unique(script)),
            settings: settings.iter().map(ToString::to_string).collect(),
            first: first.map(Path::to_owned),
            url: String::new(),
        };
        server.url = server.launch();
        server
    }

    fn launch(&self) -> String {
        let owner = std::process::id().to_string();
        let mut args = vec!["--owner", &owner];
        for setting in &self.settings {
            args.extend(["--set", setting]);
        }
        let first = (self.first.as_ref()).map(|folder| folder.to_string_lossy());
        if let Some(folder) = &first {
            args.extend(["--join", folder]);
        }
        self.script("start", &args)
    }

    fn restart(&self) {
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

    /// The same; an error is what it said.
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
        // No assertion: a panic here would hide the test's own. The watchdog is the second net.
        let removed = Command::new(&self.script)
            .arg("remove")
            .arg(&self.folder)
            .status();
        if !removed.is_ok_and(|status| status.success()) {
            eprintln!("{} was not removed", self.folder.display());
        }
    }
}
