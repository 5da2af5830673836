//! Names of the keys in Redis. Scripts receive every key they touch as an argument.

use rules::algorithms::KeyLayout as By;
use rules::calendar::Boundaries;
use rules::failures::breaker::BreakerScope;
use rules::layout::{Layout, Partition};
use rules::limit::{Algorithm, DEFAULT_LIMIT, Limit, Unit};
use rules::named::Named;
use rules::slots::hash_tag;
use rules::tenant::{self, Tenant};

/// The keys of a shared partition's fair queue and their types, as in `lua/fair_queue.lua`.
const FAIR_QUEUE: [(&str, &str); 5] = [
    ("line", "hash"),
    ("waiting", "zset"),
    ("waiting-to", "zset"),
    ("waiting-wide", "zset"),
    ("started", "zset"),
];

/// Builds key names of the form `PREFIX:TENANT…`. The tenant is encoded so that no ID can produce
/// another tenant's key.
#[derive(Debug, Clone)]
pub struct Keys {
    prefix: String,
    cluster: bool,
}

/// The keys of one script call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallKeys {
    /// All keys, the waitlist first.
    pub names: Vec<String>,
    /// The type of each key, as Redis's `TYPE` returns it.
    pub types: Vec<&'static str>,
    /// The position of each limit's keys.
    pub limits: Vec<LimitKeys>,
    /// The position of the first of each shared partition's five keys, counted from 1 as in Lua.
    pub shared: Vec<usize>,
    /// The position of the first of each shadow trial's three keys, as in `lua/shadows.lua`.
    pub shadows: Vec<usize>,
}

impl CallKeys {
    /// Creates the keys of a call that uses only `key`, which has the type `kind`.
    pub fn one(key: String, kind: &'static str) -> Self {
        Self {
            names: vec![key],
            types: vec![kind],
            ..Self::default()
        }
    }

    /// Returns the waitlist's key. In a cluster, the other keys are on its node.
    pub fn waitlist(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }
}

/// The position of a limit's keys among the keys of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitKeys {
    /// The first key, counted from 1 as in Lua.
    pub first: usize,
    /// The index of the fixed window that the key belongs to, or 0 for the other algorithms.
    pub index: u64,
    /// The boundaries of a calendar's windows, or `None` for the other algorithms.
    pub boundaries: Option<Boundaries>,
}

impl Keys {
    /// Creates names that begin with `prefix`.
    pub fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            cluster: false,
        }
    }

    /// Puts the tenant in braces, so that all keys of one tenant share a hash slot of a Redis
    /// Cluster. If the prefix has a hash tag, all keys share its slot already, and nothing changes.
    pub fn in_cluster(self) -> Self {
        Self {
            cluster: hash_tag(&self.prefix).is_none(),
            ..self
        }
    }

    /// Returns the key of the epoch, a HASH and the only key without an expiry: if it is missing,
    /// Redis has lost data. In a tenant's key, only two hex digits follow a `%`, so the names can't
    /// clash. In a cluster each primary has one; `tag` selects its slot.
    pub fn epoch(&self, tag: Option<u32>) -> String {
        self.shared("%epoch", tag)
    }

    /// Returns the key of a tenant's waitlist, a HASH.
    pub fn waitlist(&self, tenant: &Tenant) -> String {
        format!("{}:line", self.base(&Partition::Tenant(tenant.clone())))
    }

    /// Returns the key of the HASH with the breaker: the tenant's waitlist, or a key for the whole
    /// API.
    pub fn breaker(&self, scope: &BreakerScope) -> String {
        match scope {
            BreakerScope::Tenant(tenant) => self.waitlist(tenant),
            BreakerScope::Api => format!("{}:line", self.base(&Partition::Api)),
        }
    }

    /// Returns the key of the notes on calls of a redelivered job, a STRING that `lua/crash.lua`
    /// describes. No limit's name begins with a `%`, so the names can't clash.
    pub fn suspect(&self, tenant: &Tenant, job: &str) -> String {
        let base = self.base(&Partition::Tenant(tenant.clone()));
        format!("{base}:%suspect:{}", tenant::encode(job))
    }

    /// Returns the key of the first job of a tenant with a dedupe key, a STRING that
    /// `lua/dedupe.lua` describes.
    pub fn first(&self, tenant: &Tenant, key: &str) -> String {
        let base = self.base(&Partition::Tenant(tenant.clone()));
        format!("{base}:%first:{}", tenant::encode(key))
    }

    /// Returns the key of a worker's report on a job about which an operator asked, a STRING. Its
    /// name is formed like that of [`Keys::suspect`].
    pub fn sighting(&self, tenant: &Tenant, job: &str) -> String {
        let base = self.base(&Partition::Tenant(tenant.clone()));
        format!("{base}:%sighting:{}", tenant::encode(job))
    }

    /// Returns the keys of the waitlist, of the limits, and of the fair queues of the shared
    /// partitions in `layout`. `now_ms` is an estimate of Redis's clock: one that lags by up to a
    /// window still selects the right key.
    pub fn call(&self, layout: &Layout, limits: &[Limit], now_ms: u64) -> CallKeys {
        let partitions = 0..layout.count();
        let bases: Vec<String> = partitions
            .map(|partition| self.base(layout.partition(partition)))
            .collect();
        let mut names =
            Vec::with_capacity(1 + 2 * limits.len() + FAIR_QUEUE.len() * layout.shared.len());
        names.push([&bases[0], ":line"].concat());
        let mut types = Vec::with_capacity(names.capacity());
        types.push("hash");
        let mut sliding = vec![None; bases.len()];
        let mut all = Vec::with_capacity(limits.len());
        for (limit, partition) in limits.iter().zip(&layout.partitions) {
            let base = &bases[*partition];
            let mut keys = LimitKeys {
                first: names.len() + 1,
                index: 0,
                boundaries: None,
            };
            if limit.algorithm() == Algorithm::CalendarWindow {
                keys.boundaries = Some(limit.boundaries(now_ms));
            }
            match limit.algorithm().facts().keys {
                By::Log => {
                    keys.first = *sliding[*partition].get_or_insert(keys.first);
                    if keys.first > names.len() {
                        names.push(base.clone());
                        names.push([base, ":spans"].concat());
                        types.extend(["zset", "hash"]);
                    }
                }
                By::Windows => {
                    keys.index = now_ms / limit.span();
                    let windows = match (limit.name(), limit.unit()) {
                        (DEFAULT_LIMIT, Unit::Cost) => base.clone(),
                        (name, Unit::Cost) => format!("{base}:{name}"),
                        (name, Unit::Calls) => format!("{base}:{name}:calls"),
                    };
                    names.push(format!("{windows}:{}", keys.index));
                    names.push(format!("{windows}:{}", keys.index + 1));
                    types.extend(["string"; 2]);
                }
                By::Own { kind, holds } => {
                    names.push(state(base, kind, limit));
                    types.push(holds);
                }
            }
            all.push(keys);
        }
        let mut shared = Vec::with_capacity(layout.shared.len());
        for base in &bases[1..=layout.shared.len()] {
            shared.push(names.len() + 1);
            names.extend(FAIR_QUEUE.map(|(kind, _)| format!("{base}:{kind}")));
            types.extend(FAIR_QUEUE.map(|(_, holds)| holds));
        }
        let mut shadows = Vec::new();
        for (limit, partition) in limits.iter().zip(&layout.partitions) {
            if limit.is_shadow() {
                shadows.push(names.len() + 1);
                let trial = trial(&bases[*partition], limit);
                let (usage, spans) = (format!("{trial}:usage"), format!("{trial}:usage:spans"));
                names.extend([trial, usage, spans]);
                types.extend(match limit.algorithm().facts().keys {
                    By::Log => ["string", "zset", "hash"],
                    By::Windows => ["string", "string", "hash"],
                    By::Own { holds, .. } => ["string", holds, "hash"],
                });
            }
        }
        CallKeys {
            names,
            types,
            limits: all,
            shared,
            shadows,
        }
    }

    /// Adds the fair queue of the limits that all tenants share. In a cluster whose tenants have
    /// different slots there is no such partition.
    pub fn add_global(&self, keys: &mut CallKeys) {
        if !self.cluster {
            let base = self.base(&Partition::Global);
            let queue = FAIR_QUEUE.map(|(kind, _)| format!("{base}:{kind}"));
            keys.names.extend(queue);
            keys.types.extend(FAIR_QUEUE.map(|(_, holds)| holds));
        }
    }

    /// Returns the key of the policy registry, a HASH; `tag` as for [`Keys::epoch`].
    pub fn policies(&self, tag: Option<u32>) -> String {
        self.shared("%policies", tag)
    }

    /// Returns the key of the board of operators' instructions, a HASH that `lua/steer.lua`
    /// describes; `tag` as for [`Keys::epoch`].
    pub fn board(&self, tag: Option<u32>) -> String {
        self.shared("%board", tag)
    }

    /// Returns the key of the audit log, a ZSET that `lua/audit.lua` describes. A cluster has only
    /// one, too.
    pub fn audit(&self) -> String {
        self.shared("%audit", None)
    }

    /// Returns the key of a worker's report, a STRING. In a cluster its slot may be any, since no
    /// other key is written together with it.
    pub fn report(&self, worker: &str) -> String {
        let prefix = &self.prefix;
        format!("{prefix}:%report:{worker}")
    }

    fn shared(&self, name: &str, tag: Option<u32>) -> String {
        let prefix = &self.prefix;
        match tag {
            Some(tag) => format!("{prefix}:{{{tag}}}:{name}"),
            None => format!("{prefix}:{name}"),
        }
    }

    /// Returns the hash tag of the prefix, if all keys share its slot.
    pub fn hash_tag(&self) -> Option<&str> {
        hash_tag(&self.prefix)
    }

    /// Returns the key that marks one call of `settle` as done.
    pub fn mark(&self, layout: &Layout, call: &str) -> String {
        format!("{}:settled:{call}", self.base(&layout.waitlist))
    }

    /// Returns the prefix of all keys of a partition, which is also the key of its sliding-window
    /// log.
    fn base(&self, partition: &Partition) -> String {
        let (tenant, labels) = match partition {
            Partition::Api => return format!("{}:%api", self.prefix),
            // No tenant has this key: in a tenant's key, only two hex digits follow a `%`.
            Partition::Global => return format!("{}:%global", self.prefix),
            Partition::Tenant(tenant) => (tenant, None),
            Partition::Part(tenant, labels) => (tenant, Some(labels)),
        };
        let (begin, end) = match self.cluster {
            true => (":{", "}"),
            false => (":", ""),
        };
        let mut base = [&self.prefix, begin, &tenant.key(), end].concat();
        if let Some(labels) = labels {
            base.push(':');
            base.push_str(&labels.key());
        }
        base
    }
}

/// Returns the key of a limit with its own state. It includes the window and the unit, and all
/// numbers of a bucket, since plans or policies in force at the same time may have limits of the
/// same name with different numbers ([`Limit::shares_state`]).
fn state(base: &str, kind: &str, limit: &Limit) -> String {
    let (name, (window, guard)) = (limit.name(), limit.state_ms());
    let mut key = format!("{base}:{name}:{kind}:{window}+{guard}");
    if let Some((max, burst)) = limit.state_bucket() {
        key.push_str(&format!(":{max}/{burst}"));
    }
    if let Some(calendar) = limit.calendar() {
        key.push_str(&format!(":{}", calendar.key()));
    }
    if limit.unit() == Unit::Calls {
        key.push_str(":calls");
    }
    key
}

/// Returns the key of a shadow's trial. It includes all of the limit's numbers: other numbers make
/// another trial. No limit's name begins with a `%`.
fn trial(base: &str, limit: &Limit) -> String {
    let (name, algorithm, unit) = (limit.name(), limit.algorithm().name(), limit.unit().name());
    let (max, burst) = (limit.max(), limit.burst());
    let (window, guard) = (limit.window_ms(), limit.guard_ms());
    let calendar = limit.calendar();
    let calendar = calendar
        .map(|calendar| format!(":{}", calendar.key()))
        .unwrap_or_default();
    format!("{base}:%shadow:{name}:{algorithm}:{max}/{burst}:{window}+{guard}{calendar}:{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::scope::Labels;
    use std::time::Duration;

    fn layout(tenant: &Tenant, limits: &[Limit]) -> Layout {
        Layout::of(limits, tenant, &Labels::default())
    }

    fn names(cluster: bool, tenant: &str, algorithm: Algorithm) -> Vec<String> {
        let limit = Limit::new(
            "default",
            algorithm,
            5,
            Duration::from_secs(60),
            Duration::ZERO,
        );
        let tenant = Tenant::parse(tenant);
        match (limit, tenant) {
            (Ok(limit), Ok(tenant)) => {
                let keys = Keys::new("rlaas:rate_limit");
                let keys = if cluster { keys.in_cluster() } else { keys };
                keys.call(
                    &layout(&tenant, std::slice::from_ref(&limit)),
                    &[limit],
                    120_000,
                )
                .names
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn keys_have_the_form_of_the_reference() {
        assert_eq!(
            names(false, "alice", Algorithm::SlidingWindow),
            [
                "rlaas:rate_limit:alice:line",
                "rlaas:rate_limit:alice",
                "rlaas:rate_limit:alice:spans"
            ]
        );
        assert_eq!(
            names(false, "alice", Algorithm::FixedWindow),
            [
                "rlaas:rate_limit:alice:line",
                "rlaas:rate_limit:alice:2",
                "rlaas:rate_limit:alice:3"
            ]
        );
    }

    #[test]
    fn limits_that_share_no_state_share_no_key() {
        let tenant = Tenant::parse("alice").unwrap_or_else(|why| panic!("{why}"));
        let keys = Keys::new("p");
        let mut all = Vec::new();
        for name in ["default", "calls", "counter"] {
            for algorithm in Algorithm::EVERY {
                for (max, seconds) in [(5, 1), (6, 1), (5, 60)] {
                    for unit in [Unit::Calls, Unit::Cost] {
                        let window = Duration::from_secs(seconds);
                        let limit = Limit::new(name, algorithm, max, window, Duration::ZERO);
                        let limit = limit.unwrap_or_else(|why| panic!("{why}"));
                        all.push(limit.with_unit(unit));
                    }
                }
            }
        }
        for (at, one) in all.iter().enumerate() {
            for two in &all[at + 1..] {
                let [one_keys, two_keys] = [one, two].map(|l| {
                    let limits = std::slice::from_ref(l);
                    keys.call(&layout(&tenant, limits), limits, 1_700_000_000_000)
                        .names
                });
                let common = one_keys[1..].iter().any(|key| two_keys[1..].contains(key));
                let both = [one, two].map(|limit| limit.algorithm());
                let shares = one.shares_state(two) || both == [Algorithm::SlidingWindow; 2];
                assert_eq!(common, shares, "{one:?} {two:?}");
            }
        }
    }

    #[test]
    fn a_prefix_with_a_hash_tag_keeps_all_keys_in_one_slot() {
        for (key, tag) in [
            ("{a}:b", Some("a")),
            ("a{b}{c}", Some("b")),
            ("a{{b}", Some("{b")),
            ("a{}b{c}", None),
            ("a}b{c", None),
            ("a", None),
        ] {
            assert_eq!(hash_tag(key), tag, "{key}");
        }
        let keys = Keys::new("{p}:x").in_cluster();
        let tenant = Tenant::parse("alice").unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(keys.waitlist(&tenant), "{p}:x:alice:line");
    }

    #[test]
    fn a_cluster_keeps_a_tenant_in_one_slot() {
        let keys = Keys::new("rlaas:rate_limit").in_cluster();
        let tenant = Tenant::parse("}{").unwrap_or_else(|why| panic!("{why}"));
        let suspect = keys.suspect(&tenant, "a:{1}");
        assert!(suspect.ends_with(":%suspect:a%3A%7B1%7D"), "{suspect}");
        let first = keys.first(&tenant, "{a}*");
        assert!(first.ends_with(":%first:%7Ba%7D%2A"), "{first}");
        for key in names(true, "}{", Algorithm::FixedWindow)
            .into_iter()
            .chain([suspect, first])
        {
            assert!(key.starts_with("rlaas:rate_limit:{%7D%7B}:"), "{key}");
        }
    }
}
