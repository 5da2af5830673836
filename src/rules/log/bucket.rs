//! `token-bucket-algo` and `leaky-bucket-algo`: a bucket of tokens that is refilled evenly, `max` in a span, up to
//! its capacity. They differ in the capacity alone: GCRA (ATM Forum TM 4.1, the virtual scheduling algorithm) is
//! the bucket of `burst` tokens, whose usual burst of 1 spaces the starts evenly.

use crate::rules::limit::Limit;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bucket {
    /// The span that `level` is scaled with; 0: it was never used.
    span: u64,
    /// Tokens times `span`, so that a refill of any length is a whole number. Below 0 after a correction.
    level: i64,
    /// When it had this level, in milliseconds since the epoch.
    at: u64,
    /// When it is full, and need not be remembered.
    full: u64,
}

impl Bucket {
    pub fn load(&mut self, limit: &Limit, now: u64) {
        let span = limit.span();
        let most = most(limit);
        if self.full <= now {
            self.level = most;
        } else if self.span != span {
            // The fraction of a token is lost.
            self.level = self.level.div_euclid(self.span.cast_signed()) * span.cast_signed();
        }
        // A level of later than now: the clock was stepped back.
        let passed = now - self.at.min(now);
        self.level = refilled(self.level, limit, passed);
        self.span = span;
        self.at = now;
    }

    pub fn count(&self, limit: &Limit) -> u64 {
        let tokens = self.level.div_euclid(self.span.cast_signed());
        (i64::from(limit.capacity()) - tokens)
            .max(0)
            .cast_unsigned()
    }

    pub fn nth(&self, limit: &Limit, base: u64, k: u64) -> u64 {
        let wanted = (k * self.span).cast_signed();
        let missing = wanted - refilled(self.level, limit, base - self.at);
        base + missing
            .max(0)
            .cast_unsigned()
            .div_ceil(u64::from(limit.max()))
    }

    pub fn take(&mut self, limit: &Limit, units: u64) {
        self.level -= (units * self.span).cast_signed();
        let missing = (most(limit) - self.level).cast_unsigned();
        self.full = self.at + missing.div_ceil(u64::from(limit.max()));
    }

    /// When it no longer says anything.
    pub fn end(&self) -> u64 {
        self.full
    }
}

/// The level of a full bucket: at most 10^6 times 2.7 * 10^9, below what Lua's numbers hold exactly.
fn most(limit: &Limit) -> i64 {
    (u64::from(limit.capacity()) * limit.span()).cast_signed()
}

fn refilled(level: i64, limit: &Limit, millis: u64) -> i64 {
    let refill = millis.saturating_mul(limit.max().into());
    level.saturating_add_unsigned(refill).min(most(limit))
}
