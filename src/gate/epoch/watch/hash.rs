//! The epoch's hash and what else the server says of its memory: read and written.

use ::redis::Value;
use ::redis::{Pipeline, from_redis_value_ref};

use super::{At, Fields, Read, Watch};
use crate::gate::epoch::Memory;
use crate::gate::epoch::memory::policy;
use crate::gate::{GateError, link, scripts};

/// The sections of `INFO` that say which memory it is, and what it threw away. Redis 6.2 takes one at a time.
const INFO: [&str; 4] = ["server", "replication", "stats", "memory"];

impl Watch {
    pub(super) async fn read(&self, at: &At<'_>) -> Result<Read, GateError> {
        let mut pipeline = Pipeline::with_capacity(4 + INFO.len());
        pipeline.cmd("HGETALL").arg(&self.key);
        pipeline.cmd("TIME");
        for section in INFO {
            pipeline.cmd("INFO").arg(section);
        }
        if at.link.is_cluster() {
            pipeline.cmd("CLUSTER").arg("MYID");
            pipeline.cmd("CLUSTER").arg("SLOTS");
        }
        let answers = at.link.on(&at.place.shard, &pipeline).await?;
        for answer in &answers {
            if let Value::ServerError(error) = answer {
                return Err(self.refused(error));
            }
        }
        let unreadable = || {
            GateError::Refused(format!(
                "{}: INFO does not name run_id, master_replid and master_replid2, by which a Redis that lost its \
                 memory is known; is a proxy between this worker and Redis?",
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
        let memory = Memory::parse(&info).ok_or_else(unreadable)?;
        let (seconds, micros): (u64, u64) = from_redis_value_ref(time).map_err(|_| unreadable())?;
        let owned = match more {
            [id, slots] => {
                let owned = at.places.ours(&link::owned(id, slots)?);
                Some((owned, memory.whole_ms(&info)))
            }
            _ => None,
        };
        Ok(Read {
            fields,
            memory,
            policy: policy(&info).map(str::to_owned),
            now: seconds * 1000 + micros / 1000,
            owned,
        })
    }

    /// Writes `changed` if the hash is still as it was read; either way it is read again.
    pub(super) async fn write(
        &self,
        at: &At<'_>,
        read: &Fields,
        changed: &[(String, String)],
    ) -> Result<(), GateError> {
        let value = |name| (name, read.get(name).map_or("", String::as_str));
        let mut before = ["id", "run", "cold", "next", "slots"].map(value).to_vec();
        // A pulse may be answered in the same moment, which must not be set back.
        let own = self.field();
        if changed.iter().any(|(name, _)| *name == own) {
            before.push(value(&own));
        }
        let mut pipeline = Pipeline::with_capacity(2);
        self.add_write(&mut pipeline, &before, changed);
        for answer in at.link.on(&at.place.shard, &pipeline).await? {
            if let Value::ServerError(error) = answer {
                return Err(self.refused(&error));
            }
        }
        Ok(())
    }

    pub(super) fn add_write(
        &self,
        pipeline: &mut Pipeline,
        read: &[(&str, &str)],
        changed: &[(String, String)],
    ) {
        let script = scripts::epoch();
        pipeline.cmd("SCRIPT").arg("LOAD").arg(&script.source);
        pipeline
            .cmd("EVALSHA")
            .arg(&script.sha)
            .arg(1)
            .arg(&self.key)
            .arg(read.len());
        for (name, value) in read {
            pipeline.arg(name).arg(value);
        }
        for (name, value) in changed {
            pipeline.arg(name).arg(value);
        }
    }
}
