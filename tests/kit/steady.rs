//! A machine that stands still for seconds, as a shared one does: what a test of times sees then, it sees of the machine.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt;

/// For so long a failed run may be begun anew. The last one counts, whatever happened.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often the watch looks at the clock.
const LOOK: Duration = Duration::from_millis(5);

/// Watches how long the machine stands still, in a thread of its own, until it is dropped.
struct Watch {
    longest_ns: Arc<AtomicU64>,
    _wanted: Sender<()>,
}

impl Watch {
    fn start() -> Self {
        let longest_ns = Arc::<AtomicU64>::default();
        let (wanted, dropped) = channel();
        let longest = Arc::clone(&longest_ns);
        // What stands still before the thread runs counts as well.
        let mut last = Instant::now();
        thread::spawn(move || {
            while dropped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                let now = Instant::now();
                let still = (now - last).saturating_sub(LOOK).as_nanos();
                longest.fetch_max(u64::try_from(still).unwrap_or(u64::MAX), Ordering::Relaxed);
                last = now;
            }
        });
        Self {
            longest_ns,
            _wanted: wanted,
        }
    }

    fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest_ns.load(Ordering::Relaxed))
    }
}

/// For a test that shows something as long as nothing takes `most` longer than it should: a run that fails is begun anew, if the
/// machine stood still for longer than that while it ran. On a machine that does not, it fails at once.
///
/// # Panics
///
/// With what the last run said.
pub async fn steadily<Run>(most: Duration, run: impl Fn() -> Run)
where
    Run: Future<Output = ()>,
{
    let begun = Instant::now();
    let mut watch = Watch::start();
    // In the test's own thread: tests wait for programs without giving their thread to others.
    while let Err(failure) = AssertUnwindSafe(run()).catch_unwind().await {
        let still = watch.longest();
        if !is_of_the_machine(most, still, begun.elapsed()) {
            resume_unwind(failure);
        }
        println!("the machine stood still for {still:?}: what failed is begun anew");
        watch = Watch::start();
    }
}

/// Whether a failure says nothing of what is tested, after a run in which the machine stood still for `still`.
fn is_of_the_machine(most: Duration, still: Duration, since: Duration) -> bool {
    still > most && since < PATIENCE
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_failure_counts_unless_the_machine_stood_still() {
        assert!(!is_of_the_machine(SECOND, SECOND, SECOND));
        assert!(is_of_the_machine(SECOND, 2 * SECOND, SECOND));
        // It is broken, whatever the machine does.
        assert!(!is_of_the_machine(SECOND, 2 * SECOND, PATIENCE));
    }

    #[tokio::test]
    async fn what_fails_on_a_machine_that_goes_on_fails() {
        let failing = tokio::spawn(steadily(3600 * SECOND, || async {
            panic!("it does not hold")
        }));
        assert!(failing.await.is_err_and(|error| error.is_panic()));
    }

    /// Somebody stops this process for a moment, as whoever runs a shared machine does.
    #[tokio::test]
    async fn the_watch_sees_that_nothing_ran() {
        let watch = Watch::start();
        let own = std::process::id();
        let stop = format!("kill -STOP {own}; sleep 0.3; kill -CONT {own}");
        let stopped = std::process::Command::new("sh")
            .args(["-c", &stop])
            .status();
        assert!(stopped.expect("a shell").success());
        let begun = Instant::now();
        while watch.longest() < Duration::from_millis(250) {
            assert!(begun.elapsed() < 60 * SECOND, "{:?}", watch.longest());
            tokio::time::sleep(LOOK).await;
        }
    }
}
