//! Common parts of `tenants` and `workers`: notes on a fleet next to its rows.

use gate::redis::RedisGate;
use gate::reports::{self, Fleet};
use operator::other_policies::OtherPolicies;

use super::per_pipeline::SelectedPipeline;
use super::{Failure, count, plain};

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

/// Returns what is missing, one line each, or an empty text.
pub fn gaps(fleet: &Fleet) -> String {
    let view = &fleet.view;
    let mut text = String::new();
    match view.silent.len() {
        0 => {}
        1 => text += "1 more worker is alive but has no report: it has just started or stopped\n",
        more => {
            text += &format!(
                "{more} more workers are alive but have no report: they have just started or \
                stopped\n"
            );
        }
    }
    for (name, why) in &view.unread {
        let (name, why) = (plain(name, 40), plain(&why.to_string(), 200));
        text += &format!("the report of worker {name} can't be read: {why}\n");
    }
    if fleet.unasked > 0 {
        let more = count(fleet.unasked as u64, "worker");
        text += &format!("{more} more, not shown: too many to read\n");
    }
    for why in &fleet.failed {
        let why = plain(&why.to_string(), 200);
        text += &format!("some workers may be missing: {why}\n");
    }
    text
}

/// Maximum number of differing keys that are listed for other configurations.
const MAX_LISTED_KEYS: usize = 3;

/// Returns a line if workers have other configurations than this one, or an empty text if they
/// don't or it is unknown.
pub fn beside(others: Option<&OtherPolicies>) -> String {
    let words = others.and_then(|others| others.describe(MAX_LISTED_KEYS));
    words.map_or_else(String::new, |words| format!("{words} (sluicegate check)\n"))
}

/// Returns true if no worker has reported.
pub fn is_empty(fleet: &Fleet) -> bool {
    let view = &fleet.view;
    view.workers.is_empty() && view.silent.is_empty() && view.unread.is_empty()
}

/// The message for an empty fleet.
pub const NOBODY: &str = "no worker is running: no report in the last 10 s\n";
