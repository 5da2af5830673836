//! Pings Redis while no job asks the gate: for `/readyz`, the heartbeat, and the latency.

use std::convert::Infallible;
use std::time::Duration;

use tracing::info;

use gate::redis::RedisGate;
use gate::{Gate, GateError};
use rules::limit::floor_ms;
use telemetry::metrics::Metrics;
use telemetry::{Health, show_recovery};

/// Interval at which an idle worker pings Redis.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// Round trips to Redis below this are not logged.
const MIN_LOGGED_LATENCY: Duration = Duration::from_millis(10);

/// How far the start of a worker has got.
#[derive(Clone, Copy)]
pub(super) enum StartPhase {
    /// Earlier starts are not known yet, so the gate must not learn of this worker.
    Waits,
    /// The gate has begun its epoch.
    Runs,
}

/// Keeps `/readyz` up to date with Redis, and the heartbeat of a running worker alive, while no job
/// asks the gate.
pub(super) async fn watch_redis(
    gate: &RedisGate,
    health: &Health,
    metrics: &Metrics,
    phase: StartPhase,
) -> Infallible {
    let mut latency = LoggedLatency::default();
    loop {
        let answer = match phase {
            StartPhase::Waits => gate.answers().await,
            StartPhase::Runs => gate.ping().await,
        };
        let cold = matches!(answer, Err(GateError::Cold { .. }));
        health.set_redis(answer.is_ok() || cold);
        show_recovery(health, metrics, cold, gate.primaries());
        if matches!(phase, StartPhase::Runs) && answer.is_ok() && gate.measure().await.is_ok() {
            latency.log(gate.base());
        }
        tokio::time::sleep(PING_INTERVAL).await;
    }
}

/// The round trip to Redis that was last logged.
#[derive(Default)]
struct LoggedLatency(Duration);

impl LoggedLatency {
    /// Logs the round trip if it is long, and again if it changes by more than half.
    fn log(&mut self, base: Duration) {
        let far = |base: Duration| {
            if base < MIN_LOGGED_LATENCY {
                Duration::ZERO
            } else {
                base
            }
        };
        let (base, logged) = (far(base), far(self.0));
        if base.abs_diff(logged) <= logged.max(MIN_LOGGED_LATENCY) / 2 {
            return;
        }
        self.0 = base;
        let round_trip_ms = floor_ms(base);
        if base.is_zero() {
            info!("Redis's latency is normal again");
        } else {
            info!(
                round_trip_ms,
                "Redis's latency is high: each permit comes that much later, and its job occupies \
                a worker slot until then"
            );
        }
    }
}
