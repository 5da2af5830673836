//! Decides what happens next to every job in the worker's memory. Pure: deliveries, answers, outcomes and
//! the time go in, actions come out; `engine` performs them.
//!
//! A job is in one phase at a time (`Phase`), until it leaves:
//!
//! ```text
//! delivered -> Ready -> Asking -> Running -> done: acked
//!                ^         |         |-> Reporting   a failure is told to the breakers -----> Ready, or leaves
//!                |         |         |-> Blocking    the API closed the tenant, which is told -> Ready, or leaves
//!                |         |         |-> Ready       its permit came too late
//!                |         |         '-> leaves      to try again later, or never
//!                |         |-> Held        a short wait ----------------------------> Ready
//!                |         |-> Parked      it came from a lane, and waits on in its window -> Ready
//!                |         |-> Preparing   there is room, and its call was not prepared -> Ready
//!                |         |-> leaves      a long wait, or never
//!                |         '-> Ready       the gate failed, or no slot was free
//!                |-- Noting     before a suspect asks, the gate is told
//!                '-- Parked     delivered from a lane before its turn
//! ```
//!
//! A job that leaves is published to a lane or to the dead letters, and acked when that is confirmed (`engine::moves`). It is in no
//! phase then.

mod abandoned;
mod answers;
mod asking;
mod expiring;
mod health;
mod late;
mod leaving;
mod preparing;
mod settle;
mod standing;
mod suspects;
mod waiting;

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use tracing::warn;
use ulid::Ulid;

use self::asking::Round;
use self::expiring::StoreClock;
use self::preparing::Hand;
use crate::broker::{Delivery, Message, Outgoing, Source, Tag};
use crate::engine::abandoned::Abandoned;
use crate::engine::action::{Action, Changeable, Key, Settings};
use crate::engine::away::Away;
use crate::engine::blocks::Blocks;
use crate::engine::breakers::Breakers;
use crate::engine::heard::Heard;
use crate::engine::ledger::Ledger;
use crate::engine::moves::Moves;
use crate::engine::notes::Notes;
use crate::engine::old::Old;
use crate::engine::partitions::Partitions;
use crate::engine::places::Places;
use crate::engine::queues::{End, Queues};
use crate::engine::ready::Lead;
use crate::engine::round_size::RoundSize;
use crate::engine::windows::Windows;
use crate::gate::{Partition, Receipt, Ticket};
use crate::metrics::Metrics;
use crate::rules::fleet::Fleet;
use crate::rules::headers;
use crate::rules::job::{self, Claims, Fields, InBody, Job};
use crate::rules::lanes;
use crate::rules::lateness::Lateness;
use crate::rules::limit::Limits;
use crate::rules::retry::Reconnect;
use crate::rules::scope::Labels;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// In the queues, or waiting for the store's clock.
    Ready,
    /// A suspect: before it asks, the gate is told.
    Noting,
    Asking,
    /// There is room for it, and it waits for its call to be prepared.
    Preparing,
    Held {
        until: Duration,
    },
    /// It waits in the window of its lane.
    Parked {
        until: Duration,
    },
    Running,
    /// Its tenant is being closed for so long.
    Blocking {
        duration: Duration,
    },
    /// It failed, and the breakers are being told.
    Reporting,
}

#[derive(Debug)]
struct Entry {
    tag: Tag,
    /// When it arrived.
    since: Duration,
    claims: Claims,
    message: Message,
    /// Its id is that of each delivery.
    has_own_id: bool,
    phase: Phase,
    /// It came from a lane, and may wait for its turn in the lane's window until then.
    stays: Option<Duration>,
    hand: Hand,
    /// `None`: it has not started, or that is settled.
    started: Option<Started>,
}

impl Entry {
    /// The job, for the handler.
    fn job(&self) -> Job {
        Job {
            id: self.message.id().unwrap_or_default().to_owned(),
            tenant: self.claims.tenant.clone(),
            cost: self.claims.cost,
            attempt: self.claims.attempt,
            content_type: self.message.content_type().map(str::to_owned),
            content_encoding: self.message.content_encoding().map(str::to_owned),
            body: self.message.body.clone(),
        }
    }

    /// Its permit was not used. As a fresh job it would ask behind all that wait by now, and they are away: its room would be idle.
    fn had_its_turn(&mut self) {
        self.claims.ticket.get_or_insert(Ticket::HAD_ITS_TURN);
    }
}

/// What a job started with.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) labels: Labels,
    pub(super) limits: Limits,
    pub(super) receipt: Receipt,
    /// When its question was sent.
    pub(super) asked_at: Duration,
    /// Beyond the guard, so much lateness is covered by what the gate was told.
    pub(super) covered: Duration,
}

/// The worker's memory, and what to do with it.
pub struct Scheduler {
    settings: Settings,
    /// What is enforced: the own policy and those of other workers.
    fleet: Fleet,
    /// Until when the gate may be asked; `None`: this worker has to agree with nobody.
    agreed_until: Option<Duration>,
    /// Deliveries are wanted.
    taking: bool,
    metrics: Arc<Metrics>,
    random: SmallRng,
    session: u64,
    next_key: u64,
    entries: HashMap<Key, Entry>,
    partitions: Partitions,
    queues: Queues,
    moves: Moves,
    windows: Windows,
    timers: BinaryHeap<Reverse<(Duration, Key)>>,
    /// Jobs whose times are the store's, while its clock is not known yet.
    unclocked: Vec<(Key, End)>,
    /// When it was last logged that jobs leave lanes by themselves.
    early_said: Option<Duration>,
    /// When it was last logged that the clock can't be read.
    clock_said: Option<Duration>,
    blocking: usize,
    unheard: Blocks,
    ledger: Ledger,
    abandoned: Abandoned,
    places: Places,
    heard: Heard,
    away: Away,
    breakers: Breakers,
    notes: Notes,
    /// When jobs that wait for the API's breaker in memory are next looked over.
    next_let_go: Duration,
    /// At most one question for each partition.
    asking: BTreeMap<Partition, Round>,
    /// How many there were.
    asked: u64,
    last_ask: Option<Duration>,
    round_size: RoundSize,
    gate_pause: Option<Duration>,
    gate_backoff: Reconnect,
    /// What a call of the handler takes, on average lately.
    usual_run: Duration,
    /// How long before their turns calls are prepared.
    lead: Lead,
    /// What a question and its answer take at least.
    base: Duration,
    old: Old,
    lateness: Lateness,
    next_surplus: Duration,
    clock: Option<StoreClock>,
    draining: bool,
    actions: Vec<Action>,
    /// Jobs whose prepared calls are not needed.
    released: Vec<Key>,
    outbox: Vec<(Key, Outgoing)>,
    acks: Vec<Tag>,
}

impl Scheduler {
    /// An empty memory. `seed` makes its jitter repeatable.
    pub fn new(settings: Settings, metrics: Arc<Metrics>, seed: u64) -> Self {
        let lanes = settings.names.lanes();
        let window = lanes::window(settings.prefetch, settings.concurrency);
        let windows = Windows::new(lanes.len(), window);
        Self {
            queues: Queues::new(settings.concurrency, settings.prefetch),
            partitions: Partitions::default(),
            fleet: Fleet::alone(Arc::new(settings.policy.clone())),
            agreed_until: None,
            taking: true,
            breakers: Breakers::new(settings.breaker),
            next_let_go: Duration::ZERO,
            settings,
            metrics,
            random: SmallRng::seed_from_u64(seed),
            session: 0,
            next_key: 0,
            entries: HashMap::new(),
            moves: Moves::default(),
            windows,
            timers: BinaryHeap::new(),
            unclocked: Vec::new(),
            early_said: None,
            clock_said: None,
            blocking: 0,
            unheard: Blocks::default(),
            ledger: Ledger::new(seed),
            notes: Notes::new(seed),
            abandoned: Abandoned::default(),
            places: Places::default(),
            heard: Heard::default(),
            away: Away::default(),
            asking: BTreeMap::new(),
            asked: 0,
            last_ask: None,
            round_size: RoundSize::default(),
            gate_pause: None,
            gate_backoff: Reconnect::default(),
            usual_run: Duration::ZERO,
            lead: Lead::default(),
            base: Duration::ZERO,
            old: Old::default(),
            lateness: Lateness::default(),
            next_surplus: Duration::ZERO,
            clock: None,
            draining: false,
            actions: Vec::new(),
            released: Vec::new(),
            outbox: Vec::new(),
            acks: Vec::new(),
        }
    }

    /// Tenants of different partitions do not wait for each other's answers. To be said before there are jobs.
    pub fn partition(&mut self, partitions: Partitions) {
        self.queues.partition(partitions.clone());
        self.ledger.partition(partitions.clone());
        self.notes.partition(partitions.clone());
        self.partitions = partitions;
    }

    /// Asks the gate only after an [`Scheduler::agreed`].
    pub fn must_agree(self) -> Self {
        Self {
            agreed_until: Some(Duration::ZERO),
            ..self
        }
    }

    /// An exchange with the other workers: this is in force (`None`: what was), and the gate may be asked until then.
    pub fn agreed(&mut self, fleet: Option<Fleet>, until: Duration) {
        if let Some(fleet) = fleet {
            self.fleet = fleet;
        }
        self.agreed_until = Some(until);
    }

    /// What a question and its answer take at least ([`Gate::base`](crate::gate::Gate::base)).
    pub fn set_base(&mut self, base: Duration) {
        self.base = base;
        self.metrics.set_gate_base(base);
    }

    /// The configuration has changed.
    pub fn change(&mut self, changed: Changeable) {
        let Changeable {
            concurrency,
            hold,
            retry,
            max_penalty,
            guard_budget,
        } = changed;
        self.queues.set_concurrency(concurrency);
        self.settings = Settings {
            concurrency,
            hold,
            retry,
            max_penalty,
            guard_budget,
            ..self.settings.clone()
        };
    }

    /// What is to be done now.
    pub fn take_actions(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        // First: another job may need what they had.
        if !self.released.is_empty() {
            actions.push(Action::Release(std::mem::take(&mut self.released)));
        }
        actions.append(&mut self.actions);
        if !self.outbox.is_empty() {
            actions.push(Action::Publish(std::mem::take(&mut self.outbox)));
        }
        if !self.acks.is_empty() {
            actions.push(Action::Ack(std::mem::take(&mut self.acks)));
        }
        actions
    }

    /// A new session: what it delivers is ours until it ends.
    pub fn session_up(&mut self, session: u64) {
        self.session_down();
        self.session = session;
    }

    /// The session is gone: the broker delivers everything unacked again, so all of it is forgotten here,
    /// but for what runs, which can't be recalled.
    pub fn session_down(&mut self) {
        self.session = 0;
        self.breakers.not_started();
        let (entries, released) = (&mut self.entries, &mut self.released);
        entries.retain(|key, entry| {
            let stays = matches!(entry.phase, Phase::Running | Phase::Blocking { .. });
            if !stays && entry.hand != Hand::Empty {
                released.push(*key);
            }
            stays
        });
        // In the order of arrival, not the map's.
        released.sort_unstable();
        self.queues.forget_waiting();
        self.places.clear();
        self.moves.clear();
        self.windows.clear();
        self.timers.clear();
        self.unclocked.clear();
        self.outbox.clear();
        self.acks.clear();
    }

    /// Takes no more jobs: what is not running is left unacked and goes back when the broker is closed.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Nothing runs and nothing moves: after [`Scheduler::drain`], the worker may end.
    pub fn is_idle(&self) -> bool {
        let busy = self.queues.running() + self.blocking + self.moves.len();
        let told = self.ledger.is_empty() && self.breakers.is_empty() && self.notes.is_empty();
        busy == 0 && self.asking.is_empty() && told
    }

    /// How many questions the gate was asked.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// The gate has answered the first so many questions.
    pub fn is_answered(&self, asked: u64) -> bool {
        self.asking.values().all(|round| round.number > asked)
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

    /// New deliveries, and what their bodies say.
    pub fn delivered_read(&mut self, now: Duration, deliveries: Vec<(Delivery, InBody)>) {
        for (delivery, inside) in deliveries {
            if delivery.tag.session != self.session || self.draining {
                continue;
            }
            self.metrics.delivered(delivery.source);
            self.next_key += 1;
            let key = Key(self.next_key);
            let tag = delivery.tag;
            let mut message = delivery.message;
            let has_own_id = message.id().is_some();
            if !has_own_id {
                message = message.with_id_if_missing(&Ulid::new().to_string());
            }
            let returned = delivery.source != Source::Fresh;
            if returned {
                let work = &self.settings.names.fresh;
                message.routing_key = job::first_routing_key(&message, work).to_owned();
                message = message.with_priority_back();
            }
            let fields = &self.settings.fields;
            match job::read_with(&message, &inside, returned, fields, self.fleet.own()) {
                Ok(mut claims) => {
                    let phase = Phase::Ready;
                    if delivery.redelivered && self.settings.retry.max_crashes > 0 {
                        claims.suspect.get_or_insert_default();
                    }
                    if claims.trip.is_some() && delivery.source == Source::Due {
                        self.say_early(now);
                    }
                    if let Source::Lane(lane) = delivery.source {
                        self.windows.took(usize::from(lane), key);
                    }
                    self.entries.insert(
                        key,
                        Entry {
                            tag,
                            since: now,
                            claims,
                            message,
                            has_own_id,
                            phase,
                            stays: None,
                            hand: Hand::Empty,
                            started: None,
                        },
                    );
                    self.arrange(now, key, if returned { End::Due } else { End::Fresh });
                }
                Err(why) => {
                    let id = message.id().unwrap_or_default();
                    warn!(job.id = id, reason = %why, "message is no usable job: dead letter");
                    self.metrics.dead("bad-message");
                    let dead = self.settings.names.dead.clone();
                    self.move_to(key, tag, message, dead, headers::dead(1, &why.to_string()));
                }
            }
        }
    }

    /// Everything whose time has come, but for the next question: see [`Scheduler::ask`].
    pub fn tick(&mut self, now: Duration) {
        while let Some(&Reverse((at, key))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            self.outbox.extend(self.moves.again(at, key));
            let phase = self.entries.get(&key).map(|entry| entry.phase);
            if let Some(Phase::Held { until } | Phase::Parked { until }) = phase {
                match until.cmp(&at) {
                    Ordering::Equal => self.wake(now, key),
                    Ordering::Greater => self.prepare_early(now, key),
                    Ordering::Less => {}
                }
            }
        }
        self.lapse(now);
        self.make_room_in_lanes(now);
        self.send_surplus_round(now);
        self.renew(now);
        for block in self.unheard.due(now) {
            self.block(now, block);
        }
        for (partition, batch) in self.ledger.send(now) {
            self.actions.push(Action::Settle(partition, batch));
        }
        self.actions
            .extend(self.heard.send().map(Action::Advertised));
        self.look_at_breaker(now);
        self.tell_notes(now);
        self.rest_or_take(now);
        let in_memory = self.entries.len() + self.moves.len();
        let held = self.queues.held() + self.windows.parked();
        self.metrics.show(self.queues.running(), held, in_memory);
        self.metrics.show_abandoned(self.abandoned.len());
    }

    /// When [`Scheduler::tick`] is needed next, if nothing else happens.
    pub fn next_tick(&self, now: Duration) -> Option<Duration> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let ask = self.wants_to_ask(now).then(|| self.ask_allowed_at());
        // A draining worker sends nothing round: a tick that is due and does nothing would be due for ever.
        let surplus = !self.draining && self.queues.has_surplus();
        let surplus = surplus.then_some(self.next_surplus);
        let room = self.windows.next(now).filter(|_| !self.draining);
        timer
            .into_iter()
            .chain(self.breaker_tick(now))
            .chain(ask)
            .chain(self.lapses_at())
            .chain(self.ledger.send_at())
            .chain(self.ledger.renew_at())
            .chain(self.notes.send_at())
            .chain(self.unheard.next())
            .chain(surplus)
            .chain(self.stands_still_at(now))
            .chain(room)
            .min()
            .map(|at| at.max(now))
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}
