//! Measures how long this machine was paused. A promise about time can't be checked on a machine
//! with long pauses.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::watch::Watch;

/// Interval at which the watch looks at the clock.
const INTERVAL: Duration = Duration::from_millis(5);
/// A watch that wakes up late by less than this was merely scheduled behind other work.
const MIN_PAUSE: Duration = Duration::from_millis(5);

/// The pauses of a machine, in order: beginnings and ends on the clock of the watch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pauses(pub Vec<Range<Duration>>);

impl Pauses {
    /// Returns the lengths of the pauses' parts within `time`.
    fn within(&self, time: Range<Duration>) -> impl Iterator<Item = Duration> {
        let part = move |pause: &Range<Duration>| {
            (pause.end.min(time.end)).saturating_sub(pause.start.max(time.start))
        };
        self.0.iter().map(part)
    }

    /// Returns how long the machine was paused within `time`.
    pub fn total(&self, time: Range<Duration>) -> Duration {
        self.within(time).sum()
    }

    /// Returns the longest pause within `time`.
    pub fn longest(&self, time: Range<Duration>) -> Duration {
        self.within(time).max().unwrap_or_default()
    }
}

/// Watches for pauses in a thread of its own, until it is dropped.
pub struct PauseWatch(Watch<Range<Duration>>);

impl PauseWatch {
    /// Starts to watch. The pauses' times count from `origin`.
    pub fn start(origin: Instant) -> Self {
        // A pause before the thread runs counts, too.
        let mut last = Instant::now();
        Self(Watch::start(INTERVAL, Vec::new(), move || {
            let now = Instant::now();
            let due = last + INTERVAL;
            last = now;
            let since_origin = |time| Instant::saturating_duration_since(&time, origin);
            let is_late = now.saturating_duration_since(due) >= MIN_PAUSE;
            is_late.then(|| since_origin(due)..since_origin(now))
        }))
    }

    /// Returns the pauses until now.
    pub fn pauses(&self) -> Pauses {
        Pauses(self.0.seen())
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Stops this process for a moment, as a busy host does with a virtual machine.
    #[test]
    fn a_stopped_process_is_a_pause() {
        let started = Instant::now();
        let watch = PauseWatch::start(started);
        let own = std::process::id();
        let stop = format!("kill -STOP {own}; sleep 0.3; kill -CONT {own}");
        let stopped = std::process::Command::new("sh")
            .args(["-c", &stop])
            .status();
        assert!(stopped.expect("a shell").success());
        let all = Duration::ZERO..Duration::MAX;
        while watch.pauses().longest(all.clone()) < Duration::from_millis(250) {
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "{:?}",
                watch.pauses()
            );
            thread::yield_now();
        }
        let pauses = watch.pauses();
        assert!(pauses.total(all) >= Duration::from_millis(250));
    }

    #[test]
    fn only_the_parts_within_a_time_count() {
        let ms = Duration::from_millis;
        let pauses = Pauses(vec![ms(10)..ms(30), ms(50)..ms(60)]);
        for (time, total, longest) in [
            (0..100, 30, 20),
            (20..55, 15, 10),
            (30..50, 0, 0),
            (15..20, 5, 5),
        ] {
            let time = ms(time.start)..ms(time.end);
            assert_eq!(pauses.total(time.clone()), ms(total));
            assert_eq!(pauses.longest(time), ms(longest));
        }
    }
}
