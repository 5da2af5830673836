//! Everything that runs in a torture run, and the code that breaks and mends it.

mod deletion;
pub mod rude;
mod worker_faults;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kit::proxy::{Proxy, Transfer, Transfers};
use kit::servers::{Rabbit, Redis};
use rules::delays::QueueNames;
use tokio::sync::Mutex;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use crate::RunFailure;
use crate::clocks;
use crate::clusters::{self, Rabbits, Redises};
use crate::downstream::Downstream;
use crate::faults::{FaultKind, FaultTarget};
use crate::history::{EventKind, History};
use crate::run_plan::{MAX, OTHER_MAX};
use crate::schedule::ScheduledFault;
use crate::workers::{RunningWorker, STOP};

/// Maximum time that a worker or server stays down after SIGKILL.
const AWAY: Duration = Duration::from_secs(5);
/// Maximum time that RabbitMQ is down or the downstream hangs. It is short enough that no job uses
/// up its attempts.
const SHORT: Duration = Duration::from_secs(8);
/// Minimum and maximum time that the downstream stands still, longer than the workers' timeout.
const STANDSTILL_BOUNDS: (Duration, Duration) = (Duration::from_secs(12), Duration::from_secs(16));
/// Time after the end of all faults within which each worker must take jobs again.
const READY: Duration = Duration::from_secs(120);
/// Interval between two checks whether all workers live.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A worker and the proxies of its connections.
pub struct WorkerSlot {
    pub worker: Mutex<RunningWorker>,
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
    pub slots: Vec<WorkerSlot>,
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
    pub async fn perform(&self, number: u64, fault: ScheduledFault) -> Result<(), RunFailure> {
        let ScheduledFault { kind, .. } = fault;
        let (worker, how) = how(&fault);
        self.history.add(EventKind::Broken {
            fault: number,
            kind,
            worker,
            how,
        });
        match kind.part() {
            _ if clusters::is_ours(kind) => clusters::perform(self, fault).await,
            FaultTarget::Worker => self.worker(number, fault).await?,
            FaultTarget::Rabbit if kind.is_rude() => self.rude(number, fault).await?,
            FaultTarget::Rabbit => self.rabbit(number, fault).await,
            FaultTarget::Redis => self.redis(fault).await?,
            FaultTarget::Downstream => self.downstream(fault).await,
        }
        self.history.add(EventKind::Mended { fault: number });
        Ok(())
    }

    async fn downstream(&self, fault: ScheduledFault) {
        match fault.kind {
            FaultKind::DownstreamFar => {
                let all = |ways| {
                    for slot in &self.slots {
                        slot.to_downstream.set(ways);
                    }
                };
                all(Transfers::round_trip(far(fault.way)));
                sleep(fault.lasts).await;
                all(Transfers::OPEN);
            }
            FaultKind::DownstreamRefuse => {
                refuse(self.slots.iter(), fault.lasts.min(SHORT)).await;
            }
            FaultKind::DownstreamRefuseMost => {
                let (before, after) = self.slots.split_at(fault.worker);
                refuse(before.iter().chain(&after[1..]), rude::lasts(&fault)).await;
            }
            FaultKind::DownstreamStill => {
                self.downstream.stand_still(true);
                sleep(fault.lasts.clamp(STANDSTILL_BOUNDS.0, STANDSTILL_BOUNDS.1)).await;
                self.downstream.stand_still(false);
            }
            _ => {
                self.downstream.hang(true);
                sleep(fault.lasts.min(SHORT)).await;
                self.downstream.hang(false);
            }
        }
    }

    async fn rabbit(&self, number: u64, fault: ScheduledFault) {
        let rabbit = &self.rabbit;
        let ctl = |args: &[&str]| {
            block_in_place(|| rabbit.ctl(args));
        };
        let all = |act: fn(&Rabbit)| block_in_place(|| rabbit.all(act));
        match fault.kind {
            FaultKind::RabbitKill | FaultKind::RabbitRestart => {
                match fault.kind {
                    FaultKind::RabbitKill => all(|one| one.kill()),
                    _ => all(|one| one.stop()),
                }
                sleep(fault.lasts.min(AWAY)).await;
                all(|one| one.restart());
            }
            FaultKind::RabbitStop => {
                all(|one| one.pause());
                sleep(fault.lasts).await;
                all(|one| one.resume());
            }
            FaultKind::RabbitCut => ctl(&["close_all_connections", "torture"]),
            FaultKind::RabbitLogin => {
                ctl(&["change_password", "guest", "other"]);
                ctl(&["close_all_connections", "torture"]);
                sleep(fault.lasts).await;
                ctl(&["change_password", "guest", "guest"]);
            }
            FaultKind::RabbitMemory => {
                ctl(&["set_vm_memory_high_watermark", "absolute", "1MiB"]);
                sleep(fault.lasts).await;
                ctl(&["set_vm_memory_high_watermark", "absolute", "2GiB"]);
            }
            FaultKind::RabbitDisk => {
                ctl(&["set_disk_free_limit", "1000000GB"]);
                sleep(fault.lasts).await;
                ctl(&["set_disk_free_limit", "50MB"]);
            }
            FaultKind::RabbitChannels => ctl(&[
                "eval",
                "[exit(Channel, kill) || Channel <- rabbit_channel:list_local()], ok.",
            ]),
            FaultKind::RabbitDelete => self.delete_queue(number, fault).await,
            _ => hole(&self.slots[fault.worker].to_rabbit, fault).await,
        }
    }

    async fn redis(&self, fault: ScheduledFault) -> Result<(), RunFailure> {
        let redis = &self.redis;
        let ctl = |args: &[&str]| {
            block_in_place(|| redis.ctl(args));
        };
        let all = |act: fn(&Redis)| block_in_place(|| redis.all(act));
        match fault.kind {
            FaultKind::RedisKill | FaultKind::RedisRestart | FaultKind::RedisWipe => {
                match fault.kind {
                    FaultKind::RedisRestart => all(|one| one.stop()),
                    _ => all(|one| one.kill()),
                }
                sleep(fault.lasts.min(AWAY)).await;
                match fault.kind {
                    FaultKind::RedisWipe => all(|one| one.restart_empty()),
                    _ => all(|one| one.restart()),
                }
            }
            FaultKind::RedisStop => {
                all(|one| one.pause());
                sleep(fault.lasts).await;
                all(|one| one.resume());
            }
            FaultKind::RedisCut => ctl(&["client", "kill", "type", "normal"]),
            FaultKind::RedisFull => {
                ctl(&["config", "set", "maxmemory", "1mb"]);
                sleep(fault.lasts).await;
                ctl(&["config", "set", "maxmemory", "0"]);
            }
            FaultKind::RedisReadonly => {
                // No server listens at that address, so it keeps its data.
                ctl(&["replicaof", "127.0.0.1", "1"]);
                sleep(fault.lasts).await;
                ctl(&["replicaof", "no", "one"]);
            }
            FaultKind::RedisLogin => {
                ctl(&["config", "set", "requirepass", "other"]);
                ctl(&["-a", "other", "client", "kill", "type", "normal"]);
                sleep(fault.lasts).await;
                ctl(&["-a", "other", "config", "set", "requirepass", ""]);
            }
            FaultKind::RedisFlush => ctl(&["flushall"]),
            FaultKind::RedisScripts => ctl(&["script", "flush"]),
            FaultKind::RedisClock => {
                redis.step_back(fault.lasts)?;
                // The publishers' clocks must never be further behind than that of Redis.
                sleep(2 * clocks::READ).await;
                let by = u64::try_from(fault.lasts.as_millis()).unwrap_or(u64::MAX);
                self.behind.fetch_add(by, Ordering::Relaxed);
            }
            FaultKind::RedisEvict => {
                ctl(&["config", "set", "maxmemory", "1"]);
                sleep(fault.lasts).await;
                ctl(&["config", "set", "maxmemory", "0"]);
            }
            FaultKind::RedisFar => {
                let all = |ways| {
                    for slot in &self.slots {
                        slot.to_redis.set(ways);
                    }
                };
                all(Transfers::round_trip(slow(fault.way)));
                sleep(fault.lasts).await;
                all(Transfers::OPEN);
            }
            _ => hole(&self.slots[fault.worker].to_redis, fault).await,
        }
        Ok(())
    }

    /// Records each worker that ends by itself, and restarts it. Runs until the end of the run.
    ///
    /// # Errors
    /// Returns an error if a worker can't be started.
    pub async fn watch(&self) -> Result<(), RunFailure> {
        loop {
            for (number, slot) in self.slots.iter().enumerate() {
                // A locked worker is being broken; it is not checked.
                let Ok(mut worker) = slot.worker.try_lock() else {
                    continue;
                };
                if let Some(status) = worker.process.ended()? {
                    let how = format!("ended by itself with {status}");
                    self.history.add(EventKind::Failed {
                        worker: number,
                        how,
                    });
                    worker.revive()?;
                }
            }
            sleep(CHECK_INTERVAL).await;
        }
    }

    /// Sends SIGTERM to all workers. Each of them must still run, be ready, and end with success;
    /// otherwise it is recorded.
    ///
    /// # Errors
    /// Returns an error if a worker can't be waited for.
    pub async fn end(&self) -> Result<(), RunFailure> {
        let until = Instant::now() + READY;
        for (worker, slot) in self.slots.iter().enumerate() {
            let left = until.saturating_duration_since(Instant::now());
            let mut running = slot.worker.lock().await;
            let process = &mut running.process;
            // A worker that lives without working goes unnoticed while others do its work.
            let early = match process.ended()? {
                Some(status) => Some(format!("ended by itself with {status}")),
                None if process.ready("/readyz", left).await? => None,
                None => Some(format!(
                    "was not ready {READY:?} after all faults were mended"
                )),
            };
            if let Some(how) = early {
                self.history.add(EventKind::Failed { worker, how });
            }
            let how = match process.terminate(STOP).await? {
                Some(status) if status.success() => continue,
                Some(status) => format!("ended after SIGTERM with {status}"),
                None => "did not end within a minute of SIGTERM".to_owned(),
            };
            self.history.add(EventKind::Failed { worker, how });
        }
        Ok(())
    }
}

/// Makes the downstream refuse the connections of these workers for a while.
async fn refuse(slots: impl Iterator<Item = &WorkerSlot> + Clone, lasts: Duration) {
    for slot in slots.clone() {
        slot.to_downstream.door.refuse().await;
    }
    sleep(lasts).await;
    for slot in slots {
        let taken = slot.to_downstream.door.take();
        taken.expect("its port");
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
async fn hole(proxy: &Proxy, fault: ScheduledFault) {
    let ways = match (fault.kind, fault.way) {
        (FaultKind::RabbitSlow | FaultKind::RedisSlow, _) => Transfers::round_trip(slow(fault.way)),
        (_, 0) => Transfers {
            there: Transfer::HELD,
            back: Transfer::OPEN,
        },
        (_, 1) => Transfers {
            there: Transfer::OPEN,
            back: Transfer::HELD,
        },
        _ => Transfers::OPEN.held(true),
    };
    proxy.set(ways);
    sleep(fault.lasts).await;
    if ways.there.held && ways.back.held {
        proxy.cut();
    }
    proxy.set(Transfers::OPEN);
}

/// Returns the worker that a fault affects, and a description of the fault.
fn how(fault: &ScheduledFault) -> (Option<usize>, String) {
    let kind = fault.kind;
    let text = |duration: Duration| format!("for {:.1} s", duration.as_secs_f64());
    let lasts = || text(fault.lasts);
    let away = || format!("away {}", text(fault.lasts.min(AWAY)));
    let slowed = |to: Duration| format!("a round trip of {} ms, {}", to.as_millis(), lasts());
    let how = match kind {
        _ if clusters::is_ours(kind) => clusters::how(fault),
        _ if kind.is_rude() => rude::how(fault),
        FaultKind::RabbitKill
        | FaultKind::RabbitRestart
        | FaultKind::RedisKill
        | FaultKind::RedisRestart
        | FaultKind::RedisWipe => away(),
        _ if kind.kills() => away(),
        FaultKind::WorkerRestart
        | FaultKind::RabbitCut
        | FaultKind::RabbitChannels
        | FaultKind::RedisCut
        | FaultKind::RedisFlush
        | FaultKind::RedisScripts => String::new(),
        FaultKind::WorkerConfig | FaultKind::WorkerRolling => {
            format!("{MAX} to {OTHER_MAX} {}", lasts())
        }
        FaultKind::WorkerClock => format!("by {} s, {}", worker_faults::off(fault), lasts()),
        FaultKind::RedisClock => format!("by {:.1} s", fault.lasts.as_secs_f64()),
        FaultKind::RabbitDelete => deletion::how(fault),
        FaultKind::RabbitHole | FaultKind::RedisHole => {
            let way = ["there", "back", "both ways"][usize::from(fault.way % 3)];
            format!("{way}, {}", lasts())
        }
        FaultKind::RabbitSlow | FaultKind::RedisSlow | FaultKind::RedisFar => {
            slowed(slow(fault.way))
        }
        FaultKind::DownstreamFar => slowed(far(fault.way)),
        FaultKind::DownstreamHang | FaultKind::DownstreamRefuse => text(fault.lasts.min(SHORT)),
        FaultKind::DownstreamStill => {
            text((fault.lasts).clamp(STANDSTILL_BOUNDS.0, STANDSTILL_BOUNDS.1))
        }
        _ => lasts(),
    };
    let is_of_one = kind.strikes().is_some()
        || matches!(
            kind,
            FaultKind::WorkerRestart
                | FaultKind::WorkerClock
                | FaultKind::RabbitHole
                | FaultKind::RedisHole
                | FaultKind::RabbitSlow
                | FaultKind::RedisSlow
                | FaultKind::DownstreamRefuseMost
        );
    (is_of_one.then_some(fault.worker), how)
}
