//! The one integration binary, a module for each subject.
mod broker;
mod broker_bed;
mod config;
mod scheduler;
mod servers;
mod tidy;
