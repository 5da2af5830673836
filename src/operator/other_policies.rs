//! Policies that workers enforce in addition to a configuration, in one line.

use std::collections::HashSet;

use super::NotDone;
use super::text::plain;
use gate::GateError;
use gate::fleet::RegisteredPolicy;
use gate::fleet::registry::{self, NamedPolicy};
use gate::redis::RedisGate;
use rules::policy::{Policy, differing};

/// Maximum number of keys in JSON.
const MAX_KEYS: usize = 100;

/// Policies that differ from the configuration.
#[derive(Debug, Default)]
pub struct PolicyGroup {
    /// Number of policies.
    pub number: usize,
    /// Keys below `rate-limiter` that differ, each once.
    pub differ: Vec<String>,
}

/// Policies that workers enforce in addition to a configuration.
#[derive(Debug, Default)]
pub struct OtherPolicies {
    /// Whether a worker enforces the configuration itself, or no worker enforces any policy.
    pub in_force: bool,
    /// Policies that workers have.
    pub in_use: PolicyGroup,
    /// Policies that no worker has any more, but that count until their windows have passed.
    pub left: PolicyGroup,
    /// Errors of the cluster's primaries that could not be read.
    pub failed: Vec<GateError>,
}

/// Returns the policies that workers enforce in addition to `policy`.
///
/// # Errors
/// [`NotDone::Redis`]
pub async fn others(gate: &RedisGate, policy: &Policy) -> Result<OtherPolicies, NotDone> {
    let seen = registry::read_policies(gate).await?;
    let own = NamedPolicy::new(policy.clone())?;
    let all = seen.known.policies().iter();
    let all: Vec<&RegisteredPolicy> = all.filter(|other| other.id != own.id).collect();
    let (in_use, left): (Vec<&RegisteredPolicy>, Vec<&RegisteredPolicy>) =
        all.into_iter().partition(|other| seen.is_in_use(other));
    Ok(OtherPolicies {
        in_force: in_use.is_empty() && left.is_empty() || seen.known.find(&own.id).is_some(),
        in_use: PolicyGroup::of(policy, &in_use),
        left: PolicyGroup::of(policy, &left),
        failed: seen.failed,
    })
}

impl PolicyGroup {
    fn of(policy: &Policy, all: &[&RegisteredPolicy]) -> Self {
        let mut named = HashSet::new();
        let keys = all.iter().flat_map(|it| differing(policy, &it.policy));
        Self {
            number: all.len(),
            differ: keys.filter(|key| named.insert(key.clone())).collect(),
        }
    }
}

impl OtherPolicies {
    /// Describes the policies that workers have in one line, naming at most `max` keys: `another
    /// configuration is also enforced: minute.max-requests, tenants.acme and 12 more differ`.
    /// Returns `None` if there are none.
    pub fn describe(&self, max: usize) -> Option<String> {
        let PolicyGroup { number, differ } = &self.in_use;
        let which = match (number, self.failed.is_empty()) {
            (0, _) => return None,
            (1, true) => "another configuration is".to_owned(),
            (1, false) => "at least 1 other configuration is".to_owned(),
            (more, true) => format!("{more} other configurations are"),
            (more, false) => format!("at least {more} other configurations are"),
        };
        let how = match self.in_force {
            true => "also enforced",
            false => "enforced, but no worker enforces this one",
        };
        Some(format!("{which} {how}: {}", describe_keys(differ, max)))
    }

    /// Describes the policies that no worker has any more, as [`OtherPolicies::describe`] does.
    pub fn describe_abandoned(&self, max: usize) -> Option<String> {
        let PolicyGroup { number, differ } = &self.left;
        let which = match number {
            0 => return None,
            1 => "another configuration, which no worker has any more, counts".to_owned(),
            more => format!("{more} other configurations, which no worker has any more, count"),
        };
        let keys = describe_keys(differ, max);
        Some(format!("{which} until its windows have passed: {keys}"))
    }

    /// Returns the number of all these policies.
    pub fn number(&self) -> usize {
        self.in_use.number + self.left.number
    }

    /// Returns at most 100 keys in which any policy differs, for JSON.
    pub fn keys(&self) -> Vec<&str> {
        let mut named = HashSet::new();
        let all = self.in_use.differ.iter().chain(&self.left.differ);
        let keys = all.map(String::as_str).filter(|key| named.insert(*key));
        keys.take(MAX_KEYS).collect()
    }
}

/// Formats keys as `minute.max-requests, tenants.acme and 12 more differ`.
pub fn describe_keys(keys: &[String], max: usize) -> String {
    if keys.is_empty() {
        return "it is equivalent".to_owned();
    }
    let shown: Vec<String> = keys.iter().take(max).map(|key| plain(key, 40)).collect();
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
        let group = |number, keys: &[&str]| PolicyGroup {
            number,
            differ: keys.iter().map(|key| (*key).to_owned()).collect(),
        };
        let others = |number, keys: &[&str], in_force| OtherPolicies {
            in_force,
            in_use: group(number, keys),
            ..OtherPolicies::default()
        };
        assert_eq!(others(0, &[], true).describe(3), None);
        let words = |number, keys: &[&str], in_force| {
            let words = others(number, keys, in_force).describe(2);
            words.expect("there is one")
        };
        assert_eq!(
            words(1, &["max-requests"], true),
            "another configuration is also enforced: max-requests differs"
        );
        assert_eq!(
            words(2, &["a", "tenants.\u{1b}[2J", "c", "d"], false),
            "2 other configurations are enforced, but no worker enforces this one: a, \
            tenants.\\u{1b}[2J and 2 more differ"
        );
        let left = OtherPolicies {
            left: group(1, &["max-requests"]),
            ..OtherPolicies::default()
        };
        assert_eq!(left.describe(2), None);
        assert_eq!(
            left.describe_abandoned(2).as_deref(),
            Some(
                "another configuration, which no worker has any more, counts until its windows \
                have passed: max-requests differs"
            )
        );
        assert_eq!((left.number(), left.keys()), (1, vec!["max-requests"]));
    }
}
