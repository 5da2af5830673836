//! The algorithms by which a limit counts: the table of them, and what each has to say of itself.
//!
//! One more is a file beside the others (its [`Rules`], and its [`Usage`]: what it remembers), a file in `lua/` with the same functions
//! over Redis, and a row in `table.rs`. Configuration, keys, scripts, the model, the search for the worst case
//! and the simulation read the table.

pub(crate) mod bucket;
mod counter;
mod fixed;
pub(crate) mod held;
mod segments;
mod sliding;
mod span;
mod stored;
mod table;
mod terms;

pub use fixed::SteppedBack;
pub use held::LEASE_MS;
pub use stored::Stored;
pub use table::Algorithm;
pub(in crate::rules) use table::State;
pub use terms::{Terms, Unit};

use crate::rules::clock::Clock;

/// How the keys of a limit in Redis are named, and what they hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// One key for each limit.
    Own {
        /// A part of its name.
        kind: &'static str,
        /// What it holds, as `TYPE` says.
        holds: &'static str,
    },
    /// All limits of the algorithm and a partition share one log, a sorted set.
    Log,
    /// A counter for each aligned window, a string.
    Windows,
}

/// What an algorithm is. Times are milliseconds.
pub trait Rules: Sync {
    /// The value of `use-algo`.
    fn name(&self) -> &'static str;

    /// What it lets start, for the documentation: L is `max-requests`, W `window-size`.
    fn about(&self) -> &'static str;

    /// [`Rules::worst_case`] in the same words.
    fn worst_words(&self) -> &'static str;

    /// How its windows lie, in the words of `check`: so many calls "in any" minute.
    fn window_words(&self) -> &'static str;

    /// Its file in `lua/`: the functions of [`Usage`], over Redis.
    fn script(&self) -> &'static str;

    /// Its file in `lua/` that lets usual jobs start in front of everything else, if it has one: `lua/shortcut.lua`.
    fn shortcut(&self) -> Option<&'static str> {
        None
    }

    /// Where that keeps what it remembers.
    fn keys(&self) -> Keys;

    /// What is stored of a partition whose quota is used up.
    fn stored(&self, terms: &Terms) -> Stored;

    /// The burst of a limit of so many requests that names none; `None`: it has no bursts.
    fn default_burst(&self, max: u32) -> Option<u32> {
        let _ = max;
        None
    }

    /// A call holds a lease until it has ended, so the gate must be told of the end.
    fn holds_leases(&self) -> bool {
        false
    }

    /// Its windows begin with the epoch, whoever starts.
    fn is_aligned(&self) -> bool {
        false
    }

    /// After a pause it lets more start in a window than without one: what did not start meanwhile.
    fn saves_up(&self) -> bool {
        false
    }

    /// It can count a call from when it came instead of when it started ([`Usage::late`]).
    fn counts_arrivals(&self) -> bool {
        false
    }

    /// Over how long a unit counts, or `max` units are refilled.
    fn span(&self, terms: &Terms) -> u64;

    /// What its [`Usage`] needs to know beside the span.
    fn margin(&self, terms: &Terms) -> u64;

    /// Over how long its own state counts: the window, and the guard where it counts over both. With the name, the algorithm
    /// and the unit it tells states apart.
    fn state_ms(&self, terms: &Terms) -> (u64, u64) {
        (terms.window_ms(), terms.guard_ms())
    }

    /// Returns the maximum number of units that arrive at the API in any half-open window, as long as the guard is kept: arrivals less than
    /// a window apart started less than window + guard apart. The search in `tests/simulation/gate_worst.rs` reaches each of these maximums
    /// and finds nothing above.
    fn worst_case(&self, terms: &Terms) -> u64;

    /// No more units than this start in any `ms`; `u64::MAX`: any number may.
    fn most_in(&self, terms: &Terms, ms: u64) -> u64;

    /// No more units than this start beyond what an even flow of `max` in a span lets start.
    fn burstiness(&self, terms: &Terms) -> u64 {
        2 * u64::from(terms.max())
    }

    /// The most calls that arrive in an API's own window of `window_ms`: [`Rules::worst_case`] for any length. A call costs one
    /// unit at least.
    fn arriving(&self, terms: &Terms, window_ms: u64) -> u64;

    /// It never decides where `other`, another algorithm or other numbers, counts the same units too. False in doubt.
    fn is_implied_by(&self, terms: &Terms, other: &Terms) -> bool;
}

/// What was started, as far as it counts. [`Usage::load`] comes before all the others.
pub trait Usage {
    /// Forgets what is over, whoever asks.
    fn forget(&mut self, now_ms: u64) {
        let _ = now_ms;
    }

    /// Brings it to `clock`: forgets what no longer counts, and repairs what a clock that was stepped back left in the future.
    fn load(&mut self, terms: &Terms, clock: Clock, around: &mut Around<'_>);

    /// Units that count against `terms`.
    fn count(&self, terms: &Terms, now_ms: u64) -> u64;

    /// When the `k`-th next unit (from 1) may start if nobody starts before `base`, which is now or later.
    fn nth(&self, terms: &Terms, base: u64, k: u64) -> u64;

    /// A job of `cost` starts. Returns its number, where starts have one; 0 otherwise.
    fn take(&mut self, terms: &Terms, clock: Clock, cost: u64, permit: &str) -> u64;

    /// A call has ended: what it used is set against what it was charged.
    fn settle(&mut self, terms: &Terms, clock: Clock, ended: &Ended<'_>);

    /// A call came later than the guard covers; only where the algorithm [counts arrivals](Rules::counts_arrivals). True: it has
    /// changed what counts.
    fn late(&mut self, terms: &Terms, clock: Clock, ended: &Ended<'_>) -> bool {
        let _ = (terms, clock, ended);
        false
    }

    /// A call may be in flight for so long; only where the algorithm [holds leases](Rules::holds_leases).
    fn keep(&mut self, terms: &Terms, clock: Clock, ended: &Ended<'_>, for_ms: u64) {
        let _ = (terms, clock, ended, for_ms);
    }

    /// Nothing starts before `until_ms`, which is now or later, and nothing is saved up meanwhile; only where the algorithm
    /// [saves up](Rules::saves_up).
    fn hold(&mut self, terms: &Terms, until_ms: u64) {
        let _ = (terms, until_ms);
    }

    /// When it no longer says anything.
    fn end(&self) -> u64;
}

/// What a load needs to know of the partition whose limit it is.
#[derive(Debug)]
pub struct Around<'a> {
    /// How long a call holds a lease.
    pub usual: u64,
    /// The start of the newest fixed window that was seen before.
    pub newest: u64,
    /// What is known of a clock that was stepped back.
    pub stepped: &'a mut SteppedBack,
}

/// A call of which the gate is told.
#[derive(Debug, Clone, Copy)]
pub struct Ended<'a> {
    /// When it was decided.
    pub started_ms: u64,
    /// Its number; 0: it has none.
    pub sequence: u64,
    /// Its name.
    pub permit: &'a str,
    /// What it was charged.
    pub cost: u64,
    /// What it used; `None`: it never called.
    pub used: Option<u64>,
}

impl Ended<'_> {
    /// What it was charged, in units of `terms`.
    fn charged(&self, terms: &Terms) -> u64 {
        terms.unit().of(self.cost)
    }

    /// What it used, in units of `terms`.
    fn used(&self, terms: &Terms) -> Option<u64> {
        self.used.map(|used| terms.unit().of(used))
    }

    /// It used so many units more (or fewer) than it was charged.
    fn change(&self, terms: &Terms) -> i64 {
        self.used(terms).unwrap_or(0).cast_signed() - self.charged(terms).cast_signed()
    }
}
