//! Everything that happened in a simulation or at a live API.

use std::collections::BTreeMap;
use std::sync::Arc;

use rules::decision::Tally;

/// A call that arrived at the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedCall {
    /// Arrival, in microseconds after the beginning.
    pub at_us: u64,
    /// End of the call at the API, in microseconds after the beginning.
    pub until_us: u64,
    /// End of the call for its worker: the answer or the timeout.
    pub ended_us: u64,
    /// Index of the job that made the call.
    pub job: usize,
    /// Status of the answer; 0 if none came in time.
    pub status: u16,
}

/// A wait that a limit caused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedWait {
    /// The limit that caused the longest wait when the job last asked.
    pub limit: Arc<str>,
    /// Time from the first denial to the start, or to the end of the run, in microseconds.
    pub us: u64,
    /// Whether the job had not started by then.
    pub is_unfinished: bool,
}

/// Why a run ended before all of its jobs did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// Its time was over.
    Within,
    /// No job had ended for the longest possible wait.
    Still,
    /// The run reached this number of calls and deliveries.
    Work(u64),
}

/// How a run ended before all of its jobs did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlyEnd {
    /// When it ended, in microseconds after the beginning.
    pub at_us: u64,
    /// Since when no job had ended while jobs waited, in microseconds after the beginning.
    pub since_us: u64,
    /// Why it ended.
    pub why: StopReason,
}

/// All recorded facts of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunHistory {
    /// Beginning of the run, in microseconds since the Unix epoch.
    pub epoch_us: u64,
    /// Calls in the order of their arrival.
    pub calls: Vec<RecordedCall>,
    /// Waits of jobs that a limit denied. An unfinished wait may be that of a dead letter that
    /// never started.
    pub waits: Vec<RecordedWait>,
    /// Number of deliveries of all jobs to all workers.
    pub deliveries: u64,
    /// Dead letters: the job's index and the reason.
    pub dead: Vec<(usize, String)>,
    /// Jobs that were dropped because another job had their dedupe key: the index, and the time in
    /// microseconds after the beginning.
    pub duplicates: Vec<(usize, u64)>,
    /// Number of jobs that were not done at the end.
    pub unfinished: usize,
    /// Why they were not done; `None` if all were, or if the reason is unknown.
    pub left: Option<EarlyEnd>,
    /// The effects of shadow limits, by name. Limits that no start has touched are left out.
    pub shadows: BTreeMap<String, Tally>,
    /// Learned values of adaptive limits that were still in force at the end, by name: the lowest
    /// of all tenants.
    pub learned: BTreeMap<String, u64>,
}

impl RunHistory {
    /// Counts the dead letters of each reason.
    pub fn dead_by_reason(&self) -> BTreeMap<&str, usize> {
        let mut reasons = BTreeMap::new();
        for (_, reason) in &self.dead {
            *reasons.entry(reason.as_str()).or_default() += 1;
        }
        reasons
    }
}
