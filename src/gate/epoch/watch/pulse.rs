//! The pulse ends each batch of decisions, or is a heartbeat if there is no batch. Its answer shows
//! whether the decisions count.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ::redis::{Cmd, Pipeline, Value, from_redis_value_ref};
use tokio::time::Instant;

use super::{BATCH_RETRY_DELAY, EpochFindings, SentPulse, Watch, WatchTarget};
use crate::epoch::FORGET_MS;
use crate::link::Request;
use crate::{GateError, refusal, scripts};
use config::ScriptCommand;
use rules::limit::floor_ms;

/// Number of fields that a heartbeat checks for workers that are gone.
const SWEEP: u32 = 16;

/// The purpose of a pulse.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PulseKind {
    /// Ends a batch.
    Batch,
    /// Proves that the data is complete here and now.
    Proof,
    /// Proves the same, and removes workers that are gone.
    Heartbeat,
}

/// A clock reading that lags by more than this, in milliseconds, means that Redis's clock was
/// stepped back.
const STEP_MS: u64 = 1_000;

impl SentPulse {
    /// Returns the clock by which the epoch's times were measured, in milliseconds: Redis's clock
    /// as if it was never stepped back.
    pub(super) fn now(&self) -> Option<u64> {
        self.found.clock.map(now_ms)
    }
}

impl EpochFindings {
    /// Takes another reading of Redis's clock, so that a worker's clock with another pace does not
    /// drift away from it.
    fn learn_clock(&mut self, now: u64) {
        let expected = self.clock.map_or(0, now_ms);
        if now + STEP_MS >= expected {
            self.clock = Some((now, Instant::now()));
        }
    }
}

/// Returns the current time of a clock that showed `then` milliseconds at `at`.
fn now_ms((then, at): (u64, Instant)) -> u64 {
    then.saturating_add(floor_ms(at.elapsed()))
}

impl Watch {
    /// Returns the pulse that ends a pipeline of decisions, called by `command`. `load` is set if
    /// Redis lacks the script.
    pub fn request(&self, sent: &SentPulse, (command, load): (ScriptCommand, bool)) -> Request<'_> {
        Request {
            key: &self.key,
            command: self.pulse(sent, (PulseKind::Batch, command)),
            load: load.then(scripts::pulse),
        }
    }

    pub(super) fn pulse(&self, sent: &SentPulse, (kind, by): (PulseKind, ScriptCommand)) -> Cmd {
        let silent = 2 * self.span_ms.load(Ordering::Relaxed) + FORGET_MS;
        let mut command = Cmd::new();
        command
            .arg(&scripts::pulse().call(by))
            .arg(1)
            .arg(&self.key)
            .arg(&sent.epoch.0)
            .arg(&sent.epoch.1)
            .arg(&sent.found.history)
            .arg(self.field())
            .arg(silent)
            .arg(if kind == PulseKind::Heartbeat {
                SWEEP
            } else {
                0
            })
            .arg(&sent.found.slots);
        // Checking Redis's count of evictions takes a sixth of a decision's time, so a batch checks
        // it only if evictions are possible. Proofs and heartbeats always do, and so notice a
        // changed eviction policy.
        if sent.found.evicts || kind != PulseKind::Batch {
            command.arg(sent.found.evicted);
        } else {
            command.arg("");
        }
        command.arg(&sent.found.cold);
        command
    }

    /// Takes the pulse's answer: whether the decisions before it count.
    ///
    /// # Errors
    /// [`GateError::Cold`] if they don't.
    pub fn beaten(&self, sent: &SentPulse, answer: &Value) -> Result<(), GateError> {
        let numbers: Vec<u64> = from_redis_value_ref(answer).unwrap_or_default();
        let mut state = self.state();
        if let [1, now, pulse] = numbers[..]
            && state.is_valid
            && state.version == sent.version
        {
            // Redis numbers the pulses. If answers overtook each other, the highest number counts.
            state.pulse = state.pulse.max(pulse);
            state.last_pulse = Some(Instant::now());
            state.found.learn_clock(now);
            return Ok(());
        }
        if state.version == sent.version {
            state.is_valid = false;
            state.version += 1;
        }
        Err(GateError::Cold {
            wait: BATCH_RETRY_DELAY,
            why: "it changed during decisions".to_owned(),
        })
    }

    /// Checks that all usage that counts for limits with the look-back `span_ms` is known.
    ///
    /// # Errors
    /// [`GateError::Cold`] if it is not yet.
    pub fn opens(&self, sent: &SentPulse, span_ms: u64) -> Result<(), GateError> {
        let at = sent.found.gap.opens_at(span_ms);
        if at == 0 {
            return Ok(());
        }
        let now = sent.now();
        if now.is_some_and(|now| at <= now) {
            return Ok(());
        }
        Err(GateError::Cold {
            wait: Duration::from_millis(at.saturating_sub(now.unwrap_or(0))),
            why: sent.found.why.clone(),
        })
    }

    /// Makes a pulse without decisions. It proves that this worker is alive, and notices changes by
    /// others.
    pub async fn heartbeat(&self, at: &WatchTarget<'_>) -> Result<(), GateError> {
        let mut refused = None;
        // Tries again if the script was not loaded, or after a change that can be handled at once.
        for _ in 0..2 {
            let sent = self.ready(at).await?;
            let mut pipeline = Pipeline::with_capacity(2);
            let by = at.link.scripts();
            let pulse = self.pulse(&sent, (PulseKind::Heartbeat, by));
            scripts::pulse().add(&mut pipeline, by, pulse);
            match at.link.on(&at.primary.shard, &pipeline).await?.as_slice() {
                [Value::ServerError(error), _] => {
                    return Err(refusal::refused(error, "SCRIPT LOAD"));
                }
                [.., Value::ServerError(error)] => return Err(self.refused(error)),
                [.., answer] => match self.beaten(&sent, answer) {
                    Ok(()) => return Ok(()),
                    Err(error) => refused = Some(error),
                },
                [] => {}
            }
        }
        refused.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::Gap;

    fn answer(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().map(|number| Value::Int(*number)).collect())
    }

    fn sound() -> (Watch, SentPulse) {
        let watch = Watch::new("p:%epoch".to_owned(), Duration::from_secs(1), false);
        assert!(watch.sent(None).is_none(), "nothing is known yet");
        let epoch = ("id".to_owned(), "run".to_owned());
        watch.go(epoch, 0, EpochFindings::default());
        let sent = watch.sent(None).expect("it is sound");
        (watch, sent)
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_until_its_epoch_is_known() {
        let (watch, _) = sound();
        let gap = Gap {
            since: Some(1_000),
            until: 61_000,
        };
        let found = EpochFindings {
            gap,
            ..EpochFindings::default()
        };
        watch.go(("id".to_owned(), "run".to_owned()), 0, found);
        let mut sent = watch.sent(None).expect("it is sound");
        let mut wait = |span_ms, now_ms: u64| {
            sent.found.clock = Some((now_ms, Instant::now()));
            match watch.opens(&sent, span_ms) {
                Ok(()) => 0,
                Err(GateError::Cold { wait, .. }) => wait.as_millis(),
                Err(other) => panic!("{other:?}"),
            }
        };
        assert_eq!([wait(2_000, 2_999), wait(2_000, 3_000)], [1, 0]);
        assert_eq!(
            [
                wait(60_000, 3_000),
                wait(99_000, 60_999),
                wait(99_000, 61_000)
            ],
            [58_000, 1, 0]
        );
    }

    #[test]
    fn an_answer_that_comes_after_a_doubt_does_not_count() {
        let (watch, sent) = sound();
        assert!(watch.beaten(&sent, &answer(&[0, 200])).is_err());
        assert!(watch.sent(None).is_none());
        let late = answer(&[1, 199, 9]);
        assert!(watch.beaten(&sent, &late).is_err());
        // The late answer does not count after admissions reopen either: the decisions before it
        // may be lost.
        let epoch = ("id".to_owned(), "run2".to_owned());
        watch.go(epoch, 3, EpochFindings::default());
        assert!(watch.beaten(&sent, &late).is_err());
        assert_eq!(watch.known().pulse, 3);
        let sent = watch
            .sent(None)
            .expect("the late answer says nothing of now");
        assert!(watch.beaten(&sent, &answer(&[1, 300, 4])).is_ok());
    }

    #[test]
    fn the_clock_of_a_wait_follows_that_of_redis_but_not_back() {
        let (watch, sent) = sound();
        assert_eq!(sent.now(), None);
        let shows = |now: i64| {
            let beaten = watch.beaten(&sent, &answer(&[1, now, 1]));
            assert!(beaten.is_ok());
            let sent = watch.sent(None).expect("it is sound");
            sent.now().expect("it was read") / 100_000
        };
        assert_eq!(
            [500, 900, 300, 1_000].map(|at| shows(at * 100_000 + 5_000)),
            [500, 900, 900, 1_000]
        );
    }
}
