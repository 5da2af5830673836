//! Wakes waiting jobs after a change by an operator or a changed file, so that they notice it at
//! once.

use gate::GateError;
use gate::fleet::EasedTenants;
use gate::instructions::{BoardView, EndInstruction, put_instead, see};
use gate::redis::RedisGate;
use rules::steering::{Instruction, MAX_WAKES, WAKE_KEPT_MS};
use rules::tenant::Tenant;

/// Makes the waiting jobs of `tenant`, or of all tenants, ask the gate again as soon as workers
/// read the board. The same step removes the instruction `ends`. If the board is full, the jobs ask
/// at their usual time, within `delay.max-delay`; there is nothing to end in that case, since its
/// removal would have made room.
///
/// # Errors
/// [`GateError`] if Redis can't be asked.
pub async fn wake(
    gate: &RedisGate,
    tenant: Option<&Tenant>,
    ends: Option<EndInstruction>,
) -> Result<(), GateError> {
    let seen = see(gate).await?;
    let is_other = |instruction: &Instruction| matches!(instruction, Instruction::Wake(Some(of), _) if Some(of) != tenant);
    let others = |board: &BoardView| {
        let posted = board.posted.iter();
        posted.filter(|(it, _)| is_other(it)).count()
    };
    // Changes to many tenants must not fill the board: beyond `MAX_WAKES`, one instruction wakes
    // all tenants.
    let max = seen.iter().map(others).max().unwrap_or(0);
    let tenant = tenant.filter(|_| max < MAX_WAKES);
    let instruction = Instruction::Wake(tenant.cloned(), next(&seen));
    match put_instead(gate, ends, &instruction, WAKE_KEPT_MS).await {
        Ok(_) | Err(GateError::Refused(_)) => Ok(()),
        Err(why) => Err(why),
    }
}

/// Wakes the jobs of tenants whose limits a changed file eased. All workers notice the change
/// within a second of each other, and only one acts: the live worker whose name sorts first, if
/// that is `worker`.
///
/// # Errors
/// Returns the errors of [`wake`].
pub async fn wake_eased(
    gate: &RedisGate,
    worker: &str,
    eased: &EasedTenants,
) -> Result<(), GateError> {
    if !is_first(&see(gate).await?, worker) {
        return Ok(());
    }
    match eased {
        EasedTenants::All => wake(gate, None, None).await,
        EasedTenants::Tenants(tenants) => {
            for tenant in tenants {
                wake(gate, Some(tenant), None).await?;
            }
            Ok(())
        }
    }
}

/// Returns true if no live worker has a name that sorts before `worker`.
fn is_first(seen: &[BoardView], worker: &str) -> bool {
    let mut names = seen.iter().flat_map(|board| &board.workers);
    names.all(|(name, _)| worker <= name.as_str())
}

/// Returns the number of the next wake, the same for all boards. It is greater than all numbers
/// before, even if the clock of some primary was ahead when they were chosen and was set back
/// since. A board's version never decreases and is at least the clock at each change, so on one of
/// the boards it is at least the last number.
fn next(seen: &[BoardView]) -> u64 {
    let of_board = |board: &BoardView| {
        let numbers = (board.posted.iter()).filter_map(|(instruction, _)| match instruction {
            Instruction::Wake(_, number) => Some(*number),
            _ => None,
        });
        let before = numbers.fold(board.version, u64::max);
        board.now_ms.max(before.saturating_add(1))
    };
    seen.iter().map(of_board).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_live_worker_is_the_first() {
        let board = |names: &[&str]| BoardView {
            workers: (names.iter())
                .map(|name| ((*name).to_owned(), Default::default()))
                .collect(),
            ..BoardView::default()
        };
        let seen = [board(&["b", "c"]), board(&["c", "a"])];
        let first = ["a", "b", "c"].map(|name| is_first(&seen, name));
        assert_eq!(first, [true, false, false]);
        assert!(is_first(&[], "a"), "nobody else is known");
    }

    #[test]
    fn the_next_number_is_the_latest_clock_and_above_all_earlier_ones() {
        let board = |now_ms, version, wakes: &[u64]| BoardView {
            now_ms,
            version,
            posted: (wakes.iter())
                .map(|number| (Instruction::Wake(None, *number), u64::MAX))
                .collect(),
            ..BoardView::default()
        };
        assert_eq!(next(&[board(100, 90, &[90]), board(200, 90, &[90])]), 200);
        // The clocks were set back, or do not advance.
        assert_eq!(next(&[board(100, 90, &[]), board(100, 300, &[])]), 301);
        assert_eq!(next(&[board(100, 100, &[100])]), 101);
        // The primary whose clock was ahead is gone, and its board with it.
        assert_eq!(next(&[board(100, 90, &[500])]), 501);
    }
}
