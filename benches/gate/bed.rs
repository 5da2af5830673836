//! A gate and the baseline on one private Redis.

use std::ops::Range;
use std::time::{Duration, Instant};

use gate::redis::RedisGate;
use gate::{Answer, EarlierStarts, Gate, Question, TenantAsk, Ticket};
use kit::gate::gate_at;
use kit::servers::{Redis, unique};
use redis::aio::ConnectionManager;
use rules::limit::{Algorithm, Limit, Limits};
use rules::scope::Labels;
use rules::tenant::Tenant;

/// A new job.
pub const FRESH: Question = Question {
    ticket: None,
    cost: 1,
    readmitted: false,
};
/// More than the number of starts in any of these benches.
pub const PLENTY: u64 = 1_000_000;
/// Number of turns of each, so short that many run without an interruption. The fastest turn of
/// each counts: it shows the actual work, even on a machine with other load.
const TURNS: usize = 80;
/// Number of tenants per pipeline while the store is filled.
const PIPELINE: usize = 1000;

/// Returns a limit of `max` per `seconds`.
pub fn limit(algorithm: Algorithm, max: u64, seconds: u64) -> Limit {
    let window = Duration::from_secs(seconds);
    Limit::new("default", algorithm, max, window, Duration::ZERO).expect("in range")
}

/// The duration of one round trip, in microseconds.
#[derive(Clone, Copy)]
pub struct Figure {
    pub floor: f64,
    pub ours: f64,
}

impl Figure {
    /// Returns the gate's rate as a fraction of the baseline's.
    pub fn ratio(self) -> f64 {
        self.floor / self.ours
    }
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { floor, ours } = self;
        write!(
            f,
            "{:.2} ({ours:.1} us against {floor:.1} us)",
            self.ratio()
        )
    }
}

/// An empty Redis, and two connections to it.
pub struct Bed {
    /// The default `redis.conf`, without a file of its writes.
    redis: Redis,
    gate: RedisGate,
    floor: ConnectionManager,
    sha: String,
    limits: Limits,
}

impl Bed {
    /// Starts a Redis with these settings.
    pub async fn start(limits: Limits, settings: &[&str]) -> Self {
        let redis = Redis::start_with(settings);
        let url = redis.url();
        let gate = gate_at(url, &unique("bench"));
        let client = redis::Client::open(url).expect("a good url");
        let mut floor = client.get_connection_manager().await.expect("Redis");
        let sha = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg("return 1")
            .query_async(&mut floor)
            .await
            .expect("Redis answers");
        Self {
            redis,
            gate,
            floor,
            sha,
            limits,
        }
    }

    /// Returns the gate as workers use it, with the pulse that detects data loss.
    pub async fn watching(mut self) -> Self {
        self.gate = self.gate.watching(Duration::from_secs(3600));
        self.gate
            .begin(EarlierStarts::Fresh)
            .await
            .expect("Redis answers");
        self
    }

    pub fn tenant_ask(&self, tenant: &str, asks: &[Question]) -> TenantAsk {
        TenantAsk {
            tenant: Tenant::parse(tenant).expect("a good id"),
            labels: Labels::default(),
            limits: self.limits.clone(),
            permits: String::new(),
            budget: u32::MAX,
            asks: asks.to_vec(),
        }
    }

    /// Makes one round trip for one tenant.
    pub async fn ask(&self, tenant: &str, asks: &[Question]) {
        self.send(&[self.tenant_ask(tenant, asks)]).await;
    }

    async fn send(&self, batch: &[TenantAsk]) {
        for reply in self.gate.ask(batch).await.expect("Redis answers") {
            reply.expect("a decision");
        }
    }

    /// Starts two jobs of each of these tenants.
    pub async fn fill_tenants(&self, tenants: Range<usize>) {
        for first in tenants.clone().step_by(PIPELINE) {
            let some = first..(first + PIPELINE).min(tenants.end);
            let batch: Vec<TenantAsk> = some
                .map(|n| self.tenant_ask(&n.to_string(), &[FRESH; 2]))
                .collect();
            self.send(&batch).await;
        }
    }

    /// Makes one job of each of these tenants wait.
    pub async fn wait_tenants(&self, tenants: Range<usize>) {
        for first in tenants.clone().step_by(PIPELINE) {
            let some = first..(first + PIPELINE).min(tenants.end);
            let batch: Vec<TenantAsk> = some
                .map(|n| self.tenant_ask(&format!("tenant-{n}"), &[FRESH]))
                .collect();
            self.send(&batch).await;
        }
    }

    /// Returns a ticket of this tenant's waitlist.
    pub async fn ticket(&self, tenant: &str) -> Ticket {
        let ask = [self.tenant_ask(tenant, &[FRESH])];
        let mut replies = self.gate.ask(&ask).await.expect("Redis answers");
        match replies.remove(0).expect("a decision").answers[..] {
            [Answer::Wait { ticket, .. }] => ticket,
            ref other => panic!("{other:?}"),
        }
    }

    async fn empty(&self) {
        let mut floor = self.floor.clone();
        let one: u64 = redis::cmd("EVALSHA")
            .arg(&self.sha)
            .arg(0)
            .query_async(&mut floor)
            .await
            .expect("Redis answers");
        assert_eq!(one, 1);
    }

    /// Measures round trips for `asks`, repeated in turns of `turn` round trips, alternating with
    /// the baseline's calls.
    pub async fn against_floor(&self, turn: usize, asks: &[TenantAsk]) -> Figure {
        let mut min = Figure {
            floor: f64::INFINITY,
            ours: f64::INFINITY,
        };
        let mut next = asks.iter().cycle();
        for _ in 0..TURNS {
            let started = Instant::now();
            for _ in 0..turn {
                self.empty().await;
            }
            let floor = started.elapsed();
            let started = Instant::now();
            for ask in next.by_ref().take(turn) {
                self.send(std::slice::from_ref(ask)).await;
            }
            let ours = started.elapsed();
            let each = |all: Duration| all.as_secs_f64() * 1e6 / turn as f64;
            min.floor = min.floor.min(each(floor));
            min.ours = min.ours.min(each(ours));
        }
        min
    }

    /// Returns Redis's own work for each of `calls` round trips with `ask`: microseconds in the
    /// script, and the number of commands that the script calls.
    pub async fn work(&self, calls: usize, ask: &TenantAsk) -> (f64, f64) {
        self.redis.reset_stats();
        for _ in 0..calls {
            self.send(std::slice::from_ref(ask)).await;
        }
        let stats = self.redis.command_stats();
        let micros = stats.micros("evalsha");
        let commands: u64 = stats.in_scripts().values().sum();
        (micros as f64 / calls as f64, commands as f64 / calls as f64)
    }

    /// Returns the bytes of all keys without the waitlist, and of the waitlist.
    pub async fn bytes(&self) -> (u64, u64) {
        let waitlist = self.bytes_of("bench-*:line").await;
        (self.bytes_of("bench-*").await - waitlist, waitlist)
    }

    /// Returns the bytes of all keys that match `pattern`.
    pub async fn bytes_of(&self, pattern: &str) -> u64 {
        let mut floor = self.floor.clone();
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg(pattern)
            .query_async(&mut floor)
            .await
            .expect("Redis answers");
        let mut all = 0;
        for key in keys {
            let bytes: u64 = redis::cmd("MEMORY")
                .arg(&["USAGE", &key, "SAMPLES", "0"])
                .query_async(&mut floor)
                .await
                .expect("Redis answers");
            all += bytes;
        }
        all
    }
}
