//! Permits that have expired when they arrive. Reported if all of them have, because nothing starts
//! then.

use std::time::Duration;

use super::seldom::Seldom;

/// How long every permit must have expired on arrival before that is reported, and the minimum
/// interval between reports.
const AFTER: Duration = Duration::from_secs(5);
const EVERY: Duration = Duration::from_secs(60);

/// Tracks since when all permits have expired on arrival.
#[derive(Debug, Default)]
pub struct Old {
    since: Option<Duration>,
    said: Seldom,
}

impl Old {
    /// Records a permit that had expired on arrival. Returns true if that is to be reported,
    /// because no permit has been good for some seconds.
    pub fn is_old(&mut self, now: Duration) -> bool {
        let since = *self.since.get_or_insert(now);
        now.saturating_sub(since) >= AFTER && self.said.is_news(now, EVERY)
    }

    /// Records a permit that was good on arrival.
    pub fn is_young(&mut self) {
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_once_a_minute_where_no_permit_is_young_enough() {
        let mut old = Old::default();
        let mut says = |s: u64| old.is_old(Duration::from_secs(s));
        assert_eq!(
            [0, 4, 5, 6, 64, 65].map(&mut says),
            [false, false, true, false, false, true]
        );
        old.is_young();
        let mut says = |s: u64| old.is_old(Duration::from_secs(s));
        assert_eq!([126, 130, 131].map(&mut says), [false, false, true]);
    }
}
