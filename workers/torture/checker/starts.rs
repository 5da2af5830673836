//! The calls of jobs with a delayed start.

use super::lives::JobLives;
use super::{HistoryVerdict, Violation};

impl HistoryVerdict {
    /// Checks that no call comes before its job's start time. Publishers round times up, and
    /// Redis's clock is never ahead of theirs.
    pub(super) fn starts(&mut self, lives: &JobLives) {
        for (job, life) in &lives.jobs {
            let Some(starts) = life.starts else { continue };
            self.delayed += 1;
            let early = life.calls.iter().filter(|call| call.at < starts);
            self.findings.extend(early.map(|call| Violation::Early {
                job: *job,
                at: call.at,
                by: starts - call.at,
            }));
        }
    }
}
