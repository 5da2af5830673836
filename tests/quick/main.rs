//! Tests without servers: decisions, configuration, documents and the house rules. They take
//! seconds after a build. `cargo test --test quick` runs all of them, `cargo test --test quick --
//! config` a part.

#![forbid(unsafe_code)]

mod cases;
mod config;
mod config_admin;
mod config_amqp;
mod config_answers;
mod config_calls;
mod config_headers;
mod config_limits;
mod config_redis;
mod config_results;
mod config_schema;
mod config_ways;
mod corpus;
mod documents;
mod engine_events;
mod even_flow;
mod gate_conformance;
mod gate_lua;
mod observability;
mod scheduler;
mod scheduler_breaker;
mod scheduler_closing;
mod scheduler_dedupe;
mod scheduler_delays;
mod scheduler_expiry;
mod scheduler_fitness;
mod scheduler_held;
mod scheduler_load;
mod scheduler_prepare;
mod scheduler_results;
mod scheduler_scopes;
mod scheduler_settle;
mod scheduler_shards;
mod scheduler_starts;
mod scheduler_steering;
mod scheduler_suspects;
mod scheduler_traces;
mod scheduler_waking;
mod tidy;
mod tidy_circles;
mod tidy_files;
mod tidy_words;
