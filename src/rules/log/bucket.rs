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
    /// Its highest level since then, and in [`PERIOD_MS`] or more before.
    since: u64,
    peak: i64,
    peak_before: i64,
}

/// For how long the highest level is remembered at least, in milliseconds.
const PERIOD_MS: u64 = 60_000;
/// A call may cost far more than it was charged. What it used beyond the tokens there were is refilled within this at most,
/// a century.
const DEBT_MS: u64 = 3_153_600_000_000;
/// What is missing at most: Lua's numbers hold it exactly, and the sum of it and [`most`] too.
const DEBT: u64 = 1 << 52;
/// The store keeps no later time at which a bucket is full. A large burst that is refilled by one unit a month is full later.
const LATEST_MS: u64 = (1 << 48) - 1;

impl Bucket {
    pub fn load(&mut self, limit: &Limit, now: u64) {
        let span = limit.span();
        let Level {
            span: _,
            mut tokens,
            at,
            full,
            mut since,
            mut peak,
            mut peak_before,
        } = self.stored;
        if full <= now {
            tokens = most(limit);
        }
        let passed = now - at.min(now);
        tokens = refilled(tokens, limit, passed);
        if full <= now || since > now {
            (since, peak, peak_before) = (now, most(limit), most(limit));
        }
        // It has only risen since it was stored.
        peak = peak.max(tokens);
        if now >= since + 2 * PERIOD_MS {
            (since, peak, peak_before) = (now, tokens, tokens);
        } else if now >= since + PERIOD_MS {
            (since, peak, peak_before) = (now, tokens, peak);
        }
        self.live = Level {
            span,
            tokens,
            at: now,
            full,
            since,
            peak,
            peak_before,
        };
        if at > now {
            // A level of later than now: the clock was stepped back. It is refilled from here on.
            self.take(limit, 0);
        }
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
        let tokens = units.saturating_mul(self.live.span);
        self.live.tokens = (self.live.tokens.saturating_sub_unsigned(tokens)).max(least(limit));
        let missing = (most(limit) - self.live.tokens).cast_unsigned();
        let full = self.live.at + missing.div_ceil(u64::from(limit.max()));
        self.live.full = full.min(LATEST_MS);
        self.stored = self.live;
    }

    /// A start at `started` used so many units more (or fewer) than it was charged.
    ///
    /// Had it not been charged, a bucket that was full in between would have let that flow over. So only what still
    /// had room at its highest level since then is given back, or what can't have flowed in again since.
    pub fn settle(&mut self, limit: &Limit, started: u64, change: i64) {
        let mut tokens = (-change).saturating_mul(self.live.span.cast_signed());
        if tokens > 0 {
            let passed = self.live.at.saturating_sub(started);
            let flowed = passed.saturating_mul(limit.max().into());
            let certain = tokens.saturating_sub_unsigned(flowed);
            let room = match started {
                _ if started >= self.live.since => most(limit) - self.live.peak,
                _ if started + PERIOD_MS >= self.live.since => {
                    most(limit) - self.live.peak.max(self.live.peak_before)
                }
                _ => 0,
            };
            tokens = tokens.min(room.max(certain).max(0));
        }
        let level = self.live.tokens.saturating_add(tokens);
        self.live.tokens = level.clamp(least(limit), most(limit));
        self.live.peak = self.live.peak.max(self.live.tokens);
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

/// The lowest level.
fn least(limit: &Limit) -> i64 {
    let century = DEBT_MS.saturating_mul(limit.max().into());
    -century.min(DEBT).cast_signed()
}

fn refilled(level: i64, limit: &Limit, millis: u64) -> i64 {
    let refill = millis.saturating_mul(limit.max().into());
    (level.max(least(limit)).saturating_add_unsigned(refill)).min(most(limit))
}
