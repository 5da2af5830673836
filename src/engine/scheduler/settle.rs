//! What becomes of a job that ran.

use std::time::Duration;

use rand::Rng;
use tracing::{debug, info, warn};

use super::{Phase, Scheduler, millis};
use crate::engine::action::{Action, Block, Key};
use crate::engine::queues::End as Place;
use crate::gate::{End, GateError, LEASE_MS, Partition, SettleReplies, Whose};
use crate::handler::{Attempt, Fate, LateEnd, Outcome};
use crate::rules::limit::{Limit, Unit};
use crate::rules::pushback::ThrottleScope;
use crate::rules::quota::{Excess, Quotas};
use crate::rules::tenant::Tenant;

/// A call that says that it cost more counts as this: a thousand times the highest limit.
const MAX_ACTUAL_COST: u32 = 1_000_000_000;
/// A tenant with no window, whose downstream does not say for how long it is closed, is closed for so long.
const NO_WINDOW: Duration = Duration::from_secs(1);

impl Scheduler {
    /// The handler's verdict on a job that [`Action::Dispatch`] started, and how long it took.
    pub fn finished(
        &mut self,
        now: Duration,
        key: Key,
        took: Duration,
        attempt: impl Into<Attempt>,
    ) {
        let Attempt {
            outcome,
            seen,
            fate,
            trouble,
        } = attempt.into();
        if outcome != Outcome::Late {
            self.metrics.dispatched(&outcome);
            self.metrics.ran(took);
            self.usual_run = (self.usual_run * 15 + took) / 16;
        }
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        if let (Outcome::Late, Some(started)) = (&outcome, &entry.started) {
            self.round_size.late(now, started.asked_at);
        }
        self.queues.end(&entry.claims.tenant);
        let (end, ended) = match fate {
            Fate::Unwritten => (End::Unused, None),
            Fate::Abandoned { lease, ended } => {
                let for_ms = millis(lease).min(LEASE_MS);
                (End::Abandoned { for_ms }, Some(ended))
            }
            Fate::Unknown | Fate::Answered => {
                let actual = seen.actual_cost.map(|cost| cost.min(MAX_ACTUAL_COST));
                (End::Cost(actual.unwrap_or(entry.claims.cost)), None)
            }
        };
        if outcome != Outcome::Late && end != End::Unused {
            self.survived(key);
        }
        let waits = self.report_health(now, key, &outcome, trouble);
        self.settle(now, key, end, ended);
        self.close_used_up(now, key, seen.used_up);
        self.hear(now, key, seen.quotas);
        self.conclude(now, key, outcome, waits);
    }

    /// What becomes of a job that does not run, nor ask, any more. `waits`: its failure is being told to the breakers.
    pub(super) fn conclude(&mut self, now: Duration, key: Key, outcome: Outcome, waits: bool) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        // The broker delivers the jobs of a session that is gone again, and that copy is settled.
        let stale = entry.tag.session != self.session;
        let tenant = &entry.claims.tenant;
        match outcome {
            Outcome::Throttled { after, reason } => {
                let claims = &entry.claims;
                let limits = self.fleet.own().limits(tenant, claims.plan.as_deref());
                // It did not say for how long: until the shortest window has passed. Calls under way have none.
                let windows = limits.iter().map(Limit::window_ms).filter(|ms| *ms > 0);
                let window = windows.min().map_or(NO_WINDOW, Duration::from_millis);
                let duration = after.unwrap_or(window).min(self.settings.max_penalty);
                let duration_ms = millis(duration);
                let whose = whose(self.settings.throttle_scope, limits, tenant);
                let closed = words(&whose);
                info!(%tenant, duration_ms, reason, "the downstream closed {closed}");
                let mut block = Block {
                    key: None,
                    whose,
                    until: now + duration,
                    by: reason,
                    failures: 0,
                };
                if stale || !self.gives_up(now, key, &block.by) {
                    block.key = Some(key);
                    if let Some(entry) = self.entries.get_mut(&key) {
                        entry.phase = Phase::Blocking { duration };
                    }
                }
                self.block(now, block);
            }
            Outcome::Done => {
                if !stale {
                    self.acks.push(entry.tag);
                }
                self.forget(key);
            }
            _ if stale => {
                self.forget(key);
            }
            Outcome::Retry { .. } if waits => entry.phase = Phase::Reporting,
            Outcome::Late => {
                self.metrics.late_admission();
                entry.had_its_turn();
                self.put_back(&[key]);
            }
            Outcome::Retry { after, reason } => {
                if !self.gives_up(now, key, &reason) {
                    self.try_again(now, key, after, &reason);
                }
            }
            Outcome::Snooze { after } => {
                entry.claims.ticket = None;
                self.postpone(now, key, after);
            }
            Outcome::Reject { reason } => self.bury(key, "rejected", &reason),
        }
    }

    /// It failed, which uses an attempt: it is tried again later, or no more.
    pub(super) fn try_again(
        &mut self,
        now: Duration,
        key: Key,
        after: Option<Duration>,
        reason: &str,
    ) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let attempt = entry.claims.attempt;
        let jitter = self.random.random();
        let Some(backoff) = self.settings.retry.wait(attempt, jitter) else {
            let reason = format!("gave up after {attempt} attempts: {reason}");
            return self.bury(key, "attempts", &reason);
        };
        let (wait, tenant) = (after.unwrap_or(backoff), &entry.claims.tenant);
        let (id, wait_ms) = (entry.message.id(), millis(wait));
        info!(job.id = id, %tenant, attempt, wait_ms, reason, "failed: tried again later");
        entry.claims.attempt += 1;
        entry.claims.ticket = None;
        self.postpone(now, key, wait);
    }

    /// What a start used is told to the gate, where that is not what it was charged or a place is held. `ended` says when a
    /// call that was given up has ended.
    fn settle(&mut self, now: Duration, key: Key, end: End, ended: Option<LateEnd>) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let Some(started) = entry.started.take() else {
            return;
        };
        let (limits, receipt) = (&started.limits, &started.receipt);
        let holds = limits.hold_places();
        let counts_cost = limits.iter().any(|limit| limit.unit() == Unit::Cost);
        let as_charged = match end {
            End::Cost(used) => used == receipt.cost || !counts_cost,
            End::Abandoned { .. } => true,
            End::Unused | End::Running | End::Late => false,
        };
        let tenant = entry.claims.tenant.clone();
        if !as_charged || holds {
            self.ledger.add_start(&tenant, &started, end);
        }
        match (end, ended) {
            (End::Abandoned { for_ms }, Some(ended))
                if holds && for_ms > 0 && self.abandoned.has_room() =>
            {
                self.give_up(now, tenant, started, for_ms, ended);
            }
            _ => self.ledger.ended(limits),
        }
    }

    /// Places that running jobs hold are kept.
    pub(super) fn renew(&mut self, now: Duration) {
        if self.ledger.renew_at().is_none_or(|at| now < at) {
            return;
        }
        self.ledger.renewed(now);
        // In the order of arrival, not the map's: the same events say the same.
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| **key);
        for (_, entry) in entries {
            if let (Phase::Running, Some(started)) = (entry.phase, &entry.started)
                && started.limits.hold_places()
            {
                (self.ledger).add_start(&entry.claims.tenant, started, End::Running);
            }
        }
        self.renew_abandoned(now);
    }

    /// What [`Action::Settle`] came to.
    pub fn settled(
        &mut self,
        now: Duration,
        partition: Partition,
        result: Result<SettleReplies, GateError>,
    ) {
        let told = self.ledger.told(now, partition, result);
        for (tenant, limits, calls) in told.ended {
            for key in self.places.freed(&tenant, &limits, calls) {
                self.wake(now, key);
            }
        }
        if let Some(why) = told.why {
            warn!(starts = told.lost, reason = %why, "what these starts used could not be told to the gate: some quota is wasted");
        }
    }

    /// The answer was no refusal, but said that the next one would be: nobody of this tenant starts before that is over.
    fn close_used_up(&mut self, now: Duration, key: Key, used_up: Option<Duration>) {
        let (Some(entry), Some(used_up)) = (self.entries.get(&key), used_up) else {
            return;
        };
        let claims = &entry.claims;
        let (tenant, duration) = (&claims.tenant, used_up.min(self.settings.max_penalty));
        let limits = self.fleet.own().limits(tenant, claims.plan.as_deref());
        let whose = whose(self.settings.throttle_scope, limits, tenant);
        let closed = words(&whose);
        info!(%tenant, duration_ms = millis(duration), "the downstream says that nothing is left for {closed}");
        let block = Block {
            key: None,
            whose,
            until: now + duration,
            by: "the downstream's RateLimit: nothing is left".to_owned(),
            failures: 0,
        };
        self.block(now, block);
    }

    /// The answer said what the downstream's limits are. A warning says where ours allow more.
    fn hear(&mut self, now: Duration, key: Key, quotas: Quotas) {
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        let tenant = &entry.claims.tenant;
        if !self.heard.hear(now, tenant, quotas) {
            return;
        }
        let limits = self
            .fleet
            .own()
            .limits(tenant, entry.claims.plan.as_deref());
        for excess in quotas.iter().filter_map(|quota| Excess::of(limits, quota)) {
            let warning = excess.to_string();
            if self.heard.is_new_warning(now, &warning) {
                warn!(%tenant, "{warning}");
            }
        }
    }

    /// What [`Action::Advertised`] came to.
    pub fn told(&mut self, now: Duration, result: Result<(), GateError>) {
        if let Err(why) = &result {
            debug!(reason = %why, "what the downstream says of its limits was not noted");
        }
        self.heard.told(now, result.is_ok());
    }

    pub(super) fn block(&mut self, now: Duration, block: Block) {
        self.blocking += 1;
        if block.whose == Whose::Api {
            self.breakers.closed(block.until, false);
        }
        let duration = block.until.saturating_sub(now);
        self.actions.push(Action::Block(block, duration));
    }

    /// What [`Action::Block`] came to: the tenant was closed, or could not be. Then the job that waits for it is put off at least,
    /// and the gate is told again.
    pub fn blocked(&mut self, now: Duration, block: Block, result: Result<(), GateError>) {
        self.blocking -= 1;
        let key = block.key;
        match &result {
            Ok(()) if block.whose == Whose::Api => self.breakers.closed(block.until, true),
            Ok(()) => {}
            Err(why) => self.not_blocked(now, block, why),
        }
        let Some((key, entry)) = key.and_then(|key| Some((key, self.entries.get_mut(&key)?)))
        else {
            return;
        };
        let Phase::Blocking { duration } = entry.phase else {
            return;
        };
        // Its place was claimed when it started: it takes a new one.
        entry.claims.ticket = None;
        if entry.tag.session != self.session {
            self.forget(key);
        } else if result.is_ok() {
            self.join(key, Place::Due);
        } else {
            self.postpone(now, key, duration);
        }
    }

    fn not_blocked(&mut self, now: Duration, block: Block, why: &GateError) {
        let (whose, by) = (words(&block.whose), block.by.clone());
        let (first, left_ms) = (block.failures == 0, millis(block.until.saturating_sub(now)));
        if !self.unheard.failed(now, block) {
            warn!(whose, by, left_ms, reason = %why, "the gate was not told who is closed, and is not told again: their jobs may call");
        } else if first {
            warn!(whose, by, left_ms, reason = %why, "the gate was not told who is closed: told again; until then their jobs may call");
        }
    }
}

/// Whom a refusal closes of a job of `tenant` with these limits.
fn whose(scope: ThrottleScope, limits: &[Limit], tenant: &Tenant) -> Whose {
    match scope.closes_all(limits) {
        true => Whose::Api,
        false => Whose::Tenant(tenant.clone()),
    }
}

/// For logs.
fn words(whose: &Whose) -> String {
    match whose {
        Whose::Tenant(tenant) => format!("tenant {tenant}"),
        Whose::Api => "all tenants".to_owned(),
    }
}
