//! The gate, its scripts and their models.

mod boundaries;
mod conformance;
mod expiry;
mod instructions;
mod lua;
mod shortcut;
