//! `delay`: how jobs wait.

use std::time::Duration;

use super::section::section;
use crate::reading::key::{DAY, MINUTE, SECOND, duration};
use crate::reading::keys;

keys! {
    MAX_IN_MEMORY: Duration = duration::<0, MINUTE>("delay.max-in-memory")
        .default("500ms")
        .live()
        .about("Longest wait in the worker's memory; longer waits are spent in RabbitMQ.");
    MAX_DELAY: Duration = duration::<SECOND, DAY>("delay.max-delay")
        .default("5m")
        .at_least(&MAX_IN_MEMORY)
        .about("Longest stay in a delay queue, and so the time within which a changed limit \
            reaches every job.")
        .note("A job that waits longer asks again after each stay. Values above 10m count as 10m. \
            The delay queues do not depend on it.");
}

section! {
    /// `delay`
    #[derive(Debug, Clone, PartialEq)]
    pub struct DelayConfig {
        /// `delay.max-in-memory`: waits up to this are spent in the worker's memory.
        pub max_in_memory: Duration = MAX_IN_MEMORY,
        /// `delay.max-delay`: one trip through a delay queue takes at most this.
        pub max_delay: Duration = MAX_DELAY,
    }
}
