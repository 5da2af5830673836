//! `retry`: how failed jobs are tried again.

use std::time::Duration;

use super::section::section;
use crate::reading::key::{DAY, SECOND, duration, integer};
use crate::reading::keys;
use rules::failures::retry::RetryPolicy;

keys! {
    MAX_ATTEMPTS: u32 = integer::<_, 1, 1_000_000>("retry.max-attempts", "attempts")
        .default("5")
        .live()
        .about("Number of attempts that may fail (408, 423, 425, 5xx, no answer) before a job becomes a \
            dead letter.")
        .note("It goes to `jobs.dead`. Waiting for a limit uses no attempt.");
    INITIAL_INTERVAL: Duration = duration::<1, DAY>("retry.initial-interval")
        .default("1s")
        .live()
        .about("First pause between attempts; pauses grow exponentially, with jitter.");
    MAX_INTERVAL: Duration = duration::<1, DAY>("retry.max-interval")
        .default("5m")
        .live()
        .at_least(&INITIAL_INTERVAL)
        .about("Longest pause between attempts.");
    GIVE_UP_AFTER: Duration = duration::<SECOND, { 365 * DAY }>("retry.give-up-after")
        .default("7d")
        .live()
        .about("Time after its first failure or throttle (429) after which a job that still fails \
            or is throttled becomes a dead letter.")
        .note("A connection that could not be opened is a failure. Earlier waiting does not count.");
    MAX_CRASHES: u32 = integer::<_, 0, 1_000>("retry.max-crashes", "crashes")
        .default("5")
        .live()
        .about("Number of times that a job's calls may crash their workers before it becomes a \
            dead letter; 0: unlimited.")
        .note("The first crash does not count, since only redelivered jobs are watched. Lost \
            sessions and orderly worker shutdowns do not count; an answer resets the count.");
}

section! {
    impl RetryPolicy {
        max_attempts = MAX_ATTEMPTS,
        initial_interval = INITIAL_INTERVAL,
        max_interval = MAX_INTERVAL,
        give_up_after = GIVE_UP_AFTER,
        max_crashes = MAX_CRASHES,
    }
}
