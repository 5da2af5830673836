//! What `tenants` and `workers` have in common: what is to be said of a fleet beside its rows.

use sluicegate::gate::redis::RedisGate;
use sluicegate::gate::reports::{self, Fleet};
use sluicegate::operator::others::Others;

use super::together::At;
use super::{Failure, count, plain};

/// The fleet of a pipeline, and its gate.
pub async fn of(at: At<'_>) -> Result<(RedisGate, Fleet), Failure> {
    let redis = &at.config.redis;
    let gate = RedisGate::connect(&redis.url, &redis.prefix)?;
    let fleet = reports::see(&gate).await?;
    Ok((gate, fleet))
}

/// What operators ask of all workers, in a line; empty: nothing.
pub fn held(fleet: &Fleet) -> String {
    match sluicegate::operator::hold::held_in_words(&fleet.boards) {
        words if words.is_empty() => words,
        words => format!("{words}\n"),
    }
}

/// What is missing, a line each; empty: nothing.
pub fn gaps(fleet: &Fleet) -> String {
    let view = &fleet.view;
    let mut text = String::new();
    match view.silent.len() {
        0 => {}
        1 => {
            text += "1 worker more lives and says nothing of itself: it has just begun or ended, or its version is older\n"
        }
        more => {
            text += &format!(
                "{more} workers more live and say nothing of themselves: they have just begun or ended, or their version is older\n"
            );
        }
    }
    for (name, why) in &view.unread {
        let (name, why) = (plain(name, 40), plain(&why.to_string(), 200));
        text += &format!("what worker {name} says can't be read: {why}\n");
    }
    if fleet.unasked > 0 {
        let more = count(fleet.unasked as u64, "worker");
        text += &format!("{more} more: too many to be asked\n");
    }
    for why in &fleet.failed {
        let why = plain(&why.to_string(), 200);
        text += &format!("there may be more workers: {why}\n");
    }
    text
}

/// So many keys in which other configurations differ are named.
const MOST_KEYS: usize = 3;

/// That workers have other configurations than this one, in a line; empty: they have not, or it is not known.
pub fn beside(others: Option<&Others>) -> String {
    let words = others.and_then(|others| others.in_words(MOST_KEYS));
    words.map_or_else(String::new, |words| format!("{words} (sluicegate check)\n"))
}

/// No worker was heard of.
pub fn is_empty(fleet: &Fleet) -> bool {
    let view = &fleet.view;
    view.workers.is_empty() && view.silent.is_empty() && view.unread.is_empty()
}

/// Said where there is none.
pub const NOBODY: &str = "no worker runs: none was heard of in the last 10 s\n";
