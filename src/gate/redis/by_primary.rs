//! Admitting calls in a Redis Cluster. The calls of each primary run on their own, so that a
//! primary that lost data, or can't be reached, stops its own tenants only. Without a cluster this
//! module is not used.

use std::sync::Arc;

use futures_util::future::join_all;

use super::RedisGate;
use super::calls::ScriptCall;
use super::watched::Answers;
use crate::GateError;
use crate::link::slot_of;
use crate::primaries::{AllPrimaries, Primary};
use crate::watches::Watches;

impl RedisGate {
    /// Sends each call to the primary that has its slot.
    pub(super) async fn run_by_primary(
        &self,
        watches: &Watches,
        primaries: &AllPrimaries,
        calls: Vec<ScriptCall<'_>>,
    ) -> Result<Answers, GateError> {
        let unknown = |key: &str| {
            let why = format!("no node has the slot of {key}");
            Err(GateError::Unreachable(why))
        };
        let mut answers: Answers = calls
            .iter()
            .map(|call| unknown(call.keys.waitlist()))
            .collect();
        let mut parts: Vec<(usize, Vec<usize>, Vec<ScriptCall<'_>>)> = Vec::new();
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
            async move {
                let run = match self.agrees(primary) {
                    Ok(()) => self.run_at(watches, primaries, primary, calls).await,
                    Err(why) => Err(why),
                };
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
            // Finds out whether only these primaries are affected, or all.
            let at = (&*self.link, &self.finder);
            watches.others_still_answer(at, failed).await?;
        }
        Ok(answers)
    }

    /// Checks that jobs may start at `primary`: the policies enforced there must be known.
    fn agrees(&self, primary: &Primary) -> Result<(), GateError> {
        if self.finder.agreed(&primary.policies) {
            return Ok(());
        }
        Err(GateError::Unreachable(format!(
            "{}: the policies enforced there are unknown",
            primary.shard.name()
        )))
    }
}
