//! A tenant's jobs go out of the way for a while, and come back when somebody says so.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::NotDone;
use super::steer::{Followers, followed};
use crate::broker::amqp::Client;
use crate::config::Config;
use crate::gate::boards::{Seen, drop_all, put, see};
use crate::gate::redis::RedisGate;
use crate::rules::delays::{DelayLevels, QueueNames};
use crate::rules::steering::Instruction;
use crate::rules::tenant::Tenant;

/// The longest name of a queue, in bytes.
const LONGEST_NAME: usize = 255;

/// The queue that a tenant's jobs go to, where nobody names another one.
pub fn usual(names: &QueueNames) -> String {
    format!("{}.diverted", names.fresh)
}

/// `queue`, if jobs can go there.
///
/// # Errors
/// [`NotDone::Wrong`]
pub fn checked(queue: String, names: &QueueNames) -> Result<Arc<str>, NotDone> {
    if queue.is_empty() || queue.len() > LONGEST_NAME {
        return Err(NotDone::Wrong(format!(
            "the queue's name has {} bytes; it must have 1 to {LONGEST_NAME}",
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
            "{queue} is one of the workers' own queues: name another one with --to"
        )));
    }
    Ok(queue.into())
}

/// That a tenant's jobs go to another queue.
pub struct Diverted {
    /// Whose.
    pub tenant: Tenant,
    /// Where to.
    pub queue: Arc<str>,
    /// Until when (ms).
    pub until_ms: u64,
    /// Who follows.
    pub followers: Followers,
}

/// Diverts the jobs of `tenant` to the queue `to`, or the usual one, for `for_ms`, and waits until all workers follow, for so long at
/// most.
///
/// # Errors
/// [`NotDone::Wrong`]: jobs can't go there; [`NotDone::Redis`], [`NotDone::RabbitMq`]
pub async fn divert(
    (gate, config): (&RedisGate, &Config),
    tenant: &Tenant,
    to: Option<String>,
    (for_ms, within): (u64, Duration),
) -> Result<Diverted, NotDone> {
    let levels = DelayLevels::new(config.delay.max_delay);
    let client = Client::connect_existing(&config.amqp, &levels).await?;
    let names = client.names();
    let queue = checked(to.unwrap_or_else(|| usual(names)), names);
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
        tenant: tenant.clone(),
        queue,
        until_ms: until(&seen, tenant).map_or(0, |(until_ms, _)| until_ms),
        followers,
    })
}

impl Diverted {
    /// For programs.
    pub fn as_json(&self) -> Value {
        json!({
            "tenant": self.tenant.as_str(),
            "change": "divert",
            "queue": &*self.queue,
            "until_ms": self.until_ms,
            "workers": self.followers.all,
            "workers_following": self.followers.following,
        })
    }
}

/// That a tenant's jobs are called again.
pub struct Undiverted {
    /// Whose.
    pub tenant: Tenant,
    /// The queue that they went to; `None`: they did not.
    pub before: Option<Arc<str>>,
    /// Who follows.
    pub followers: Followers,
}

/// Ends what [`divert`] began, and waits until all workers follow, for so long at most. What went there stays there.
///
/// # Errors
/// [`NotDone::Redis`]
pub async fn undivert(
    gate: &RedisGate,
    tenant: &Tenant,
    within: Duration,
) -> Result<Undiverted, NotDone> {
    let before = until(&see(gate).await?, tenant);
    let name = Instruction::Divert(tenant.clone(), "".into()).name();
    let versions = drop_all(gate, &[name]).await?;
    let (_, followers) = followed(gate, &versions, within).await?;
    Ok(Undiverted {
        tenant: tenant.clone(),
        before: before.map(|(_, queue)| queue),
        followers,
    })
}

impl Undiverted {
    /// For programs.
    pub fn as_json(&self) -> Value {
        json!({
            "tenant": self.tenant.as_str(),
            "change": "undivert",
            "workers": self.followers.all,
            "workers_following": self.followers.following,
        })
    }
}

/// Until when jobs of `tenant` are diverted (ms), and where to.
fn until(seen: &[Seen], tenant: &Tenant) -> Option<(u64, Arc<str>)> {
    let posted = seen.iter().flat_map(|board| &board.posted);
    let all = posted.filter_map(|(instruction, until_ms)| match instruction {
        Instruction::Divert(of, queue) if of == tenant => Some((*until_ms, Arc::clone(queue))),
        _ => None,
    });
    all.max()
}
