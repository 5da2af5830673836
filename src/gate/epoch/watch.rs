//! Watches whether Redis still has all usage, and keeps the gate closed while that is uncertain.
//! `gate::epoch::decide` decides, `hash` reads and writes the epoch, `pulse` is the heartbeat, and
//! `claims` moves a cluster's slots from one primary's watch to another's.

mod claims;
mod hash;
mod outlook;
mod pulse;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::{Pipeline, Value};
use tokio::time::Instant;
use tracing::{info, warn};
use ulid::Ulid;

pub use self::hash::{info_of, server_command};

use crate::epoch::server_identity::NO_EVICTION;
use crate::epoch::shard;
use crate::epoch::{
    EarlierStarts, EpochFields, Gap, NextStep, ServerIdentity, WorkerKnowledge, decide,
};
use crate::link::{Link, PrimaryLink};
use crate::primaries::{Finder, Primary};
use crate::{GateError, refusal};
use rules::limit::floor_ms;
use rules::slots::{SlotOwnership, Slots};

/// Maximum number of reads of the epoch before a decision. Includes a reserve for concurrent writes
/// of other workers.
const STEPS: usize = 12;
/// Maximum time after a recovery wait until a worker notices its end: it checks every two seconds.
pub const NOTICED_WITHIN: Duration = Duration::from_secs(2);
/// Delay before a refused batch is retried, so that retries are prompt but not a busy loop.
const BATCH_RETRY_DELAY: Duration = Duration::from_millis(50);

/// One worker's view of one primary.
pub struct Watch {
    key: String,
    worker: String,
    /// Whether the primary appeared after the worker began.
    later: bool,
    span_ms: AtomicU64,
    shortest_ms: AtomicU64,
    state: Mutex<WatchState>,
    /// Held by the task that reads the epoch, while other tasks wait for its findings.
    lock: tokio::sync::Mutex<()>,
}

/// The primary that a watch reads, and what it needs for that.
pub struct WatchTarget<'a> {
    pub link: &'a Link,
    pub finder: &'a Finder,
    pub primary: &'a Primary,
    /// The watches of other epochs, each with the primary that stores its epoch.
    pub others: &'a [(Arc<Watch>, PrimaryLink)],
}

/// The fields of the epoch's hash, as they were read.
type Fields = BTreeMap<String, String>;

/// A primary's reply to a read of its epoch.
struct PrimaryReport {
    fields: Fields,
    memory: ServerIdentity,
    /// Its maxmemory-policy, or `None` if it does not report it.
    policy: Option<String>,
    now: u64,
    /// In a cluster, the primary's slots, and for how many milliseconds it has had no data loss.
    owned: Option<(Slots, u64)>,
}

struct WatchState {
    start: EarlierStarts,
    epoch: Option<(String, String)>,
    /// Whether any read has found an epoch.
    seen: bool,
    pulse: u64,
    last_pulse: Option<Instant>,
    /// Whether the worker may admit jobs, as far as it knows.
    is_valid: bool,
    /// Incremented whenever `is_valid` becomes false. Answers to earlier questions are then
    /// ignored.
    version: u64,
    /// The reason why no job is admitted in the last log line.
    logged_reason: Option<String>,
    /// Whether the epoch was last sound only for limits with a short look-back.
    partly: bool,
    /// The maxmemory-policy in the last log line.
    logged_policy: Option<String>,
    /// The other findings when the epoch was last sound.
    found: EpochFindings,
}

/// What the worker found in a sound epoch, except its identity.
#[derive(Clone, Default)]
struct EpochFindings {
    /// The server's history.
    history: String,
    /// The primary's name in a cluster.
    node: String,
    /// The slots that the primary was assumed to have.
    mapped: Slots,
    /// The claims.
    claims: Arc<SlotOwnership>,
    /// The text of the claims in the hash.
    slots: String,
    sure: Option<u64>,
    /// The missing usage, and its text in the hash.
    gap: Gap,
    why: String,
    cold: String,
    next: String,
    /// The server's count of evicted keys.
    evicted: u64,
    /// Whether its policy allows evictions.
    evicts: bool,
    /// Redis's clock in milliseconds, and when it was read.
    clock: Option<(u64, Instant)>,
}

/// The state with which a batch's pulse was sent.
pub struct SentPulse {
    version: u64,
    epoch: (String, String),
    found: EpochFindings,
}

impl Watch {
    /// Creates the watch of a new worker. `span` is the longest look-back of its limits.
    pub fn new(key: String, span: Duration, later: bool) -> Self {
        let watch = Self {
            key,
            worker: Ulid::new().to_string(),
            later,
            span_ms: AtomicU64::new(0),
            shortest_ms: AtomicU64::new(u64::MAX),
            state: Mutex::new(WatchState {
                start: EarlierStarts::Unknown,
                epoch: None,
                seen: false,
                pulse: 0,
                last_pulse: None,
                is_valid: false,
                version: 0,
                logged_reason: None,
                partly: false,
                logged_policy: None,
                found: EpochFindings::default(),
            }),
            lock: tokio::sync::Mutex::new(()),
        };
        watch.cover(span);
        watch
    }

    /// Returns the key of the epoch.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns whether the epoch was last found sound at this primary of a cluster, or `None` if it
    /// was never sound.
    pub fn was_at(&self, shard: &PrimaryLink) -> Option<bool> {
        let state = self.state();
        (state.epoch.is_some()).then(|| state.found.node == shard.name())
    }

    /// Returns when its last pulse was answered.
    pub fn last_pulse(&self) -> Option<Instant> {
        self.state().last_pulse
    }

    /// Extends the range of look-backs to include `span`, the look-back of a question.
    pub fn cover(&self, span: Duration) {
        let span = rules::limit::ceil_ms(span);
        self.span_ms.fetch_max(span, Ordering::Relaxed);
        self.shortest_ms.fetch_min(span, Ordering::Relaxed);
    }

    /// Sets what is known about starts before the worker began.
    pub fn set_start(&self, start: EarlierStarts) {
        self.state().start = start;
    }

    fn state(&self) -> MutexGuard<'_, WatchState> {
        // No code panics while it holds the lock, so the state is consistent even if the lock is
        // poisoned.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state with which to send the next batch's pulse, if the primary still has the
    /// slots `mapped`. `None` means that the watch must read the epoch first.
    fn sent(&self, mapped: Option<&Slots>) -> Option<SentPulse> {
        let state = self.state();
        let known = mapped.is_none_or(|mapped| *mapped == state.found.mapped);
        let epoch = state.epoch.clone().filter(|_| state.is_valid && known)?;
        Some(SentPulse {
            version: state.version,
            epoch,
            found: state.found.clone(),
        })
    }

    /// Ensures that the worker may admit jobs. Reads the epoch if this is uncertain.
    ///
    /// # Errors
    /// [`GateError::Cold`] while no job may be admitted, or the error of a Redis that can't be
    /// read.
    pub async fn ready(&self, at: &WatchTarget<'_>) -> Result<SentPulse, GateError> {
        let mapped = &at.primary.shard.slots;
        if let Some(sent) = self.sent(Some(mapped)) {
            return Ok(sent);
        }
        let _one = self.lock.lock().await;
        let mut handed = None;
        for _ in 0..STEPS {
            if let Some(sent) = self.sent(Some(mapped)) {
                return Ok(sent);
            }
            let read = self.read(at).await?;
            self.log_policy(read.policy.as_deref());
            let now = read.now;
            let stored = EpochFields::parse(&read.fields);
            self.state().seen |= !stored.id.is_empty();
            let mut known = self.known();
            if let Some((owned, whole_ms)) = read.owned {
                if !at.primary.keeps_epoch_of(&owned) {
                    at.link.doubt();
                    return Err(at.primary.moving());
                }
                let memory = read.memory.text();
                // Asks other primaries to hand slots over only if the slots can be claimed soon.
                let moves = self.later && known.epoch.is_none();
                let soon = stored.id.is_empty() || stored.run == memory || moves;
                if handed.is_none() && soon {
                    handed = Some(claims::ask_for(&owned, &stored.claims, &memory, now, at).await);
                }
                known.shard = Some(shard::Shard {
                    owned,
                    handed: handed.clone().unwrap_or_default(),
                    later: self.later,
                    whole_ms,
                });
            }
            match decide(&stored, &known, &read.memory, now, &Ulid::new().to_string()) {
                NextStep::Write(changed) => self.write(at, &read.fields, &changed).await?,
                NextStep::Wait { until, why } => {
                    return Err(self.cold(Duration::from_millis(until.saturating_sub(now)), why));
                }
                NextStep::Admit { epoch, pulse } => {
                    let field = |name: &str| read.fields.get(name).cloned().unwrap_or_default();
                    let found = EpochFindings {
                        history: read.memory.history,
                        node: at.primary.shard.name().to_owned(),
                        mapped: mapped.clone(),
                        slots: field("slots"),
                        sure: stored.sure,
                        gap: stored.gap(now),
                        why: stored.why.clone(),
                        cold: field("cold"),
                        next: field("next"),
                        evicted: read.memory.evicted,
                        evicts: read.memory.evicts,
                        claims: Arc::new(stored.claims),
                        clock: Some((now, Instant::now())),
                    };
                    self.go(epoch, pulse, found);
                }
            }
        }
        Err(GateError::Unreachable(format!(
            "{}: {} changes faster than it can be read",
            at.link.servers(),
            self.key
        )))
    }

    /// Removes this worker, which starts no more jobs, from the epoch, so that other workers don't
    /// wait for it. A Redis that has this write also has all starts of the worker.
    pub async fn leave(&self, link: &Link, shard: &PrimaryLink) -> Result<(), GateError> {
        // A worker that started jobs stays in the epoch unless Redis certainly has these starts. A
        // worker that sent no pulse has started none.
        if self.sent(None).is_none() && self.last_pulse().is_some() {
            return Ok(());
        }
        let mut pipeline = Pipeline::with_capacity(1);
        pipeline.cmd("HDEL").arg(&self.key).arg(self.field());
        match link.on(shard, &pipeline).await?.as_slice() {
            [Value::ServerError(error)] => Err(self.refused(error)),
            _ => Ok(()),
        }
    }

    /// Returns the error for a refused command on the epoch.
    pub fn refused(&self, error: &::redis::ServerError) -> GateError {
        refusal::refused(error, &format!("the epoch ({})", self.key))
    }

    fn field(&self) -> String {
        format!("w:{}", self.worker)
    }

    fn known(&self) -> WorkerKnowledge {
        let state = self.state();
        let millis = |last: Instant| floor_ms(last.elapsed());
        WorkerKnowledge {
            worker: self.worker.clone(),
            epoch: state.epoch.clone(),
            pulse: state.pulse,
            idle_ms: state.last_pulse.map(millis),
            span_ms: self.span_ms.load(Ordering::Relaxed),
            shortest_ms: self.shortest_ms.load(Ordering::Relaxed),
            start: state.start,
            seen: state.seen,
            shard: None,
        }
    }

    fn go(&self, epoch: (String, String), pulse: u64, found: EpochFindings) {
        let mut state = self.state();
        let waited = state.logged_reason.take().is_some();
        let before = std::mem::replace(&mut state.partly, found.gap.until > 0);
        match (before, state.partly) {
            (_, true) if waited || !before => warn!(
                epoch = self.key,
                reason = found.why,
                "some jobs are admitted: their windows began after the possible data loss; others \
                wait for their longest window"
            ),
            (_, false) if waited || before => info!(
                epoch = self.key,
                "the recovery wait is over: jobs are admitted"
            ),
            _ => {}
        }
        state.epoch = Some(epoch);
        state.pulse = pulse;
        state.found = found;
        state.is_valid = true;
    }

    /// Logs the maxmemory-policy once, and again when it changes.
    fn log_policy(&self, policy: Option<&str>) {
        let mut state = self.state();
        if policy.is_none() || state.logged_policy.as_deref() == policy {
            return;
        }
        state.logged_policy = policy.map(str::to_owned);
        let (epoch, policy) = (&self.key, policy.unwrap_or_default());
        if policy == NO_EVICTION {
            info!(epoch, "Redis's maxmemory-policy is noeviction");
        } else {
            warn!(
                epoch,
                policy,
                "Redis's maxmemory-policy permits evicting usage: after each eviction no job is \
                 admitted for one longest window; set it to noeviction"
            );
        }
    }

    fn cold(&self, wait: Duration, why: String) -> GateError {
        let mut state = self.state();
        if state.logged_reason.as_ref() != Some(&why) {
            let at_most_s = (wait + NOTICED_WITHIN).as_secs_f64().ceil();
            warn!(
                epoch = self.key,
                reason = why,
                at_most_s,
                "no job is admitted: Redis may have lost data"
            );
            state.logged_reason = Some(why.clone());
        }
        GateError::Cold { wait, why }
    }
}
