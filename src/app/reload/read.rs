//! Reads the configuration again when its file has changed or an operator asks. This runs in a
//! thread of its own, so a file system that hangs holds up nothing else.
//!
//! A configuration that can't be read may become readable: a file it names, or the file system, may
//! be missing only for a moment. So reading is retried, with growing pauses.

use std::io;
use std::sync::mpsc::{self as blocking, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use config::{ConfigErrors, ConfigSource, Pipelines};
use rules::failures::retry::Backoff;

/// Interval at which the file is checked for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The first and the longest pause before a configuration that could not be read is read again.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(60)];

/// A configuration that was read again.
#[derive(Debug)]
pub struct ConfigReading {
    /// The configuration, or its errors.
    pub read: Result<Pipelines, ConfigErrors>,
    /// Whether to report it even if nothing has changed: an operator asked, or it could not be read
    /// before.
    pub asked: bool,
}

/// Reads a configuration whenever that is needed.
#[derive(Debug)]
pub struct ConfigReader {
    /// A reading that is still to be applied.
    pub(super) kept: Option<Box<ConfigReading>>,
    readings: mpsc::Receiver<ConfigReading>,
    /// Asks the thread to read now. Dropping it ends the thread.
    asks: blocking::SyncSender<()>,
    hangups: Signal,
}

impl ConfigReader {
    /// Reads `source` after each change of its file, and at each SIGHUP.
    ///
    /// # Errors
    /// The signal handler can't be installed, or the thread can't be started.
    pub fn new(source: ConfigSource) -> io::Result<Self> {
        let hangups = signal(SignalKind::hangup())?;
        let (send, readings) = mpsc::channel(1);
        let (asks, asked) = blocking::sync_channel(1);
        let watch = move || watch_file(source, &asked, &send);
        thread::Builder::new()
            .name("configuration".to_owned())
            .spawn(watch)?;
        Ok(Self {
            kept: None,
            readings,
            asks,
            hangups,
        })
    }

    /// Waits until the configuration was read again.
    pub async fn next(&mut self) -> ConfigReading {
        loop {
            tokio::select! {
                Some(reading) = self.readings.recv() => return reading,
                Some(()) = self.hangups.recv() => {
                    // A full channel means that the thread was asked already.
                    let _ = self.asks.try_send(());
                }
                else => std::future::pending().await,
            }
        }
    }
}

/// Sends each reading that is news, until the receiver is gone.
fn watch_file(
    mut source: ConfigSource,
    asked: &blocking::Receiver<()>,
    readings: &mpsc::Sender<ConfigReading>,
) {
    let mut failure = ReadFailure::default();
    loop {
        let asked = match asked.recv_timeout(CHECK_INTERVAL) {
            Ok(()) => true,
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let is_wanted = source.has_changed() || asked;
        if !is_wanted && !failure.is_due(Instant::now()) {
            continue;
        }
        let read = source.load();
        let problem = read.as_ref().err().map(ToString::to_string);
        let failed_before = failure.is_known();
        let is_news = failure.record(Instant::now(), problem);
        let asked = asked || failed_before;
        if (is_wanted || is_news)
            && readings
                .blocking_send(ConfigReading { read, asked })
                .is_err()
        {
            return;
        }
    }
}

/// The failure of the last reading, and when to try again.
struct ReadFailure {
    known: Option<(String, Instant)>,
    pauses: Backoff,
}

impl Default for ReadFailure {
    fn default() -> Self {
        let [first, longest] = RETRY_PAUSES;
        Self {
            known: None,
            pauses: Backoff::between(first, longest),
        }
    }
}

impl ReadFailure {
    /// Records a reading that failed with `problem`, or succeeded. Returns true if that differs
    /// from the previous reading.
    fn record(&mut self, now: Instant, problem: Option<String>) -> bool {
        let before = self.known.take().map(|(problem, _)| problem);
        let is_news = before != problem;
        if is_news {
            self.pauses.reset();
        }
        self.known = problem.map(|problem| (problem, now + self.pauses.next(rand::random())));
        is_news
    }

    fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// Returns true if it is time to try again.
    fn is_due(&self, now: Instant) -> bool {
        self.known.as_ref().is_some_and(|(_, at)| *at <= now)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, iter};

    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::Worker;
    use crate::tests::IdleHandler;
    use config::Config;
    use engine::Stop;

    /// Nothing listens at the port, so the worker has not begun to agree with others.
    #[tokio::test]
    async fn a_worker_that_waits_for_rabbitmq_refuses_a_wrong_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("sluicegate.yaml");
        let write = |attempts: &str| {
            let yaml = format!(
                "amqp: {{url: 'amqp://127.0.0.1:1'}}\nredis: {{url: 'redis://127.0.0.1:1'}}\n\
                 admin: {{listen: '127.0.0.1:0'}}\nretry: {{max-attempts: {attempts}}}\n"
            );
            fs::write(&file, yaml).expect("written");
        };
        write("5");
        let config = Config::load(Some(&file), iter::empty()).expect("valid");
        let worker = Worker::new(config).expect("usable");
        let worker = worker.reloading(Some(file.clone()));
        let (metrics, stop) = (worker.metrics(), Stop::default());
        let running = tokio::spawn(worker.run(IdleHandler, stop.clone()));
        write("many");
        let refused = "sluicegate_config_reloads_total{result=\"refused\"} 1";
        let shows = async |line: &str| {
            let shown = async {
                while !metrics.encode().contains(line) {
                    sleep(Duration::from_millis(50)).await;
                }
            };
            let shown = timeout(Duration::from_secs(20), shown).await;
            assert!(shown.is_ok(), "{line} is missing in {}", metrics.encode());
        };
        shows(refused).await;
        shows("sluicegate_config_refused 1").await;
        write("5");
        shows("sluicegate_config_refused 0").await;
        stop.soft.cancel();
        running.await.expect("no panic").expect("it was stopped");
    }

    #[test]
    fn a_failed_read_is_retried_with_backoff_and_reported_once() {
        let (mut failure, mut now) = (ReadFailure::default(), Instant::now());
        let problem = || Some("a file is away".to_owned());
        assert!(!failure.is_due(now), "nothing failed");
        assert!(failure.record(now, problem()));
        let mut tries = 0;
        for _ in 0..3_600 {
            now += Duration::from_secs(1);
            if failure.is_due(now) {
                assert!(!failure.record(now, problem()), "it is known");
                tries += 1;
            }
        }
        // Within an hour: frequent at first, then about every minute.
        assert!((60..=130).contains(&tries), "{tries}");
        assert!(failure.record(now, Some("it is wrong".to_owned())));
        assert!(failure.record(now, None) && !failure.is_known());
        assert!(!failure.record(now, None));
    }
}
