//! When a job asks again, and where it waits until then: in the queues, held in memory, or in a lane.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;

use super::preparing::Hand;
use super::{Entry, Phase, Scheduler, millis};
use crate::engine::action::Key;
use crate::engine::queues::End;
use crate::rules::headers::{self, Headers};
use crate::rules::lanes::Kind;

/// A job comes back from its lane this much before its turn and is held for the rest, so that a lane's own
/// lateness (measured: 3 to 30 ms) costs no quota.
pub(super) const LEAD: Duration = Duration::from_millis(100);
/// The same with the way to the store and the time that its call is prepared in is at most this.
const MOST_LEAD: Duration = Duration::from_secs(2);
/// The shortest lane may be this much late before the rest is too long to be held.
const SLACK: Duration = Duration::from_millis(100);

impl Scheduler {
    /// Makes a job ready to ask, or lets it wait when its time has not come; one whose time is over is a dead letter.
    pub(super) fn arrange(&mut self, now: Duration, key: Key, end: End) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        entry.phase = Phase::Ready;
        let not_before = entry.claims.not_before;
        if not_before.is_none() && entry.claims.expiry.is_never() {
            return self.join(key, end);
        }
        let Some(store_now) = self.store_now(now) else {
            return self.unclocked.push((key, end));
        };
        let wait = not_before.map_or(0, |not_before| not_before.left_ms(store_now));
        // The clock was read on its way here, and the question will be on its way.
        let wait = Duration::from_millis(wait).saturating_sub(self.base);
        self.count_expiration(now, key);
        if self.expire(now, key) {
            return;
        }
        if wait.is_zero() {
            self.join(key, end);
        } else if !self.hold(now, key, wait) {
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

    /// How long before its turn a job comes back from its lane.
    pub(super) fn lane_lead(&self) -> Duration {
        (LEAD + self.lead.get() + self.base).min(MOST_LEAD)
    }

    /// The longest wait that is spent in memory: at least what a lane leaves of one.
    fn longest_hold(&self) -> Duration {
        self.settings.hold.max(self.lane_lead() + SLACK)
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
        let held = wait <= self.longest_hold() && self.queues.try_hold(&entry.claims.tenant);
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

    /// A job that is counted as held.
    fn keep_until(&mut self, until: Duration, key: Key) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.phase = Phase::Held { until };
            self.timers.push(Reverse((until, key)));
            let lead = self.lead.get();
            if !lead.is_zero() {
                self.timers.push(Reverse((until.saturating_sub(lead), key)));
            }
            self.metrics.sent_round("hold");
        }
    }

    /// A held job may ask.
    pub(super) fn unhold(&mut self, now: Duration, key: Key) {
        self.places.forget(key);
        if let Some(entry) = self.entries.get(&key)
            && matches!(entry.phase, Phase::Held { .. })
        {
            self.queues.release(&entry.claims.tenant);
            if entry.hand == Hand::Preparing {
                self.entries
                    .get_mut(&key)
                    .into_iter()
                    .for_each(|entry| entry.phase = Phase::Preparing);
                return;
            }
            self.arrange(now, key, End::Due);
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
        let headers = headers::postponed(&entry.claims, not_before, millis(wait));
        self.send_round(now, key, wait, headers);
    }

    /// Sends the job through the lane for `wait`, or until it has expired.
    pub(super) fn send_round(&mut self, now: Duration, key: Key, wait: Duration, headers: Headers) {
        let wait = self.left(now, key).map_or(wait, |left| wait.min(left));
        let spread = self.random.random();
        let route = self.settings.ladder.choose(millis(wait), spread);
        self.metrics.sent_round(match route.kind {
            Kind::Due => "lane",
            Kind::Recheck => "recheck",
        });
        let lane = Arc::clone(self.settings.names.lane(route));
        self.leave(key, lane, headers);
    }

    /// Sends a job through one lane of at most `wait`, and lets it ask as soon as that ends.
    pub(super) fn look_later(&mut self, now: Duration, key: Key, wait: Duration) {
        let wait = wait.mul_f64(self.random.random_range(0.75..=1.0));
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        let store_now = self.store_now(now).unwrap_or_default();
        let headers = headers::postponed(&entry.claims, store_now, millis(wait));
        self.send_round(now, key, wait, headers);
    }

    /// A tenant whose jobs have room in their limit, but wait for a permit of the concurrency for longer than
    /// `hold`, may not fill the prefetch with them: all but an eighth of it come back later.
    pub(super) fn send_surplus_round(&mut self, now: Duration) {
        if now < self.next_surplus || self.draining {
            return;
        }
        self.next_surplus = now + self.settings.hold.max(LEAD);
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
