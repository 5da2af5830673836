//! The calls of jobs with a delayed start.

use super::{Checker, Violation};

impl Checker<'_> {
    /// Checks that no call comes before its job's start time. Publishers round times up, and
    /// Redis's clock is never ahead of theirs.
    pub(super) fn starts(&mut self) {
        for (job, life) in &self.lives.jobs {
            let Some(starts) = life.starts else { continue };
            self.verdict.delayed += 1;
            let early = life.calls.iter().filter(|call| call.at < starts);
            self.verdict
                .findings
                .extend(early.map(|call| Violation::Early {
                    job: *job,
                    at: call.at,
                    by: starts - call.at,
                }));
        }
    }
}
