//! When a job asks again, and where it waits until then: in the queues, held in memory, or in a lane.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use tracing::warn;

use super::preparing::Hand;
use super::{Entry, Phase, Scheduler, millis};
use crate::broker::Source;
use crate::engine::action::Key;
use crate::engine::queues::End;
use crate::rules::headers::{self, Headers};
use crate::rules::job::NotBefore;
use crate::rules::lanes::{self, Trip};
use crate::rules::limit::ceil_ms;

/// What is wrong with the lanes is logged so often at most.
const EARLY_SAID: Duration = Duration::from_secs(60);
/// Jobs that lack a permit are looked at so often at most.
const SURPLUS_PAUSE: Duration = Duration::from_millis(100);

impl Scheduler {
    /// Makes a job ready to ask, or lets it wait when its time has not come; one whose time is over is a dead letter.
    pub(super) fn arrange(&mut self, now: Duration, key: Key, end: End) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        entry.phase = Phase::Ready;
        let (trip, not_before) = (entry.claims.trip, entry.claims.not_before);
        let never = entry.claims.expiry.is_never();
        if trip.is_none() && not_before.is_none() && never {
            return self.join(key, end);
        }
        let Some(store_now) = self.store_now(now) else {
            return self.unclocked.push((key, end));
        };
        self.count_expiration(now, key);
        if self.expire(now, key) {
            return;
        }
        if let Some(trip) = trip {
            return self.park(now, key, trip, store_now);
        }
        let wait = not_before.map_or(0, |not_before| not_before.left_ms(store_now));
        // The clock was read on its way here, and the question will be on its way.
        let wait = Duration::from_millis(wait).saturating_sub(self.base);
        if wait.is_zero() {
            self.join(key, end);
        } else if self.hold(now, key, wait) {
            // Then it is over, whatever the store's clock says.
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.claims.not_before = None;
            }
        } else {
            self.postpone(now, key, wait);
        }
    }

    /// Makes a job ready to ask.
    pub(super) fn join(&mut self, key: Key, end: End) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.phase = Phase::Ready;
            let end = match (entry.hand, end) {
                (Hand::Empty, end) => end,
                (_, End::Front) => End::FrontPrepared,
                _ => End::Prepared,
            };
            self.queues.join(&entry.claims.tenant, key, end);
        }
    }

    /// The job is done, or somebody else's.
    pub(super) fn forget(&mut self, key: Key) {
        self.entries.remove(&key);
        self.windows.forget(key);
    }

    /// Back to the front, in the old order.
    pub(super) fn put_back(&mut self, keys: &[Key]) {
        for &key in keys.iter().rev() {
            self.join(key, End::Front);
        }
    }

    /// The same for jobs with their places in that order.
    pub(super) fn put_back_in_order(&mut self, mut jobs: Vec<(usize, Key)>) {
        jobs.sort_unstable_by_key(|(place, _)| *place);
        let keys: Vec<Key> = jobs.into_iter().map(|(_, key)| key).collect();
        self.put_back(&keys);
    }

    /// Keeps the job in memory for `wait`, unless that is too long or memory is taken.
    pub(super) fn hold(&mut self, now: Duration, key: Key, wait: Duration) -> bool {
        let Some(entry) = self.entries.get(&key) else {
            return true;
        };
        let held = wait <= self.settings.hold && self.queues.try_hold(&entry.claims.tenant);
        if held {
            self.keep_until(now + wait, key);
        }
        held
    }

    /// [`Scheduler::hold`] for a moment, whoever else is held.
    pub(super) fn hold_anyway(&mut self, now: Duration, key: Key, wait: Duration) {
        if let Some(entry) = self.entries.get(&key) {
            self.queues.hold(&entry.claims.tenant);
            self.keep_until(now + wait, key);
        }
    }

    /// A job that is counted as held. Those that wait for the same moment ask together, in their order: so it is a whole millisecond.
    fn keep_until(&mut self, until: Duration, key: Key) {
        let until = Duration::from_millis(ceil_ms(until));
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.phase = Phase::Held { until };
            self.wake_at(until, key);
            self.metrics.sent_round("hold");
        }
    }

    /// A job that waits in memory is looked at then, and before that when its call is to be prepared.
    fn wake_at(&mut self, until: Duration, key: Key) {
        self.timers.push(Reverse((until, key)));
        let lead = self.lead.get();
        if !lead.is_zero() {
            self.timers.push(Reverse((until.saturating_sub(lead), key)));
        }
    }

    /// A job that waits in memory may ask.
    pub(super) fn wake(&mut self, now: Duration, key: Key) {
        self.places.forget(key);
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        match entry.phase {
            Phase::Held { .. } => self.queues.release(&entry.claims.tenant),
            Phase::Parked { .. } => self.windows.unpark(key),
            _ => return,
        }
        self.is_due(now, key);
    }

    /// The time of a job that waited in memory has come.
    fn is_due(&mut self, now: Duration, key: Key) {
        match self.entries.get_mut(&key) {
            Some(entry) if entry.hand == Hand::Preparing => entry.phase = Phase::Preparing,
            _ => self.arrange(now, key, End::Due),
        }
    }

    /// Sends the job through a lane, to be asked for anew after `wait`.
    pub(super) fn postpone(&mut self, now: Duration, key: Key, wait: Duration) {
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        // A job that ran was admitted by an answer, and others wait in `unclocked`. Only where nothing was ever decided the clock is
        // not known: then the job looks as soon as its lane ends.
        let store_now = self.store_now(now).unwrap_or_default();
        let not_before = store_now.saturating_add(millis(wait));
        let headers = headers::postponed(&entry.claims, Some(not_before), millis(wait));
        self.send_round(now, key, wait, headers);
    }

    /// Sends the job through the lane for `wait`, or until it has expired.
    pub(super) fn send_round(
        &mut self,
        now: Duration,
        key: Key,
        wait: Duration,
        mut headers: Headers,
    ) {
        let wait = self.left(now, key).map_or(wait, |left| wait.min(left));
        let spread = self.random.random();
        let route = self.settings.ladder.choose(millis(wait), spread);
        self.metrics.sent_round(match route.whole {
            true => "lane",
            false => "recheck",
        });
        let until = |store_now: u64| store_now.saturating_add(route.wait_ms);
        headers.push(headers::trip(Trip {
            until_ms: self.store_now(now).map_or(0, until),
            wait_ms: route.wait_ms,
        }));
        let entry = self.entries.get(&key);
        let priority = entry.and_then(|entry| *entry.message.properties.priority());
        headers.extend(priority.map(headers::priority));
        // It comes back to be told how long its wait is: before its time that is no news.
        if !route.whole && !headers.iter().any(|(name, _)| *name == headers::NOT_BEFORE) {
            headers.extend(self.store_now(now).map(until).map(headers::not_before));
        }
        let lane = Arc::clone(self.settings.names.lane(route));
        self.leave(key, lane, headers);
    }

    /// A job that came from a lane waits for the rest of its trip in the lane's window. One that waits for its turn asks a little before.
    fn park(&mut self, now: Duration, key: Key, trip: Trip, store_now: u64) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        entry.claims.trip = None;
        let left = Duration::from_millis(trip.left_ms(store_now)).saturating_sub(self.base);
        let until = now + left;
        // Who entered the lane after it did so for its shortest wait at least.
        let above = match entry.tag.source {
            Source::Lane(lane) => {
                let stay = lanes::stay_ms(trip.wait_ms);
                entry.stays = Some(until + Duration::from_millis(stay));
                let from = self.settings.ladder.from_ms().get(usize::from(lane));
                trip.wait_ms.saturating_sub(from.copied().unwrap_or(0))
            }
            _ => 0,
        };
        let is_over = |not_before: NotBefore| not_before.left_ms(store_now) == 0;
        let waits_for_turn = entry.claims.not_before.is_none_or(is_over);
        let early = match waits_for_turn {
            true => lanes::lead_ms(trip.wait_ms, self.random.random()),
            false => 0,
        };
        let ask_at = until.saturating_sub(Duration::from_millis(early));
        if ask_at <= now {
            return self.arrange(now, key, End::Due);
        }
        entry.phase = Phase::Parked { until: ask_at };
        self.wake_at(ask_at, key);
        let open_at = until.saturating_sub(Duration::from_millis(above));
        self.windows.park(key, until, open_at);
    }

    /// A job that came from a lane waits for its turn where it is, if that is about when it was told: `true`.
    pub(super) fn stay(&mut self, now: Duration, key: Key, wait: Duration) -> bool {
        let until = now + wait;
        let Some(entry) = self.entries.get_mut(&key) else {
            return true;
        };
        if entry.stays.is_none_or(|stays| stays < until) {
            return false;
        }
        let early = match wait <= self.settings.hold {
            true => 0,
            false => lanes::lead_ms(millis(wait), self.random.random()),
        };
        let ask_at = Duration::from_millis(ceil_ms(until) - early);
        entry.phase = Phase::Parked { until: ask_at };
        self.wake_at(ask_at, key);
        self.windows.stay(key, until);
        self.metrics.sent_round("hold");
        true
    }

    /// A job came to `jobs.due` out of a lane, which lets nothing go by itself.
    pub(super) fn say_early(&mut self, now: Duration) {
        let said = self.early_said.filter(|said| now < *said + EARLY_SAID);
        if said.is_none() {
            self.early_said = Some(now);
            let due = &self.settings.names.due;
            warn!(queue = %due, "jobs leave delay lanes before their time: a policy (message-ttl or delivery-limit) matches the lanes; they wait on here, but better end it");
        }
    }

    /// Jobs move on where others that are behind them in their lane may be due before.
    pub(super) fn make_room_in_lanes(&mut self, now: Duration) {
        if self.draining {
            return;
        }
        for (key, until) in self.windows.surplus(now) {
            let Some(entry) = self.entries.get(&key) else {
                continue;
            };
            let wait = until.saturating_sub(now);
            let not_before = entry.claims.not_before;
            let left = self.store_now(now).zip(not_before);
            let left = left.map_or(0, |(store_now, it)| it.left_ms(store_now));
            let at_ms = not_before.map(|it| it.at_ms);
            let headers = headers::postponed(&entry.claims, at_ms, left.max(millis(wait)));
            self.let_go(key);
            self.send_round(now, key, wait, headers);
        }
    }

    /// Sends a job through one lane of at most `wait`, and lets it ask as soon as that ends.
    pub(super) fn look_later(&mut self, now: Duration, key: Key, wait: Duration) {
        let wait = wait.mul_f64(self.random.random_range(0.75..=1.0));
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        let store_now = self.store_now(now).unwrap_or_default();
        let headers = headers::postponed(&entry.claims, Some(store_now), millis(wait));
        self.send_round(now, key, wait, headers);
    }

    /// A tenant whose jobs have room in their limit, but wait for a permit of the concurrency for longer than
    /// `hold`, may not fill the prefetch with them: all but an eighth of it come back later.
    pub(super) fn send_surplus_round(&mut self, now: Duration) {
        if now < self.next_surplus || self.draining {
            return;
        }
        self.next_surplus = now + self.settings.hold.max(SURPLUS_PAUSE);
        let (entries, hold) = (&self.entries, self.settings.hold);
        let stale = |key| {
            entries
                .get(&key)
                .is_some_and(|e: &Entry| e.since + hold < now)
        };
        let farthest = Duration::from_millis(self.settings.ladder.max_ms());
        let surplus = self
            .queues
            .take_surplus(now, self.usual_run, farthest, stale);
        for (key, at) in surplus {
            let mut wait = at.saturating_sub(now);
            if wait == farthest {
                // Nobody knows when: they look again, and not all at one moment.
                wait = wait.mul_f64(self.random.random_range(0.5..=1.0));
            }
            self.postpone(now, key, wait.max(hold));
        }
    }
}
