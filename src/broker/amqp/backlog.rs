//! Counts the jobs in the queues at intervals, for metrics. A failed count is repeated later and
//! affects nothing else.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lapin::Channel;
use tokio::time::Instant;

use super::BrokerState;
use super::connection::AmqpLink;
use super::inventory::depth;
use crate::{BrokerError, QueueBacklog};

/// Interval between two counts.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);
/// Longest pause between two looks for a missing queue. The pauses double from [`COUNT_INTERVAL`].
/// Each look closes a channel, and `lapin` never uses its number again, so that the connection
/// would have none left after hours.
const MAX_MISSING_PAUSE: Duration = Duration::from_secs(600);

/// Counts repeatedly, on a channel of its own, until the session ends.
pub(super) async fn watch(shared: Arc<BrokerState>, link: Arc<AmqpLink>) -> BrokerError {
    let (mut channel, mut missing) = (None, HashMap::new());
    loop {
        // A blocked connection answers nothing, and requests would pile up in memory.
        let found = match link.blocked() {
            true => None,
            false => count_jobs(&shared, &link, &mut channel, &mut missing)
                .await
                .ok(),
        };
        shared.backlog.send_replace(found);
        tokio::time::sleep(COUNT_INTERVAL).await;
    }
}

/// Counts the jobs. `channel` is an open channel, or `None` to open one. `missing` has the queues
/// that were missing, when, and the pause from then on.
async fn count_jobs(
    shared: &BrokerState,
    link: &AmqpLink,
    channel: &mut Option<Channel>,
    missing: &mut HashMap<Arc<str>, (Instant, Duration)>,
) -> Result<QueueBacklog, BrokerError> {
    let names = &shared.topology.names;
    let mut backlog = QueueBacklog::default();
    for queue in &shared.topology.queues {
        let pause = match missing.get(&queue.name) {
            Some((at, pause)) if at.elapsed() < *pause => continue,
            Some((_, pause)) => (2 * *pause).min(MAX_MISSING_PAUSE),
            None => COUNT_INTERVAL,
        };
        let open = match channel.take() {
            Some(open) => open,
            None => link.channel().await?,
        };
        // A refusal closes the channel. The queue is declared again when a publish misses it.
        let Some((messages, _)) = depth(&link.target, &open, &queue.name).await? else {
            missing.insert(queue.name.clone(), (Instant::now(), pause));
            continue;
        };
        missing.remove(&queue.name);
        *channel = Some(open);
        let is_one_of = |queues: &[Arc<str>]| queues.contains(&queue.name);
        let state = if queue.name == names.dead {
            &mut backlog.dead
        } else if is_one_of(names.delays()) {
            &mut backlog.waiting
        } else {
            &mut backlog.ready
        };
        *state += u64::from(messages);
    }
    Ok(backlog)
}
