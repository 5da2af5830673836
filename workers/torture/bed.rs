//! Everything that runs in a torture run, and the code that breaks and mends it.

mod deletion;
pub mod rude;
mod struck;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kit::proxy::{Proxy, Way, Ways};
use sluicegate::rules::delays::QueueNames;
use tokio::sync::Mutex;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use crate::Failure;
use crate::clocks;
use crate::clusters::{self, Rabbits, Redises};
use crate::downstream::Downstream;
use crate::faults::{Kind, Part};
use crate::history::{History, What};
use crate::plan::{MAX, OTHER_MAX};
use crate::schedule::Fault;
use crate::workers::Worker;

/// Maximum time that a worker or server stays down after SIGKILL.
const AWAY: Duration = Duration::from_secs(5);
/// Maximum time that RabbitMQ is down or the downstream hangs. It is short enough that no job uses
/// up its attempts.
const SHORT: Duration = Duration::from_secs(8);
/// Minimum and maximum time that the downstream stands still, longer than the workers' timeout.
const STILL: (Duration, Duration) = (Duration::from_secs(12), Duration::from_secs(16));
/// Time after the end of all faults within which each worker must take jobs again.
const READY: Duration = Duration::from_secs(120);
/// Interval between two checks whether all workers live.
const LOOK: Duration = Duration::from_millis(500);

/// A worker and the proxies of its connections.
pub struct Slot {
    pub worker: Mutex<Worker>,
    pub to_rabbit: Arc<Proxy>,
    pub to_redis: Arc<Proxy>,
    pub to_downstream: Arc<Proxy>,
}

/// Everything that runs.
pub struct Bed {
    pub history: Arc<History>,
    pub downstream: Arc<Downstream>,
    pub rabbit: Arc<Rabbits>,
    pub redis: Arc<Redises>,
    pub slots: Vec<Slot>,
    /// The program, and the configuration for commands that an operator runs.
    pub operator: (PathBuf, PathBuf),
    pub names: QueueNames,
    /// Stops all publishers while it is set.
    pub silence: Arc<AtomicBool>,
    /// Milliseconds by which Redis's clock is behind, or more. The publishers' clocks are set back
    /// by them, too.
    pub behind: Arc<AtomicU64>,
}

impl Bed {
    /// Injects a fault and mends it. `number` identifies the fault in the history.
    ///
    /// # Errors
    /// Returns an error if the fault could not be mended.
    pub async fn perform(&self, number: u64, fault: Fault) -> Result<(), Failure> {
        let Fault { kind, .. } = fault;
        let (worker, how) = how(&fault);
        self.history.add(What::Broken {
            fault: number,
            kind,
            worker,
            how,
        });
        match kind.part() {
            _ if clusters::is_ours(kind) => clusters::perform(self, fault).await,
            Part::Worker => self.worker(number, fault).await?,
            Part::Rabbit if kind.is_rude() => self.rude(number, fault).await?,
            Part::Rabbit => self.rabbit(number, fault).await,
            Part::Redis => self.redis(fault).await?,
            Part::Downstream => self.downstream(fault).await,
        }
        self.history.add(What::Mended { fault: number });
        Ok(())
    }

    async fn downstream(&self, fault: Fault) {
        match fault.kind {
            Kind::DownstreamFar => {
                let all = |ways| {
                    for slot in &self.slots {
                        slot.to_downstream.set(ways);
                    }
                };
                all(Ways::round_trip(far(fault.way)));
                sleep(fault.lasts).await;
                all(Ways::OPEN);
            }
            Kind::DownstreamRefuse => {
                refuse(self.slots.iter(), fault.lasts.min(SHORT)).await;
            }
            Kind::DownstreamRefuseMost => {
                let (before, after) = self.slots.split_at(fault.worker);
                refuse(before.iter().chain(&after[1..]), rude::lasts(&fault)).await;
            }
            Kind::DownstreamStill => {
                self.downstream.stand_still(true);
                sleep(fault.lasts.clamp(STILL.0, STILL.1)).await;
                self.downstream.stand_still(false);
            }
            _ => {
                self.downstream.hang(true);
                sleep(fault.lasts.min(SHORT)).await;
                self.downstream.hang(false);
            }
        }
    }

    async fn rabbit(&self, number: u64, fault: Fault) {
        let rabbit = &self.rabbit;
        let ctl = |args: &[&str]| {
            block_in_place(|| rabbit.ctl(args));
        };
        match fault.kind {
            Kind::RabbitKill | Kind::RabbitRestart => {
                match fault.kind {
                    Kind::RabbitKill => block_in_place(|| rabbit.kill()),
                    _ => block_in_place(|| rabbit.stop()),
                }
                sleep(fault.lasts.min(AWAY)).await;
                block_in_place(|| rabbit.restart());
            }
            Kind::RabbitStop => {
                block_in_place(|| rabbit.pause());
                sleep(fault.lasts).await;
                block_in_place(|| rabbit.resume());
            }
            Kind::RabbitCut => ctl(&["close_all_connections", "torture"]),
            Kind::RabbitLogin => {
                ctl(&["change_password", "guest", "other"]);
                ctl(&["close_all_connections", "torture"]);
                sleep(fault.lasts).await;
                ctl(&["change_password", "guest", "guest"]);
            }
            Kind::RabbitMemory => {
                ctl(&["set_vm_memory_high_watermark", "absolute", "1MiB"]);
                sleep(fault.lasts).await;
                ctl(&["set_vm_memory_high_watermark", "absolute", "2GiB"]);
            }
            Kind::RabbitDisk => {
                ctl(&["set_disk_free_limit", "1000000GB"]);
                sleep(fault.lasts).await;
                ctl(&["set_disk_free_limit", "50MB"]);
            }
            Kind::RabbitChannels => ctl(&[
                "eval",
                "[exit(Channel, kill) || Channel <- rabbit_channel:list_local()], ok.",
            ]),
            Kind::RabbitDelete => self.delete_queue(number, fault).await,
            _ => hole(&self.slots[fault.worker].to_rabbit, fault).await,
        }
    }

    async fn redis(&self, fault: Fault) -> Result<(), Failure> {
        let redis = &self.redis;
        let ctl = |args: &[&str]| {
            block_in_place(|| redis.ctl(args));
        };
        match fault.kind {
            Kind::RedisKill | Kind::RedisRestart | Kind::RedisWipe => {
                match fault.kind {
                    Kind::RedisRestart => block_in_place(|| redis.stop()),
                    _ => block_in_place(|| redis.kill()),
                }
                sleep(fault.lasts.min(AWAY)).await;
                match fault.kind {
                    Kind::RedisWipe => block_in_place(|| redis.restart_empty()),
                    _ => block_in_place(|| redis.restart()),
                }
            }
            Kind::RedisStop => {
                block_in_place(|| redis.pause());
                sleep(fault.lasts).await;
                block_in_place(|| redis.resume());
            }
            Kind::RedisCut => ctl(&["client", "kill", "type", "normal"]),
            Kind::RedisFull => {
                ctl(&["config", "set", "maxmemory", "1mb"]);
                sleep(fault.lasts).await;
                ctl(&["config", "set", "maxmemory", "0"]);
            }
            Kind::RedisReadonly => {
                // No server listens at that address, so it keeps its data.
                ctl(&["replicaof", "127.0.0.1", "1"]);
                sleep(fault.lasts).await;
                ctl(&["replicaof", "no", "one"]);
            }
            Kind::RedisLogin => {
                ctl(&["config", "set", "requirepass", "other"]);
                ctl(&["-a", "other", "client", "kill", "type", "normal"]);
                sleep(fault.lasts).await;
                ctl(&["-a", "other", "config", "set", "requirepass", ""]);
            }
            Kind::RedisFlush => ctl(&["flushall"]),
            Kind::RedisScripts => ctl(&["script", "flush"]),
            Kind::RedisClock => {
                redis.step_back(fault.lasts)?;
                // The publishers' clocks must never be further behind than that of Redis.
                sleep(2 * clocks::READ).await;
                let by = u64::try_from(fault.lasts.as_millis()).unwrap_or(u64::MAX);
                self.behind.fetch_add(by, Ordering::Relaxed);
            }
            Kind::RedisEvict => {
                ctl(&["config", "set", "maxmemory", "1"]);
                sleep(fault.lasts).await;
                ctl(&["config", "set", "maxmemory", "0"]);
            }
            Kind::RedisFar => {
                let all = |ways| {
                    for slot in &self.slots {
                        slot.to_redis.set(ways);
                    }
                };
                all(Ways::round_trip(slow(fault.way)));
                sleep(fault.lasts).await;
                all(Ways::OPEN);
            }
            _ => hole(&self.slots[fault.worker].to_redis, fault).await,
        }
        Ok(())
    }

    /// Records each worker that ends by itself, and restarts it. Runs until the end of the run.
    ///
    /// # Errors
    /// Returns an error if a worker can't be started.
    pub async fn watch(&self) -> Result<(), Failure> {
        loop {
            for (number, slot) in self.slots.iter().enumerate() {
                // A locked worker is being broken; it is not checked.
                let Ok(mut worker) = slot.worker.try_lock() else {
                    continue;
                };
                if let Some(status) = worker.ended()? {
                    let how = format!("ended by itself with {status}");
                    self.history.add(What::Failed {
                        worker: number,
                        how,
                    });
                    worker.revive()?;
                }
            }
            sleep(LOOK).await;
        }
    }

    /// Sends SIGTERM to all workers. Each of them must still run, be ready, and end with success;
    /// otherwise it is recorded.
    ///
    /// # Errors
    /// Returns an error if a worker can't be waited for.
    pub async fn end(&self) -> Result<(), Failure> {
        let until = Instant::now() + READY;
        for (worker, slot) in self.slots.iter().enumerate() {
            let left = until.saturating_duration_since(Instant::now());
            let mut process = slot.worker.lock().await;
            // A worker that lives without working goes unnoticed while others do its work.
            let early = match process.ended()? {
                Some(status) => Some(format!("ended by itself with {status}")),
                None if process.ready(left).await => None,
                None => Some(format!(
                    "was not ready {READY:?} after all faults were mended"
                )),
            };
            if let Some(how) = early {
                self.history.add(What::Failed { worker, how });
            }
            let how = match process.terminate().await? {
                Some(status) if status.success() => continue,
                Some(status) => format!("ended after SIGTERM with {status}"),
                None => "did not end within a minute of SIGTERM".to_owned(),
            };
            self.history.add(What::Failed { worker, how });
        }
        Ok(())
    }
}

/// Makes the downstream refuse the connections of these workers for a while.
async fn refuse(slots: impl Iterator<Item = &Slot> + Clone, lasts: Duration) {
    for slot in slots.clone() {
        slot.to_downstream.door.refuse().await;
    }
    sleep(lasts).await;
    for slot in slots {
        slot.to_downstream.door.take().await;
    }
}

/// Returns a round trip with 50 to 250 ms in each direction.
fn slow(way: u8) -> Duration {
    Duration::from_millis(100 + 200 * u64::from(way))
}

/// Returns a round trip with 30 to 400 ms in each direction.
fn far(way: u8) -> Duration {
    [60, 240, 800].map(Duration::from_millis)[usize::from(way % 3)]
}

/// Lets nothing pass in one or both directions, as if a firewall had forgotten the connection, or
/// delays everything.
async fn hole(proxy: &Proxy, fault: Fault) {
    let ways = match (fault.kind, fault.way) {
        (Kind::RabbitSlow | Kind::RedisSlow, _) => Ways::round_trip(slow(fault.way)),
        (_, 0) => Ways {
            there: Way::HELD,
            back: Way::OPEN,
        },
        (_, 1) => Ways {
            there: Way::OPEN,
            back: Way::HELD,
        },
        _ => Ways::OPEN.held(true),
    };
    proxy.set(ways);
    sleep(fault.lasts).await;
    if ways.there.held && ways.back.held {
        proxy.cut();
    }
    proxy.set(Ways::OPEN);
}

/// Returns the worker that a fault affects, and a description of the fault.
fn how(fault: &Fault) -> (Option<usize>, String) {
    let seconds = |longest: Duration| format!("{:.1} s", fault.lasts.min(longest).as_secs_f64());
    let way = ["there", "back", "both ways"][usize::from(fault.way % 3)];
    let one = Some(fault.worker);
    let round_trip = |of: Duration| format!("a round trip of {} ms", of.as_millis());
    match fault.kind {
        Kind::WorkerKill => (one, format!("away for {}", seconds(AWAY))),
        Kind::WorkerStop => (one, format!("for {}", seconds(Duration::MAX))),
        Kind::WorkerRestart => (one, String::new()),
        Kind::WorkerConfig | Kind::WorkerRolling => (
            None,
            format!("{MAX} to {OTHER_MAX} for {}", seconds(Duration::MAX)),
        ),
        Kind::WorkerClock => {
            let by = struck::off(fault);
            (one, format!("by {by} s, for {}", seconds(Duration::MAX)))
        }
        Kind::KillAtGate
        | Kind::KillAtPermit
        | Kind::KillAtCall
        | Kind::KillAtPublish
        | Kind::KillAtConfirm => (one, format!("away for {}", seconds(AWAY))),
        Kind::StopAtGate
        | Kind::StopAtPermit
        | Kind::StopAtCall
        | Kind::StopAtPublish
        | Kind::StopAtConfirm => (one, format!("for {}", seconds(Duration::MAX))),
        Kind::RabbitKill
        | Kind::RabbitRestart
        | Kind::RedisKill
        | Kind::RedisRestart
        | Kind::RedisWipe => (None, format!("away for {}", seconds(AWAY))),
        Kind::RabbitStop
        | Kind::RabbitMemory
        | Kind::RabbitDisk
        | Kind::RabbitLogin
        | Kind::RedisStop
        | Kind::RedisFull
        | Kind::RedisEvict
        | Kind::RedisReadonly
        | Kind::RedisLogin => (None, format!("for {}", seconds(Duration::MAX))),
        Kind::RabbitCut
        | Kind::RabbitChannels
        | Kind::RedisCut
        | Kind::RedisFlush
        | Kind::RedisScripts => (None, String::new()),
        Kind::RedisClock => (None, format!("by {}", seconds(Duration::MAX))),
        Kind::RabbitDelete => (None, deletion::how(fault)),
        Kind::RabbitHole | Kind::RedisHole => {
            (one, format!("{way}, for {}", seconds(Duration::MAX)))
        }
        Kind::RabbitSlow | Kind::RedisSlow => (
            one,
            format!(
                "{}, for {}",
                round_trip(slow(fault.way)),
                seconds(Duration::MAX)
            ),
        ),
        Kind::RedisFar => (
            None,
            format!(
                "{}, for {}",
                round_trip(slow(fault.way)),
                seconds(Duration::MAX)
            ),
        ),
        Kind::DownstreamFar => (
            None,
            format!(
                "{}, for {}",
                round_trip(far(fault.way)),
                seconds(Duration::MAX)
            ),
        ),
        Kind::DownstreamHang | Kind::DownstreamRefuse => (None, format!("for {}", seconds(SHORT))),
        Kind::DownstreamRefuseMost => (one, rude::how(fault)),
        Kind::RudeReplies | Kind::RudeJobs | Kind::RudeTenant | Kind::RudeFlood => {
            (None, rude::how(fault))
        }
        Kind::DownstreamStill => {
            let seconds = fault.lasts.clamp(STILL.0, STILL.1).as_secs_f64();
            (None, format!("for {seconds:.1} s"))
        }
        Kind::RabbitNodeKill
        | Kind::RabbitNodeStop
        | Kind::RabbitNodeRestart
        | Kind::RabbitNodeCut
        | Kind::RabbitLeaderCut
        | Kind::RedisPrimaryKill
        | Kind::RedisPrimaryStop
        | Kind::RedisPrimaryLag
        | Kind::RedisReplicaKill
        | Kind::RedisHandover => (None, clusters::how(fault)),
    }
}
