//! Settles started calls with the gate: renews their leases while they run, and reports their
//! actual costs when they have ended.

use std::collections::BTreeMap;
use std::time::Duration;

use super::ledger::{Ledger, SettleOutcome};
use crate::action::Action;
use crate::facts::GateFact;
use crate::scheduler::asking::questions::GateQuestion;
use crate::scheduler::entry::StartRecord;
use crate::shards::Shards;
use gate::{
    End, GateError, LEASE_MS, Receipt, SettleReplies, ShardId, StartSettlement, TenantSettlements,
};
use handler::Fate;
use rules::limit::{MAX_REQUESTS, Unit, floor_ms};
use rules::tenant::Tenant;
use rules::timing::lateness::{self, CallCheck, CallSignal, Lateness, Timeliness};

/// Maximum cost that a call can report.
const MAX_ACTUAL_COST: u64 = MAX_REQUESTS;
/// Maximum number of remembered abandoned calls. Further calls are reported to the gate once, and
/// their ends are not awaited.
const MAX_ABANDONED: usize = 16_384;

/// A call that its handler gave up and that may still arrive, or be worked on.
#[derive(Debug)]
struct AbandonedCall {
    tenant: Tenant,
    started: StartRecord,
    /// Its leases are kept until then, unless it is known to have ended.
    until: Duration,
}

/// The starts that are not settled yet.
#[derive(Debug)]
pub struct Settlement {
    ledger: Ledger,
    /// Abandoned calls that hold leases, by the names of their permits.
    abandoned: BTreeMap<String, AbandonedCall>,
    lateness: Lateness,
}

impl Settlement {
    /// Creates the state of the worker with this number.
    pub fn new(worker: u64) -> Self {
        Self {
            ledger: Ledger::new(worker),
            abandoned: BTreeMap::new(),
            lateness: Lateness::default(),
        }
    }

    /// Sets the mapping of tenants to shards.
    pub fn shard_by(&mut self, shards: Shards) {
        self.ledger.shard_by(shards);
    }

    /// Returns the name for the permits of the next question.
    pub fn name(&mut self) -> String {
        self.ledger.name()
    }

    /// Records the start of a call. Returns when to check whether it arrived late, or `None` if no
    /// limit can be corrected for late calls.
    pub fn started(&mut self, now: Duration, started: &StartRecord) -> Option<CallCheck> {
        self.ledger.started(&started.limits);
        let call = started.call()?;
        Some(self.lateness.check(now, &call))
    }

    /// Records a finding about a call in flight. If the call arrived later than the guard covers,
    /// the gate counts it from now on.
    pub fn record_finding(
        &mut self,
        now: Duration,
        tenant: &Tenant,
        started: &mut StartRecord,
        signal: CallSignal,
        budget: f64,
    ) -> Option<GateFact> {
        let call = started.call()?;
        let late = match self.lateness.judge(now, &call, signal, budget) {
            Timeliness::InTime => return None,
            Timeliness::Unpaid => return Some(GateFact::LateCallNotCounted),
            Timeliness::Late(late) => late,
        };
        started.covered += late + call.tolerance;
        self.ledger.add_start(tenant, started, End::Late);
        Some(GateFact::LateCall(signal, late))
    }

    /// Returns the minimum time from a question to the acknowledgement of its call.
    pub fn latency_base(&self) -> Duration {
        self.lateness.base()
    }

    /// Records the end of a call, and settles it if its usage differs from its charge or if it
    /// holds a lease. `actual` is the cost in the API's answer; without one, the call cost `cost`.
    /// For an abandoned call that holds a lease, returns an action that waits for its end.
    pub fn end(
        &mut self,
        now: Duration,
        tenant: &Tenant,
        started: StartRecord,
        fate: Fate,
        (cost, actual): (u64, Option<u64>),
    ) -> Option<Action> {
        let (end, late_end) = match fate {
            Fate::Unwritten => (End::Unused, None),
            Fate::Abandoned { lease, ended } => {
                let for_ms = floor_ms(lease).min(LEASE_MS);
                (End::Abandoned { for_ms }, Some(ended))
            }
            Fate::Unknown | Fate::Answered => {
                let actual = actual.map(|cost| cost.min(MAX_ACTUAL_COST));
                (End::Cost(actual.unwrap_or(cost)), None)
            }
        };
        let (limits, receipt) = (&started.limits, &started.receipt);
        let holds = limits.hold_leases();
        // Limits that are only tried count the actual cost, too.
        let mut charged = limits.all().iter();
        let counts_cost = charged.any(|limit| limit.unit() == Unit::Cost);
        let as_charged = match end {
            End::Cost(used) => used == receipt.cost || !counts_cost,
            End::Abandoned { .. } => true,
            End::Unused | End::Running | End::Late => false,
        };
        if !as_charged || holds {
            self.ledger.add_start(tenant, &started, end);
        }
        match (end, late_end) {
            (End::Abandoned { for_ms }, Some(ended))
                if holds && for_ms > 0 && self.abandoned.len() < MAX_ABANDONED =>
            {
                let lease = Duration::from_millis(for_ms);
                let permit = started.receipt.permit.clone();
                let call = AbandonedCall {
                    tenant: tenant.clone(),
                    started,
                    until: now + lease,
                };
                self.abandoned.insert(permit.clone(), call);
                Some(Action::Await {
                    permit,
                    lease,
                    ended,
                })
            }
            _ => {
                self.ledger.ended(limits);
                None
            }
        }
    }

    /// Records that an abandoned call has `ended`, or else that its lease has expired.
    pub fn abandoned_is_over(&mut self, permit: &str, ended: bool) {
        let Some(AbandonedCall {
            tenant, started, ..
        }) = self.abandoned.remove(permit)
        else {
            return;
        };
        self.ledger.ended(&started.limits);
        // An expired lease needs no settlement.
        if ended {
            let over = End::Abandoned { for_ms: 0 };
            self.ledger.add_start(&tenant, &started, over);
        }
    }

    /// Returns the number of abandoned calls that may be in flight.
    pub fn abandoned(&self) -> usize {
        self.abandoned.len()
    }

    /// Settles a permit that was not used.
    pub fn unused(&mut self, question: &GateQuestion, receipt: Receipt) {
        let end = End::Unused;
        let settled = StartSettlement { receipt, end };
        let (tenant, labels) = (question.tenant.clone(), question.labels.clone());
        (self.ledger).add(tenant, labels, question.limits.clone(), settled);
    }

    /// Settles jobs that the gate may have admitted in an answer that was lost or discarded. None
    /// of them starts. Returns their leases, which would otherwise stay taken until they expire.
    /// Other charges can't be returned, because only the lost answer had their data.
    pub fn doubt(&mut self, now: Duration, question: &GateQuestion) {
        let Some(held) = question.limits.held() else {
            return;
        };
        for settled in question.in_doubt() {
            let (tenant, labels) = (question.tenant.clone(), question.labels.clone());
            (self.ledger).doubt(now, (tenant, labels, held.clone(), settled));
        }
    }

    /// Records that the gate answers for `shard`.
    pub fn answers(&mut self, now: Duration, shard: ShardId) {
        self.ledger.answers(now, shard);
    }

    /// Returns true if new settlements of `shard` have to be sent before jobs ask there.
    pub fn must_settle_first(&self, shard: ShardId) -> bool {
        self.ledger.must_settle_first(shard)
    }

    /// Returns true if everything is settled.
    pub fn is_done(&self) -> bool {
        self.ledger.is_empty()
    }

    /// Renews leases if it is time: those of `running` calls, and those of abandoned calls, in case
    /// the gate has lost them.
    pub fn renew<'a>(
        &mut self,
        now: Duration,
        running: impl FnOnce() -> Vec<(&'a Tenant, &'a StartRecord)>,
    ) {
        if self.ledger.renew_at().is_none_or(|at| now < at) {
            return;
        }
        self.ledger.renewed(now);
        for (tenant, started) in running() {
            if started.limits.hold_leases() {
                self.ledger.add_start(tenant, started, End::Running);
            }
        }
        for call in self.abandoned.values() {
            let for_ms = floor_ms(call.until.saturating_sub(now));
            if for_ms > 0 {
                let held = End::Abandoned { for_ms };
                self.ledger.add_start(&call.tenant, &call.started, held);
            }
        }
    }

    /// Returns the settlements to send now, by shard.
    pub fn send(&mut self, now: Duration) -> Vec<(ShardId, Vec<TenantSettlements>)> {
        self.ledger.send(now)
    }

    /// Returns when leases must be renewed or settlements sent.
    pub fn next(&self) -> Option<Duration> {
        let renew = self.ledger.renew_at();
        renew.into_iter().chain(self.ledger.send_at()).min()
    }

    /// Handles the result of the last request to `shard`.
    pub fn settle_result(
        &mut self,
        now: Duration,
        shard: ShardId,
        result: Result<SettleReplies, GateError>,
    ) -> SettleOutcome {
        self.ledger.settle_result(now, shard, result)
    }
}

impl StartRecord {
    /// Returns the data by which the call's lateness is judged, or `None` if no limit can be
    /// corrected for late calls.
    fn call(&self) -> Option<lateness::CallInFlight> {
        let guard = Duration::from_millis(self.limits.guard_ms());
        let (mut has_guard, mut tolerance, mut window) = (false, Duration::MAX, Duration::MAX);
        for limit in self.limits.iter() {
            let facts = limit.algorithm().facts();
            if facts.counts_arrivals && limit.guard_ms() > 0 && !limit.algorithm().has_burst() {
                has_guard = true;
                tolerance = tolerance.min(guard);
                window = window.min(Duration::from_millis(limit.window_ms()));
            }
            // The margin and the distance between starts of a bucket.
            if limit.spacing_us() > 0 {
                tolerance = tolerance.min(Duration::from_micros(limit.spacing_us().into()));
                window = window.min(limit.distance());
            }
        }
        (tolerance < Duration::MAX).then_some(lateness::CallInFlight {
            asked_at: self.asked_at,
            guard: has_guard.then_some(guard),
            tolerance,
            window,
            covered: self.covered,
        })
    }
}
