//! Common parts of `tenants` and `workers`: notes on a fleet next to its rows.

use gate::redis::RedisGate;
use gate::reports::{self, Fleet};
use operator::other_policies::OtherPolicies;

use super::Failure;
use super::per_pipeline::SelectedPipeline;

/// Returns a pipeline's gate and fleet.
pub async fn of(at: SelectedPipeline<'_>) -> Result<(RedisGate, Fleet), Failure> {
    let redis = &at.config.redis;
    let gate = RedisGate::new(&redis.url, &redis.prefix)?;
    let fleet = reports::see(&gate).await?;
    Ok((gate, fleet))
}

/// Returns the operators' instructions for all workers in a line, or an empty text.
pub fn held(fleet: &Fleet) -> String {
    match operator::hold::describe_hold(&fleet.boards) {
        words if words.is_empty() => words,
        words => format!("{words}\n"),
    }
}

/// Maximum number of differing keys that are listed for other configurations.
const MAX_LISTED_KEYS: usize = 3;

/// Returns a line if workers have other configurations than this one, or an empty text if they
/// don't or it is unknown.
pub fn beside(others: Option<&OtherPolicies>) -> String {
    let words = others.and_then(|others| others.describe(MAX_LISTED_KEYS));
    words.map_or_else(String::new, |words| format!("{words} (sluicegate check)\n"))
}

/// Returns what is missing, one line each, or an empty text.
pub fn gaps(fleet: &Fleet) -> String {
    let lines = operator::fleet::gaps(fleet).describe();
    lines.iter().map(|line| format!("{line}\n")).collect()
}
