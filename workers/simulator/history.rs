//! What happened: in a simulation, or at a live API.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluicegate::rules::decision::Tally;

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
    /// From its first denial to its start, or to the end of the run, in microseconds.
    pub us: u64,
    /// It had not started then.
    pub goes_on: bool,
}

/// Why a run was over before all of its jobs were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// So was its time.
    Within,
    /// No job had ended for so long that none would have.
    Still,
    /// There were so many calls and deliveries.
    Work(u64),
}

/// How a run was over before all of its jobs were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// When, in microseconds after the beginning.
    pub at_us: u64,
    /// Since when no job had ended while some waited.
    pub since_us: u64,
    /// Why.
    pub why: Why,
}

/// All that is known of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// When it began, in microseconds since the epoch.
    pub epoch_us: u64,
    /// In the order of their arrival.
    pub calls: Vec<Call>,
    /// Of jobs that a limit denied; a dead letter that never started may be among those that have not.
    pub waits: Vec<Wait>,
    /// Deliveries of all jobs, to all workers.
    pub deliveries: u64,
    /// Jobs that became dead letters, with the reasons.
    pub dead: Vec<(usize, String)>,
    /// Jobs that were not done when it was over.
    pub unfinished: usize,
    /// Why they were not; `None`: all were, or nobody says.
    pub left: Option<Left>,
    /// What shadow limits would have done, by their names; none that saw no start.
    pub shadows: BTreeMap<String, Tally>,
    /// What was learned of adaptive limits and still counted at the end, by their names: the lowest of all tenants.
    pub learned: BTreeMap<String, u32>,
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
