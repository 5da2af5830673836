//! Connections for messages to external targets: results, and jobs for workers of another system. Publishers can name a target over which
//! RabbitMQ closes the connection, or which confirms nothing. So these messages share no connection with the moves of jobs.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::confirm::Publishing;
use super::lane::{End, Lane};
use super::nodes::{Nodes, Turns};
use super::publish::Requests;
use super::supervise::Attempts;
use crate::broker::BrokerError;

/// Time for a lane to find out which message closed its connection.
pub(super) const BLAME_TIMEOUT: Duration = Duration::from_secs(1);

/// Connects when there is something to publish, and again whenever the connection ends, until `closed`.
pub(super) async fn supervise<M: Publishing>(
    (name, nodes): (&'static str, &Nodes),
    closed: &CancellationToken,
    requests: Arc<Requests<M>>,
) {
    let (mut attempts, mut turns) = (Attempts::new(name), nodes.turns());
    loop {
        tokio::select! {
            () = closed.cancelled() => break,
            () = requests.wanted() => {}
        }
        let mut up = None;
        let ended = run(name, &mut turns, &mut up, closed, &requests).await;
        match ended {
            Ok(None) => break,
            // The message will be published alone or has its answer, so the messages behind it need not wait.
            Ok(Some(End::Blamed(_))) => continue,
            Ok(Some(End::Lost(error))) | Err(error) => {
                requests.fail_waiting().await;
                attempts.ended(up);
                attempts.tell(&error);
            }
        }
        if !attempts.pause(closed).await {
            break;
        }
    }
    requests.close().await;
}

/// Runs one session and sets `up` once it is connected. Returns `None` if the broker was closed.
async fn run<M: Publishing>(
    name: &'static str,
    turns: &mut Turns<'_>,
    up: &mut Option<Instant>,
    closed: &CancellationToken,
    requests: &Arc<Requests<M>>,
) -> Result<Option<End>, BrokerError> {
    let link = tokio::select! {
        () = closed.cancelled() => return Ok(None),
        link = turns.open(name) => Arc::new(link?),
    };
    *up = Some(Instant::now());
    let lane = Lane {
        link: link.clone(),
        requests: requests.clone(),
        shared: None,
        is_alone: true,
    };
    let mut publishing = tokio::spawn(lane.run());
    let failed = |why| {
        End::Lost(
            link.target
                .failed(format!("a publishing task failed: {why}")),
        )
    };
    let end = tokio::select! {
        () = closed.cancelled() => None,
        error = link.failure(name, |blocked| requests.block(blocked)) => {
            let blamed = timeout(BLAME_TIMEOUT, &mut publishing).await;
            Some(blamed.map_or(End::Lost(error), |ended| ended.unwrap_or_else(failed)))
        }
        ended = &mut publishing => Some(ended.unwrap_or_else(failed)),
    };
    requests.block(false);
    // Close the link first: the task owns its channel.
    link.close().await;
    publishing.abort();
    Ok(end)
}
