//! What an operator's systems ask a worker over HTTP: `/metrics`, `/livez`, `/readyz`, `/readyz/PIPELINE`, `/api/v1`, which has a door
//! of its own (`api/guard.rs`), and the page for people (`page`), which has one, too (`page/door.rs`).
//!
//! With `admin.token` only those who show it (`Authorization: Bearer TOKEN`, RFC 6750) see what there is. Two questions
//! are answered to everybody, yes or no: is it alive (`/livez`), is it ready (`/readyz`, without what is missing). What
//! asks them, load balancers and kubelets, has no place to keep a token secret; and who may connect learns
//! the first from that alone.

#[cfg(feature = "admin")]
mod api;
mod board;
#[cfg(feature = "admin")]
mod guesses;
#[cfg(not(feature = "admin"))]
mod none;
#[cfg(feature = "admin")]
mod page;
#[cfg(feature = "admin")]
mod server;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

pub use self::board::{Board, InForce, Readiness, Seen};
#[cfg(not(feature = "admin"))]
pub use self::none::{AdminServer, serve};
#[cfg(feature = "admin")]
pub use self::server::{AdminServer, serve};
use crate::broker::MessageKind;
use crate::gate::Primaries;
use crate::metrics::Metrics;
use crate::rules::steering::Hold;

/// What a worker needs to be ready; set by the engine.
#[derive(Debug, Default)]
pub struct Health {
    rabbitmq: AtomicBool,
    /// The reason why there is no session; empty if unknown.
    no_session: Mutex<String>,
    redis: AtomicBool,
    recovering: AtomicBool,
    /// Primaries of Redis: how many, how many of them admit jobs, how many are in a recovery wait.
    primaries: [AtomicUsize; 3],
    consuming: AtomicBool,
    /// The reason why this worker can't make calls; empty if it can.
    unfit: Mutex<String>,
    /// There is no agreement.
    alone: AtomicBool,
    /// What an operator asks of all workers.
    paused: AtomicBool,
    draining: AtomicBool,
    /// Number of messages of each kind that RabbitMQ does not take.
    stuck: [AtomicUsize; MessageKind::NAMES.len()],
    /// How often the engine's loop has turned; 0: there is none. And who wants it to.
    turns: AtomicU64,
    turn: Notify,
}

impl Health {
    /// RabbitMQ answers, or not.
    pub fn set_rabbitmq(&self, up: bool) {
        self.rabbitmq.store(up, Ordering::Relaxed);
    }
    /// Records that RabbitMQ has no session for this worker, and why.
    pub fn set_no_session(&self, why: String) {
        self.set_rabbitmq(false);
        *self
            .no_session
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = why;
    }
    /// Redis answers, or not.
    pub fn set_redis(&self, up: bool) {
        self.redis.store(up, Ordering::Relaxed);
    }
    /// A recovery wait, or none: in a cluster, of all primaries, or not of all.
    pub fn set_recovering(&self, recovering: bool) {
        self.recovering.store(recovering, Ordering::Relaxed);
    }
    /// In which state the primaries of Redis are.
    pub fn set_primaries(&self, now: Primaries) {
        let numbers = [now.all(), now.admitting, now.recovering];
        for (known, number) in self.primaries.iter().zip(numbers) {
            known.store(number, Ordering::Relaxed);
        }
    }
    /// The workers agree on the effective limits, or this one does not with the others.
    pub fn set_agreed(&self, agreed: bool) {
        self.alone.store(!agreed, Ordering::Relaxed);
    }
    /// What an operator asks of all workers.
    pub fn set_held(&self, hold: Option<Hold>) {
        (self.paused).store(hold == Some(Hold::Paused), Ordering::Relaxed);
        (self.draining).store(hold == Some(Hold::Draining), Ordering::Relaxed);
    }
    /// Records how many messages of each kind wait because their queue or exchange takes none.
    pub fn set_stuck(&self, messages: [usize; MessageKind::NAMES.len()]) {
        for (known, number) in self.stuck.iter().zip(messages) {
            known.store(number, Ordering::Relaxed);
        }
    }
    /// Jobs are being taken, or not.
    pub fn set_consuming(&self, consuming: bool) {
        self.consuming.store(consuming, Ordering::Relaxed);
    }
    /// Records why this worker can't make calls; `None` if it can.
    pub fn set_unfit(&self, why: Option<&str>) {
        let mut unfit = self.unfit.lock().unwrap_or_else(PoisonError::into_inner);
        why.unwrap_or_default().clone_into(&mut unfit);
    }

    /// It runs no more: nothing is known of what it needs.
    pub fn set_gone(&self) {
        self.set_rabbitmq(false);
        self.set_redis(false);
        self.set_unfit(None);
        self.set_consuming(false);
        self.turns.store(0, Ordering::Relaxed);
    }

    /// The engine's loop has turned once more.
    pub fn turned(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// How often it has turned; 0: no engine runs.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Has it turn, also where it has nothing to do.
    pub fn ask_for_a_turn(&self) {
        self.turn.notify_one();
    }

    /// Waits until it is asked to turn.
    pub async fn asked_for_a_turn(&self) {
        self.turn.notified().await;
    }

    /// What is missing for being ready; empty: nothing.
    pub fn missing(&self) -> Vec<String> {
        let parts = [
            (&self.redis, true, "Redis does not answer"),
            (&self.recovering, false, "Redis may have lost data"),
            (
                &self.alone,
                false,
                "the workers do not agree on the limits, so no job is admitted; the log says why",
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
        let no_session = (!self.rabbitmq.load(Ordering::Relaxed)).then(|| {
            let why = self.no_session.lock();
            let why = why.unwrap_or_else(PoisonError::into_inner).clone();
            match why.is_empty() {
                true => "RabbitMQ does not answer".to_owned(),
                false => why,
            }
        });
        let unfit = self.unfit.lock().unwrap_or_else(PoisonError::into_inner);
        let unfit = (!unfit.is_empty()).then(|| format!("this worker can't make calls: {unfit}"));
        no_session
            .into_iter()
            .chain(unfit)
            .chain(parts.into_iter().filter_map(missing))
            .collect()
    }

    /// Where a worker that is ready admits no job all the same: a line for each reason.
    pub fn partly(&self) -> Vec<String> {
        let [all, admitting, recovering] =
            (self.primaries.each_ref()).map(|number| number.load(Ordering::Relaxed));
        // Each is written by itself: for a moment they may belong to different looks.
        let away = all.saturating_sub(admitting + recovering);
        let line = |number: usize, what| {
            (number > 0 && admitting > 0).then(|| {
                format!(
                    "{number} of {all} Redis primaries {what}: no job of its tenants is admitted"
                )
            })
        };
        let lines = [
            line(recovering, "may have lost data"),
            line(away, "does not answer"),
        ];
        let draining = self.draining.load(Ordering::Relaxed).then(|| {
            "an operator drains all workers: no new job is taken; sluicegate resume --all ends it"
                .to_owned()
        });
        let stuck = self.stuck.iter().zip(MessageKind::NAMES);
        let stuck = stuck.filter_map(|(number, (_, kind))| {
            let number = number.load(Ordering::Relaxed);
            (number > 0).then(|| {
                format!("stuck: RabbitMQ does not take {number} messages ({kind}); the log names a queue")
            })
        });
        let lines = lines.into_iter().flatten().chain(draining);
        lines.chain(stuck).collect()
    }
}

/// Shows a recovery wait: `recovering`, where no job is admitted at all, and the states of the primaries.
pub fn show_recovery(health: &Health, metrics: &Metrics, recovering: bool, primaries: Primaries) {
    health.set_recovering(recovering);
    health.set_primaries(primaries);
    metrics.set_gate_recovering(recovering || primaries.recovering > 0);
    metrics.set_primaries(primaries);
}

/// Why the admin port can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Somebody else listens there.
    #[error(
        "admin.listen: {0} is in use; name another address, or {any} for any free port",
        any = with_any_port(.0)
    )]
    Taken(SocketAddr),
    /// Anything else.
    #[error("admin.listen: can't listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
}

/// `listen` with port 0.
fn with_any_port(listen: &SocketAddr) -> SocketAddr {
    SocketAddr::new(listen.ip(), 0)
}
