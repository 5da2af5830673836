//! Lets jobs that wait see at once what an operator has changed.

use crate::gate::GateError;
use crate::gate::boards::{put, see};
use crate::gate::redis::RedisGate;
use crate::rules::steering::{Instruction, MAX_WAKES, WAKE_KEPT_MS};
use crate::rules::tenant::Tenant;

/// Jobs of `tenant`, or of all, that wait for their turns ask anew, as soon as workers read it. Without room on the board they do so when
/// they would have: within `delay.max-delay`.
///
/// # Errors
/// [`GateError`]: Redis can't be asked.
pub async fn wake(gate: &RedisGate, tenant: Option<&Tenant>) -> Result<(), GateError> {
    let seen = see(gate).await?;
    let now_ms = seen.iter().map(|board| board.now_ms).max().unwrap_or(0);
    let posted = seen.iter().flat_map(|board| &board.posted);
    let others = posted.filter(|(instruction, _)| {
        matches!(instruction, Instruction::Wake(Some(of), _) if Some(of) != tenant)
    });
    // Whoever changes very many tenants is not to fill the board.
    let tenant = tenant.filter(|_| others.count() < MAX_WAKES);
    let instruction = Instruction::Wake(tenant.cloned(), now_ms);
    match put(gate, &instruction, WAKE_KEPT_MS).await {
        Ok(_) | Err(GateError::Refused(_)) => Ok(()),
        Err(why) => Err(why),
    }
}
