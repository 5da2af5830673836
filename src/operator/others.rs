//! What workers enforce beside a configuration, in a line.

use std::collections::HashSet;

use super::NotDone;
use super::words::plain;
use crate::gate::GateError;
use crate::gate::fleet::registry::{self, Named};
use crate::gate::redis::RedisGate;
use crate::rules::policy::{Policy, differing};

/// For programs, so many keys are named at most.
pub const MOST_KEYS: usize = 100;

/// What workers enforce beside a configuration, or did until lately.
#[derive(Debug, Default)]
pub struct Others {
    /// A worker enforces the configuration itself, or nobody enforces any.
    pub in_force: bool,
    /// So many other ones are enforced, too.
    pub number: usize,
    /// The keys below `rate-limiter` in which they differ from it, each once.
    pub differ: Vec<String>,
    /// Why primaries of a cluster do not say theirs.
    pub failed: Vec<GateError>,
}

/// What workers enforce beside `policy`.
///
/// # Errors
/// [`NotDone::Redis`]
pub async fn others(gate: &RedisGate, policy: &Policy) -> Result<Others, NotDone> {
    let seen = registry::look(gate).await?;
    let own = Named::new(policy.clone())?;
    let all = seen.known.policies().iter();
    let others = all.filter(|other| other.id != own.id);
    let mut found = Others {
        failed: seen.failed,
        ..Others::default()
    };
    let mut named = HashSet::new();
    for other in others {
        found.number += 1;
        let keys = differing(policy, &other.policy).into_iter();
        let new = keys.filter(|key| named.insert(key.clone()));
        found.differ.extend(new);
    }
    found.in_force = found.number == 0 || seen.known.find(&own.id).is_some();
    Ok(found)
}

impl Others {
    /// In a line, with so many keys at most: `another configuration is enforced as well: minute.max-requests, tenants.acme and 12 more differ`;
    /// `None`: there is no other.
    pub fn in_words(&self, most: usize) -> Option<String> {
        let least = if self.failed.is_empty() {
            ""
        } else {
            "at least "
        };
        let which = match self.number {
            0 => return None,
            1 if least.is_empty() => "another configuration is".to_owned(),
            1 => "at least 1 other configuration is".to_owned(),
            more => format!("{least}{more} other configurations are"),
        };
        let how = match self.in_force {
            true => "enforced as well",
            false => "enforced, and this one by no worker",
        };
        let keys = keys_in_words(&self.differ, most);
        Some(format!("{which} {how}: {keys}"))
    }
}

/// `minute.max-requests, tenants.acme and 12 more differ`
pub fn keys_in_words(keys: &[String], most: usize) -> String {
    if keys.is_empty() {
        return "it says the same in another form".to_owned();
    }
    let shown: Vec<String> = keys.iter().take(most).map(|key| plain(key, 40)).collect();
    let more = match keys.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let verb = match keys.len() {
        1 => "differs",
        _ => "differ",
    };
    format!("{}{more} {verb}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_some_keys_and_how_many_more_there_are() {
        let others = |number, keys: &[&str], in_force| Others {
            in_force,
            number,
            differ: keys.iter().map(|key| (*key).to_owned()).collect(),
            failed: Vec::new(),
        };
        assert_eq!(others(0, &[], true).in_words(3), None);
        let words = |number, keys: &[&str], in_force| {
            let words = others(number, keys, in_force).in_words(2);
            words.expect("there is one")
        };
        assert_eq!(
            words(1, &["max-requests"], true),
            "another configuration is enforced as well: max-requests differs"
        );
        assert_eq!(
            words(2, &["a", "tenants.\u{1b}[2J", "c", "d"], false),
            "2 other configurations are enforced, and this one by no worker: a, tenants.\\u{1b}[2J and 2 more differ"
        );
    }
}
