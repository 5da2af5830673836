//! What the API says in its answers, by which its jobs go on. An answer is read once, by [`verdict`]:
//!
//! - the outcome of the job, by the status, `Retry-After`, and whether nothing is left (`status.rs`);
//! - for how long the API wants no more calls: `Retry-After`, and the RateLimit headers where nothing is left (`pushback.rs`);
//! - whom that stops, the tenant or all of them (`throttle_scope.rs`);
//! - what its own limits are, and where ours allow more (`advertised.rs`);
//! - what the job has cost (`x-actual-cost`, in `pushback.rs`).
//!
//! `src/handler/http/answer.rs` asks this. What follows for other jobs: `src/engine/scheduler/answers`, and in Redis `lua/block.lua` and
//! `lua/quota.lua`. An answer is a stranger's text: `fuzz/fuzz_targets/pushback.rs` tries any.

mod advertised;
mod pushback;
mod status;
mod throttle_scope;

pub use advertised::{Excess, MAX_QUOTAS, Quota, Quotas};
pub use pushback::{Pushback, Seen, Verdict, verdict};
pub use status::{Answers, Meaning, Which};
pub use throttle_scope::ThrottleScope;
