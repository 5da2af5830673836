//! Whose quota the limits of a simulation are, which jobs draw from which, and backlogs that are uneven.

use std::fmt;

use rand::Rng;
use rand::rngs::SmallRng;
use sluicegate::rules::limit::Limits;
use sluicegate::rules::scope::{Labels, Scope};

use super::crashes::CRASHES;
use super::later::LATER;
use super::limits::{WITNESS, another};
use super::mixed::MIXED;
use super::plan::{Planned, pick};

/// Simulations from this seed on have scopes; those below keep the histories that they had before there were any.
pub const SCOPED: u64 = 1_000_000;
/// Whether the simulation of `seed` has scopes.
pub fn are_in(seed: u64) -> bool {
    match seed {
        ..SCOPED => false,
        SCOPED..LATER => true,
        // Half of each kind of plan.
        LATER..MIXED | CRASHES.. => (seed / 16).is_multiple_of(2),
        MIXED..CRASHES => false,
    }
}

/// What tells a tenant's jobs apart, beside their routing keys.
pub const HEADER: &str = "x-part";
/// The values of the header; a job without it has the first.
const PARTS: [&str; 4] = ["", "a", "b c", "ä:=%"];
/// The first is that of what was published to the queue itself.
const ROUTING_KEYS: [&str; 3] = ["jobs", "a.b", "ä:=%"];

/// One partition, named apart from the code that is under test.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Partition {
    pub scope: Scope,
    /// Empty where all tenants share it.
    pub tenant: String,
    /// What the jobs of a part have in common.
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

/// What a call of `tenant` draws from whose parts `labels` tell.
pub fn asked(tenant: &str, labels: &Labels) -> Vec<Partition> {
    let part = |(scope, value): (&Scope, &str)| Partition::new(scope.clone(), tenant, value);
    both(tenant).chain(labels.iter().map(part)).collect()
}

/// What a published job draws from, as its publisher means it.
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

/// Some of `limits` become those of all tenants, or of a part of each; and often there is one more.
pub fn scoped(random: &mut SmallRng, limits: &Limits, ideal: bool) -> Limits {
    let header = || Scope::Header(HEADER.to_owned());
    let any = [Scope::Tenant, Scope::Global, header(), Scope::RoutingKey];
    let mut some = |most: usize| any[random.random_range(0..most)].clone();
    let mut all: Vec<_> = (limits.iter())
        .map(|limit| limit.clone().with_scope(some(any.len())))
        .collect();
    if ideal {
        // One limit alone, so that it is known when all could have been done.
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

/// The longest span of those that decide.
pub fn longest(limits: &Limits) -> u64 {
    let binding = limits.iter().filter(|l| !l.name().starts_with(WITNESS));
    binding.map(|limit| limit.span()).max().unwrap_or(0)
}

/// Gives the jobs their parts, one with most of them, and leaves some tenants few.
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

/// Jobs of tenants that wait for one partition take turns: by how many units a tenant's last start came later than that.
/// `starts`: whose each was, in their order.
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
