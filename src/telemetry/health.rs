//! A worker's readiness, for the probes of the admin server.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use crate::metrics::Metrics;
use gate::{GateError, Primaries};

/// Conditions for a worker to be ready, as the engine reports them.
#[derive(Debug, Default)]
pub struct Health {
    rabbitmq: ServerState,
    redis: ServerState,
    recovering: AtomicBool,
    consuming: AtomicBool,
    /// Reason why this worker can't make calls; empty if it can.
    unfit: Mutex<String>,
    /// Whether this worker disagrees with the others on the effective limits.
    disagrees: AtomicBool,
    /// Whether an operator paused all workers.
    paused: AtomicBool,
    /// Number of turns of the engine's loop, 0 if there is no loop.
    turns: AtomicU64,
    /// Signal that requests a turn.
    turn: Notify,
}

/// The reason why a server does not serve this worker, empty if unknown; `None` if it does.
#[derive(Debug)]
struct ServerState(Mutex<Option<String>>);

impl Default for ServerState {
    fn default() -> Self {
        Self(Mutex::new(Some(String::new())))
    }
}

impl ServerState {
    fn set(&self, down: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = down;
    }

    fn missing(&self, name: &str) -> Option<String> {
        let down = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        down.as_ref().map(|why| match why.is_empty() {
            true => format!("{name} does not answer"),
            false => why.clone(),
        })
    }
}

impl Health {
    /// Records whether RabbitMQ answers.
    pub fn set_rabbitmq(&self, up: bool) {
        self.rabbitmq.set((!up).then(String::new));
    }
    /// Records that RabbitMQ has no session for this worker, and why.
    pub fn set_no_session(&self, why: String) {
        self.rabbitmq.set(Some(why));
    }
    /// Records whether Redis answers.
    pub fn set_redis(&self, up: bool) {
        self.redis.set((!up).then(String::new));
    }
    /// Records that Redis does not answer or refuses, and why.
    pub fn set_no_redis(&self, why: String) {
        self.redis.set(Some(why));
    }
    /// Records whether Redis is in a recovery wait; in a cluster, whether all primaries are.
    pub fn set_recovering(&self, recovering: bool) {
        self.recovering.store(recovering, Ordering::Relaxed);
    }
    /// Records whether this worker agrees with the others on the effective limits.
    pub fn set_agreed(&self, agreed: bool) {
        self.disagrees.store(!agreed, Ordering::Relaxed);
    }
    /// Records whether an operator paused all workers.
    pub fn set_paused(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }
    /// Records whether the worker takes jobs.
    pub fn set_consuming(&self, consuming: bool) {
        self.consuming.store(consuming, Ordering::Relaxed);
    }
    /// Records why this worker can't make calls; `None` if it can.
    pub fn set_unfit(&self, why: Option<&str>) {
        let mut unfit = self.unfit.lock().unwrap_or_else(PoisonError::into_inner);
        why.unwrap_or_default().clone_into(&mut unfit);
    }

    /// Records that the engine has stopped: the state of its servers, the agreement with other
    /// workers and the instructions of operators are no longer known.
    pub fn set_stopped(&self) {
        self.set_rabbitmq(false);
        self.set_redis(false);
        self.set_agreed(true);
        self.set_paused(false);
        self.set_unfit(None);
        self.set_consuming(false);
        self.turns.store(0, Ordering::Relaxed);
    }

    /// Counts a turn of the engine's loop.
    pub fn turned(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of turns of the engine's loop; 0 if no engine runs.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Wakes the engine for one turn, even if it has nothing to do.
    pub fn request_turn(&self) {
        self.turn.notify_one();
    }

    /// Waits until a turn is requested.
    pub async fn turn_requested(&self) {
        self.turn.notified().await;
    }

    /// Returns the conditions that are missing for the worker to be ready; empty if it is ready.
    pub fn missing(&self) -> Vec<String> {
        let parts = [
            (&self.recovering, false, "Redis may have lost data"),
            (
                &self.disagrees,
                false,
                "the workers have not agreed on the limits in time, so no job is admitted; see the log",
            ),
            (
                &self.paused,
                false,
                "an operator paused all workers; sluicegate resume --all ends it",
            ),
            (&self.consuming, true, "no jobs are being taken"),
        ];
        let missing = |(is, wanted, what): (&AtomicBool, bool, &str)| {
            (is.load(Ordering::Relaxed) != wanted).then(|| what.to_owned())
        };
        let no_session = self.rabbitmq.missing("RabbitMQ");
        let unfit = self.unfit.lock().unwrap_or_else(PoisonError::into_inner);
        let unfit = (!unfit.is_empty()).then(|| format!("this worker can't make calls: {unfit}"));
        no_session
            .into_iter()
            .chain(unfit)
            .chain(self.redis.missing("Redis"))
            .chain(parts.into_iter().filter_map(missing))
            .collect()
    }
}

/// Shows in health and metrics whether Redis answers and is in a recovery wait. `error` is that of
/// the last request; `primaries` has the states of the primaries.
pub fn show_redis(
    health: &Health,
    metrics: &Metrics,
    error: Option<&GateError>,
    primaries: Primaries,
) {
    let recovering = matches!(error, Some(GateError::Cold { .. }));
    match error {
        Some(why) if !recovering => health.set_no_redis(why.to_string()),
        _ => health.set_redis(true),
    }
    metrics.set_up("redis", error.is_none() || recovering);
    health.set_recovering(recovering);
    let any = recovering || primaries.recovering > 0;
    metrics.gate_recovering.set(i64::from(any));
    metrics.set_primaries(primaries);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_that_is_over_is_no_reason_after_a_stop() {
        let health = Health::default();
        health.set_redis(true);
        health.set_consuming(true);
        health.set_no_session("RabbitMQ at h can't be reached".to_owned());
        assert_eq!(health.missing(), ["RabbitMQ at h can't be reached"]);
        health.set_rabbitmq(true);
        assert_eq!(health.missing(), [""; 0]);
        health.set_no_redis("Redis refused: NOREPLICAS".to_owned());
        assert_eq!(health.missing(), ["Redis refused: NOREPLICAS"]);
        health.set_redis(true);
        health.set_stopped();
        let missing = health.missing();
        let servers = ["RabbitMQ does not answer", "Redis does not answer"];
        assert_eq!(missing[..2], servers, "{missing:?}");
    }

    #[test]
    fn a_stopped_pipeline_is_not_known_to_be_paused_or_to_disagree() {
        let health = Health::default();
        health.set_paused(true);
        health.set_agreed(false);
        health.set_stopped();
        let missing = health.missing();
        for word in ["paused", "agree"] {
            assert!(
                missing.iter().all(|line| !line.contains(word)),
                "{missing:?}"
            );
        }
    }
}
