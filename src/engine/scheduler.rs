//! Decides what happens next to every job in the worker's memory. Pure: deliveries, answers, outcomes and the time go in; actions,
//! and facts that happened, come out. `engine` performs, logs and counts them.
//!
//! `way` is the way of a job from its delivery to its ack, from top to bottom. A job is in one phase at a time (`entry::Phase`), until
//! it leaves:
//!
//! ```text
//! delivered -> Ready -> Asking -> Running -> done: acked
//!                ^         |         |-> Reporting   it failed, which the breakers are told --> Ready, or leaves
//!                |         |         |-> Throttling  it was throttled, which the gate is told -> Ready, or leaves
//!                |         |         |-> Ready       its permit came too late
//!                |         |         '-> leaves      to try again later, or never
//!                |         |-> Delayed     a short wait, in memory -------------------> Ready
//!                |         |-> InWindow    it waits on in its delay queue's window ---> Ready
//!                |         |-> Preparing   there is room, and its call was not prepared -> Ready
//!                |         |-> leaves      a long wait, or never
//!                |         '-> Ready       the gate failed, or no slot was free
//!                |-- Candidate   it has a dedupe key: the gate is asked whether it is the first
//!                |-- Noting     before a suspect asks, the gate is told
//!                |-- Delayed    its time has not come
//!                '-- InWindow   delivered from a delay queue before its turn
//! ```
//!
//! A job that leaves is published to a delay queue or to the dead letters, and acked when that is confirmed (`moves`). It is in no
//! phase then.
//!
//! The scheduler is put together of parts that have their own state and do not know each other: `intake`, `agreement`,
//! `clock`, `queues`, `delays::waiting`, `admission`, `settlement`, `answers::throttles`, `answers::advertised`, `answers::lessons`, `breakers`, `away`,
//! `notes`, `candidates`, `moves` and `agenda`.
//! The other files say what happens to jobs by them.

mod abandoned;
mod admission;
mod agenda;
mod agreement;
mod answers;
mod asking;
mod away;
mod breakers;
mod budget;
mod candidates;
mod census;
mod clock;
mod closing;
mod deduping;
mod delays;
mod doors;
mod entry;
mod expiring;
mod failing;
mod fitness;
mod held;
mod intake;
mod invalid;
mod ledger;
mod moves;
mod notes;
mod old;
mod plan;
mod preparing;
mod questions;
mod queues;
mod results;
mod round_size;
mod seldom;
mod settlement;
mod spans;
mod starting;
mod steering;
mod stuck;
mod suspects;
mod tenants;
mod traced;
mod undecided;
mod waking;
mod way;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use self::admission::Admission;
use self::agenda::Agenda;
use self::agreement::{Agreement, Change};
use self::answers::{Advertised, Lessons, Throttles};
use self::away::Away;
use self::breakers::Breakers;
use self::candidates::Candidates;
use self::census::Suspended;
use self::clock::StoreClock;
use self::delays::Waiting;
use self::doors::Doors;
use self::entry::{Hand, JobEntry, Phase};
use self::fitness::Fitness;
use self::held::Held;
use self::intake::Intake;
use self::moves::Moves;
use self::notes::Notes;
use self::queues::Queues;
use self::results::LostResults;
use self::seldom::Seldom;
use self::settlement::Settlement;
use self::spans::Traces;
use self::steering::Steered;
use self::tenants::Tallies;
use crate::broker::{Delivery, MessageKind};
use crate::engine::action::{Action, Changeable, Key, ResultsTo, Settings};
use crate::engine::facts::{Fact, Gauges};
use crate::engine::shards::Shards;
use crate::gate::fleet::Fleet;
use crate::gate::{GateError, SettleReplies, ShardId};
use crate::rules::delays::delivery_window;
use crate::rules::job::{Fields, InBody};
use crate::rules::lateness::Heard;
use crate::rules::pacing::Pacing;
use crate::rules::refusals::Refusals;

/// The worker's memory, and what to do with it.
pub struct Scheduler {
    settings: Settings,
    random: SmallRng,
    /// The jobs, until they leave.
    jobs: HashMap<Key, JobEntry, RandomState>,
    /// The session, and what it delivers.
    intake: Intake,
    /// What is enforced, and until when.
    agreement: Agreement,
    /// The store's clock.
    clock: StoreClock,
    /// The jobs that may ask, by tenant, and the slots of the concurrency.
    queues: Queues,
    /// The jobs that wait in memory.
    waiting: Waiting,
    /// The limit on how long jobs are held unacked.
    held: Held,
    /// The questions to the gate.
    admission: Admission,
    /// What the gate is to be told of starts.
    settlement: Settlement,
    /// What the gate is to be told of whom the API throttles.
    throttles: Throttles,
    /// What the gate is to be told of the limits that the API advertises.
    advertised: Advertised,
    /// What limits that learn are to be told.
    lessons: Lessons,
    /// The margins between starts of buckets.
    pacing: Pacing,
    /// Refused calls that show that an API counts differently.
    refusals: Refusals,
    /// What the gate is to be told of calls that failed.
    breakers: Breakers,
    /// Whether this worker can make calls.
    fitness: Fitness,
    /// The last report that this worker lacks a resource.
    short: Seldom,
    /// What the gate is to be told of suspects' calls.
    notes: Notes,
    /// Who is to ask whether it is the first with its dedupe key.
    candidates: Candidates,
    /// The tenants for which it can't decide.
    away: Away,
    /// The tenants that are suspended, for metrics.
    suspended: Suspended,
    /// The tenants that are closed, for the log.
    doors: Doors,
    /// The spans of jobs.
    traces: Traces,
    /// What happened to the jobs of each tenant.
    tallies: Tallies,
    /// What operators ask, and what they are to be told.
    steered: Steered,
    /// The messages on their way to other queues.
    moves: Moves,
    /// The results that nobody got.
    lost_results: LostResults,
    /// The last report of stuck targets of each kind.
    stuck_told: [Seldom; MessageKind::NAMES.len()],
    /// What is to be done.
    agenda: Agenda,
    /// What has happened.
    facts: Vec<Fact>,
}

impl Scheduler {
    /// An empty memory. `seed` makes its jitter repeatable.
    pub fn new(settings: Settings, seed: u64) -> Self {
        let delays = settings.names.delays();
        let window = delivery_window(settings.prefetch, settings.live.concurrency);
        Self {
            random: SmallRng::seed_from_u64(seed),
            jobs: HashMap::default(),
            intake: Intake::default(),
            agreement: Agreement::alone(settings.policy.clone()),
            clock: StoreClock::default(),
            queues: Queues::new(settings.live.concurrency, settings.prefetch),
            waiting: Waiting::new(delays.len(), window),
            held: Held::new(settings.holding),
            admission: Admission::default(),
            settlement: Settlement::new(seed),
            throttles: Throttles::default(),
            advertised: Advertised::default(),
            lessons: Lessons::default(),
            pacing: Pacing::default(),
            refusals: Refusals::default(),
            breakers: Breakers::new(settings.breaker),
            fitness: Fitness::new(settings.breaker),
            short: Seldom::default(),
            notes: Notes::new(seed),
            candidates: Candidates::new(seed),
            away: Away::default(),
            suspended: Suspended::default(),
            doors: Doors::default(),
            traces: Traces::new(seed),
            tallies: Tallies::default(),
            steered: Steered::default(),
            moves: Moves::new(
                settings.prefetch,
                Arc::clone(&settings.names.dead),
                (settings.results.as_ref()).is_some_and(|it| it.to == ResultsTo::ReplyTo),
            ),
            lost_results: LostResults::default(),
            stuck_told: Default::default(),
            agenda: Agenda::default(),
            facts: Vec::new(),
            settings,
        }
    }

    /// Tenants of different shards do not wait for each other's answers. To be said before there are jobs.
    pub fn shard_by(&mut self, shards: Shards) {
        self.queues.shard_by(shards.clone());
        self.settlement.shard_by(shards.clone());
        self.notes.shard_by(shards.clone());
        self.candidates.shard_by(shards);
    }

    /// Asks the gate only after an [`Scheduler::agreed`].
    pub fn must_agree(mut self) -> Self {
        self.agreement.is_needed();
        self
    }

    /// An exchange with the other workers: this is in force (`None`: what was), and the gate may be asked until then.
    pub fn agreed(&mut self, fleet: Option<Fleet>, until: Duration) {
        self.agreement.renew(fleet, until);
        // A pause of some seconds may remain from an outage.
        self.admission.ends_pause();
    }

    /// Jobs may start, as far as the other workers are concerned.
    pub fn is_agreed(&self, now: Duration) -> bool {
        self.agreement.stands(now)
    }

    /// What a question and its answer take at least ([`Gate::base`](crate::gate::Gate::base)).
    pub fn set_base(&mut self, base: Duration) {
        self.admission.set_base(base);
    }

    /// The configuration has changed.
    pub fn change(&mut self, changed: Changeable) {
        self.queues.set_concurrency(changed.concurrency);
        self.settings.live = changed;
    }

    /// What is to be done now.
    pub fn take_actions(&mut self) -> Vec<Action> {
        self.agenda.take()
    }

    /// What has happened since this was asked last.
    pub fn take_facts(&mut self) -> Vec<Fact> {
        std::mem::take(&mut self.facts)
    }

    /// How things stand.
    pub fn gauges(&self) -> Gauges {
        Gauges {
            running: self.queues.running(),
            slots: self.queues.slots(),
            all_slots: self.settings.live.concurrency,
            held: self.queues.held() + self.waiting.in_windows(),
            in_memory: self.in_memory(),
            abandoned: self.settlement.abandoned(),
            breaker_is_open: self.breakers.is_open(),
            way_base: self.settlement.way_base(),
        }
    }

    /// Returns the number of messages waiting for stuck targets by kind, in the order of [`MessageKind::NAMES`].
    pub fn stuck(&self, now: Duration) -> [usize; MessageKind::NAMES.len()] {
        let all = self.moves.standstills(now, stuck::STUCK_AFTER);
        all.map(|it| it.map_or(0, |it| it.messages))
    }

    /// Unacked jobs in memory.
    pub fn in_memory(&self) -> usize {
        self.jobs.len() + self.moves.len() + self.intake.undated()
    }

    /// A new session: what it delivers is ours until it ends.
    pub fn session_up(&mut self, session: u64) {
        self.session_down();
        self.intake.begin_session(session);
    }

    /// The session is gone: the broker delivers everything unacked again, so all of it is forgotten here,
    /// but for what runs, which can't be recalled.
    pub fn session_down(&mut self) {
        self.intake.end_session();
        self.breakers.not_started();
        let mut released = Vec::new();
        self.jobs.retain(|key, job| {
            let stays = matches!(job.phase, Phase::Running | Phase::Throttling { .. });
            if !stays && job.hand != Hand::Empty {
                released.push(*key);
            }
            stays
        });
        self.queues.forget_waiting();
        self.waiting.clear();
        self.candidates.clear();
        self.moves.clear();
        self.traces.end_session();
        self.clock.take_waiting();
        self.agenda.end_session(released);
    }

    /// Takes no more jobs: what is not running is left unacked and goes back when the broker is closed.
    pub fn drain(&mut self) {
        self.intake.drain();
        self.moves.drain();
    }

    /// Nothing runs and nothing moves: after [`Scheduler::drain`], the worker may end.
    pub fn is_idle(&self) -> bool {
        let told = self.settlement.is_done() && self.breakers.is_empty() && self.notes.is_empty();
        self.busy() == 0 && self.admission.is_idle() && told
    }

    /// What runs, or moves.
    fn busy(&self) -> usize {
        self.queues.running() + self.throttles.under_way() + self.moves.busy()
    }

    /// How many questions the gate was asked.
    pub fn asked(&self) -> u64 {
        self.admission.asked()
    }

    /// The gate has answered the first so many questions.
    pub fn is_answered(&self, asked: u64) -> bool {
        self.admission.is_answered(asked)
    }

    /// How many jobs run.
    pub fn running(&self) -> usize {
        self.queues.running()
    }

    /// Where a message says what a job needs.
    pub fn fields(&self) -> &Fields {
        &self.settings.fields
    }

    /// New deliveries.
    pub fn delivered(&mut self, now: Duration, deliveries: Vec<Delivery>) {
        let read = |delivery: Delivery| {
            let inside = InBody::read(&delivery.message.body, &self.settings.fields);
            (delivery, inside)
        };
        let read = deliveries.into_iter().map(read).collect();
        self.delivered_read(now, read);
    }

    /// Everything whose time has come, but for the next question: see [`Scheduler::ask`].
    pub fn tick(&mut self, now: Duration) {
        while let Some((at, key)) = self.waiting.due(now) {
            self.look_at(now, at, key);
        }
        self.bury_undated(now);
        self.look_at_moves(now);
        self.lapse(now);
        self.make_room_in_windows(now);
        self.delay_surplus(now);
        self.let_old_go(now);
        self.renew(now);
        self.throttle_again(now);
        for (shard, batch) in self.settlement.send(now) {
            self.agenda.push(Action::Settle(shard, batch));
        }
        if let Some(batch) = self.advertised.send() {
            self.agenda.push(Action::Advertised(batch));
        }
        if let Some(batch) = self.lessons.send() {
            self.agenda.push(Action::Learn(batch));
        }
        self.look_at_breaker(now);
        self.fitness.look(now, self.breakers.is_open());
        self.tell_notes(now);
        self.ask_who_is_first(now);
        self.tell_sightings(now);
        self.look_at_doors(now);
        self.facts.extend(self.lessons.look(now));
        self.rest_or_take(now);
    }

    /// When [`Scheduler::tick`] is needed next, if nothing else happens.
    pub fn next_tick(&self, now: Duration) -> Option<Duration> {
        // A draining worker delays nothing: a tick that is due and does nothing would be due for ever.
        let active = !self.intake.is_draining();
        let while_active = [
            self.queues.surplus_at(),
            self.waiting.surplus_at(now),
            self.breakers.next(now),
            self.fitness.next(),
            self.candidates.send_at(),
            (!self.jobs.is_empty()).then(|| self.held.next()),
        ];
        let always = [
            self.waiting.next(),
            self.moves.next(),
            self.wants_to_ask(now).then(|| self.ask_at()),
            self.lapses_at(),
            self.settlement.next(),
            self.notes.send_at(),
            self.steered.next(),
            self.throttles.next(),
            self.doors.next(),
            self.lessons.next(),
            self.agreement.ends_after(now),
        ];
        let while_active = while_active.into_iter().filter(|_| active);
        let next = while_active.chain(always).flatten().min();
        next.map(|at| at.max(now))
    }

    /// Leases that running jobs hold are kept.
    fn renew(&mut self, now: Duration) {
        let jobs = &self.jobs;
        self.settlement.renew(now, || {
            // In the order of arrival, not the map's: the same events say the same.
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

    /// Gives deliveries back or takes them again, as the agreement and this worker's fitness demand.
    fn rest_or_take(&mut self, now: Duration) {
        if self.intake.is_draining() || self.intake.awaits_end {
            return;
        }
        let busy = self.busy() > 0 || !self.breakers.is_empty();
        match self.agreement.change(now, busy, self.fitness.wants()) {
            Some(Change::Rest) => {
                self.facts.push(Fact::Rests);
                // No job of this session may start any more, until the broker has ended it, too.
                self.agenda.ack_first();
                let ends = self.intake.has_session();
                self.session_down();
                self.intake.awaits_end = ends;
                self.agenda.push(Action::Rest);
            }
            Some(Change::Take) => self.agenda.push(Action::Take),
            Some(Change::TakeFew) => self.agenda.push(Action::TakeFew),
            None => {}
        }
    }

    /// Returns why this worker can't make calls, or `None` if it can.
    pub fn unfit(&self) -> Option<&str> {
        self.fitness.unfit()
    }

    /// What [`Action::Settle`] came to: jobs that wait for leases of calls that have ended are woken.
    pub fn settled(
        &mut self,
        now: Duration,
        shard: ShardId,
        result: Result<SettleReplies, GateError>,
    ) {
        let told = self.settlement.told(now, shard, result);
        for (tenant, limits, calls) in told.ended {
            for key in self.waiting.woken_by(&tenant, &limits, calls) {
                self.wake(now, key);
            }
        }
        let lost = told.why.map(|why| Fact::UsageLost(told.lost, why));
        self.facts.extend(lost);
    }

    /// What [`Action::Await`] came to: the call has ended, or its time is over.
    pub fn abandoned_is_over(&mut self, permit: &str, ended: bool) {
        self.settlement.abandoned_is_over(permit, ended);
    }

    /// What was heard of a call on its way, which may have ended meanwhile.
    pub fn heard_of(&mut self, now: Duration, key: Key, heard: Heard) {
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        if let Some(started) = &mut job.started {
            let (tenant, budget) = (&job.claims.tenant, self.settings.live.guard_budget);
            let late = self
                .settlement
                .heard_of(now, tenant, started, heard, budget);
            if let Some(Fact::LateCall(_, by)) = &late {
                self.pacing.late(*by);
            }
            self.facts.extend(late);
        }
    }
}

/// In whole milliseconds, rounded down.
pub(super) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}
