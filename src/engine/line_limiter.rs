//! Bounds the log lines of each kind: a few per interval, and one that sums up the rest.

use std::time::Duration;

use strum::VariantArray;
use tracing::{info, warn};

/// Maximum number of lines of one kind per [`SUMMARY_INTERVAL`].
const MAX_LINES: u32 = 10;
/// Minimum interval between two summaries of one kind.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(10);

/// A kind of frequent event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray)]
pub(super) enum LineKind {
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
    Restored,
    /// A job failed.
    Failed,
    /// A job became a dead letter.
    Dead,
    /// A message is invalid.
    Invalid,
    /// A job that crashed workers runs alone.
    Alone,
    /// A message was not confirmed.
    Unconfirmed,
    /// The gate could not decide on jobs of a tenant.
    Undecided,
}

/// The limiter at one moment.
pub(super) struct LineBudget<'a> {
    pub(super) limiter: &'a mut LineLimiter,
    pub(super) now: Duration,
}

impl LineBudget<'_> {
    /// Returns true if a line may be logged now. Otherwise counts the event for the summary.
    pub(super) fn may_log(&mut self, kind: LineKind) -> bool {
        self.limiter.may_log(self.now, kind)
    }
}

/// The events of one kind since a time.
#[derive(Debug, Default, Clone, Copy)]
struct LineCount {
    since: Duration,
    logged: u32,
    more: u64,
}

/// The events of each kind.
#[derive(Debug, Default)]
pub(super) struct LineLimiter([LineCount; LineKind::VARIANTS.len()]);

/// The number of events of one kind that got no line, and the time in which they happened.
#[derive(Debug, PartialEq, Eq)]
struct Summary {
    kind: LineKind,
    more: u64,
    within: Duration,
}

impl Summary {
    /// Logs the number of events that got no line.
    fn log(&self) {
        let Self { kind, more, within } = self;
        let within_s = within.as_secs();
        match kind {
            LineKind::Closed => info!(more, within_s, "more tenants closed"),
            LineKind::Opened => info!(more, within_s, "more tenants opened again"),
            LineKind::BreakerOpened => warn!(more, within_s, "breakers of more tenants opened"),
            LineKind::BreakerClosed => info!(more, within_s, "breakers of more tenants closed"),
            LineKind::Throttled => info!(more, within_s, "the API throttled more calls"),
            LineKind::Lowered => info!(more, within_s, "more limits lowered"),
            LineKind::Restored => info!(more, within_s, "more limits restored"),
            LineKind::Failed => info!(more, within_s, "more jobs failed"),
            LineKind::Dead => warn!(more, within_s, "more dead letters"),
            LineKind::Invalid => warn!(more, within_s, "more invalid messages"),
            LineKind::Alone => info!(
                more,
                within_s, "more jobs whose calls crashed their workers"
            ),
            LineKind::Unconfirmed => warn!(more, within_s, "more publishes not confirmed"),
            LineKind::Undecided => warn!(more, within_s, "more questions without a decision"),
        }
    }
}

impl LineLimiter {
    /// Sums up the events that got no line, if it is time.
    pub(super) fn log_summaries(&mut self, now: Duration) {
        if self.next().is_some_and(|at| at <= now) {
            self.sum_up(now, false).iter().for_each(Summary::log);
        }
    }

    /// Sums up all remaining events.
    pub(super) fn close(&mut self, now: Duration) {
        self.sum_up(now, true).iter().for_each(Summary::log);
    }

    /// Returns true if a line may be logged now. Otherwise counts the event for the summary.
    fn may_log(&mut self, now: Duration, kind: LineKind) -> bool {
        let count = &mut self.0[kind as usize];
        // Earlier events without a line must be summed up first, together with this one.
        if count.more == 0 && now >= count.since + SUMMARY_INTERVAL {
            *count = LineCount {
                since: now,
                ..LineCount::default()
            };
        }
        let may = count.logged < MAX_LINES;
        match may {
            true => count.logged += 1,
            false => count.more += 1,
        }
        may
    }

    /// Returns when there is something to sum up.
    pub(super) fn next(&self) -> Option<Duration> {
        let counts = self.0.iter().filter(|count| count.more > 0);
        counts.map(|count| count.since + SUMMARY_INTERVAL).min()
    }

    /// Returns the summaries that are due, or all if `ends`.
    fn sum_up(&mut self, now: Duration, ends: bool) -> Vec<Summary> {
        let mut rests = Vec::new();
        for &kind in LineKind::VARIANTS {
            let count = &mut self.0[kind as usize];
            if count.more > 0 && (ends || now >= count.since + SUMMARY_INTERVAL) {
                rests.push(Summary {
                    kind,
                    more: count.more,
                    within: now.saturating_sub(count.since),
                });
                *count = LineCount::default();
            }
        }
        rests
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::SECOND;

    #[test]
    fn a_few_lines_are_logged_and_the_rest_is_summed_up() {
        let mut limiter = LineLimiter::default();
        let logged = |limiter: &mut LineLimiter, at: u32, times: u32| {
            (0..times)
                .filter(|_| limiter.may_log(at * SECOND, LineKind::Closed))
                .count()
        };
        assert_eq!(logged(&mut limiter, 20, 4_322), 10);
        assert!(
            limiter.may_log(20 * SECOND, LineKind::Opened),
            "each for itself"
        );
        assert_eq!(logged(&mut limiter, 29, 3), 0);
        assert_eq!(limiter.next(), Some(30 * SECOND));
        assert_eq!(limiter.sum_up(29 * SECOND, false), []);
        let rest = Summary {
            kind: LineKind::Closed,
            more: 4_315,
            within: 10 * SECOND,
        };
        assert_eq!(limiter.sum_up(30 * SECOND, false), [rest]);
        assert_eq!(
            (limiter.next(), limiter.sum_up(99 * SECOND, false)),
            (None, vec![])
        );
        assert_eq!(logged(&mut limiter, 30, 11), 10);
        let rests = limiter.sum_up(31 * SECOND, true);
        assert_eq!(rests.len(), 1, "it ends: {rests:?}");
        assert_eq!((rests[0].more, rests[0].within), (1, SECOND));
    }

    #[test]
    fn rare_lines_are_always_logged() {
        let mut limiter = LineLimiter::default();
        assert!((0..99).all(|at| limiter.may_log(at * SECOND, LineKind::Failed)));
        assert_eq!(limiter.next(), None);
    }
}
