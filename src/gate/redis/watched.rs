//! Admitting calls: one pipeline, which counts only if the watch over its primary confirms that
//! Redis still has all usage. On one plain Redis that is all; `by_primary` adds what a cluster
//! needs.

use ::redis::Value;

use super::RedisGate;
use super::calls::{PipelinePulse, ScriptCall};
use crate::GateError;
use crate::link::slot_of;
use crate::primaries::{AllPrimaries, Primary};
use crate::watches::Watches;

pub(super) type Answers = Vec<Result<Value, GateError>>;

impl RedisGate {
    /// Runs admitting calls, as [`RedisGate::run`] does.
    pub(super) async fn run_watched(
        &self,
        calls: Vec<ScriptCall<'_>>,
        watches: &Watches,
    ) -> Result<Answers, GateError> {
        let primaries = self.finder.all(&self.link, false).await?;
        if self.link.is_cluster() {
            return Box::pin(self.run_by_primary(watches, &primaries, calls)).await;
        }
        let Some(only) = primaries.first() else {
            return Ok(Vec::new());
        };
        let run = self.run_at(watches, &primaries, only, calls).await;
        watches.note(only, &run);
        run
    }

    /// Runs the calls for `primary`, one of `primaries`.
    pub(super) async fn run_at(
        &self,
        watches: &Watches,
        primaries: &AllPrimaries,
        primary: &Primary,
        calls: Vec<ScriptCall<'_>>,
    ) -> Result<Answers, GateError> {
        let at = (&*self.link, &self.finder);
        let (watch, sent) = watches.ready(at, primaries, primary).await?;
        let mut answers = Vec::with_capacity(calls.len());
        let mut open = Vec::with_capacity(calls.len());
        for call in calls {
            let mut known = watch.opens(&sent, call.span_ms);
            if self.link.is_cluster() {
                let slot = slot_of(call.keys.waitlist());
                known = known.and_then(|()| watch.speaks_for(&sent, slot));
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
        let pulse = PipelinePulse {
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
}
