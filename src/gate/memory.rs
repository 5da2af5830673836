//! The gate in memory: the model behind the [`Gate`] trait, for `simulate` and tests.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::{
    BreakerEvent, BreakerScope, Candidate, Change, DedupeAnswer, DedupeReplies, Gate, GateError,
    Inspection, LearnReplies, LimitEvidence, Replies, Rule, SettleReplies, Standings,
    SuspectDecision, SuspectNote, SuspectReplies, TenantAsk, TenantReply, TenantSettlements,
};
use rules::answers::Quotas;
use rules::dedupe::FirstJob;
use rules::failures::crash::{KEEP_MS, Suspect};
use rules::gate::model::{HeldState, Scopes, State};
use rules::gate::usage::Clock;
use rules::layout::{Layout, Partition};
use rules::limit::{Limits, ceil_ms};
use rules::scope::Labels;
use rules::steering::{JobSighting, Sighting};
use rules::tenant::Tenant;

/// Number of stored entries at which the first sweep for expired ones runs.
const SWEEP_AT: usize = 1024;

/// A gate that only this process uses and that loses everything when the process ends.
pub struct MemoryGate<C> {
    clock: C,
    states: Mutex<States>,
    /// Last sightings of the jobs that operators look for. Their number is bounded by the number of
    /// such jobs.
    sighted: Mutex<HashMap<(Tenant, String), Sighting>>,
}

struct States {
    /// Partition states. A taken one is `None`.
    of: HashMap<Partition, Option<HeldState>, RandomState>,
    /// Suspect jobs by tenant and job id, and until when each is remembered.
    suspects: HashMap<(Tenant, String), (Suspect, u64)>,
    /// First jobs by tenant and dedupe key.
    firsts: HashMap<(Tenant, String), FirstJob>,
    /// Number of entries in the largest map at which the next sweep runs.
    sweep_at: usize,
}

impl Default for States {
    fn default() -> Self {
        Self {
            of: HashMap::default(),
            suspects: HashMap::new(),
            firsts: HashMap::new(),
            sweep_at: SWEEP_AT,
        }
    }
}

impl States {
    /// Takes the state that the store would hold for `partition` at `now_ms`. The caller puts it
    /// back with [`States::put`].
    fn take(&mut self, partition: &Partition, now_ms: u64) -> HeldState {
        // The map entry stays, so that the partition's name is not allocated again.
        let stored = self.of.get_mut(partition).and_then(Option::take);
        let mut state = stored.unwrap_or_default();
        state.expire(now_ms);
        state
    }

    fn put(&mut self, partition: &Partition, state: HeldState) {
        match self.of.get_mut(partition) {
            Some(place) => *place = Some(state),
            None => _ = self.of.insert(partition.clone(), Some(state)),
        }
    }

    fn sweep(&mut self, now_ms: u64) {
        let max = |it: &Self| it.of.len().max(it.suspects.len()).max(it.firsts.len());
        if max(self) >= self.sweep_at {
            self.of
                .retain(|_, state| state.as_mut().is_some_and(|it| !it.expire(now_ms)));
            self.suspects.retain(|_, (_, until)| *until > now_ms);
            self.firsts.retain(|_, first| !first.is_over(now_ms));
            self.sweep_at = SWEEP_AT.max(max(self) * 2);
        }
    }

    fn suspect(&mut self, suspected: &SuspectNote, now_ms: u64) -> SuspectDecision {
        let SuspectNote {
            tenant,
            job,
            owner,
            note,
        } = suspected;
        let key = (tenant.clone(), job.clone());
        let known = self.suspects.remove(&key);
        let known = known.filter(|(_, until)| *until > now_ms);
        let mut suspect = known.map(|(suspect, _)| suspect).unwrap_or_default();
        let verdict = suspect.apply_note(now_ms, owner, *note);
        if !suspect.is_clear() {
            let until = now_ms + KEEP_MS;
            self.suspects.insert(key, (suspect, until));
        }
        verdict
    }

    fn dedupe(&mut self, candidate: &Candidate, now_ms: u64) -> DedupeAnswer {
        let key = (candidate.tenant.clone(), candidate.key.clone());
        let mut known = self.firsts.remove(&key);
        let deduped = FirstJob::ask(&mut known, now_ms, candidate);
        self.firsts.extend(known.map(|first| (key, first)));
        deduped
    }
}

impl<C: Fn() -> u64 + Send + Sync + 'static> MemoryGate<C> {
    /// Returns an empty gate. `clock` returns microseconds since the Unix epoch.
    pub fn new(clock: C) -> Self {
        Self {
            clock,
            states: Mutex::default(),
            sighted: Mutex::default(),
        }
    }

    /// Returns the last sighting of a job.
    pub fn sighting(&self, tenant: &Tenant, job: &str) -> Option<Sighting> {
        let sighted = self.sighted.lock().unwrap_or_else(PoisonError::into_inner);
        sighted.get(&(tenant.clone(), job.to_owned())).cloned()
    }

    fn states(&self) -> (MutexGuard<'_, States>, Clock) {
        // No code panics while it holds the lock, so a poisoned state is intact.
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let clock = Clock::from_micros((self.clock)());
        states.sweep(clock.now_ms);
        (states, clock)
    }

    /// Runs `decide` on the current partitions of `tenant`'s jobs with `labels`.
    fn with<T>(
        &self,
        (tenant, labels, limits): (&Tenant, &Labels, &Limits),
        decide: impl FnOnce(&mut Scopes<'_>, Clock) -> T,
    ) -> T {
        let (mut states, clock) = self.states();
        let layout = Layout::of(limits.all(), tenant, labels);
        let take = |partition| states.take(layout.partition(partition), clock.now_ms);
        let mut scopes = Scopes::take(&layout, take);
        let result = decide(&mut scopes, clock);
        for (partition, state) in scopes.into_states().into_iter().enumerate() {
            states.put(layout.partition(partition), state);
        }
        result
    }

    fn with_partition<T>(
        &self,
        partition: Partition,
        change: impl FnOnce(&mut State, u64) -> T,
    ) -> T {
        let (mut states, clock) = self.states();
        let mut state = states.take(&partition, clock.now_ms);
        let result = change(&mut state, clock.now_ms);
        states.put(&partition, state);
        result
    }
}

/// Returns the partition that stores the data of these calls.
fn partition_of(scope: &BreakerScope) -> Partition {
    match scope {
        BreakerScope::Tenant(tenant) => Partition::Tenant(tenant.clone()),
        BreakerScope::Api => Partition::Api,
    }
}

impl<C: Fn() -> u64 + Send + Sync + 'static> Gate for MemoryGate<C> {
    async fn ask(&self, batch: &[TenantAsk]) -> Result<Replies, GateError> {
        let decide = |ask: &TenantAsk| {
            self.with((&ask.tenant, &ask.labels, &ask.limits), |scopes, clock| {
                let (answers, blocked_until_ms) =
                    scopes.ask(ask.limits.all(), clock, ask.budget, &ask.permits, &ask.asks);
                Ok(TenantReply {
                    now_ms: clock.now_ms,
                    blocked_until_ms,
                    has_failures: scopes.has_failures(),
                    answers,
                    shadows: scopes.tallies().to_vec(),
                })
            })
        };
        Ok(batch.iter().map(decide).collect())
    }

    async fn settle(&self, batch: &[TenantSettlements]) -> Result<SettleReplies, GateError> {
        for TenantSettlements {
            tenant,
            labels,
            limits,
            call,
            settled,
        } in batch
        {
            self.with((tenant, labels, limits), |scopes, clock| {
                scopes.settle(limits.all(), clock, call, settled);
            });
        }
        Ok(batch.iter().map(|_| Ok(())).collect())
    }

    async fn block(
        &self,
        scope: &BreakerScope,
        duration: Duration,
        by: &str,
    ) -> Result<(), GateError> {
        self.with_partition(partition_of(scope), |state, now| {
            state.block(now, ceil_ms(duration), by);
        });
        Ok(())
    }

    async fn report(
        &self,
        rule: &Rule,
        batch: &[(BreakerScope, BreakerEvent)],
    ) -> Result<Standings, GateError> {
        let report = |(scope, event): &(BreakerScope, BreakerEvent)| {
            Ok(self.with_partition(partition_of(scope), |state, now| {
                state.report(now, rule, event)
            }))
        };
        Ok(batch.iter().map(report).collect())
    }

    async fn suspect(&self, batch: &[SuspectNote]) -> Result<SuspectReplies, GateError> {
        let (mut states, clock) = self.states();
        let hear = |suspected| Ok(states.suspect(suspected, clock.now_ms));
        Ok(batch.iter().map(hear).collect())
    }

    async fn dedupe(&self, batch: &[Candidate]) -> Result<DedupeReplies, GateError> {
        let (mut states, clock) = self.states();
        let ask = |candidate| Ok(states.dedupe(candidate, clock.now_ms));
        Ok(batch.iter().map(ask).collect())
    }

    async fn sighted(&self, batch: &[JobSighting]) -> Result<(), GateError> {
        let mut sighted = self.sighted.lock().unwrap_or_else(PoisonError::into_inner);
        for JobSighting {
            tenant,
            job,
            sighting,
        } in batch
        {
            sighted.insert((tenant.clone(), job.clone()), sighting.clone());
        }
        Ok(())
    }

    async fn advertised(&self, batch: &[(Tenant, Quotas)]) -> Result<(), GateError> {
        for (tenant, quotas) in batch {
            let own = Partition::Tenant(tenant.clone());
            self.with_partition(own, |state, now| state.advertised(now, *quotas));
        }
        Ok(())
    }

    async fn learn(&self, batch: &[LimitEvidence]) -> Result<LearnReplies, GateError> {
        let learn = |lesson: &LimitEvidence| {
            let LimitEvidence {
                tenant,
                labels,
                limits,
                evidence,
            } = lesson;
            Ok(self.with((tenant, labels, limits), |scopes, clock| {
                scopes.learn(limits, clock, evidence)
            }))
        };
        Ok(batch.iter().map(learn).collect())
    }

    async fn change(&self, scope: &BreakerScope, change: &Change) -> Result<u64, GateError> {
        if let (BreakerScope::Tenant(tenant), Change::Reset) = (scope, change) {
            self.with_partition(Partition::Global, |state, now| {
                state.fair_queue.leave(&tenant.key(), now);
            });
        }
        Ok(self.with_partition(partition_of(scope), |state, now| state.change(now, change)))
    }

    async fn inspect(
        &self,
        tenant: &Tenant,
        labels: &Labels,
        limits: &Limits,
    ) -> Result<Inspection, GateError> {
        Ok(self.with((tenant, labels, limits), |scopes, clock| {
            scopes.inspect(limits.all(), clock)
        }))
    }
}
