//! Lets go of jobs that were held unacked for as long as RabbitMQ may allow ([`Holding`]), wherever
//! they wait. Each takes another trip through a delay queue. Deliveries whose moves RabbitMQ does not
//! confirm meanwhile go back to their queues.

use std::collections::HashSet;
use std::time::Duration;

use crate::action::JobKey;
use crate::facts::BrokerFact;
use crate::scheduler::Scheduler;
use crate::scheduler::entry::{JobEntry, Phase};
use rules::broker::holding::{Holding, TICK, UNKNOWN};

/// Number of checks for old jobs within the longest hold.
const CHECKS_PER_HOLD: u32 = 16;
/// Duration of a long session: longer than any wait in a delay queue's window.
const LONG_SESSION: Duration = Duration::from_secs(11 * 60);
/// Delay before a job that waits only for a slot comes back.
const SLOT_WAIT: Duration = Duration::from_secs(1);

/// The limit on how long jobs are held.
#[derive(Debug)]
pub struct HoldLimit {
    holding: Holding,
    /// When the last session began.
    up_at: Option<Duration>,
    /// Jobs delivered before this time came while the timeout was not known.
    unknown_until: Duration,
    /// Whether the broker has reported its timeout.
    is_learned: bool,
    next_check: Duration,
}

impl HoldLimit {
    pub fn new(holding: Holding) -> Self {
        Self {
            holding,
            up_at: None,
            unknown_until: Duration::ZERO,
            is_learned: false,
            next_check: Duration::ZERO,
        }
    }

    /// Returns how long a job delivered at `since` may wait.
    fn longest(&self, since: Duration) -> Duration {
        let longest = self.holding.longest();
        match since < self.unknown_until {
            true => longest.min(UNKNOWN),
            false => longest,
        }
    }

    /// Returns when to look for old jobs next.
    pub fn next(&self) -> Duration {
        self.next_check
    }
}

impl Scheduler {
    /// Shortens the hold while the broker looks for its timeout in a new session. A timeout shorter
    /// than [`TICK`] shows after [`TICK`]. A longer timeout shows before any job delivered later is
    /// held as long. A timeout that did not show in a long session is not short.
    pub fn timeout_is_unknown(&mut self, now: Duration) {
        let before = self.hold_limit.up_at.replace(now);
        let lasted = before.map_or(Duration::ZERO, |up_at| now.saturating_sub(up_at));
        let looks = self.hold_limit.holding.detects_timeout() && !self.hold_limit.is_learned;
        if looks && lasted < LONG_SESSION {
            self.hold_limit.unknown_until = now + TICK + TICK / 12;
            self.hold_limit.next_check = now;
        }
    }

    /// Learns RabbitMQ's timeout, after which it takes back unacked deliveries.
    pub fn timeout_is(&mut self, now: Duration, timeout: Duration) {
        (self.hold_limit.unknown_until, self.hold_limit.is_learned) = (Duration::ZERO, true);
        if self.hold_limit.holding.learn(timeout) {
            let fits = self.hold_limit.holding.fits();
            self.facts.push(BrokerFact::ShortTimeout { timeout, fits });
            self.hold_limit.next_check = now;
        }
    }

    /// Lets go of jobs that were held for too long. Jobs in a gate request or in a call are checked
    /// again later.
    pub(in crate::scheduler) fn release_long_held(&mut self, now: Duration) {
        if self.intake.is_stopping() || now < self.hold_limit.next_check {
            return;
        }
        let shortest = self
            .hold_limit
            .longest(now)
            .min(self.hold_limit.longest(Duration::ZERO));
        self.hold_limit.next_check = now + shortest / CHECKS_PER_HOLD;
        let until = now.saturating_sub(self.hold_limit.holding.longest_move());
        let held = self.moves.take_held(now, until);
        self.give_back(now, held);
        let is_old = |job: &JobEntry| job.since + self.hold_limit.longest(job.since) <= now;
        let old = self.jobs.iter().filter(|(_, job)| is_old(job));
        let mut old: Vec<JobKey> = old.map(|(key, _)| *key).collect();
        if old.is_empty() {
            return;
        }
        // Jobs leave in the order of arrival, not in the map's order.
        old.sort_unstable();
        let mut number = 0;
        for &key in &old {
            let phase = self.jobs.get(&key).map(|job| job.phase);
            if let Some(Phase::Delayed { until } | Phase::InWindow { until }) = phase
                && until > now + SLOT_WAIT
            {
                self.travel_on(now, key, until);
                number += 1;
            }
        }
        let old: HashSet<JobKey> = old.into_iter().collect();
        let mut ready = self.queues.take_stale(|key| old.contains(&key));
        ready.extend(self.candidates.take_waiting(|key| old.contains(&key)));
        for (key, end) in self.clock.take_waiting() {
            match old.contains(&key) {
                true => ready.push(key),
                false => self.clock.wait(key, end),
            }
        }
        let wait = self.admission.closed_for(now).max(SLOT_WAIT);
        let wait = wait.min(Duration::from_millis(self.settings.levels.max_ms()));
        for key in ready {
            self.recheck(now, key, wait);
            number += 1;
        }
        if number > 0 {
            self.facts.push(BrokerFact::HeldJobsReleased(number));
        }
    }

    /// Moves a job that waits in memory until `until` to a delay queue.
    pub(in crate::scheduler) fn travel_on(&mut self, now: Duration, key: JobKey, until: Duration) {
        let Some(job) = self.jobs.get(&key) else {
            return;
        };
        if matches!(job.phase, Phase::Delayed { .. }) {
            self.queues.release(&job.claims.tenant);
        }
        self.release_slot(key);
        self.travel(now, key, None, until.saturating_sub(now));
    }
}
