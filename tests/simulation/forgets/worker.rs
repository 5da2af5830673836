//! A worker with the real client code of the gate. In place of its jobs there is always one waiting
//! for each tenant.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gate::fleet::EnforcedPolicies;
use gate::fleet::registry::Registry;
use gate::redis::RedisGate;
use gate::store::Store;
use gate::{
    Answer, EarlierStarts, End, Gate, GateError, Question, Receipt, TenantAsk, TenantReply,
    TenantSettlements, Ticket,
};
use kit::gate::{FRESH, receipt, settling};
use rules::limit::Limits;
use rules::scope::Labels;
use rules::tenant::Tenant;
use tokio::time::{Instant, sleep};

use super::net::Net;
use super::{Bug, Call, GUARD, Life, MAX_CALL, PREFIX, TENANTS, World, first_word};

const PING_EVERY: Duration = Duration::from_secs(2);
const EXCHANGE_EVERY: Duration = Duration::from_secs(1);
const SETTLE_EVERY: Duration = Duration::from_millis(500);
/// Interval at which leases of running calls are renewed.
const RENEW_EVERY: Duration = Duration::from_secs(15);
/// Age at which an undelivered settlement is given up.
const TOLD_FOR: Duration = Duration::from_secs(60);
/// Maximum delay before a worker asks again after an error or without capacity.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

pub fn tenant(number: usize) -> Tenant {
    Tenant::parse(TENANTS[number].0).expect("a tenant")
}

/// Keeps a worker running in `slot`.
pub async fn keep(world: Rc<World>, slot: usize) {
    let mut start = first_word(slot);
    for number in 0_u64.. {
        Worker::new(&world, slot, number).live(start).await;
        world.lives.borrow_mut()[slot] = Life::default();
        world.end_calls(slot);
        world.pass(20_000).await;
        world.away.set(false);
        world.last_start.set(world.now());
        start = EarlierStarts::Unknown;
    }
}

/// A call that a worker has begun.
struct Running {
    limits: Limits,
    number: usize,
    receipt: Receipt,
    ends: Instant,
    renewed: Instant,
    end: End,
}

enum Fate {
    Dies,
    StandsStill,
    Ends,
}

struct Worker<'a> {
    world: &'a World,
    slot: usize,
    name: String,
    gate: Arc<RedisGate>,
    fleet: RefCell<EnforcedPolicies>,
    /// End of its permission to ask.
    agreed: Cell<Instant>,
    /// Whether it asks no more.
    ends: Cell<bool>,
    running: RefCell<Vec<Running>>,
    /// Settlements that the gate has not confirmed, and since when.
    ledger: RefCell<Vec<(TenantSettlements, Instant)>>,
    asked: Cell<u64>,
}

impl<'a> Worker<'a> {
    fn new(world: &'a World, slot: usize, number: u64) -> Self {
        let store: Arc<dyn Store> = Arc::<Net>::clone(&world.net);
        let own = world.any_policy();
        let mut gate = RedisGate::on(store, PREFIX);
        if world.bug != Bug::Blind {
            gate = gate.watching(own.policy.memory());
        }
        Self {
            world,
            slot,
            name: format!("w{slot}-{number}"),
            gate: Arc::new(gate),
            fleet: RefCell::new(EnforcedPolicies::alone(own.policy)),
            agreed: Cell::new(Instant::now()),
            ends: Cell::new(false),
            running: RefCell::default(),
            ledger: RefCell::default(),
            asked: Cell::new(0),
        }
    }

    async fn live(&self, start: EarlierStarts) {
        let world = self.world;
        world.note(&format!("{} begins", self.name));
        // The report may fail at first; the worker asks anyway.
        let _ = self.gate.begin(start).await;
        let mut work = pin!(async {
            tokio::join!(self.beats(), self.agrees(), self.asks(), self.settles());
        });
        loop {
            let fate = tokio::select! {
                biased;
                () = &mut work => Fate::Ends,
                fate = self.fate() => fate,
            };
            match fate {
                Fate::Dies => {
                    world.fault(&format!("{} dies", self.name));
                    return;
                }
                // None of its tasks runs.
                Fate::StandsStill => {
                    world.fault(&format!("{} stands still", self.name));
                    world.pass(30_000).await;
                    world.note(&format!("{} goes on", self.name));
                    world.away.set(false);
                    world.back.set(world.now());
                }
                Fate::Ends => {
                    world.note(&format!("{} ends", self.name));
                    self.ends.set(true);
                    let quiet = async {
                        while !self.running.borrow().is_empty() {
                            sleep(SETTLE_EVERY).await;
                        }
                    };
                    tokio::select! {
                        biased;
                        () = &mut work => {}
                        () = quiet => {}
                    }
                    let _ = self.gate.leave().await;
                    return;
                }
            }
        }
    }

    /// Waits for the worker's next fate, if one is allowed.
    async fn fate(&self) -> Fate {
        let world = self.world;
        loop {
            sleep(Duration::from_secs(1)).await;
            let may_go = world.troubled.get() && !world.away.get() && world.is_known(self.slot);
            let fate = match world.below(80) {
                0 => Fate::Dies,
                1 => Fate::StandsStill,
                2 => Fate::Ends,
                _ => continue,
            };
            if may_go {
                world.away.set(true);
                return fate;
            }
        }
    }

    /// Records an answer to the message sent at `sent`.
    fn answered(&self, sent: Instant) {
        let life = &mut self.world.lives.borrow_mut()[self.slot];
        life.first.get_or_insert_with(Instant::now);
        life.last = life.last.max(Some(sent));
    }

    async fn beats(&self) {
        loop {
            let sent = Instant::now();
            if self.gate.ping().await.is_ok() {
                self.answered(sent);
                let _ = self.gate.measure().await;
            }
            sleep(PING_EVERY).await;
        }
    }

    /// Exchanges policies. Now and then another policy is in force afterwards.
    async fn agrees(&self) {
        let world = self.world;
        let own = self.fleet.borrow().own().clone();
        let own = world.policies.iter().find(|it| it.policy == own);
        let own = own.expect("it has one of them").clone();
        let mut registry = Registry::new(Arc::clone(&self.gate), own);
        loop {
            let next = match world.below(25) {
                0 => world.any_policy(),
                _ => registry.own().clone(),
            };
            if world.bug == Bug::Alone {
                *self.fleet.borrow_mut() = EnforcedPolicies::alone(next.policy);
                self.agreed.set(Instant::now() + 5 * EXCHANGE_EVERY);
            } else if let Ok(agreed) = registry.switch_to(next).await {
                registry.open(&agreed);
                *self.fleet.borrow_mut() = agreed.fleet;
                self.agreed.set(agreed.until);
            }
            sleep(EXCHANGE_EVERY).await;
        }
    }

    /// Asks for the one waiting job of each tenant. Jobs whose turns have come ask together.
    async fn asks(&self) {
        let mut jobs = [(None::<Ticket>, Instant::now()); TENANTS.len()];
        let _ = self.gate.measure().await;
        loop {
            self.world.pass(150).await;
            let now = Instant::now();
            if now >= self.agreed.get() || self.ends.get() {
                continue;
            }
            let due = (0..TENANTS.len()).filter(|number| jobs[*number].1 <= now);
            let due: Vec<usize> = due.collect();
            if due.is_empty() {
                continue;
            }
            let batch: Vec<TenantAsk> = (due.iter())
                .map(|number| self.question(*number, jobs[*number].0))
                .collect();
            let replies = self.gate.ask(&batch).await;
            if replies.is_ok() {
                self.answered(now);
            }
            let replies = match replies {
                Ok(replies) => replies,
                Err(why) => due.iter().map(|_| Err(why.clone())).collect(),
            };
            for ((number, ask), reply) in due.into_iter().zip(batch).zip(replies) {
                jobs[number] = match reply {
                    Ok(reply) => self.next_request(number, ask, &reply, now),
                    Err(why) => {
                        self.world
                            .note(&format!("{} {}: {why}", self.name, ask.tenant));
                        let wait = match why {
                            GateError::Cold { wait, .. } => wait.min(LOOK_AGAIN),
                            _ => LOOK_AGAIN,
                        };
                        (ask.asks[0].ticket, Instant::now() + wait)
                    }
                };
            }
        }
    }

    fn question(&self, number: usize, ticket: Option<Ticket>) -> TenantAsk {
        let tenant = tenant(number);
        self.asked.set(self.asked.get() + 1);
        TenantAsk {
            limits: self.fleet.borrow_mut().limits(&tenant, None),
            tenant,
            labels: Labels::default(),
            budget: 1,
            permits: format!("{}-{}", self.name, self.asked.get()),
            asks: vec![Question { ticket, ..FRESH }],
        }
    }

    /// Returns the ticket of the tenant's next job, and when it asks.
    fn next_request(
        &self,
        number: usize,
        ask: TenantAsk,
        reply: &TenantReply,
        sent: Instant,
    ) -> (Option<Ticket>, Instant) {
        let now = Instant::now();
        let answer = &reply.answers[0];
        self.world
            .note(&format!("{} {}: {answer:?}", self.name, ask.tenant));
        match answer {
            Answer::Wait { ticket, ttl_ms, .. } => {
                (Some(*ticket), now + Duration::from_millis(*ttl_ms))
            }
            Answer::Capacity => (ask.asks[0].ticket, now + LOOK_AGAIN),
            Answer::Start { .. } => {
                let receipt = receipt(&ask, reply, 0);
                self.start(number, ask.limits, receipt, sent);
                (None, now)
            }
        }
    }

    /// Begins a call, unless its permit is too old.
    fn start(&self, number: usize, limits: Limits, receipt: Receipt, sent: Instant) {
        let (world, now) = (self.world, Instant::now());
        let age = sent.elapsed().saturating_sub(self.gate.base());
        let is_good = age <= GUARD / 2;
        let (name, _, window) = TENANTS[number];
        let max = if window.is_zero() {
            MAX_CALL
        } else {
            MAX_CALL / 100
        };
        let ends = match is_good {
            true => now + max.mul_f64(world.below(1_000) as f64 / 1_000.0),
            false => now,
        };
        if is_good {
            world.note(&format!("{name} starts at {}", self.name));
            world.starts.borrow_mut()[number].push(world.now());
            if window.is_zero() {
                world.calls.borrow_mut().push(Call {
                    from: now,
                    until: ends,
                    slot: self.slot,
                });
            }
        }
        self.running.borrow_mut().push(Running {
            limits,
            number,
            receipt,
            ends,
            renewed: now,
            end: if is_good { End::Cost(1) } else { End::Unused },
        });
    }

    /// Reports calls that ended, and renews those that run.
    async fn settles(&self) {
        let mut calls = 0;
        loop {
            sleep(SETTLE_EVERY).await;
            let now = Instant::now();
            let (mut all, mut renewals) = (self.ledger.take(), Vec::new());
            all.retain(|(_, since)| now < *since + TOLD_FOR);
            let mut settled = |running: &Running, end: End| {
                calls += 1;
                TenantSettlements {
                    call: format!("{}-{calls}", self.name),
                    ..settling(
                        TENANTS[running.number].0,
                        &running.limits,
                        [(running.receipt.clone(), end)],
                    )
                }
            };
            self.running.borrow_mut().retain_mut(|running| {
                if running.ends <= now {
                    all.push((settled(running, running.end), now));
                    return false;
                }
                if running.limits.hold_leases() && running.renewed + RENEW_EVERY <= now {
                    running.renewed = now;
                    renewals.push(settled(running, End::Running));
                }
                true
            });
            let news: Vec<TenantSettlements> = (all.iter().map(|(settled, _)| settled.clone()))
                .chain(renewals)
                .collect();
            if news.is_empty() {
                continue;
            }
            let replies = self.gate.settle(&news).await.unwrap_or_default();
            let unsettled = (all.into_iter().enumerate())
                .filter(|(at, _)| !replies.get(*at).is_some_and(Result::is_ok));
            self.ledger
                .borrow_mut()
                .extend(unsettled.map(|(_, one)| one));
        }
    }
}
