//! `token-bucket-algo` and `leaky-bucket-algo`: a bucket of tokens that is refilled evenly, `max`
//! in a span, up to its capacity. They differ only in the default capacity: the leaky bucket (GCRA,
//! ATM Forum TM 4.1, the virtual scheduling algorithm) holds a single token, which spaces the
//! starts evenly.

use super::product::{LATEST_MS, ceil_muldiv, muldiv};
use super::{
    AlgorithmFacts, DefaultBurst, KeyLayout, PartitionContext, ReportedCall, Rules, StoredUsage,
    Terms, Usage,
};
use crate::clock::Clock;

/// The computations of both algorithms.
pub struct BucketRules;

/// The properties of `token-bucket-algo`.
pub(super) const TOKEN: AlgorithmFacts = AlgorithmFacts {
    name: "token-bucket-algo",
    about: "`burst` at once, refilled with L in W",
    window_words: "per",
    scripts: &["muldiv", "bucket"],
    shortcut: None,
    keys: KeyLayout::Own {
        kind: "token",
        holds: "string",
    },
    default_burst: Some(DefaultBurst::Max),
    holds_leases: false,
    is_aligned: false,
    saves_up: true,
    counts_arrivals: true,
};

/// The properties of `leaky-bucket-algo`.
pub(super) const LEAKY: AlgorithmFacts = AlgorithmFacts {
    name: "leaky-bucket-algo",
    about: "one each W / L, and `burst` at once",
    keys: KeyLayout::Own {
        kind: "leaky",
        holds: "string",
    },
    default_burst: Some(DefaultBurst::One),
    ..TOKEN
};

impl Rules for BucketRules {
    fn stored(&self, _: &Terms) -> StoredUsage {
        StoredUsage::Text(56)
    }

    /// Includes the tolerated lateness, and a millisecond for the rounded clock.
    fn span(&self, terms: &Terms) -> u64 {
        terms.window_ms() + terms.guard_ms() + 1 + terms.forgiven_ms
    }

    fn margin(&self, terms: &Terms) -> u64 {
        terms.forgiven_ms
    }

    /// The sum of a full bucket, the tokens it holds beyond that for lateness, and the refill
    /// during window + guard: burst + max, less the refill of a millisecond.
    fn worst_case(&self, terms: &Terms) -> u64 {
        let (max, burst) = (terms.max(), terms.burst());
        burst + max - max.div_ceil(self.span(terms))
    }

    fn max_units_in(&self, terms: &Terms, ms: u64) -> u64 {
        // A start is written up to a millisecond after it was decided.
        ceil_muldiv(terms.max(), ms + 1, self.span(terms)).saturating_add(terms.burst())
    }

    fn burstiness(&self, terms: &Terms) -> u64 {
        terms.burst()
    }

    fn arriving(&self, terms: &Terms, window_ms: u64) -> u64 {
        let apart = window_ms.saturating_add(terms.guard_ms());
        let apart = apart.saturating_add(terms.forgiven_ms);
        muldiv(terms.max(), apart, self.span(terms)).saturating_add(terms.burst())
    }

    /// Holds if this bucket is refilled at least as fast as `other` lets units start, and has
    /// room for what `other` lets start beyond that, with a unit for rounding.
    fn is_implied_by(&self, terms: &Terms, other: &Terms) -> bool {
        let slower = u128::from(other.max()) * u128::from(terms.span())
            <= u128::from(terms.max()) * u128::from(other.span());
        slower && other.algorithm().rules().burstiness(other) < terms.burst()
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bucket {
    /// The level that the last start wrote.
    stored: Level,
    /// The level as of the last load.
    live: Level,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Level {
    /// The span that `tokens` is scaled with; 0 if the bucket was never used.
    span: u64,
    /// Tokens times `span`, so that a refill of any length is a whole number. Below 0 after a
    /// correction.
    tokens: i128,
    /// When the bucket had this level, in milliseconds since the epoch.
    at: u64,
    /// When it is full, even if its size follows another `max` by then, so that its level need not
    /// be stored any more.
    full: u64,
    /// When the current period began. `peak` is the highest level in it, and `peak_before` in the
    /// period of [`PERIOD_MS`] or more before.
    since: u64,
    peak: i128,
    peak_before: i128,
}

/// Minimum time for which the highest level is remembered, in milliseconds.
pub const PERIOD_MS: u64 = 60_000;
/// Maximum time in which a debt is refilled, in milliseconds: a century. A call may cost far more
/// than it was charged, and leave the bucket below 0.
pub const DEBT_MS: u64 = 3_153_600_000_000;
/// Maximum debt, in tokens: Lua's numbers hold it exactly, and its sum with a full bucket, too.
pub const DEBT: u64 = 1 << 52;

impl Usage for Bucket {
    fn load(&mut self, terms: &Terms, clock: Clock, _: &mut PartitionContext<'_>) {
        let now = clock.now_ms;
        let span = terms.span();
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
            tokens = full_level(terms);
        }
        let passed = now - at.min(now);
        tokens = refilled(tokens, terms, passed);
        if full <= now || since > now {
            (since, peak, peak_before) = (now, full_level(terms), full_level(terms));
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
            self.drain(terms, 0);
        }
    }

    fn count(&self, terms: &Terms, _: u64) -> u64 {
        let tokens = self.live.tokens.div_euclid(self.live.span.into());
        let used = (i128::from(terms.capacity()) - tokens).max(0);
        u64::try_from(used).unwrap_or(u64::MAX)
    }

    fn nth(&self, terms: &Terms, base: u64, k: u64) -> u64 {
        let mut needed = product(k, self.live.span);
        if terms.capacity() == 1 {
            // Each start but the first pays for the distance to the one before it.
            needed += (-allowance(terms)).max(0) * i128::from(k.max(1) - 1);
        }
        let missing = needed - refilled(self.live.tokens, terms, base - self.live.at);
        base + refill_ms(terms, missing)
    }

    fn take(&mut self, terms: &Terms, _: Clock, cost: u64, _: &str) -> u64 {
        self.live.tokens = self.live.tokens.min(highest_at_start(terms));
        self.drain(terms, terms.unit().of(cost));
        0
    }

    /// Counts the call from now. It arrives now at the latest, and the API's bucket is at most full
    /// then. So this bucket holds at most what a start at this moment would leave, and the next
    /// start keeps its distance from now.
    fn late(&mut self, terms: &Terms, _: Clock, ended: &ReportedCall<'_>) -> bool {
        let charged = product(ended.charged(terms), self.live.span);
        let left = highest_at_start(terms) - charged;
        self.live.tokens = self.live.tokens.min(left);
        self.drain(terms, 0);
        false
    }

    /// Gives back unused tokens, but not those that would have overflowed: without the charge, a
    /// bucket that was full since then would have lost them. So it gives back what had room at the
    /// highest level since the start, or what can't have been refilled since.
    fn settle(&mut self, terms: &Terms, clock: Clock, ended: &ReportedCall<'_>) {
        let started = ended.started_ms;
        let mut tokens = i128::from(-ended.change(terms, clock)) * i128::from(self.live.span);
        if tokens > 0 {
            let passed = self.live.at.saturating_sub(started);
            let certain = tokens - product(passed, terms.max());
            let room = match started {
                _ if started >= self.live.since => full_level(terms) - self.live.peak,
                _ if started + PERIOD_MS >= self.live.since => {
                    full_level(terms) - self.live.peak.max(self.live.peak_before)
                }
                _ => 0,
            };
            tokens = tokens.min(room.max(certain).max(0));
        }
        let level = self.live.tokens + tokens;
        self.live.tokens = level.clamp(lowest_level(terms), full_level(terms));
        self.live.peak = self.live.peak.max(self.live.tokens);
        self.drain(terms, 0);
    }

    fn hold(&mut self, terms: &Terms, until_ms: u64) {
        let left = until_ms.saturating_sub(self.live.at);
        self.live.tokens = self.live.tokens.min(-product(left, terms.max()));
        self.drain(terms, 0);
    }

    fn end(&self) -> u64 {
        self.stored.full
    }
}

impl Bucket {
    fn drain(&mut self, terms: &Terms, units: u64) {
        let left = self.live.tokens - product(units, self.live.span);
        self.live.tokens = left.max(lowest_level(terms));
        let mut wait = refill_ms(terms, full_level(terms) - self.live.tokens);
        let default_burst = terms.algorithm().facts().default_burst;
        if default_burst == Some(DefaultBurst::Max) && terms.burst() == terms.max() {
            // The end of a lower max makes the bucket larger, and it may not be full then.
            wait = wait.max(terms.span() + terms.forgiven_ms);
        }
        self.live.full = (self.live.at + wait).min(LATEST_MS);
        self.stored = self.live;
    }
}

/// Returns the lateness of a start, in milliseconds, for which a full bucket holds more than
/// `burst`. It is 0 if the bucket has room for the inflow meanwhile, besides the unit of the start:
/// nothing overflows then. If it held more after a burst, the API's bucket would lack the excess
/// for the next call. It follows from the configured numbers and stays while a lower `max` is in
/// force, because levels are counted in parts of the span.
pub(crate) fn forgiven_ms(terms: &Terms) -> u64 {
    let inflow = product(terms.lateness_ms(), terms.max());
    let room = product(terms.capacity().saturating_sub(1), terms.window_ms());
    if terms.algorithm().has_burst() && room < inflow {
        terms.lateness_ms()
    } else {
        0
    }
}

/// Returns a product as a scaled level, which exceeds 64 bits. The script keeps whole tokens and
/// the rest apart.
fn product(a: u64, b: u64) -> i128 {
    i128::from(a) * i128::from(b)
}

/// Returns how long the refill of `missing` scaled tokens takes, in milliseconds, at most
/// [`LATEST_MS`].
fn refill_ms(terms: &Terms, missing: i128) -> u64 {
    let missing = missing.max(0).cast_unsigned();
    let millis = missing.div_ceil(terms.max().into());
    u64::try_from(millis).map_or(LATEST_MS, |millis| millis.min(LATEST_MS))
}

/// Returns what a full bucket may hold beyond `burst` tokens at a start: what flows in during the
/// lateness that it forgives. If starts are kept apart, it is lower, so that the next start is at
/// least `window / max` and [`Terms::spacing_us`] later. Below 0, the next start waits longer than
/// the refill takes.
fn allowance(terms: &Terms) -> i128 {
    let max = i128::from(terms.max());
    let forgiven = product(terms.forgiven_ms, terms.max());
    if terms.spacing_us() == 0 {
        return forgiven;
    }
    let window = i128::from(terms.window_ms());
    let apart = i128::from(terms.spacing_us()) * max;
    let ceil = |dividend: i128, divisor: i128| (dividend + divisor - 1) / divisor;
    // The minimum refill until the next start.
    let needed = match terms.capacity() {
        // Starts are whole milliseconds apart, so this is not reached a millisecond earlier.
        1 => (ceil(1000 * window + apart, 1000 * max) - 1) * max + 1,
        _ => window + ceil(apart, 1000),
    };
    forgiven.min(i128::from(terms.span()) - needed)
}

/// Returns the highest level that a start finds: what is above flows over.
fn highest_at_start(terms: &Terms) -> i128 {
    product(terms.capacity(), terms.span()) + allowance(terms)
}

/// Returns the level of a full bucket, in scaled tokens: `burst`, and what it holds beyond that for
/// lateness.
fn full_level(terms: &Terms) -> i128 {
    product(terms.capacity(), terms.span()) + allowance(terms).max(0)
}

/// Returns the lowest level, in scaled tokens.
fn lowest_level(terms: &Terms) -> i128 {
    -product(DEBT_MS, terms.max()).min(product(DEBT, terms.span()))
}

fn refilled(level: i128, terms: &Terms, millis: u64) -> i128 {
    let level = level.max(lowest_level(terms)) + product(millis, terms.max());
    level.min(full_level(terms))
}
