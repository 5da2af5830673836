//! A gate and the floor on one private Redis.

use std::ops::Range;
use std::time::{Duration, Instant};

use redis::aio::ConnectionManager;
use sluicegate::config::SecretUrl;
use sluicegate::gate::redis::RedisGate;
use sluicegate::gate::{Ask, Gate, TenantAsk};
use sluicegate::rules::limit::{Algorithm, Limit, Limits};
use sluicegate::rules::scope::Labels;
use sluicegate::rules::tenant::Tenant;

use crate::servers::{shared_redis, unique};

/// A job that was never asked before.
pub const FRESH: Ask = Ask {
    ticket: None,
    cost: 1,
};
/// More than any of these benches starts.
pub const PLENTY: u64 = 1_000_000;
/// Turns of each; the middle one of their ratios counts.
const TURNS: usize = 9;
/// Tenants in one pipeline while the store is filled.
const PIPELINE: usize = 1000;

/// `max` per `seconds`.
pub fn limit(algorithm: Algorithm, max: u64, seconds: u64) -> Limit {
    let window = Duration::from_secs(seconds);
    Limit::new("default", algorithm, max, window, Duration::ZERO).expect("in range")
}

/// An empty Redis, and two connections to it.
pub struct Bed {
    gate: RedisGate,
    floor: ConnectionManager,
    sha: String,
    limits: Limits,
}

impl Bed {
    /// Empties the Redis of this process.
    pub async fn start(limits: Limits) -> Self {
        let url = shared_redis().url();
        let gate = RedisGate::connect(&SecretUrl::new(url), &unique("bench")).expect("a good url");
        let client = redis::Client::open(url).expect("a good url");
        let mut floor = client.get_connection_manager().await.expect("Redis");
        let _: () = redis::cmd("FLUSHALL")
            .query_async(&mut floor)
            .await
            .expect("Redis answers");
        let sha = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg("return 1")
            .query_async(&mut floor)
            .await
            .expect("Redis answers");
        Self {
            gate,
            floor,
            sha,
            limits,
        }
    }

    fn tenant_ask(&self, tenant: &str, asks: &[Ask]) -> TenantAsk {
        TenantAsk {
            tenant: Tenant::parse(tenant).expect("a good id"),
            labels: Labels::default(),
            limits: self.limits.clone(),
            permits: String::new(),
            budget: u32::MAX,
            asks: asks.to_vec(),
        }
    }

    /// One round trip for one tenant.
    pub async fn ask(&self, tenant: &str, asks: &[Ask]) {
        self.send(&[self.tenant_ask(tenant, asks)]).await;
    }

    async fn send(&self, batch: &[TenantAsk]) {
        for reply in self.gate.ask(batch).await.expect("Redis answers") {
            reply.expect("a decision");
        }
    }

    /// Two starts for each of these tenants.
    pub async fn fill_tenants(&self, tenants: Range<usize>) {
        for first in tenants.clone().step_by(PIPELINE) {
            let some = first..(first + PIPELINE).min(tenants.end);
            let batch: Vec<TenantAsk> = some
                .map(|n| self.tenant_ask(&n.to_string(), &[FRESH; 2]))
                .collect();
            self.send(&batch).await;
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

    /// The rate of `ours` as a part of the floor's, `turn` calls of each in turns.
    pub async fn against_floor(&self, turn: usize, ours: impl AsyncFn(usize)) -> f64 {
        let mut ratios = Vec::with_capacity(TURNS);
        for number in 0..=TURNS {
            let begun = Instant::now();
            for _ in 0..turn {
                self.empty().await;
            }
            let floor = begun.elapsed();
            let begun = Instant::now();
            for n in 0..turn {
                ours(number * turn + n).await;
            }
            // The first turn warms up.
            if number > 0 {
                ratios.push(floor.as_secs_f64() / begun.elapsed().as_secs_f64());
            }
        }
        ratios.sort_by(f64::total_cmp);
        ratios[TURNS / 2]
    }

    /// Bytes of all keys but the line, and of the line.
    pub async fn bytes(&self) -> (u64, u64) {
        let mut floor = self.floor.clone();
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg("bench-*")
            .query_async(&mut floor)
            .await
            .expect("Redis answers");
        let (mut log, mut line) = (0, 0);
        for key in keys {
            let bytes: u64 = redis::cmd("MEMORY")
                .arg(&["USAGE", &key, "SAMPLES", "0"])
                .query_async(&mut floor)
                .await
                .expect("Redis answers");
            if key.ends_with(":line") {
                line += bytes;
            } else {
                log += bytes;
            }
        }
        (log, line)
    }
}
