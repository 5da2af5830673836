//! Canceled jobs: compares the command's report with the outcome.

use super::lives::{CancelReport, Life};
use super::{AFTERMATH, Checker, Violation};
use crate::faults::FaultKind;
use crate::history::JobId;

/// The reason of their dead letters.
const CANCELED: &str = "canceled by an operator";
/// Maximum delay, in nanoseconds, of a call that started before. The request to the downstream may
/// take half of it.
const ON_ITS_WAY: u64 = 1_000_000_000;

/// Returns true if the dead letter says that the job was canceled, and an operator had requested
/// that.
pub fn is_canceled(life: &Life) -> bool {
    life.dead.as_deref() == Some(CANCELED) && life.canceling.is_some()
}

impl Checker<'_> {
    /// Checks that a canceled job is not called once all workers follow, and is not done.
    pub(super) fn cancels(&mut self) {
        for (job, life) in &self.lives.jobs {
            let Some(asked_from) = life.canceling else {
                continue;
            };
            self.verdict.canceled.0 += usize::from(is_canceled(life));
            self.verdict.canceled.1 += 1;
            if let Some(asked) = life.asked {
                self.was_asked(*job, life, (asked_from, asked));
            }
            // Two messages of the job may end differently.
            let repeats = life.repeated_by(self.rules);
            let copies = self.broken.any(life.begins(), u64::MAX, AFTERMATH, repeats);
            if is_canceled(life) && life.is_done() && !copies && !life.is_twice() {
                self.find(Violation::DoneAndCanceled { job: *job });
            }
        }
    }

    fn was_asked(&mut self, job: JobId, life: &Life, (from, asked): (u64, CancelReport)) {
        let (broken, rules) = (self.broken, self.rules);
        // A Redis that lost its data has lost the request.
        let forgot = |to| broken.any(from, to, AFTERMATH, FaultKind::forgets);
        if asked.is_canceled && life.dead.is_none() && !forgot(u64::MAX) {
            self.find(Violation::Uncanceled { job });
        }
        if !asked.all_follow {
            return;
        }
        let late = |kind| kind == FaultKind::DownstreamStill || rules.affects_forwarding(kind);
        for call in &life.calls {
            let excused = forgot(call.at) || broken.any(from, call.at, AFTERMATH, late);
            if call.at > asked.at + ON_ITS_WAY && !excused {
                let at = call.at;
                self.verdict
                    .findings
                    .push(Violation::AfterCancel { job, at });
            }
        }
    }
}
