//! What a tenant may do: a limit that cannot be constructed wrong.

use std::time::Duration;

/// The highest `max-requests`. A sliding log of a million entries takes about 100 MB of Redis per tenant.
pub const MAX_REQUESTS: u32 = 1_000_000;
/// The shortest window.
pub const MIN_WINDOW: Duration = Duration::from_millis(100);
/// The longest window.
pub const MAX_WINDOW: Duration = Duration::from_secs(31 * 24 * 3600);

/// How starts are counted; the values of `rate-limiter.use-algo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// `fixed-window-algo`: at most L starts in each window aligned to the epoch.
    FixedWindow,
    /// `sliding-window-algo`: at most L starts in any window.
    SlidingWindow,
}

impl Algorithm {
    /// The value in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed-window-algo",
            Self::SlidingWindow => "sliding-window-algo",
        }
    }
}

/// At most `max` units per `window_ms`, counted by `algorithm`, kept at the downstream as long as the way
/// from the gate to it varies by less than `guard_ms`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    name: String,
    algorithm: Algorithm,
    max: u32,
    window_ms: u64,
    guard_ms: u64,
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
}

impl Limit {
    /// A limit called `name`; durations are rounded up to whole milliseconds.
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
        Ok(Self {
            name: name.to_owned(),
            algorithm,
            max,
            window_ms: ceil_ms(window),
            guard_ms: ceil_ms(guard),
        })
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
}

/// `d` in milliseconds, rounded up.
pub fn ceil_ms(d: Duration) -> u64 {
    u64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
