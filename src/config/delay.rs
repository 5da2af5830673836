//! `delay`: how jobs wait.

use std::time::Duration;

use super::input::ConfigInput;
use super::key::{DAY, MINUTE, SECOND, duration, keys};
use super::shown_value::{ShownValue, ShownValues};

keys! {
    MAX_IN_MEMORY: Duration = duration::<0, MINUTE>("delay.max-in-memory")
        .default("500ms")
        .example("1s")
        .live()
        .about("Longest wait in the worker's memory; longer waits are spent in RabbitMQ.");
    MAX_DELAY: Duration = duration::<SECOND, DAY>("delay.max-delay")
        .default("5m")
        .example("90s")
        .at_least("delay.max-in-memory")
        .about("Longest stay in a delay queue, and so the time within which a changed limit \
            reaches every job.")
        .note("A job that waits longer asks again after each stay. Values above 10m count as 10m. \
            The delay queues do not depend on it.");
}

/// `delay`
#[derive(Debug, Clone, PartialEq)]
pub struct DelayConfig {
    /// `delay.max-in-memory`: waits up to this are spent in the worker's memory.
    pub max_in_memory: Duration,
    /// `delay.max-delay`: one trip through a delay queue takes at most this.
    pub max_delay: Duration,
}

impl DelayConfig {
    /// Adds the section's values to `values`.
    pub(super) fn show(&self, values: &mut ShownValues) {
        let Self {
            max_in_memory,
            max_delay,
        } = self;
        values.set(&MAX_IN_MEMORY.key, ShownValue::duration(*max_in_memory));
        values.set(&MAX_DELAY.key, ShownValue::duration(*max_delay));
    }

    /// Takes the values of `new` that can change in a running worker.
    pub(super) fn take_live(&mut self, new: &Self) {
        self.max_in_memory = new.max_in_memory.min(self.max_delay);
    }
}

impl ConfigInput {
    /// Reads the section. Returns `None` after a problem.
    pub(super) fn delay(&mut self) -> Option<DelayConfig> {
        let (max_in_memory, max_delay) = self.pair(&MAX_IN_MEMORY, &MAX_DELAY)?;
        Some(DelayConfig {
            max_in_memory,
            max_delay,
        })
    }
}
