//! The gate, its scripts and their models.

mod boundaries;
mod conformance;
mod epoch;
mod expiry;
mod histories;
mod instructions;
mod learned;
mod lua;
mod shortcut;
