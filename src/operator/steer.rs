//! Instructions to all workers: their duration, and which workers follow.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::NotDone;
use super::answer::answers;
use super::text::count;
use config::{parse_duration, show_duration};
use gate::GateError;
use gate::instructions::{BoardView, Versions, followers, see};
use gate::redis::RedisGate;

/// Maximum duration of an instruction.
pub const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// Maximum time that a command waits for workers.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);
/// Time within which live workers follow. They read the board every second.
pub const FOLLOW_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which Redis is polled for changes.
pub const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Parses the duration of an instruction.
///
/// # Errors
/// The mistake in the text, for people.
pub fn span(text: &str) -> Result<Duration, String> {
    within(text, Duration::from_secs(1), YEAR)
}

/// Parses the time that a command waits.
///
/// # Errors
/// The mistake in the text, for people.
pub fn wait(text: &str) -> Result<Duration, String> {
    within(text, Duration::ZERO, MAX_WAIT)
}

fn within(text: &str, min: Duration, max: Duration) -> Result<Duration, String> {
    let span = parse_duration(text).ok_or("not a whole number with a unit, such as 90s or 1h")?;
    if (min..=max).contains(&span) {
        return Ok(span);
    }
    let [min, max] = [min, max].map(show_duration);
    Err(format!("it must be from {min} to {max}"))
}

answers! {
    /// Number of live workers, and number of followers among them.
    #[derive(Default)]
    pub struct Followers {
        pub workers: u64,
        pub workers_following: u64,
    }
}

impl Followers {
    /// Counts the workers on the boards `seen` that follow `versions`.
    pub fn of(seen: &[BoardView], versions: &Versions) -> Self {
        let (all, not_yet) = followers(seen, versions);
        Self {
            workers: all.len() as u64,
            workers_following: (all.len() - not_yet.len()) as u64,
        }
    }

    /// Returns true if all workers follow.
    pub fn are_all(&self) -> bool {
        self.workers_following == self.workers
    }

    /// Describes the counts: `2 workers follow`, `1 of 2 workers so far; …`.
    pub fn describe(&self) -> String {
        match (self.workers, self.workers_following) {
            (0, _) => "no worker is running".to_owned(),
            (1, 1) => "1 worker follows".to_owned(),
            (all, following) if all == following => format!("{all} workers follow"),
            (all, following) => format!(
                "{following} of {} so far; the others follow within seconds or admit no job",
                count(all, "worker")
            ),
        }
    }
}

/// Waits at most `max` for all live workers to follow `versions`. Returns the last state of the
/// boards.
///
/// # Errors
/// [`GateError`] if Redis can't be asked.
pub async fn followed(
    gate: &RedisGate,
    versions: &Versions,
    max: Duration,
) -> Result<(Vec<BoardView>, Followers), GateError> {
    let until = Instant::now() + max;
    loop {
        let seen = see(gate).await?;
        let followers = Followers::of(&seen, versions);
        if followers.are_all() || Instant::now() >= until {
            return Ok((seen, followers));
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Returns the end (ms) of an instruction that was posted and then followed.
///
/// # Errors
/// [`NotDone::Failed`]: it has ended in the meantime.
pub(super) fn still_lasts(until_ms: Option<u64>) -> Result<u64, NotDone> {
    until_ms.ok_or_else(|| {
        let words = "the instruction was posted but has ended since: its time is over, or another \
            operator ended it";
        NotDone::Failed(words.to_owned())
    })
}

/// Latest report of a worker on its load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerLoad {
    /// Time of the report, by Redis's clock in milliseconds.
    pub at_ms: u64,
    /// Calls in flight.
    pub running: u64,
    /// Jobs in memory, including jobs whose calls are in flight.
    pub in_memory: u64,
    /// Number of deliveries since the worker started.
    pub deliveries: u64,
}

/// Returns the latest reports of all workers, by worker name.
pub fn loads(seen: &[BoardView]) -> BTreeMap<String, WorkerLoad> {
    let mut loads: BTreeMap<String, WorkerLoad> = BTreeMap::new();
    for (name, worker) in seen.iter().flat_map(|board| &board.workers) {
        let numbers: Vec<u64> = (worker.says.split(' '))
            .filter_map(|number| number.parse().ok())
            .collect();
        let &[running, in_memory, deliveries] = numbers.as_slice() else {
            continue;
        };
        let load = WorkerLoad {
            at_ms: worker.at_ms,
            running,
            in_memory,
            deliveries,
        };
        let known = loads.entry(name.clone()).or_default();
        if known.at_ms <= load.at_ms {
            *known = load;
        }
    }
    loads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_and_spans_have_bounds() {
        assert_eq!(span("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(wait("0s"), Ok(Duration::ZERO));
        assert!(span("0s").is_err_and(|why| why.contains("from 1s to")));
        assert!(span("soon").is_err_and(|why| why.contains("90s or 1h")));
        assert!(wait("25h").is_err());
    }

    #[test]
    fn the_number_of_followers_is_written_out() {
        let words = |workers, workers_following| {
            let followers = Followers {
                workers,
                workers_following,
            };
            followers.describe()
        };
        assert_eq!(words(0, 0), "no worker is running");
        assert_eq!(words(1, 1), "1 worker follows");
        assert_eq!(words(2, 2), "2 workers follow");
        assert!(words(2, 1).starts_with("1 of 2 workers so far"));
    }
}
