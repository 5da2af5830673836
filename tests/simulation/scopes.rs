//! Scopes of a simulation's limits, the partitions that jobs draw from, and uneven backlogs.

use std::fmt;

use rand::Rng;
use rand::rngs::SmallRng;
use rules::limit::Limits;
use rules::scope::{Labels, Scope};

use super::crashes::CRASHES;
use super::later::LATER;
use super::limits::{WITNESS, another};
use super::mixed::MIXED;
use super::plan::{Planned, pick};

/// First seed with scopes; histories of lower seeds are unchanged.
pub const SCOPED: u64 = 1_000_000;
/// Returns true if the simulation of `seed` has scopes.
pub fn are_in(seed: u64) -> bool {
    match seed {
        ..SCOPED => false,
        SCOPED..LATER => true,
        // Half of each kind of plan.
        LATER..MIXED | CRASHES.. => (seed / 16).is_multiple_of(2),
        MIXED..CRASHES => false,
    }
}

/// Header that divides a tenant's jobs, in addition to their routing keys.
pub const HEADER: &str = "x-part";
/// Values of the header; a job without it has the first.
const PARTS: [&str; 4] = ["", "a", "b c", "ä:=%"];
/// Routing keys. The first is that of jobs published to the queue itself.
const ROUTING_KEYS: [&str; 3] = ["jobs", "a.b", "ä:=%"];

/// One partition, named independently of the code under test.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Partition {
    pub scope: Scope,
    /// Empty if all tenants share it.
    pub tenant: String,
    /// The value that the jobs of this part share.
    pub value: String,
}

impl Partition {
    pub fn of_tenant(tenant: &str) -> Self {
        Self::new(Scope::Tenant, tenant, "")
    }

    fn new(scope: Scope, tenant: &str, value: &str) -> Self {
        Self {
            scope,
            tenant: tenant.to_owned(),
            value: value.to_owned(),
        }
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            scope,
            tenant,
            value,
        } = self;
        write!(f, "{scope} {tenant} {value:?}")
    }
}

/// Returns the partitions that a call of `tenant` with `labels` draws from.
pub fn asked(tenant: &str, labels: &Labels) -> Vec<Partition> {
    let part = |(scope, value): (&Scope, &str)| Partition::new(scope.clone(), tenant, value);
    both(tenant).chain(labels.iter().map(part)).collect()
}

/// Returns the partitions that a published job should draw from.
pub fn published(planned: &Planned, tenant: &str, limits: &Limits) -> Vec<Partition> {
    let mut partitions: Vec<Partition> = both(tenant).collect();
    let parts = [
        (Scope::Header(HEADER.to_owned()), planned.part),
        (Scope::RoutingKey, planned.routing_key),
    ];
    for (scope, value) in parts {
        if limits.iter().any(|limit| *limit.scope() == scope) {
            partitions.push(Partition::new(scope, tenant, value));
        }
    }
    partitions
}

fn both(tenant: &str) -> impl Iterator<Item = Partition> {
    let all = Partition::new(Scope::Global, "", "");
    [all, Partition::of_tenant(tenant)].into_iter()
}

/// Gives some of `limits` a wider scope (all tenants) or a narrower one (parts of a tenant), and
/// often adds a limit.
pub fn scoped(random: &mut SmallRng, limits: &Limits, ideal: bool) -> Limits {
    let header = || Scope::Header(HEADER.to_owned());
    let any = [Scope::Tenant, Scope::Global, header(), Scope::RoutingKey];
    let mut some = |max: usize| any[random.random_range(0..max)].clone();
    let mut all: Vec<_> = (limits.iter())
        .map(|limit| limit.clone().with_scope(some(any.len())))
        .collect();
    if ideal {
        // There is only one limit, so the ideal end is known.
        all[0] = all[0].clone().with_scope(match random.random_bool(0.7) {
            true => Scope::Global,
            false => header(),
        });
    } else if random.random_bool(0.6) {
        let more = another(random, "more");
        let scope = any[random.random_range(1..any.len())].clone();
        all.insert(1, more.with_scope(scope));
    }
    Limits::new(all).expect("they have names of their own")
}

/// Returns the longest span of the limits that can deny.
pub fn longest(limits: &Limits) -> u64 {
    let binding = limits.iter().filter(|l| !l.name().starts_with(WITNESS));
    binding.map(|limit| limit.span()).max().unwrap_or(0)
}

/// Assigns jobs to parts, most to one of them, and leaves some tenants few jobs.
pub fn uneven(random: &mut SmallRng, jobs: &mut Vec<Planned>) {
    for tenant in 0..4 {
        if random.random_bool(0.5) {
            let tenant = format!("{tenant}-");
            let mut left = random.random_range(1..=8);
            jobs.retain(|job| {
                let of_it = job.id.starts_with(&tenant);
                left -= i32::from(of_it);
                !of_it || left >= 0
            });
        }
    }
    for job in jobs {
        let common = random.random_bool(0.5);
        job.part = if common {
            PARTS[1]
        } else {
            pick(random, &PARTS)
        };
        job.routing_key = pick(random, &ROUTING_KEYS);
    }
}

/// Returns by how many units a tenant's last start was later than with fair turns. `starts` has the
/// tenant of each start, in order.
pub fn behind(starts: &[&str]) -> usize {
    let count = |tenant: &str| starts.iter().filter(|of| **of == tenant).count();
    let mut tenants = starts.to_vec();
    tenants.sort_unstable();
    tenants.dedup();
    let late = |tenant: &&str| {
        let own = count(tenant);
        let turns: usize = tenants.iter().map(|other| count(other).min(own)).sum();
        let last = starts.iter().rposition(|of| of == tenant);
        last.map_or(0, |last| (last + 1).saturating_sub(turns))
    };
    tenants.iter().map(late).max().unwrap_or(0)
}

#[test]
fn turns_are_counted() {
    assert_eq!(behind(&["a", "b", "a", "b", "a", "a"]), 0);
    assert_eq!(behind(&["a", "a", "a", "b"]), 2);
}
