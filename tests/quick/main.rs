//! Tests without servers: decisions, configuration, documents and the house rules. They take
//! seconds after a build. `cargo test --test quick` runs all of them, `cargo test --test quick --
//! config` a part.

#![forbid(unsafe_code)]
#![allow(clippy::too_many_lines, reason = "a test may have many steps or cases")]

mod apis;
mod cases;
mod config;
mod corpus;
mod documents;
mod engine_events;
mod even_flow;
mod gate;
mod observability;
mod scheduler;
mod tidy;
mod tidy_circles;
mod tidy_files;
mod tidy_words;
