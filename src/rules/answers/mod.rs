//! Reads the API's answers. [`verdict`] reads an answer once:
//!
//! - the outcome of the job, by the status, `Retry-After`, and whether a limit is used up
//!   (`status.rs`);
//! - how long the API wants no more calls: `Retry-After`, and the RateLimit headers if a limit is
//!   used up (`pushback.rs`);
//! - whether that stops the tenant or all tenants (`throttle_scope.rs`);
//! - which limits the API advertises, and whether ours allow more (`advertised.rs`);
//! - the actual cost of the job (`x-actual-cost`, in `pushback.rs`).
//!
//! Called by `src/handler/http/answer.rs`. The consequences for other jobs are in
//! `src/engine/scheduler/answers`, and in Redis in `lua/block.lua` and `lua/quota.lua`. Answers are
//! untrusted input: `fuzz/fuzz_targets/pushback.rs` tries arbitrary ones.

mod advertised;
mod pushback;
mod status;
mod throttle_scope;

pub use advertised::{Excess, MAX_QUOTAS, Quota, Quotas};
pub use pushback::{Interpretation, LimitInfo, Pushback, verdict};
pub use status::{AnswerPattern, Answers, Consequence};
pub use throttle_scope::ThrottleScope;
