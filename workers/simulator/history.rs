//! What happened: in a simulation, or at a live API.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A call that came to the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// When, in microseconds after the beginning.
    pub at_us: u64,
    /// Until when it was under way.
    pub until_us: u64,
    /// Which of the jobs made it.
    pub job: usize,
    /// What it was answered; 0: nothing in time.
    pub status: u16,
}

/// A wait that a limit made a job have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Which limit made it wait the longest when it was last asked.
    pub limit: Arc<str>,
    /// From its first denial to its start, in microseconds.
    pub us: u64,
}

/// All that is known of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// When it began, in microseconds since the epoch.
    pub epoch_us: u64,
    /// In the order of their arrival.
    pub calls: Vec<Call>,
    /// Of jobs that a limit denied and that started later.
    pub waits: Vec<Wait>,
    /// Deliveries of all jobs, to all workers.
    pub deliveries: u64,
    /// Jobs that became dead letters, with the reasons.
    pub dead: Vec<(usize, String)>,
    /// Jobs that were not done when it was over.
    pub unfinished: usize,
}

impl History {
    /// How many jobs became dead letters for each reason.
    pub fn dead_by_reason(&self) -> BTreeMap<&str, usize> {
        let mut reasons = BTreeMap::new();
        for (_, reason) in &self.dead {
            *reasons.entry(reason.as_str()).or_default() += 1;
        }
        reasons
    }
}
