//! Trials: another `max` of a tenant's limit counts as a shadow for a while, and denies no job.

use std::time::Duration;

use super::NotDone;
use super::answer::Omittable;
use super::steer::{followed, still_lasts};
use super::tenant::{Changed, DoneAction, sets};
use super::times::at;
use gate::instructions::{BoardView, EndInstruction, drop_all, put, see};
use gate::redis::RedisGate;
use rules::limit::Limit;
use rules::policy::Policy;
use rules::steering::Instruction;
use rules::tenant::Tenant;

/// A trial of another `max`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    /// Tenant of the limit.
    pub tenant: Tenant,
    /// Name of the limit.
    pub limit: String,
    /// The `max` to try.
    pub max: u64,
}

impl Trial {
    /// Creates a trial of `max` for the limit `limit`, which `tenant` can have.
    ///
    /// # Errors
    /// [`NotDone::Wrong`] if no limit of this name can be a shadow.
    pub fn new(policy: &Policy, tenant: Tenant, limit: String, max: u64) -> Result<Self, NotDone> {
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

    /// Starts the trial for `for_ms` and waits at most `within` for all workers to follow.
    ///
    /// # Errors
    /// [`NotDone::Redis`], [`NotDone::Failed`] if the trial has ended in the meantime
    pub async fn begin(
        self,
        gate: &RedisGate,
        (for_ms, within): (u64, Duration),
    ) -> Result<DoneAction, NotDone> {
        let versions = put(gate, &self.instruction(), for_ms).await?;
        let (seen, followers) = followed(gate, &versions, within).await?;
        let Self { tenant, limit, max } = self;
        let until_ms = still_lasts(until(&seen, &tenant, &limit))?;
        let (until, who) = (at(until_ms), followers.describe());
        Ok(DoneAction {
            text: format!(
                "limit {limit} of {tenant}: trying max-requests {max} until {until}: {who}"
            ),
            answer: Changed {
                limit: Omittable(Some(limit)),
                max_requests: Omittable(Some(max)),
                until_ms: Omittable(Some(until_ms)),
                ..Changed::followed(&tenant, "try", &followers)
            },
        })
    }
}

/// Ends the trial of this limit and waits at most `within` for all workers to follow.
///
/// # Errors
/// [`NotDone::Redis`]
pub async fn end(
    gate: &RedisGate,
    (tenant, limit): (Tenant, String),
    within: Duration,
) -> Result<DoneAction, NotDone> {
    let was = match tried_max(&see(gate).await?, &tenant, &limit) {
        Some(max) => format!("max-requests {max} is no longer tried"),
        None => "nothing was tried".to_owned(),
    };
    let name = Instruction::Try(tenant.clone(), limit.clone(), 0).name();
    let versions = drop_all(gate, &[name]).await?;
    let (_, followers) = followed(gate, &versions, within).await?;
    let who = followers.describe();
    Ok(DoneAction {
        text: format!("limit {limit} of {tenant}: {was}: {who}"),
        answer: Changed {
            limit: Omittable(Some(limit)),
            ..Changed::followed(&tenant, "end-try", &followers)
        },
    })
}

/// Returns the trial that a change of the limit ends: any trial of it if the configured `max`
/// returns (`None`), or a trial of the same number if an operator sets `max`.
pub(super) fn ended_by(tenant: &Tenant, limit: &str, max: Option<u64>) -> EndInstruction {
    let tried = |max| Instruction::Try(tenant.clone(), limit.to_owned(), max);
    EndInstruction {
        name: tried(0).name(),
        text: max.map(|max| tried(max).text()),
    }
}

/// Returns the end (ms) and the `max` of the trial of this limit. If the boards of a cluster
/// differ, returns the trial that ends last.
fn find(seen: &[BoardView], tenant: &Tenant, limit: &str) -> Option<(u64, u64)> {
    let posted = seen.iter().flat_map(|board| &board.posted);
    let all = posted.filter_map(|(instruction, until_ms)| match instruction {
        Instruction::Try(of, name, max) if of == tenant && name == limit => Some((*until_ms, *max)),
        _ => None,
    });
    all.max()
}

fn tried_max(seen: &[BoardView], tenant: &Tenant, limit: &str) -> Option<u64> {
    find(seen, tenant, limit).map(|(_, max)| max)
}

/// Returns when the trial of this limit ends (ms), or `None` if there is none.
pub(super) fn until(seen: &[BoardView], tenant: &Tenant, limit: &str) -> Option<u64> {
    find(seen, tenant, limit).map(|(until_ms, _)| until_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Config;

    #[test]
    fn limits_with_leases_cannot_be_tried() {
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
