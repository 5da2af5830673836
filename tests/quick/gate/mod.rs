//! The gate, its scripts and their models.

mod conformance;
mod lua;
mod shortcut;
