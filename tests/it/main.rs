//! The one integration binary, a module for each subject.
mod gate_conformance;
mod gate_lua;
mod gate_model;
mod gate_redis;
mod gate_scenarios;
mod gate_seeds;
mod gate_simulator;
mod servers;
