//! Another `max` of a tenant's limit is tried for a while: it counts as a shadow, and denies nothing.

use std::time::Duration;

use serde_json::{Value, json};

use super::NotDone;
use super::steer::{Followers, followed};
use super::tenant::sets;
use crate::gate::boards::{Ends, Seen, drop_all, put, see};
use crate::gate::redis::RedisGate;
use crate::rules::limit::Limit;
use crate::rules::policy::Policy;
use crate::rules::steering::Instruction;
use crate::rules::tenant::Tenant;

/// What is tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    /// Whose limit.
    pub tenant: Tenant,
    /// Its name.
    pub limit: String,
    /// The `max` that is tried.
    pub max: u32,
}

/// That it is tried.
pub struct Begun {
    /// What.
    pub trial: Trial,
    /// Until when (ms).
    pub until_ms: u64,
    /// Who follows.
    pub followers: Followers,
}

/// That nothing is tried any more.
pub struct Ended {
    /// Whose limit.
    pub tenant: Tenant,
    /// Its name.
    pub limit: String,
    /// What was tried; `None`: nothing was.
    pub before: Option<u32>,
    /// Who follows.
    pub followers: Followers,
}

impl Trial {
    /// Another `max` for the limit of this name, which `tenant` can have.
    ///
    /// # Errors
    /// [`NotDone::Wrong`]: none of that name can be a shadow.
    pub fn new(policy: &Policy, tenant: Tenant, limit: String, max: u32) -> Result<Self, NotDone> {
        let all = sets(policy, &tenant);
        let named = all.iter().flat_map(|set| set.own());
        let named = named.filter(|known| known.name() == limit && !known.is_shadow());
        let tried: Result<Vec<Limit>, _> = named.map(|known| known.tried(max)).collect();
        match tried {
            Ok(_) => Ok(Self { tenant, limit, max }),
            Err(why) => Err(NotDone::Wrong(format!("the limit {limit}: {why}"))),
        }
    }

    fn instruction(&self) -> Instruction {
        Instruction::Try(self.tenant.clone(), self.limit.clone(), self.max)
    }

    /// Tries it for `for_ms`, and waits until all workers follow, for so long at most.
    ///
    /// # Errors
    /// [`NotDone::Redis`]
    pub async fn begin(
        self,
        gate: &RedisGate,
        (for_ms, within): (u64, Duration),
    ) -> Result<Begun, NotDone> {
        let versions = put(gate, &self.instruction(), for_ms).await?;
        let (seen, followers) = followed(gate, &versions, within).await?;
        Ok(Begun {
            until_ms: until(&seen, &self.tenant, &self.limit).unwrap_or(0),
            trial: self,
            followers,
        })
    }
}

/// Ends what is tried of the limit of this name, and waits until all workers follow, for so long at most.
///
/// # Errors
/// [`NotDone::Redis`]
pub async fn end(
    gate: &RedisGate,
    (tenant, limit): (Tenant, String),
    within: Duration,
) -> Result<Ended, NotDone> {
    let before = max_of(&see(gate).await?, &tenant, &limit);
    let name = Instruction::Try(tenant.clone(), limit.clone(), 0).name();
    let versions = drop_all(gate, &[name]).await?;
    let (_, followers) = followed(gate, &versions, within).await?;
    Ok(Ended {
        tenant,
        limit,
        before,
        followers,
    })
}

/// What is tried no more when the configured `max` counts again (`None`), or this one is set: the one that is tried.
pub(super) fn ended_by(tenant: &Tenant, limit: &str, max: Option<u32>) -> Ends {
    let tried = |max| Instruction::Try(tenant.clone(), limit.to_owned(), max);
    Ends {
        name: tried(0).name(),
        text: max.map(|max| tried(max).text()),
    }
}

/// What is tried of the tenant's limit, and until when (ms): the last, where the boards of a cluster differ.
fn find(seen: &[Seen], tenant: &Tenant, limit: &str) -> Option<(u64, u32)> {
    let posted = seen.iter().flat_map(|board| &board.posted);
    let all = posted.filter_map(|(instruction, until_ms)| match instruction {
        Instruction::Try(of, name, max) if of == tenant && name == limit => Some((*until_ms, *max)),
        _ => None,
    });
    all.max()
}

fn max_of(seen: &[Seen], tenant: &Tenant, limit: &str) -> Option<u32> {
    find(seen, tenant, limit).map(|(_, max)| max)
}

/// Until when (ms) another `max` of the tenant's limit is tried; `None`: none is.
pub(super) fn until(seen: &[Seen], tenant: &Tenant, limit: &str) -> Option<u64> {
    find(seen, tenant, limit).map(|(until_ms, _)| until_ms)
}

impl Begun {
    /// For programs.
    pub fn as_json(&self) -> Value {
        json!({
            "tenant": self.trial.tenant.as_str(),
            "change": "try",
            "limit": self.trial.limit,
            "max_requests": self.trial.max,
            "until_ms": self.until_ms,
            "workers": self.followers.all,
            "workers_following": self.followers.following,
        })
    }
}

impl Ended {
    /// For programs.
    pub fn as_json(&self) -> Value {
        json!({
            "tenant": self.tenant.as_str(),
            "change": "end-try",
            "limit": self.limit,
            "workers": self.followers.all,
            "workers_following": self.followers.following,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn what_holds_leases_is_not_tried() {
        let yaml = "
rate-limiter:
  limits: [{name: minute, max-requests: 100}, {name: running, max-concurrent: 4}]
";
        let config = Config::parse("c.yaml", yaml, std::iter::empty()).expect("valid");
        let new = |limit: &str| {
            let acme = Tenant::parse("acme").expect("a tenant");
            Trial::new(&config.rate_limiter.policy, acme, limit.to_owned(), 3)
        };
        assert!(new("minute").is_ok());
        let Err(NotDone::Wrong(why)) = new("running") else {
            panic!("it was tried");
        };
        assert!(
            why.starts_with("the limit running: shadow has no meaning for max-concurrent"),
            "{why}"
        );
    }
}
