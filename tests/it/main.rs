//! The one integration binary, a module for each subject.
mod gate_scenarios;
mod gate_simulator;
mod servers;
