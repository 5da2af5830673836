//! The gate's rules: usage, waitlists and forecasts, and the model that the Lua scripts follow.

pub mod fair_queue;
pub mod forecast;
pub mod model;
pub mod shadow;
pub mod usage;
pub mod waitlist;
