//! The pure core: every decision, no I/O, `now` is always an argument.

#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test may have many cases")
)]

pub mod algorithms;
pub mod answers;
pub mod broker;
pub mod calendar;
pub mod clock;
pub mod decision;
pub mod dedupe;
pub mod delays;
pub mod failures;
pub mod gate;
pub mod headers;
pub mod job;
#[cfg(test)]
pub(crate) mod kit;
pub mod layout;
pub mod learned;
pub mod limit;
pub mod named;
pub mod policy;
pub mod report;
pub mod scope;
pub mod slots;
pub mod steering;
pub mod tenant;
pub mod text;
pub mod timing;
pub mod trace;
