//! How long before a job's turn its call is prepared: about as long as preparing takes.

use std::collections::VecDeque;
use std::time::Duration;

/// Number of recent preparations from which the next one's duration is estimated.
const LAST: usize = 64;
/// Preparations below this are so quick that they begin when the job asks.
const QUICK: Duration = Duration::from_millis(5);
/// Added to the estimate for delays of the machine.
const MARGIN: Duration = Duration::from_millis(20);
/// The longest lead.
const MOST: Duration = Duration::from_secs(2);

/// The lead of preparations, and the durations it is estimated from.
#[derive(Debug, Default)]
pub(super) struct Lead {
    /// Durations of the last preparations, the newest last.
    took: VecDeque<Duration>,
    lead: Duration,
}

impl Lead {
    /// Records that a preparation took `took`.
    pub(super) fn learn(&mut self, took: Duration) {
        if self.took.len() == LAST {
            self.took.pop_front();
        }
        self.took.push_back(took);
        let mut sorted: Vec<_> = self.took.iter().copied().collect();
        sorted.sort_unstable();
        let usual = sorted[(sorted.len() - 1) * 95 / 100];
        self.lead = match usual < QUICK {
            true => Duration::ZERO,
            false => (usual + MARGIN).min(MOST),
        };
    }

    /// Returns the 95 % quantile of recent preparations plus a margin, or zero if they are quick.
    pub(super) fn get(&self) -> Duration {
        self.lead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_lead_follows_what_preparing_takes() {
        let mut lead = Lead::default();
        assert_eq!(lead.get(), Duration::ZERO, "nothing is prepared");
        lead.learn(MS);
        assert_eq!(lead.get(), Duration::ZERO, "it is quick");
        for _ in 0..LAST {
            lead.learn(240 * MS);
        }
        lead.learn(9_000 * MS);
        assert_eq!(lead.get(), 260 * MS, "one was slow");
        for _ in 0..LAST {
            lead.learn(9_000 * MS);
        }
        assert_eq!(lead.get(), MOST);
        for _ in 0..LAST {
            lead.learn(MS);
        }
        assert_eq!(lead.get(), Duration::ZERO);
    }
}
