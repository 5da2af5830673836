//! The overview of a fleet: its workers, what stops all of them, and the busiest tenants.

use super::fleet::BusiestTenants;
use super::hold::describe_hold;
use super::other_policies::{OtherPolicies, others};
use super::recovery::Recovery;
use super::text::plain;
use super::times::when;
use config::Config;
use gate::redis::RedisGate;
use gate::reports::{self, Fleet};
use gate::{BreakerEvent, BreakerScope, Gate as _, GateError, Rule, Standing};
use rules::report::view::Sort;

/// Selects tenants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantSelection {
    /// Order of the tenants.
    pub sort: Sort,
    /// Maximum number of tenants.
    pub max: usize,
    /// Text that a tenant's name must contain, ignoring case.
    pub name: String,
}

/// Result of a look at the fleet.
#[derive(Debug, Default)]
pub struct Overview {
    /// Workers, and operators' instructions to them.
    pub fleet: Fleet,
    /// Selected tenants, or `None` if none were requested.
    pub shown: Option<BusiestTenants>,
    /// State of the recovery wait at Redis, or at each primary of a cluster.
    pub recovery: Vec<Recovery>,
    /// The state that may stop the calls of all tenants, or the error that hides it.
    pub all: Option<Result<Standing, String>>,
    /// Policies that workers enforce in addition to this configuration, or `None` if unknown.
    pub others: Option<OtherPolicies>,
}

impl Overview {
    /// Looks at the fleet, and at the tenants of `selection`.
    ///
    /// # Errors
    /// [`GateError`] if nothing can be read.
    pub async fn of(
        gate: &RedisGate,
        config: &Config,
        selection: Option<&TenantSelection>,
    ) -> Result<Self, GateError> {
        let mut fleet = reports::see(gate).await?;
        let policy = &config.rate_limiter.policy;
        let looks = gate.outlook(None, policy.default_limits(), policy).await?;
        let asked = [(BreakerScope::Api, BreakerEvent::Read)];
        let all = match gate.report(&Rule::NONE, &asked).await {
            Ok(replies) => replies.into_iter().next(),
            Err(why) => Some(Err(why)),
        };
        let shown = match selection {
            None => None,
            Some(selection) => {
                let reported = fleet.view.tenants.clone();
                fleet.view.keep(&selection.name);
                let order = (selection.sort, selection.max);
                let shown = BusiestTenants::of(gate, config, &fleet, order).await;
                // A shorter search may match all of them again before the next look.
                fleet.view.tenants = reported;
                Some(shown)
            }
        };
        Ok(Self {
            fleet,
            shown,
            recovery: looks.into_iter().map(Recovery::from).collect(),
            all: all.map(|all| all.map_err(|why| why.to_string())),
            // An error here is ignored: the same Redis has answered everything else.
            others: others(gate, policy).await.ok(),
        })
    }
}

/// Maximum number of differing keys that are listed for other configurations.
const MAX_LISTED_KEYS: usize = 3;

/// A sentence about all tenants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The sentence.
    pub text: String,
    /// Whether no job is called, or not every job.
    pub is_stop: bool,
}

impl Overview {
    /// Returns what stops all tenants, or may, at `now_ms` of Redis's clock.
    pub fn notices(&self, now_ms: u64) -> Vec<Notice> {
        let mut notices = Vec::new();
        let mut add = |is_stop, text| notices.push(Notice { text, is_stop });
        match describe_hold(&self.fleet.boards) {
            words if words.is_empty() => {}
            words => add(true, words),
        }
        match &self.all {
            Some(Ok(all)) => {
                if let Some(words) = describe_all_suspended(all, now_ms) {
                    add(true, words);
                }
            }
            Some(Err(why)) => add(false, format!("{ALL_UNKNOWN}: {}", plain(why, 200))),
            None => {}
        }
        let others = self.others.as_ref();
        if let Some(words) = others.and_then(|others| others.describe(MAX_LISTED_KEYS)) {
            add(false, format!("{words} (sluicegate check)"));
        }
        let (refused, others): (Vec<_>, Vec<_>) =
            (self.recovery.iter()).partition(|recovery| recovery.refused().is_some());
        let at = |some: usize| match self.recovery.len() {
            1 => String::new(),
            all => format!(" at {some} of {all} primaries"),
        };
        if let Some(why) = refused.first().and_then(|first| first.refused()) {
            add(
                true,
                format!("no job is admitted{}: {why}", at(refused.len())),
            );
        }
        let waits: Vec<&Recovery> = (others.into_iter())
            .filter(|recovery| **recovery != Recovery::Over)
            .collect();
        let worst = waits.iter().max_by_key(|recovery| recovery.in_ms());
        if let Some((worst, words)) = worst.and_then(|worst| Some((worst, worst.describe()?))) {
            let is_stop = matches!(worst, Recovery::Waits { .. });
            add(
                is_stop,
                format!("recovery wait{}: {words}", at(waits.len())),
            );
        }
        notices
    }
}

/// The notice if the state that may suspend all tenants can't be read.
pub const ALL_UNKNOWN: &str = "it is unknown whether all tenants are suspended";

/// Describes what suspends all tenants at `now_ms`; `None` if nothing does.
pub(super) fn describe_all_suspended(all: &Standing, now_ms: u64) -> Option<String> {
    let until = match all.closed_until_ms.saturating_sub(now_ms) {
        0 if all.is_open => "until a call succeeds".to_owned(),
        0 => return None,
        ms => format!("the next job is admitted {}", when(now_ms, ms)),
    };
    let by = plain(&all.reason, 200);
    Some(format!(
        "all tenants are suspended, {until}, by {by}; sluicegate tenant resume --all ends it"
    ))
}
