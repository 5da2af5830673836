//! The one integration binary, a module for each subject.
mod scheduler;
mod servers;
mod tidy;
