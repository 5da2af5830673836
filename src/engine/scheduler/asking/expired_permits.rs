//! Permits that have expired when they arrive. Reported if all of them have, because nothing starts
//! then.

use std::time::Duration;

use crate::scheduler::report_limiter::ReportLimiter;

/// How long every permit must have expired on arrival before that is reported.
const REPORT_AFTER: Duration = Duration::from_secs(5);
/// Minimum interval between reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Tracks since when all permits have expired on arrival.
#[derive(Debug, Default)]
pub struct ExpiredPermits {
    since: Option<Duration>,
    reports: ReportLimiter,
}

impl ExpiredPermits {
    /// Records a permit that had expired on arrival. Returns true if that is to be reported,
    /// because no permit has been good for some seconds.
    pub fn expired(&mut self, now: Duration) -> bool {
        let since = *self.since.get_or_insert(now);
        now.saturating_sub(since) >= REPORT_AFTER && self.reports.may_report(now, REPORT_INTERVAL)
    }

    /// Records a permit that was good on arrival.
    pub fn in_time(&mut self) {
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expired_permits_are_reported_once_a_minute() {
        let mut permits = ExpiredPermits::default();
        let mut reports = |s: u64| permits.expired(Duration::from_secs(s));
        assert_eq!(
            [0, 4, 5, 6, 64, 65].map(&mut reports),
            [false, false, true, false, false, true]
        );
        permits.in_time();
        let mut reports = |s: u64| permits.expired(Duration::from_secs(s));
        assert_eq!([126, 130, 131].map(&mut reports), [false, false, true]);
    }
}
