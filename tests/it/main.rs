//! The one integration binary, a module for each subject.
mod broker;
mod broker_amqp;
mod broker_bed;
mod broker_faults;
mod broker_memory;
mod scheduler;
mod servers;
