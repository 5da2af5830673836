//! The gate, its scripts and their models.

mod conformance;
mod expiry;
mod lua;
mod shortcut;
