//! Permits that are too old when they come: said where all of them are, since nothing starts then.

use std::time::Duration;

use super::seldom::Seldom;

/// So long no permit may be young enough before it is said, and so often it is said.
const AFTER: Duration = Duration::from_secs(5);
const EVERY: Duration = Duration::from_secs(60);

/// Since when all permits were too old.
#[derive(Debug, Default)]
pub struct Old {
    since: Option<Duration>,
    said: Seldom,
}

impl Old {
    /// A permit came and was too old. Whether that is to be said: no other was young enough for some seconds.
    pub fn is_old(&mut self, now: Duration) -> bool {
        let since = *self.since.get_or_insert(now);
        now.saturating_sub(since) >= AFTER && self.said.is_news(now, EVERY)
    }

    /// A permit was young enough.
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
