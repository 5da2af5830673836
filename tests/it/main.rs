//! The one integration binary, a module for each subject.
mod broker;
mod broker_amqp;
mod broker_bed;
mod broker_faults;
mod config;
mod scheduler;
mod servers;
mod tidy;
