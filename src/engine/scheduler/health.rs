//! What the breakers mean for the jobs here: failures are reported, and while the API's breaker is open, jobs wait.

use std::time::Duration;

use rand::Rng;
use tracing::{info, warn};

use super::{Phase, Scheduler, millis};
use crate::engine::action::{Action, Key};
use crate::engine::breakers::{Ended, Failed, Told};
use crate::engine::queues::End as Place;
use crate::gate::{GateError, Standings, Whose};
use crate::handler::{Outcome, Trouble};
use crate::rules::breaker::MOST_JITTER;

/// While the API's breaker is open, a job waits in memory for so long, where it costs nothing and fills the prefetch, so that
/// no others come. Then it takes a short lane: another worker may have a better way to the API, and RabbitMQ takes back what
/// stays unacked for 30 minutes.
const LET_GO: Duration = Duration::from_secs(30);
/// Those jobs are looked over so often,
const LET_GO_EVERY: Duration = Duration::from_secs(5);
/// and look again after this.
const LOOK_AGAIN: Duration = Duration::from_secs(15);

impl Scheduler {
    /// The breakers are told how a call ended, where that is news. True: its job waits until they were.
    pub(super) fn report_health(
        &mut self,
        now: Duration,
        key: Key,
        outcome: &Outcome,
        trouble: Option<Trouble>,
    ) -> bool {
        if matches!(outcome, Outcome::Retry { .. } | Outcome::Throttled { .. }) {
            self.note_call(now, key);
        }
        let Some(entry) = self.entries.get(&key).filter(|_| self.breakers.are_on()) else {
            return false;
        };
        let ended = Ended {
            key,
            id: entry.message.id().unwrap_or_default(),
            tenant: &entry.claims.tenant,
            started_ms: match &entry.started {
                Some(started) => started.receipt.started_ms,
                None => 0,
            },
        };
        match (outcome, trouble) {
            (Outcome::Retry { after, reason }, Some(trouble)) => {
                // The broker delivers the jobs of a session that is gone again.
                let waits = entry.tag.session == self.session;
                let job = waits.then(|| Failed {
                    key,
                    after: *after,
                    reason: reason.clone(),
                });
                let jitter = self.random.random_range(0..=MOST_JITTER);
                self.breakers.failed(&ended, (trouble, reason), jitter, job);
                waits
            }
            (Outcome::Late | Outcome::Snooze { .. }, _) => {
                self.breakers.unknown(&ended);
                false
            }
            // Nobody was called.
            _ if entry.started.is_none() => {
                self.breakers.unknown(&ended);
                false
            }
            _ => {
                self.breakers.sound(&ended);
                false
            }
        }
    }

    /// What [`Action::Report`] came to.
    pub fn reported(&mut self, now: Duration, result: Result<Standings, GateError>) {
        if let Err(why) = &result {
            warn!(reason = %why, "the breakers were not told of failed calls: they use no attempts");
        }
        for told in self.breakers.told(now, result) {
            match told {
                Told::Changed(whose, is_open, by) => self.say_breaker(&whose, is_open, &by),
                Told::Failed(job, open) => self.failure_told(now, job, open),
                Told::Closed(left, by) => {
                    info!(
                        left_ms = millis(left),
                        by, "all tenants are closed: their jobs wait"
                    );
                }
            }
        }
        self.metrics.set_breaker_open(self.breakers.is_open());
    }

    fn say_breaker(&self, whose: &Whose, is_open: bool, by: &str) {
        let kind = match whose {
            Whose::Tenant(_) => "tenant",
            Whose::Api => "api",
        };
        if is_open {
            self.metrics.breaker_opened(kind);
        }
        match (whose, is_open) {
            (Whose::Tenant(tenant), true) => {
                warn!(%tenant, by, "calls of this tenant stop, but for one probe at a time; its jobs wait and use no attempt");
            }
            (Whose::Tenant(tenant), false) => info!(%tenant, "calls of this tenant succeed again"),
            (Whose::Api, true) => {
                warn!(
                    by,
                    "calls of the API stop, but for one probe at a time; jobs wait and use no attempt"
                );
            }
            (Whose::Api, false) => info!("calls of the API succeed again"),
        }
    }

    /// A failed job knows by now whether a breaker is open.
    fn failure_told(&mut self, now: Duration, job: Failed, open: Option<bool>) {
        let Failed { key, after, reason } = job;
        let reporting = |entry: &super::Entry| entry.phase == Phase::Reporting;
        if !self.entries.get(&key).is_some_and(reporting) || self.gives_up(now, key, &reason) {
            return;
        }
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        match open {
            Some(false) => self.try_again(now, key, after, &reason),
            Some(true) => {
                let (id, tenant) = (entry.message.id(), &entry.claims.tenant);
                info!(job.id = id, %tenant, reason, "failed while a breaker is open: no attempt is used");
                // Its place was claimed when it started: it takes a new one.
                entry.claims.ticket = None;
                self.join(key, Place::Due);
            }
            None => {
                entry.claims.ticket = None;
                self.postpone(now, key, self.settings.retry.initial_interval);
            }
        }
    }

    /// A job that was called, and not for the last time, remembers when that first was.
    pub(super) fn note_call(&mut self, now: Duration, key: Key) {
        let store_now = self.store_now(now);
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.claims.first_call_ms = entry.claims.first_call_ms.or(store_now);
        }
    }

    /// A job that fails, or that the downstream refuses, for too long becomes a dead letter.
    pub(super) fn gives_up(&mut self, now: Duration, key: Key, reason: &str) -> bool {
        let first = self.entries.get(&key).and_then(|e| e.claims.first_call_ms);
        let (Some(first), Some(store_now)) = (first, self.store_now(now)) else {
            return false;
        };
        let give_up_after = self.settings.retry.give_up_after;
        let age = Duration::from_millis(store_now.saturating_sub(first));
        if age < give_up_after {
            return false;
        }
        let reason = format!(
            "gave up {give_up_after:?} after its first call (retry.give-up-after): {reason}"
        );
        self.bury(key, "given-up", &reason);
        true
    }

    /// Asks for the next probe if somebody wants to start, tells the breakers what is new, and lets jobs go that have waited for long.
    pub(super) fn look_at_breaker(&mut self, now: Duration) {
        if !self.draining {
            let wants = self.queues.may_ask(|_| true) || !self.unclocked.is_empty();
            let (scope, policy) = (self.settings.throttle_scope, self.fleet.own());
            (self.breakers).look(now, wants, || scope.may_close_all(policy));
        }
        let report = self.breakers.send();
        self.actions
            .extend(report.map(|(rule, events)| Action::Report(rule, events)));
        if !self.breakers.is_shut(now) || self.draining || now < self.next_let_go {
            return;
        }
        self.next_let_go = now + LET_GO_EVERY;
        let entries = &self.entries;
        let stale = |key| {
            let entry: Option<&super::Entry> = entries.get(&key);
            entry.is_some_and(|entry| entry.since + LET_GO < now)
        };
        for key in self.queues.take_stale(stale) {
            self.look_later(now, key, LOOK_AGAIN);
        }
    }

    /// When [`Scheduler::look_at_breaker`] does something, if nothing else happens.
    pub(super) fn breaker_tick(&self, now: Duration) -> Option<Duration> {
        if !self.breakers.is_shut(now) || self.draining {
            return None;
        }
        let let_go = self.next_let_go;
        Some(
            self.breakers
                .look_at(now)
                .map_or(let_go, |at| at.min(let_go)),
        )
    }
}
