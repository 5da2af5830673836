//! The pulse: it ends each batch of decisions, and without one it is a heartbeat. What it answers says whether they count.

use std::sync::atomic::Ordering;
use std::time::Instant;

use ::redis::{Cmd, Pipeline, Value, from_redis_value_ref};

use super::{At, LOOK_AGAIN, Sent, Watch};
use crate::gate::link::Request;
use crate::gate::{GateError, refusal, scripts};
use crate::rules::epoch::FORGET_MS;

/// Fields that a heartbeat looks at for workers that are gone.
const SWEEP: u32 = 16;

/// What a pulse is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It ends a batch.
    Batch,
    /// It says that the memory is whole here and now.
    Proof,
    /// It also drops workers that are gone.
    Heartbeat,
}

impl Watch {
    /// Ends a pipeline of decisions. `load`: Redis did not know the script.
    pub fn request(&self, sent: &Sent, micros: &str, load: bool) -> Request<'_> {
        Request {
            key: &self.key,
            command: self.pulse(sent, micros, Kind::Batch),
            load: load.then(scripts::pulse),
        }
    }

    pub(super) fn pulse(&self, sent: &Sent, micros: &str, kind: Kind) -> Cmd {
        let silent = 2 * self.span_ms.load(Ordering::Relaxed) + FORGET_MS;
        let mut command = ::redis::cmd("EVALSHA");
        command
            .arg(&scripts::pulse().sha)
            .arg(1)
            .arg(&self.key)
            .arg(micros)
            .arg(&sent.epoch.0)
            .arg(&sent.epoch.1)
            .arg(&sent.history)
            .arg(self.field())
            .arg(silent)
            .arg(if kind == Kind::Heartbeat { SWEEP } else { 0 })
            .arg(&sent.slots);
        // It takes a sixth of a single decision, so batches look where there is something to see. Heartbeats always do, and
        // find out where the policy has changed.
        if sent.evicts || kind != Kind::Batch {
            command.arg(sent.evicted);
        } else {
            command.arg("");
        }
        command
    }

    /// The pulse's answer: whether the decisions before it count, the `earliest` of which was at that time.
    ///
    /// # Errors
    /// [`GateError::Cold`] when they don't.
    pub fn beaten(&self, sent: &Sent, answer: &Value, earliest: u64) -> Result<(), GateError> {
        let numbers: Vec<u64> = from_redis_value_ref(answer).unwrap_or_default();
        let mut state = self.state();
        if let [1, _, cold, pulse] = numbers[..]
            && state.sound
            && state.version == sent.version
        {
            // Pulses are numbered by Redis: of answers that overtook each other the highest counts.
            state.pulse = state.pulse.max(pulse);
            state.last_pulse = Some(Instant::now());
            if earliest >= cold {
                return Ok(());
            }
        } else if state.version == sent.version {
            state.sound = false;
            state.version += 1;
        }
        Err(GateError::Cold {
            wait: LOOK_AGAIN,
            why: "it changed while jobs were decided".to_owned(),
        })
    }

    /// A pulse without decisions: proves that this worker lives, and notices what others did.
    pub async fn heartbeat(&self, at: &At<'_>) -> Result<(), GateError> {
        let micros = at
            .clock
            .map_or_else(String::new, |micros| micros.to_string());
        let mut refused = None;
        // A second time for a script that was not loaded, or a change that is understood at once.
        for _ in 0..2 {
            let sent = self.ready(at).await?;
            let mut pipeline = Pipeline::with_capacity(2);
            pipeline
                .cmd("SCRIPT")
                .arg("LOAD")
                .arg(&scripts::pulse().source);
            pipeline.add_command(self.pulse(&sent, &micros, Kind::Heartbeat));
            match at.link.on(&at.place.shard, &pipeline).await?.as_slice() {
                [Value::ServerError(error), _] => {
                    return Err(refusal::refused(error, "SCRIPT LOAD"));
                }
                [_, Value::ServerError(error)] => return Err(self.refused(error)),
                [_, answer] => match self.beaten(&sent, answer, u64::MAX) {
                    Ok(()) => return Ok(()),
                    Err(error) => refused = Some(error),
                },
                _ => {}
            }
        }
        refused.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Found;
    use super::*;

    fn answer(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().map(|number| Value::Int(*number)).collect())
    }

    fn sound() -> (Watch, Sent) {
        let watch = Watch::new("p:%epoch".to_owned(), Duration::from_secs(1), false);
        assert!(watch.sent(None).is_none(), "nothing is known yet");
        let epoch = ("id".to_owned(), "run".to_owned());
        watch.go(epoch, "history".to_owned(), 0, Found::default());
        let sent = watch.sent(None).expect("it is sound");
        (watch, sent)
    }

    #[test]
    fn decisions_of_before_the_end_of_the_wait_do_not_count() {
        let (watch, sent) = sound();
        let pulse = answer(&[1, 200, 100, 7]);
        assert!(watch.beaten(&sent, &pulse, 99).is_err());
        assert!(watch.beaten(&sent, &pulse, 100).is_ok());
        assert_eq!(watch.known().pulse, 7);
    }

    #[test]
    fn an_answer_that_comes_after_a_doubt_does_not_count() {
        let (watch, sent) = sound();
        assert!(watch.beaten(&sent, &answer(&[0, 200]), 200).is_err());
        assert!(watch.sent(None).is_none());
        let late = answer(&[1, 199, 0, 9]);
        assert!(watch.beaten(&sent, &late, 150).is_err());
        // Nor when all is well again: what it was decided on may be lost.
        let epoch = ("id".to_owned(), "run2".to_owned());
        watch.go(epoch, "other".to_owned(), 3, Found::default());
        assert!(watch.beaten(&sent, &late, 150).is_err());
        assert_eq!(watch.known().pulse, 3);
        let sent = watch
            .sent(None)
            .expect("the late answer says nothing of now");
        assert!(watch.beaten(&sent, &answer(&[1, 300, 0, 4]), 300).is_ok());
    }
}
