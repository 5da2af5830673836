//! The one integration binary, a module for each subject.
mod admin;
mod broker;
mod broker_amqp;
mod broker_bed;
mod broker_faults;
mod broker_memory;
mod cli;
mod cli_servers;
mod config;
mod engine_events;
mod gate_model;
mod gate_scenarios;
mod gate_simulator;
mod http;
mod scheduler;
mod servers;
mod tidy;
