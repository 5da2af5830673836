//! `guard: strict` and `max-concurrent`: a call holds its lease until it has ended and, with
//! `guard: strict`, for a window after that. Calls in flight always count, so at most L calls
//! arrive in any window, however long each takes: an arrival lies between the start and the end of
//! its call.

use super::product::laps_ms;
use super::{
    AlgorithmFacts, KeyLayout, PartitionContext, ReportedCall, Rules, StoredUsage, Terms, Usage,
};
use crate::clock::Clock;

/// Time after its last renewal at which a lease expires, in milliseconds: its worker must have
/// died, because a worker renews its leases long before.
pub const LEASE_MS: u64 = 60_000;

/// The computations of both algorithms.
pub struct HeldRules;

/// The properties of `guard: strict`.
pub(super) const STRICT: AlgorithmFacts = AlgorithmFacts {
    name: "strict-window",
    about: "L in any W, calls in flight included",
    window_words: "in any",
    scripts: &["held"],
    shortcut: None,
    keys: KeyLayout::Own {
        kind: "strict",
        holds: "zset",
    },
    default_burst: None,
    holds_leases: true,
    is_aligned: false,
    saves_up: false,
    counts_arrivals: false,
};

/// The properties of `max-concurrent`.
pub(super) const CONCURRENCY: AlgorithmFacts = AlgorithmFacts {
    name: "max-concurrent",
    about: "L calls in flight",
    keys: KeyLayout::Own {
        kind: "running",
        holds: "zset",
    },
    ..STRICT
};

impl Rules for HeldRules {
    fn stored(&self, terms: &Terms) -> StoredUsage {
        StoredUsage::Entries {
            max: terms.max(),
            compact: 50,
            linked: 126,
        }
    }

    fn span(&self, terms: &Terms) -> u64 {
        terms.window_ms()
    }

    fn margin(&self, _: &Terms) -> u64 {
        0
    }

    fn state_ms(&self, terms: &Terms) -> (u64, u64) {
        (terms.window_ms(), 0)
    }

    /// Unbounded, because the duration of calls is not known.
    fn max_units_in(&self, _: &Terms, _: u64) -> u64 {
        u64::MAX
    }

    fn burstiness(&self, _: &Terms) -> u64 {
        u64::MAX
    }

    /// Unbounded for `max-concurrent`, which has no window.
    fn arriving(&self, terms: &Terms, window_ms: u64) -> u64 {
        match terms.window_ms() {
            0 => u64::MAX,
            own => terms.max().saturating_mul(window_ms.div_ceil(own)),
        }
    }

    fn is_implied_by(&self, _: &Terms, _: &Terms) -> bool {
        false
    }
}

/// Maximum delay before the gate checks again whether a call that takes longer than usual has
/// ended, in milliseconds. The delay is longer if an eighth of the usual duration is longer.
pub const MAX_CHECK_DELAY_MS: u64 = 500;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldLeases {
    /// Sorted by end, then by permit.
    leases: Vec<Lease>,
    /// The time of the last load.
    now: u64,
    /// The usual duration of a call in milliseconds, or 1 if it is unknown.
    usual: u64,
    /// The same, except that an unknown duration is replaced by the time that the newest call has
    /// been in flight.
    lap: u64,
    /// How long a lease lasts after the end of its call.
    span: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Lease {
    /// When the call ended (Unix ms, rounded up). While the call may be in flight, this is in the
    /// future: when the lease expires unless it is renewed.
    end: u64,
    /// The permit's name.
    permit: String,
    units: u64,
}

impl Lease {
    /// Returns how long the call has been in flight.
    fn elapsed(&self, now: u64) -> u64 {
        now.saturating_sub(self.end.saturating_sub(LEASE_MS))
    }
}

impl Usage for HeldLeases {
    fn load(&mut self, terms: &Terms, clock: Clock, around: &mut PartitionContext<'_>) {
        let now = clock.now_ms;
        self.leases.retain(|lease| lease.end + terms.span() > now);
        // An end more than a lease from now means that the clock was stepped back.
        for lease in &mut self.leases {
            lease.end = lease.end.min(clock.stamp_ms + LEASE_MS);
        }
        self.leases.sort_unstable();
        self.now = now;
        self.usual = around.usual.max(1);
        self.lap = match (around.usual, self.leases.last()) {
            // The duration of a call that has ended is not recorded, so only a call in flight gives
            // an estimate.
            (0, Some(newest)) if newest.end > now + 1 => newest.elapsed(now).max(1),
            _ => self.usual,
        };
        self.span = terms.span();
    }

    fn count(&self, _: &Terms, _: u64) -> u64 {
        self.units()
    }

    fn nth(&self, terms: &Terms, base: u64, k: u64) -> u64 {
        let (held, max) = (self.units(), terms.max());
        // A unit starts when the unit that started `max` units before it leaves.
        let (turn, laps) = ((k - 1) % max + 1, (k - 1) / max);
        let first = match (held + turn).checked_sub(max) {
            None | Some(0) => base,
            Some(leaving) => base.max(self.leaves(terms, leaving)),
        };
        first + laps_ms(laps, terms.span() + self.lap)
    }

    fn take(&mut self, terms: &Terms, clock: Clock, cost: u64, permit: &str) -> u64 {
        self.add(clock, permit, terms.unit().of(cost));
        0
    }

    fn settle(&mut self, terms: &Terms, clock: Clock, ended: &ReportedCall<'_>) {
        let Some(at) = self.find(ended.permit, ended.charged(terms)) else {
            return;
        };
        let mut lease = self.leases.remove(at);
        match ended.used(terms) {
            // A lease lasts for a span after its call. If the span is 0, nothing is left of the
            // lease.
            Some(used) if terms.span() > 0 => {
                (lease.end, lease.units) = (clock.stamp_ms, used);
                // A lease that was renewed after its end has the same name.
                let same = |other: &Lease| other.permit == lease.permit && other.units == used;
                self.leases.retain(|other| !same(other));
                self.leases.push(lease);
                self.leases.sort_unstable();
            }
            _ => {}
        }
    }

    /// Takes a missing lease again, since the store may have lost data meanwhile. Renews it for at
    /// most [`LEASE_MS`].
    fn keep(&mut self, terms: &Terms, clock: Clock, ended: &ReportedCall<'_>, for_ms: u64) {
        let (permit, units) = (ended.permit, ended.charged(terms));
        if self.find(permit, units).is_none() {
            self.add(clock, permit, units);
        }
        if let Some(at) = self.find(permit, units) {
            self.leases[at].end = clock.stamp_ms + for_ms.min(LEASE_MS);
            self.leases.sort_unstable();
        }
    }

    fn end(&self) -> u64 {
        self.leases.last().map_or(0, |lease| lease.end + self.span)
    }
}

impl HeldLeases {
    fn units(&self) -> u64 {
        self.leases.iter().map(|lease| lease.units).sum()
    }

    /// Returns when the `unit`-th unit (from 1), which must exist, leaves.
    fn leaves(&self, terms: &Terms, unit: u64) -> u64 {
        let mut units = 0;
        let reached = |lease: &&Lease| {
            units += lease.units;
            units >= unit
        };
        match self.leases.iter().find(reached) {
            // Ends are rounded up, so a call that ended within this millisecond counts until the
            // next.
            Some(lease) if lease.end <= self.now + 1 => lease.end + terms.span(),
            Some(lease) => self.now + self.left(lease) + terms.span(),
            None => self.now + self.usual + terms.span(),
        }
    }

    /// Returns how much longer a call in flight is expected to take: until the usual duration is
    /// over. If it has taken longer already, as long again as it is overdue, so that a call of a
    /// minute is not checked every millisecond.
    fn left(&self, lease: &Lease) -> u64 {
        let elapsed = lease.elapsed(self.now);
        match self.usual.checked_sub(elapsed) {
            None | Some(0) => (elapsed - self.usual)
                .min(MAX_CHECK_DELAY_MS)
                .max(self.usual / 8)
                .max(1),
            Some(left) => left,
        }
    }

    fn add(&mut self, clock: Clock, permit: &str, units: u64) {
        self.leases.push(Lease {
            end: clock.stamp_ms + LEASE_MS,
            permit: permit.to_owned(),
            units,
        });
        self.leases.sort_unstable();
    }

    fn find(&self, permit: &str, units: u64) -> Option<usize> {
        let is_it = |lease: &Lease| lease.permit == permit && lease.units == units;
        self.leases.iter().position(is_it)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Algorithm, SteppedBack, Unit};
    use super::*;

    const NOW: u64 = 1_700_000_000_000;

    fn clock(ms: u64) -> Clock {
        Clock::from_micros((NOW + ms) * 1000)
    }

    fn terms(algorithm: Algorithm, max: u64, window_ms: u64) -> Terms {
        Terms {
            algorithm,
            max,
            window_ms,
            guard_ms: 0,
            burst: max,
            unit: Unit::Calls,
            spacing_us: 0,
            forgiven_ms: 0,
            calendar: None,
        }
    }

    fn load(held: &mut HeldLeases, terms: &Terms, clock: Clock, usual: u64) {
        let mut around = PartitionContext {
            usual,
            newest: 0,
            stepped: &mut SteppedBack::default(),
        };
        held.load(terms, clock, &mut around);
    }

    fn held(max: u64, calls: u64, usual: u64) -> (Terms, HeldLeases) {
        let terms = terms(Algorithm::Concurrency, max, 0);
        let mut held = HeldLeases::default();
        load(&mut held, &terms, clock(0), usual);
        for call in 0..calls {
            held.add(clock(call * 10), &format!("p:{call}"), 1);
        }
        (terms, held)
    }

    #[test]
    fn the_next_units_start_when_those_before_them_leave() {
        let times = |calls| {
            let (terms, mut held) = held(2, calls, 100);
            load(&mut held, &terms, clock(10), 100);
            let at = |k| held.nth(&terms, NOW + 10, k) - NOW;
            [1, 2, 3, 4, 5].map(at)
        };
        assert_eq!(times(0), [10, 10, 110, 110, 210]);
        assert_eq!(times(1), [10, 100, 110, 200, 210]);
        assert_eq!(times(2), [100, 110, 200, 210, 300]);
    }

    /// Calls of an API that hangs are abandoned after a second. Their leases count until the call
    /// ends or the lease expires, and for a window after that.
    #[test]
    fn the_lease_of_an_abandoned_call_is_held_until_it_ends_or_its_lease_does() {
        let terms = terms(Algorithm::Strict, 2, 1000);
        let mut held = HeldLeases::default();
        let count = |held: &mut HeldLeases, ms| {
            load(held, &terms, clock(ms), 20);
            held.units()
        };
        let keep = |held: &mut HeldLeases, ms, permit, for_ms| {
            let ended = ReportedCall {
                started_ms: NOW,
                sequence: 0,
                permit,
                cost: 1,
                used: None,
            };
            held.keep(&terms, clock(ms), &ended, for_ms);
        };
        for permit in ["ends", "does not"] {
            held.add(clock(0), permit, 1);
            keep(&mut held, 1000, permit, 30_000);
        }
        assert_eq!(count(&mut held, 12_000), 2);
        assert!(held.nth(&terms, NOW + 12_000, 1) > NOW + 12_000);
        keep(&mut held, 12_000, "ends", 0);
        assert_eq!(count(&mut held, 12_999), 2);
        assert_eq!(count(&mut held, 13_000), 1);
        assert_eq!(held.nth(&terms, NOW + 13_000, 1), NOW + 13_000);
        assert_eq!(count(&mut held, 31_999), 1);
        assert_eq!(count(&mut held, 32_000), 0);
    }

    /// The clock reads fractions of a millisecond, and ends are rounded up. A question right after
    /// an end must not mistake the call for an overdue one, and defer the next check by half a
    /// second.
    #[test]
    fn a_request_in_the_millisecond_of_an_end_sees_it() {
        let at = |micros| Clock::from_micros(NOW * 1000 + micros);
        for (algorithm, span, counts) in
            [(Algorithm::Concurrency, 0, 0), (Algorithm::Strict, 1000, 1)]
        {
            let terms = terms(algorithm, 1, span);
            let mut held = HeldLeases::default();
            held.add(at(0), "p", 1);
            let ended = ReportedCall {
                started_ms: NOW,
                sequence: 0,
                permit: "p",
                cost: 1,
                used: Some(1),
            };
            held.settle(&terms, at(200_300), &ended);
            load(&mut held, &terms, at(200_700), 200);
            assert_eq!(held.units(), counts, "{algorithm:?}");
            let next = held.nth(&terms, NOW + 200, 1);
            assert_eq!(next, NOW + 200 + counts * (span + 1), "{algorithm:?}");
        }
    }

    #[test]
    fn a_long_call_is_not_polled_all_the_time() {
        let (terms, mut held) = held(1, 1, 1);
        let (mut now, mut looks) = (NOW, 0);
        while now < NOW + 30_000 {
            load(&mut held, &terms, clock(now - NOW), 1);
            now = held.nth(&terms, now, 1);
            looks += 1;
        }
        assert!((60..80).contains(&looks), "looked {looks} times in 30 s");
    }
}
