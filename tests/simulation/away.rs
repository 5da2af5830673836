//! Outages of the API: it refuses connections, is silent or answers 5xx, to all tenants or to one.
//! Simulations with seeds from [`AWAY`] have them, and breakers; histories of lower seeds are
//! unchanged.

use std::time::Duration;

use gate::{BreakerEvent, BreakerScope, Rule, Standings};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::history::History;
use super::plan::{Plan, ms, pick};
use super::world::World;

/// First seed with the outages of this module.
pub const AWAY: u64 = 4_000_000;

/// How the API fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    Refuses,
    Silent,
    Fails,
}

/// The time of an outage, and the tenants it affects.
#[derive(Debug, Clone)]
pub struct Outage {
    from: Duration,
    until: Duration,
    tenant: Option<String>,
    manner: Manner,
}

/// The breakers' rule and the outages of a simulation.
#[derive(Debug, Clone, Default)]
pub struct Away {
    pub rule: Option<Rule>,
    outages: Vec<Outage>,
}

impl Away {
    /// Draws from a random stream of its own. Ideal simulations have no outage.
    pub fn new(seed: u64, ideal: bool) -> Self {
        if seed < AWAY {
            return Self::default();
        }
        let mut random = SmallRng::seed_from_u64(seed.rotate_left(16) ^ 0xA3A7);
        let rule = Rule {
            failures: pick(&mut random, &[1, 2, 5]),
            first_wait_ms: pick(&mut random, &[100, 1000]),
            longest_wait_ms: pick(&mut random, &[1000, 10_000]),
            lease_ms: pick(&mut random, &[15_000, 60_000]),
        };
        let number = if ideal { 0 } else { random.random_range(1..=3) };
        let outage = |_| {
            let from = ms(random.random_range(0..60_000));
            let length = pick(&mut random, &[500, 5_000, 60_000]);
            let tenant = random.random_bool(0.3);
            Outage {
                from,
                until: from + ms(random.random_range(0..=length)),
                tenant: tenant.then(|| format!("t{}", random.random_range(0..4))),
                manner: pick(
                    &mut random,
                    &[Manner::Refuses, Manner::Silent, Manner::Fails],
                ),
            }
        };
        Self {
            rule: Some(rule),
            outages: (0..number).map(outage).collect(),
        }
    }

    /// Returns how the API fails at `elapsed` for a call of `tenant`, or `None` if it works.
    pub fn manner(&self, elapsed: Duration, tenant: &str) -> Option<Manner> {
        let meets = |outage: &&Outage| {
            let here = outage.tenant.as_deref().is_none_or(|one| one == tenant);
            here && (outage.from..outage.until).contains(&elapsed)
        };
        self.outages.iter().find(meets).map(|outage| outage.manner)
    }

    /// Returns the additional time that the remaining jobs may need: until the last outage is over,
    /// a probe of a dead worker has been given up, and all waiting jobs have asked again.
    pub fn patience(&self) -> Duration {
        let last = self.outages.iter().map(|outage| outage.until).max();
        let rule = self
            .rule
            .map(|rule| ms(4 * rule.longest_wait_ms + 4 * rule.lease_ms));
        last.unwrap_or_default() + rule.unwrap_or_default() + ms(120_000)
    }
}

/// Counts failures that may use an attempt: all breakers were closed before and after them.
pub fn note(history: &mut History, batch: &[(BreakerScope, BreakerEvent)], standings: &Standings) {
    let mut tenant_is_open = false;
    for ((whose, event), standing) in batch.iter().zip(standings) {
        let open = standing.as_ref().is_ok_and(|standing| standing.is_open);
        match (whose, event) {
            (BreakerScope::Tenant(_), BreakerEvent::Failed { .. }) => tenant_is_open = open,
            (BreakerScope::Api, BreakerEvent::Failed { .. }) => {
                history.closed_failures += u64::from(!open && !tenant_is_open);
                tenant_is_open = false;
            }
            _ => {}
        }
    }
}

/// Checks that no attempt is used while a breaker is open: jobs use at most as many attempts as
/// there were failures with all breakers closed.
pub fn attempts(world: &World, plan: &Plan) {
    let mut history = world.history();
    if plan.away.rule.is_none() || !plan.whole {
        return;
    }
    let used: u32 = history.jobs.values().map(|job| job.attempts_used).sum();
    let allowed = history.closed_failures;
    if u64::from(used) > allowed {
        history.wrong(format_args!(
            "{used} attempts were used by {allowed} failures with closed breakers"
        ));
    }
}
