//! Faults of workers.

use std::time::Duration;

use kit::proxy::{Proxy, Transfers};
use rustix::process::Signal;
use tokio::time::sleep;

use super::{AWAY, Bed};
use crate::RunFailure;
use crate::faults::{FaultKind, Strike};
use crate::history::EventKind;
use crate::moments::{Moment, WorkerConnection};
use crate::run_plan::{MAX, OTHER_MAX};
use crate::schedule::ScheduledFault;
use crate::workers::{RunningWorker, STOP};

/// Maximum time to wait until a restarted worker is ready. A fault ends when everything works
/// again.
const READY: Duration = Duration::from_secs(20);
/// How long a new worker runs before its fault ends. If a worker dies together with Redis before
/// its first pulse, its starts are forgotten (docs/GUARANTEES.md).
const FIRST_PULSE: Duration = Duration::from_millis(2500);
/// Time within which a changed file must be applied. Otherwise the fault has missed, and the limits
/// count as unchanged.
const APPLIED: Duration = Duration::from_secs(10);
/// Time until a lowered limit applies everywhere and earlier calls have arrived.
const BINDS: Duration = Duration::from_secs(8);
/// Time to wait for a moment, which may not occur at all. After that, the worker is struck anyway.
const COMES: Duration = Duration::from_secs(5);
/// Time for bytes that passed the proxy to reach their destination.
const REACHES: Duration = Duration::from_millis(50);
/// Seconds by which a worker's clock is stepped.
const HOUR: i64 = 3600;

/// Returns the seconds by which a clock is stepped.
pub(super) fn off(fault: &ScheduledFault) -> i64 {
    if fault.way == 0 { -HOUR } else { HOUR }
}

impl Bed {
    pub(super) async fn worker(
        &self,
        number: u64,
        fault: ScheduledFault,
    ) -> Result<(), RunFailure> {
        if matches!(
            fault.kind,
            FaultKind::WorkerConfig | FaultKind::WorkerRolling
        ) {
            return self.change_limits(number, fault).await;
        }
        let mut worker = self.slots[fault.worker].worker.lock().await;
        match (fault.kind.strikes(), fault.kind) {
            (Some((strike, moment)), _) => {
                if let Some(moment) = moment
                    && !self.catch(fault.worker, moment).await
                {
                    self.history.add(EventKind::Missed { fault: number });
                }
                self.strike(&mut worker, fault, strike, moment).await
            }
            (None, FaultKind::WorkerClock) => {
                worker.step(off(&fault))?;
                sleep(fault.lasts).await;
                worker.step(0)
            }
            _ => self.restart(&mut worker, fault.worker).await,
        }
    }

    /// Sends SIGTERM and starts the worker again when it has ended.
    async fn restart(&self, worker: &mut RunningWorker, number: usize) -> Result<(), RunFailure> {
        let how = match worker.process.terminate(STOP).await? {
            Some(status) if status.success() => None,
            Some(status) => Some(format!("ended after SIGTERM with {status}")),
            None => Some("did not end within a minute of SIGTERM".to_owned()),
        };
        if let Some(how) = how {
            let worker = number;
            self.history.add(EventKind::Failed { worker, how });
        }
        revive(worker).await
    }

    /// Holds a worker at a moment of a job. Returns true if that moment came.
    async fn catch(&self, worker: usize, moment: Moment) -> bool {
        let caught = match moment.trap() {
            Some((to, trap)) => self.way(worker, to).catch(trap, COMES).await,
            None => self.downstream.catch(worker, COMES).await,
        };
        sleep(REACHES).await;
        caught
    }

    fn way(&self, worker: usize, to: WorkerConnection) -> &Proxy {
        let slot = &self.slots[worker];
        match to {
            WorkerConnection::Rabbit => &slot.to_rabbit,
            WorkerConnection::Redis => &slot.to_redis,
        }
    }

    /// Kills a worker, or stops it for a while, and releases the data that was held for it.
    async fn strike(
        &self,
        worker: &mut RunningWorker,
        fault: ScheduledFault,
        strike: Strike,
        moment: Option<Moment>,
    ) -> Result<(), RunFailure> {
        match strike {
            Strike::Kill => worker.process.kill().await?,
            Strike::Stop => worker.process.signal(Signal::STOP),
        }
        self.downstream.release();
        if let Some((to, _)) = moment.and_then(Moment::trap) {
            let way = self.way(fault.worker, to);
            // Bytes that a dead worker sent and that were still held are dropped. For a stopped
            // worker, held bytes of both directions arrive.
            if strike == Strike::Kill {
                way.cut();
            }
            way.set(Transfers::OPEN);
        }
        match strike {
            Strike::Kill => {
                sleep(fault.lasts.min(AWAY)).await;
                revive(worker).await
            }
            Strike::Stop => {
                sleep(fault.lasts).await;
                worker.process.signal(Signal::CONT);
                Ok(())
            }
        }
    }

    /// Lowers the limit of one worker after the other, and raises it again. The lower limit counts
    /// once all workers have it.
    async fn change_limits(&self, number: u64, fault: ScheduledFault) -> Result<(), RunFailure> {
        let lowered = self.limit_all(OTHER_MAX, fault.kind).await?;
        if lowered {
            sleep(BINDS).await;
            self.history.add(EventKind::Limit { max: OTHER_MAX });
        }
        sleep(fault.lasts).await;
        self.history.add(EventKind::Limit { max: MAX });
        let raised = self.limit_all(MAX, fault.kind).await?;
        if !(lowered && raised) {
            self.history.add(EventKind::Missed { fault: number });
        }
        Ok(())
    }

    /// Gives all workers another limit, by a changed file or by a restart. Returns true if all have
    /// it.
    async fn limit_all(&self, max: u64, kind: FaultKind) -> Result<bool, RunFailure> {
        let mut all = true;
        for (number, slot) in self.slots.iter().enumerate() {
            let mut worker = slot.worker.lock().await;
            if kind == FaultKind::WorkerRolling {
                worker.next_limit(max);
                self.restart(&mut worker, number).await?;
            } else {
                all &= worker.limit(max, APPLIED).await?;
            }
        }
        Ok(all)
    }
}

async fn revive(worker: &mut RunningWorker) -> Result<(), RunFailure> {
    worker.revive()?;
    worker.process.ready("/readyz", READY).await?;
    sleep(FIRST_PULSE).await;
    Ok(())
}
