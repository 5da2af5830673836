//! Reads and writes the epoch's hash, and reads the server's identity.

use ::redis::{Cmd, Pipeline, Value, from_redis_value_ref};

use super::{Fields, PrimaryReport, Watch, WatchTarget};
use crate::epoch::ServerIdentity;
use crate::epoch::server_identity::policy;
use crate::{GateError, link, scripts};
use config::ScriptCommand;

/// The sections of `INFO` with the server's identity and evictions. Redis 6.2 takes one section at
/// a time.
const INFO: [&str; 4] = ["server", "replication", "stats", "memory"];

impl Watch {
    pub(super) async fn read(&self, at: &WatchTarget<'_>) -> Result<PrimaryReport, GateError> {
        let answers = self.read_answers(at).await?;
        for answer in &answers {
            if let Value::ServerError(error) = answer {
                return Err(self.refused(error));
            }
        }
        let unreadable = || {
            GateError::Refused(format!(
                "{}: INFO lacks run_id, master_replid or master_replid2, which show whether Redis \
                 lost its memory; behind a proxy, set redis.scripts: eval",
                at.link.servers()
            ))
        };
        let Some(([hash, time], more)) = answers.split_first_chunk() else {
            return Err(unreadable());
        };
        let Some((sections, more)) = more.split_at_checked(INFO.len()) else {
            return Err(unreadable());
        };
        let fields: Fields = from_redis_value_ref(hash).map_err(|_| unreadable())?;
        let text = |value| from_redis_value_ref::<String>(value).unwrap_or_default();
        let info = sections.iter().map(text).collect::<Vec<_>>().join("\n");
        let memory = ServerIdentity::parse(&info).ok_or_else(unreadable)?;
        let (seconds, micros): (u64, u64) = from_redis_value_ref(time).map_err(|_| unreadable())?;
        let owned = match more {
            [id, slots] => {
                let owned = at.finder.ours(&link::owned(id, slots)?);
                Some((owned, memory.whole_ms(&info)))
            }
            _ => None,
        };
        Ok(PrimaryReport {
            fields,
            memory,
            policy: policy(&info).map(str::to_owned),
            now: seconds * 1000 + micros / 1000,
            owned,
        })
    }

    /// Returns the answers to HGETALL, TIME, INFO for each section and, in a cluster, CLUSTER MYID
    /// and CLUSTER SLOTS.
    async fn read_answers(&self, at: &WatchTarget<'_>) -> Result<Vec<Value>, GateError> {
        let mut pipeline = Pipeline::with_capacity(4 + INFO.len());
        if at.link.is_behind_proxy() {
            pipeline.add_command(server_command(&self.key));
            let answers = at.link.on(&at.primary.shard, &pipeline).await?;
            return Ok(match <[Value; 1]>::try_from(answers) {
                Ok([Value::Array(answers)]) => answers,
                Ok(refused) => refused.to_vec(),
                Err(answers) => answers,
            });
        }
        pipeline.cmd("HGETALL").arg(&self.key);
        pipeline.cmd("TIME");
        for section in INFO {
            pipeline.cmd("INFO").arg(section);
        }
        if at.link.is_cluster() {
            pipeline.cmd("CLUSTER").arg("MYID");
            pipeline.cmd("CLUSTER").arg("SLOTS");
        }
        at.link.on(&at.primary.shard, &pipeline).await
    }

    /// Writes `changed` if the hash is still as it was read. In either case it must be read again.
    pub(super) async fn write(
        &self,
        at: &WatchTarget<'_>,
        read: &Fields,
        changed: &[(String, String)],
    ) -> Result<(), GateError> {
        let own = self.field();
        let mut pipeline = Pipeline::with_capacity(2);
        let before = unchanged(read, &own, changed);
        self.add_write(&mut pipeline, at.link.scripts(), &before, changed);
        for answer in at.link.on(&at.primary.shard, &pipeline).await? {
            if let Value::ServerError(error) = answer {
                return Err(self.refused(&error));
            }
        }
        Ok(())
    }

    pub(super) fn add_write(
        &self,
        pipeline: &mut Pipeline,
        command: ScriptCommand,
        read: &[(&str, &str)],
        changed: &[(String, String)],
    ) {
        let script = scripts::epoch();
        let mut call = Cmd::new();
        call.arg(&script.call(command)).arg(1).arg(&self.key);
        call.arg(read.len());
        for (name, value) in read {
            call.arg(name).arg(value);
        }
        for (name, value) in changed {
            call.arg(name).arg(value);
        }
        script.add(pipeline, command, call);
    }
}

/// Returns the command that reads the hash `key`, the clock, and [`INFO`] of its server. Proxies
/// refuse these commands, but not inside a script.
pub fn server_command(key: &str) -> Cmd {
    let mut call = Cmd::new();
    call.arg(&scripts::server().call(ScriptCommand::Eval));
    call.arg(1).arg(key).arg(&INFO);
    call
}

/// Returns the text of `INFO` in an answer to [`server_command`], or `None` if it has none.
pub fn info_of(answer: &Value) -> Option<String> {
    let Value::Array(all) = answer else {
        return None;
    };
    let text = |value| from_redis_value_ref::<String>(value).ok();
    let sections: Option<Vec<String>> = all.get(2..)?.iter().map(text).collect();
    Some(sections?.join("\n"))
}

/// Returns the fields that must be unchanged for `changed` to be written, each with the value read,
/// or an empty text if it was absent. `own` is the worker's field.
fn unchanged<'a>(
    read: &'a Fields,
    own: &'a str,
    changed: &[(String, String)],
) -> Vec<(&'a str, &'a str)> {
    let value = |name| (name, read.get(name).map_or("", String::as_str));
    let mut fields = ["id", "run", "cold", "next", "slots"].map(value).to_vec();
    // A pulse may be answered at the same moment and must not be set back.
    if changed.iter().any(|(name, _)| name == own) {
        fields.push(value(own));
    }
    fields
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fake_redis::FakeRedis;

    use super::super::pulse::PulseKind;
    use super::super::{EpochFindings, SentPulse};
    use super::*;
    use crate::epoch::EpochFields;
    use config::ScriptCommand::EvalSha;

    /// A worker, and an epoch that it knows.
    struct Bed {
        server: FakeRedis,
        watch: Watch,
        own: String,
    }

    fn sent() -> SentPulse {
        let found = EpochFindings {
            history: "h0".to_owned(),
            ..EpochFindings::default()
        };
        SentPulse {
            version: 0,
            epoch: ("i".to_owned(), "r".to_owned()),
            found,
        }
    }

    impl Bed {
        fn new(pulse: Option<&str>) -> Self {
            let watch = Watch::new("e".to_owned(), Duration::ZERO, false);
            let own = watch.field();
            let mut pipeline = Pipeline::new();
            pipeline.cmd("HSET").arg("e").arg(&["id", "i", "run", "r"]);
            if let Some(pulse) = pulse {
                pipeline.cmd("HSET").arg("e").arg(&own).arg(pulse);
            }
            let bed = Self {
                server: FakeRedis::new(|| 2_000_000),
                watch,
                own,
            };
            bed.server.run(&pipeline);
            bed
        }

        /// One pulse of the worker.
        fn beat(&self) -> u64 {
            let mut pipeline = Pipeline::new();
            let script = scripts::pulse();
            pipeline.cmd("SCRIPT").arg("LOAD").arg(&script.source);
            pipeline.add_command(self.watch.pulse(&sent(), (PulseKind::Proof, EvalSha)));
            let answer = self.server.run(&pipeline).remove(1);
            let numbers: Vec<u64> = ::redis::from_redis_value(answer).expect("numbers");
            let [1, 2_000, pulse] = numbers[..] else {
                panic!("the epoch is as the worker knows it: {numbers:?}");
            };
            pulse
        }

        fn read(&self) -> Fields {
            let mut get = ::redis::cmd("HGETALL");
            get.arg("e");
            ::redis::from_redis_value(self.server.command(&get)).expect("a hash")
        }

        /// Writes `changed` if the hash is still as in `read`. Returns whether it was written.
        fn write(&self, read: &Fields, changed: &[(&str, &str)]) -> bool {
            let changed: Vec<_> = changed
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
                .collect();
            let before = unchanged(read, &self.own, &changed);
            let mut pipeline = Pipeline::new();
            (self.watch).add_write(&mut pipeline, EvalSha, &before, &changed);
            self.server.run(&pipeline)[1] == Value::Int(1)
        }

        fn pulse(&self) -> u64 {
            let fields = self.read();
            let stored = EpochFields::parse(&fields);
            stored
                .workers
                .values()
                .next()
                .map_or(0, |pulse| pulse.number)
        }
    }

    #[test]
    fn a_pulse_never_moves_back() {
        for pulse in [None, Some("4:1000")] {
            let bed = Bed::new(pulse);
            let read = bed.read();
            let number = bed.pulse();
            let name = format!("{number}:1500");
            let vouched = format!("{number}:1000:r2");
            assert_eq!(bed.beat(), number + 1);
            for value in [&name, &vouched] {
                assert!(!bed.write(&read, &[(&bed.own, value)]), "{value}");
                assert_eq!(bed.pulse(), number + 1, "{value}");
            }
            // It is written after another read.
            let read = bed.read();
            let name = format!("{}:2500", number + 1);
            assert!(bed.write(&read, &[(&bed.own, &name)]));
            assert_eq!(bed.pulse(), number + 1);
        }
    }

    #[test]
    fn a_simultaneous_pulse_does_not_block_other_writes() {
        let bed = Bed::new(Some("4:1000"));
        let read = bed.read();
        bed.beat();
        assert!(bed.write(&read, &[("why", "because")]));
        assert_eq!(bed.pulse(), 5);
        // A change by another worker does prevent it.
        assert!(bed.write(&read, &[("next", "1:2:m")]));
        assert!(!bed.write(&read, &[("next", "1:2:n")]));
    }
}
