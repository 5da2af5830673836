//! Common parts of `tenants` and `workers`: notes on a fleet next to its rows.

use gate::redis::RedisGate;
use gate::reports::Fleet;
use operator::overview::{Overview, TenantSelection};

use super::Failure;
use super::per_pipeline::SelectedPipeline;

/// Returns a pipeline's fleet, with the tenants of `selection`.
pub async fn of(
    at: SelectedPipeline<'_>,
    selection: Option<&TenantSelection>,
) -> Result<Overview, Failure> {
    let redis = &at.config.redis;
    let gate = RedisGate::new(&redis.url, &redis.prefix)?;
    Ok(Overview::of(&gate, at.config, selection).await?)
}

/// Returns what stops all tenants, or may, one line each, or an empty text.
pub fn notices(seen: &Overview) -> String {
    let notices = seen.notices(seen.fleet.view.now_ms).into_iter();
    notices.map(|notice| notice.text + "\n").collect()
}

/// Returns what is missing, one line each, or an empty text.
pub fn gaps(fleet: &Fleet) -> String {
    let lines = operator::fleet::gaps(fleet).describe();
    lines.iter().map(|line| format!("{line}\n")).collect()
}
