//! Limits reports of a repeated event to one per interval.

use std::time::Duration;

/// When the event was last reported.
#[derive(Debug, Default)]
pub(super) struct ReportLimiter(Option<Duration>);

impl ReportLimiter {
    /// Returns true at most once per `every`, and counts that as a report.
    pub(super) fn may_report(&mut self, now: Duration, every: Duration) -> bool {
        let known = self.0.is_some_and(|last| now < last + every);
        if !known {
            self.0 = Some(now);
        }
        !known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_report_passes_and_the_next_after_an_interval() {
        let mut limiter = ReportLimiter::default();
        let times = [5, 6, 64, 65, 124, 125];
        let minute = Duration::from_secs(60);
        let reported = times.map(|at| limiter.may_report(Duration::from_secs(at), minute));
        assert_eq!(reported, [true, false, false, true, false, true]);
    }
}
