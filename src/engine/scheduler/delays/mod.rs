//! Decides where a delayed job waits: in memory, in the window of the delay queue that it came
//! from, or in a delay queue. `rules::delays` decides about the delay queues themselves: which
//! exist, which one a job takes, and for how long.
//!
//! [`JobTimers`] is the state: the jobs in memory by their times, in the windows of their delay
//! queues ([`windows`]), or until a lease is free ([`leases`]). [`lead`] determines how long before
//! its turn a job's call is prepared.

mod lead;
mod leases;
mod waiting;
mod windows;

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;

pub(super) use waiting::JobTimers;

use super::Scheduler;
use super::due_time::DueTime;
use super::entry::{JobEntry, Phase, SlotState};
use super::leaving::moves::Destination;
use super::queues::QueuePosition;
use crate::action::JobKey;
use crate::facts::{JobFact, WaitPlace};
use broker::DeliverySource;
use gate::TenantReply;
use rules::decision::Ticket;
use rules::delays::{self, Trip};
use rules::headers::{self, Headers};
use rules::job::{self, Claims, Field, NotBefore};
use rules::limit::{Limit, Unit, ceil_ms, floor_ms};

impl Scheduler {
    /// Puts jobs back to the front of their queues, in their old order.
    pub(super) fn put_back(&mut self, keys: &[JobKey]) {
        for &key in keys.iter().rev() {
            self.join(key, QueuePosition::Front);
        }
    }

    /// Puts jobs back to the front of their queues, in the order of their positions.
    pub(super) fn put_back_in_order(&mut self, mut jobs: Vec<(usize, JobKey)>) {
        jobs.sort_unstable_by_key(|(position, _)| *position);
        let keys: Vec<JobKey> = jobs.into_iter().map(|(_, key)| key).collect();
        self.put_back(&keys);
    }

    /// Forgets a job that is done, or that another worker has.
    pub(super) fn forget(&mut self, key: JobKey) {
        self.jobs.remove(&key);
        self.waiting.forget(key);
    }

    /// Returns how long a denied job waits before it asks again. Its turn for `limit`, which denied
    /// it, comes after `wait_ms`, unless calls use less than they reserve.
    pub(super) fn look(
        &self,
        key: JobKey,
        limit: &Limit,
        wait_ms: u64,
        reply: &TenantReply,
    ) -> Duration {
        let counts_cost = |_: &&JobEntry| limit.unit() == Unit::Cost;
        let look_ms = self.jobs.get(&key).filter(counts_cost).map(|job| {
            let suspended_ms = reply.blocked_until_ms.saturating_sub(reply.now_ms);
            let least_ms = suspended_ms.max(ceil_ms(self.queues.usual_call()));
            let Claims {
                tenant,
                cost,
                waits,
                ..
            } = &job.claims;
            self.costs
                .look_ms(tenant, (*cost, *waits), wait_ms, least_ms)
        });
        Duration::from_millis(look_ms.unwrap_or(wait_ms))
    }

    /// Delays the job: in memory, or in a delay queue if the wait is too long or memory is full.
    pub(super) fn delay(&mut self, now: Duration, key: JobKey, wait: Duration) {
        if !self.delay_in_memory(now, key, wait) {
            self.delay_in_queue(now, key, wait);
        }
    }

    /// Keeps the job in memory for `wait`. Returns false if that is too long or memory is full.
    pub(super) fn delay_in_memory(&mut self, now: Duration, key: JobKey, wait: Duration) -> bool {
        let Some(job) = self.jobs.get(&key) else {
            return true;
        };
        let has_room =
            wait <= self.settings.live.max_in_memory && self.queues.try_hold(&job.claims.tenant);
        if has_room {
            self.keep_until(now + wait, key);
        }
        has_room
    }

    /// Keeps the job in memory for a moment, even if memory is full.
    pub(super) fn delay_in_memory_anyway(&mut self, now: Duration, key: JobKey, wait: Duration) {
        if let Some(job) = self.jobs.get(&key) {
            self.queues.hold(&job.claims.tenant);
            self.keep_until(now + wait, key);
        }
    }

    /// Keeps a job in memory until `until`. The job is already counted as held. The time is rounded
    /// up to a whole millisecond, so that jobs that wait for the same moment ask together, in
    /// order.
    fn keep_until(&mut self, until: Duration, key: JobKey) {
        let until = Duration::from_millis(ceil_ms(until));
        if let Some(job) = self.jobs.get_mut(&key) {
            job.phase = Phase::Delayed { until };
            self.waiting.wait(until, key);
            self.facts.push(JobFact::Delayed(WaitPlace::InMemory));
        }
    }

    /// Keeps the job in the window of the delay queue that it came from, if its turn comes about
    /// when it was promised. Returns false if not.
    pub(super) fn delay_in_window(&mut self, now: Duration, key: JobKey, wait: Duration) -> bool {
        let until = now + wait;
        let Some(job) = self.jobs.get(&key) else {
            return true;
        };
        if job.window_until.is_none_or(|stays| stays < until) {
            return false;
        }
        let early = match wait <= self.settings.live.max_in_memory {
            true => 0,
            false => self.lead_ms(key, floor_ms(wait)),
        };
        let Some(job) = self.jobs.get_mut(&key) else {
            return true;
        };
        let ask_at = Duration::from_millis(ceil_ms(until) - early);
        job.phase = Phase::InWindow { until: ask_at };
        self.waiting.wait_in_window(key, ask_at, until);
        self.facts.push(JobFact::Delayed(WaitPlace::InMemory));
        true
    }

    /// Lets the job ask at once, or delays it until its earliest start.
    pub(super) fn delay_or_join(&mut self, now: Duration, key: JobKey, end: QueuePosition) {
        let rest = self.rest(now, key);
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        job.claims.not_before = rest;
        let Some(NotBefore { within_ms, .. }) = rest else {
            return self.join(key, end);
        };
        let wait = Duration::from_millis(within_ms);
        job.due = DueTime::at(now + wait);
        self.delay(now, key, wait);
    }

    /// Keeps a job that came from a delay queue in that queue's window for the rest of its trip. A
    /// job that waits for its turn asks a little earlier.
    pub(super) fn delay_for_trip(
        &mut self,
        now: Duration,
        key: JobKey,
        trip: Trip,
        store_now: u64,
    ) {
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        job.claims.trip = None;
        let is_over = |not_before: NotBefore| not_before.left_ms(store_now) == 0;
        let waits_for_turn = job.claims.not_before.is_none_or(is_over);
        let mut left = Duration::from_millis(trip.left_ms(store_now));
        job.due = DueTime::after_wait(now, trip.until_ms, store_now, left);
        if waits_for_turn {
            // The reading of the clock took time to arrive, and so will the question.
            left = left.saturating_sub(self.admission.base());
        }
        let until = now + left;
        // A job that entered the delay queue after this one waits at least for the queue's shortest
        // wait.
        let above = match job.tag.source {
            DeliverySource::Delay(level) => {
                let stay = delays::stay_ms(trip.wait_ms);
                job.window_until = Some(until + Duration::from_millis(stay));
                let from = self.settings.levels.from_ms().get(usize::from(level));
                trip.wait_ms.saturating_sub(from.copied().unwrap_or(0))
            }
            _ => 0,
        };
        let early = match waits_for_turn {
            true => self.lead_ms(key, trip.wait_ms),
            false => 0,
        };
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        let ask_at = until.saturating_sub(Duration::from_millis(early));
        if ask_at <= now {
            return self.arrange(now, key, QueuePosition::Due);
        }
        job.phase = Phase::InWindow { until: ask_at };
        let open_at = until.saturating_sub(Duration::from_millis(above));
        self.waiting.wait_for_trip(key, ask_at, until, open_at);
        if waits_for_turn && self.may_take_idle_lease(key, until) {
            self.wake(now, key);
        }
    }

    /// Returns how long before the end of a wait of `wait_ms` the job asks: not at all if nothing
    /// can bring its turn forward, because no job is ahead of it and its limits depend on starts
    /// alone.
    fn lead_ms(&mut self, key: JobKey, wait_ms: u64) -> u64 {
        let Some(job) = self.jobs.get(&key) else {
            return 0;
        };
        let Claims { tenant, plan, .. } = &job.claims;
        let is_fixed = job.claims.ticket.is_some_and(Ticket::is_first)
            && (self.agreement.limits(tenant, plan.as_deref())).depend_on_starts();
        match is_fixed {
            true => 0,
            false => delays::lead_ms(wait_ms, self.random.random()),
        }
    }

    /// Returns true if a job that came back before its turn waits for a lease, and a lease is free
    /// as far as this worker knows. The job may have it at once, because how long calls take is a
    /// guess.
    fn may_take_idle_lease(&mut self, key: JobKey, until: Duration) -> bool {
        let Some(job) = self.jobs.get(&key) else {
            return false;
        };
        let Field::Text(policy) = job.message.header(headers::POLICY) else {
            return false;
        };
        let (tenant, plan) = (&job.claims.tenant, job.claims.plan.as_deref());
        let limits = self.agreement.limits(tenant, plan);
        let name = headers::waits_for(policy);
        let limit = limits.iter().find(|limit| Some(limit.name()) == name);
        limit.is_some_and(|limit| self.waiting.leases.take_idle(tenant, limit, until, key))
    }

    /// Looks at a job in memory whose time has come, or is near.
    pub(super) fn check_job(&mut self, now: Duration, at: Duration, key: JobKey) {
        let phase = self.jobs.get(&key).map(|job| job.phase);
        if let Some(Phase::Delayed { until } | Phase::InWindow { until }) = phase {
            if until == at {
                self.wake(now, key);
            } else if until > at {
                self.prepare_early(now, until, key);
            }
        }
    }

    /// Lets a job that waits in memory ask.
    pub(super) fn wake(&mut self, now: Duration, key: JobKey) {
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        match job.phase {
            Phase::Delayed { .. } => self.queues.release(&job.claims.tenant),
            Phase::InWindow { .. } => {}
            _ => return,
        }
        self.waiting.end(key);
        match job.slot {
            SlotState::Preparing => job.phase = Phase::Preparing,
            _ => self.arrange(now, key, QueuePosition::Due),
        }
    }

    /// Returns the rest of the job's delay, if it is ahead.
    pub(super) fn rest(&self, now: Duration, key: JobKey) -> Option<NotBefore> {
        let not_before = self.jobs.get(&key)?.claims.not_before?;
        self.clock.rest(now, not_before)
    }

    /// Sends the job through a delay queue, so that it asks again after `wait`, and not before its
    /// delayed start.
    pub(super) fn delay_in_queue(&mut self, now: Duration, key: JobKey, wait: Duration) {
        // A job that ran was admitted by an answer, and other jobs wait for the clock. The clock is
        // unknown only if nothing was ever decided. Then the job asks as soon as its delay queue
        // ends.
        let store_now = self.clock.at_least(now).unwrap_or_default();
        let rest_ms = self.rest(now, key).map_or(0, |rest| rest.within_ms);
        let wait = wait.max(Duration::from_millis(rest_ms));
        let at_ms = store_now.saturating_add(floor_ms(wait));
        self.travel(now, key, Some(at_ms), wait);
    }

    /// Sends the job through one delay queue of at most `wait`, and lets it ask as soon as that
    /// ends.
    pub(super) fn recheck(&mut self, now: Duration, key: JobKey, wait: Duration) {
        let wait = wait.mul_f64(self.random.random_range(0.75..=1.0));
        let store_now = self.clock.at_least(now).unwrap_or_default();
        self.travel(now, key, Some(store_now), wait);
    }

    /// Sends the job through the delay queue for `wait`. Later it asks neither before `at_ms` nor
    /// before its delayed start.
    pub(super) fn travel(
        &mut self,
        now: Duration,
        key: JobKey,
        at_ms: Option<u64>,
        wait: Duration,
    ) {
        let rest = self.rest(now, key);
        let Some(job) = self.jobs.get(&key) else {
            return;
        };
        let at_ms = at_ms.max(rest.map(|rest| rest.at_ms));
        let wait_ms = floor_ms(wait).max(rest.map_or(0, |rest| rest.within_ms));
        let headers = job::postponed(&job.claims, at_ms, wait_ms);
        self.enter_delay_queue(now, key, wait, headers);
    }

    /// Sends the job through the delay queue for `wait`, or until it has expired.
    pub(super) fn enter_delay_queue(
        &mut self,
        now: Duration,
        key: JobKey,
        wait: Duration,
        mut headers: Headers,
    ) {
        let wait = self.left(now, key).map_or(wait, |left| wait.min(left));
        let route = self.settings.levels.choose(floor_ms(wait));
        self.facts.push(JobFact::Delayed(match route.is_complete {
            true => WaitPlace::Queue,
            false => WaitPlace::LongestDelayQueue,
        }));
        let until = |store_now: u64| store_now.saturating_add(route.wait_ms);
        let store_now = self.clock.at_least(now);
        headers.push(headers::trip(Trip {
            until_ms: store_now.map_or(0, until),
            wait_ms: route.wait_ms,
        }));
        let all_sleep = self.steering.now.wakes_no_job();
        let job = self.jobs.get_mut(&key);
        let priority = job.and_then(|job| {
            if !all_sleep && job.claims.woken > 0 {
                headers.push(headers::woken(job.claims.woken));
            }
            job.claims.waits = job.claims.waits.saturating_add(1);
            headers.extend(job.claims.promise.map(headers::promise));
            *job.message.properties.priority()
        });
        headers.extend(priority.map(headers::priority));
        // The job comes back only to have the rest of its wait computed. Before the end of this
        // trip there is nothing new.
        if !route.is_complete && !headers.iter().any(|(name, _)| *name == headers::NOT_BEFORE) {
            headers.extend(store_now.map(until).map(headers::not_before));
        }
        self.trace_leaves(now, key, &mut headers);
        let queue = Arc::clone(self.settings.names.delay(route));
        self.leave(now, key, Destination { queue, headers }, None);
    }

    /// Moves jobs on if jobs behind them in their delay queue may be due earlier.
    pub(super) fn make_room_in_windows(&mut self, now: Duration) {
        if self.intake.is_stopping() {
            return;
        }
        for (key, until) in self.waiting.windows.surplus(now) {
            self.travel_on(now, key, until);
        }
    }

    /// Delays surplus jobs of tenants whose limits have quota but whose jobs have waited for a
    /// worker slot for longer than `delay.max-in-memory`. All but an eighth of the prefetch come
    /// back later, so that they don't fill it.
    pub(super) fn delay_surplus(&mut self, now: Duration) {
        let hold = self.settings.live.max_in_memory;
        if self.intake.is_stopping() || !self.queues.should_check_surplus(now, hold) {
            return;
        }
        let jobs = &self.jobs;
        let stale = |key| jobs.get(&key).is_some_and(|job| job.since + hold < now);
        let farthest = Duration::from_millis(self.settings.levels.max_ms());
        for (key, at) in self.queues.take_surplus(now, farthest, stale) {
            let mut wait = at.saturating_sub(now);
            if wait == farthest {
                // It is not known when slots are free, so these jobs ask again at different times.
                wait = wait.mul_f64(self.random.random_range(0.5..=1.0));
            }
            self.delay_in_queue(now, key, wait.max(hold));
        }
    }
}
