//! All that whoever looks at a fleet wants first: its workers, whether anything stops all of them, and the busiest tenants.

use super::fleet::Shown;
use super::others::{Others, others};
use super::recovery::Recovery;
use crate::config::Config;
use crate::gate::redis::RedisGate;
use crate::gate::reports::{self, Fleet};
use crate::gate::{Event, Gate as _, GateError, Rule, Standing, Whose};
use crate::rules::report::view::Sort;

/// Which tenants are looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// What comes first.
    pub sort: Sort,
    /// So many at most.
    pub most: usize,
    /// Only those whose names contain this, large letters or small.
    pub name: String,
}

impl Wanted {
    /// A tenant of this name is.
    pub fn names(&self, tenant: &str) -> bool {
        tenant.to_lowercase().contains(&self.name.to_lowercase())
    }
}

/// What was seen.
#[derive(Debug, Default)]
pub struct Overview {
    /// The workers, and what operators ask of them.
    pub fleet: Fleet,
    /// The tenants that were looked for; `None`: none were.
    pub shown: Option<Shown>,
    /// Whether jobs are admitted, now that Redis may have lost data: at each primary of a cluster.
    pub recovery: Vec<Recovery>,
    /// What stops the calls of all tenants, or why that is not known.
    pub all: Option<Result<Standing, String>>,
    /// What workers enforce beside this configuration; `None`: it is not known.
    pub others: Option<Others>,
}

impl Overview {
    /// Looks at the fleet, and at the tenants that are `wanted`.
    ///
    /// # Errors
    /// [`GateError`]: nothing of it can be seen.
    pub async fn of(
        gate: &RedisGate,
        config: &Config,
        wanted: Option<&Wanted>,
    ) -> Result<Self, GateError> {
        let mut fleet = reports::see(gate).await?;
        let policy = &config.rate_limiter.policy;
        let looks = gate.outlook(None, policy.default_limits(), policy).await?;
        let asked = [(Whose::Api, Event::Look)];
        let all = gate.report(&Rule::NONE, &asked).await?.into_iter().next();
        let shown = match wanted {
            None => None,
            Some(wanted) => {
                let tenants = &mut fleet.view.tenants;
                tenants.retain(|row| wanted.names(row.tenant.as_str()));
                let order = (wanted.sort, wanted.most);
                Some(Shown::of(gate, config, &fleet, order).await)
            }
        };
        Ok(Self {
            fleet,
            shown,
            recovery: looks.into_iter().map(Recovery::from).collect(),
            all: all.map(|all| all.map_err(|why| why.to_string())),
            // A Redis that does not say this has said all else.
            others: others(gate, policy).await.ok(),
        })
    }
}
