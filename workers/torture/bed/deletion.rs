//! Deletes a queue. Messages in a deleted queue would rightly be lost, so its publishers are
//! stopped until it is empty.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use rustix::process::Signal;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use super::Bed;
use crate::clusters::EMPTY_FOR;
use crate::history::EventKind;
use crate::schedule::ScheduledFault;

/// A queue that is not empty within this time is not deleted. Workers that are stopped for longer
/// would lose their connections.
const EMPTIES: Duration = Duration::from_secs(18);
/// Interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Returns a description of the fault.
pub(super) fn how(fault: &ScheduledFault) -> String {
    match fault.way {
        0 => "the work queue, while no job is published".to_owned(),
        _ => "a delay queue, while all workers are stopped".to_owned(),
    }
}

impl Bed {
    pub(super) async fn delete_queue(&self, number: u64, fault: ScheduledFault) {
        let delay_queues = self.names.delays();
        let deleted = match fault.way {
            0 => {
                self.silence.store(true, Ordering::Relaxed);
                let deleted = self.delete_when_empty(&self.names.fresh).await;
                self.silence.store(false, Ordering::Relaxed);
                deleted
            }
            _ => {
                // There are many delay queues: the fault's length selects one.
                let chosen = usize::try_from(fault.lasts.as_millis()).unwrap_or(0);
                let workers = join_all(self.slots.iter().map(|slot| slot.worker.lock())).await;
                workers
                    .iter()
                    .for_each(|worker| worker.process.signal(Signal::STOP));
                let deleted = self
                    .delete_when_empty(&delay_queues[chosen % delay_queues.len()])
                    .await;
                workers
                    .iter()
                    .for_each(|worker| worker.process.signal(Signal::CONT));
                deleted
            }
        };
        if !deleted {
            self.history.add(EventKind::Missed { fault: number });
        }
    }

    async fn delete_when_empty(&self, queue: &Arc<str>) -> bool {
        let ctl = |args: &[&str]| block_in_place(|| self.rabbit.ctl(args));
        let until = Instant::now() + EMPTIES;
        let mut since = Instant::now();
        while since.elapsed() < EMPTY_FOR {
            if Instant::now() > until {
                return false;
            }
            let listed = ctl(&["list_queues", "name", "messages", "--no-table-headers"]);
            let empty = (listed.lines()).any(|line| line.split_once('\t') == Some((queue, "0")));
            if !empty {
                since = Instant::now();
            }
            sleep(CHECK_INTERVAL).await;
        }
        ctl(&["delete_queue", queue]);
        true
    }
}
