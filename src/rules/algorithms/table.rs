//! The table of algorithms, from which everything that exists once per algorithm is generated.

use super::{
    AlgorithmFacts, DefaultBurst, Rules, Usage, bucket, calendar, counter, fixed, held, segments,
    sliding,
};

/// Generates [`Algorithm`] and [`LimitState`] from rows of `Name: its facts, its rules, its state`.
macro_rules! algorithms {
    ($($(#[$doc:meta])* $name:ident: $facts:expr, $rules:expr, $state:ty;)+) => {
        /// How starts are counted: the values of `rate-limiter.use-algo`, and the algorithms that
        /// other keys select.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Algorithm {
            $($(#[$doc])* $name,)+
        }

        impl Algorithm {
            /// All algorithms, in the order of the table.
            pub const EVERY: [Self; [$(stringify!($name)),+].len()] = [$(Self::$name),+];

            /// Returns the algorithm's fixed properties.
            pub fn facts(self) -> &'static AlgorithmFacts {
                match self {
                    $(Self::$name => &$facts,)+
                }
            }

            /// Returns the algorithm's computations.
            pub fn rules(self) -> &'static dyn Rules {
                match self {
                    $(Self::$name => &$rules,)+
                }
            }
        }

        /// The state of one limit.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum LimitState {
            $($name($state),)+
        }

        impl LimitState {
            /// Returns an empty state for `algorithm`.
            pub fn new(algorithm: Algorithm) -> Self {
                match algorithm {
                    $(Algorithm::$name => Self::$name(Default::default()),)+
                }
            }

            /// Returns the state for reading.
            pub fn get(&self) -> &dyn Usage {
                match self {
                    $(Self::$name(state) => state,)+
                }
            }

            /// Returns the state for changing.
            pub fn get_mut(&mut self) -> &mut dyn Usage {
                match self {
                    $(Self::$name(state) => state,)+
                }
            }
        }
    };
}

algorithms! {
    /// `fixed-window-algo`: at most L starts in each window aligned to the epoch.
    FixedWindow: fixed::FACTS, fixed::FixedWindow, fixed::FixedWindows;
    /// `sliding-window-algo`: at most L starts in any window.
    SlidingWindow: sliding::FACTS, sliding::SlidingWindow, sliding::SlidingLog;
    /// `sliding-counter-algo`: two counters, the older one weighted by the part of its window
    /// that still counts. Approximate: nearly 2 L in the worst case.
    SlidingCounter: counter::FACTS, counter::Counter, counter::SlidingCounter;
    /// `sliding-segments-algo`: at most L starts in any window, counted by 192nds of it.
    SlidingSegments: segments::FACTS, segments::SlidingSegments, segments::Segments;
    /// `token-bucket-algo`: bursts of up to `burst`, refilled with L per window; burst + L in
    /// the worst case.
    TokenBucket: bucket::TOKEN, bucket::BucketRules, bucket::Bucket;
    /// `leaky-bucket-algo` (GCRA): evenly spaced except for `burst`; L + burst - 1 in the worst
    /// case.
    LeakyBucket: bucket::LEAKY, bucket::BucketRules, bucket::Bucket;
    /// `fixed-window-algo` with a day, week or month as window: at most L starts in each.
    CalendarWindow: calendar::FACTS, calendar::CalendarWindow, calendar::CalendarCount;
    /// `sliding-window-algo` with `guard: strict`: a unit becomes available one window after
    /// the answer, and calls in flight always count. At most L in any window at any latency.
    Strict: held::STRICT, held::HeldRules, held::HeldLeases;
    /// `max-concurrent`: at most L calls in flight.
    Concurrency: held::CONCURRENCY, held::HeldRules, held::HeldLeases;
}

impl Algorithm {
    /// The algorithms that are values of `use-algo`: the first rows of the table.
    pub const ALL: [Self; 6] = {
        let (all, others) = Self::EVERY.split_first_chunk().expect("there are more");
        assert!(matches!(others[0], Self::CalendarWindow));
        *all
    };

    /// Returns the algorithm's name in the configuration.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// Returns the value of `use-algo` that configures it, together with another key's value.
    pub fn use_algo(self) -> Self {
        match self {
            Self::CalendarWindow => Self::FixedWindow,
            Self::Strict => Self::SlidingWindow,
            other => other,
        }
    }

    /// Returns true if a call holds a lease until it has ended, so that the gate must learn of the
    /// end.
    pub fn holds_leases(self) -> bool {
        self.facts().holds_leases
    }

    /// Returns true if the algorithm has a `burst`.
    pub fn has_burst(self) -> bool {
        self.facts().default_burst.is_some()
    }

    /// Returns the burst of a limit of `max` that sets none; `max` if the algorithm has no bursts.
    pub(crate) fn default_burst(self, max: u64) -> u64 {
        match self.facts().default_burst {
            Some(DefaultBurst::One) => 1,
            Some(DefaultBurst::Max) | None => max,
        }
    }
}
