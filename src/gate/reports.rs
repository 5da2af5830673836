//! The fleet as an operator sees it: the live workers and their reports. Finding them needs no scan
//! over all keys: every worker reads its boards every second, so the boards have their names.

use std::collections::BTreeSet;

use crate::GateError;
use crate::instructions;
use crate::redis::RedisGate;
use rules::report::view::{FleetReport, WorkerEntry};

/// Maximum number of workers whose reports are read.
const MAX_WORKERS: usize = 1_000;
/// Maximum number of reports read in one round trip.
const AT_ONCE: usize = 64;

/// The fleet.
#[derive(Debug, Default)]
pub struct Fleet {
    /// The workers' reports.
    pub view: FleetReport,
    /// Operators' instructions at each board that answered.
    pub boards: Vec<instructions::BoardView>,
    /// Number of live workers whose reports were not read because of `MAX_WORKERS`.
    pub unasked: usize,
    /// Errors of boards or reports in a cluster that could not be read. There may be more workers.
    pub failed: Vec<GateError>,
}

/// Reads the state of the fleet.
///
/// # Errors
/// [`GateError`] if none of it can be read.
pub async fn see(gate: &RedisGate) -> Result<Fleet, GateError> {
    let mut fleet = Fleet::default();
    for board in instructions::see_each(gate).await? {
        match board {
            Ok(board) => fleet.boards.push(board),
            Err(why) => fleet.failed.push(why),
        }
    }
    if fleet.boards.is_empty() {
        let nowhere = || GateError::Unreachable("the cluster has no primaries".to_owned());
        return Err(fleet.failed.pop().unwrap_or_else(nowhere));
    }
    let workers = fleet.boards.iter().flat_map(|board| &board.workers);
    let names: BTreeSet<&String> = workers.map(|(name, _)| name).collect();
    let mut names: Vec<String> = names.into_iter().cloned().collect();
    fleet.unasked = names.len().saturating_sub(MAX_WORKERS);
    names.truncate(MAX_WORKERS);
    let mut reports: Vec<(String, WorkerEntry)> = Vec::with_capacity(names.len());
    for some in names.chunks(AT_ONCE) {
        for (name, report) in some.iter().zip(gate.reports(some).await?) {
            let report = report.unwrap_or_else(|why| {
                fleet.failed.push(why);
                None
            });
            reports.push((name.clone(), report));
        }
    }
    let now_ms = fleet.boards.iter().map(|board| board.now_ms).max();
    fleet.view = FleetReport::of(now_ms.unwrap_or_default(), reports);
    Ok(fleet)
}
