//! Connections for messages to external targets: results, and jobs for workers of another system.
//! Publishers can name a target over which RabbitMQ closes the connection, or which confirms
//! nothing. So these messages share no connection with the moves of jobs.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::attempts::Attempts;
use super::lane::{LaneEnd, OnlyLane};
use super::nodes::{NodeRotation, Nodes};
use super::publish::PublishRequests;
use crate::BrokerError;

/// Connects when there is something to publish, and again whenever the connection ends, until
/// `closed`.
pub(super) async fn supervise(
    (name, nodes): (&'static str, &Nodes),
    closed: &CancellationToken,
    requests: Arc<PublishRequests>,
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
            // The message will be published alone or has its answer, so the messages behind it need
            // not wait.
            Ok(Some(LaneEnd::Blamed(_))) => continue,
            Ok(Some(LaneEnd::Lost(error))) | Err(error) => {
                requests.fail_waiting().await;
                attempts.ended(up);
                attempts.log(&error);
            }
        }
        if !attempts.pause(closed).await {
            break;
        }
    }
    requests.close().await;
}

/// Runs one session and sets `up` once it is connected. Returns `None` if the broker was closed.
async fn run(
    name: &'static str,
    turns: &mut NodeRotation<'_>,
    up: &mut Option<Instant>,
    closed: &CancellationToken,
    requests: &Arc<PublishRequests>,
) -> Result<Option<LaneEnd>, BrokerError> {
    let link = tokio::select! {
        () = closed.cancelled() => return Ok(None),
        link = turns.open(name) => Arc::new(link?),
    };
    *up = Some(Instant::now());
    let mut lane = OnlyLane::start(link, requests);
    let end = tokio::select! {
        () = closed.cancelled() => None,
        end = lane.ended(name, |_| ()) => Some(end),
    };
    lane.close().await;
    Ok(end)
}
