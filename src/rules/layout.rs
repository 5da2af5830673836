//! Layouts: in which waitlist jobs with the same tenant and labels wait, and from which partitions
//! they take quota.

use std::borrow::Cow;

use crate::headers::LEVEL as PRIORITY;
use crate::limit::Limit;
use crate::scope::{Labels, MAX_PARTS, Scope};
use crate::tenant::Tenant;

impl Labels {
    /// Returns the labels for each scope of `limits` that is a part of a tenant, with the values
    /// that `value` returns. A job without a value has the empty value, and shares it with all
    /// other such jobs. Labels that only shadow limits distinguish are kept separately.
    pub fn of(limits: &[Limit], mut value: impl FnMut(&Scope) -> String) -> Self {
        let (mut labels, mut shadow_partitions) = (Vec::new(), Vec::new());
        // Shadows come after all enforced limits.
        for limit in limits.iter().filter(|limit| limit.scope().is_part()) {
            let scope = limit.scope();
            let mut known = labels.iter().chain(&shadow_partitions);
            if known.any(|(known, _): &(Scope, String)| known == scope) {
                continue;
            }
            let label = (scope.clone(), value(scope));
            match limit.is_shadow() {
                true => shadow_partitions.push(label),
                false => labels.push(label),
            }
        }
        labels.sort_unstable();
        shadow_partitions.sort_unstable();
        Self(labels, shadow_partitions)
    }

    /// Adds a label for the waitlist of a level, unless the labels already have its header.
    #[must_use]
    pub fn with_level(mut self, value: String) -> Self {
        let scope = Scope::Header(PRIORITY.to_owned());
        if self.0.len() < MAX_PARTS && self.0.iter().all(|(known, _)| *known != scope) {
            self.0.push((scope, value));
            self.0.sort_unstable();
        }
        self
    }
}

/// The place where limits count: one quota, shared by all jobs in the same scope.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Partition {
    /// No quota. Holds the state of the API as a whole, such as its breaker.
    Api,
    /// The quota that all tenants share.
    Global,
    /// The quota of a tenant.
    Tenant(Tenant),
    /// The quota of a tenant's jobs with these labels.
    Part(Tenant, Labels),
}

/// The waitlist of jobs with the same tenant and labels, and the partitions from which they take
/// quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The narrowest partition, where the jobs wait. No other waitlist takes quota from it.
    pub waitlist: Partition,
    /// The wider partitions, which other waitlists use as well. The widest is last.
    pub shared: Vec<SharedPartition>,
    /// The partitions in which only shadows count, so that no job waits for them.
    pub shadow_partitions: Vec<Partition>,
    /// The number of each limit's partition: 0 for the waitlist's, then the shared ones from 1,
    /// then the ones in `shadow_partitions`.
    pub partitions: Vec<usize>,
    /// The number of the partition that holds the tenant's suspension and an operator's changes.
    pub control: usize,
}

impl Layout {
    /// Returns the partition with this number: the waitlist's, a shared one, or one in
    /// `shadow_partitions`.
    ///
    /// # Panics
    /// Panics if there is no such partition.
    pub fn partition(&self, number: usize) -> &Partition {
        match (number, self.shared.get(number.wrapping_sub(1))) {
            (0, _) => &self.waitlist,
            (_, Some(shared)) => &shared.partition,
            (number, None) => &self.shadow_partitions[number - 1 - self.shared.len()],
        }
    }

    /// Returns the number of partitions.
    pub fn count(&self) -> usize {
        1 + self.shared.len() + self.shadow_partitions.len()
    }

    /// Returns true if jobs that wait for `partition` also wait for `wider`: it is the same one, or
    /// its flows come through `partition`.
    pub fn is_behind(&self, wider: usize, partition: usize) -> bool {
        wider == partition || wider > 0 && self.shared[wider - 1].below == partition
    }

    /// Returns the limits among the layout's `limits` that count in the partition with this number.
    pub fn limits_in<'a>(&self, partition: usize, limits: &'a [Limit]) -> Cow<'a, [Limit]> {
        // Usually there is only one partition.
        if self.count() == 1 {
            return limits.into();
        }
        let all = limits.iter().zip(&self.partitions);
        let here = all.filter(|(_, here)| **here == partition);
        here.map(|(limit, _)| limit.clone()).collect()
    }
}

/// A partition that several waitlists share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedPartition {
    /// The partition.
    pub partition: Partition,
    /// The name of this waitlist, or of the tenant, among the flows in the partition.
    pub flow: String,
    /// The number of the shared partition through which flows come here, from 1, if the tenant's
    /// waitlists share that one first; 0 if they come from the waitlist itself.
    pub below: usize,
}

impl Layout {
    /// Returns a layout with a single partition, regardless of its owner.
    pub fn alone(limits: &[Limit]) -> Self {
        Self {
            waitlist: Partition::Global,
            shared: Vec::new(),
            shadow_partitions: Vec::new(),
            partitions: vec![0; limits.len()],
            control: 0,
        }
    }

    /// Returns the layout for jobs of `tenant` with `labels`, which must be the labels that
    /// `limits` need.
    pub fn of(limits: &[Limit], tenant: &Tenant, labels: &Labels) -> Self {
        let mut shared = Vec::new();
        let flow = labels.key();
        let mut share = |partition, flow: &str, below| {
            let flow = flow.to_owned();
            shared.push(SharedPartition {
                partition,
                flow,
                below,
            });
            shared.len()
        };
        let parts: Vec<usize> = match labels.0.len() {
            0 | 1 => vec![0; labels.0.len()],
            _ => (labels.0.iter())
                .map(|(scope, _)| {
                    let part = Partition::Part(tenant.clone(), labels.only(scope));
                    share(part, &flow, 0)
                })
                .collect(),
        };
        let control = match labels.is_empty() {
            true => 0,
            false => share(Partition::Tenant(tenant.clone()), &flow, 0),
        };
        let is_global = |limit: &Limit| limit.is_global() && !limit.is_shadow();
        let global = match limits.iter().any(is_global) {
            true => share(Partition::Global, &tenant.key(), control),
            false => 0,
        };
        let partition = |limit: &Limit| match limit.scope() {
            Scope::Global => global,
            Scope::Tenant => control,
            part => {
                let mut labels = labels.0.iter().zip(&parts);
                // A missing label is empty; its limit counts in the waitlist's partition.
                (labels.find(|((known, _), _)| known == part)).map_or(0, |(_, at)| *at)
            }
        };
        let enforced = limits.iter().filter(|limit| !limit.is_shadow());
        let mut layout = Self {
            waitlist: match labels.is_empty() {
                true => Partition::Tenant(tenant.clone()),
                false => Partition::Part(tenant.clone(), labels.waiting()),
            },
            partitions: enforced.map(partition).collect(),
            shared,
            shadow_partitions: Vec::new(),
            control,
        };
        for shadow in limits.iter().filter(|limit| limit.is_shadow()) {
            let place = layout.place_beside(match shadow.scope() {
                Scope::Global => Partition::Global,
                Scope::Tenant => Partition::Tenant(tenant.clone()),
                part => Partition::Part(tenant.clone(), labels.only(part)),
            });
            layout.partitions.push(place);
        }
        layout
    }

    /// Returns the number of `partition`. Adds it to `shadow_partitions` if no job waits for it.
    fn place_beside(&mut self, partition: Partition) -> usize {
        let known = (0..self.count()).find(|number| *self.partition(*number) == partition);
        known.unwrap_or_else(|| {
            self.shadow_partitions.push(partition);
            self.count() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit;
    use crate::limit::Algorithm;

    fn limit(name: &str, scope: Scope) -> Limit {
        kit::limit(name, Algorithm::SlidingWindow, 5, kit::SECOND).with_scope(scope)
    }

    fn layout(scopes: &[&Scope]) -> (Layout, Labels) {
        let limits: Vec<Limit> = (scopes.iter().enumerate())
            .map(|(at, scope)| limit(&format!("l{at}"), (*scope).clone()))
            .collect();
        let labels = Labels::of(&limits, |scope| match scope {
            Scope::Header(name) => format!("/{name}"),
            _ => "key".to_owned(),
        });
        let tenant = kit::tenant("a:b");
        (Layout::of(&limits, &tenant, &labels), labels)
    }

    #[test]
    fn a_waitlist_is_as_narrow_as_the_narrowest_limit_and_draws_from_the_wider_ones() {
        let header = |name: &str| Scope::Header(name.to_owned());
        let (path, token, key) = (header("path"), header("token"), Scope::RoutingKey);
        let (tenant, global) = (Scope::Tenant, Scope::Global);

        let (found, labels) = layout(&[&tenant, &tenant]);
        assert!(labels.is_empty() && found.shared.is_empty());
        assert_eq!((found.partitions, found.control), (vec![0, 0], 0));

        let (found, _) = layout(&[&global, &tenant]);
        assert_eq!((found.partitions, found.control), (vec![1, 0], 0));
        assert_eq!(found.shared[0].partition, Partition::Global);
        assert_eq!(
            (found.shared[0].flow.as_str(), found.shared[0].below),
            ("a%3Ab", 0)
        );

        // With a single label, its limits count in the waitlist's partition.
        let (found, labels) = layout(&[&tenant, &path, &global]);
        assert_eq!(labels.key(), "path=%2Fpath");
        assert_eq!((found.partitions, found.control), (vec![1, 0, 2], 1));
        assert_eq!((found.shared[0].below, found.shared[1].below), (0, 1));

        let (found, labels) = layout(&[&key, &token, &path]);
        assert_eq!(labels.key(), "path=%2Fpath:token=%2Ftoken:=key");
        assert_eq!((found.partitions, found.control), (vec![3, 2, 1], 4));
        let parts = found.shared[..3].iter().map(|shared| &shared.partition);
        let keys: Vec<String> = parts
            .map(|partition| match partition {
                Partition::Part(_, labels) => labels.key(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(keys, ["path=%2Fpath", "token=%2Ftoken", "=key"]);
    }
}
