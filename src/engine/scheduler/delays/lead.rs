//! How long before a job's turn its call is prepared: about as long as preparing takes.

use std::collections::VecDeque;
use std::time::Duration;

/// Number of recent preparations from which the next one's duration is estimated.
const SAMPLES: usize = 64;
/// Preparations below this are so quick that they begin when the job asks.
const MIN_DURATION: Duration = Duration::from_millis(5);
/// Added to the estimate for delays of the machine.
const SAFETY_MARGIN: Duration = Duration::from_millis(20);
/// The longest lead.
const MAX_LEAD: Duration = Duration::from_secs(2);

/// The lead of preparations, and the durations it is estimated from.
#[derive(Debug, Default)]
pub struct PrepareLead {
    /// Durations of the last preparations, the newest last.
    took: VecDeque<Duration>,
    lead: Duration,
}

impl PrepareLead {
    /// Records that a preparation took `took`.
    pub fn learn(&mut self, took: Duration) {
        if self.took.len() == SAMPLES {
            self.took.pop_front();
        }
        self.took.push_back(took);
        let mut sorted: Vec<_> = self.took.iter().copied().collect();
        sorted.sort_unstable();
        let usual = sorted[(sorted.len() - 1) * 95 / 100];
        self.lead = match usual < MIN_DURATION {
            true => Duration::ZERO,
            false => (usual + SAFETY_MARGIN).min(MAX_LEAD),
        };
    }

    /// Returns the 95 % quantile of recent preparations plus a margin, or zero if they are quick.
    pub fn get(&self) -> Duration {
        self.lead
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::MS;

    #[test]
    fn the_lead_follows_what_preparing_takes() {
        let mut lead = PrepareLead::default();
        assert_eq!(lead.get(), Duration::ZERO, "nothing is prepared");
        lead.learn(MS);
        assert_eq!(lead.get(), Duration::ZERO, "it is quick");
        for _ in 0..SAMPLES {
            lead.learn(240 * MS);
        }
        lead.learn(9_000 * MS);
        assert_eq!(lead.get(), 260 * MS, "one was slow");
        for _ in 0..SAMPLES {
            lead.learn(9_000 * MS);
        }
        assert_eq!(lead.get(), MAX_LEAD);
        for _ in 0..SAMPLES {
            lead.learn(MS);
        }
        assert_eq!(lead.get(), Duration::ZERO);
    }
}
