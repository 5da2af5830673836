//! The table. Everything else that there is one of for each algorithm is made from it.

use super::{Rules, Usage, bucket, counter, fixed, held, segments, sliding};

/// From rows `Name: its rules, what it remembers`: [`Algorithm`], and the states of all of them.
macro_rules! algorithms {
    (
        use_algo { $($(#[$doc:meta])* $name:ident: $rules:expr, $state:ty;)+ }
        guard { $($(#[$other_doc:meta])* $other:ident: $other_rules:expr, $other_state:ty;)+ }
    ) => {
        /// How starts are counted; the values of `rate-limiter.use-algo`, and what other keys stand for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Algorithm {
            $($(#[$doc])* $name,)+
            $($(#[$other_doc])* $other,)+
        }

        impl Algorithm {
            /// The values of `use-algo`.
            pub const ALL: [Self; [$(stringify!($name)),+].len()] = [$(Self::$name),+];
            /// All there are.
            pub const EVERY: [Self; [$(stringify!($name),)+ $(stringify!($other)),+].len()] =
                [$(Self::$name,)+ $(Self::$other),+];

            /// What it is.
            pub fn rules(self) -> &'static dyn Rules {
                match self {
                    $(Self::$name => &$rules,)+
                    $(Self::$other => &$other_rules,)+
                }
            }
        }

        /// What one of them remembers.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum State {
            $($name($state),)+
            $($other($other_state),)+
        }

        impl State {
            /// Nothing yet.
            pub fn new(algorithm: Algorithm) -> Self {
                match algorithm {
                    $(Algorithm::$name => Self::$name(Default::default()),)+
                    $(Algorithm::$other => Self::$other(Default::default()),)+
                }
            }

            /// To be looked at.
            pub fn get(&self) -> &dyn Usage {
                match self {
                    $(Self::$name(state) => state,)+
                    $(Self::$other(state) => state,)+
                }
            }

            /// To be changed.
            pub fn get_mut(&mut self) -> &mut dyn Usage {
                match self {
                    $(Self::$name(state) => state,)+
                    $(Self::$other(state) => state,)+
                }
            }
        }
    };
}

algorithms! {
    use_algo {
        /// `fixed-window-algo`: at most L starts in each window aligned to the epoch.
        FixedWindow: fixed::FixedWindow, fixed::FixedWindows;
        /// `sliding-window-algo`: at most L starts in any window.
        SlidingWindow: sliding::SlidingWindow, sliding::SlidingLog;
        /// `sliding-counter-algo`: two counters, the older one weighted by how much of its window is still in sight:
        /// approximate, nearly 2 L at worst.
        SlidingCounter: counter::Counter, counter::SlidingCounter;
        /// `sliding-segments-algo`: at most L starts in any window, counted by 192nds of it.
        SlidingSegments: segments::SlidingSegments, segments::Segments;
        /// `token-bucket-algo`: bursts of up to `burst`, refilled with L per window; burst + L at worst.
        TokenBucket: bucket::Token, bucket::Bucket;
        /// `leaky-bucket-algo` (GCRA): evenly spaced but for `burst`; L + burst - 1 at worst.
        LeakyBucket: bucket::Leaky, bucket::Bucket;
    }
    guard {
        /// `sliding-window-algo` with `guard: strict`: a unit is available a window after the answer, and calls in
        /// flight always count; L in any window at any latency.
        Strict: held::Strict, held::Held;
        /// `max-concurrent`: at most L calls in flight.
        Concurrency: held::Concurrency, held::Held;
    }
}

impl Algorithm {
    /// The value in the configuration.
    pub fn name(self) -> &'static str {
        self.rules().name()
    }

    /// A call holds a lease until it has ended, so the gate must be told.
    pub fn holds_leases(self) -> bool {
        self.rules().holds_leases()
    }

    /// It has a `burst`.
    pub fn has_burst(self) -> bool {
        self.rules().default_burst(1).is_some()
    }

    /// The burst of a limit of `max` that names none, or has none.
    pub(in crate::rules) fn default_burst(self, max: u32) -> u32 {
        self.rules().default_burst(max).unwrap_or(max)
    }
}
