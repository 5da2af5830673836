//! Decides what happens next to every job in the worker's memory. Pure: deliveries, answers,
//! outcomes and the time go in; actions and facts come out. `engine` performs the actions, and logs
//! and counts the facts.
//!
//! `lifecycle` follows a job from its delivery to its ack, from top to bottom. Until it leaves, a
//! job is in one phase (`entry::Phase`):
//!
//! ```text
//! delivered -> Ready -> Asking -> Running -> done: acked
//!                ^         |         |-> Reporting   failed, reported to the breakers --> Ready, or leaves
//!                |         |         |-> Throttling  throttled, stored in the gate ------> Ready, or leaves
//!                |         |         |-> Ready       its permit expired
//!                |         |         '-> leaves      to be tried later, or never
//!                |         |-> Delayed     a short wait, in memory ---------------------> Ready
//!                |         |-> InWindow    waits on in its delay queue's window --------> Ready
//!                |         |-> Preparing   quota available, but the call not prepared --> Ready
//!                |         |-> leaves      a long wait, or never
//!                |         '-> Ready       the gate failed, or no slot was free
//!                |-- Candidate   has a dedupe key: asks the gate whether it is the first
//!                |-- Noting      a suspect: its note is stored before it asks
//!                |-- Delayed     its time has not come
//!                '-- InWindow    delivered from a delay queue before its turn
//! ```
//!
//! A job that leaves is published to a delay queue or to the dead letters, and acked when that is
//! confirmed (`leaving::moves`). Then it is in no phase.
//!
//! A job is taken in (`intake`), asks (`asking`), perhaps waits (`delays`), is called (`calling`)
//! and leaves (`leaving`); `reporting` counts and describes the jobs. Some files have a part of the
//! state, such as `asking::admission`, and do not know the other parts. The other files use these
//! parts to decide what happens to jobs.

mod agenda;
mod asking;
mod calling;
mod clock;
mod delays;
mod due_time;
mod entry;
mod intake;
mod leaving;
mod lifecycle;
mod outbox;
mod queues;
mod report_limiter;
mod reporting;
mod trace;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use self::agenda::Agenda;
use self::asking::admission::Admission;
use self::asking::agreement::{Agreement, TakingChange};
use self::asking::fitness::Fitness;
use self::asking::notes::Notes;
use self::asking::outages::TenantOutages;
use self::calling::answers::{AdvertisedLimits, Lessons, UnstoredThrottles};
use self::calling::breakers::Breakers;
use self::calling::settlement::Settlement;
use self::clock::StoreClock;
use self::delays::JobTimers;
use self::entry::{JobEntry, Phase, SlotState};
use self::intake::candidates::Candidates;
use self::intake::deliveries::Intake;
use self::leaving::hold_limit::HoldLimit;
use self::leaving::moves::Moves;
use self::leaving::results::LostResults;
use self::leaving::steering::SteeringState;
use self::queues::Queues;
use self::report_limiter::ReportLimiter;
use self::reporting::census::SuspendedTenants;
use self::reporting::closed_tenants::ClosedTenants;
use self::reporting::spans::JobTraces;
use self::reporting::tenants::Tallies;
use crate::action::{Action, EngineSettings, JobKey, LiveSettings, ResultTarget};
use crate::facts::{BrokerFact, Fact, Facts, GateFact, Gauges};
use crate::shards::Shards;
use broker::{Delivery, MessageKind};
use gate::fleet::EnforcedPolicies;
use gate::{GateError, SettleReplies, ShardId};
use rules::delays::delivery_window;
use rules::failures::refusals::Refusals;
use rules::failures::throttle_backoff::ThrottleBackoff;
use rules::job::{Fields, InBody};
use rules::timing::cost_estimator::CostEstimator;
use rules::timing::lateness::CallSignal;
use rules::timing::pacing::Pacing;

/// The jobs in the worker's memory, and the state that decides about them.
pub struct Scheduler {
    settings: EngineSettings,
    random: SmallRng,
    /// The jobs, until they leave.
    jobs: HashMap<JobKey, JobEntry, RandomState>,
    /// The current session, and its deliveries.
    intake: Intake,
    /// The policies to enforce, and until when.
    agreement: Agreement,
    /// The store's clock.
    clock: StoreClock,
    /// The jobs that may ask, by tenant, and the worker slots.
    queues: Queues,
    /// The jobs that wait in memory.
    waiting: JobTimers,
    /// The limit on how long jobs are held unacked.
    hold_limit: HoldLimit,
    /// The questions to the gate.
    admission: Admission,
    /// Starts that are not settled with the gate yet.
    settlement: Settlement,
    /// Throttles that are not stored in the gate yet.
    throttles: UnstoredThrottles,
    /// Limits that the API advertises, to be stored in the gate.
    advertised: AdvertisedLimits,
    /// Lessons for adaptive limits, to be stored in the gate.
    lessons: Lessons,
    /// The part of their reserved costs that calls use.
    costs: CostEstimator,
    /// The margins that keep starts of buckets apart.
    pacing: Pacing,
    /// Refused calls that show that an API counts differently.
    refusals: Refusals,
    /// The lengths of throttles for which the API names no time.
    throttle_backoff: ThrottleBackoff,
    /// This worker's view of the breakers, and its reports to them.
    breakers: Breakers,
    /// Whether this worker can make calls.
    fitness: Fitness,
    /// The last report that this worker lacks a resource.
    shortage_reports: ReportLimiter,
    /// Notes on calls of suspects.
    notes: Notes,
    /// Jobs that ask the gate whether they are the first with their dedupe key.
    candidates: Candidates,
    /// The tenants for which the gate can't decide.
    outages: TenantOutages,
    /// The suspended tenants, for metrics.
    suspended: SuspendedTenants,
    /// The closed tenants, for the log.
    closed_tenants: ClosedTenants,
    /// The spans of jobs.
    traces: JobTraces,
    /// Starts and denials of each tenant.
    tallies: Tallies,
    /// The operators' instructions, and the answers to them.
    steering: SteeringState,
    /// The messages on their way to other queues.
    moves: Moves,
    /// What was reported about lost results.
    lost_results: LostResults,
    /// The last report of stuck targets of each kind.
    stuck_reports: [ReportLimiter; MessageKind::NAMES.len()],
    /// The last report of a returned delivery.
    return_reports: ReportLimiter,
    /// The actions to perform.
    agenda: Agenda,
    /// The facts to report.
    facts: Facts,
}

impl Scheduler {
    /// Creates a scheduler without jobs. `seed` makes its jitter repeatable.
    pub fn new(settings: EngineSettings, seed: u64) -> Self {
        let delays = settings.names.delays();
        let window = delivery_window(settings.prefetch, settings.live.concurrency);
        Self {
            random: SmallRng::seed_from_u64(seed),
            jobs: HashMap::default(),
            intake: Intake::default(),
            agreement: Agreement::alone(settings.policy.clone()),
            clock: StoreClock::default(),
            queues: Queues::new(settings.live.concurrency, settings.prefetch),
            waiting: JobTimers::new(delays.len(), window),
            hold_limit: HoldLimit::new(settings.holding),
            admission: Admission::default(),
            settlement: Settlement::new(seed),
            throttles: UnstoredThrottles::default(),
            advertised: AdvertisedLimits::default(),
            lessons: Lessons::default(),
            costs: CostEstimator::default(),
            pacing: Pacing::default(),
            refusals: Refusals::default(),
            throttle_backoff: ThrottleBackoff::default(),
            breakers: Breakers::new(settings.live.breaker),
            fitness: Fitness::new(settings.live.breaker),
            shortage_reports: ReportLimiter::default(),
            notes: Notes::new(seed),
            candidates: Candidates::new(seed),
            outages: TenantOutages::default(),
            suspended: SuspendedTenants::default(),
            closed_tenants: ClosedTenants::default(),
            traces: JobTraces::new(seed),
            tallies: Tallies::default(),
            steering: SteeringState::default(),
            moves: Moves::new(
                settings.prefetch,
                Arc::clone(&settings.names.dead),
                (settings.results.as_ref()).is_some_and(|it| it.to == ResultTarget::ReplyTo),
            ),
            lost_results: LostResults::default(),
            stuck_reports: Default::default(),
            return_reports: ReportLimiter::default(),
            agenda: Agenda::default(),
            facts: Facts::default(),
            settings,
        }
    }

    /// Sets the mapping of tenants to shards, so that tenants of different shards do not wait for
    /// each other's answers. Must be called before there are jobs.
    pub fn shard_by(&mut self, shards: Shards) {
        self.queues.shard_by(shards.clone());
        self.settlement.shard_by(shards.clone());
        self.notes.shard_by(shards.clone());
        self.candidates.shard_by(shards);
    }

    /// Makes the scheduler ask the gate only after a call of [`Scheduler::agreed`].
    pub fn must_agree(mut self) -> Self {
        self.agreement.require();
        self
    }

    /// Renews the agreement with the other workers: `fleet` is in force from now on (`None`: no
    /// change), and the gate may be asked until `until`.
    pub fn agreed(&mut self, fleet: Option<EnforcedPolicies>, until: Duration) {
        self.agreement.renew(fleet, until);
        // An outage may have left a delay of some seconds.
        self.admission.end_delay();
    }

    /// Returns true if the agreement with the other workers allows jobs to start.
    pub fn is_agreed(&self, now: Duration) -> bool {
        self.agreement.stands(now)
    }

    /// Sets the minimum round-trip time of a question
    /// ([`Gate::base`](gate::Gate::base)).
    pub fn set_base(&mut self, base: Duration) {
        self.admission.set_base(base);
    }

    /// Applies a changed configuration.
    pub fn change(&mut self, changed: LiveSettings) {
        self.queues.set_concurrency(changed.concurrency);
        self.breakers.set_rule(changed.breaker);
        self.fitness.set_rule(changed.breaker);
        self.settings.live = changed;
    }

    /// Takes the actions to perform now.
    pub fn take_actions(&mut self) -> Vec<Action> {
        self.agenda.take()
    }

    /// Replaces the content of `buffer` by the facts since the last call.
    pub fn take_facts(&mut self, buffer: &mut Vec<Fact>) {
        self.facts.take(buffer);
    }

    /// Returns the gauges.
    pub fn gauges(&self) -> Gauges {
        Gauges {
            running: self.queues.running(),
            slots: self.queues.slots(),
            all_slots: self.settings.live.concurrency,
            held: self.queues.held() + self.waiting.windows.parked(),
            in_memory: self.in_memory(),
            abandoned: self.settlement.abandoned(),
            breaker_is_open: self.breakers.is_open(),
            latency_base: self.settlement.latency_base(),
        }
    }

    /// Returns the number of messages waiting for stuck targets by kind, in the order of
    /// [`MessageKind::NAMES`].
    pub fn stuck(&self, now: Duration) -> [usize; MessageKind::NAMES.len()] {
        let all = self.moves.standstills(now, leaving::stuck::STUCK_AFTER);
        all.map(|it| it.map_or(0, |it| it.messages))
    }

    /// Returns the number of unacked jobs in memory.
    pub fn in_memory(&self) -> usize {
        self.jobs.len() + self.moves.len() + self.intake.waiting()
    }

    /// Sets the number of deliveries whose large bodies are being read.
    pub fn set_unread(&mut self, unread: usize) {
        self.intake.set_unread(unread);
    }

    /// Begins a session. Its deliveries belong to this worker until it ends.
    pub fn session_up(&mut self, session: u64) {
        self.session_down();
        self.intake.begin_session(session);
    }

    /// Ends the session. The broker delivers everything unacked again, so all jobs are forgotten,
    /// except running jobs, which can't be recalled, and jobs whose throttle is being stored.
    pub fn session_down(&mut self) {
        self.intake.end_session();
        self.breakers.not_started();
        let mut released = Vec::new();
        self.jobs.retain(|key, job| {
            let remains = matches!(job.phase, Phase::Running | Phase::Throttling { .. });
            if !remains && job.slot != SlotState::Empty {
                released.push(*key);
            }
            remains
        });
        self.queues.forget_waiting();
        self.waiting.clear();
        self.candidates.clear();
        self.moves.clear();
        self.traces.end_session();
        self.clock.take_waiting();
        self.agenda.end_session(released);
    }

    /// Stops taking jobs. Jobs that are not running stay unacked, and return to their queues when
    /// the broker is closed.
    pub fn stop(&mut self) {
        self.intake.stop();
        self.moves.stop();
    }

    /// Returns true if nothing runs and nothing moves. After [`Scheduler::stop`], the worker may
    /// end then.
    pub fn is_idle(&self) -> bool {
        let reported =
            self.settlement.is_done() && self.breakers.is_empty() && self.notes.is_empty();
        self.busy() == 0 && self.admission.is_idle() && reported
    }

    /// Returns the number of running jobs, of throttles being stored, and of moves.
    fn busy(&self) -> usize {
        self.queues.running() + self.throttles.in_flight() + self.moves.busy()
    }

    /// Returns the number of round trips to the gate so far.
    pub fn asked(&self) -> u64 {
        self.admission.asked()
    }

    /// Returns true if the first `asked` round trips to the gate have ended.
    pub fn is_answered(&self, asked: u64) -> bool {
        self.admission.is_answered(asked)
    }

    /// Returns the number of running jobs.
    pub fn running(&self) -> usize {
        self.queues.running()
    }

    /// Returns the fields of a message from which a job's values are read.
    pub fn fields(&self) -> &Fields {
        &self.settings.fields
    }

    /// Reads the values in the bodies of new deliveries, and takes them.
    pub fn delivered(&mut self, now: Duration, deliveries: Vec<Delivery>) {
        for delivery in deliveries {
            let inside = InBody::read(&delivery.message.body, &self.settings.fields);
            self.delivered_read(now, delivery, &inside);
        }
    }

    /// Does everything that is due, except the next question: see [`Scheduler::ask`].
    pub fn tick(&mut self, now: Duration) {
        while let Some((at, key)) = self.waiting.due(now) {
            self.check_job(now, at, key);
        }
        self.queues.forget_callers(now);
        self.bury_undated(now);
        self.check_moves(now);
        self.lapse(now);
        self.make_room_in_windows(now);
        self.delay_surplus(now);
        self.release_long_held(now);
        self.renew(now);
        self.throttle_again(now);
        for (shard, batch) in self.settlement.send(now) {
            self.agenda.push(Action::Settle(shard, batch));
        }
        if let Some(batch) = self.advertised.send(now) {
            self.agenda.push(Action::Advertised(batch));
        }
        if let Some(batch) = self.lessons.send(now) {
            self.agenda.push(Action::Learn(batch));
        }
        self.check_breaker(now);
        self.fitness.update(now, self.breakers.is_open());
        self.test_fitness(now);
        self.send_notes(now);
        self.send_dedupe_questions(now);
        self.send_sightings(now);
        self.report_open_tenants(now);
        self.facts.extend(self.lessons.check_limits(now));
        self.rest_or_take(now);
    }

    /// Returns when [`Scheduler::tick`] is needed next, if nothing else happens.
    pub fn next_tick(&self, now: Duration) -> Option<Duration> {
        // A stopping worker delays nothing. A tick that is due but does nothing would stay due
        // forever.
        let active = !self.intake.is_stopping();
        let while_active = [
            self.queues.surplus_at(),
            self.queues.callers_end_at(),
            self.waiting.windows.next(now),
            self.breakers.next(now),
            self.fitness.next(),
            self.candidates.send_at(),
            (self.in_memory() > 0).then(|| self.hold_limit.next()),
        ];
        let always = [
            self.waiting.next(),
            self.moves.next(),
            self.wants_to_ask(now).then(|| self.ask_at()),
            self.lapses_at(),
            self.settlement.next(),
            self.notes.send_at(),
            self.steering.next(),
            self.throttles.next(),
            self.closed_tenants.next(),
            self.lessons.next(),
            self.agreement.ends_after(now),
        ];
        let while_active = while_active.into_iter().filter(|_| active);
        let next = while_active.chain(always).flatten().min();
        next.map(|at| at.max(now))
    }

    /// Renews the leases of running jobs.
    fn renew(&mut self, now: Duration) {
        let jobs = &self.jobs;
        self.settlement.renew(now, || {
            // Sorted into the order of arrival, because the map has no stable order, and equal
            // events must have equal results.
            let mut jobs: Vec<_> = jobs.iter().collect();
            jobs.sort_unstable_by_key(|(key, _)| **key);
            let running = jobs
                .into_iter()
                .filter(|(_, job)| job.phase == Phase::Running);
            let started =
                running.filter_map(|(_, job)| Some((&job.claims.tenant, job.started.as_ref()?)));
            started.collect()
        });
    }

    /// Returns all deliveries or takes them again, depending on the agreement and on this worker's
    /// fitness.
    fn rest_or_take(&mut self, now: Duration) {
        if self.intake.is_stopping() || self.intake.awaits_end {
            return;
        }
        let busy = self.busy() > 0 || !self.breakers.is_empty();
        match self.agreement.change(now, busy, self.fitness.wants()) {
            Some(TakingChange::Rest) => {
                let reason = self.agreement.rest_reason(now);
                self.facts.push(BrokerFact::DeliveriesReturned(reason));
                // The broker still has to end this session. Until then, none of the session's jobs
                // may start.
                self.agenda.ack_first();
                let ends = self.intake.has_session();
                self.session_down();
                self.intake.awaits_end = ends;
                self.agenda.push(Action::ReturnDeliveries);
            }
            Some(TakingChange::Take) => self.agenda.push(Action::Take),
            Some(TakingChange::TakeFew) => self.agenda.push(Action::TakeFew),
            None => {}
        }
    }

    /// Returns why this worker can't make calls, or `None` if it can.
    pub fn unfit(&self) -> Option<&str> {
        self.fitness.unfit()
    }

    /// Handles the result of [`Action::Settle`]: wakes jobs that wait for leases of calls that have
    /// ended.
    pub fn settled(
        &mut self,
        now: Duration,
        shard: ShardId,
        result: Result<SettleReplies, GateError>,
    ) {
        let outcome = self.settlement.settle_result(now, shard, result);
        for (tenant, limits, calls) in outcome.ended {
            for key in self.waiting.leases.freed(&tenant, &limits, calls) {
                self.wake(now, key);
            }
        }
        let lost = outcome
            .why
            .map(|why| GateFact::UsageLost(outcome.lost, why));
        self.facts.extend(lost);
    }

    /// Handles the result of [`Action::Await`]: the call has ended, or its lease has expired.
    pub fn abandoned_is_over(&mut self, permit: &str, ended: bool) {
        self.settlement.abandoned_is_over(permit, ended);
    }

    /// Records a finding about a call in flight, which may have ended meanwhile.
    pub fn record_finding(&mut self, now: Duration, key: JobKey, signal: CallSignal) {
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        if let Some(started) = &mut job.started {
            let (tenant, budget) = (&job.claims.tenant, self.settings.live.guard_budget);
            let late = self
                .settlement
                .record_finding(now, tenant, started, signal, budget);
            if let Some(GateFact::LateCall(_, by)) = &late {
                self.pacing.late(*by);
            }
            self.facts.extend(late);
        }
    }
}
