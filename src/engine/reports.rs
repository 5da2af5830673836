//! Hands the reports of tasks to the scheduler.

use std::time::Duration;

use crate::EngineLoop;
use crate::action::{Block, JobKey};
use crate::calls::CallEnd;
use crate::redis_state::shows_redis;
use broker::{Broker, Delivery, PublishError};
use gate::{
    DedupeReplies, Gate, GateError, LearnReplies, Replies, SettleReplies, ShardId, Standings,
    SuspectReplies,
};
use handler::{Attempt, PreparingHandler};
use rules::job::InBody;

/// The report of a task. It is copied several times on its way, so large parts are boxed.
pub(super) enum TaskReport<R> {
    Answered(ShardId, Result<Replies, GateError>),
    Settled(ShardId, Result<SettleReplies, GateError>),
    Blocked(Block, Result<(), GateError>),
    Advertised(Result<(), GateError>),
    Learned(Result<LearnReplies, GateError>),
    Reported(Result<Standings, GateError>),
    Suspected(ShardId, Result<SuspectReplies, GateError>),
    Deduped(ShardId, Result<DedupeReplies, GateError>),
    Sighted(Result<(), GateError>),
    Replied(Vec<(JobKey, Result<(), PublishError>)>),
    Moved(Vec<(JobKey, Result<(), PublishError>)>),
    /// A prepared call, and the time that preparing took; `None` if the call was available at once.
    Prepared(JobKey, Box<Result<R, Attempt>>, Option<Duration>),
    Finished(JobKey, Box<CallEnd>),
    /// Deliveries with large bodies, and the values in them.
    Read(Vec<(Delivery, InBody)>),
    /// The name of an abandoned call's permit, and whether the call ended before its lease.
    Abandoned(String, bool),
}

impl<B: Broker, G: Gate, H: PreparingHandler> EngineLoop<B, G, H> {
    /// Takes the report of a task that has ended.
    pub(super) fn take_report(&mut self, report: TaskReport<H::Ready>) {
        let (now, scheduler) = (self.now(), &mut self.scheduler);
        match report {
            TaskReport::Answered(shard, result) => self.take_answers(now, shard, result),
            TaskReport::Settled(shard, result) => scheduler.settled(now, shard, result),
            TaskReport::Blocked(block, result) => scheduler.blocked(now, block, result),
            TaskReport::Advertised(result) => scheduler.advertised_result(now, result),
            TaskReport::Learned(result) => scheduler.learned(now, result),
            TaskReport::Reported(result) => scheduler.reported(now, result),
            TaskReport::Suspected(shard, result) => scheduler.suspected(now, shard, result),
            TaskReport::Deduped(shard, result) => scheduler.deduped(now, shard, result),
            TaskReport::Sighted(result) => scheduler.sighted(now, &result),
            TaskReport::Replied(results) => {
                (results.iter()).for_each(|(key, _)| _ = self.direct.remove(key));
                scheduler.results_published(now, results);
            }
            TaskReport::Moved(results) => scheduler.moved(now, results),
            TaskReport::Prepared(key, result, took) => {
                let result = (*result).map(|call| _ = self.prepared.insert(key, call));
                scheduler.prepared(now, key, took, result);
            }
            TaskReport::Read(read) => {
                self.reading.done();
                scheduler.set_unread(self.reading.unread());
                for (delivery, inside) in read {
                    scheduler.delivered_read(now, delivery, &inside);
                }
            }
            TaskReport::Finished(key, ended) => {
                if let Some(signal) = ended.signal {
                    scheduler.record_finding(now, key, signal);
                }
                scheduler.finished(now, key, ended.took, ended.attempt);
            }
            TaskReport::Abandoned(permit, ended) => scheduler.abandoned_is_over(&permit, ended),
        }
    }

    /// Takes the gate's answers to a round trip, and shows the state of Redis.
    fn take_answers(&mut self, now: Duration, shard: ShardId, result: Result<Replies, GateError>) {
        if shows_redis(&result) {
            let (why, engine) = (result.as_ref().err(), &self.engine);
            telemetry::show_redis(
                &engine.health,
                &engine.metrics,
                why,
                engine.gate.primaries(),
            );
            match why {
                // The gate itself reports why it is cold.
                Some(why) if !matches!(why, GateError::Cold { .. }) => {
                    self.redis.failed(now, why);
                }
                _ => self.redis.over(now),
            }
        }
        let base = self.engine.gate.base();
        let shown = &self.engine.metrics.gate_base_seconds;
        shown.set(base.as_secs_f64());
        self.scheduler.set_base(base);
        self.scheduler.answered(now, shard, result);
    }
}
