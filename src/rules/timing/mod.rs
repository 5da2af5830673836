//! Times of calls: latencies, late calls, the pace of starts, promised turns, and turns that come
//! early because calls use less than they reserve.

pub mod cost_estimator;
pub mod latency;
pub mod lateness;
pub mod pacing;
pub mod promise;
