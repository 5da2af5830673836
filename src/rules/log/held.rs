//! `guard: strict` and `max-concurrent`: a start holds its place until its call has ended, and for a window after that
//! (none for `max-concurrent`). Calls that are under way always count, so at most L of them arrive in any window, however
//! long each of them takes: an arrival lies between its start and its end.

use super::Clock;
use crate::rules::decision::LEASE_MS;
use crate::rules::limit::Limit;

/// A call that takes longer than usual is looked for after this at the latest (milliseconds), or after an eighth of what
/// is usual.
const LOOK_MS: u64 = 500;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    /// In the order of their ends, then of their names.
    places: Vec<Place>,
    /// The time of the last load.
    now: u64,
    /// How long a call takes.
    usual: u64,
    /// For how long a place is not free after its call's end.
    span: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// When the call ended (milliseconds since the epoch, rounded up); beyond now while it may be under way: when its
    /// place is given up unless it is kept for longer.
    end: u64,
    /// The permit's name.
    permit: String,
    units: u64,
}

impl Held {
    pub fn load(&mut self, limit: &Limit, clock: Clock, usual: u64) {
        let now = clock.now_ms;
        self.places.retain(|place| place.end + limit.span() > now);
        // Later than a lease from now: the clock was stepped back.
        for place in &mut self.places {
            place.end = place.end.min(clock.stamp_ms + LEASE_MS);
        }
        self.places.sort_unstable();
        self.now = now;
        self.usual = usual.max(1);
        self.span = limit.span();
    }

    pub fn count(&self) -> u64 {
        self.places.iter().map(|place| place.units).sum()
    }

    pub fn nth(&self, limit: &Limit, base: u64, k: u64) -> u64 {
        let (held, max) = (self.count(), u64::from(limit.max()));
        // A unit starts when the one that started `max` units before it leaves.
        let (turn, laps) = ((k - 1) % max + 1, (k - 1) / max);
        let first = match (held + turn).checked_sub(max) {
            None | Some(0) => base,
            Some(leaving) => base.max(self.leaves(limit, leaving)),
        };
        first + laps * (limit.span() + self.usual)
    }

    /// When the `unit`-th unit (from 1, and there is one) leaves.
    fn leaves(&self, limit: &Limit, unit: u64) -> u64 {
        let mut units = 0;
        let reached = |place: &&Place| {
            units += place.units;
            units >= unit
        };
        match self.places.iter().find(reached) {
            Some(place) if place.end <= self.now => place.end + limit.span(),
            Some(place) => self.now + self.left(place) + limit.span(),
            None => self.now + self.usual + limit.span(),
        }
    }

    /// How long a call that is under way may still take: as long as others did or, where it has taken longer, as long
    /// again as it is late, so that nobody looks every millisecond for a call that takes a minute.
    fn left(&self, place: &Place) -> u64 {
        let since = place.end.saturating_sub(LEASE_MS);
        let elapsed = self.now.saturating_sub(since);
        match self.usual.checked_sub(elapsed) {
            None | Some(0) => (elapsed - self.usual)
                .min(LOOK_MS)
                .max(self.usual / 8)
                .max(1),
            Some(left) => left,
        }
    }

    pub fn take(&mut self, clock: Clock, permit: &str, units: u64) {
        self.places.push(Place {
            end: clock.stamp_ms + LEASE_MS,
            permit: permit.to_owned(),
            units,
        });
        self.places.sort_unstable();
    }

    /// The call that was charged `units` has ended; `used`: what it used, `None` if it never called.
    pub fn settle(&mut self, clock: Clock, permit: &str, units: u64, used: Option<u64>) {
        let Some(at) = self.find(permit, units) else {
            return;
        };
        match used {
            None => drop(self.places.remove(at)),
            Some(used) => {
                let mut place = self.places.remove(at);
                (place.end, place.units) = (clock.stamp_ms, used);
                // One that was renewed after its end has the same name.
                let same = |other: &Place| other.permit == place.permit && other.units == used;
                self.places.retain(|other| !same(other));
                self.places.push(place);
                self.places.sort_unstable();
            }
        }
    }

    /// The call may be under way for so long (at most [`LEASE_MS`]). A place that is not there is taken again: the store may
    /// have lost its memory meanwhile.
    pub fn keep(&mut self, clock: Clock, permit: &str, units: u64, for_ms: u64) {
        if self.find(permit, units).is_none() {
            self.take(clock, permit, units);
        }
        if let Some(at) = self.find(permit, units) {
            self.places[at].end = clock.stamp_ms + for_ms.min(LEASE_MS);
            self.places.sort_unstable();
        }
    }

    /// When it no longer says anything.
    pub fn end(&self) -> u64 {
        self.places.last().map_or(0, |place| place.end + self.span)
    }

    fn find(&self, permit: &str, units: u64) -> Option<usize> {
        let wanted = |place: &Place| place.permit == permit && place.units == units;
        self.places.iter().position(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::limit::Algorithm;

    const NOW: u64 = 1_700_000_000_000;

    fn clock(ms: u64) -> Clock {
        Clock::from_micros((NOW + ms) * 1000)
    }

    fn held(max: u64, calls: u64, usual: u64) -> (Limit, Held) {
        let limit = Limit::concurrent("places", max).expect("this is a limit");
        let mut held = Held::default();
        held.load(&limit, clock(0), usual);
        for call in 0..calls {
            held.take(clock(call * 10), &format!("p:{call}"), 1);
        }
        (limit, held)
    }

    #[test]
    fn the_next_units_start_when_those_before_them_leave() {
        let times = |calls| {
            let (limit, mut held) = held(2, calls, 100);
            held.load(&limit, clock(10), 100);
            let at = |k| held.nth(&limit, NOW + 10, k) - NOW;
            [1, 2, 3, 4, 5].map(at)
        };
        assert_eq!(times(0), [10, 10, 110, 110, 210]);
        assert_eq!(times(1), [10, 100, 110, 200, 210]);
        assert_eq!(times(2), [100, 110, 200, 210, 300]);
    }

    /// Calls of an API that stands still, given up after a second: their places count until they end or the lease does, and
    /// for a window after that.
    #[test]
    fn the_place_of_an_abandoned_call_is_held_until_it_ends_or_its_lease_does() {
        let second = std::time::Duration::from_secs(1);
        let strict = Limit::new(
            "strict",
            Algorithm::Strict,
            2,
            second,
            std::time::Duration::ZERO,
        );
        let limit = strict.expect("this is a limit");
        let mut held = Held::default();
        let count = |held: &mut Held, ms| {
            held.load(&limit, clock(ms), 20);
            held.count()
        };
        for permit in ["ends", "does not"] {
            held.take(clock(0), permit, 1);
            held.keep(clock(1000), permit, 1, 30_000);
        }
        assert_eq!(count(&mut held, 12_000), 2);
        assert!(held.nth(&limit, NOW + 12_000, 1) > NOW + 12_000);
        held.keep(clock(12_000), "ends", 1, 0);
        assert_eq!(count(&mut held, 12_999), 2);
        assert_eq!(count(&mut held, 13_000), 1);
        assert_eq!(held.nth(&limit, NOW + 13_000, 1), NOW + 13_000);
        assert_eq!(count(&mut held, 31_999), 1);
        assert_eq!(count(&mut held, 32_000), 0);
    }

    #[test]
    fn a_call_that_takes_long_is_not_looked_for_all_the_time() {
        let (limit, mut held) = held(1, 1, 1);
        let (mut now, mut looks) = (NOW, 0);
        while now < NOW + 30_000 {
            held.load(&limit, clock(now - NOW), 1);
            now = held.nth(&limit, now, 1);
            looks += 1;
        }
        assert!((60..80).contains(&looks), "looked {looks} times in 30 s");
    }
}
