//! Whole workers in simulated time: the real engine over the in-memory broker and gate, on tokio's
//! paused clock. Hours of waiting take no time, and the same seed gives the same result.
//!
//! There is one simulator. `tests/simulation` injects its faults into the [`environment`].
//! `sluicegate simulate` and `sluicegate test` run a [`load`] against an [`api`] there ([`run`]),
//! compute the [`figures`] and show them ([`table`], [`chart`]).
//! docs/decisions/structure.md#one-simulator has the reasons.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test may have many cases")
)]

pub mod api;
pub mod cases;
pub mod chart;
pub mod environment;
pub mod figures;
pub mod forms;
mod gate;
pub mod history;
pub mod jobs;
pub mod limiter;
pub mod load;
mod mistake;
pub mod profile;
mod random;
pub mod run;
mod scalar;
pub mod stop_rule;
pub mod table;
