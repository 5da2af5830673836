//! Bounds the log lines of each kind: a few per interval, and one that sums up the rest.

use std::time::Duration;

/// Maximum number of lines of one kind per [`SPAN`].
pub(super) const MOST: u32 = 10;
/// The interval.
pub(super) const SPAN: Duration = Duration::from_secs(10);

/// A kind of frequent event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A tenant is closed.
    Closed,
    /// A tenant is open again.
    Opened,
    /// A tenant's breaker opened.
    BreakerOpened,
    /// A tenant's breaker closed.
    BreakerClosed,
    /// The API throttled a call.
    Throttled,
    /// A limit was lowered.
    Lowered,
    /// A limit is whole again.
    Whole,
    /// A job failed.
    Failed,
    /// A job became a dead letter.
    Dead,
    /// A message is invalid.
    Invalid,
    /// A job that crashed workers runs alone.
    Alone,
}

const ALL: [Kind; 11] = [
    Kind::Closed,
    Kind::Opened,
    Kind::BreakerOpened,
    Kind::BreakerClosed,
    Kind::Throttled,
    Kind::Lowered,
    Kind::Whole,
    Kind::Failed,
    Kind::Dead,
    Kind::Invalid,
    Kind::Alone,
];

/// The events of one kind since a time.
#[derive(Debug, Default, Clone, Copy)]
struct Count {
    since: Duration,
    said: u32,
    more: u64,
}

/// The events of each kind.
#[derive(Debug, Default)]
pub(super) struct Few([Count; ALL.len()]);

/// The number of events of one kind that got no line, and the time in which they happened.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rest {
    pub(super) kind: Kind,
    pub(super) more: u64,
    pub(super) within: Duration,
}

impl Few {
    /// Returns true if a line may be logged now. Otherwise counts the event for the summary.
    pub(super) fn may_say(&mut self, now: Duration, kind: Kind) -> bool {
        let count = &mut self.0[kind as usize];
        // Earlier events without a line must be summed up first, together with this one.
        if count.more == 0 && now >= count.since + SPAN {
            *count = Count {
                since: now,
                ..Count::default()
            };
        }
        let may = count.said < MOST;
        match may {
            true => count.said += 1,
            false => count.more += 1,
        }
        may
    }

    /// Returns when there is something to sum up.
    pub(super) fn next(&self) -> Option<Duration> {
        let counts = self.0.iter().filter(|count| count.more > 0);
        counts.map(|count| count.since + SPAN).min()
    }

    /// Returns the summaries that are due, or all if `ends`.
    pub(super) fn sum_up(&mut self, now: Duration, ends: bool) -> Vec<Rest> {
        let mut rests = Vec::new();
        for kind in ALL {
            let count = &mut self.0[kind as usize];
            if count.more > 0 && (ends || now >= count.since + SPAN) {
                rests.push(Rest {
                    kind,
                    more: count.more,
                    within: now.saturating_sub(count.since),
                });
                *count = Count::default();
            }
        }
        rests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_few_are_said_and_the_rest_is_summed_up_at_the_end_of_the_span() {
        let mut few = Few::default();
        let said = |few: &mut Few, at: u32, times: u32| {
            (0..times)
                .filter(|_| few.may_say(at * SECOND, Kind::Closed))
                .count()
        };
        assert_eq!(said(&mut few, 20, 4_322), 10);
        assert!(few.may_say(20 * SECOND, Kind::Opened), "each for itself");
        assert_eq!(said(&mut few, 29, 3), 0);
        assert_eq!(few.next(), Some(30 * SECOND));
        assert_eq!(few.sum_up(29 * SECOND, false), []);
        let rest = Rest {
            kind: Kind::Closed,
            more: 4_315,
            within: 10 * SECOND,
        };
        assert_eq!(few.sum_up(30 * SECOND, false), [rest]);
        assert_eq!((few.next(), few.sum_up(99 * SECOND, false)), (None, vec![]));
        assert_eq!(said(&mut few, 30, 11), 10);
        let rests = few.sum_up(31 * SECOND, true);
        assert_eq!(rests.len(), 1, "it ends: {rests:?}");
        assert_eq!((rests[0].more, rests[0].within), (1, SECOND));
    }

    #[test]
    fn what_comes_seldom_is_always_said() {
        let mut few = Few::default();
        assert!((0..99).all(|at| few.may_say(at * SECOND, Kind::Failed)));
        assert_eq!(few.next(), None);
    }

    #[test]
    fn each_kind_has_a_count_of_its_own() {
        assert!(
            ALL.iter()
                .enumerate()
                .all(|(at, kind)| *kind as usize == at)
        );
    }
}
