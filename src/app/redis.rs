//! Looks at Redis while no job asks the gate, for `/readyz`, the pulse, and the length of the way.

use std::convert::Infallible;
use std::time::Duration;

use tracing::info;

use crate::admin::{self, Health};
use crate::gate::redis::RedisGate;
use crate::gate::{Gate, GateError};
use crate::metrics::Metrics;

/// How often an idle worker looks whether Redis answers, for `/readyz`.
const PING_EVERY: Duration = Duration::from_secs(2);
/// A shorter round trip to Redis is nothing to speak of.
const FAR: Duration = Duration::from_millis(10);

/// How far a worker is.
#[derive(Clone, Copy)]
pub(super) enum Phase {
    /// What was started before is not known yet, so the gate may not be told of this worker.
    Waits,
    /// The gate has begun.
    Runs,
}

/// Keeps `/readyz` true to Redis, and the pulse of a worker that runs going, while no job asks the gate.
pub(super) async fn watch_redis(
    gate: &RedisGate,
    health: &Health,
    metrics: &Metrics,
    phase: Phase,
) -> Infallible {
    let mut way = WaySaid::default();
    loop {
        let answer = match phase {
            Phase::Waits => gate.answers().await,
            Phase::Runs => gate.ping().await,
        };
        let cold = matches!(answer, Err(GateError::Cold { .. }));
        health.set_redis(answer.is_ok() || cold);
        admin::show_recovery(health, metrics, cold, gate.primaries());
        if matches!(phase, Phase::Runs) && answer.is_ok() && gate.measure().await.is_ok() {
            way.say(gate.base());
        }
        tokio::time::sleep(PING_EVERY).await;
    }
}

/// What was last said of the way to Redis.
#[derive(Default)]
struct WaySaid(Duration);

impl WaySaid {
    /// Says it where it is long, and again when it has changed much.
    fn say(&mut self, base: Duration) {
        let far = |base: Duration| if base < FAR { Duration::ZERO } else { base };
        let (base, said) = (far(base), far(self.0));
        if base.abs_diff(said) <= said.max(FAR) / 2 {
            return;
        }
        self.0 = base;
        let round_trip_ms = u64::try_from(base.as_millis()).unwrap_or(u64::MAX);
        if base.is_zero() {
            info!("Redis is near again");
        } else {
            info!(
                round_trip_ms,
                "Redis is far away: each job gets its permit that much later, and has a worker slot until then"
            );
        }
    }
}
