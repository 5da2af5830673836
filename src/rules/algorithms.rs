//! The algorithms by which limits count usage, and the interface that they share.
//!
//! An algorithm has a file here with its [`AlgorithmFacts`], [`Rules`] and [`Usage`] (its state), a
//! file in `lua/` with the same functions over Redis, and a row in `table.rs`. Configuration, keys,
//! scripts, the model, the search for the worst case and the simulation read the table.

pub mod bucket;
mod calendar;
mod counter;
mod fixed;
pub mod held;
pub mod product;
mod segments;
mod sliding;
mod span;
mod stored;
mod table;
mod terms;

pub use fixed::SteppedBack;
pub use held::LEASE_MS;
pub use stored::StoredUsage;
pub use table::Algorithm;
pub(crate) use table::LimitState;
pub use terms::{Terms, Unit};

use crate::clock::Clock;

/// How a limit's keys in Redis are named, and which type they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyLayout {
    /// One key for each limit.
    Own {
        /// The part of the key's name that identifies the algorithm.
        kind: &'static str,
        /// The key's type, as Redis's `TYPE` returns it.
        holds: &'static str,
    },
    /// One log, a sorted set, shared by all limits of the algorithm in a partition.
    Log,
    /// A counter, stored as a string, for each aligned window.
    Windows,
}

/// The files of an algorithm's fast path in `lua/`, without `.lua`. `shortcut.lua` uses it to admit
/// common jobs first.
#[derive(Debug, Clone, Copy)]
pub struct Shortcut {
    /// The functions that the fast path shares with the algorithm's script.
    pub usage: &'static str,
    /// The fast path itself.
    pub entry: &'static str,
}

/// The fixed properties of an algorithm.
#[derive(Debug)]
pub struct AlgorithmFacts {
    /// The value of `use-algo`.
    pub name: &'static str,
    /// Describes for the documentation how many units start: L is `max-requests`, W is
    /// `window-size`.
    pub about: &'static str,
    /// The words of `check` for the position of its windows, such as "in any" for a sliding one.
    pub window_words: &'static str,
    /// The algorithm's files in `lua/`, without `.lua`: the functions of [`Usage`] over Redis.
    pub scripts: &'static [&'static str],
    /// The algorithm's fast path, if it has one.
    pub shortcut: Option<Shortcut>,
    /// Where the algorithm keeps its state.
    pub keys: KeyLayout,
    /// The burst of a limit that sets none, or `None` if the algorithm has no bursts.
    pub default_burst: Option<DefaultBurst>,
    /// Whether a call holds a lease until it has ended, so that the gate must learn of the end.
    pub holds_leases: bool,
    /// Whether the windows are aligned to the Unix epoch, independently of when jobs start.
    pub is_aligned: bool,
    /// Whether quota that is unused during a pause lets more units start in a window afterwards.
    pub saves_up: bool,
    /// Whether the algorithm can count a call from its arrival instead of its start
    /// ([`Usage::late`]).
    pub counts_arrivals: bool,
}

/// The burst of a limit that sets none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultBurst {
    /// `max-requests`.
    Max,
    /// A single unit.
    One,
}

/// How an algorithm computes with the numbers of a limit. Times are in milliseconds. The defaults
/// apply to an algorithm that admits at most `max` units in any span.
pub trait Rules: Sync {
    /// Returns the data that Redis stores for a partition with a used-up quota.
    fn stored(&self, terms: &Terms) -> StoredUsage;

    /// Returns how long a unit counts, or how long the refill of `max` units takes.
    fn span(&self, terms: &Terms) -> u64;

    /// Returns the parameter that its [`Usage`] needs in addition to the span.
    fn margin(&self, terms: &Terms) -> u64;

    /// Returns how long the algorithm's own state looks back: the window, and the guard if it is
    /// counted on top. Together with the name, the algorithm and the unit this identifies a state.
    fn state_ms(&self, terms: &Terms) -> (u64, u64) {
        (terms.window_ms(), terms.guard_ms())
    }

    /// Returns the maximum number of units that arrive at the API in any half-open window, as long
    /// as the guard holds: units that arrive less than a window apart started less than window +
    /// guard apart. The search in `tests/simulation/gate/worst.rs` reaches each of these maxima and
    /// finds nothing above.
    fn worst_case(&self, terms: &Terms) -> u64 {
        terms.max()
    }

    /// Returns the maximum number of units that start in any `ms` milliseconds; `u64::MAX` if there
    /// is no bound.
    fn max_units_in(&self, terms: &Terms, ms: u64) -> u64 {
        terms.max().saturating_mul(ms.div_ceil(self.span(terms)))
    }

    /// Returns the maximum number of units that start in excess of an even flow of `max` per span.
    fn burstiness(&self, terms: &Terms) -> u64 {
        2 * terms.max()
    }

    /// Returns the maximum number of calls that arrive in an API's own window of `window_ms`:
    /// [`Rules::worst_case`] for a window of any length. A call costs at least one unit.
    fn arriving(&self, terms: &Terms, window_ms: u64) -> u64 {
        let apart = window_ms.saturating_add(terms.guard_ms());
        terms.max().saturating_mul(apart.div_ceil(self.span(terms)))
    }

    /// Returns true if `other`, which counts the same units by another algorithm or other numbers,
    /// makes this limit redundant. False if in doubt.
    fn is_implied_by(&self, terms: &Terms, other: &Terms) -> bool;
}

/// The starts that still count. [`Usage::load`] must be called before any other method.
pub trait Usage {
    /// Drops counts that have expired for all limits, not only for the caller's.
    fn forget(&mut self, now_ms: u64) {
        let _ = now_ms;
    }

    /// Advances the state to `clock`: drops units that no longer count, and repairs times that lie
    /// in the future because the clock was stepped back.
    fn load(&mut self, terms: &Terms, clock: Clock, around: &mut PartitionContext<'_>);

    /// Returns the number of units that count against `terms`.
    fn count(&self, terms: &Terms, now_ms: u64) -> u64;

    /// Returns when the `k`-th next unit (from 1) may start if nothing starts before `base`, which
    /// is now or later.
    fn nth(&self, terms: &Terms, base: u64, k: u64) -> u64;

    /// Charges a job of `cost` that starts. Returns its sequence number, or 0 if starts have none.
    fn take(&mut self, terms: &Terms, clock: Clock, cost: u64, permit: &str) -> u64;

    /// Corrects the charge of a call that has ended to the units that it used.
    fn settle(&mut self, terms: &Terms, clock: Clock, ended: &ReportedCall<'_>);

    /// Counts a call from now because it arrived later than the guard covers. Only for algorithms
    /// that [count arrivals](AlgorithmFacts::counts_arrivals). Returns true if usage has changed.
    fn late(&mut self, terms: &Terms, clock: Clock, ended: &ReportedCall<'_>) -> bool {
        let _ = (terms, clock, ended);
        false
    }

    /// Renews the lease of a call that may be in flight for another `for_ms`. Only for algorithms
    /// that [hold leases](AlgorithmFacts::holds_leases).
    fn keep(&mut self, terms: &Terms, clock: Clock, ended: &ReportedCall<'_>, for_ms: u64) {
        let _ = (terms, clock, ended, for_ms);
    }

    /// Lets nothing start before `until_ms`, which is now or later, and lets no quota accumulate
    /// meanwhile. Only for algorithms that [save up](AlgorithmFacts::saves_up).
    fn hold(&mut self, terms: &Terms, until_ms: u64) {
        let _ = (terms, until_ms);
    }

    /// Returns when the state no longer affects any decision.
    fn end(&self) -> u64;
}

/// The state of the partition that a load needs in addition to the limit's own.
#[derive(Debug)]
pub struct PartitionContext<'a> {
    /// How long a call usually holds a lease.
    pub usual: u64,
    /// The start of the newest fixed window seen so far.
    pub newest: u64,
    /// The record of a clock that was stepped back.
    pub stepped: &'a mut SteppedBack,
}

/// A call that is settled, renewed or counted late.
#[derive(Debug, Clone, Copy)]
pub struct ReportedCall<'a> {
    /// When the call was admitted.
    pub started_ms: u64,
    /// The call's sequence number; 0 if it has none.
    pub sequence: u64,
    /// The name of the call's permit.
    pub permit: &'a str,
    /// The cost that was charged.
    pub cost: u64,
    /// The cost that was used, or `None` if no call was made.
    pub used: Option<u64>,
}

impl ReportedCall<'_> {
    /// Returns the charged cost in units of `terms`.
    fn charged(&self, terms: &Terms) -> u64 {
        terms.unit().of(self.cost)
    }

    /// Returns the used cost in units of `terms`.
    fn used(&self, terms: &Terms) -> Option<u64> {
        self.used.map(|used| terms.unit().of(used))
    }

    /// Returns how many units more than charged (or fewer, if negative) the call used. A call that
    /// started later than now returns nothing: the clock was stepped back, and other calls may have
    /// used its units.
    fn change(&self, terms: &Terms, clock: Clock) -> i64 {
        let more = self.used(terms).unwrap_or(0).cast_signed() - self.charged(terms).cast_signed();
        match self.started_ms > clock.stamp_ms {
            true => more.max(0),
            false => more,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_from_before_a_clock_step_returns_nothing() {
        let terms = Terms {
            algorithm: Algorithm::TokenBucket,
            max: 10,
            window_ms: 1_000,
            guard_ms: 0,
            burst: 10,
            unit: Unit::Cost,
            spacing_us: 0,
            forgiven_ms: 0,
            calendar: None,
        };
        for (used, now_us, expected) in [
            (Some(2), 5_000_000, -6),
            (None, 5_000_000, -8),
            // The time of a start is rounded up to a millisecond.
            (None, 4_999_001, -8),
            (None, 4_999_000, 0),
            (Some(2), 1_000_000, 0),
            (Some(9), 1_000_000, 1),
        ] {
            let call = ReportedCall {
                started_ms: 5_000,
                sequence: 0,
                permit: "",
                cost: 8,
                used,
            };
            let change = call.change(&terms, Clock::from_micros(now_us));
            assert_eq!(change, expected, "{used:?} {now_us}");
        }
    }
}
