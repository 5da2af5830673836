//! The one integration binary, a module for each subject.
mod gate_model;
mod gate_scenarios;
mod gate_simulator;
mod servers;
