//! Redis as one server, behind Sentinel or as a cluster, with the same methods.

use std::io;
use std::time::Duration;

use kit::redis_topologies::{RedisCluster, Sentinels, until};
use kit::servers::Redis;

use super::{RedisKind, at_once};
use crate::clocks::ProcessClock;

/// The Sentinels' name of the primary.
const NAME: &str = "torture";

/// One server, or several.
pub enum Redises {
    One(Redis, Option<ProcessClock>),
    Sentinel(Sentinels),
    Cluster(RedisCluster),
}

impl Redises {
    /// Starts the servers. A single one may have a clock of its own, and may evict keys.
    pub fn start(what: RedisKind, clock: Option<ProcessClock>, evicts: bool) -> Self {
        match what {
            RedisKind::Single => {
                let variables = clock.iter().flat_map(ProcessClock::variables);
                let settings = variables.map(|(name, value)| {
                    let value = value.to_string_lossy().into_owned();
                    format!("environment {name}={value}")
                });
                let policy = evicts.then(|| "maxmemory-policy volatile-lru".to_owned());
                let settings: Vec<String> = settings.chain(policy).collect();
                let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
                Self::One(Redis::start_with(&settings), clock)
            }
            RedisKind::Sentinel => Self::Sentinel(Sentinels::start(NAME)),
            // A machine that is busy for a while must not be taken for dead.
            RedisKind::Cluster => {
                Self::Cluster(RedisCluster::start(&["cluster-node-timeout 5000"]))
            }
        }
    }

    /// Returns the servers that hold data.
    fn servers(&self) -> Vec<&Redis> {
        match self {
            Self::One(one, _) => vec![one],
            Self::Sentinel(set) => set.servers.iter().collect(),
            Self::Cluster(cluster) => cluster.primaries.iter().chain(&cluster.replicas).collect(),
        }
    }

    /// Returns a server's URL.
    pub fn url(&self) -> &str {
        self.servers()[0].url()
    }

    /// Returns the keys of a worker's section `redis` if workers find the servers by themselves.
    pub fn found_by(&self) -> Option<String> {
        let quoted = |all: &[Redis]| {
            let urls: Vec<&str> = all.iter().map(|one| one.url()).collect();
            format!("\"{}\"", urls.join(","))
        };
        match self {
            Self::One(..) => None,
            Self::Sentinel(set) => {
                let sentinels = quoted(&set.sentinels);
                Some(format!("  url: redis://{NAME}\n  sentinels: {sentinels}\n"))
            }
            Self::Cluster(cluster) => Some(format!("  url: {}\n", quoted(&cluster.primaries))),
        }
    }

    /// Runs `act` on all servers at the same time.
    pub fn all(&self, act: impl Fn(&Redis) + Sync) {
        at_once(self.servers(), act);
    }

    /// Steps back the clock of a single server that has one; does nothing otherwise.
    ///
    /// # Errors
    /// Returns an error if the clock can't be set.
    pub fn step_back(&self, by: Duration) -> io::Result<()> {
        match self {
            Self::One(_, Some(clock)) => clock.step_back(by),
            _ => Ok(()),
        }
    }

    /// Runs `redis-cli` on each server. Replicas refuse commands that write.
    pub fn ctl(&self, args: &[&str]) {
        self.all(|server| {
            server.ctl(args);
        });
    }

    /// Returns the servers of shard `number` (modulo the number of shards), in the order of their
    /// start.
    fn group(&self, number: usize) -> Vec<&Redis> {
        match self {
            Self::Cluster(cluster) => {
                let at = number % cluster.primaries.len();
                vec![&cluster.primaries[at], &cluster.replicas[at]]
            }
            Self::One(..) | Self::Sentinel(_) => self.servers(),
        }
    }

    /// Returns the primary of shard `number`, as the other servers see it.
    pub fn primary(&self, number: usize) -> &Redis {
        let group = self.group(number);
        if let Self::Sentinel(set) = self {
            let named = || set.primary(NAME);
            until("the sentinels agree on a primary", || named().is_some());
            return group[named().unwrap_or(0)];
        }
        let primary = group.iter().find(|server| is_primary(server));
        primary.unwrap_or(&group[0])
    }

    /// Returns a replica of shard `number`.
    pub fn replica(&self, number: usize) -> &Redis {
        let replica = self.group(number).into_iter().find(|one| !is_primary(one));
        replica.unwrap_or_else(|| self.primary(number))
    }

    /// Waits until another server than `lost` is the primary of shard `number`.
    pub fn until_taken_over(&self, number: usize, lost: &Redis) {
        until("another one takes over", || match self {
            Self::Sentinel(set) => {
                let primary = set.primary(NAME).map(|at| set.servers[at].url());
                primary.is_some_and(|url| url != lost.url())
            }
            _ => {
                let group = self.group(number);
                let mut others = group.iter().filter(|one| one.url() != lost.url());
                others.any(|other| is_primary(other))
            }
        });
    }

    /// Waits until each shard has one primary, and replicas connected to it.
    pub fn until_whole(&self) {
        until("all replicas follow", || {
            (0..3).all(|number| {
                let group = self.group(number);
                let primaries = group.iter().filter(|one| is_primary(one)).count();
                let follows = |one: &&&Redis| {
                    one.ctl(&["info", "replication"])
                        .contains("master_link_status:up")
                };
                primaries == 1 && group.iter().filter(follows).count() == group.len() - 1
            })
        });
    }

    /// Makes a replica take over in an orderly way, as before maintenance.
    pub fn hand_over(&self, number: usize) {
        let primary = self.primary(number);
        match self {
            Self::Sentinel(set) => {
                set.sentinels[0].ctl(&["sentinel", "failover", NAME]);
            }
            _ => {
                self.replica(number).ctl(&["cluster", "failover"]);
            }
        }
        self.until_taken_over(number, primary);
        self.until_whole();
    }
}

/// Returns true if the server takes itself for a primary; false if it is down.
fn is_primary(server: &Redis) -> bool {
    let reply = server.try_ctl(&["role"]);
    reply.is_some_and(|role| role.starts_with("master"))
}

/// Cuts off all replicas of `primary` until its restart.
pub fn cut_off(primary: &Redis) {
    primary.ctl(&["acl", "setuser", "default", "-psync", "-sync", "-replconf"]);
    primary.ctl(&["client", "kill", "type", "replica"]);
}
