//! The one integration binary, a module for each subject.
mod broker;
mod broker_amqp;
mod broker_bed;
mod broker_faults;
mod config;
mod gate_model;
mod gate_scenarios;
mod gate_simulator;
mod scheduler;
mod engine_events;
mod servers;
mod tidy;
