//! Reads the API's answers. [`verdict`] reads an answer once:
//!
//! - the outcome of the job: by rules on status, headers and body (`rule.rs`, `condition.rs`,
//!   `source.rs`, `pointer.rs`), or else by the status, `Retry-After`, and whether a limit is used
//!   up (`status.rs`);
//! - how long the API wants no more calls: as the rule says, or by `Retry-After`, and the RateLimit
//!   headers if a limit is used up (`pushback.rs`);
//! - whether that stops the tenant or all tenants (`throttle_scope.rs`);
//! - which limits the API advertises, and whether ours allow more (`advertised.rs`);
//! - the actual cost of the job (a source of `dispatch.http.cost`, or `x-actual-cost`).
//!
//! Called by `src/handler/http/answer.rs`. The consequences for other jobs are in
//! `src/engine/scheduler/calling/answers`, and in Redis in `lua/block.lua` and `lua/quota.lua`.
//! Answers are untrusted input: `fuzz/fuzz_targets/pushback.rs` tries arbitrary ones.

mod advertised;
mod condition;
mod pointer;
mod pushback;
mod rule;
mod source;
mod status;
mod throttle_scope;
mod value;

pub use advertised::{Excess, MAX_QUOTAS, Quota, Quotas};
pub use condition::{Conditions, ExpectedValue, ValueTest};
pub use pointer::BodyPointer;
pub use pushback::{Interpretation, LimitInfo, Pushback, verdict};
pub use rule::{AnswerRule, AnswerRules, ReceivedAnswer};
pub use source::{ValueSource, WaitSource};
pub use status::{AnswerPattern, Answers, Consequence, StatusPattern};
pub use throttle_scope::ThrottleScope;
pub use value::TimeForm;

/// Returns the headers `pairs`. Skips names and values that HTTP can't carry.
#[cfg(test)]
fn headers<N: AsRef<str>, V: AsRef<[u8]>>(
    pairs: impl IntoIterator<Item = (N, V)>,
) -> http::HeaderMap {
    let sendable = pairs.into_iter().filter_map(|(name, value)| {
        let name = http::HeaderName::from_bytes(name.as_ref().as_bytes()).ok()?;
        Some((name, http::HeaderValue::from_bytes(value.as_ref()).ok()?))
    });
    sendable.collect()
}
