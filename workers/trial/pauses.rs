//! Measures how long this machine was paused. A promise about time can't be checked on a machine
//! with long pauses.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Interval at which the watch looks at the clock.
const INTERVAL: Duration = Duration::from_millis(5);
/// A watch that wakes up late by less than this was merely scheduled behind other work.
const MIN_PAUSE: Duration = Duration::from_millis(5);

/// The pauses of a machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pauses {
    /// Their sum.
    pub total: Duration,
    /// The longest of them.
    pub longest: Duration,
}

/// Watches for pauses in a thread of its own, until it is dropped.
pub struct PauseWatch {
    pauses: Arc<Mutex<Pauses>>,
    _running: Sender<()>,
}

impl PauseWatch {
    /// Starts to watch.
    pub fn start() -> Self {
        let pauses = Arc::<Mutex<Pauses>>::default();
        let (running, dropped) = channel();
        let seen = Arc::clone(&pauses);
        // A pause before the thread runs counts, too.
        let mut last = Instant::now();
        thread::spawn(move || {
            while dropped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let now = Instant::now();
                let pause = (now - last).saturating_sub(INTERVAL);
                if pause >= MIN_PAUSE {
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.total += pause;
                    seen.longest = seen.longest.max(pause);
                }
                last = now;
            }
        });
        Self {
            pauses,
            _running: running,
        }
    }

    /// Returns the pauses until now.
    pub fn pauses(&self) -> Pauses {
        *self.pauses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stops this process for a moment, as a busy host does with a virtual machine.
    #[test]
    fn a_stopped_process_is_a_pause() {
        let watch = PauseWatch::start();
        let own = std::process::id();
        let stop = format!("kill -STOP {own}; sleep 0.3; kill -CONT {own}");
        let stopped = std::process::Command::new("sh")
            .args(["-c", &stop])
            .status();
        assert!(stopped.expect("a shell").success());
        let started = Instant::now();
        while watch.pauses().longest < Duration::from_millis(250) {
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "{:?}",
                watch.pauses()
            );
            thread::yield_now();
        }
        assert!(watch.pauses().total >= watch.pauses().longest);
    }
}
