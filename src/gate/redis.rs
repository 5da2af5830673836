//! The gate in Redis. Sends one pipeline of script calls for each batch.

mod by_primary;
mod calls;
mod forecast;
mod health;
mod outlook;
mod reports;
mod steering;
mod watched;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::redis::Value;
use tokio::time::Instant;

use calls::ScriptCall;
pub use health::ServerHealth;
pub use outlook::PrimaryOutlook;

use crate::keys::{CallKeys, Keys};
use crate::link::{Link, Links, slot_of};
use crate::primaries::{AllPrimaries, Finder};
pub use crate::refusal::NODE_OF_A_CLUSTER;
use crate::reply;
use crate::scripts::{self, Script};
use crate::store::Store;
use crate::watches::Watches;
use crate::{
    BreakerEvent, BreakerScope, Candidate, Change, DedupeReplies, EarlierStarts, Gate, GateError,
    Inspection, LearnReplies, LimitEvidence, Primaries, Replies, Rule, SettleReplies, ShardId,
    Standings, SuspectNote, SuspectReplies, TenantAsk, TenantSettlements,
};
use config::RedisServers;
use rules::answers::Quotas;
use rules::layout::Layout;
use rules::limit::{Limit, Limits, ceil_ms};
use rules::scope::Labels;
use rules::steering::JobSighting;
use rules::tenant::Tenant;

/// A gate that all workers with the same Redis and prefix share.
///
/// It connects on the first question, and again whenever the connection is lost. While Redis can't
/// be reached, every call fails with [`GateError::Unreachable`] within seconds.
pub struct RedisGate {
    link: Arc<Link>,
    keys: Keys,
    finder: Finder,
    /// Detects data loss in Redis. `None` for callers that admit no jobs.
    watch: Option<Watches>,
    /// The last reading of Redis's clock in milliseconds, and when it was taken.
    clock: Mutex<Option<(u64, Instant)>>,
}

impl RedisGate {
    /// Creates a gate on the Redis at `servers` with keys that begin with `prefix`. It does not
    /// connect yet.
    ///
    /// # Errors
    /// [`GateError::Refused`] if a URL is not a Redis URL.
    pub fn new(servers: impl Into<RedisServers>, prefix: &str) -> Result<Self, GateError> {
        Ok(Self::from_link(
            Arc::new(Link::new(&servers.into())?),
            prefix,
        ))
    }

    /// Creates a gate like [`RedisGate::new`] that shares the connections of `links`.
    ///
    /// # Errors
    /// Like [`RedisGate::new`].
    pub fn sharing(links: &Links, servers: &RedisServers, prefix: &str) -> Result<Self, GateError> {
        Ok(Self::from_link(links.to(servers)?, prefix))
    }

    /// Creates a gate on `store`, in place of Redis.
    pub fn on(store: Arc<dyn Store>, prefix: &str) -> Self {
        Self::from_link(Arc::new(Link::to(store)), prefix)
    }

    fn from_link(link: Arc<Link>, prefix: &str) -> Self {
        let keys = Keys::new(prefix);
        let keys = if link.is_cluster() {
            keys.in_cluster()
        } else {
            keys
        };
        Self {
            link,
            finder: Finder::new(keys.clone()),
            keys,
            watch: None,
            clock: Mutex::new(None),
        }
    }

    /// Makes the gate watch for data loss, which workers need: it then admits no job while Redis
    /// may lack usage that still counts. A start counts for at most `memory`, or for longer if a
    /// question has limits with a longer look-back. In a cluster each primary is watched
    /// separately, so data loss affects only the tenants of its primary.
    pub fn watching(mut self, memory: Duration) -> Self {
        self.watch = Some(Watches::new(memory));
        self
    }

    /// Sets what is known about earlier starts, and checks the state of Redis. Before this call, a
    /// Redis without an epoch is assumed to have lost data.
    ///
    /// # Errors
    /// [`GateError`] if no job may be admitted yet. The caller need not repeat the call.
    pub async fn begin(&self, start: EarlierStarts) -> Result<(), GateError> {
        if let Some(watch) = &self.watch {
            watch.set_start(start);
            watch.begin(&self.link, &self.finder).await?;
        }
        Ok(())
    }

    /// Returns the number of round trips made.
    pub fn round_trips(&self) -> u64 {
        self.link.round_trips()
    }

    /// Checks that Redis answers; in a cluster, that all primaries do. A gate that watches for data
    /// loss checks instead that it may admit jobs; in a cluster, at one primary or more. Workers
    /// call this every few seconds, which also shows other workers that they are alive.
    ///
    /// # Errors
    /// [`GateError`] with the reason.
    pub async fn ping(&self) -> Result<(), GateError> {
        if let Some(watch) = &self.watch {
            return watch.heartbeat(&self.link, &self.finder).await;
        }
        self.answers().await
    }

    /// Estimates Redis's clock in milliseconds, or returns 0 before its first answer. The estimate
    /// is never ahead if both clocks run at the same pace.
    fn estimate(&self) -> u64 {
        let clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        clock.map_or(0, |(now, read)| {
            now + u64::try_from(read.elapsed().as_millis()).unwrap_or(u64::MAX - now)
        })
    }

    /// Returns the estimate of Redis's clock in milliseconds, or 0 before its first answer.
    pub fn now_ms(&self) -> u64 {
        self.estimate()
    }

    /// Records that Redis's clock shows `now_ms` now.
    fn record_clock(&self, now_ms: u64) {
        *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = Some((now_ms, Instant::now()));
    }

    fn call<'a>(
        &self,
        script: impl FnOnce(&[Limit], &Layout) -> &'static Script,
        (tenant, labels): (&'a Tenant, &Labels),
        limits: &'a [Limit],
        more: Vec<Vec<u8>>,
    ) -> ScriptCall<'a> {
        let layout = Layout::of(limits, tenant, labels);
        ScriptCall {
            script: script(limits, &layout),
            who: tenant.as_str(),
            span_ms: 0,
            limits,
            keys: self.keys.call(&layout, limits, self.estimate()),
            layout,
            load: false,
            mark: None,
            more,
        }
    }

    /// Creates a call of a script that uses one key of type `kind` and no limits. Error texts name
    /// `who` as its tenant.
    fn keyed<'a>(
        &self,
        script: &'static Script,
        who: &'a str,
        (key, kind): (String, &'static str),
        more: impl IntoIterator<Item: Into<Vec<u8>>>,
    ) -> ScriptCall<'a> {
        ScriptCall {
            script,
            who,
            span_ms: 0,
            limits: &[],
            layout: Layout::alone(&[]),
            keys: CallKeys::one(key, kind),
            load: false,
            mark: None,
            more: more.into_iter().map(Into::into).collect(),
        }
    }

    /// Creates a call of a script that uses the breaker of a tenant or of the API.
    fn on_breaker<'a>(
        &self,
        script: &'static Script,
        scope: &'a BreakerScope,
        more: Vec<Vec<u8>>,
    ) -> ScriptCall<'a> {
        let who = match scope {
            BreakerScope::Tenant(tenant) => tenant.as_str(),
            BreakerScope::Api => "the-api",
        };
        self.keyed(script, who, (self.keys.breaker(scope), "hash"), more)
    }

    /// Makes one call for each entry of `batch`, in one round trip to each node, and decodes the
    /// replies.
    async fn each<'a, T, R>(
        &self,
        batch: &'a [T],
        decode: impl Fn(&Value) -> Result<R, GateError>,
        call: impl Fn(&'a T) -> ScriptCall<'a>,
    ) -> Result<Vec<Result<R, GateError>>, GateError> {
        let replies = self.run(batch.iter().map(call).collect(), None).await?;
        let decoded = replies.into_iter().map(|reply| decode(&reply?));
        Ok(decoded.collect())
    }

    /// Tells other workers not to wait for this worker's heartbeats, if the gate watches for data
    /// loss. The gate must not be asked afterwards.
    ///
    /// # Errors
    /// [`GateError`] if Redis could not be updated. After a restart of Redis, other workers may
    /// then wait for the longest look-back of their limits.
    pub async fn leave(&self) -> Result<(), GateError> {
        match &self.watch {
            Some(watch) => watch.leave(&self.link, &self.finder).await,
            None => Ok(()),
        }
    }

    /// Returns the policy registries: one, or one per primary of a cluster.
    pub(crate) async fn registries(&self) -> Result<AllPrimaries, GateError> {
        self.finder.all(&self.link, true).await
    }

    /// Allows starts at the primary of `registry` until `until`, or forbids them (`None`). In a
    /// cluster, a primary admits jobs only after a recent exchange of policies. Without a cluster
    /// the caller ensures that, and this call has no effect.
    pub(super) fn agree(&self, registry: &str, until: Option<Instant>) {
        if self.link.is_cluster() {
            self.finder.agree(registry, until);
        }
    }
}

/// Decodes a reply that says nothing.
fn done(_: &Value) -> Result<(), GateError> {
    Ok(())
}

impl Gate for RedisGate {
    async fn ask(&self, batch: &[TenantAsk]) -> Result<Replies, GateError> {
        let calls = batch
            .iter()
            .map(|ask| {
                let more = reply::acquire_arguments(ask);
                let scope = (&ask.tenant, &ask.labels);
                let mut call = self.call(scripts::acquire, scope, ask.limits.all(), more);
                if !ask.asks.is_empty() {
                    call.span_ms = ask.limits.memory_ms();
                }
                call
            })
            .collect();
        let replies = match &self.watch {
            None => self.run(calls, None).await?,
            Some(watches) => {
                for ask in batch {
                    watches.cover(Duration::from_millis(ask.limits.memory_ms()));
                }
                self.run_watched(calls, watches).await?
            }
        };
        let decode = |(ask, reply): (&TenantAsk, Result<Value, GateError>)| {
            reply::acquired(&reply?, ask.asks.len(), ask.limits.shadows().len())
        };
        Ok(batch.iter().zip(replies).map(decode).collect())
    }

    fn base(&self) -> Duration {
        self.link.base().unwrap_or_default()
    }

    fn primaries(&self) -> Primaries {
        let watches = self.watch.as_ref();
        watches.map_or_else(Primaries::default, Watches::primaries)
    }

    fn shard(&self, tenant: &Tenant) -> ShardId {
        if self.link.is_cluster() {
            self.finder.shard(slot_of(&self.keys.waitlist(tenant)))
        } else {
            ShardId::default()
        }
    }

    async fn settle(&self, batch: &[TenantSettlements]) -> Result<SettleReplies, GateError> {
        self.each(batch, done, |of| {
            let more = reply::settle_arguments(&of.settled);
            let limits = of.limits.all();
            let mut call = self.call(scripts::settle, (&of.tenant, &of.labels), limits, more);
            call.mark = Some(self.keys.mark(&call.layout, &of.call));
            call
        })
        .await
    }

    async fn block(
        &self,
        scope: &BreakerScope,
        duration: Duration,
        reason: &str,
    ) -> Result<(), GateError> {
        let more = vec![ceil_ms(duration).to_string().into_bytes(), reason.into()];
        let call = self.on_breaker(scripts::block(), scope, more);
        self.run_one(call).await.map(drop)
    }

    async fn report(
        &self,
        rule: &Rule,
        batch: &[(BreakerScope, BreakerEvent)],
    ) -> Result<Standings, GateError> {
        self.each(batch, reply::reported, |(scope, event)| {
            let more = reply::report_arguments(rule, event);
            self.on_breaker(scripts::report(), scope, more)
        })
        .await
    }

    async fn suspect(&self, batch: &[SuspectNote]) -> Result<SuspectReplies, GateError> {
        self.each(batch, reply::suspected, |note| {
            let key = (self.keys.suspect(&note.tenant, &note.job), "string");
            let more = reply::crash_arguments(note);
            self.keyed(scripts::crash(), note.tenant.as_str(), key, more)
        })
        .await
    }

    async fn dedupe(&self, batch: &[Candidate]) -> Result<DedupeReplies, GateError> {
        self.each(batch, reply::deduped, |job| {
            let key = (self.keys.first(&job.tenant, &job.key), "string");
            let more = reply::dedupe_arguments(job);
            self.keyed(scripts::dedupe(), job.tenant.as_str(), key, more)
        })
        .await
    }

    async fn sighted(&self, batch: &[JobSighting]) -> Result<(), GateError> {
        self.store_sightings(batch).await
    }

    async fn advertised(&self, batch: &[(Tenant, Quotas)]) -> Result<(), GateError> {
        let replies = self.each(batch, done, |(tenant, quotas)| {
            let key = (self.keys.waitlist(tenant), "hash");
            self.keyed(scripts::quota(), tenant.as_str(), key, [quotas.text()])
        });
        replies.await?.into_iter().collect()
    }

    async fn learn(&self, batch: &[LimitEvidence]) -> Result<LearnReplies, GateError> {
        self.each(batch, reply::learned, |of| {
            let more = reply::learn_arguments(&of.evidence);
            self.call(scripts::learn, (&of.tenant, &of.labels), &of.limits, more)
        })
        .await
    }

    async fn change(&self, scope: &BreakerScope, change: &Change) -> Result<u64, GateError> {
        let mut more = reply::change_arguments(change);
        if let BreakerScope::Tenant(tenant) = scope {
            more.push(tenant.key().into_bytes());
        }
        let mut call = self.on_breaker(scripts::change(), scope, more);
        if *change == Change::Reset {
            self.keys.add_global(&mut call.keys);
        }
        reply::changed(&self.run_one(call).await?)
    }

    async fn inspect(
        &self,
        tenant: &Tenant,
        labels: &Labels,
        limits: &Limits,
    ) -> Result<Inspection, GateError> {
        let call = self.call(scripts::inspect, (tenant, labels), limits.all(), Vec::new());
        reply::inspected(
            &self.run_one(call).await?,
            limits.len(),
            limits.shadows().len(),
        )
    }
}
