//! State that the parts of a simulation share: the plan, the random numbers, the history, the
//! server, and the living workers.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use broker::forwarding::PendingEnds;
use broker::memory::MemoryBroker;
use engine::Stop;
use gate::{Note, SuspectNote};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use simulator::environment::Environment;
pub use simulator::environment::micros;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::closing::KnownClosings;
use super::history::{Detail, History};
use super::later::Outage;
use super::plan::{Plan, Trouble, ms};
use super::steering::Steered;

pub struct World {
    pub plan: Plan,
    /// The broker, the gate, and their time.
    stage: Environment,
    pub gate_down_until: Mutex<Instant>,
    pub finish: CancellationToken,
    pub lives: Mutex<Vec<Option<Arc<Life>>>>,
    pub outages: Mutex<Vec<Outage>>,
    pub steered: Steered,
    random: Mutex<SmallRng>,
    history: Mutex<History>,
}

impl Deref for World {
    type Target = Environment;

    fn deref(&self) -> &Environment {
        &self.stage
    }
}

impl World {
    pub fn new(plan: Plan, stage: Environment, detail: Detail) -> Self {
        Self {
            stage,
            gate_down_until: Mutex::new(Instant::now()),
            finish: CancellationToken::new(),
            lives: Mutex::new(vec![None; plan.workers]),
            outages: Mutex::default(),
            steered: Steered::default(),
            random: Mutex::new(SmallRng::seed_from_u64(!plan.seed)),
            history: Mutex::new(History::new(detail)),
            plan,
        }
    }

    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("no panic")
    }

    pub fn note(&self, what: fmt::Arguments<'_>) {
        self.history().note(what);
    }

    /// Records a deliberate fault.
    pub fn fault(&self, what: fmt::Arguments<'_>) {
        self.note(format_args!("fault: {what}"));
    }

    /// Waits about as long as `every`. Returns false if there are no more faults, which is always
    /// so if `every` is zero.
    pub async fn trouble_comes(&self, every: Duration) -> bool {
        if every.is_zero() {
            return false;
        }
        sleep(self.up_to(2 * micros(every) / 1000) + ms(1)).await;
        self.troubled()
    }

    pub fn troubled(&self) -> bool {
        let history = self.history();
        // A lost session copies a whole batch. If copies produce further copies, there has been
        // enough trouble.
        let bred = history.events > 200 * self.plan.jobs.len() as u64 + 2000;
        let over = history.faults >= self.plan.max_faults || bred;
        !over && self.began.elapsed() < self.plan.trouble_until
    }

    /// Reports whether a fault of this rate happens now, and counts it.
    pub fn dice(&self, rate: impl Fn(&Trouble) -> f64) -> bool {
        let happens = self.chance(rate);
        if happens {
            self.history().faults += 1;
        }
        happens
    }

    /// Like [`Self::dice`], for harmless events.
    pub fn chance(&self, rate: impl Fn(&Trouble) -> f64) -> bool {
        let rate = rate(&self.plan.trouble);
        rate > 0.0 && self.troubled() && self.random().random_bool(rate)
    }

    /// Returns a random time from 0 to `most_ms`.
    pub fn up_to(&self, most_ms: u64) -> Duration {
        if most_ms == 0 {
            return Duration::ZERO;
        }
        ms(self.random().random_range(0..=most_ms))
    }

    pub fn below(&self, end: usize) -> usize {
        self.random().random_range(0..end)
    }

    fn random(&self) -> MutexGuard<'_, SmallRng> {
        self.random.lock().expect("no panic")
    }
}

/// One run of a worker, from start to end.
pub struct Life {
    pub name: String,
    pub world: Arc<World>,
    pub broker: MemoryBroker,
    pub stop: Stop,
    pub killed: CancellationToken,
    /// Calls that wait for reports of other workers.
    pub ends: PendingEnds,
    frozen_until: Mutex<Instant>,
    asks: Mutex<Asks>,
    closings: Mutex<KnownClosings>,
    /// Suspects whose last note ended a call.
    ended: Mutex<BTreeSet<String>>,
}

/// A worker's open questions, and until when it may ask.
struct Asks {
    until: Instant,
    last: u64,
    open: BTreeSet<u64>,
}

impl Life {
    pub fn new(name: String, world: Arc<World>, broker: MemoryBroker) -> Self {
        Self {
            name,
            world,
            broker,
            stop: Stop::default(),
            killed: CancellationToken::new(),
            ends: PendingEnds::default(),
            frozen_until: Mutex::new(Instant::now()),
            asks: Mutex::new(Asks {
                until: Instant::now(),
                last: 0,
                open: BTreeSet::new(),
            }),
            closings: Mutex::default(),
            ended: Mutex::default(),
        }
    }

    /// Records the notes that the worker sends.
    pub fn notes(&self, batch: &[SuspectNote]) {
        let mut ended = self.ended.lock().expect("no panic");
        for SuspectNote { job, note, .. } in batch {
            match note {
                Note::Begin { .. } => drop(ended.remove(job)),
                Note::Renew => {}
                Note::End { .. } => drop(ended.insert(job.clone())),
            }
        }
    }

    /// Reports whether the worker's last note on the job ended a call.
    pub fn has_ended(&self, id: &str) -> bool {
        let ended = self.ended.lock().expect("no panic");
        ended.contains(id)
    }

    fn asks(&self) -> MutexGuard<'_, Asks> {
        self.asks.lock().expect("no panic")
    }

    /// Returns the closings of all tenants that the worker knows.
    pub fn closings(&self) -> MutexGuard<'_, KnownClosings> {
        self.closings.lock().expect("no panic")
    }

    /// Lets the worker ask until then. Returns the number of its last question.
    pub fn agreed(&self, until: Instant) -> u64 {
        let mut asks = self.asks();
        asks.until = until;
        asks.last
    }

    /// Records a question. Returns its number, and whether the worker may ask.
    pub fn asks_now(&self) -> (u64, bool) {
        let mut asks = self.asks();
        asks.last += 1;
        let number = asks.last;
        asks.open.insert(number);
        let may = !self.world.plan.agreed || Instant::now() < asks.until;
        (number, may)
    }

    /// Records the answer to a question.
    pub fn answered(&self, number: u64) {
        self.asks().open.remove(&number);
    }

    /// Reports whether a question up to `number` has no answer yet.
    pub fn asks_up_to(&self, number: u64) -> bool {
        self.asks().open.iter().any(|open| *open <= number)
    }

    /// Injects a fault, perhaps. There is such a point before and after every await of a server or
    /// the handler.
    pub async fn point(&self, place: &str) {
        let world = &self.world;
        let name = &self.name;
        if world.dice(|t| t.kill) {
            world.fault(format_args!("{name} is killed at {place}"));
            self.killed.cancel();
            std::future::pending::<()>().await;
        }
        if world.dice(|t| t.freeze) {
            self.freeze(world.up_to(30_000), place);
        }
        if world.dice(|t| t.cut) {
            self.cut(place);
        }
        if world.dice(|t| t.soft_stop) {
            world.fault(format_args!("{name} is to stop at {place}"));
            self.stop.soft.cancel();
        }
        if world.dice(|t| t.hard_stop) {
            world.fault(format_args!("{name} is to end at {place}"));
            self.stop.hard.cancel();
        }
        if world.chance(|t| t.pause) {
            // Other tasks run in between, at the same moment or later.
            for _ in 0..world.below(4) {
                tokio::task::yield_now().await;
            }
            sleep(world.up_to(20)).await;
        }
        self.thaw().await;
    }

    pub fn cut(&self, place: &str) {
        let outage = match self.world.below(3) {
            0 => self.world.up_to(10_000),
            _ => Duration::ZERO,
        };
        let name = &self.name;
        self.world.fault(format_args!(
            "{name} loses its session at {place} for {outage:?}"
        ));
        self.broker.kill_session_for(outage);
    }

    pub fn freeze(&self, duration: Duration, place: &str) {
        let name = &self.name;
        self.world.fault(format_args!(
            "{name} stands still at {place} for {duration:?}"
        ));
        let mut until = self.frozen_until.lock().expect("no panic");
        *until = (*until).max(Instant::now() + duration);
    }

    pub fn frozen_until(&self) -> Option<Instant> {
        let until = *self.frozen_until.lock().expect("no panic");
        (until > Instant::now()).then_some(until)
    }

    /// Returns when it last resumed after standing still.
    pub fn last_thawed(&self) -> Instant {
        *self.frozen_until.lock().expect("no panic")
    }

    pub async fn thaw(&self) {
        while let Some(until) = self.frozen_until() {
            sleep_until(until).await;
        }
    }
}
