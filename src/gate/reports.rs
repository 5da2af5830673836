//! The fleet, for whoever looks: which workers live, and what each says of itself. No command goes through all keys: the boards, at which
//! each worker looks every second, have their names.

use std::collections::BTreeSet;

use crate::gate::GateError;
use crate::gate::boards;
use crate::gate::redis::RedisGate;
use crate::rules::report::view::{Said, View};

/// So many workers are asked for at most,
const MOST_WORKERS: usize = 1_000;
/// so many in a round trip.
const AT_ONCE: usize = 64;

/// The fleet.
#[derive(Debug, Default)]
pub struct Fleet {
    /// What its workers say.
    pub view: View,
    /// What operators ask of all workers, at each board that answered.
    pub boards: Vec<boards::Seen>,
    /// So many workers live of which nobody was asked, since there are too many.
    pub unasked: usize,
    /// Why boards, or reports, of a cluster could not be read: there may be more workers.
    pub failed: Vec<GateError>,
}

/// Looks at the fleet.
///
/// # Errors
/// [`GateError`]: nothing of it can be seen.
pub async fn see(gate: &RedisGate) -> Result<Fleet, GateError> {
    let mut fleet = Fleet::default();
    for board in boards::see_each(gate).await? {
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
    fleet.unasked = names.len().saturating_sub(MOST_WORKERS);
    names.truncate(MOST_WORKERS);
    let mut said: Vec<(String, Said)> = Vec::with_capacity(names.len());
    for some in names.chunks(AT_ONCE) {
        for (name, report) in some.iter().zip(gate.reports(some).await?) {
            let report = report.unwrap_or_else(|why| {
                fleet.failed.push(why);
                None
            });
            said.push((name.clone(), report));
        }
    }
    let now_ms = fleet.boards.iter().map(|board| board.now_ms).max();
    fleet.view = View::of(now_ms.unwrap_or_default(), said);
    Ok(fleet)
}
