//! Sluicegate stands between a RabbitMQ queue and an API that must not be called too often.
//!
//! A job's way is one way: delivery -> job -> gate -> dispatch | delay | dead letter -> ack.
//! `rules` decides and never waits; `gate`, `broker` and `handler` do I/O and decide nothing;
//! `engine` moves jobs between them; only `app` names the concrete servers.
#![forbid(unsafe_code)]

pub mod admin;
pub mod app;
pub mod broker;
pub mod config;
pub mod engine;
pub mod gate;
pub mod handler;
pub mod metrics;
pub mod rules;
pub mod tasks;
pub mod telemetry;
mod tls;
#[doc(hidden)]
pub mod untrusted;
