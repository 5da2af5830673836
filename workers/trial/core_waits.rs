//! Measures how long the threads of processes waited for a core. A program starts jobs late while
//! other programs keep its threads from running.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::watch::Watch;

/// Interval between two readings.
const INTERVAL: Duration = Duration::from_millis(100);

/// A process and one of its threads.
type ThreadId = (u32, u32);

/// How long each thread has waited since it began.
type Totals = BTreeMap<ThreadId, Duration>;

/// Readings in order, with their times on the clock of the watch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CoreWaits(pub Vec<(Duration, Totals)>);

impl CoreWaits {
    /// Returns how long the thread that waited longest waited between the first and the last
    /// reading within `time`.
    pub fn longest(&self, time: Range<Duration>) -> Duration {
        let mut within = (self.0.iter()).filter(|(at, _)| time.contains(at));
        let Some((_, first)) = within.next() else {
            return Duration::ZERO;
        };
        let last = within.next_back().map_or(first, |(_, last)| last);
        longest_increase(first, last)
    }

    /// Returns the longest time for which a thread waited between two successive readings, if
    /// `time` includes a moment between them. Linux counts a wait when it ends.
    pub fn longest_at_once(&self, time: Range<Duration>) -> Duration {
        let successive = self.0.iter().zip(self.0.iter().skip(1));
        let overlapping =
            successive.filter(|((from, _), (to, _))| *from < time.end && time.start < *to);
        overlapping
            .map(|((_, before), (_, after))| longest_increase(before, after))
            .max()
            .unwrap_or_default()
    }
}

/// Returns the largest increase of a thread's total.
fn longest_increase(before: &Totals, after: &Totals) -> Duration {
    let increase = |(thread, total): (&ThreadId, &Duration)| {
        total.saturating_sub(before.get(thread).copied().unwrap_or_default())
    };
    after.iter().map(increase).max().unwrap_or_default()
}

/// Watches processes in a thread of its own, until it is dropped.
pub struct CoreWatch(Watch<(Duration, Totals)>);

impl CoreWatch {
    /// Starts to watch `processes`. The readings' times count from `origin`. On systems without
    /// Linux's scheduler statistics no thread seems to wait.
    pub fn start(origin: Instant, processes: Vec<u32>) -> Self {
        let reading = move || {
            let waits = processes.iter().flat_map(|process| read(*process));
            (origin.elapsed(), waits.collect())
        };
        let first = vec![reading()];
        Self(Watch::start(INTERVAL, first, move || Some(reading())))
    }

    /// Returns the readings until now.
    pub fn waits(&self) -> CoreWaits {
        CoreWaits(self.0.seen())
    }
}

/// Returns how long each thread of `process` has waited for a core since it began.
fn read(process: u32) -> Vec<(ThreadId, Duration)> {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else {
        return Vec::new();
    };
    // Linux, Documentation/scheduler/sched-stats.rst: the second number, in nanoseconds.
    let waited = |thread: fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        let nanos = text.split_whitespace().nth(1)?.parse().ok()?;
        let id = thread.file_name().to_str()?.parse().ok()?;
        Some(((process, id), Duration::from_nanos(nanos)))
    };
    threads.flatten().filter_map(waited).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};
    use std::thread;

    use super::*;

    /// More threads than the machine has cores compute, so some of them wait.
    #[test]
    fn a_busy_machine_lets_threads_wait() {
        let started = Instant::now();
        let watch = CoreWatch::start(started, vec![std::process::id()]);
        let computing = 2 * thread::available_parallelism().map_or(1, usize::from);
        let done = Mutex::new(false);
        let is_done = || *done.lock().unwrap_or_else(PoisonError::into_inner);
        let all = || watch.waits().longest(Duration::ZERO..Duration::MAX);
        thread::scope(|scope| {
            for _ in 0..computing {
                scope.spawn(|| while !is_done() {});
            }
            while all() < Duration::from_millis(50) && started.elapsed().as_secs() < 60 {
                thread::yield_now();
            }
            *done.lock().unwrap_or_else(PoisonError::into_inner) = true;
        });
        assert!(all() >= Duration::from_millis(50), "{:?}", watch.waits());
    }

    #[test]
    fn the_thread_that_waited_longest_counts_within_the_time() {
        let ms = Duration::from_millis;
        let reading = |at, waits: [(u32, u64); 2]| {
            let waits = waits.map(|(thread, waited)| ((1, thread), ms(waited)));
            (ms(at), BTreeMap::from(waits))
        };
        let waits = CoreWaits(vec![
            reading(100, [(1, 500), (2, 0)]),
            reading(200, [(1, 510), (2, 30)]),
            reading(300, [(1, 515), (3, 20)]),
        ]);
        for (time, longest, at_once) in [
            (0..150, 0, 30),
            (0..250, 30, 30),
            (0..301, 20, 30),
            (150..301, 20, 30),
            (210..220, 0, 20),
            (0..50, 0, 0),
        ] {
            let time = ms(time.start)..ms(time.end);
            assert_eq!(waits.longest(time.clone()), ms(longest));
            assert_eq!(waits.longest_at_once(time), ms(at_once));
        }
    }
}
