//! Pings Redis while no job asks the gate: for `/readyz`, the metrics, the heartbeat, and the
//! latency.

use std::convert::Infallible;
use std::time::Duration;

use tracing::info;

use gate::Gate;
use gate::redis::RedisGate;
use rules::limit::floor_ms;
use telemetry::metrics::Metrics;
use telemetry::{Health, show_redis};

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

/// Keeps `/readyz` and the metrics up to date with Redis, and the heartbeat of a running worker
/// alive, while no job asks the gate.
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
        show_redis(health, metrics, answer.as_ref().err(), gate.primaries());
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use ::redis::{Pipeline, Value};
    use futures_util::FutureExt;
    use futures_util::future::{BoxFuture, ready};

    use super::*;
    use gate::GateError;
    use gate::store::Store;

    /// Answers each command, or is away.
    #[derive(Default)]
    struct Away(AtomicBool);

    impl Store for Away {
        fn run<'a>(
            &'a self,
            pipeline: &'a Pipeline,
        ) -> BoxFuture<'a, Result<Vec<Value>, GateError>> {
            let answer = match self.0.load(Ordering::Relaxed) {
                true => Err(GateError::Unreachable("it is away".to_owned())),
                false => Ok(pipeline.cmd_iter().map(|_| Value::Okay).collect()),
            };
            ready(answer).boxed()
        }
    }

    /// The engine learns of Redis only from the questions about its jobs.
    #[tokio::test(start_paused = true)]
    async fn a_worker_without_jobs_shows_whether_redis_answers() {
        let store = Arc::new(Away::default());
        let gate = RedisGate::on(Arc::<Away>::clone(&store), "p");
        let (health, metrics) = (Health::default(), Metrics::new());
        let watching = watch_redis(&gate, &health, &metrics, StartPhase::Runs);
        let looking = async {
            for up in [true, false, true] {
                store.0.store(!up, Ordering::Relaxed);
                tokio::time::sleep(2 * PING_INTERVAL).await;
                let missing = health.missing().concat();
                assert_eq!(!missing.contains("it is away"), up, "{missing}");
                let line = format!("sluicegate_up{{server=\"redis\"}} {}", u8::from(up));
                let text = metrics.encode();
                assert!(text.lines().any(|found| found == line), "{line}\n{text}");
            }
        };
        tokio::select! {
            never = watching => match never {},
            () = looking => {}
        }
    }
}
