//! The RabbitMQ and Redis servers of a run, single or clustered, and the faults that only clusters
//! have.

mod network;
mod rabbit;
mod redis;

use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::bed::Bed;
use crate::faults::FaultKind;
use crate::schedule::ScheduledFault;
pub use network::Network;
use network::{LostDirection, NOTICED};
pub use rabbit::{EMPTY_FOR, Rabbits};
pub use redis::Redises;

/// Maximum time that one of several servers is down, in addition to the time that the others need
/// to take over.
const AWAY: Duration = Duration::from_secs(10);

/// The kind of RabbitMQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RabbitMq {
    /// One server
    Single,
    /// Three nodes, any of which a worker may use
    Cluster,
}

/// The kind of Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RedisKind {
    /// One server
    Single,
    /// A primary with two replicas behind three Sentinels
    Sentinel,
    /// A Redis Cluster of three primaries, each with a replica
    Cluster,
}

/// The kinds of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerKinds {
    pub rabbitmq: RabbitMq,
    pub redis: RedisKind,
}

impl ServerKinds {
    /// Returns the kinds of faults that these servers can have.
    pub fn kinds(self) -> Vec<FaultKind> {
        let all = FaultKind::all().iter().copied();
        all.filter(|kind| self.has(*kind)).collect()
    }

    /// Returns true if these servers can have faults of `kind`.
    pub fn has(self, kind: FaultKind) -> bool {
        match kind {
            FaultKind::RabbitNodeKill
            | FaultKind::RabbitNodeStop
            | FaultKind::RabbitNodeRestart
            | FaultKind::RabbitNodeCut
            | FaultKind::RabbitLeaderCut => self.rabbitmq == RabbitMq::Cluster,
            FaultKind::RedisPrimaryKill
            | FaultKind::RedisPrimaryStop
            | FaultKind::RedisPrimaryLag
            | FaultKind::RedisReplicaKill
            | FaultKind::RedisHandover => self.redis != RedisKind::Single,
            // One of several servers would forget its role with its data, and workers learn its
            // port from the others.
            FaultKind::RedisWipe
            | FaultKind::RedisReadonly
            | FaultKind::RedisLogin
            | FaultKind::RedisHole
            | FaultKind::RedisSlow
            | FaultKind::RedisFar
            | FaultKind::RedisEvict
            | FaultKind::KillAtGate
            | FaultKind::KillAtPermit
            | FaultKind::StopAtGate
            | FaultKind::StopAtPermit => self.redis == RedisKind::Single,
            // There is a single clock. Besides, libfaketime does not work with a Valkey that uses
            // the loader of another distribution.
            FaultKind::RedisClock => {
                self.redis == RedisKind::Single && std::env::var_os("TEST_REDIS_SERVER").is_none()
            }
            // The role of a killed server behind Sentinel is not in its configuration.
            FaultKind::RedisKill | FaultKind::RedisRestart => self.redis != RedisKind::Sentinel,
            _ => true,
        }
    }
}

/// Runs `act` on all servers at the same time.
fn at_once<S: Send>(servers: impl IntoIterator<Item = S>, act: impl Fn(S) + Sync) {
    let act = &act;
    thread::scope(|scope| {
        for server in servers {
            scope.spawn(move || act(server));
        }
    });
}

/// Returns true if faults of `kind` affect one of several servers.
pub fn is_ours(kind: FaultKind) -> bool {
    let servers = ServerKinds {
        rabbitmq: RabbitMq::Single,
        redis: RedisKind::Single,
    };
    !servers.has(kind)
}

/// Describes which of several servers the fault affects.
pub fn how(fault: &ScheduledFault) -> String {
    let seconds = fault.lasts.min(AWAY).as_secs_f64();
    match fault.kind {
        FaultKind::RabbitNodeKill | FaultKind::RabbitNodeRestart => {
            format!("node {}, away for {seconds:.1} s", fault.worker)
        }
        FaultKind::RabbitNodeStop => {
            let seconds = fault.lasts.as_secs_f64();
            format!("node {}, for {seconds:.1} s", fault.worker)
        }
        FaultKind::RabbitNodeCut | FaultKind::RabbitLeaderCut => {
            let seconds = cut_for(fault).as_secs_f64();
            let lost = lost(fault).describe();
            let node = match fault.kind {
                FaultKind::RabbitNodeCut => format!("node {}, ", fault.worker),
                _ => String::new(),
            };
            format!("{node}{lost}, for {seconds:.1} s")
        }
        FaultKind::RedisReplicaKill => format!("away for {seconds:.1} s"),
        FaultKind::RedisPrimaryKill | FaultKind::RedisPrimaryStop | FaultKind::RedisPrimaryLag => {
            format!("until another one takes over, and {seconds:.1} s")
        }
        _ => String::new(),
    }
}

/// Returns the duration of a cut: long enough that most cuts are noticed, and some are not.
fn cut_for(fault: &ScheduledFault) -> Duration {
    NOTICED.mul_f64(0.7) + fault.lasts
}

/// Returns the direction that a cut loses.
fn lost(fault: &ScheduledFault) -> LostDirection {
    [
        LostDirection::Both,
        LostDirection::ToIt,
        LostDirection::FromIt,
    ][usize::from(fault.way % 3)]
}

/// Breaks one of several servers, and mends it.
pub async fn perform(bed: &Bed, fault: ScheduledFault) {
    let away = || sleep(fault.lasts.min(AWAY));
    let node = bed.rabbit.node(fault.worker);
    match fault.kind {
        FaultKind::RabbitNodeKill | FaultKind::RabbitNodeRestart => {
            match fault.kind {
                FaultKind::RabbitNodeKill => block_in_place(|| node.kill()),
                _ => block_in_place(|| node.stop()),
            }
            away().await;
            block_in_place(|| node.restart());
        }
        FaultKind::RabbitNodeStop => {
            block_in_place(|| node.pause());
            sleep(fault.lasts).await;
            block_in_place(|| node.resume());
        }
        FaultKind::RabbitNodeCut | FaultKind::RabbitLeaderCut => {
            let node = match fault.kind {
                FaultKind::RabbitNodeCut => fault.worker,
                _ => block_in_place(|| bed.rabbit.leader(&bed.names.due)),
            };
            bed.rabbit.cut(node, lost(&fault));
            sleep(cut_for(&fault)).await;
            bed.rabbit.heal();
            if bed.rabbit.until_whole(node).await {
                println!(
                    "           node {node} stayed apart after the healing, and was restarted"
                );
            }
        }
        FaultKind::RedisHandover => block_in_place(|| bed.redis.hand_over(fault.worker)),
        FaultKind::RedisReplicaKill => {
            let replica = block_in_place(|| bed.redis.replica(fault.worker));
            block_in_place(|| replica.kill());
            away().await;
            block_in_place(|| replica.restart());
        }
        _ => {
            let primary = block_in_place(|| bed.redis.primary(fault.worker));
            if fault.kind == FaultKind::RedisPrimaryLag {
                block_in_place(|| redis::cut_off(primary));
                sleep(Duration::from_secs(1)).await;
            }
            match fault.kind {
                FaultKind::RedisPrimaryStop => block_in_place(|| primary.pause()),
                _ => block_in_place(|| primary.kill()),
            }
            block_in_place(|| bed.redis.until_taken_over(fault.worker, primary));
            away().await;
            match fault.kind {
                FaultKind::RedisPrimaryStop => block_in_place(|| primary.resume()),
                _ => block_in_place(|| primary.restart()),
            }
            block_in_place(|| bed.redis.until_whole());
        }
    }
}
