//! The one integration binary, a module for each subject.
mod config;
mod scheduler;
mod servers;
mod tidy;
