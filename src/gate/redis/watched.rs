//! Calls that admit: each primary's by themselves, so that one that lost its memory, or its way, stops its own tenants alone.

use std::sync::Arc;

use ::redis::Value;
use futures_util::future::join_all;

use super::RedisGate;
use super::calls::{Call, Pulse};
use crate::gate::GateError;
use crate::gate::epoch::{Sent, Watch};
use crate::gate::link::slot_of;
use crate::gate::primaries::{All, Primary};
use crate::gate::watches::Watches;

type Answers = Vec<Result<Value, GateError>>;

impl RedisGate {
    /// [`RedisGate::run`] for calls that admit.
    pub(super) async fn run_watched(
        &self,
        calls: Vec<Call<'_>>,
        watches: &Watches,
    ) -> Result<Answers, GateError> {
        let primaries = self.finder.all(&self.link, false).await?;
        if !self.link.is_cluster() {
            let Some(primary) = primaries.first() else {
                return Ok(Vec::new());
            };
            let run = self.run_at(watches, &primaries, primary, calls).await;
            watches.note(primary, &run);
            return run;
        }
        let unknown = |key: &str| {
            let why = format!("no node has the slot of {key}");
            Err(GateError::Unreachable(why))
        };
        let mut answers: Answers = calls
            .iter()
            .map(|call| unknown(call.keys.waitlist()))
            .collect();
        let mut parts: Vec<(usize, Vec<usize>, Vec<Call<'_>>)> = Vec::new();
        for (index, call) in calls.into_iter().enumerate() {
            let slot = slot_of(call.keys.waitlist());
            let Some(at) = primaries.iter().position(|p| p.shard.slots.contains(slot)) else {
                self.link.doubt();
                continue;
            };
            match parts.iter_mut().find(|(primary, ..)| *primary == at) {
                Some((_, indexes, calls)) => {
                    indexes.push(index);
                    calls.push(call);
                }
                None => parts.push((at, vec![index], vec![call])),
            }
        }
        let number = parts.len();
        let runs = parts.into_iter().map(|(at, indexes, calls)| {
            let primary = &primaries[at];
            let primaries = &primaries;
            async move {
                let run = self.run_at(watches, primaries, primary, calls).await;
                (at, indexes, run)
            }
        });
        let mut failed = Vec::new();
        for (at, indexes, run) in join_all(runs).await {
            watches.note(&primaries[at], &run);
            match run {
                Ok(run) => {
                    for (index, answer) in indexes.into_iter().zip(run) {
                        answers[index] = answer;
                    }
                }
                Err(why) => {
                    for index in indexes {
                        answers[index] = Err(why.clone());
                    }
                    failed.push((Arc::clone(&primaries[at]), why));
                }
            }
        }
        if number > 0 && failed.len() == number {
            // Is it these primaries, or all of them?
            let at = (&self.link, &self.finder);
            watches.others_go_on(at, failed, self.test_clock()).await?;
        }
        Ok(answers)
    }

    /// The calls of one primary.
    async fn run_at(
        &self,
        watches: &Watches,
        primaries: &All,
        primary: &Primary,
        calls: Vec<Call<'_>>,
    ) -> Result<Answers, GateError> {
        if !self.finder.agreed(&primary.policies) {
            return Err(GateError::Unreachable(format!(
                "{}: which policies are enforced there is not known",
                primary.shard.name()
            )));
        }
        let (watch, sent) = self.ready(watches, primaries, primary).await?;
        let mut answers = Vec::with_capacity(calls.len());
        let mut open = Vec::with_capacity(calls.len());
        for call in calls {
            let clock = self.test_clock();
            let mut known = watch.opens(&sent, call.span_ms, clock);
            if self.link.is_cluster() {
                let slot = slot_of(call.keys.waitlist());
                known = known.and_then(|()| watch.speaks_for(&sent, slot, clock));
            }
            match known {
                Ok(()) => {
                    answers.push(Ok(Value::Nil));
                    open.push(call);
                }
                Err(why) => answers.push(Err(why)),
            }
        }
        if open.is_empty() {
            return Ok(answers);
        }
        let pulse = Pulse {
            watch: &watch,
            sent,
            shard: &primary.shard,
        };
        let mut replies = self.run(open, Some(pulse)).await?.into_iter();
        let waiting = answers.iter_mut().filter(|answer| answer.is_ok());
        for (answer, reply) in waiting.zip(&mut replies) {
            *answer = reply;
        }
        Ok(answers)
    }

    async fn ready(
        &self,
        watches: &Watches,
        primaries: &All,
        primary: &Primary,
    ) -> Result<(Arc<Watch>, Sent), GateError> {
        let at = (&self.link, &self.finder);
        watches
            .ready(at, primaries, primary, self.test_clock())
            .await
    }
}
