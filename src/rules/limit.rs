//! What a tenant may do: limits that cannot be constructed wrong.

mod compare;
mod set;

use std::time::Duration;

pub use set::{Limits, MAX_LIMITS};

use crate::rules::scope::{MAX_PARTS, Scope};

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
    /// A bucket's `max` and `burst` as configured: an operator's changes count with the same state.
    bucket: Option<(u32, u32)>,
    unit: Unit,
    scope: Scope,
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
    /// More than [`MAX_PARTS`] scopes that are parts of a tenant.
    #[error(
        "{0} different headers (or the routing key) in the scopes of limits that are enforced together; {MAX_PARTS} at most can be"
    )]
    Parts(usize),
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
            bucket: (algorithm.has_burst()).then(|| (max, default_burst(algorithm, max))),
            unit: Unit::Cost,
            scope: Scope::Tenant,
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
        let bucket = Some((self.max, burst));
        Ok(Self {
            burst,
            bucket,
            ..self
        })
    }

    /// Counting `unit`.
    pub fn with_unit(self, unit: Unit) -> Self {
        Self { unit, ..self }
    }

    /// In the budget that `scope` says, instead of a tenant's.
    pub fn with_scope(self, scope: Scope) -> Self {
        Self { scope, ..self }
    }

    /// With another `max`, from 1 to [`MAX_REQUESTS`], which counts with the same state; a burst that was the old one's default
    /// becomes the new one's.
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
    /// Whose budget it is.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }
    /// All tenants share it.
    pub fn is_global(&self) -> bool {
        self.scope == Scope::Global
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

/// `d` in milliseconds, rounded up.
pub fn ceil_ms(d: Duration) -> u64 {
    u64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
