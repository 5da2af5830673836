//! Pauses, drains and resumes all workers.

use std::collections::BTreeMap;
use std::time::Duration;

use super::NotDone;
use super::answer::{answers, words};
use super::steer::{Followers, WorkerLoad, followed, loads, still_lasts};
use super::text::count;
use super::times::when;
use broker::amqp::Client;
use gate::instructions::{BoardView, Versions, drop_all, see};
use gate::redis::RedisGate;
use rules::steering::{Hold, Instruction};

words! {
    /// An instruction to all workers.
    pub struct HeldWord = Hold::EVERY.map(Hold::keyword);

    /// Says that all workers are paused.
    pub struct PausedWord = ["paused"];

    /// Says that no instruction holds the workers any more.
    pub struct ResumedWord = ["resumed"];

    /// Says that all workers drain.
    pub struct DrainingWord = ["draining"];
}
answers! {
    /// A pause of all workers.
    pub struct StartedPause: Followers {
        pub all: PausedWord,
        pub until_ms: u64,
        pub calls_in_flight: u64,
    }

    /// The end of a pause or drain of all workers.
    pub struct Resumed: Followers {
        pub all: ResumedWord,
        /// Instruction that was in force before.
        pub was: Option<HeldWord>,
    }

    /// A drain of all workers.
    pub struct Draining: Followers {
        pub all: DrainingWord,
        pub until_ms: u64,
        /// Work that is left to finish.
        pub left: RemainingWork,
        /// Whether the drain completed, or `None` if the operator did not wait for that.
        pub empty: Option<bool>,
        /// Jobs that stay in the work queue.
        pub jobs_in_work_queue: u64,
    }

    /// Work that is left to finish.
    #[derive(Default, PartialEq, Eq)]
    pub struct RemainingWork {
        pub calls_in_flight: u64,
        pub jobs_in_memory: u64,
        pub jobs_in_delay_queues: u64,
    }
}

/// Returns the instruction to all workers on these boards, and when it ends (ms).
pub fn held(seen: &[BoardView]) -> Option<(Hold, u64)> {
    let until = |hold| until(seen, hold).map(|until_ms| (hold, until_ms));
    until(Hold::Paused).or_else(|| until(Hold::Draining))
}

/// Returns when the instruction `hold` to all workers ends (ms), or `None` if it is not on these
/// boards.
pub fn until(seen: &[BoardView], hold: Hold) -> Option<u64> {
    let posted = seen.iter().flat_map(|board| &board.posted);
    let of_all = posted.filter(|(instruction, _)| *instruction == Instruction::All(hold));
    of_all.map(|(_, until_ms)| *until_ms).max()
}

/// Describes the instruction to all workers in one line; empty if there is none.
pub fn describe_hold(seen: &[BoardView]) -> String {
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
        Hold::Draining => "is draining all workers, which take no new jobs",
    };
    let ends = when(now_ms, until_ms.saturating_sub(now_ms));
    format!("an operator {what}; it ends {ends}, or by sluicegate resume --all")
}

/// Waits at most `within` for all workers to follow `versions`, which pause them.
///
/// # Errors
/// [`NotDone::Redis`], [`NotDone::Failed`] if the pause has ended in the meantime
pub async fn paused(
    gate: &RedisGate,
    versions: &Versions,
    within: Duration,
) -> Result<StartedPause, NotDone> {
    let (seen, followers) = followed(gate, versions, within).await?;
    Ok(StartedPause {
        base: followers,
        all: "paused".into(),
        until_ms: still_lasts(until(&seen, Hold::Paused))?,
        calls_in_flight: loads(&seen).values().map(|load| load.running).sum(),
    })
}

/// The removal of the instruction to all workers, which not all of them follow yet.
pub struct Resuming {
    before: Option<Hold>,
    versions: Versions,
}

/// Removes the instructions to all workers.
///
/// # Errors
/// [`NotDone::Redis`]
pub async fn resume(gate: &RedisGate) -> Result<Resuming, NotDone> {
    let before = held(&see(gate).await?).map(|(hold, _)| hold);
    let names = Hold::EVERY.map(|hold| Instruction::All(hold).name());
    let versions = drop_all(gate, &names).await?;
    Ok(Resuming { before, versions })
}

impl Resuming {
    /// Waits at most `within` for all workers to follow.
    ///
    /// # Errors
    /// [`NotDone::Redis`]
    pub async fn resumed(self, gate: &RedisGate, within: Duration) -> Result<Resumed, NotDone> {
        let (_, followers) = followed(gate, &self.versions, within).await?;
        Ok(Resumed {
            base: followers,
            all: "resumed".into(),
            was: self.before.map(|hold| hold.keyword().into()),
        })
    }
}

/// Waits at most `within` for all workers to follow `versions`, which drain them.
///
/// # Errors
/// [`NotDone::Redis`], [`NotDone::RabbitMq`], [`NotDone::Failed`] if the drain has ended in the
/// meantime
pub async fn draining(
    gate: &RedisGate,
    client: &Client,
    versions: &Versions,
    within: Duration,
) -> Result<Draining, NotDone> {
    let (seen, followers) = followed(gate, versions, within).await?;
    Ok(Draining {
        base: followers,
        all: "draining".into(),
        until_ms: still_lasts(until(&seen, Hold::Draining))?,
        left: RemainingWork::of(&loads(&seen), in_delay_queues(client).await?),
        empty: None,
        jobs_in_work_queue: in_work_queues(client).await?,
    })
}

impl RemainingWork {
    /// Sums up the loads of the workers, and adds the jobs in delay queues.
    pub fn of(loads: &BTreeMap<String, WorkerLoad>, jobs_in_delay_queues: u64) -> Self {
        Self {
            calls_in_flight: loads.values().map(|load| load.running).sum(),
            jobs_in_memory: loads.values().map(|load| load.in_memory).sum(),
            jobs_in_delay_queues,
        }
    }

    /// Returns true if nothing is left.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Describes the remaining work for people.
    pub fn describe(&self) -> String {
        format!(
            "{} in flight, {} in the workers' memory, {} in delay queues",
            count(self.calls_in_flight, "call"),
            count(self.jobs_in_memory, "job"),
            self.jobs_in_delay_queues
        )
    }
}

/// Returns the number of ready jobs in all queues of new jobs.
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

/// Returns the number of ready jobs in the delay queues, the due queue and the recheck queue.
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
