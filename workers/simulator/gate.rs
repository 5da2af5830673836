//! The gate as a simulated worker reaches it: with a latency, and with a record of which job waits
//! for which limit.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::{FixedState, RandomState};
use gate::memory::MemoryGate;
use gate::{
    Answer, BreakerEvent, BreakerScope, Candidate, Change, DedupeAnswer, DedupeReplies, Gate,
    GateError, Inspection, LearnReplies, LimitEvidence, Replies, Rule, SettleReplies, Standings,
    SuspectNote, SuspectReplies, TenantAsk, TenantSettlements, Ticket,
};
use rules::answers::Quotas;
use rules::decision::Tally;
use rules::limit::Limits;
use rules::scope::Labels;
use rules::steering::JobSighting;
use rules::tenant::Tenant;
use tokio::time::{Instant, sleep};

use crate::environment::{Clock, micros};
use crate::history::RecordedWait;

/// Current and past waits of all workers.
#[derive(Default)]
pub(crate) struct WaitRecorder(Mutex<RecordedWaits>);

/// A waitlist and a ticket in it.
type Place = (u64, u64, u64);

#[derive(Default)]
struct RecordedWaits {
    /// When the wait began, and for which limit.
    waiting: HashMap<Place, (Instant, Arc<str>), RandomState>,
    names: HashMap<String, Arc<str>>,
    over: Vec<RecordedWait>,
    shadows: BTreeMap<String, Tally>,
    /// Duplicates: the ID of each job, and when it was dropped.
    duplicates: Vec<(String, Instant)>,
}

impl WaitRecorder {
    fn lock(&self) -> MutexGuard<'_, RecordedWaits> {
        // A poisoned lock is harmless: no holder leaves the data half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns the waits that are over. If the run ended at `end`, also returns the
    /// waits that still lasted then.
    pub fn take(&self, end: Option<Instant>) -> Vec<RecordedWait> {
        let RecordedWaits { waiting, over, .. } = &mut *self.lock();
        let mut waits = std::mem::take(over);
        if let Some(end) = end {
            waits.extend(waiting.drain().map(|(_, (since, limit))| RecordedWait {
                limit,
                us: micros(end.saturating_duration_since(since)),
                is_unfinished: true,
            }));
        }
        waits
    }

    /// Removes and returns the counts of shadow limits, by name.
    pub fn take_shadows(&self) -> BTreeMap<String, Tally> {
        std::mem::take(&mut self.lock().shadows)
    }

    /// Removes and returns the duplicates: the index of each job, and when it was dropped, in
    /// microseconds after `began`.
    pub fn take_duplicates(&self, began: Instant) -> Vec<(usize, u64)> {
        let duplicates = std::mem::take(&mut self.lock().duplicates);
        let since = |at: Instant| micros(at.saturating_duration_since(began));
        (duplicates.into_iter())
            .filter_map(|(job, at)| Some((job.parse().ok()?, since(at))))
            .collect()
    }

    fn note_duplicates(&self, batch: &[Candidate], answers: &DedupeReplies) {
        let is_duplicate = |answer| matches!(answer, &Ok(DedupeAnswer::Duplicate { .. }));
        let all = batch.iter().zip(answers);
        let dropped = all.filter(|(_, answer)| is_duplicate(*answer));
        let now = Instant::now();
        (self.lock().duplicates).extend(dropped.map(|(one, _)| (one.job.clone(), now)));
    }

    /// Adds the counts of shadow limits for jobs that start.
    fn tried(&self, ask: &TenantAsk, tallies: &[Tally]) {
        let seen = ask.limits.shadows().iter().zip(tallies);
        for (limit, tally) in seen.filter(|(_, tally)| tally.starts > 0) {
            let shadows = &mut self.lock().shadows;
            match shadows.get_mut(limit.name()) {
                Some(known) => known.add(tally),
                None => {
                    shadows.insert(limit.name().to_owned(), *tally);
                }
            }
        }
    }

    fn note(&self, ask: &TenantAsk, answers: &[Answer]) {
        let waitlist = FixedState::default().hash_one((&ask.tenant, &ask.labels));
        let place = |ticket: Ticket| (waitlist, ticket.generation, ticket.number);
        let RecordedWaits {
            waiting,
            names,
            over,
            ..
        } = &mut *self.lock();
        for (one, answer) in ask.asks.iter().zip(answers) {
            let known = one.ticket.map(place);
            match answer {
                Answer::Capacity => {}
                Answer::Start { .. } => {
                    let waited = known.and_then(|place| waiting.remove(&place));
                    over.extend(waited.map(|(since, limit)| RecordedWait {
                        limit,
                        us: micros(since.elapsed()),
                        is_unfinished: false,
                    }));
                }
                Answer::Wait { limit, ticket, .. } => {
                    let (name, now) = (ask.limits[*limit].name(), place(*ticket));
                    if known == Some(now)
                        && waiting.get(&now).is_some_and(|(_, known)| **known == *name)
                    {
                        continue;
                    }
                    let waited = known.and_then(|place| waiting.remove(&place));
                    let since = waited.map_or_else(Instant::now, |(since, _)| since);
                    let name = match names.get(name) {
                        Some(name) => Arc::clone(name),
                        None => {
                            let shared: Arc<str> = name.into();
                            names.insert(name.to_owned(), Arc::clone(&shared));
                            shared
                        }
                    };
                    waiting.insert(now, (since, name));
                }
            }
        }
    }
}

/// A worker's connection to the gate.
pub(crate) struct GateConnection {
    pub gate: Arc<MemoryGate<Clock>>,
    pub waits: Arc<WaitRecorder>,
    /// Round-trip time.
    pub takes: Duration,
}

impl GateConnection {
    /// Waits for half of the round trip.
    async fn travel(&self) {
        if !self.takes.is_zero() {
            sleep(self.takes / 2).await;
        }
    }

    async fn there_and_back<T>(&self, asks: impl Future<Output = T>) -> T {
        self.travel().await;
        let answer = asks.await;
        self.travel().await;
        answer
    }
}

impl Gate for GateConnection {
    async fn ask(&self, batch: &[TenantAsk]) -> Result<Replies, GateError> {
        self.travel().await;
        let replies = self.gate.ask(batch).await?;
        for (ask, reply) in batch.iter().zip(&replies) {
            if let Ok(reply) = reply {
                self.waits.note(ask, &reply.answers);
                self.waits.tried(ask, &reply.shadows);
            }
        }
        self.travel().await;
        Ok(replies)
    }

    /// Returns the round trip: a real worker has measured it before it asks for its first permit.
    fn base(&self) -> Duration {
        self.takes
    }

    async fn settle(&self, batch: &[TenantSettlements]) -> Result<SettleReplies, GateError> {
        self.there_and_back(self.gate.settle(batch)).await
    }

    async fn block(
        &self,
        scope: &BreakerScope,
        duration: Duration,
        reason: &str,
    ) -> Result<(), GateError> {
        self.there_and_back(self.gate.block(scope, duration, reason))
            .await
    }

    async fn report(
        &self,
        rule: &Rule,
        batch: &[(BreakerScope, BreakerEvent)],
    ) -> Result<Standings, GateError> {
        self.there_and_back(self.gate.report(rule, batch)).await
    }

    async fn suspect(&self, batch: &[SuspectNote]) -> Result<SuspectReplies, GateError> {
        self.there_and_back(self.gate.suspect(batch)).await
    }

    async fn dedupe(&self, batch: &[Candidate]) -> Result<DedupeReplies, GateError> {
        self.travel().await;
        let answers = self.gate.dedupe(batch).await?;
        self.waits.note_duplicates(batch, &answers);
        self.travel().await;
        Ok(answers)
    }

    async fn sighted(&self, batch: &[JobSighting]) -> Result<(), GateError> {
        self.there_and_back(self.gate.sighted(batch)).await
    }

    async fn advertised(&self, batch: &[(Tenant, Quotas)]) -> Result<(), GateError> {
        self.there_and_back(self.gate.advertised(batch)).await
    }

    async fn learn(&self, batch: &[LimitEvidence]) -> Result<LearnReplies, GateError> {
        self.there_and_back(self.gate.learn(batch)).await
    }

    async fn change(&self, scope: &BreakerScope, change: &Change) -> Result<u64, GateError> {
        self.there_and_back(self.gate.change(scope, change)).await
    }

    async fn inspect(
        &self,
        tenant: &Tenant,
        labels: &Labels,
        limits: &Limits,
    ) -> Result<Inspection, GateError> {
        self.there_and_back(self.gate.inspect(tenant, labels, limits))
            .await
    }
}
