//! What a tenant may do: limits that cannot be constructed wrong.

mod compare;
mod set;
mod size;

use std::sync::Arc;
use std::time::Duration;

pub use set::{Limits, MAX_LIMITS};
pub use size::{LARGE_BYTES, LARGE_GLOBAL_BYTES, Large};

pub use crate::rules::algorithms::{Algorithm, Terms, Unit};
use crate::rules::scope::{MAX_PARTS, Scope};

/// The name of the limit of a configuration that names none.
pub const DEFAULT_LIMIT: &str = "default";
/// Behind the name of a limit in whose place an operator tries another one. No configured limit can have such a name.
const TRIED: &str = ".tried";
/// The highest `max-requests`. A sliding log of a million entries takes about 120 MB of Redis per tenant.
pub const MAX_REQUESTS: u32 = 1_000_000;
/// The shortest window.
pub const MIN_WINDOW: Duration = Duration::from_millis(100);
/// The longest window.
pub const MAX_WINDOW: Duration = Duration::from_secs(31 * 24 * 3600);

/// [`Terms`] with a name, for all that `scope` says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Shared: limits are copied for each question of the model.
    name: Arc<str>,
    terms: Terms,
    /// A bucket's `max` and `burst` as configured: an operator's changes count with the same state.
    bucket: Option<(u32, u32)>,
    scope: Scope,
    /// What it may sink to, in percent and in units of the configured `max`, which an operator's leaves as it is; `None`: it does not learn.
    within: Option<(u8, u32)>,
    /// It counts, and denies nothing.
    shadow: bool,
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
    /// A shadow of a limit that counts calls until they have ended.
    #[error(
        "shadow has no meaning for {}: how long a job would have waited depends on when the calls before it would have ended, and they were never held back", if *.0 == Algorithm::Strict { "guard: strict" } else { .0.name() }
    )]
    Shadow(Algorithm),
    /// All limits are shadows.
    #[error(
        "each limit is a shadow, so nothing would be limited; enforce one beside it, such as {{name: most, max-requests: 1000000, window-size: 1, use-algo: token-bucket-algo}}"
    )]
    NothingEnforced,
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
        let burst = algorithm.default_burst(max);
        Ok(Self {
            name: name.into(),
            terms: Terms {
                algorithm,
                max,
                window_ms: ceil_ms(window),
                guard_ms: ceil_ms(guard),
                burst,
                unit: Unit::Cost,
                apart_us: 0,
            },
            bucket: algorithm.has_burst().then_some((max, burst)),
            scope: Scope::Tenant,
            within: None,
            shadow: false,
        })
    }

    /// At most `max` calls in flight.
    ///
    /// # Errors
    /// [`LimitError`] names what is out of range.
    pub fn concurrent(name: &str, max: u64) -> Result<Self, LimitError> {
        let mut limit = Self::new(
            name,
            Algorithm::Concurrency,
            max,
            MIN_WINDOW,
            Duration::ZERO,
        )?;
        limit.terms.window_ms = 0;
        Ok(limit.with_unit(Unit::Calls))
    }

    /// With room for `burst` at once.
    ///
    /// # Errors
    /// [`LimitError::NoBurst`] or [`LimitError::Burst`].
    pub fn with_burst(mut self, burst: u64) -> Result<Self, LimitError> {
        if !self.algorithm().has_burst() {
            return Err(LimitError::NoBurst(self.algorithm()));
        }
        let in_range = |b: &u32| (1..=MAX_REQUESTS).contains(b);
        let burst = u32::try_from(burst)
            .ok()
            .filter(in_range)
            .ok_or(LimitError::Burst(burst))?;
        self.terms.burst = burst;
        self.bucket = Some((self.max(), burst));
        Ok(self)
    }

    /// Counting `unit`.
    pub fn with_unit(mut self, unit: Unit) -> Self {
        self.terms.unit = unit;
        self
    }

    /// Keeps the starts of a bucket further apart ([`Terms::apart_us`]). Changes no other limit.
    pub fn kept_apart(mut self, apart_us: u32) -> Self {
        if self.algorithm().has_burst() {
            self.terms.apart_us = apart_us;
        }
        self
    }

    /// In the partition that `scope` says, instead of a tenant's.
    pub fn with_scope(self, scope: Scope) -> Self {
        Self { scope, ..self }
    }

    /// One that learns from the API's answers: it may sink to so many percent ([`crate::rules::learned`]). A shadow does not: it refuses
    /// nothing, so no answer is about it.
    pub fn with_band(self, percent: u8) -> Self {
        let percent = percent.clamp(1, 100);
        let floor = (u64::from(self.max()) * u64::from(percent)).div_ceil(100);
        let floor = u32::try_from(floor).unwrap_or(u32::MAX).max(1);
        let within = (!self.shadow).then_some((percent, floor));
        Self { within, ..self }
    }

    /// As a shadow: it counts what starts, says how long that would have waited, denies nothing, and does not learn.
    ///
    /// # Errors
    /// [`LimitError::Shadow`]: the algorithm holds leases.
    pub fn in_shadow(self) -> Result<Self, LimitError> {
        match self.algorithm().holds_leases() {
            true => Err(LimitError::Shadow(self.algorithm())),
            false => Ok(Self {
                shadow: true,
                within: None,
                ..self
            }),
        }
    }

    /// What an operator tries in place of this limit: the same with another `max`, as a shadow with a state of its own.
    ///
    /// # Errors
    /// [`LimitError::Shadow`]: the algorithm holds leases.
    pub fn tried(&self, max: u32) -> Result<Self, LimitError> {
        let mut shadow = self.clone().with_max(max).in_shadow()?;
        shadow.name = format!("{}{TRIED}", self.name).into();
        Ok(shadow)
    }

    /// The limit in whose place an operator tries this one; `None`: it is configured.
    pub fn tried_for(&self) -> Option<&str> {
        self.name.strip_suffix(TRIED)
    }

    /// With another `max`, from 1 to [`MAX_REQUESTS`], which counts with the same state; a burst that was the old one's default
    /// becomes the new one's. It may sink to what the old one may.
    pub fn with_max(mut self, max: u32) -> Self {
        let max = max.clamp(1, MAX_REQUESTS);
        let terms = &mut self.terms;
        if terms.burst == terms.algorithm.default_burst(terms.max) {
            terms.burst = terms.algorithm.default_burst(max);
        }
        terms.max = max;
        self
    }

    /// With another window. What it counts in a state of its own begins anew with it.
    ///
    /// # Errors
    /// [`LimitError`] names what is out of range.
    pub fn with_window(self, window: Duration) -> Result<Self, LimitError> {
        let guard = Duration::from_millis(self.guard_ms());
        let new = Self::new(
            &self.name,
            self.algorithm(),
            self.max().into(),
            window,
            guard,
        )?;
        let terms = Terms {
            window_ms: new.terms.window_ms,
            ..self.terms
        };
        Ok(Self { terms, ..self })
    }

    /// With the same numbers, counted by segments. A strict guard becomes none.
    pub(super) fn counted_by_segments(&self) -> Self {
        let mut limit = self.clone();
        limit.terms.algorithm = Algorithm::SlidingSegments;
        limit.terms.burst = limit.max();
        limit.bucket = None;
        limit
    }

    /// The limit's name, `default` for the only one.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// The same, shared.
    pub(super) fn shared_name(&self) -> &Arc<str> {
        &self.name
    }
    /// The numbers by which it counts.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }
    /// How it counts.
    pub fn algorithm(&self) -> Algorithm {
        self.terms.algorithm()
    }
    /// L, in units of cost.
    pub fn max(&self) -> u32 {
        self.terms.max()
    }
    /// W, in milliseconds.
    pub fn window_ms(&self) -> u64 {
        self.terms.window_ms()
    }
    /// The guard, in milliseconds.
    pub fn guard_ms(&self) -> u64 {
        self.terms.guard_ms()
    }
    /// The bucket's size in units; `max` where there is no bucket.
    pub fn burst(&self) -> u32 {
        self.terms.burst()
    }
    /// What it counts.
    pub fn unit(&self) -> Unit {
        self.terms.unit()
    }
    /// Whose quota it is.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }
    /// What it may sink to, in percent; `None`: it does not learn.
    pub fn band(&self) -> Option<u8> {
        self.within.map(|(percent, _)| percent)
    }
    /// The same in units, at least 1: of the configured `max`, also where an operator set another.
    pub fn floor(&self) -> Option<u32> {
        self.within.map(|(_, floor)| floor)
    }
    /// It denies nothing.
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }
    /// All tenants share it.
    pub fn is_global(&self) -> bool {
        self.scope == Scope::Global
    }

    /// The most units that can start at one moment.
    pub fn capacity(&self) -> u32 {
        self.terms.capacity()
    }

    /// How late a start may be without wasting room, in milliseconds ([`Terms::lateness_ms`]).
    pub fn lateness_ms(&self) -> u64 {
        self.terms.lateness_ms()
    }

    /// Over how long a unit counts, or `max` units are refilled, in milliseconds.
    pub fn span(&self) -> u64 {
        self.terms.span()
    }

    /// The most units that arrive at the API in any half-open window
    /// ([`Rules::worst_case`](crate::rules::algorithms::Rules::worst_case)).
    pub fn worst_case(&self) -> u64 {
        self.terms.worst_case()
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
