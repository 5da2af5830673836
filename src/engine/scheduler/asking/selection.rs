//! Selects the jobs that ask the gate next, and assembles their questions.

use std::collections::BTreeMap;
use std::time::Duration;

use super::admission::RoundTrip;
use super::fitness::WantedJobs;
use super::questions::{GateQuestion, QuestionJob, TenantQuestions};
use super::suspects::AskPermission;
use crate::action::JobKey;
use crate::facts::GateFact;
use crate::scheduler::Scheduler;
use crate::scheduler::entry::{JobEntry, Phase, SlotState};
use crate::scheduler::queues::TenantShare;
use gate::{Question, ShardId, TenantAsk, TenantReply};
use rules::job::{self, Claims};
use rules::limit::Limits;
use rules::scope::Labels;
use rules::tenant::Tenant;

/// Questions that are being assembled, by shard.
pub type Rounds = BTreeMap<ShardId, (Vec<TenantAsk>, RoundTrip)>;

/// A job that asks now. The gate admits the first jobs first: those whose calls are ready, in the
/// order of their tickets.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct AskingJob {
    is_unready: bool,
    has_no_ticket: bool,
    /// Generation and number of its ticket.
    ticket: Option<(u64, u64)>,
    /// Its position among the jobs of its tenant's turn.
    index: usize,
    key: JobKey,
}

/// A tenant's jobs that ask again, with their positions among the jobs that asked.
#[derive(Default)]
pub struct JobsAskingAgain {
    pub jobs: Vec<(usize, JobKey)>,
    /// Whether other jobs of the tenant must wait.
    pub limited: bool,
}

impl Scheduler {
    /// Returns true if a job may ask, or needs the store's clock.
    pub(in crate::scheduler) fn wants_to_ask(&self, now: Duration) -> bool {
        // The API's probe is one job, in whichever shard it asks.
        let probe = self.breakers.only_one() && !self.admission.is_idle();
        self.agreement.allows(now)
            && self.breakers.may_ask(now)
            && !probe
            && self.may_call()
            && !self.intake.is_stopping()
            && (self.queues.may_ask(|it| self.is_open(it)) || self.needs_clock().is_some())
    }

    /// Returns false while this worker is unfit and no try is running, and after a successful try
    /// until its few jobs are back in their queues. They go back once nothing moves; while a move
    /// waits for a full queue, the worker calls the few.
    pub(in crate::scheduler) fn may_call(&self) -> bool {
        let wanted = self.fitness.wants();
        let gives_back = self.agreement.is_giving_back(wanted) && !self.moves.are_stuck();
        wanted != WantedJobs::Nothing && !gives_back
    }

    /// Returns when the next question may be sent.
    pub(in crate::scheduler) fn ask_at(&self) -> Duration {
        let is_open = |shard| self.is_open(shard);
        self.admission.ask_at(|| self.queues.could_ask(is_open))
    }

    /// Returns true if the shard may be asked: no question is in flight there, and all unused
    /// permits were given back.
    pub(in crate::scheduler) fn is_open(&self, shard: ShardId) -> bool {
        self.admission.is_open(shard) && !self.settlement.must_settle_first(shard)
    }

    fn ready(&self) -> usize {
        self.queues.ready(|shard| self.is_open(shard))
    }

    /// Returns when jobs in a round trip lose their slots, because other jobs want them.
    pub(in crate::scheduler) fn lapses_at(&self) -> Option<Duration> {
        let wanted = !self.intake.is_stopping() && self.ready() > 0;
        self.admission.lapses_at().filter(|_| wanted)
    }

    /// Takes the slots from jobs whose round trip lapses.
    pub(in crate::scheduler) fn lapse(&mut self, now: Duration) {
        while self.lapses_at().is_some_and(|at| at <= now) {
            let Some(keys) = self.admission.lapse(now) else {
                return;
            };
            for key in keys {
                let job = self.jobs.get(&key);
                if job.is_some_and(|job| job.phase == Phase::Asking) {
                    self.release_slot(key);
                }
            }
        }
    }

    /// Returns a job that waits for the store's clock and may ask for it.
    fn needs_clock(&self) -> Option<JobKey> {
        let is_open = |key: &JobKey| {
            let job = self.jobs.get(key);
            job.is_some_and(|job| self.is_open(self.queues.shard_of(&job.claims.tenant)))
        };
        self.clock.waiting().find(is_open)
    }

    /// Assembles the next question for each open shard.
    pub(in crate::scheduler) fn questions_of_jobs(
        &mut self,
        now: Duration,
        is_ready: &mut impl FnMut(JobKey, &Tenant) -> bool,
    ) -> Rounds {
        // While the API's breaker is open, one job is the probe. It should be of a tenant without
        // failures, because jobs of other tenants may fail whatever the API does.
        let max = match self.breakers.only_one() {
            true => {
                let breakers = &self.breakers;
                (self.queues).begin_with(|tenant| !breakers.may_have_failures(tenant));
                1
            }
            false => self.admission.max_jobs(),
        };
        let (admission, settlement) = (&self.admission, &self.settlement);
        let is_open = |it| admission.is_open(it) && !settlement.must_settle_first(it);
        let (jobs, agreement, steering) = (&self.jobs, &mut self.agreement, &self.steering);
        let max_starts = |tenant: &Tenant, first: JobKey| {
            let plan = jobs.get(&first).and_then(|job| job.claims.plan.as_deref());
            let limits = steering.with_tried(tenant, agreement.limits(tenant, plan));
            limits.max_starts()
        };
        let turns = self.queues.take_round(max, is_open, max_starts);
        let jobs = turns.iter().map(|(_, turn)| turn.keys.len()).sum();
        self.admission.asks_for(jobs);
        let (mut rounds, mut questions) = (Rounds::new(), TenantQuestions::default());
        let most = turns.len();
        for (shard, turn) in turns {
            self.add_questions(now, turn, is_ready, &mut questions);
            for (ask, question) in questions.take() {
                let begin = || (Vec::with_capacity(most), self.admission.begin(now, most));
                let (batch, round) = rounds.entry(shard).or_insert_with(begin);
                round.add(question);
                batch.push(ask);
            }
        }
        rounds
    }

    /// Assembles a question without jobs, which only reads the store's clock, if a job waits for
    /// it.
    pub(in crate::scheduler) fn question_for_clock(&mut self, now: Duration) -> Rounds {
        let Some(job) = self.needs_clock().and_then(|key| self.jobs.get(&key)) else {
            return Rounds::new();
        };
        let (tenant, plan) = (job.claims.tenant.clone(), job.claims.plan.as_deref());
        // Sends the job's own limits, although only the clock is read: the gate deletes usage that
        // is too old for the question's limits, and other limits might delete usage that still
        // counts.
        let limits = self.agreement.limits(&tenant, plan);
        let limits = self.steering.with_tried(&tenant, limits);
        let labels = self.labels_of(job, &limits);
        let shard = self.queues.shard_of(&tenant);
        let question = GateQuestion::new(tenant, labels, limits, String::new());
        let mut round = self.admission.begin(now, 1);
        let batch = vec![question.ask()];
        round.add_for_clock(question);
        Rounds::from([(shard, (batch, round))])
    }

    /// Adds the questions for the jobs of `turn` to `questions`, which has none. Jobs with the same
    /// limits and labels share a question. The first jobs without a slot get the slots of the turn,
    /// so that all questions together start no more jobs than there are slots.
    fn add_questions(
        &mut self,
        now: Duration,
        mut turn: TenantShare,
        is_ready: &mut impl FnMut(JobKey, &Tenant) -> bool,
        questions: &mut TenantQuestions,
    ) {
        turn.keys
            .retain(|key| !self.expire(now, *key) && !self.remove_if_unwanted(now, *key));
        if turn.keys.is_empty() {
            // All jobs have left.
            self.queues.set_limited(&turn.tenant, false);
        }
        let jobs = self.asking_jobs(now, turn, is_ready);
        for job in &jobs {
            self.add_question(now, job, jobs.len(), questions);
        }
    }

    /// Returns the jobs of `turn` that ask now, in the order in which they ask. Puts jobs back
    /// that need a slot to ask.
    fn asking_jobs(
        &mut self,
        now: Duration,
        turn: TenantShare,
        is_ready: &mut impl FnMut(JobKey, &Tenant) -> bool,
    ) -> Vec<AskingJob> {
        let mut slots = turn.slots;
        let mut jobs: Vec<_> = Vec::with_capacity(turn.keys.len());
        let mut without_slot = Vec::new();
        for (index, key) in turn.keys.into_iter().enumerate() {
            let ready = self.take_if_ready(key, &mut slots, is_ready);
            match self.may_ask(now, key) {
                AskPermission::Ask => {}
                AskPermission::WithSlot => {
                    without_slot.push(key);
                    continue;
                }
                AskPermission::Not => continue,
            }
            let ticket = (self.jobs.get(&key)).and_then(|job| job.claims.ticket);
            jobs.push(AskingJob {
                is_unready: !ready,
                has_no_ticket: ticket.is_none(),
                ticket: ticket.map(|ticket| (ticket.generation, ticket.number)),
                index,
                key,
            });
        }
        if !without_slot.is_empty() {
            self.put_back(&without_slot);
            // These jobs ask again when slots are free.
            self.queues.set_limited(&turn.tenant, false);
        }
        jobs.sort_unstable();
        jobs
    }

    /// Adds the job to the question for its limits and labels. Usually one question has all `jobs`
    /// of the turn.
    fn add_question(
        &mut self,
        now: Duration,
        asking: &AskingJob,
        jobs: usize,
        all: &mut TenantQuestions,
    ) {
        let key = asking.key;
        // Every job in the queues is in `jobs`, because a lost session empties both.
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        job.phase = Phase::Asking;
        let Some(job) = self.jobs.get(&key) else {
            return;
        };
        let Claims { tenant, plan, .. } = &job.claims;
        let limits = self.agreement.limits(tenant, plan.as_deref());
        let limits = self.steering.with_tried(tenant, limits);
        let limits = self.pacing.add_spacing(now, tenant, limits);
        let labels = self.labels_of(job, &limits);
        let settlement = &mut self.settlement;
        let room = if all.is_empty() { jobs } else { 1 };
        let (ask, question) = all.find_or_add(labels, limits, |labels, limits| {
            let permits = match limits.hold_leases() {
                true => settlement.name(),
                false => String::new(),
            };
            GateQuestion::new(tenant.clone(), labels, limits, permits).with_room(room)
        });
        let (ticket, cost, readmitted) = (job.claims.ticket, job.claims.cost, job.readmitted);
        ask.budget += u32::from(!asking.is_unready);
        ask.asks.push(Question {
            ticket,
            cost,
            readmitted,
        });
        question.jobs.push(QuestionJob {
            key,
            index: asking.index,
            cost,
        });
    }

    /// Records the tenant's state in a reply.
    pub(in crate::scheduler) fn record_tenant_state(
        &mut self,
        now: Duration,
        asked_at: Duration,
        question: &GateQuestion,
        reply: &TenantReply,
    ) {
        let tenant = &question.tenant;
        self.outages.over(tenant);
        self.suspended.record(now, tenant, reply);
        let asked_ago = now.saturating_sub(asked_at);
        self.clock
            .read(now, reply.now_ms, asked_ago, Duration::ZERO);
        self.breakers.record_failures(tenant, reply.has_failures);
        self.tallies.denied(question, reply);
        let shadows = question.limits.shadows().iter().zip(&reply.shadows);
        let tried = shadows.filter(|(_, tally)| tally.starts > 0);
        self.facts
            .extend(tried.map(|(limit, tally)| GateFact::Tried(limit.name().to_owned(), *tally)));
    }

    /// Returns the labels of a job: the values that its limits distinguish, and its priority level.
    pub(in crate::scheduler) fn labels_of(&self, job: &JobEntry, limits: &Limits) -> Labels {
        let labels = job::labels(&*job.message, limits.all());
        let level = self.settings.fields.priorities.label(&*job.message);
        // A message with an invalid level does not become a job.
        match level.ok().flatten() {
            Some(level) => labels.with_level(level),
            None => labels,
        }
    }

    /// Returns true if the job's call could be made at once. Gives a job without a slot one of
    /// `slots`.
    fn take_if_ready(
        &mut self,
        key: JobKey,
        slots: &mut u32,
        is_ready: &mut impl FnMut(JobKey, &Tenant) -> bool,
    ) -> bool {
        let hand = |job: &JobEntry| job.slot;
        if self.jobs.get(&key).map(hand) == Some(SlotState::Empty) && *slots > 0 {
            *slots -= 1;
            self.give_slot(key);
        }
        let Some(job) = self.jobs.get_mut(&key) else {
            return false;
        };
        let ready = job.slot != SlotState::Empty && is_ready(key, &job.claims.tenant);
        job.slot = match (job.slot, ready) {
            (SlotState::Empty, _) => SlotState::Empty,
            (_, true) => SlotState::Ready,
            (_, false) => SlotState::Slot,
        };
        ready
    }
}
