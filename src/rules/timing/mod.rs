//! Times of calls: latencies, late calls, the pace of starts, and promised turns.

pub mod latency;
pub mod lateness;
pub mod pacing;
pub mod promise;
