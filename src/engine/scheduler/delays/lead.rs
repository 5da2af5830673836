//! How long before a job's turn its call is prepared: about as long as that takes.

use std::collections::VecDeque;
use std::time::Duration;

/// So many of the last preparations say how long the next one takes.
const LAST: usize = 64;
/// Who is as quick prepares when it is asked for.
const QUICK: Duration = Duration::from_millis(5);
/// What a machine adds.
const MARGIN: Duration = Duration::from_millis(20);
/// Nobody prepares earlier.
const MOST: Duration = Duration::from_secs(2);

/// How long before a job's turn its call is prepared.
#[derive(Debug, Default)]
pub(super) struct Lead {
    /// The newest last.
    took: VecDeque<Duration>,
    lead: Duration,
}

impl Lead {
    /// A preparation took so long.
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

    /// The 95 % quantile of what preparing took lately, and a margin; zero where it is quick.
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
