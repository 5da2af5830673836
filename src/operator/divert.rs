//! Diverts a tenant's jobs to another queue for a while, and ends the diversion.

use std::sync::Arc;
use std::time::Duration;

use super::NotDone;
use super::answer::{Omittable, answers, words};
use super::dead::Replayed;
use super::rabbitmq::open;
use super::steer::{Followers, followed, still_lasts};
use config::Config;
use gate::instructions::{BoardView, drop_all, put, see};
use gate::redis::RedisGate;
use rules::delays::QueueNames;
use rules::steering::Instruction;
use rules::tenant::Tenant;

/// Maximum length of a queue's name in bytes.
const MAX_QUEUE_NAME_BYTES: usize = 255;

/// Returns the default queue for a diverted tenant's jobs, next to the work queue `work`.
pub fn usual(work: &str) -> String {
    format!("{work}.diverted")
}

/// Returns `queue` if jobs can be diverted to it.
///
/// # Errors
/// [`NotDone::Wrong`]
pub fn checked(queue: String, names: &QueueNames) -> Result<Arc<str>, NotDone> {
    if queue.is_empty() || queue.len() > MAX_QUEUE_NAME_BYTES {
        return Err(NotDone::Wrong(format!(
            "the queue's name has {} bytes; it must have 1 to {MAX_QUEUE_NAME_BYTES}",
            queue.len()
        )));
    }
    if queue.contains(char::is_control) {
        return Err(NotDone::Wrong(
            "the queue's name has a control character".to_owned(),
        ));
    }
    if names.has(&queue) {
        return Err(NotDone::Wrong(format!(
            "{queue} is one of the workers' own queues; name another queue"
        )));
    }
    Ok(queue.into())
}

answers! {
    /// A diversion: a tenant's jobs go to another queue.
    pub struct Diverted: Followers {
        pub tenant: String,
        pub change: DivertWord,
        pub queue: String,
        pub until_ms: u64,
    }

    /// The end of a diversion: a tenant's jobs are called again.
    pub struct Undiverted: Followers {
        pub tenant: String,
        pub change: UndivertWord,
        /// The diverted jobs that returned to the work queue, if requested.
        pub back: Omittable<Replayed>,
        /// Queue from which they returned. It still holds the jobs that did not return.
        pub from: Omittable<String>,
    }
}
words! {
    /// Names a diversion among other changes.
    pub struct DivertWord = ["divert"];

    /// Names the end of a diversion among other changes.
    pub struct UndivertWord = ["undivert"];
}

/// Diverts the jobs of `tenant` for `for_ms` to the queue `to`, or to the default queue, and waits
/// at most `within` for all workers to follow.
///
/// # Errors
/// [`NotDone::Wrong`] if jobs can't be diverted to that queue, [`NotDone::Failed`] if the diversion
/// has ended in the meantime, [`NotDone::Redis`], [`NotDone::RabbitMq`]
pub async fn divert(
    (gate, config): (&RedisGate, &Config),
    tenant: &Tenant,
    to: Option<String>,
    (for_ms, within): (u64, Duration),
) -> Result<Diverted, NotDone> {
    let client = open(config).await?;
    let names = client.names();
    let queue = checked(to.unwrap_or_else(|| usual(&names.fresh)), names);
    let made = match &queue {
        Ok(queue) => client.make(queue).await,
        Err(_) => Ok(()),
    };
    client.close().await;
    let queue = queue?;
    made?;
    let asked = Instruction::Divert(tenant.clone(), Arc::clone(&queue));
    let versions = put(gate, &asked, for_ms).await?;
    let (seen, followers) = followed(gate, &versions, within).await?;
    Ok(Diverted {
        base: followers,
        tenant: tenant.to_string(),
        change: "divert".into(),
        queue: queue.to_string(),
        until_ms: still_lasts(until(&seen, tenant).map(|(until_ms, _)| until_ms))?,
    })
}

/// Ends a diversion that [`divert`] started and waits at most `within` for all workers to follow.
/// Jobs already diverted stay in their queue, which is returned as well unless the tenant was not
/// diverted.
///
/// # Errors
/// [`NotDone::Redis`]
pub async fn undivert(
    gate: &RedisGate,
    tenant: &Tenant,
    within: Duration,
) -> Result<(Undiverted, Option<String>), NotDone> {
    let before = until(&see(gate).await?, tenant);
    let name = Instruction::Divert(tenant.clone(), "".into()).name();
    let versions = drop_all(gate, &[name]).await?;
    let (_, followers) = followed(gate, &versions, within).await?;
    let ended = Undiverted {
        base: followers,
        tenant: tenant.to_string(),
        change: "undivert".into(),
        back: Omittable(None),
        from: Omittable(None),
    };
    Ok((ended, before.map(|(_, queue)| queue.to_string())))
}

/// Returns when the diversion of `tenant` ends (ms) and its queue, or `None` if it is not diverted.
fn until(seen: &[BoardView], tenant: &Tenant) -> Option<(u64, Arc<str>)> {
    let posted = seen.iter().flat_map(|board| &board.posted);
    let all = posted.filter_map(|(instruction, until_ms)| match instruction {
        Instruction::Divert(of, queue) if of == tenant => Some((*until_ms, Arc::clone(queue))),
        _ => None,
    });
    all.max()
}
