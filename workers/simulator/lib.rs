//! Whole workers in simulated time: the real engine over the broker and the gate in memory, on tokio's paused clock. Hours of waiting
//! take no time, and the same seed gives the same result.
//!
//! There is one simulator. `tests/simulation` plays its faults on the [`stage`]; `sluicegate simulate` and `sluicegate test` play a
//! [`load`] against an [`api`] there ([`run`]), count what came of it ([`figures`]) and show it ([`words`], [`picture`]).
//! Why it is made like this: docs/decisions/structure.md#one-simulator.
#![forbid(unsafe_code)]

pub mod api;
pub mod cases;
pub mod figures;
pub mod forms;
mod gate;
pub mod history;
pub mod jobs;
pub mod limiter;
pub mod load;
mod mistake;
pub mod patience;
pub mod picture;
mod random;
pub mod run;
mod scalar;
pub mod stage;
pub mod words;
