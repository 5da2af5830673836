//! Limits. Constructors validate their numbers, so every limit is valid.

mod compare;
mod set;
mod size;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

pub use set::{Limits, MAX_LIMITS};
pub use size::{LARGE_BYTES, LARGE_GLOBAL_BYTES, LargeLog};

use crate::algorithms::bucket::forgiven_ms;
pub use crate::algorithms::{Algorithm, Terms, Unit};
use crate::calendar::Calendar;
use crate::scope::{MAX_PARTS, Scope};
use crate::text::show_duration;

/// The name of the limit in a configuration that has a single one without a name.
pub const DEFAULT_LIMIT: &str = "default";
/// Suffix of the name of a limit that an operator tries in place of another. No configured limit
/// can have such a name.
const TRIED: &str = ".tried";
/// The highest `max-requests`, burst and cost, in units. The scripts' doubles hold the sum of 4,500
/// such numbers exactly.
pub const MAX_REQUESTS: u64 = 1_000_000_000_000;
/// A number of units above every limit and cost that a double holds exactly.
pub const UNLIMITED: u64 = 1 << 50;
/// The shortest window.
pub const MIN_WINDOW: Duration = Duration::from_millis(100);
/// The longest window.
pub const MAX_WINDOW: Duration = Duration::from_secs(31 * 24 * 3600);

/// [`Terms`] with a name, applied to each partition of `scope`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Shared, because the model copies limits for each question.
    name: Arc<str>,
    terms: Terms,
    /// A bucket's `max` and `burst` as configured, so that a limit that an operator changed counts
    /// with the same state.
    bucket: Option<(u64, u64)>,
    scope: Scope,
    /// The lowest value that the limit may learn, in percent and in units of the configured `max`
    /// (an operator's `max` does not change it). `None` if the limit does not learn.
    within: Option<(u8, u64)>,
    /// Whether the limit only counts and denies nothing.
    shadow: bool,
}

/// Why a limit is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// `max` is 0 or above [`MAX_REQUESTS`].
    #[error("max-requests is {0}; it must be from 1 to {MAX_REQUESTS}")]
    Max(u64),
    /// The window is too short or too long.
    #[error("window-size is {0:?}; it must be from {MIN_WINDOW:?} to 31 days")]
    Window(Duration),
    /// The guard is half of the window or longer.
    #[error(
        "the guard is {} and the window is {}; the guard must be shorter than half the window",
        show_duration(*.guard),
        show_duration(*.window)
    )]
    Guard {
        /// The guard.
        guard: Duration,
        /// The window.
        window: Duration,
    },
    /// `burst` is 0 or above [`MAX_REQUESTS`].
    #[error("burst is {0}; it must be from 1 to {MAX_REQUESTS}")]
    Burst(u64),
    /// A burst is set, but the algorithm has none.
    #[error("burst has no meaning for {}; use it with token-bucket-algo or leaky-bucket-algo", .0.use_algo().name())]
    NoBurst(Algorithm),
    /// The name is invalid.
    #[error(
        "the limit's name is {0:?}; it must have 1 to 32 characters a-z, 0-9 and -, beginning \
        with a letter"
    )]
    Name(String),
    /// Two limits have the same name.
    #[error("two limits have the name {0:?}; give each its own name")]
    SameName(String),
    /// There is no limit, or more than [`MAX_LIMITS`].
    #[error("there are {0} limits; there must be 1 to {MAX_LIMITS}")]
    Number(usize),
    /// A shadow of a limit that counts calls until they have ended.
    #[error(
        "shadow has no meaning for {}: a job's wait would depend on the ends of earlier calls, \
        which the shadow limit did not delay", if *.0 == Algorithm::Strict { "guard: strict" } else { .0.name() }
    )]
    Shadow(Algorithm),
    /// All limits are shadows.
    #[error(
        "each limit is a shadow, so nothing would be limited; add an enforced limit, such as \
        {{name: most, max-requests: 1000000, window-size: 1, use-algo: token-bucket-algo}}"
    )]
    NothingEnforced,
    /// More than [`MAX_PARTS`] different scopes that are parts of a tenant.
    #[error(
        "the scopes of limits that are enforced together use {0} different headers or the routing \
        key; the maximum is {MAX_PARTS}"
    )]
    Parts(usize),
}

impl Limit {
    /// Returns a limit called `name` that counts cost. Durations are rounded up to whole
    /// milliseconds. The burst is `max` for the token bucket and 1 for the leaky bucket.
    ///
    /// # Errors
    /// Returns a [`LimitError`] for a number out of range, or an invalid name.
    pub fn new(
        name: &str,
        algorithm: Algorithm,
        max: u64,
        window: Duration,
        guard: Duration,
    ) -> Result<Self, LimitError> {
        if !(1..=MAX_REQUESTS).contains(&max) {
            return Err(LimitError::Max(max));
        }
        if !(MIN_WINDOW..=MAX_WINDOW).contains(&window) {
            return Err(LimitError::Window(window));
        }
        if guard.saturating_mul(2) >= window {
            return Err(LimitError::Guard { guard, window });
        }
        if !is_name(name) {
            return Err(LimitError::Name(name.to_owned()));
        }
        let burst = algorithm.default_burst(max);
        let mut terms = Terms {
            algorithm,
            max,
            window_ms: ceil_ms(window),
            guard_ms: ceil_ms(guard),
            burst,
            unit: Unit::Cost,
            spacing_us: 0,
            forgiven_ms: 0,
            calendar: None,
        };
        terms.forgiven_ms = forgiven_ms(&terms);
        Ok(Self {
            name: name.into(),
            terms,
            bucket: algorithm.has_burst().then_some((max, burst)),
            scope: Scope::Tenant,
            within: None,
            shadow: false,
        })
    }

    /// Returns a limit of `max` calls in flight.
    ///
    /// # Errors
    /// Returns a [`LimitError`] as [`Limit::new`] does.
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

    /// Returns a limit of `max` units in each window of `calendar`.
    ///
    /// # Errors
    /// Returns a [`LimitError`] as [`Limit::new`] does.
    pub fn calendar(
        name: &str,
        max: u64,
        calendar: Calendar,
        guard: Duration,
    ) -> Result<Self, LimitError> {
        let window = Duration::from_millis(calendar.nominal_ms());
        let mut limit = Self::new(name, Algorithm::CalendarWindow, max, window, guard)?;
        limit.terms.calendar = Some(calendar);
        Ok(limit)
    }

    /// Sets the burst, the number of units that can start at once.
    ///
    /// # Errors
    /// Returns [`LimitError::NoBurst`] or [`LimitError::Burst`].
    pub fn with_burst(mut self, burst: u64) -> Result<Self, LimitError> {
        if !self.algorithm().has_burst() {
            return Err(LimitError::NoBurst(self.algorithm()));
        }
        if !(1..=MAX_REQUESTS).contains(&burst) {
            return Err(LimitError::Burst(burst));
        }
        self.terms.burst = burst;
        self.terms.forgiven_ms = forgiven_ms(&self.terms);
        self.bucket = Some((self.max(), burst));
        Ok(self)
    }

    /// Sets the unit that is counted.
    pub fn with_unit(mut self, unit: Unit) -> Self {
        self.terms.unit = unit;
        self
    }

    /// Keeps the starts of a bucket further apart ([`Terms::spacing_us`]). Changes no other limit.
    pub fn with_spacing(mut self, spacing_us: u32) -> Self {
        if self.algorithm().has_burst() {
            self.terms.spacing_us = spacing_us;
        }
        self
    }

    /// Sets the scope. The default is [`Scope::Tenant`].
    pub fn with_scope(self, scope: Scope) -> Self {
        Self { scope, ..self }
    }

    /// Lets the limit learn from the API's answers and sink to no less than `percent` of its `max`
    /// ([`crate::learned`]). Has no effect on a shadow, because a shadow denies nothing, so
    /// no refusal relates to it.
    pub fn with_band(self, percent: u8) -> Self {
        let percent = percent.clamp(1, 100);
        let floor = (self.max() * u64::from(percent)).div_ceil(100);
        let within = (!self.shadow).then_some((percent, floor));
        Self { within, ..self }
    }

    /// Returns the limit as a shadow: it counts starts and how long they would have waited, denies
    /// nothing, and does not learn.
    ///
    /// # Errors
    /// Returns [`LimitError::Shadow`] if the algorithm holds leases.
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

    /// Returns the shadow that an operator tries in place of this limit: the same limit with
    /// another `max` and a state of its own.
    ///
    /// # Errors
    /// Returns [`LimitError::Shadow`] if the algorithm holds leases.
    pub fn tried(&self, max: u64) -> Result<Self, LimitError> {
        let mut shadow = self.clone().with_max(max).in_shadow()?;
        shadow.name = format!("{}{TRIED}", self.name).into();
        Ok(shadow)
    }

    /// Returns the name of the limit in whose place an operator tries this one, or `None` if this
    /// limit is configured.
    pub fn tried_for(&self) -> Option<&str> {
        self.name.strip_suffix(TRIED)
    }

    /// Sets `max`, clamped to 1 to [`MAX_REQUESTS`]. The limit keeps counting with the same state,
    /// and its learned value may sink as low as before. A burst that had the default value gets the
    /// new default.
    pub fn with_max(mut self, max: u64) -> Self {
        let max = max.clamp(1, MAX_REQUESTS);
        let terms = &mut self.terms;
        if terms.burst == terms.algorithm.default_burst(terms.max) {
            terms.burst = terms.algorithm.default_burst(max);
        }
        terms.max = max;
        self
    }

    /// Sets the window. A limit with a state of its own starts counting anew.
    ///
    /// # Errors
    /// Returns a [`LimitError`] as [`Limit::new`] does.
    pub fn with_window(self, window: Duration) -> Result<Self, LimitError> {
        let guard = Duration::from_millis(self.guard_ms());
        let algorithm = match self.algorithm() {
            Algorithm::CalendarWindow => Algorithm::FixedWindow,
            other => other,
        };
        let new = Self::new(&self.name, algorithm, self.max(), window, guard)?;
        let mut terms = Terms {
            algorithm,
            window_ms: new.terms.window_ms,
            calendar: None,
            ..self.terms
        };
        terms.forgiven_ms = forgiven_ms(&terms);
        Ok(Self { terms, ..self })
    }

    /// Returns a limit with the same numbers that counts by segments. A strict guard becomes no
    /// guard.
    pub(super) fn counted_by_segments(&self) -> Self {
        let mut limit = self.clone();
        limit.terms.algorithm = Algorithm::SlidingSegments;
        limit.terms.calendar = None;
        limit.terms.burst = limit.max();
        limit.bucket = None;
        limit
    }

    /// Returns the limit's name, `default` for a single unnamed one.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Returns the limit's name as a shared text.
    pub(super) fn shared_name(&self) -> &Arc<str> {
        &self.name
    }
    /// Returns the numbers that the limit counts with.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }
    /// Returns the scope.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }
    /// Returns the lowest value that the limit may learn, in percent of `max`, or `None` if it does
    /// not learn.
    pub fn band(&self) -> Option<u8> {
        self.within.map(|(percent, _)| percent)
    }
    /// Returns the lowest value that the limit may learn, in units, at least 1. It refers to the
    /// configured `max`, even if an operator has set another one.
    pub fn floor(&self) -> Option<u64> {
        self.within.map(|(_, floor)| floor)
    }
    /// Returns true if the limit only counts and denies nothing.
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }
    /// Returns true if starts keep a distance from each other: the limit is a bucket of one unit.
    pub fn is_even(&self) -> bool {
        self.algorithm().has_burst() && self.burst() == 1
    }
    /// Returns `window / max`, the distance between the starts of an even flow.
    pub fn distance(&self) -> Duration {
        Duration::from_nanos(self.window_ms() * 1_000_000 / self.max())
    }
    /// Returns true if all tenants share the limit.
    pub fn is_global(&self) -> bool {
        self.scope == Scope::Global
    }
}

/// A limit has the numbers of its terms.
impl Deref for Limit {
    type Target = Terms;

    fn deref(&self) -> &Terms {
        &self.terms
    }
}

/// Returns true if a limit can have this name: 1 to 32 of a-z, 0-9 and -, beginning with a letter.
pub fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    name.len() <= 32
        && name.bytes().all(plain)
        && name.starts_with(|c: char| c.is_ascii_lowercase())
}

/// Returns `d` in milliseconds, rounded down.
pub fn floor_ms(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

/// Returns `d` in milliseconds, rounded up.
pub fn ceil_ms(d: Duration) -> u64 {
    u64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
