//! `token-bucket-algo` and `leaky-bucket-algo`: a bucket of tokens that is refilled evenly, `max` in a span, up to
//! its capacity. They differ in the capacity alone: GCRA (ATM Forum TM 4.1, the virtual scheduling algorithm) is
//! the bucket of `burst` tokens, whose usual burst of 1 spaces the starts evenly.

use crate::rules::limit::Limit;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bucket {
    /// What was written by the last start.
    stored: Level,
    /// The same at the time of the last load.
    live: Level,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Level {
    /// The span that `tokens` is scaled with; 0: it was never used.
    span: u64,
    /// Tokens times `span`, so that a refill of any length is a whole number. Below 0 after a correction.
    tokens: i64,
    /// When it had this level, in milliseconds since the epoch.
    at: u64,
    /// When it is full, and need not be remembered.
    full: u64,
}

impl Bucket {
    pub fn load(&mut self, limit: &Limit, now: u64) {
        let span = limit.span();
        let Level {
            span: scale,
            mut tokens,
            at,
            full,
        } = self.stored;
        if full <= now {
            tokens = most(limit);
        } else if scale != span {
            // The fraction of a token is lost.
            tokens = tokens.div_euclid(scale.cast_signed()) * span.cast_signed();
        }
        // A level of later than now: the clock was stepped back.
        let passed = now - at.min(now);
        self.live = Level {
            span,
            tokens: refilled(tokens, limit, passed),
            at: now,
            full,
        };
    }

    pub fn count(&self, limit: &Limit) -> u64 {
        let tokens = self.live.tokens.div_euclid(self.live.span.cast_signed());
        (i64::from(limit.capacity()) - tokens)
            .max(0)
            .cast_unsigned()
    }

    pub fn nth(&self, limit: &Limit, base: u64, k: u64) -> u64 {
        let wanted = (k * self.live.span).cast_signed();
        let missing = wanted - refilled(self.live.tokens, limit, base - self.live.at);
        let missing = missing.max(0).cast_unsigned();
        base + missing.div_ceil(u64::from(limit.max()))
    }

    pub fn take(&mut self, limit: &Limit, units: u64) {
        self.live.tokens -= (units * self.live.span).cast_signed();
        let missing = (most(limit) - self.live.tokens).cast_unsigned();
        self.live.full = self.live.at + missing.div_ceil(u64::from(limit.max()));
        self.stored = self.live;
    }

    /// A start used so many units more (or fewer) than it was charged.
    pub fn settle(&mut self, limit: &Limit, change: i64) {
        let tokens = self.live.tokens - change * self.live.span.cast_signed();
        self.live.tokens = tokens.min(most(limit));
        self.take(limit, 0);
    }

    /// When it no longer says anything.
    pub fn end(&self) -> u64 {
        self.stored.full
    }
}

/// The level of a full bucket: `burst` tokens, and what flows in during the lateness. At most 10^6 times 2.7 * 10^9 and a
/// little more, below what Lua's numbers hold exactly.
fn most(limit: &Limit) -> i64 {
    let late = limit.lateness_ms() * u64::from(limit.max());
    (u64::from(limit.capacity()) * limit.span() + late).cast_signed()
}

fn refilled(level: i64, limit: &Limit, millis: u64) -> i64 {
    let refill = millis.saturating_mul(limit.max().into());
    level.saturating_add_unsigned(refill).min(most(limit))
}
