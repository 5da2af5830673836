//! What a tenant may do: limits that cannot be constructed wrong.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::rules::decision::LEASE_MS;

/// The name of the limit of a configuration that names none.
pub const DEFAULT_LIMIT: &str = "default";
/// The highest `max-requests`. A sliding log of a million entries takes about 100 MB of Redis per tenant.
pub const MAX_REQUESTS: u32 = 1_000_000;
/// The shortest window.
pub const MIN_WINDOW: Duration = Duration::from_millis(100);
/// The longest window.
pub const MAX_WINDOW: Duration = Duration::from_secs(31 * 24 * 3600);

/// How starts are counted; the values of `rate-limiter.use-algo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// `fixed-window-algo`: at most L starts in each window aligned to the epoch.
    FixedWindow,
    /// `sliding-window-algo`: at most L starts in any window.
    SlidingWindow,
    /// `sliding-counter-algo`: two counters, the older one weighted by how much of its window is still in sight:
    /// approximate, nearly 2 L at worst.
    SlidingCounter,
    /// `token-bucket-algo`: bursts of up to `burst`, refilled with L per window; burst + L at worst.
    TokenBucket,
    /// `leaky-bucket-algo` (GCRA): evenly spaced but for `burst`; L + burst - 1 at worst.
    LeakyBucket,
    /// `sliding-window-algo` with `guard: strict`: a place is free a window after the answer, and calls that are
    /// under way always count; L in any window at any latency.
    Strict,
    /// `max-concurrent`: at most L calls under way.
    Concurrency,
}

impl Algorithm {
    /// The values of `use-algo`.
    pub const ALL: [Self; 5] = [
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingCounter,
        Self::TokenBucket,
        Self::LeakyBucket,
    ];

    /// The value in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed-window-algo",
            Self::SlidingWindow => "sliding-window-algo",
            Self::SlidingCounter => "sliding-counter-algo",
            Self::TokenBucket => "token-bucket-algo",
            Self::LeakyBucket => "leaky-bucket-algo",
            Self::Strict => "strict-window",
            Self::Concurrency => "max-concurrent",
        }
    }

    /// A start holds a place until its call has ended, so the gate must be told.
    pub fn holds_places(self) -> bool {
        matches!(self, Self::Strict | Self::Concurrency)
    }

    /// It has a `burst`.
    pub fn has_burst(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket)
    }
}

/// What a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// `calls`: one for each start, whatever it costs.
    Calls,
    /// `cost`: a job's cost.
    Cost,
}

impl Unit {
    /// The value in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Cost => "cost",
        }
    }

    /// What a job of `cost` uses.
    pub fn of(self, cost: u64) -> u64 {
        match self {
            Self::Calls => 1,
            Self::Cost => cost,
        }
    }
}

/// At most `max` units per `window_ms`, counted by `algorithm`, kept at the downstream as long as the way
/// from the gate to it varies by less than `guard_ms`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Limit {
    name: String,
    algorithm: Algorithm,
    max: u32,
    window_ms: u64,
    guard_ms: u64,
    burst: u32,
    unit: Unit,
}

/// Why the numbers make no limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// `max` is 0 or above [`MAX_REQUESTS`].
    #[error("max-requests is {0}; it must be from 1 to {MAX_REQUESTS}")]
    Max(u64),
    /// The window is too short or too long.
    #[error("window-size is {0:?}; it must be from {MIN_WINDOW:?} to 31 days")]
    Window(Duration),
    /// The guard leaves nothing of the window.
    #[error(
        "guard is {guard:?}, but the window is {window:?}; the guard must be shorter than half the window"
    )]
    Guard {
        /// The guard that was asked for.
        guard: Duration,
        /// The window it does not fit.
        window: Duration,
    },
    /// `burst` is 0 or above [`MAX_REQUESTS`].
    #[error("burst is {0}; it must be from 1 to {MAX_REQUESTS}")]
    Burst(u64),
    /// A burst where the algorithm has none.
    #[error("burst has no meaning for {}; it belongs to token-bucket-algo and leaky-bucket-algo", .0.name())]
    NoBurst(Algorithm),
    /// The name is no name.
    #[error(
        "the limit's name is {0:?}; it must have 1 to 32 of the characters a-z, 0-9 and -, and begin with a letter"
    )]
    Name(String),
    /// Two limits of one name.
    #[error("two limits are called {0:?}; each needs a name of its own")]
    SameName(String),
    /// None, or more than [`MAX_LIMITS`].
    #[error("{0} limits; there must be from 1 to {MAX_LIMITS}")]
    Number(usize),
}

impl Limit {
    /// A limit called `name` that counts cost; durations are rounded up to whole milliseconds. Its burst is
    /// `max` for the token bucket and 1 for the leaky bucket.
    ///
    /// # Errors
    /// [`LimitError`] names the number that is out of range.
    pub fn new(
        name: &str,
        algorithm: Algorithm,
        max: u64,
        window: Duration,
        guard: Duration,
    ) -> Result<Self, LimitError> {
        let max = u32::try_from(max)
            .ok()
            .filter(|m| (1..=MAX_REQUESTS).contains(m))
            .ok_or(LimitError::Max(max))?;
        if !(MIN_WINDOW..=MAX_WINDOW).contains(&window) {
            return Err(LimitError::Window(window));
        }
        if guard * 2 >= window {
            return Err(LimitError::Guard { guard, window });
        }
        if !is_name(name) {
            return Err(LimitError::Name(name.to_owned()));
        }
        Ok(Self {
            name: name.to_owned(),
            algorithm,
            max,
            window_ms: ceil_ms(window),
            guard_ms: ceil_ms(guard),
            burst: default_burst(algorithm, max),
            unit: Unit::Cost,
        })
    }

    /// At most `max` calls under way.
    ///
    /// # Errors
    /// [`LimitError`] names what is out of range.
    pub fn concurrent(name: &str, max: u64) -> Result<Self, LimitError> {
        let limit = Self::new(
            name,
            Algorithm::Concurrency,
            max,
            MIN_WINDOW,
            Duration::ZERO,
        )?;
        Ok(Self {
            window_ms: 0,
            unit: Unit::Calls,
            ..limit
        })
    }

    /// With room for `burst` at once.
    ///
    /// # Errors
    /// [`LimitError::NoBurst`] or [`LimitError::Burst`].
    pub fn with_burst(self, burst: u64) -> Result<Self, LimitError> {
        if !self.algorithm.has_burst() {
            return Err(LimitError::NoBurst(self.algorithm));
        }
        let in_range = |b: &u32| (1..=MAX_REQUESTS).contains(b);
        let burst = u32::try_from(burst)
            .ok()
            .filter(in_range)
            .ok_or(LimitError::Burst(burst))?;
        Ok(Self { burst, ..self })
    }

    /// Counting `unit`.
    pub fn with_unit(self, unit: Unit) -> Self {
        Self { unit, ..self }
    }

    /// With another `max`, from 1 to [`MAX_REQUESTS`]; a burst that was the old one's default becomes the new one's.
    pub fn with_max(self, max: u32) -> Self {
        let max = max.clamp(1, MAX_REQUESTS);
        let burst = if self.burst == default_burst(self.algorithm, self.max) {
            default_burst(self.algorithm, max)
        } else {
            self.burst
        };
        Self { max, burst, ..self }
    }

    /// The limit's name, `default` for the only one.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// How it counts.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
    /// L, in units of cost.
    pub fn max(&self) -> u32 {
        self.max
    }
    /// W, in milliseconds.
    pub fn window_ms(&self) -> u64 {
        self.window_ms
    }
    /// The guard, in milliseconds.
    pub fn guard_ms(&self) -> u64 {
        self.guard_ms
    }
    /// The bucket's size in units; `max` where there is no bucket.
    pub fn burst(&self) -> u32 {
        self.burst
    }
    /// What it counts.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// The most units that can start at one moment.
    pub fn capacity(&self) -> u32 {
        if self.algorithm.has_burst() {
            self.burst
        } else {
            self.max
        }
    }

    /// How late a start may be without wasting room, in milliseconds: 1 % of the window, at most 10. For a bucket it is
    /// GCRA's tolerance for jitter (CDVT): with a burst of 1 nothing else holds what flows in between the moment a
    /// unit is there and the moment its job asks. The sliding counter's windows are longer by it. Both could not be
    /// used up without.
    pub fn lateness_ms(&self) -> u64 {
        (self.window_ms / 100).clamp(1, 10)
    }

    /// What the algorithm needs to know beside the span, in milliseconds: the guard or the lateness.
    pub fn margin(&self) -> u64 {
        match self.algorithm {
            Algorithm::FixedWindow | Algorithm::SlidingWindow => self.guard_ms,
            Algorithm::SlidingCounter | Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                self.lateness_ms()
            }
            Algorithm::Strict | Algorithm::Concurrency => 0,
        }
    }

    /// Over how long a unit counts, or `max` units are refilled, in milliseconds: the window with the guard. A
    /// fixed window has its guard inside. The sliding counter and the buckets take the lateness that they forgive,
    /// and the buckets one more, since their clock counts whole milliseconds.
    pub fn span(&self) -> u64 {
        match self.algorithm {
            Algorithm::FixedWindow | Algorithm::Strict | Algorithm::Concurrency => self.window_ms,
            Algorithm::SlidingWindow => self.window_ms + self.guard_ms,
            Algorithm::SlidingCounter => self.window_ms + self.guard_ms + self.lateness_ms(),
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                self.window_ms + self.guard_ms + 1 + self.lateness_ms()
            }
        }
    }

    /// The most units that arrive at the downstream in any half-open window, whatever happens, as long as the guard is
    /// kept: arrivals less than a window apart started less than window + guard apart. The search of
    /// `tests/it/gate_worst.rs` reaches each of these and finds nothing above.
    ///
    /// - Sliding window: a start counts for all of window + guard.
    /// - Fixed window: all of one just before it closes, and all of the next; the one after that is too far.
    /// - Sliding counter: all of one window in its last millisecond, and in the next what these leave in the last
    ///   millisecond in which they are seen, rounded up.
    /// - Buckets: a full one, what it held for lateness, and what flows in during window + guard: all that is one
    ///   millisecond's inflow less than burst + max.
    pub fn worst_case(&self) -> u64 {
        let (max, burst) = (u64::from(self.max), u64::from(self.burst));
        // What a millisecond is of it, rounded up.
        let per = |span: u64| max.div_ceil(span);
        match self.algorithm {
            Algorithm::SlidingWindow | Algorithm::Strict | Algorithm::Concurrency => max,
            Algorithm::FixedWindow => 2 * max,
            Algorithm::SlidingCounter => 2 * max - per(self.window_ms + self.guard_ms),
            Algorithm::TokenBucket | Algorithm::LeakyBucket => burst + max - per(self.span()),
        }
    }
}

impl Limit {
    /// Whatever this limit lets start, `other` allows too, so `other` never decides. Both must count the same unit.
    /// False when in doubt.
    pub fn implies(&self, other: &Self) -> bool {
        if self.unit != other.unit {
            return false;
        }
        let like = |limit: &Self| (limit.algorithm, limit.window_ms, limit.guard_ms);
        if like(self) == like(other) {
            return self.max <= other.max && self.burst <= other.burst;
        }
        let max = u64::from(other.max);
        match other.algorithm {
            // How long calls take, nobody knows.
            Algorithm::Strict | Algorithm::Concurrency => false,
            Algorithm::SlidingWindow => self.most_in(other.span()) <= max,
            // The estimate is never above what both windows hold.
            Algorithm::SlidingCounter => self.most_in(2 * other.span()) <= max,
            Algorithm::FixedWindow if self.algorithm == Algorithm::FixedWindow => {
                // Each of its windows must end with one of ours, and the guard at that end with ours.
                other.window_ms.is_multiple_of(self.window_ms)
                    && self.guard_ms >= other.guard_ms
                    && u64::from(self.max) * (other.window_ms / self.window_ms) <= max
            }
            Algorithm::FixedWindow => other.guard_ms == 0 && self.most_in(other.window_ms) <= max,
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let slower = u128::from(self.max) * u128::from(other.span())
                    <= u128::from(other.max) * u128::from(self.span());
                // Whatever is above the refill must fit the bucket, with a unit for rounding.
                let above = match self.algorithm {
                    Algorithm::Strict | Algorithm::Concurrency => u64::MAX,
                    Algorithm::SlidingWindow => u64::from(self.max),
                    Algorithm::FixedWindow | Algorithm::SlidingCounter => 2 * u64::from(self.max),
                    Algorithm::TokenBucket | Algorithm::LeakyBucket => u64::from(self.burst),
                };
                slower && above < u64::from(other.burst)
            }
        }
    }

    /// Over how long its own state counts, in milliseconds: the window, and the guard where the algorithm counts over
    /// both. With the name, the algorithm and the unit it tells states apart.
    pub fn state_ms(&self) -> (u64, u64) {
        match self.algorithm {
            Algorithm::FixedWindow | Algorithm::Strict | Algorithm::Concurrency => {
                (self.window_ms, 0)
            }
            Algorithm::SlidingWindow
            | Algorithm::SlidingCounter
            | Algorithm::TokenBucket
            | Algorithm::LeakyBucket => (self.window_ms, self.guard_ms),
        }
    }

    /// Both count with the same stored state, so it can be charged for one of them alone. Sliding windows have one log
    /// in common besides, whatever their numbers.
    pub fn shares_state(&self, other: &Self) -> bool {
        let state = |limit: &Self| (limit.algorithm, limit.state_ms(), limit.unit);
        state(self) == state(other) && self.name == other.name
    }

    /// What allows a start only if both allow it, where both count with the same state.
    fn stricter(&self, other: &Self) -> Self {
        Self {
            max: self.max.min(other.max),
            burst: self.burst.min(other.burst),
            guard_ms: self.guard_ms.max(other.guard_ms),
            ..self.clone()
        }
    }

    /// As long as every start was charged to `before`, all that this limit counts is known, so it can take the place
    /// of `before` at once: the calls of any window are at most what the one in force at the last of them allows.
    /// False in doubt, and for a bucket with other numbers: it may begin full.
    pub fn continues(&self, before: &Self) -> bool {
        match self.algorithm {
            Algorithm::SlidingWindow => {
                before.algorithm == Algorithm::SlidingWindow && before.span() >= self.span()
            }
            Algorithm::TokenBucket | Algorithm::LeakyBucket => self == before,
            Algorithm::FixedWindow
            | Algorithm::SlidingCounter
            | Algorithm::Strict
            | Algorithm::Concurrency => self.shares_state(before),
        }
    }

    /// No more units than this start in any `ms` milliseconds; `u64::MAX`: any number may.
    fn most_in(&self, ms: u64) -> u64 {
        let (max, span) = (u64::from(self.max), self.span());
        // A start is written up to a millisecond after it was decided.
        let late = ms + 1;
        match self.algorithm {
            Algorithm::Strict | Algorithm::Concurrency => u64::MAX,
            Algorithm::SlidingWindow => max * ms.div_ceil(span),
            // Each aligned window holds at most `max`, and one more is touched.
            Algorithm::FixedWindow | Algorithm::SlidingCounter => max * (late.div_ceil(span) + 1),
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                u64::from(self.burst) + (max * late).div_ceil(span)
            }
        }
    }
}

fn default_burst(algorithm: Algorithm, max: u32) -> u32 {
    if algorithm == Algorithm::LeakyBucket {
        1
    } else {
        max
    }
}

/// `name` can be a limit's: 1 to 32 of a-z, 0-9 and -, beginning with a letter.
pub fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    name.len() <= 32
        && name.bytes().all(plain)
        && name.starts_with(|c: char| c.is_ascii_lowercase())
}

/// The most limits that are enforced at once.
pub const MAX_LIMITS: usize = 16;

/// Limits that are enforced together: a job starts only when all of them allow it, and costs each of them or none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Limits(Arc<[Limit]>);

impl Limits {
    /// `limits` together.
    ///
    /// # Errors
    /// [`LimitError`] when there are none or too many, or two have one name.
    pub fn new(limits: Vec<Limit>) -> Result<Self, LimitError> {
        if limits.is_empty() || limits.len() > MAX_LIMITS {
            return Err(LimitError::Number(limits.len()));
        }
        for (at, limit) in limits.iter().enumerate() {
            if limits[..at].iter().any(|other| other.name == limit.name) {
                return Err(LimitError::SameName(limit.name.clone()));
            }
        }
        Ok(Self(limits.into()))
    }

    /// These and all of `others` at once: what each set lets start alone, less what the others deny. Limits that count
    /// with the same state become one, the stricter of both; names may repeat among the rest.
    pub fn with_all<'a>(&self, others: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut all = self.0.to_vec();
        let before = all.clone();
        for limit in others.into_iter().flat_map(|other| other.iter()) {
            match all.iter_mut().find(|known| known.shares_state(limit)) {
                Some(known) => *known = known.stricter(limit),
                None => all.push(limit.clone()),
            }
        }
        if all == before {
            return self.clone();
        }
        Self(all.into())
    }

    /// Each of these continues one of `before`: see [`Limit::continues`].
    pub fn continue_from(&self, before: &Self) -> bool {
        self.iter()
            .all(|limit| before.iter().any(|old| limit.continues(old)))
    }

    /// The highest cost of a job that can start: above it, it never could. Jobs of any cost can where no limit
    /// counts cost.
    pub fn max_cost(&self) -> u32 {
        let costs = self.0.iter().filter(|limit| limit.unit == Unit::Cost);
        costs.map(Limit::capacity).min().unwrap_or(u32::MAX)
    }

    /// The shortest guard, in milliseconds: a permit is good for half of it. 0: no limit has one.
    pub fn guard_ms(&self) -> u64 {
        let guards = self.0.iter().map(Limit::guard_ms);
        guards.filter(|guard| *guard > 0).min().unwrap_or(0)
    }

    /// Whether the gate must be told when a call has ended.
    pub fn hold_places(&self) -> bool {
        self.0.iter().any(|limit| limit.algorithm.holds_places())
    }

    /// After so long, in milliseconds, no start counts any more at the downstream; a call that runs for longer than a
    /// lease is left out of account.
    pub fn memory_ms(&self) -> u64 {
        let memory = |limit: &Limit| {
            let held = matches!(limit.algorithm, Algorithm::Strict | Algorithm::Concurrency);
            limit.span() + limit.guard_ms() + if held { LEASE_MS } else { 0 }
        };
        self.0.iter().map(memory).max().unwrap_or(0)
    }

    /// The longest time that any of them looks back, in milliseconds.
    pub fn longest_span(&self) -> u64 {
        self.0.iter().map(Limit::span).max().unwrap_or(0)
    }
}

impl Deref for Limits {
    type Target = [Limit];

    fn deref(&self) -> &[Limit] {
        &self.0
    }
}

impl From<Limit> for Limits {
    fn from(limit: Limit) -> Self {
        Self(Arc::new([limit]))
    }
}

/// `d` in milliseconds, rounded up.
pub fn ceil_ms(d: Duration) -> u64 {
    u64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rules::decision::{Answer, Ask, Change};
    use crate::rules::log::Clock;
    use crate::rules::model::State;

    fn limit(name: &'static str, most: u64) -> impl Strategy<Value = Limit> {
        let algorithm = prop::sample::select(&Algorithm::ALL[..]);
        let window = prop::sample::select(&[100_u64, 150, 200, 300, 1_000][..]);
        let guard = prop::sample::select(&[0_u64, 10, 49][..]);
        (algorithm, window, guard, 1..most, 1..most).prop_map(
            move |(algorithm, window, guard, max, burst)| {
                let (window, guard) = (Duration::from_millis(window), Duration::from_millis(guard));
                let limit = Limit::new(name, algorithm, max, window, guard).expect("in range");
                if algorithm.has_burst() {
                    limit.with_burst(burst).expect("in range")
                } else {
                    limit
                }
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, max_global_rejects: 100_000, ..ProptestConfig::default() })]

        /// Where one limit implies another, the other changes no decision.
        #[test]
        fn an_implied_limit_never_decides(
            strict in limit("strict", 10),
            idle in limit("idle", 60),
            steps in prop::collection::vec((0..120_000_u64, 1..4_u32), 1..200),
        ) {
            prop_assume!(strict.implies(&idle));
            let alone = [strict.clone()];
            let both = [strict, idle];
            let (mut one, mut two) = (State::default(), State::default());
            let mut micros = 1_700_000_000_000_000;
            for (pause, cost) in steps {
                // Half of them come at the same moment.
                micros += pause.saturating_sub(60_000);
                let clock = Clock::from_micros(micros);
                let ask = [Ask { ticket: None, cost: cost.min(Limits::from(alone[0].clone()).max_cost()) }];
                let starts = |state: &mut State, limits: &[Limit]| {
                    let (answers, _) = state.ask(limits, clock, 1, "permit", &ask);
                    // Nobody stands in line: this is about room alone.
                    state.change(clock.now_ms, &Change::Reset);
                    matches!(answers[..], [Answer::Start { .. }])
                };
                prop_assert_eq!(starts(&mut one, &alone), starts(&mut two, &both));
            }
        }
    }

    #[test]
    fn what_is_stricter_in_every_respect_implies_the_other() {
        let limit = |algorithm, max, seconds| {
            let window = Duration::from_secs(seconds);
            Limit::new("x", algorithm, max, window, Duration::from_millis(50)).expect("in range")
        };
        use Algorithm::{FixedWindow, LeakyBucket, SlidingCounter, SlidingWindow, TokenBucket};
        for (strict, idle, implies) in [
            (
                limit(SlidingWindow, 10, 1),
                limit(SlidingWindow, 1000, 1),
                true,
            ),
            (
                limit(SlidingWindow, 1000, 1),
                limit(SlidingWindow, 10, 1),
                false,
            ),
            (
                limit(SlidingWindow, 100, 3600),
                limit(SlidingWindow, 1000, 3600),
                true,
            ),
            (
                limit(SlidingWindow, 100, 3600),
                limit(SlidingWindow, 1000, 60),
                true,
            ),
            (
                limit(SlidingWindow, 10, 1),
                limit(SlidingWindow, 599, 60),
                true,
            ),
            (
                limit(SlidingWindow, 10, 1),
                limit(SlidingWindow, 500, 60),
                false,
            ),
            (
                limit(SlidingWindow, 10, 1),
                limit(TokenBucket, 1000, 60),
                true,
            ),
            (
                limit(SlidingWindow, 10, 1),
                limit(LeakyBucket, 1000, 1),
                false,
            ),
            (limit(FixedWindow, 10, 1), limit(FixedWindow, 600, 60), true),
            (
                limit(FixedWindow, 10, 1),
                limit(FixedWindow, 599, 60),
                false,
            ),
            (
                limit(SlidingCounter, 10, 1),
                limit(SlidingCounter, 10, 1),
                true,
            ),
            (limit(TokenBucket, 10, 1), limit(TokenBucket, 100, 1), true),
        ] {
            assert_eq!(strict.implies(&idle), implies, "{strict:?} {idle:?}");
        }
        let tokens = limit(SlidingWindow, 1000, 1).with_unit(Unit::Calls);
        assert!(!limit(SlidingWindow, 10, 1).implies(&tokens), "other units");
    }
}
