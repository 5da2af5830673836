//! The integration test binary, with a module per subject.

#![allow(clippy::too_many_lines, reason = "a test may have many steps or cases")]

mod admin;
mod api;
mod broker;
mod cli;
mod demo;
mod fake_redis;
mod fleet;
mod gate;
mod guard;
mod http;
mod jobs;
mod least_rights;
mod limits;
mod packages;
mod page;
mod pipelines;
mod publishers;
mod readme;
mod scale;
mod servers_themselves;
mod simulate;
mod telemetry;
mod worker;
mod world;
mod zoo;

use kit::process::Program;

/// The program that cargo built for these tests.
const PROGRAM: Program = Program(env!("CARGO_BIN_EXE_sluicegate"));
