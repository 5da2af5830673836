//! Jobs with dedupe keys: before all else each asks whether it is the first, and who is not is dropped.

use std::time::Duration;

use super::Scheduler;
use super::entry::{JobEntry, Phase};
use super::queues::End;
use crate::engine::action::{Action, Key};
use crate::engine::facts::Fact;
use crate::gate::{GateError, ShardId, Sighted, SightedAll, Sighting};
use crate::rules::scope::Labels;

impl Scheduler {
    /// A job that does not know yet whether it is the first with its key asks: `true`.
    pub(super) fn asks_whether_first(&mut self, now: Duration, key: Key) -> bool {
        let Some(job) = self.jobs.get_mut(&key) else {
            return false;
        };
        let Some(dedupe) = &job.claims.dedupe else {
            return false;
        };
        if !job.has_own_id {
            // The next delivery would have another one, by which nobody knew it: it gets one on its way.
            self.delay_in_queue(now, key, Duration::ZERO);
            return true;
        }
        job.phase = Phase::Sighting;
        let sighting = Sighting {
            tenant: job.claims.tenant.clone(),
            key: dedupe.key.clone(),
            job: job.message.id().unwrap_or_default().to_owned(),
            by: self.sightings.name(key),
            seen_before: dedupe.seen_before,
            lasts_ms: dedupe.lasts_ms,
        };
        self.sightings.add(key, sighting);
        true
    }

    /// Who is to ask asks.
    pub(super) fn ask_who_is_first(&mut self, now: Duration) {
        if self.intake.is_draining() {
            return;
        }
        for (shard, batch) in self.sightings.send(now) {
            self.agenda.push(Action::Sight(shard, batch));
        }
    }

    /// What [`Action::Sight`] came to.
    pub fn sighted(
        &mut self,
        now: Duration,
        shard: ShardId,
        result: Result<SightedAll, GateError>,
    ) {
        for (key, sighted) in self.sightings.told(now, shard, result) {
            let asks = |job: &&mut JobEntry| job.phase == Phase::Sighting;
            let Some(job) = self.jobs.get_mut(&key).filter(asks) else {
                continue;
            };
            match sighted {
                Ok(Sighted::First) => {
                    job.claims.dedupe = None;
                    job.claims.is_first = true;
                    let end = match job.is_fresh() {
                        true => End::Fresh,
                        false => End::Due,
                    };
                    self.arrange(now, key, end);
                }
                Ok(Sighted::Duplicate { left_ms }) => self.drop_duplicate(key, left_ms),
                Err(why) => {
                    let tenant = job.claims.tenant.clone();
                    self.set_aside(now, (&tenant, &Labels::default()), &[key], &why);
                }
            }
        }
        self.ask_who_is_first(now);
    }

    /// Another job with its key goes on, and it does not.
    fn drop_duplicate(&mut self, key: Key, left_ms: u64) {
        let Some(job) = self.jobs.get(&key) else {
            return;
        };
        let tag = job.tag;
        self.facts.push(Fact::Duplicate(job.named(), left_ms));
        match self.result_of_duplicate(key) {
            None => self.agenda.ack(tag),
            Some(reply) => {
                let next = self.moves.begin_with_reply(key, tag, reply, None);
                self.do_next(next);
            }
        }
        self.forget(key);
    }
}
