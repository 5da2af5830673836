//! `dispatch.breaker`: consecutive failures stop calls.

use std::time::Duration;

use super::section::section;
use crate::reading::key::{HOUR, boolean, duration, integer};
use crate::reading::keys;

keys! {
    ENABLED: bool = boolean("dispatch.breaker.enabled")
        .default("true")
        .about("Whether consecutive failures stop calls.")
        .note("See [concepts](CONCEPTS.md#when-the-api-fails).");
    FAILURES: u32 = integer::<_, 1, 1_000>("dispatch.breaker.failures", "calls")
        .default("5")
        .about("Number of consecutive failures that stop calls.")
        .note("If `retry.max-attempts` is lower, it applies instead.");
    INITIAL_INTERVAL: Duration = duration::<10, HOUR>("dispatch.breaker.initial-interval")
        .default("1s")
        .about("Wait before the first probe; it doubles with each failed probe.");
    MAX_INTERVAL: Duration = duration::<10, HOUR>("dispatch.breaker.max-interval")
        .default("30s")
        .at_least(&INITIAL_INTERVAL)
        .about("Longest wait between two probes, and so the longest delay until an API's return \
            is noticed.");
}

section! {
    /// `dispatch.breaker`
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    optional struct BreakerConfig {
        /// `dispatch.breaker.failures`: the number of consecutive failures that stops calls.
        pub failures: u32 = FAILURES,
        /// `dispatch.breaker.initial-interval`: the wait before the first probe.
        pub initial_interval: Duration = INITIAL_INTERVAL,
        /// `dispatch.breaker.max-interval`: the longest wait between two probes.
        pub max_interval: Duration = MAX_INTERVAL,
    }
    |input| {
        if !input.get(&ENABLED)? {
            input.shown.drop_section("dispatch.breaker.");
            input.shown.set(&ENABLED.key, &false);
            return Some(None);
        }
    }
}
