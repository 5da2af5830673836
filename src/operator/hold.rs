//! What an operator asks of all workers: to pause, to drain, to resume.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::NotDone;
use super::steer::{Followers, Load, followed, loads};
use super::times::when;
use super::words::count;
use crate::broker::amqp::Client;
use crate::gate::boards::{Seen, Versions, drop_all, see};
use crate::gate::redis::RedisGate;
use crate::rules::steering::{ALL, Hold, Instruction};

/// What is asked of all workers at these boards, and until when (ms).
pub fn held(seen: &[Seen]) -> Option<(Hold, u64)> {
    let until = |hold| until(seen, hold).map(|until_ms| (hold, until_ms));
    until(Hold::Paused).or_else(|| until(Hold::Draining))
}

/// Until when (ms) all are asked to `hold` at these boards; `None`: they are not.
pub fn until(seen: &[Seen], hold: Hold) -> Option<u64> {
    let posted = seen.iter().flat_map(|board| &board.posted);
    let of_all = posted.filter(|(instruction, _)| *instruction == Instruction::All(hold));
    of_all.map(|(_, until_ms)| *until_ms).max()
}

/// What is asked of all workers, in a line; empty: nothing.
pub fn held_in_words(seen: &[Seen]) -> String {
    let now_ms = seen
        .iter()
        .map(|board| board.now_ms)
        .max()
        .unwrap_or_default();
    let Some((hold, until_ms)) = held(seen) else {
        return String::new();
    };
    let what = match hold {
        Hold::Paused => "paused all workers",
        Hold::Draining => "drains all workers, which take no new jobs",
    };
    let ends = when(now_ms, until_ms.saturating_sub(now_ms));
    format!("an operator {what}; it ends {ends}, or by sluicegate resume --all")
}

/// That all workers pause.
pub struct Paused {
    /// Until when (ms).
    pub until_ms: u64,
    /// Who follows.
    pub followers: Followers,
    /// Calls in flight.
    pub running: u64,
}

/// Waits until all workers follow `versions`, which pause them, for so long at most.
///
/// # Errors
/// [`NotDone::Redis`]
pub async fn paused(
    gate: &RedisGate,
    versions: &Versions,
    within: Duration,
) -> Result<Paused, NotDone> {
    let (seen, followers) = followed(gate, versions, within).await?;
    Ok(Paused {
        until_ms: until(&seen, Hold::Paused).unwrap_or_default(),
        followers,
        running: loads(&seen).values().map(|load| load.running).sum(),
    })
}

impl Paused {
    /// For programs.
    pub fn as_json(&self) -> Value {
        json!({
            "all": "paused",
            "until_ms": self.until_ms,
            "workers": self.followers.all,
            "workers_following": self.followers.following,
            "calls_in_flight": self.running,
        })
    }
}

/// What was asked of all workers, and is not any more.
pub struct Resuming {
    before: Option<Hold>,
    versions: Versions,
}

/// Ends what is asked of all workers.
///
/// # Errors
/// [`NotDone::Redis`]
pub async fn resume(gate: &RedisGate) -> Result<Resuming, NotDone> {
    let before = held(&see(gate).await?).map(|(hold, _)| hold);
    let versions = drop_all(gate, &[ALL.to_owned()]).await?;
    Ok(Resuming { before, versions })
}

impl Resuming {
    /// Waits until all workers follow, for so long at most.
    ///
    /// # Errors
    /// [`NotDone::Redis`]
    pub async fn resumed(self, gate: &RedisGate, within: Duration) -> Result<Resumed, NotDone> {
        let (_, followers) = followed(gate, &self.versions, within).await?;
        Ok(Resumed {
            before: self.before,
            followers,
        })
    }
}

/// That all workers go on.
pub struct Resumed {
    /// What they were asked.
    pub before: Option<Hold>,
    /// Who follows.
    pub followers: Followers,
}

impl Resumed {
    /// For programs.
    pub fn as_json(&self) -> Value {
        json!({
            "all": "resumed",
            "was": self.before.map(Hold::word),
            "workers": self.followers.all,
            "workers_following": self.followers.following,
        })
    }
}

/// That all workers drain.
pub struct Draining {
    /// Until when (ms).
    pub until_ms: u64,
    /// Who follows.
    pub followers: Followers,
    /// What is left to be finished.
    pub left: Left,
}

/// Waits until all workers follow `versions`, which let them drain, for so long at most.
///
/// # Errors
/// [`NotDone::Redis`], [`NotDone::RabbitMq`]
pub async fn draining(
    gate: &RedisGate,
    client: &Client,
    versions: &Versions,
    within: Duration,
) -> Result<Draining, NotDone> {
    let (seen, followers) = followed(gate, versions, within).await?;
    Ok(Draining {
        until_ms: until(&seen, Hold::Draining).unwrap_or_default(),
        left: Left::of(&loads(&seen), in_delay_queues(client).await?),
        followers,
    })
}

impl Draining {
    /// For programs; `empty` where somebody waited for that, and so many jobs that `stay` in the work queue.
    pub fn as_json(&self, empty: Option<bool>, stay: u64) -> Value {
        json!({
            "all": "draining",
            "until_ms": self.until_ms,
            "workers": self.followers.all,
            "workers_following": self.followers.following,
            "left": self.left.as_json(),
            "empty": empty,
            "jobs_in_work_queue": stay,
        })
    }
}

/// What is left to be finished.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Left {
    /// Calls in flight.
    pub running: u64,
    /// Jobs in the workers' memory.
    pub in_memory: u64,
    /// Jobs in delay queues.
    pub in_delay_queues: u64,
}

impl Left {
    /// Of these workers, with so many in delay queues.
    pub fn of(loads: &BTreeMap<String, Load>, in_delay_queues: u64) -> Self {
        Self {
            running: loads.values().map(|load| load.running).sum(),
            in_memory: loads.values().map(|load| load.in_memory).sum(),
            in_delay_queues,
        }
    }

    /// Nothing is left.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// For people.
    pub fn in_words(&self) -> String {
        let Self {
            running,
            in_memory,
            in_delay_queues,
        } = self;
        format!(
            "{} in flight, {} in the workers' memory, {in_delay_queues} in delay queues",
            count(*running, "call"),
            count(*in_memory, "job")
        )
    }

    /// For programs.
    pub fn as_json(&self) -> Value {
        json!({
            "calls_in_flight": self.running,
            "jobs_in_memory": self.in_memory,
            "jobs_in_delay_queues": self.in_delay_queues,
        })
    }
}

/// Jobs that nobody has taken, in all queues of new jobs.
///
/// # Errors
/// [`NotDone::RabbitMq`]
pub async fn in_work_queues(client: &Client) -> Result<u64, NotDone> {
    let names = client.names();
    let mut all = 0;
    for queue in names.more().iter().chain([&names.fresh]) {
        all += u64::from(client.depth(queue).await?);
    }
    Ok(all)
}

/// Jobs that wait outside the work queue and the workers.
///
/// # Errors
/// [`NotDone::RabbitMq`]
pub async fn in_delay_queues(client: &Client) -> Result<u64, NotDone> {
    let names = client.names();
    let mut all = 0;
    for queue in names.delays().iter().chain([&names.due, &names.recheck]) {
        all += u64::from(client.depth(queue).await?);
    }
    Ok(all)
}
