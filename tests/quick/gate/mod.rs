//! The gate, its scripts and their models.

mod boundaries;
mod conformance;
mod expiry;
mod lua;
mod shortcut;
