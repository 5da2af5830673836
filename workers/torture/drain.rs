//! The end of a run: waits until no work is left, and reads the dead letters.

use std::time::Duration;

use lapin::options::{BasicAckOptions, BasicGetOptions};
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep, timeout};
use trial::amqp::text;

use crate::RunFailure;
use crate::amqp::{self, REQUEST_TIMEOUT};
use crate::bed::Bed;
use crate::bed::rude::RUDE;
use crate::clusters::EMPTY_FOR;
use crate::history::EventKind;

/// Time without any event after which a run will not come to rest: longer than any wait of a
/// worker.
const STUCK_AFTER: Duration = Duration::from_secs(180);
/// Maximum time to wait for rest. A job that is called again and again does not come to rest
/// either.
const MAX_DRAIN_TIME: Duration = Duration::from_secs(600);
/// Interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Waits until the queues have been empty for [`EMPTY_FOR`], or nothing happens any more. A job
/// that is in no queue afterwards is lost or a dead letter. Returns the number of messages that are
/// still in queues.
///
/// # Errors
/// Returns an error if RabbitMQ does not answer.
pub async fn come_to_rest(bed: &Bed) -> Result<u64, RunFailure> {
    let began = Instant::now();
    let mut seen = (0, began);
    let mut waited = usize::MAX;
    let mut empty_since = None;
    loop {
        sleep(CHECK_INTERVAL).await;
        let happened = bed.history.len();
        if happened != seen.0 {
            seen = (happened, Instant::now());
        }
        let stuck = seen.1.elapsed() > STUCK_AFTER || began.elapsed() > MAX_DRAIN_TIME;
        // The downstream never learns that a job used up its attempts and counts it as waiting, so
        // the queues are checked, too.
        let waits = bed.history.waiting_in_all();
        let left = (stuck || waits == 0 || waits == waited).then(|| left(bed));
        match left {
            Some(left) if stuck => return Ok(left),
            Some(0) => {
                let since = *empty_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= EMPTY_FOR {
                    return Ok(0);
                }
            }
            _ => empty_since = None,
        }
        waited = waits;
    }
}

/// Counts the messages in queues of jobs, including unacked ones. Leaves out dead letters, the done
/// queues of workers (a killed worker no longer reads its own), and the messages by which workers
/// learn RabbitMQ's timeout.
fn left(bed: &Bed) -> u64 {
    let done = format!("{}.done.", bed.names.fresh);
    let timeouts = format!("{}.delay.timeout-", bed.names.fresh);
    let listed = block_in_place(|| {
        bed.rabbit
            .ctl(&["list_queues", "name", "messages", "--no-table-headers"])
    });
    listed
        .lines()
        .filter_map(|line| {
            let (name, messages) = line.split_once('\t')?;
            let is_no_job =
                name == &*bed.names.dead || name.starts_with(&done) || name.starts_with(&timeouts);
            (!is_no_job).then_some(messages.trim().parse::<u64>().ok()?)
        })
        .sum()
}

/// Moves all dead letters into the history. Returns the number of dead letters whose id is neither
/// that of a job nor of a rude job.
///
/// # Errors
/// Returns an error if RabbitMQ does not answer.
pub async fn read_the_dead(bed: &Bed) -> Result<usize, RunFailure> {
    let (connection, channel) = amqp::connect(bed.rabbit.url()).await?;
    let mut strangers = 0;
    loop {
        let got = channel.basic_get((&*bed.names.dead).into(), BasicGetOptions::default());
        let Some(message) = timeout(REQUEST_TIMEOUT, got).await?? else {
            break;
        };
        let properties = &message.delivery.properties;
        let id = properties.message_id().as_ref();
        match id.and_then(|id| id.as_str().parse().ok()) {
            Some(job) => bed.history.add(EventKind::Dead {
                job,
                reason: text(properties, "x-sluicegate-reason").unwrap_or_default(),
            }),
            None if id.is_some_and(|id| id.as_str().starts_with(RUDE)) => {}
            None => strangers += 1,
        }
        timeout(
            REQUEST_TIMEOUT,
            message.delivery.ack(BasicAckOptions::default()),
        )
        .await??;
    }
    timeout(REQUEST_TIMEOUT, connection.close(200, "done".into())).await??;
    Ok(strangers)
}
