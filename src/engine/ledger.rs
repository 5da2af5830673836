//! What the gate is still to be told of starts: calls that cost more or less than they were charged, permits that were
//! not used, and places that are held or free again.

use std::collections::VecDeque;
use std::time::Duration;

use crate::gate::{End, LEASE_MS, Settled, TenantSettled};
use crate::rules::limit::Limits;
use crate::rules::scope::Labels;
use crate::rules::tenant::Tenant;

/// What can't be told for so long is dropped: the gate may have forgotten by then that it was told. A place is given up
/// by itself, and what was not given back is wasted.
const GIVE_UP: Duration = Duration::from_secs(50);
/// A failed call is sent again after this, and then after twice as long each time.
const AGAIN: Duration = Duration::from_millis(100);
/// Places are renewed so often.
const RENEW: Duration = Duration::from_millis(LEASE_MS / 4);
/// The most starts in one call.
const MOST: usize = 1024;
/// The most starts that are remembered as doubtful; what was lost before them is left to its lease.
const MOST_DOUBTFUL: usize = 4096;

/// What is told of a start: whose it was, with which labels, under which limits.
type Entry = (Tenant, Labels, Limits, Settled);

/// What is to be told, and what is being told.
#[derive(Debug)]
pub struct Ledger {
    /// What calls of this worker are called; no other one has the same.
    worker: String,
    number: u64,
    open: Vec<Entry>,
    /// Since when, and starts that the gate may have allowed in an answer that was lost.
    doubtful: VecDeque<(Duration, Entry)>,
    sent: Option<Sent>,
    /// Running starts that hold places.
    holding: usize,
    renewed: Duration,
}

/// A batch whose outcome is not known yet.
#[derive(Debug)]
struct Sent {
    batch: Vec<TenantSettled>,
    since: Duration,
    failures: u32,
    /// `None`: it is under way.
    again_at: Option<Duration>,
}

impl Ledger {
    /// Nothing to tell. `worker` is a number that no other worker has.
    pub fn new(worker: u64) -> Self {
        Self {
            worker: format!("{worker:x}"),
            number: 0,
            open: Vec::new(),
            doubtful: VecDeque::new(),
            sent: None,
            holding: 0,
            renewed: Duration::ZERO,
        }
    }

    /// A name that was never given before.
    pub fn name(&mut self) -> String {
        self.number += 1;
        format!("{}-{}", self.worker, self.number)
    }

    /// To be told, of a start with these labels under these limits.
    pub fn add(&mut self, tenant: Tenant, labels: Labels, limits: Limits, settled: Settled) {
        self.open.push((tenant, labels, limits, settled));
    }

    /// Whether the gate allowed this start is not known, and it does not take place. To be told when the gate answers
    /// again: before that it would be lost, too, and nobody waits for it.
    pub fn doubt(&mut self, now: Duration, entry: Entry) {
        if self.doubtful.len() == MOST_DOUBTFUL {
            self.doubtful.pop_front();
        }
        self.doubtful.push_back((now, entry));
    }

    /// The gate answers. Places that are given up by themselves by now need no word.
    pub fn answers(&mut self, now: Duration) {
        let lease = Duration::from_millis(LEASE_MS);
        let recent = |(since, entry)| (now.saturating_sub(since) < lease).then_some(entry);
        self.open.extend(self.doubtful.drain(..).filter_map(recent));
    }

    /// Nothing is left to be told.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.sent.is_none()
    }

    /// A start under `limits` runs.
    pub fn started(&mut self, limits: &Limits) {
        self.holding += usize::from(limits.hold_places());
    }

    /// A start under `limits` runs no longer.
    pub fn ended(&mut self, limits: &Limits) {
        self.holding -= usize::from(limits.hold_places());
    }

    /// Something is to be told before anybody asks. What failed once holds nobody up any more.
    pub fn goes_first(&self) -> bool {
        match &self.sent {
            Some(sent) => sent.failures == 0,
            None => !self.open.is_empty(),
        }
    }

    /// When places are to be renewed; `None`: none is held.
    pub fn renew_at(&self) -> Option<Duration> {
        (self.holding > 0).then_some(self.renewed + RENEW)
    }

    /// They are renewed.
    pub fn renewed(&mut self, now: Duration) {
        self.renewed = now;
    }

    /// What is to be sent now, if anything.
    pub fn send(&mut self, now: Duration) -> Option<Vec<TenantSettled>> {
        match &mut self.sent {
            Some(sent) if sent.again_at.is_some_and(|at| at <= now) => {
                sent.again_at = None;
                Some(sent.batch.clone())
            }
            Some(_) => None,
            None if self.open.is_empty() => None,
            None => {
                let batch = self.next_batch();
                self.sent = Some(Sent {
                    batch: batch.clone(),
                    since: now,
                    failures: 0,
                    again_at: None,
                });
                Some(batch)
            }
        }
    }

    fn next_batch(&mut self) -> Vec<TenantSettled> {
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
                    call: self.name(),
                    settled: vec![settled],
                }),
            }
        }
        batch
    }

    /// When [`Ledger::send`] is worth a look.
    pub fn send_at(&self) -> Option<Duration> {
        match &self.sent {
            Some(sent) => sent.again_at,
            None => (!self.open.is_empty()).then_some(Duration::ZERO),
        }
    }

    /// What was sent last: whose calls have ended, which held places under these limits, and how many.
    pub fn ended_calls(&self) -> Vec<(Tenant, Limits, usize)> {
        let batch = self.sent.iter().flat_map(|sent| &sent.batch);
        let ended = |one: &TenantSettled| {
            let runs = |settled: &&Settled| settled.end != End::Running;
            one.settled.iter().filter(runs).count()
        };
        let holding = batch.filter(|one| one.limits.hold_places());
        holding
            .map(|one| (one.tenant.clone(), one.limits.clone(), ended(one)))
            .collect()
    }

    /// What was sent last was heard, or not. Returns how many starts were given up.
    pub fn told(&mut self, now: Duration, ok: bool) -> usize {
        let Some(mut sent) = self.sent.take() else {
            return 0;
        };
        if ok {
            return 0;
        }
        let again_at = now + AGAIN * 2_u32.pow(sent.failures.min(6));
        if again_at > sent.since + GIVE_UP {
            return sent.batch.iter().map(|one| one.settled.len()).sum();
        }
        sent.failures += 1;
        sent.again_at = Some(again_at);
        self.sent = Some(sent);
        0
    }
}
