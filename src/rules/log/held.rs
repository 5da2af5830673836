//! `guard: strict` and `max-concurrent`: a start holds its place until its call has ended, and for a window after that
//! (none for `max-concurrent`). Calls that are under way always count, so at most L of them arrive in any window, however
//! long each of them takes: an arrival lies between its start and its end.

use super::Clock;
use crate::rules::decision::LEASE_MS;
use crate::rules::limit::Limit;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    /// In the order of their ends, then of their names.
    places: Vec<Place>,
    /// The time of the last load.
    now: u64,
    /// How long a call takes.
    usual: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// When the call ended (milliseconds since the epoch, rounded up); beyond now while it is under way: when it is
    /// given up unless it is renewed.
    end: u64,
    /// The permit's name.
    permit: String,
    units: u64,
}

impl Held {
    pub fn load(&mut self, limit: &Limit, now: u64, usual: u64) {
        self.places.retain(|place| place.end + limit.span() > now);
        self.now = now;
        self.usual = usual.max(1);
    }

    pub fn count(&self) -> u64 {
        self.places.iter().map(|place| place.units).sum()
    }

    pub fn nth(&self, limit: &Limit, base: u64, k: u64) -> u64 {
        let (held, max) = (self.count(), u64::from(limit.max()));
        if held + k <= max {
            return base;
        }
        // So many units must leave before.
        let leaving = held + k - max;
        let laps = leaving.saturating_sub(held).div_ceil(max);
        let last = self.leaves(limit, leaving.min(held));
        base.max(last) + laps * (limit.span() + self.usual)
    }

    /// When the `unit`-th unit (from 1) leaves; a call that is under way is taken to need as long as others did.
    fn leaves(&self, limit: &Limit, unit: u64) -> u64 {
        let mut units = 0;
        let reached = |place: &&Place| {
            units += place.units;
            units >= unit
        };
        match self.places.iter().find(reached) {
            Some(place) if place.end <= self.now => place.end + limit.span(),
            _ => self.now + self.usual + limit.span(),
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
                self.places[at].end = clock.stamp_ms;
                self.places[at].units = used;
                self.places.sort_unstable();
            }
        }
    }

    pub fn renew(&mut self, clock: Clock, permit: &str, units: u64) {
        if let Some(at) = self.find(permit, units) {
            self.places[at].end = clock.stamp_ms + LEASE_MS;
            self.places.sort_unstable();
        }
    }

    pub fn end(&self, span: u64) -> u64 {
        self.places.last().map_or(0, |place| place.end + span)
    }

    fn find(&self, permit: &str, units: u64) -> Option<usize> {
        let wanted = |place: &Place| place.permit == permit && place.units == units;
        self.places.iter().position(wanted)
    }
}
