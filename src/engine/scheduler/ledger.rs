//! What the gate is still to be told of starts: calls that cost more or less than they were charged, permits that were
//! not used, and leases that are kept or free again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::entry::Started;
use crate::engine::shards::Shards;
use crate::gate::{End, GateError, LEASE_MS, SettleReplies, Settled, ShardId, TenantSettled};
use crate::rules::limit::Limits;
use crate::rules::scope::Labels;
use crate::rules::tenant::Tenant;

/// What can't be told for so long is dropped: the gate may have forgotten by then that it was told. A lease is given up
/// by itself, and what was not given back is wasted.
const GIVE_UP: Duration = Duration::from_secs(50);
/// A failed call is sent again after this, and then after twice as long each time.
const AGAIN: Duration = Duration::from_millis(100);
/// Places are renewed so often.
const RENEW: Duration = Duration::from_millis(LEASE_MS / 4);
/// Where a renewal failed, the next one is after this: several more are tried before the lease ends.
const RENEW_AGAIN: Duration = Duration::from_secs(5);
/// The most starts that are told together for the first time, and the most beside them that are told again.
const MOST: usize = 1024;
/// The most starts of a shard that wait to be told again.
const MOST_AGAIN: usize = 16_384;
/// The most starts of a shard that are remembered as doubtful; what was lost before them is left to its lease.
const MOST_DOUBTFUL: usize = 4096;

/// What is told of a start: whose it was, with which labels, under which limits.
type Entry = (Tenant, Labels, Limits, Settled);

/// What is to be told, and what is being told.
#[derive(Debug)]
pub struct Ledger {
    names: Names,
    shards: Shards,
    /// Each that something is to be told of.
    parts: BTreeMap<ShardId, Part>,
    /// Starts that hold leases: those that run, and those that were given up.
    holding: usize,
    renewed: Duration,
}

/// What calls of this worker are called: no other one has the same.
#[derive(Debug)]
struct Names {
    worker: String,
    number: u64,
}

impl Names {
    /// One that was never given before.
    fn next(&mut self) -> String {
        self.number += 1;
        format!("{}-{}", self.worker, self.number)
    }
}

/// What is to be told of the tenants of one shard.
#[derive(Debug, Default)]
struct Part {
    open: Vec<Entry>,
    /// Since when, and starts that the gate may have allowed in an answer that was lost.
    doubtful: VecDeque<(Duration, Entry)>,
    /// What failed, each tenant's by itself: whoever's primary answers does not wait for the others.
    again: VecDeque<Call>,
    sent: Option<Sent>,
}

/// A batch whose outcome is not known yet.
#[derive(Debug)]
struct Sent {
    calls: Vec<Call>,
    /// Some of it was never sent before.
    is_new: bool,
}

/// What is told of one tenant, under a name by which it counts once however often it is sent.
#[derive(Debug)]
struct Call {
    told: TenantSettled,
    /// When it was sent first.
    since: Duration,
    failures: u32,
    /// When it is sent next.
    at: Duration,
}

/// What became of a batch.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Whose calls have ended, under limits that hold leases, and how many.
    pub ended: Vec<(Tenant, Limits, usize)>,
    /// How many starts were given up, and why the last of them could not be told.
    pub lost: usize,
    /// See `lost`.
    pub why: Option<GateError>,
}

impl Ledger {
    /// Nothing to tell. `worker` is a number that no other worker has.
    pub fn new(worker: u64) -> Self {
        Self {
            names: Names {
                worker: format!("{worker:x}"),
                number: 0,
            },
            shards: Shards::default(),
            parts: BTreeMap::new(),
            holding: 0,
            renewed: Duration::ZERO,
        }
    }

    /// Which shard each tenant is in.
    pub fn shard_by(&mut self, shards: Shards) {
        self.shards = shards;
    }

    /// A name that was never given before.
    pub fn name(&mut self) -> String {
        self.names.next()
    }

    fn part(&mut self, tenant: &Tenant) -> &mut Part {
        let shard = self.shards.of(tenant);
        self.parts.entry(shard).or_default()
    }

    /// To be told, of a start with these labels under these limits.
    pub fn add(&mut self, tenant: Tenant, labels: Labels, limits: Limits, settled: Settled) {
        let part = self.part(&tenant);
        part.open.push((tenant, labels, limits, settled));
    }

    /// To be told of a start that takes place, and may still have more to be told of it.
    pub fn add_start(&mut self, tenant: &Tenant, started: &Started, end: End) {
        let receipt = started.receipt.clone();
        let (labels, limits) = (started.labels.clone(), started.limits.clone());
        self.add(tenant.clone(), labels, limits, Settled { receipt, end });
    }

    /// Whether the gate allowed this start is not known, and it does not take place. To be told when the gate answers
    /// again: before that it would be lost, too, and nobody waits for it.
    pub fn doubt(&mut self, now: Duration, entry: Entry) {
        let part = self.part(&entry.0);
        if part.doubtful.len() == MOST_DOUBTFUL {
            part.doubtful.pop_front();
        }
        part.doubtful.push_back((now, entry));
    }

    /// The gate answers for `shard`. Leases that have ended by themselves by now need no word.
    pub fn answers(&mut self, now: Duration, shard: ShardId) {
        let lease = Duration::from_millis(LEASE_MS);
        let recent = |(since, entry)| (now.saturating_sub(since) < lease).then_some(entry);
        if let Some(part) = self.parts.get_mut(&shard) {
            part.open.extend(part.doubtful.drain(..).filter_map(recent));
        }
    }

    /// Nothing is left to be told.
    pub fn is_empty(&self) -> bool {
        let told =
            |part: &Part| part.open.is_empty() && part.again.is_empty() && part.sent.is_none();
        self.parts.values().all(told)
    }

    /// A start under `limits` runs, or was given up: its leases are renewed.
    pub fn started(&mut self, limits: &Limits) {
        self.holding += usize::from(limits.hold_leases());
    }

    /// It has ended, or its time is over.
    pub fn ended(&mut self, limits: &Limits) {
        self.holding -= usize::from(limits.hold_leases());
    }

    /// Something of `shard` is to be told before anybody asks there. What failed once holds nobody up any more.
    pub fn goes_first(&self, shard: ShardId) -> bool {
        let Some(part) = self.parts.get(&shard) else {
            return false;
        };
        match &part.sent {
            Some(sent) => sent.is_new,
            None => !part.open.is_empty(),
        }
    }

    /// When leases are to be renewed; `None`: none is held.
    pub fn renew_at(&self) -> Option<Duration> {
        (self.holding > 0).then_some(self.renewed + RENEW)
    }

    /// They are renewed.
    pub fn renewed(&mut self, now: Duration) {
        self.renewed = now;
    }

    /// What is to be sent now to each shard, if anything: what is new, and what is due again.
    pub fn send(&mut self, now: Duration) -> Vec<(ShardId, Vec<TenantSettled>)> {
        self.parts.retain(|_, part| !part.is_empty());
        let names = &mut self.names;
        let parts = self.parts.iter_mut();
        let sent = parts.filter_map(|(shard, part)| Some((*shard, part.send(now, names)?)));
        sent.collect()
    }

    /// When [`Ledger::send`] is worth a look.
    pub fn send_at(&self) -> Option<Duration> {
        self.parts.values().filter_map(Part::send_at).min()
    }

    /// What was sent last to `shard` was heard, or not, each tenant's by itself.
    pub fn told(
        &mut self,
        now: Duration,
        shard: ShardId,
        result: Result<SettleReplies, GateError>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let Some(part) = self.parts.get_mut(&shard) else {
            return outcome;
        };
        if part.told(now, result, &mut outcome) {
            self.renewed = self.renewed.min((now + RENEW_AGAIN).saturating_sub(RENEW));
        }
        outcome
    }
}

impl Part {
    fn is_empty(&self) -> bool {
        self.open.is_empty()
            && self.doubtful.is_empty()
            && self.again.is_empty()
            && self.sent.is_none()
    }

    fn send(&mut self, now: Duration, names: &mut Names) -> Option<Vec<TenantSettled>> {
        if self.sent.is_some() {
            return None;
        }
        let new = |told| Call {
            told,
            since: now,
            failures: 0,
            at: now,
        };
        let mut calls: Vec<Call> = self.next_batch(names).into_iter().map(new).collect();
        let is_new = !calls.is_empty();
        let mut room = MOST;
        for call in std::mem::take(&mut self.again) {
            if call.at <= now && room > 0 {
                room = room.saturating_sub(call.told.settled.len());
                calls.push(call);
            } else {
                self.again.push_back(call);
            }
        }
        if calls.is_empty() {
            return None;
        }
        let batch = calls.iter().map(|call| call.told.clone()).collect();
        self.sent = Some(Sent { calls, is_new });
        Some(batch)
    }

    fn next_batch(&mut self, names: &mut Names) -> Vec<TenantSettled> {
        let most = self.open.len().min(MOST);
        let open: Vec<_> = self.open.drain(..most).collect();
        let mut batch: Vec<TenantSettled> = Vec::new();
        for (tenant, labels, limits, settled) in open {
            let same = |known: &&mut TenantSettled| {
                known.tenant == tenant && known.labels == labels && known.limits == limits
            };
            // The last ones are the likeliest; a miss only makes one more call of the same pipeline.
            match batch.iter_mut().rev().take(16).find(same) {
                Some(known) => known.settled.push(settled),
                None => batch.push(TenantSettled {
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
            None => self.again.iter().map(|call| call.at).min(),
        }
    }

    /// Returns whether leases could not be renewed.
    fn told(
        &mut self,
        now: Duration,
        result: Result<SettleReplies, GateError>,
        outcome: &mut Outcome,
    ) -> bool {
        let mut lapses = false;
        let Some(Sent { calls, .. }) = self.sent.take() else {
            return lapses;
        };
        let replies = result.unwrap_or_else(|why| vec![Err(why); calls.len()]);
        let mut waiting: usize = self.again.iter().map(|call| call.told.settled.len()).sum();
        for (mut call, reply) in calls.into_iter().zip(replies) {
            match reply {
                Ok(()) => outcome.ended.extend(ended(call.told)),
                Err(why) => {
                    lapses |= call.failed(now);
                    let starts = call.told.settled.len();
                    if starts == 0 {
                        continue;
                    }
                    if call.at > call.since + GIVE_UP || waiting + starts > MOST_AGAIN {
                        outcome.lost += starts;
                        outcome.why = Some(why);
                    } else {
                        waiting += starts;
                        self.again.push_back(call);
                    }
                }
            }
        }
        lapses
    }
}

impl Call {
    /// Leaves what is to be sent again, and says when. A renewal is not repeated: it could arrive after the call's end and
    /// take the lease anew; the next one is of what runs then. Returns whether there was one.
    fn failed(&mut self, now: Duration) -> bool {
        let all = self.told.settled.len();
        self.told.settled.retain(|one| one.end.stays_true());
        self.at = now + AGAIN * 2_u32.pow(self.failures.min(6));
        self.failures += 1;
        self.told.settled.len() < all
    }
}

/// Whose calls have ended that held leases, and how many.
fn ended(told: TenantSettled) -> Option<(Tenant, Limits, usize)> {
    let calls = (told.settled.iter())
        .filter(|one| one.end.is_over())
        .count();
    let TenantSettled { tenant, limits, .. } = told;
    limits.hold_leases().then_some((tenant, limits, calls))
}
