//! Several Redis servers together: a cluster, and a primary behind Sentinel. They use the same
//! program as a single server.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::servers::{Redis, once_per_run};

/// Primaries with all slots, and a replica of each.
pub struct RedisCluster {
    pub primaries: Vec<Redis>,
    pub replicas: Vec<Redis>,
}

/// First slot, last slot and epoch of each primary.
const SLOTS: [(&str, &str, &str); 3] = [
    ("0", "5460", "1"),
    ("5461", "10921", "2"),
    ("10922", "16383", "3"),
];

/// Prevents automatic failovers.
const NODE: [&str; 4] = [
    "cluster-enabled yes",
    "cluster-node-timeout 600000",
    "cluster-require-full-coverage no",
    "repl-diskless-sync-delay 0",
];

/// Returns the cluster shared by all tests that break nothing.
pub fn shared_cluster() -> &'static RedisCluster {
    static SHARED: OnceLock<RedisCluster> = OnceLock::new();
    SHARED.get_or_init(|| {
        let server = |name: String| Redis::shared(&name, &NODE);
        let start = |kind: &str| (0..3).map(|at| server(format!("{kind}-{at}"))).collect();
        let cluster = RedisCluster {
            primaries: start("primary"),
            replicas: start("replica"),
        };
        once_per_run("cluster", || cluster.form());
        cluster
    })
}

/// Waits for something that must happen.
#[expect(clippy::disallowed_methods, reason = "the servers' calls block too")]
pub fn until(what: &str, happened: impl Fn() -> bool) {
    let begin = Instant::now();
    while !happened() {
        assert!(
            begin.elapsed() < Duration::from_secs(150),
            "{what}: not in time"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until `replica` has all current data of `primary`. WAIT would do that only for writes of
/// its own connection.
pub fn replicated(primary: &Redis, replica: &Redis) {
    let offset = |redis: &Redis, name: &str| -> u64 {
        let info = redis.ctl(&["info", "replication"]);
        let mut lines = info.lines();
        let value = lines.find_map(|line| line.trim().strip_prefix(name));
        value.and_then(|text| text.parse().ok()).expect("an offset")
    };
    let all = offset(primary, "master_repl_offset:");
    until("the replica has everything", || {
        offset(replica, "slave_repl_offset:") >= all
    });
}

/// Returns the `host:port` of `redis`.
pub fn address(redis: &Redis) -> &str {
    redis.url().trim_start_matches("redis://")
}

/// Returns the port of `redis`.
pub fn port(redis: &Redis) -> u16 {
    let (_, port) = address(redis).split_once(':').expect("host:port");
    port.parse().expect("a port")
}

impl RedisCluster {
    /// Starts three primaries, each with a replica. No automatic failover happens during a test.
    pub fn start(settings: &[&str]) -> Self {
        let mut all = NODE.to_vec();
        all.extend(settings);
        let start = || (0..3).map(|_| Redis::start_with(&all)).collect::<Vec<_>>();
        let cluster = Self {
            primaries: start(),
            replicas: start(),
        };
        cluster.form();
        cluster
    }

    /// Forms a cluster of empty servers.
    fn form(&self) {
        for (primary, (first, last, epoch)) in self.primaries.iter().zip(SLOTS) {
            primary.ctl(&["cluster", "addslotsrange", first, last]);
            primary.ctl(&["cluster", "set-config-epoch", epoch]);
        }
        // Every node meets every other one, since gossip would take longer.
        let all: Vec<&Redis> = self.all().collect();
        for (at, node) in all.iter().enumerate() {
            for other in &all[at + 1..] {
                let (port, bus) = (port(other).to_string(), (port(other) + 1).to_string());
                node.ctl(&["cluster", "meet", "127.0.0.1", &port, &bus]);
            }
        }
        until("all nodes know each other", || {
            self.all().all(|node| {
                let nodes = node.ctl(&["cluster", "nodes"]);
                nodes.lines().count() == 6 && !nodes.contains("handshake")
            })
        });
        for (primary, replica) in self.primaries.iter().zip(&self.replicas) {
            let id = primary.ctl(&["cluster", "myid"]);
            until("a replica follows", || {
                replica.ctl(&["cluster", "replicate", &id]) == "OK"
            });
        }
        until("the cluster is whole", || {
            self.all().all(|node| {
                let info = node.ctl(&["cluster", "info"]);
                info.contains("cluster_state:ok") && info.contains("cluster_slots_assigned:16384")
            })
        });
        until("the replicas have a link", || {
            self.replicas.iter().all(|replica| {
                let info = replica.ctl(&["info", "replication"]);
                info.contains("master_link_status:up")
            })
        });
    }

    fn all(&self) -> impl Iterator<Item = &Redis> {
        self.primaries.iter().chain(&self.replicas)
    }

    /// Returns the index of the primary with the slot of `key`.
    pub fn owner(&self, key: &str) -> usize {
        usize::from(self.slot(key) / 5_461).min(2)
    }

    /// Starts another primary without slots.
    pub fn another(&self) -> Redis {
        let new = Redis::start_with(&NODE);
        let (first, own) = (port(&self.primaries[0]), port(&new));
        let (port, bus) = (first.to_string(), (first + 1).to_string());
        new.ctl(&["cluster", "meet", "127.0.0.1", &port, &bus]);
        until("all know the new one", || {
            let knows = |node: &Redis| {
                let nodes = node.ctl(&["cluster", "nodes"]);
                nodes.contains(&format!(":{own}@")) && !nodes.contains("handshake")
            };
            self.all().all(knows) && new.ctl(&["cluster", "nodes"]).lines().count() == 7
        });
        new
    }

    /// Returns true if `node` reports that it has `slot`.
    pub fn has(&self, node: &Redis, slot: u16) -> bool {
        let nodes = node.ctl(&["cluster", "nodes"]);
        let own = nodes.lines().find(|line| line.contains("myself"));
        let ranges = own.expect("it is one of them").split(' ').skip(8);
        let mut ranges = ranges.filter(|range| !range.starts_with('['));
        ranges.any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.parse::<u16>().expect("a slot");
            (number(first)..=number(last)).contains(&slot)
        })
    }

    /// Returns the slot of `key`.
    pub fn slot(&self, key: &str) -> u16 {
        let slot = self.replicas[2].ctl(&["cluster", "keyslot", key]);
        slot.parse().expect("a slot")
    }
}

/// A slot that moves as in a resharding: `SETSLOT`, `MIGRATE`, `SETSLOT NODE`.
pub struct MovingSlot<'a> {
    cluster: &'a RedisCluster,
    slot: String,
    from: &'a Redis,
    to: &'a Redis,
}

impl RedisCluster {
    /// Begins to move `slot`. Both primaries know about it.
    pub fn begin_move<'a>(&'a self, slot: u16, from: &'a Redis, to: &'a Redis) -> MovingSlot<'a> {
        let slot = slot.to_string();
        let (from_id, to_id) = (from.ctl(&["cluster", "myid"]), to.ctl(&["cluster", "myid"]));
        to.ctl(&["cluster", "setslot", &slot, "importing", &from_id]);
        from.ctl(&["cluster", "setslot", &slot, "migrating", &to_id]);
        MovingSlot {
            cluster: self,
            slot,
            from,
            to,
        }
    }
}

impl MovingSlot<'_> {
    /// Moves all keys of the slot.
    pub fn keys(&self) {
        let port = port(self.to).to_string();
        let keys = self
            .from
            .ctl(&["cluster", "getkeysinslot", &self.slot, "100"]);
        for key in keys.lines() {
            // A key left behind is deleted at the end of the move as if it had never existed. A
            // server that restarted refuses for 2 s.
            until("a key goes with its slot", || {
                let reply = (self.from).ctl(&["migrate", "127.0.0.1", &port, key, "0", "60000"]);
                ["OK", "NOKEY"].contains(&reply.as_str())
            });
        }
    }

    /// Ends the move: first at the new primary, then at all others.
    pub fn end(&self) {
        let id = self.to.ctl(&["cluster", "myid"]);
        let others = self.cluster.primaries.iter();
        for node in [self.to, self.from].into_iter().chain(others) {
            let reply = node.ctl(&["cluster", "setslot", &self.slot, "node", &id]);
            assert_eq!(reply, "OK");
        }
    }
}

/// A primary, two replicas and three sentinels.
pub struct Sentinels {
    pub servers: Vec<Redis>,
    pub sentinels: Vec<Redis>,
}

impl Sentinels {
    /// Starts sentinels of a primary that they call `name`. It is the first of the servers.
    pub fn start(name: &str) -> Self {
        let primary = Redis::start_with(&["repl-diskless-sync-delay 0"]);
        let of = format!("replicaof 127.0.0.1 {}", port(&primary));
        let replica = || Redis::start_with(&[&of, "repl-diskless-sync-delay 0"]);
        let servers = vec![primary, replica(), replica()];
        let monitor = format!("sentinel monitor {name} 127.0.0.1 {} 2", port(&servers[0]));
        // A busy machine must not count as down.
        let down = format!("sentinel down-after-milliseconds {name} 5000");
        let fail = format!("sentinel failover-timeout {name} 20000");
        let sentinel = || Redis::start_with(&[&monitor, &down, &fail]);
        let sentinels = vec![sentinel(), sentinel(), sentinel()];
        until("the sentinels know each other and the replicas", || {
            sentinels.iter().all(|sentinel| {
                let info = sentinel.ctl(&["info", "sentinel"]);
                info.contains("slaves=2")
                    && info.contains("sentinels=3")
                    && info.contains("status=ok")
            })
        });
        Self { servers, sentinels }
    }

    /// Returns the index of the server that all sentinels consider the primary, or `None` if they
    /// differ.
    pub fn primary(&self, name: &str) -> Option<usize> {
        let named = |sentinel: &Redis| {
            let reply = sentinel.ctl(&["sentinel", "get-master-addr-by-name", name]);
            let port_named = reply.lines().nth(1)?.trim().parse::<u16>().ok()?;
            self.servers
                .iter()
                .position(|server| port(server) == port_named)
        };
        let first = named(&self.sentinels[0])?;
        let agree = self
            .sentinels
            .iter()
            .all(|sentinel| named(sentinel) == Some(first));
        agree.then_some(first)
    }
}
