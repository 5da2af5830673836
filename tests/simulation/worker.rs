//! Workers that are started, killed, frozen, stopped and restarted.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use broker::Broker;
use engine::EngineEnd;
use engine::action::{EngineSettings, LiveSettings};
use engine::scheduler::Scheduler;
use rules::delays::DelayLevels;
use rules::job::Fields;
use simulator::environment;
use telemetry::metrics::Metrics;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::broker::{SimBroker, forward};
use super::downstream::SimHandler;
use super::gate::SimGate;
use super::later::{AtPoll, LATER, Strike, at_poll, update};
use super::mixed;
use super::plan::{Plan, ms};
use super::prepared::PreparedHandler;
use super::results;
use super::world::{Life, World};

/// Maximum polls at one moment. With more, the engine is spinning.
const MAX_POLLS: u32 = 1000;

fn settings(plan: &Plan, broker: &SimBroker) -> EngineSettings {
    let open = kit::settings::open(plan.concurrency);
    EngineSettings {
        policy: mixed::policy(&plan.limits, plan.others.as_ref()),
        fields: Fields {
            dedupe_for_ms: plan.dedupe_for_ms,
            ..open.fields
        },
        live: LiveSettings {
            max_in_memory: plan.hold,
            retry: plan.retry,
            breaker: plan.away.rule,
            max_throttle: plan.max_throttle,
            ..open.live
        },
        prefetch: usize::from(plan.prefetch),
        names: broker.0.broker.names(),
        levels: DelayLevels::new(plan.max_delay),
        throttle_scope: plan.throttle_scope,
        results: results::settings(plan.seed),
        ..open
    }
}

/// Keeps a worker running in `slot` until the simulation is to end.
pub async fn keep(world: Arc<World>, slot: usize) {
    for number in 1_u64.. {
        live(&world, slot, number).await;
        if world.finish.is_cancelled() {
            return;
        }
        sleep(world.up_to(2000)).await;
    }
}

async fn live(world: &Arc<World>, slot: usize, number: u64) {
    let plan = &world.plan;
    let (client, events) = world.join(plan.prefetch, plan.concurrency);
    let life = Arc::new(Life::new(
        format!("w{slot}.{number}"),
        Arc::clone(world),
        client.clone(),
    ));
    world.note(format_args!("{} starts", life.name));
    world.lives.lock().expect("no panic")[slot] = Some(Arc::clone(&life));
    let (sender, receiver) = mpsc::channel(1);
    let forwarding = tokio::spawn(forward(Arc::clone(&life), events, sender));

    let broker = SimBroker(Arc::clone(&life));
    let seed = world.plan.seed ^ number << 32 ^ (slot as u64) << 48;
    let mut scheduler = Scheduler::new(settings(&world.plan, &broker), seed);
    if world.plan.agreed {
        scheduler = scheduler.must_agree();
    }
    let gate = Arc::new(SimGate(Arc::clone(&life)));
    let handler = PreparedHandler(SimHandler(Arc::clone(&life)));
    let metrics = Arc::new(Metrics::new());
    let engine = environment::engine((broker, gate, handler), &metrics, plan.shutdown_timeout);
    let (updates, updated) = mpsc::channel(1);
    let updating = match world.plan.seed {
        LATER.. => Some(tokio::spawn(update(Arc::clone(&life), updates))),
        _ => None,
    };
    let run = engine.run_updated(scheduler, receiver, updated, life.stop.clone());
    let mut process = tokio::spawn(Process {
        run: Some(Box::pin(run)),
        life: Arc::clone(&life),
        strike: at_poll(world, 0),
        frozen: None,
        at: Instant::now(),
        polls: 0,
        number: 0,
    });

    let in_time = async {
        tokio::select! {
            biased;
            () = life.stop.hard.cancelled() => {}
            () = life.stop.soft.cancelled() => {}
            () = world.finish.cancelled() => life.stop.soft.cancel(),
        }
        // Its time counts from when it learns of the stop.
        life.thaw().await;
        sleep(world.plan.shutdown_timeout).await;
        // A fault may delay each of the ack, the cancel and the close. The last reports to the gate
        // take a second.
        let last_words = world.plan.retry.max_crashes > 0;
        for _ in 0..3 + u8::from(last_words) {
            life.thaw().await;
            sleep(ms(1000)).await;
        }
        life.thaw().await;
    };
    let mut lingers = Duration::ZERO;
    tokio::select! {
        biased;
        ended = &mut process => {
            let panicked = match ended {
                Ok(EngineEnd::Stopped | EngineEnd::BrokerLost) => None,
                Ok(EngineEnd::Panicked(why)) => Some(why),
                Err(why) => Some(why.to_string()),
            };
            if let Some(why) = panicked {
                world.history().wrong(format_args!("{} panicked: {why}", life.name));
            }
        }
        () = life.killed.cancelled() => {
            process.abort();
            // The task was aborted, so its result says nothing.
            let _ = process.await;
            if world.below(3) == 0 {
                lingers = world.up_to(20_000);
            }
        }
        () = in_time => {
            world.history().wrong(format_args!("{} did not stop in time", life.name));
            process.abort();
        }
    }
    if let Some(updating) = updating {
        updating.abort();
    }
    world.note(format_args!("{} has ended", life.name));
    world.lives.lock().expect("no panic")[slot] = None;
    // The broker may learn late that the process is gone.
    tokio::spawn(async move {
        sleep(lingers).await;
        client.close().await;
        forwarding.abort();
    });
}

/// The engine's process. It may stand still, and must not spin.
struct Process<F> {
    /// `None` if it was killed, with all of its tasks.
    run: Option<Pin<Box<F>>>,
    life: Arc<Life>,
    strike: Option<AtPoll>,
    frozen: Option<Pin<Box<Sleep>>>,
    at: Instant,
    /// Polls at this moment, and in total.
    polls: u32,
    number: u64,
}

impl<F> Process<F> {
    /// Returns the fault that strikes at this poll.
    fn strike(&mut self) -> Option<Strike> {
        self.number += 1;
        let number = self.number;
        let strike = self.strike.take_if(|strike| strike.number == number)?;
        let Life { name, world, .. } = &*self.life;
        self.strike = at_poll(world, number);
        if !world.troubled() {
            return None;
        }
        world.history().faults += 1;
        world.fault(format_args!("{name}: {strike:?}"));
        Some(strike.what)
    }

    fn kill(&mut self) -> Poll<EngineEnd> {
        self.run = None;
        self.life.killed.cancel();
        Poll::Pending
    }
}

impl<F: Future<Output = EngineEnd>> Future for Process<F> {
    type Output = EngineEnd;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<EngineEnd> {
        let strike = self.strike();
        match strike {
            None | Some(Strike::KillAfter) => {}
            Some(Strike::KillBefore) => return self.kill(),
            Some(Strike::Freeze) => self.life.freeze(self.life.world.up_to(30_000), "a poll"),
            Some(Strike::Cut) => self.life.cut("a poll"),
            Some(Strike::SoftStop) => self.life.stop.soft.cancel(),
            Some(Strike::HardStop) => self.life.stop.hard.cancel(),
        }
        while let Some(until) = self.life.frozen_until() {
            let sleep = self.frozen.insert(Box::pin(sleep_until(until)));
            ready!(sleep.as_mut().poll(context));
        }
        self.frozen = None;
        let now = Instant::now();
        if now > self.at {
            self.at = now;
            self.polls = 0;
        }
        self.polls += 1;
        assert!(self.polls < MAX_POLLS, "the engine spins");
        let Some(run) = &mut self.run else {
            return Poll::Pending;
        };
        let polled = run.as_mut().poll(context);
        match strike {
            Some(Strike::KillAfter) => self.kill(),
            _ => polled,
        }
    }
}
