//! `retry`: how failed jobs are tried again.

use std::time::Duration;

use super::input::ConfigInput;
use super::key::{DAY, SECOND, duration, integer, keys};
use super::shown_value::{ShownValue, ShownValues};

keys! {
    MAX_ATTEMPTS: u32 = integer::<_, 1, 1_000_000>("retry.max-attempts", "attempts")
        .default("5")
        .example("9")
        .live()
        .about("Number of attempts that may fail (408, 5xx, no connection) before a job becomes a \
            dead letter.")
        .note("It goes to `jobs.dead`. Waiting for a limit uses no attempt.");
    INITIAL_INTERVAL: Duration = duration::<1, DAY>("retry.initial-interval")
        .default("1s")
        .example("10ms")
        .live()
        .about("First pause between attempts; pauses grow exponentially, with jitter.");
    MAX_INTERVAL: Duration = duration::<1, DAY>("retry.max-interval")
        .default("5m")
        .example("1d")
        .live()
        .at_least("retry.initial-interval")
        .about("Longest pause between attempts.");
    GIVE_UP_AFTER: Duration = duration::<SECOND, { 365 * DAY }>("retry.give-up-after")
        .default("7d")
        .example("1h")
        .live()
        .about("Time after its first call after which a job that still fails or is throttled \
            (429) becomes a dead letter.")
        .note("Waiting before the first call does not count.");
    MAX_CRASHES: u32 = integer::<_, 0, 1_000>("retry.max-crashes", "crashes")
        .default("5")
        .example("0")
        .live()
        .about("Number of times that a job's calls may crash their workers before it becomes a \
            dead letter; 0: unlimited.")
        .note("The first crash does not count, since only redelivered jobs are watched. Lost \
            sessions and orderly worker shutdowns do not count; an answer resets the count.");
}

/// `retry`
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    /// `retry.max-attempts`
    pub max_attempts: u32,
    /// `retry.initial-interval`
    pub initial_interval: Duration,
    /// `retry.max-interval`
    pub max_interval: Duration,
    /// `retry.give-up-after`: time after its first call at which a job that still fails or is
    /// refused becomes a dead letter.
    pub give_up_after: Duration,
    /// `retry.max-crashes`: number of crashed workers after which a job becomes a dead letter; 0
    /// for never.
    pub max_crashes: u32,
}

impl Retry {
    /// Adds the section's values to `values`.
    pub(super) fn show(&self, values: &mut ShownValues) {
        let Self {
            max_attempts,
            initial_interval,
            max_interval,
            give_up_after,
            max_crashes,
        } = self;
        values.set(&MAX_ATTEMPTS.key, ShownValue::bare(max_attempts));
        values.set(
            &INITIAL_INTERVAL.key,
            ShownValue::duration(*initial_interval),
        );
        values.set(&MAX_INTERVAL.key, ShownValue::duration(*max_interval));
        values.set(&GIVE_UP_AFTER.key, ShownValue::duration(*give_up_after));
        values.set(&MAX_CRASHES.key, ShownValue::bare(max_crashes));
    }

    /// Takes the values of `new` that can change in a running worker.
    pub(super) fn take_live(&mut self, new: &Self) {
        self.clone_from(new);
    }
}

impl ConfigInput {
    /// Reads the section. Returns `None` after a problem.
    pub(super) fn retry(&mut self) -> Option<Retry> {
        let max_attempts = self.get(&MAX_ATTEMPTS);
        let intervals = self.pair(&INITIAL_INTERVAL, &MAX_INTERVAL);
        let give_up_after = self.get(&GIVE_UP_AFTER);
        let max_crashes = self.get(&MAX_CRASHES);
        let (initial_interval, max_interval) = intervals?;
        Some(Retry {
            max_attempts: max_attempts?,
            initial_interval,
            max_interval,
            give_up_after: give_up_after?,
            max_crashes: max_crashes?,
        })
    }
}
