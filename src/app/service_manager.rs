//! Notifies the service manager (`Type=notify`, sd_notify(3)): that the worker is ready or stops,
//! its status, and that its engine turns. Does nothing without NOTIFY_SOCKET.
//!
//! The crate `sd-notify` opens a socket per message, which blocks while the manager does not read.

use std::convert::Infallible;
use std::env;
use std::ffi::OsStr;
use std::io;
#[cfg(target_os = "linux")]
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use admin::PipelineStates;

/// Interval at which the worker's state is checked for changes.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum time that a worker needs after its calls in flight, to store notes and to close its
/// connections.
const CLOSING: Duration = Duration::from_secs(30);
/// Pings per watchdog timeout. An idle worker sends half as many.
const PINGS_PER_TIMEOUT: u32 = 4;

/// A connection to the service manager. Dropping it sends `STOPPING=1`.
pub(super) struct ServiceManager {
    socket: UnixDatagram,
    to: SocketAddr,
    /// Timeout after which the watchdog restarts a silent worker, or `None` without a watchdog.
    watchdog: Option<Duration>,
    knows_the_end: bool,
}

impl ServiceManager {
    /// Returns the service manager that started this process, or `None` if it wants no
    /// notifications.
    pub(super) fn from_environment() -> Option<Self> {
        let to = address(&env::var_os("NOTIFY_SOCKET")?).ok()?;
        let number = |name| env::var(name).ok()?.parse::<u64>().ok();
        // Without WATCHDOG_PID, the watchdog applies to any process that reads the variables.
        let is_ours = number("WATCHDOG_PID").is_none_or(|id| id == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|us| is_ours && *us > 0);
        Self::new(to, watchdog.map(Duration::from_micros)).ok()
    }

    fn new(to: SocketAddr, watchdog: Option<Duration>) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not hold up the worker.
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            to,
            watchdog,
            knows_the_end: false,
        })
    }

    /// Sends the state that `board` shows for as long as the worker lives. Once `stop` is canceled,
    /// sends `STOPPING=1` and how long the worker may take to end.
    pub(super) async fn run(
        mut self,
        board: Arc<PipelineStates>,
        stop: CancellationToken,
    ) -> Infallible {
        let ping_every = self.watchdog.map(|within| within / PINGS_PER_TIMEOUT);
        let look_every = ping_every.map_or(CHECK_INTERVAL, |every| every.min(CHECK_INTERVAL));
        let (mut is_ready, mut status) = (false, String::new());
        let (mut turns, mut pinged) = (board.turns(), Instant::now());
        let mut stops = false;
        loop {
            // A message that can't be sent is sent again at the next look.
            if stops && !self.knows_the_end {
                self.knows_the_end = self.notify(&stopping(&board));
            }
            let readiness = board.readiness();
            // Sent once: a worker that lacks something later recovers by itself.
            if readiness.is_ready && !is_ready {
                is_ready = self.notify("READY=1");
            }
            let words = readiness.lines.join("; ");
            let now = match (readiness.is_ready, words.as_str()) {
                _ if stops => "stopping".to_owned(),
                (true, "") => "ready".to_owned(),
                (true, words) => format!("ready; {words}"),
                (false, words) => words.to_owned(),
            };
            if now != status && self.notify(&format!("STATUS={now}")) {
                status = now;
            }
            if ping_every.is_some_and(|every| pinged.elapsed() >= every) {
                let now = board.turns();
                if now.iter().any(|(name, of)| turns.get(name) == Some(of)) {
                    // The engine may have nothing to do. An engine that hangs does not turn for
                    // this either.
                    board.request_turn();
                } else if self.notify("WATCHDOG=1") {
                    (turns, pinged) = (now, Instant::now());
                }
            }
            tokio::select! {
                () = sleep(look_every) => {}
                () = stop.cancelled(), if !stops => stops = true,
            }
        }
    }

    fn notify(&self, words: &str) -> bool {
        (self.socket.send_to_addr(words.as_bytes(), &self.to)).is_ok()
    }
}

impl Drop for ServiceManager {
    fn drop(&mut self) {
        if !self.knows_the_end {
            self.notify("STOPPING=1");
        }
    }
}

/// Returns the message that the worker stops, and how long it may take.
fn stopping(board: &PipelineStates) -> String {
    let pipelines = board.pipelines();
    let configs = pipelines.iter().filter_map(|(_, state)| state.config.get());
    let calls = configs.map(|config| config.dispatch.shutdown_timeout).max();
    let within = calls.unwrap_or_default() + CLOSING;
    format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}", within.as_micros())
}

/// Parses a socket address: a path, or an abstract name (unix(7)) after an `@`.
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes() {
        #[cfg(target_os = "linux")]
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(name),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use admin::PipelineState;
    use config::Config;
    use kit::MS;
    use telemetry::Health;

    /// Returns the messages received at `socket`, until `enough` or for at most 10 s of the test's
    /// time.
    async fn received(socket: &UnixDatagram, enough: impl Fn(&[String]) -> bool) -> Vec<String> {
        let mut all = Vec::new();
        let mut buffer = [0; 1024];
        for _ in 0..10_000 {
            while let Ok(length) = socket.recv(&mut buffer) {
                all.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
            }
            if enough(&all) {
                break;
            }
            sleep(MS).await;
        }
        all
    }

    /// Returns a manager in the test's folder, and the socket it writes to.
    fn manager(watchdog: Option<Duration>) -> (tempfile::TempDir, UnixDatagram, ServiceManager) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let listens = UnixDatagram::bind(&path).expect("bound");
        listens.set_nonblocking(true).expect("set");
        let to = address(path.as_os_str()).expect("an address");
        let manager = ServiceManager::new(to, watchdog).expect("a socket");
        (folder, listens, manager)
    }

    fn ready() -> (Arc<Health>, Arc<PipelineStates>) {
        let seen = PipelineState::default();
        let config = "dispatch: {shutdown-timeout: 5m}";
        let config = Config::parse("c.yaml", config, std::iter::empty()).expect("valid");
        seen.config.set(&config);
        let health = Arc::clone(&seen.health);
        health.set_rabbitmq(true);
        health.set_redis(true);
        health.set_consuming(true);
        (health, Arc::new(PipelineStates::only(seen)))
    }

    #[tokio::test(start_paused = true)]
    async fn the_service_manager_learns_once_of_readiness_and_of_each_shortage() {
        let (_folder, listens, manager) = manager(None);
        let ((health, board), stop) = (ready(), CancellationToken::new());
        health.set_redis(false);
        let telling = tokio::spawn(manager.run(board, stop.clone()));
        let first = received(&listens, |all| !all.is_empty()).await;
        assert_eq!(first, ["STATUS=Redis does not answer"]);
        health.set_redis(true);
        let then = received(&listens, |all| all.len() >= 2).await;
        assert_eq!(then, ["READY=1", "STATUS=ready"]);
        health.set_rabbitmq(false);
        let then = received(&listens, |all| !all.is_empty()).await;
        assert_eq!(then, ["STATUS=RabbitMQ does not answer"]);
        health.set_rabbitmq(true);
        let then = received(&listens, |all| !all.is_empty()).await;
        assert_eq!(then, ["STATUS=ready"]);
        stop.cancel();
        let then = received(&listens, |all| all.len() >= 2).await;
        let stopping = "STOPPING=1\nEXTEND_TIMEOUT_USEC=330000000";
        assert_eq!(then, [stopping, "STATUS=stopping"]);
        telling.abort();
        assert!(telling.await.is_err_and(|end| end.is_cancelled()));
        assert!(
            listens.recv(&mut [0; 64]).is_err(),
            "nothing is left to say"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_ends_on_its_own_reports_that_it_stops() {
        let (_folder, listens, manager) = manager(None);
        drop(manager);
        assert_eq!(
            received(&listens, |all| !all.is_empty()).await,
            ["STOPPING=1"]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_watchdog_is_fed_by_a_running_engine_and_not_by_a_hanging_one() {
        let (_folder, listens, manager) = manager(Some(1000 * MS));
        let ((health, board), hangs) = (ready(), Arc::new(AtomicBool::new(false)));
        // The engine has nothing to do, so it turns only when asked to.
        let engine = (Arc::clone(&health), Arc::clone(&hangs));
        tokio::spawn(async move {
            let (health, hangs) = engine;
            health.turned();
            loop {
                health.turn_requested().await;
                if !hangs.load(Ordering::Relaxed) {
                    health.turned();
                }
            }
        });
        tokio::spawn(manager.run(board, CancellationToken::new()));
        let pings = |all: &[String]| all.iter().filter(|words| *words == "WATCHDOG=1").count();
        let began = Instant::now();
        received(&listens, |all| pings(all) >= 8).await;
        // At least twice as often as required.
        assert!(began.elapsed() <= 8 * 500 * MS + 250 * MS, "{began:?}");
        hangs.store(true, Ordering::Relaxed);
        let all = received(&listens, |_| false).await;
        assert!(pings(&all) <= 1, "{all:?}");
        hangs.store(false, Ordering::Relaxed);
        assert!(pings(&received(&listens, |all| pings(all) >= 1).await) >= 1);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_name_with_an_at_sign_is_not_a_path() {
        let name = format!("sluicegate-test-{}", std::process::id());
        let address = address(OsStr::new(&format!("@{name}"))).expect("an address");
        assert_eq!(address.as_abstract_name(), Some(name.as_bytes()));
    }
}
