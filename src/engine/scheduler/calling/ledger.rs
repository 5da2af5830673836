//! Settlements that the gate still has to learn: calls that cost more or less than they were
//! charged, unused permits, and leases that are renewed or released.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::scheduler::entry::StartRecord;
use crate::shards::Shards;
use gate::{End, GateError, LEASE_MS, SettleReplies, ShardId, StartSettlement, TenantSettlements};
use rules::failures::retry::pause;
use rules::limit::Limits;
use rules::scope::Labels;
use rules::tenant::Tenant;

/// Time after which a settlement is dropped, because the gate may have forgotten by then that it
/// already has the settlement. A lease expires on its own, and unused quota is wasted.
const GIVE_UP_AFTER: Duration = Duration::from_secs(50);
/// Delay before a failed request is sent again. It doubles with each failure up to the longest.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(6_400);
/// Interval at which leases are renewed.
const LEASE_RENEW_INTERVAL: Duration = Duration::from_millis(LEASE_MS / 4);
/// Interval after a failed renewal, which leaves time for several tries before the lease expires.
const RENEW_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Maximum number of starts that are settled for the first time in one request, and, in addition,
/// of starts that are settled again.
const MAX_STARTS_PER_REQUEST: usize = 1024;
/// Maximum number of starts per shard that wait to be settled again.
const MAX_RETRIES_PER_SHARD: usize = 16_384;
/// Maximum number of doubtful starts per shard that are remembered. Earlier ones are left to the
/// expiry of their leases.
const MAX_DOUBTFUL_PER_SHARD: usize = 4096;

/// A settlement of a start, with its tenant, labels and limits.
type LedgerEntry = (Tenant, Labels, Limits, StartSettlement);

/// Settlements that are queued, and those in flight.
#[derive(Debug)]
pub struct Ledger {
    names: RequestNames,
    shards: Shards,
    /// The shards with settlements.
    outboxes: BTreeMap<ShardId, LedgerOutbox>,
    /// Number of starts that hold leases: running and abandoned calls.
    holding: usize,
    renewed: Duration,
}

/// Names of this worker's permits and requests. They are unique among all workers.
#[derive(Debug)]
struct RequestNames {
    worker: String,
    number: u64,
}

impl RequestNames {
    /// Returns a new name.
    fn next(&mut self) -> String {
        self.number += 1;
        format!("{}-{}", self.worker, self.number)
    }
}

/// Settlements for the tenants of one shard.
#[derive(Debug, Default)]
struct LedgerOutbox {
    open: Vec<LedgerEntry>,
    /// Starts that the gate may have admitted in an answer that was lost, and since when.
    doubtful: VecDeque<(Duration, LedgerEntry)>,
    /// Failed requests, each for one tenant, so that a tenant whose primary answers does not wait
    /// for the others.
    retries: VecDeque<SettleRequest>,
    sent: Option<SettleBatch>,
}

/// A request in flight.
#[derive(Debug)]
struct SettleBatch {
    calls: Vec<SettleRequest>,
    /// Whether it has settlements that were not sent before.
    is_new: bool,
}

/// Settlements for one tenant, with a name that makes them count once however often they are sent.
#[derive(Debug)]
struct SettleRequest {
    settlement: TenantSettlements,
    /// When it was sent first.
    since: Duration,
    failures: u32,
    /// When it is sent next.
    at: Duration,
}

/// The outcome of a request.
#[derive(Debug, Default)]
pub struct SettleOutcome {
    /// The tenants and limits of calls that have ended, if these limits hold leases, and the number
    /// of calls.
    pub ended: Vec<(Tenant, Limits, usize)>,
    /// Number of starts whose settlement was given up.
    pub lost: usize,
    /// Why the last of them could not be settled.
    pub why: Option<GateError>,
}

impl Ledger {
    /// Creates an empty ledger. `worker` is a number that no other worker has.
    pub fn new(worker: u64) -> Self {
        Self {
            names: RequestNames {
                worker: format!("{worker:x}"),
                number: 0,
            },
            shards: Shards::default(),
            outboxes: BTreeMap::new(),
            holding: 0,
            renewed: Duration::ZERO,
        }
    }

    /// Sets the mapping of tenants to shards.
    pub fn shard_by(&mut self, shards: Shards) {
        self.shards = shards;
    }

    /// Returns a name that was never returned before.
    pub fn name(&mut self) -> String {
        self.names.next()
    }

    fn outbox(&mut self, tenant: &Tenant) -> &mut LedgerOutbox {
        let shard = self.shards.of(tenant);
        self.outboxes.entry(shard).or_default()
    }

    /// Adds a settlement of a start with these labels and limits.
    pub fn add(
        &mut self,
        tenant: Tenant,
        labels: Labels,
        limits: Limits,
        settled: StartSettlement,
    ) {
        let outbox = self.outbox(&tenant);
        outbox.open.push((tenant, labels, limits, settled));
    }

    /// Adds a settlement of a start that takes place. More settlements of it may follow.
    pub fn add_start(&mut self, tenant: &Tenant, started: &StartRecord, end: End) {
        let receipt = started.receipt.clone();
        let (labels, limits) = (started.labels.clone(), started.limits.clone());
        self.add(
            tenant.clone(),
            labels,
            limits,
            StartSettlement { receipt, end },
        );
    }

    /// Adds a settlement of a start that does not take place, although the gate may have admitted
    /// it. It is sent when the gate answers again: before that it would be lost, too, and nothing
    /// waits for it.
    pub fn doubt(&mut self, now: Duration, entry: LedgerEntry) {
        let outbox = self.outbox(&entry.0);
        if outbox.doubtful.len() == MAX_DOUBTFUL_PER_SHARD {
            outbox.doubtful.pop_front();
        }
        outbox.doubtful.push_back((now, entry));
    }

    /// Releases the doubtful starts of `shard`, because the gate answers. Leases that have expired
    /// by now need no settlement.
    pub fn answers(&mut self, now: Duration, shard: ShardId) {
        let lease = Duration::from_millis(LEASE_MS);
        let recent = |(since, entry)| (now.saturating_sub(since) < lease).then_some(entry);
        if let Some(outbox) = self.outboxes.get_mut(&shard) {
            outbox
                .open
                .extend(outbox.doubtful.drain(..).filter_map(recent));
        }
    }

    /// Returns true if nothing is queued or in flight.
    pub fn is_empty(&self) -> bool {
        let is_idle = |outbox: &LedgerOutbox| {
            outbox.open.is_empty() && outbox.retries.is_empty() && outbox.sent.is_none()
        };
        self.outboxes.values().all(is_idle)
    }

    /// Records that a start under `limits` is running or abandoned, so that its leases are renewed.
    pub fn started(&mut self, limits: &Limits) {
        self.holding += usize::from(limits.hold_leases());
    }

    /// Records that a start under `limits` has ended, or that its leases have expired.
    pub fn ended(&mut self, limits: &Limits) {
        self.holding -= usize::from(limits.hold_leases());
    }

    /// Returns true if new settlements of `shard` have to be sent before jobs ask there. A
    /// settlement that failed once holds up no questions.
    pub fn must_settle_first(&self, shard: ShardId) -> bool {
        let Some(outbox) = self.outboxes.get(&shard) else {
            return false;
        };
        match &outbox.sent {
            Some(sent) => sent.is_new,
            None => !outbox.open.is_empty(),
        }
    }

    /// Returns when leases have to be renewed, or `None` if none is held.
    pub fn renew_at(&self) -> Option<Duration> {
        (self.holding > 0).then_some(self.renewed + LEASE_RENEW_INTERVAL)
    }

    /// Records that leases are renewed now.
    pub fn renewed(&mut self, now: Duration) {
        self.renewed = now;
    }

    /// Returns the settlements to send now, by shard: new ones, and those due again.
    pub fn send(&mut self, now: Duration) -> Vec<(ShardId, Vec<TenantSettlements>)> {
        self.outboxes.retain(|_, outbox| !outbox.is_empty());
        let names = &mut self.names;
        let outboxes = self.outboxes.iter_mut();
        let sent = outboxes.filter_map(|(shard, outbox)| Some((*shard, outbox.send(now, names)?)));
        sent.collect()
    }

    /// Returns when [`Ledger::send`] may have something to send.
    pub fn send_at(&self) -> Option<Duration> {
        self.outboxes
            .values()
            .filter_map(LedgerOutbox::send_at)
            .min()
    }

    /// Handles the result of the last request to `shard`, for each tenant separately.
    pub fn settle_result(
        &mut self,
        now: Duration,
        shard: ShardId,
        result: Result<SettleReplies, GateError>,
    ) -> SettleOutcome {
        let mut outcome = SettleOutcome::default();
        let Some(outbox) = self.outboxes.get_mut(&shard) else {
            return outcome;
        };
        if outbox.settle_result(now, result, &mut outcome) {
            self.renewed = self
                .renewed
                .min((now + RENEW_RETRY_DELAY).saturating_sub(LEASE_RENEW_INTERVAL));
        }
        outcome
    }
}

impl LedgerOutbox {
    fn is_empty(&self) -> bool {
        self.open.is_empty()
            && self.doubtful.is_empty()
            && self.retries.is_empty()
            && self.sent.is_none()
    }

    fn send(&mut self, now: Duration, names: &mut RequestNames) -> Option<Vec<TenantSettlements>> {
        if self.sent.is_some() {
            return None;
        }
        let new = |settlement| SettleRequest {
            settlement,
            since: now,
            failures: 0,
            at: now,
        };
        let mut calls: Vec<SettleRequest> = self.next_batch(names).into_iter().map(new).collect();
        let is_new = !calls.is_empty();
        let mut room = MAX_STARTS_PER_REQUEST;
        for call in std::mem::take(&mut self.retries) {
            if call.at <= now && room > 0 {
                room = room.saturating_sub(call.settlement.settled.len());
                calls.push(call);
            } else {
                self.retries.push_back(call);
            }
        }
        if calls.is_empty() {
            return None;
        }
        let batch = calls.iter().map(|call| call.settlement.clone()).collect();
        self.sent = Some(SettleBatch { calls, is_new });
        Some(batch)
    }

    fn next_batch(&mut self, names: &mut RequestNames) -> Vec<TenantSettlements> {
        let max = self.open.len().min(MAX_STARTS_PER_REQUEST);
        let open: Vec<_> = self.open.drain(..max).collect();
        let mut batch: Vec<TenantSettlements> = Vec::new();
        for (tenant, labels, limits, settled) in open {
            let same = |known: &&mut TenantSettlements| {
                known.tenant == tenant && known.labels == labels && known.limits == limits
            };
            // The last entries are the likeliest to match. A miss only makes one more call in the
            // same pipeline.
            match batch.iter_mut().rev().take(16).find(same) {
                Some(known) => known.settled.push(settled),
                None => batch.push(TenantSettlements {
                    tenant,
                    labels,
                    limits,
                    call: names.next(),
                    settled: vec![settled],
                }),
            }
        }
        batch
    }

    fn send_at(&self) -> Option<Duration> {
        match &self.sent {
            Some(_) => None,
            None if !self.open.is_empty() => Some(Duration::ZERO),
            None => self.retries.iter().map(|call| call.at).min(),
        }
    }

    /// Handles the result of a request. Returns true if leases could not be renewed.
    fn settle_result(
        &mut self,
        now: Duration,
        result: Result<SettleReplies, GateError>,
        outcome: &mut SettleOutcome,
    ) -> bool {
        let mut lapses = false;
        let Some(SettleBatch { calls, .. }) = self.sent.take() else {
            return lapses;
        };
        let replies = result.unwrap_or_else(|why| vec![Err(why); calls.len()]);
        let mut waiting: usize = self
            .retries
            .iter()
            .map(|call| call.settlement.settled.len())
            .sum();
        for (mut call, reply) in calls.into_iter().zip(replies) {
            match reply {
                Ok(()) => outcome.ended.extend(ended(call.settlement)),
                Err(why) => {
                    lapses |= call.failed(now);
                    let starts = call.settlement.settled.len();
                    if starts == 0 {
                        continue;
                    }
                    if call.at > call.since + GIVE_UP_AFTER
                        || waiting + starts > MAX_RETRIES_PER_SHARD
                    {
                        outcome.lost += starts;
                        outcome.why = Some(why);
                    } else {
                        waiting += starts;
                        self.retries.push_back(call);
                    }
                }
            }
        }
        lapses
    }
}

impl SettleRequest {
    /// Keeps the settlements that have to be sent again, and schedules them. A renewal is not
    /// repeated, because it could arrive after the call's end and take the lease again; the next
    /// renewal covers what runs then. Returns true if the request had renewals.
    fn failed(&mut self, now: Duration) -> bool {
        let all = self.settlement.settled.len();
        self.settlement.settled.retain(|one| one.end.stays_true());
        self.failures += 1;
        self.at = now + pause(FIRST_RETRY_DELAY, MAX_RETRY_DELAY, self.failures);
        self.settlement.settled.len() < all
    }
}

/// Returns the tenant and the limits of calls that have ended and held leases, and the number of
/// these calls.
fn ended(batch: TenantSettlements) -> Option<(Tenant, Limits, usize)> {
    let calls = (batch.settled.iter())
        .filter(|one| one.end.is_over())
        .count();
    let TenantSettlements { tenant, limits, .. } = batch;
    limits.hold_leases().then_some((tenant, limits, calls))
}
