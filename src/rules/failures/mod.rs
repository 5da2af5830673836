//! Responses to failures: breakers, throttles and retries, and advice on refused calls.

pub mod breaker;
pub mod crash;
pub mod refusals;
pub mod retry;
pub mod throttle_backoff;
