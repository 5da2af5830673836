//! `dispatch.breaker`: consecutive failures stop calls.

use std::time::Duration;

use super::input::ConfigInput;
use super::key::{HOUR, boolean, duration, integer, keys};
use super::shown_value::{ShownValue, ShownValues};

keys! {
    ENABLED: bool = boolean("dispatch.breaker.enabled")
        .default("true")
        .example("false")
        .about("Whether consecutive failures stop calls.")
        .note("See [concepts](CONCEPTS.md#when-the-api-fails).");
    FAILURES: u32 = integer::<_, 1, 1_000>("dispatch.breaker.failures", "calls")
        .default("5")
        .example("7")
        .about("Number of consecutive failures that stop calls.")
        .note("If `retry.max-attempts` is lower, it applies instead.");
    INITIAL_INTERVAL: Duration = duration::<10, HOUR>("dispatch.breaker.initial-interval")
        .default("1s")
        .example("2s")
        .about("Wait before the first probe; it doubles with each failed probe.");
    MAX_INTERVAL: Duration = duration::<10, HOUR>("dispatch.breaker.max-interval")
        .default("30s")
        .example("1m")
        .at_least("dispatch.breaker.initial-interval")
        .about("Longest wait between two probes, and so the longest delay until an API's return \
            is noticed.");
}

/// `dispatch.breaker`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerConfig {
    /// `dispatch.breaker.failures`: the number of consecutive failures that stops calls.
    pub failures: u32,
    /// `dispatch.breaker.initial-interval`: the wait before the first probe.
    pub initial_interval: Duration,
    /// `dispatch.breaker.max-interval`: the longest wait between two probes.
    pub max_interval: Duration,
}

/// Adds the section's values to `values`.
pub(super) fn show(breaker: Option<&BreakerConfig>, values: &mut ShownValues) {
    values.set(&ENABLED.key, ShownValue::bare(breaker.is_some()));
    let Some(breaker) = breaker else {
        return;
    };
    let BreakerConfig {
        failures,
        initial_interval,
        max_interval,
    } = breaker;
    values.set(&FAILURES.key, ShownValue::bare(failures));
    values.set(
        &INITIAL_INTERVAL.key,
        ShownValue::duration(*initial_interval),
    );
    values.set(&MAX_INTERVAL.key, ShownValue::duration(*max_interval));
}

impl ConfigInput {
    /// Reads the section. Returns `Some(None)` if the breaker is not enabled, and `None` after a
    /// problem.
    pub(super) fn breaker(&mut self) -> Option<Option<BreakerConfig>> {
        let enabled = self.get(&ENABLED);
        let failures = self.get(&FAILURES);
        let (initial_interval, max_interval) = self.pair(&INITIAL_INTERVAL, &MAX_INTERVAL)?;
        let breaker = BreakerConfig {
            failures: failures?,
            initial_interval,
            max_interval,
        };
        Some(enabled?.then_some(breaker))
    }
}
