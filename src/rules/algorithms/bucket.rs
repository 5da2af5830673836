//! `token-bucket-algo` and `leaky-bucket-algo`: a bucket of tokens that is refilled evenly, `max`
//! in a span, up to its capacity. They differ only in the default capacity: the leaky bucket (GCRA,
//! ATM Forum TM 4.1, the virtual scheduling algorithm) holds a single token, which spaces the
//! starts evenly.

use super::{KeyLayout, PartitionContext, ReportedCall, Rules, StoredUsage, Terms, Usage};
use crate::rules::clock::Clock;

/// The algorithm whose default burst is `max`.
pub struct Token;
/// The algorithm whose default burst is 1.
pub struct Leaky;

/// The methods that both algorithms share.
macro_rules! both {
    () => {
        fn window_words(&self) -> &'static str {
            "per"
        }

        fn script(&self) -> &'static str {
            include_str!("../../../lua/bucket.lua")
        }

        fn stored(&self, _: &Terms) -> StoredUsage {
            StoredUsage::Text(44)
        }

        fn saves_up(&self) -> bool {
            true
        }

        /// Includes the tolerated lateness, and a millisecond for the rounded clock.
        fn span(&self, terms: &Terms) -> u64 {
            terms.window_ms() + terms.guard_ms() + 1 + forgiven_ms(terms)
        }

        fn margin(&self, terms: &Terms) -> u64 {
            forgiven_ms(terms)
        }

        fn counts_arrivals(&self) -> bool {
            true
        }

        /// The sum of a full bucket, the tokens it holds beyond that for lateness, and the refill
        /// during window + guard: burst + max, less the refill of a millisecond.
        fn worst_case(&self, terms: &Terms) -> u64 {
            let (max, burst) = (u64::from(terms.max()), u64::from(terms.burst()));
            burst + max - max.div_ceil(self.span(terms))
        }

        fn max_units_in(&self, terms: &Terms, ms: u64) -> u64 {
            // A start is written up to a millisecond after it was decided.
            let flows = u64::from(terms.max()) * (ms + 1);
            u64::from(terms.burst()) + flows.div_ceil(self.span(terms))
        }

        fn burstiness(&self, terms: &Terms) -> u64 {
            terms.burst().into()
        }

        fn arriving(&self, terms: &Terms, window_ms: u64) -> u64 {
            let apart = window_ms.saturating_add(terms.guard_ms());
            let apart = u128::from(apart.saturating_add(forgiven_ms(terms)));
            let filled = u128::from(terms.max()) * apart / u128::from(self.span(terms));
            let filled = u64::try_from(filled).unwrap_or(u64::MAX);
            filled.saturating_add(u64::from(terms.burst()))
        }

        /// Holds if this bucket is refilled at least as fast as `other` lets units start, and has
        /// room for what `other` lets start beyond that, with a unit for rounding.
        fn is_implied_by(&self, terms: &Terms, other: &Terms) -> bool {
            let slower = u128::from(other.max()) * u128::from(terms.span())
                <= u128::from(terms.max()) * u128::from(other.span());
            slower && other.algorithm().rules().burstiness(other) < u64::from(terms.burst())
        }
    };
}

impl Rules for Token {
    fn name(&self) -> &'static str {
        "token-bucket-algo"
    }

    fn about(&self) -> &'static str {
        "`burst` at once, refilled with L in W"
    }

    fn keys(&self) -> KeyLayout {
        KeyLayout::Own {
            kind: "token",
            holds: "string",
        }
    }

    fn default_burst(&self, max: u32) -> Option<u32> {
        Some(max)
    }

    both!();
}

impl Rules for Leaky {
    fn name(&self) -> &'static str {
        "leaky-bucket-algo"
    }

    fn about(&self) -> &'static str {
        "one each W / L, and `burst` at once"
    }

    fn keys(&self) -> KeyLayout {
        KeyLayout::Own {
            kind: "leaky",
            holds: "string",
        }
    }

    fn default_burst(&self, _: u32) -> Option<u32> {
        Some(1)
    }

    both!();
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
    tokens: i64,
    /// When the bucket had this level, in milliseconds since the epoch.
    at: u64,
    /// When it is full, so that its level need not be stored any more.
    full: u64,
    /// When the current period began. `peak` is the highest level in it, and `peak_before` in the
    /// period of [`PERIOD_MS`] or more before.
    since: u64,
    peak: i64,
    peak_before: i64,
}

/// Minimum time for which the highest level is remembered, in milliseconds.
pub(crate) const PERIOD_MS: u64 = 60_000;
/// Maximum time in which a debt is refilled, in milliseconds: a century. A call may cost far more
/// than it was charged, and leave the bucket below 0.
pub(crate) const DEBT_MS: u64 = 3_153_600_000_000;
/// Maximum debt, in scaled tokens: Lua's numbers hold it exactly, and its sum with [`full_level`],
/// too.
pub(crate) const DEBT: u64 = 1 << 52;
/// The latest time at which a bucket is full, in milliseconds since the epoch, as the store keeps
/// it. A large burst that is refilled by one unit a month is full later.
pub(crate) const LATEST_MS: u64 = (1 << 48) - 1;

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
        let tokens = self.live.tokens.div_euclid(self.live.span.cast_signed());
        (i64::from(terms.capacity()) - tokens)
            .max(0)
            .cast_unsigned()
    }

    fn nth(&self, terms: &Terms, base: u64, k: u64) -> u64 {
        let mut needed = (k * self.live.span).cast_signed();
        if terms.capacity() == 1 {
            // Each start but the first pays for the distance to the one before it.
            needed += (-allowance(terms)).max(0) * (k.max(1) - 1).cast_signed();
        }
        let missing = needed - refilled(self.live.tokens, terms, base - self.live.at);
        let missing = missing.max(0).cast_unsigned();
        base + missing.div_ceil(u64::from(terms.max()))
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
        let charged = ended.charged(terms).saturating_mul(self.live.span);
        let left = highest_at_start(terms).saturating_sub_unsigned(charged);
        self.live.tokens = self.live.tokens.min(left);
        self.drain(terms, 0);
        false
    }

    /// Gives back unused tokens, but not those that would have overflowed: without the charge, a
    /// bucket that was full since then would have lost them. So it gives back what had room at the
    /// highest level since the start, or what can't have been refilled since.
    fn settle(&mut self, terms: &Terms, _: Clock, ended: &ReportedCall<'_>) {
        let started = ended.started_ms;
        let mut tokens = (-ended.change(terms)).saturating_mul(self.live.span.cast_signed());
        if tokens > 0 {
            let passed = self.live.at.saturating_sub(started);
            let flowed = passed.saturating_mul(terms.max().into());
            let certain = tokens.saturating_sub_unsigned(flowed);
            let room = match started {
                _ if started >= self.live.since => full_level(terms) - self.live.peak,
                _ if started + PERIOD_MS >= self.live.since => {
                    full_level(terms) - self.live.peak.max(self.live.peak_before)
                }
                _ => 0,
            };
            tokens = tokens.min(room.max(certain).max(0));
        }
        let level = self.live.tokens.saturating_add(tokens);
        self.live.tokens = level.clamp(lowest_level(terms), full_level(terms));
        self.live.peak = self.live.peak.max(self.live.tokens);
        self.drain(terms, 0);
    }

    fn hold(&mut self, terms: &Terms, until_ms: u64) {
        let left = until_ms.saturating_sub(self.live.at);
        let flows = left.saturating_mul(terms.max().into());
        self.live.tokens = self.live.tokens.min(0_i64.saturating_sub_unsigned(flows));
        self.drain(terms, 0);
    }

    fn end(&self) -> u64 {
        self.stored.full
    }
}

impl Bucket {
    fn drain(&mut self, terms: &Terms, units: u64) {
        let tokens = units.saturating_mul(self.live.span);
        self.live.tokens =
            (self.live.tokens.saturating_sub_unsigned(tokens)).max(lowest_level(terms));
        let missing = (full_level(terms) - self.live.tokens).cast_unsigned();
        let full = self.live.at + missing.div_ceil(u64::from(terms.max()));
        self.live.full = full.min(LATEST_MS);
        self.stored = self.live;
    }
}

/// Returns how late a start may be without a loss, in milliseconds. A bucket with room for what
/// flows in meanwhile, beside the unit that the start needs, loses nothing. It must not hold more
/// than `burst`: after a burst, the API's bucket would lack that for the next call.
fn forgiven_ms(terms: &Terms) -> u64 {
    let inflow = terms.lateness_ms() * u64::from(terms.max());
    let room = u64::from(terms.capacity().saturating_sub(1)) * terms.window_ms();
    if room < inflow {
        terms.lateness_ms()
    } else {
        0
    }
}

/// Returns what a full bucket may hold beyond `burst` tokens at a start: what flows in during the
/// lateness that it forgives. If starts are kept apart, it is lower, so that the next start is at
/// least `window / max` and [`Terms::spacing_us`] later. Below 0, the next start waits longer than
/// the refill takes.
fn allowance(terms: &Terms) -> i64 {
    let max = u64::from(terms.max());
    let forgiven = (forgiven_ms(terms) * max).cast_signed();
    if terms.spacing_us() == 0 {
        return forgiven;
    }
    let apart = u64::from(terms.spacing_us()) * max;
    // The minimum refill until the next start.
    let needed = match terms.capacity() {
        // Starts are whole milliseconds apart, so this is not reached a millisecond earlier.
        1 => ((1000 * terms.window_ms() + apart).div_ceil(1000 * max) - 1) * max + 1,
        _ => terms.window_ms() + apart.div_ceil(1000),
    };
    forgiven.min(terms.span().cast_signed() - needed.cast_signed())
}

/// Returns what a bucket holds beyond `burst` tokens.
fn held(terms: &Terms) -> u64 {
    allowance(terms).max(0).cast_unsigned()
}

/// Returns the highest level that a start finds: what is above flows over.
fn highest_at_start(terms: &Terms) -> i64 {
    let full = u64::from(terms.capacity()) * terms.span();
    full.cast_signed() + allowance(terms)
}

/// Returns the level of a full bucket, in scaled tokens: `burst`, and what it holds beyond that for
/// lateness. At most 10^6 times 2.7 * 10^9 and a little more, below what Lua's numbers hold
/// exactly.
fn full_level(terms: &Terms) -> i64 {
    (u64::from(terms.capacity()) * terms.span() + held(terms)).cast_signed()
}

/// Returns the lowest level, in scaled tokens.
fn lowest_level(terms: &Terms) -> i64 {
    let century = DEBT_MS.saturating_mul(terms.max().into());
    -century.min(DEBT).cast_signed()
}

fn refilled(level: i64, terms: &Terms, millis: u64) -> i64 {
    let refill = millis.saturating_mul(terms.max().into());
    (level
        .max(lowest_level(terms))
        .saturating_add_unsigned(refill))
    .min(full_level(terms))
}
