//! Logs, metrics, traces, alerts and dashboards.

mod log_lines;
mod monitoring;
mod observability;
mod traces;
