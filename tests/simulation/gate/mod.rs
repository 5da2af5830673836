//! The gate that all workers share, behind a network: answers are late, or lost before or after the
//! question took effect, or the gate is unreachable.

mod clock;
mod mixed;
mod model;
mod scenarios;
mod shadows;
mod shares;
mod simulator;
mod switch;
mod worst;

use std::sync::Arc;
use std::time::Duration;

use gate::{
    Answer, BreakerEvent, BreakerScope, Candidate, Change, DedupeReplies, End, Gate, GateError,
    Inspection, LearnReplies, LimitEvidence, Replies, Rule, SettleReplies, Standings, SuspectNote,
    SuspectReplies, TenantAsk, TenantReply, TenantSettlements,
};
use rules::answers::Quotas;
use rules::limit::{Limits, ceil_ms};
use rules::scope::Labels;
use rules::steering::JobSighting;
use rules::tenant::Tenant;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::away;
use super::closing;
use super::downstream::THROTTLED;
use super::later;
use super::plan::ms;
use super::scopes::asked;
use super::world::{Life, World};

/// Time after which the client gives up, even if its question still takes effect.
const PATIENCE: Duration = Duration::from_secs(2);

pub struct SimGate(pub Arc<Life>);

impl SimGate {
    /// Sends a question. It takes effect even if the caller stops waiting for the answer.
    async fn call<T, F>(
        &self,
        what: &'static str,
        effect: impl FnOnce(Arc<World>) -> F,
    ) -> Result<T, GateError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, GateError>> + Send + 'static,
    {
        let Self(life) = self;
        let world = &life.world;
        life.point(&format!("{what}, before")).await;
        let unreachable = |why: &str| Err(GateError::Unreachable(why.to_owned()));
        let mut ways = [
            world.up_to(world.plan.gate_ms),
            world.up_to(world.plan.gate_ms),
        ];
        if *world.gate_down_until.lock().expect("no panic") > Instant::now() {
            return unreachable("the gate is away");
        }
        if world.dice(|t| t.gate_slow) {
            let way = world.below(2);
            let max = if world.below(2) == 0 {
                world.plan.limits.guard_ms().max(600) * 2
            } else {
                5000
            };
            ways[way] = world.up_to(max);
            world.fault(format_args!("{}: {what} is slow: {ways:?}", life.name));
        }
        if world.dice(|t| t.gate_fails_before) {
            world.fault(format_args!("{}: {what} fails before", life.name));
            sleep(ways[0]).await;
            return unreachable("injected before");
        }
        let fails_after = world.dice(|t| t.gate_fails_after);
        let effect = effect(Arc::clone(world));
        let (sender, answer) = oneshot::channel();
        tokio::spawn(async move {
            sleep(ways[0]).await;
            let result = effect.await;
            sleep(ways[1]).await;
            // The receiver may be gone.
            let _ = sender.send(result);
        });
        let answer = timeout(PATIENCE, answer).await;
        life.point(&format!("{what}, after")).await;
        if fails_after {
            world.fault(format_args!("{}: {what} fails after", life.name));
            return unreachable("injected after");
        }
        match answer {
            Ok(Ok(result)) => result,
            _ => unreachable("no answer in time"),
        }
    }
}

impl Gate for SimGate {
    async fn ask(&self, batch: &[TenantAsk]) -> Result<Replies, GateError> {
        let Self(life) = self;
        let (number, may) = life.asks_now();
        if !may {
            let (name, mut history) = (&life.name, life.world.history());
            history.wrong(format_args!("{name} asks and has agreed with nobody"));
        }
        closing::asks(life);
        let batch = batch.to_vec();
        let name = life.name.clone();
        let replies = self
            .call("ask", |world| async move {
                if let Some(why) = later::outage(&world, None) {
                    return Err(why);
                }
                let mut replies = Replies::new();
                for ask in batch {
                    replies.push(decide(&world, &name, ask).await);
                }
                Ok(replies)
            })
            .await;
        life.answered(number);
        replies
    }

    async fn block(
        &self,
        scope: &BreakerScope,
        duration: Duration,
        reason: &str,
    ) -> Result<(), GateError> {
        let (scope, reason) = (scope.clone(), reason.to_owned());
        // Advice may follow.
        if reason.starts_with(THROTTLED) {
            match &scope {
                BreakerScope::Tenant(tenant) => {
                    self.0.world.history().tenant(tenant.as_str()).closings += 1;
                }
                BreakerScope::Api => self.0.world.history().closings_of_all += 1,
            }
        }
        self.call("block", |world| async move {
            let result = world.gate.block(&scope, duration, &reason).await;
            let until = world.now_us() / 1000 + ceil_ms(duration);
            let mut history = world.history();
            match &scope {
                BreakerScope::Tenant(tenant) => {
                    let record = history.tenant(tenant.as_str());
                    record.closed_until = record.closed_until.max(until);
                    history.note(format_args!("{tenant} is closed for {duration:?}"));
                }
                BreakerScope::Api => history.note(format_args!("all are closed for {duration:?}")),
            }
            result
        })
        .await
    }

    async fn settle(&self, batch: &[TenantSettlements]) -> Result<SettleReplies, GateError> {
        let batch = batch.to_vec();
        let name = self.0.name.clone();
        self.call("settle", |world| async move {
            // Settlements of some tenants do not arrive.
            let missed = |settled: &TenantSettlements| {
                later::outage(&world, Some(&settled.tenant)).is_some()
                    || world.dice(|t| t.settle_misses)
            };
            let missed: Vec<bool> = batch.iter().map(missed).collect();
            let arrived = batch
                .into_iter()
                .zip(&missed)
                .filter(|(_, missed)| !**missed);
            let batch: Vec<_> = arrived.map(|(settled, _)| settled).collect();
            note_settled(&world, &name, &batch);
            let mut replies = world.gate.settle(&batch).await?.into_iter();
            if world.dice(|t| t.settle_twice) {
                let world = Arc::clone(&world);
                tokio::spawn(async move {
                    sleep(world.up_to(3000)).await;
                    world.fault(format_args!("{name}'s settling arrives again"));
                    // The answer was received, or the question is repeated.
                    let _ = world.gate.settle(&batch).await;
                });
            }
            let away = || Err(GateError::Unreachable("injected for a tenant".into()));
            let reply = |missed| match (missed, world.dice(|t| t.later.settle_reply_lost)) {
                (true, _) => Some(away()),
                (false, false) => replies.next(),
                (false, true) => replies.next().map(|_| away()),
            };
            Ok(missed.into_iter().filter_map(reply).collect())
        })
        .await
    }

    async fn report(
        &self,
        rule: &Rule,
        batch: &[(BreakerScope, BreakerEvent)],
    ) -> Result<Standings, GateError> {
        let (rule, sent) = (*rule, batch.to_vec());
        let number = self.0.closings().sends();
        let standings = self.call("report", |world| async move {
            let batch = sent;
            if let Some(why) = later::outage(&world, None) {
                return Err(why);
            }
            let standings = world.gate.report(&rule, &batch).await?;
            let mut history = world.history();
            history.note(format_args!("{batch:?}: {standings:?}"));
            away::note(&mut history, &batch, &standings);
            Ok(standings)
        });
        let standings = standings.await?;
        self.0.closings().record_answer(number, batch, &standings);
        Ok(standings)
    }

    async fn suspect(&self, batch: &[SuspectNote]) -> Result<SuspectReplies, GateError> {
        let batch = batch.to_vec();
        self.0.notes(&batch);
        self.call("suspect", |world| async move {
            let verdicts = world.gate.suspect(&batch).await;
            world.note(format_args!("{batch:?}: {verdicts:?}"));
            verdicts
        })
        .await
    }

    async fn dedupe(&self, batch: &[Candidate]) -> Result<DedupeReplies, GateError> {
        let batch = batch.to_vec();
        self.call("dedupe", |world| async move {
            let deduped = world.gate.dedupe(&batch).await;
            world.note(format_args!("{batch:?}: {deduped:?}"));
            deduped
        })
        .await
    }

    async fn sighted(&self, batch: &[JobSighting]) -> Result<(), GateError> {
        let batch = batch.to_vec();
        self.call("sighted", |world| async move {
            world.note(format_args!("{batch:?}"));
            world.gate.sighted(&batch).await
        })
        .await
    }

    async fn advertised(&self, batch: &[(Tenant, Quotas)]) -> Result<(), GateError> {
        let batch = batch.to_vec();
        self.call("advertised", |world| async move {
            world.gate.advertised(&batch).await
        })
        .await
    }

    async fn learn(&self, batch: &[LimitEvidence]) -> Result<LearnReplies, GateError> {
        let batch = batch.to_vec();
        self.call(
            "learn",
            |world| async move { world.gate.learn(&batch).await },
        )
        .await
    }

    async fn change(&self, scope: &BreakerScope, change: &Change) -> Result<u64, GateError> {
        self.0.world.gate.change(scope, change).await
    }

    async fn inspect(
        &self,
        tenant: &Tenant,
        labels: &Labels,
        limits: &Limits,
    ) -> Result<Inspection, GateError> {
        self.0.world.gate.inspect(tenant, labels, limits).await
    }
}

/// Decides one question, unless the question or the answer is lost.
async fn decide(world: &World, name: &str, ask: TenantAsk) -> Result<TenantReply, GateError> {
    let lost = |how: &str| Err(GateError::Unreachable(how.to_owned()));
    if let Some(why) = later::outage(world, Some(&ask.tenant)) {
        return Err(why);
    }
    if world.dice(|t| t.later.ask_misses) {
        world.fault(format_args!("{name}: {} is not asked for", ask.tenant));
        return lost("injected for a tenant, before");
    }
    let batch = [ask];
    let mut replies = world.gate.ask(&batch).await?;
    note_replies(world, name, &batch, &replies);
    if world.dice(|t| t.later.ask_reply_lost) {
        world.fault(format_args!("{name}: {} is not heard", batch[0].tenant));
        return lost("injected for a tenant, after");
    }
    replies.pop().unwrap_or_else(|| lost("no reply"))
}

fn note_replies(world: &World, name: &str, batch: &[TenantAsk], replies: &Replies) {
    let mut history = world.history();
    for (ask, reply) in batch.iter().zip(replies) {
        let tenant = ask.tenant.as_str();
        let Ok(reply) = reply else {
            history.wrong(format_args!("{tenant}: the gate in memory never fails"));
            continue;
        };
        let (labels, partitions) = (&ask.labels, asked(tenant, &ask.labels));
        let permits = &ask.permits;
        for (number, (ask, answer)) in ask.asks.iter().zip(&reply.answers).enumerate() {
            history.note(format_args!(
                "{name} asks for {tenant} {labels} {ask:?}: {answer:?}"
            ));
            if !matches!(answer, Answer::Start { .. }) {
                continue;
            }
            history.permits.insert(format!("{permits}:{number}"));
            for partition in &partitions {
                let record = history.partition(partition);
                record.started += 1;
                record.charged.add(1, ask.cost.cast_signed());
            }
            let record = history.tenant(tenant);
            let closed_until = record.closed_until.max(record.paused_until);
            if reply.now_ms < closed_until {
                history.wrong(format_args!(
                    "a job of {tenant} was started while it was closed"
                ));
            }
        }
        if reply.answers.len() != ask.asks.len() {
            history.wrong(format_args!("{tenant}: answers are missing"));
        }
    }
}

fn note_settled(world: &World, name: &str, batch: &[TenantSettlements]) {
    let mut history = world.history();
    for settled in batch {
        let first = history.settled.insert(settled.call.clone());
        history.note(format_args!(
            "{name} settles {} of {}, {first}: {:?}",
            settled.call, settled.tenant, settled.settled
        ));
        let partitions = asked(settled.tenant.as_str(), &settled.labels);
        for one in settled.settled.iter().filter(|_| first) {
            if one.end == End::Late {
                // The start counts from a later time with the same cost. This corrects no charge
                // and ends no lease.
                history.late += 1;
                continue;
            }
            let cost = one.receipt.cost.cast_signed();
            let permit = &one.receipt.permit;
            let late = matches!(one.end, End::Running | End::Abandoned { .. });
            let (calls, more) = match (one.end, history.ended.get(permit)) {
                (End::Cost(used), _) => (0, used.cast_signed() - cost),
                (End::Unused, _) => (-1, -cost),
                (_, Some(End::Unused)) => (1, cost),
                // A lease is identified by its name and holds its units.
                (_, Some(End::Cost(used))) if used.cast_signed() != cost => (0, cost),
                _ => continue,
            };
            if !late {
                history.ended.insert(permit.clone(), one.end);
            }
            // If the answer to a start was lost, only the names of its leases are known.
            let doubted = one.receipt.started_ms == 0;
            if doubted && !history.permits.remove(&one.receipt.permit) {
                continue;
            }
            for partition in &partitions {
                let record = history.partition(partition);
                match doubted || late {
                    true => record.doubted.add(calls, more),
                    false => record.charged.add(calls, more),
                }
            }
        }
    }
}

/// Makes the gate unavailable for a while.
pub fn outage(world: &World) {
    let duration = world.up_to(20_000) + ms(1);
    world.fault(format_args!("the gate is away for {duration:?}"));
    *world.gate_down_until.lock().expect("no panic") = Instant::now() + duration;
}
