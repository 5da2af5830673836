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

use crate::keys::Keys;
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
    Standings, SuspectNote, TenantAsk, TenantSettlements, Verdicts,
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
            tenant,
            span_ms: 0,
            limits,
            keys: self.keys.call(&layout, limits, self.estimate()),
            layout,
            load: false,
            mark: None,
            more,
        }
    }

    /// Creates a call of a script that needs no limits.
    fn call_tenant<'a>(
        &self,
        script: &'static Script,
        tenant: &'a Tenant,
        more: Vec<Vec<u8>>,
    ) -> ScriptCall<'a> {
        self.call(|_, _| script, (tenant, &Labels::default()), &[], more)
    }

    /// Creates a call for a tenant or for the API. For the API, `placeholder` stands in for the
    /// tenant in error texts.
    fn call_for<'a>(
        &self,
        script: &'static Script,
        (scope, placeholder): (&'a BreakerScope, &'a Tenant),
        more: Vec<Vec<u8>>,
    ) -> ScriptCall<'a> {
        let tenant = match scope {
            BreakerScope::Tenant(tenant) => tenant,
            BreakerScope::Api => placeholder,
        };
        let mut call = self.call_tenant(script, tenant, more);
        call.keys.names = vec![self.keys.breaker(scope)];
        call
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

    /// Runs `policies.lua` on a registry, with the arguments `more`. Returns its reply.
    pub(super) async fn run_policies(
        &self,
        registry: &str,
        more: Vec<String>,
    ) -> Result<Value, GateError> {
        let placeholder = placeholder_tenant("all-policies")?;
        let more = more.into_iter().map(String::into_bytes).collect();
        let mut call = self.call_tenant(scripts::policies(), &placeholder, more);
        call.keys.names = vec![registry.to_owned()];
        self.run_one(call).await
    }
}

/// Returns a stand-in tenant for calls without one. It appears in error texts only.
fn placeholder_tenant(name: &str) -> Result<Tenant, GateError> {
    Tenant::parse(name).map_err(|error| GateError::Refused(error.to_string()))
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
        let calls = batch
            .iter()
            .map(|settled| {
                let TenantSettlements {
                    tenant,
                    labels,
                    limits,
                    ..
                } = settled;
                let more = reply::settle_arguments(&settled.settled);
                let mut call = self.call(scripts::settle, (tenant, labels), limits.all(), more);
                call.mark = Some(self.keys.mark(&call.layout, &settled.call));
                call
            })
            .collect();
        let replies = self.run(calls, None).await?;
        Ok(replies.into_iter().map(|reply| reply.map(drop)).collect())
    }

    async fn block(
        &self,
        scope: &BreakerScope,
        duration: Duration,
        reason: &str,
    ) -> Result<(), GateError> {
        let more = vec![ceil_ms(duration).to_string().into_bytes(), reason.into()];
        let placeholder = placeholder_tenant("the-api")?;
        let call = self.call_for(scripts::block(), (scope, &placeholder), more);
        self.run_one(call).await.map(drop)
    }

    async fn report(
        &self,
        rule: &Rule,
        batch: &[(BreakerScope, BreakerEvent)],
    ) -> Result<Standings, GateError> {
        let api = placeholder_tenant("the-api")?;
        let calls = (batch.iter())
            .map(|(scope, event)| {
                let more = reply::report_arguments(rule, event);
                self.call_for(scripts::report(), (scope, &api), more)
            })
            .collect();
        let replies = self.run(calls, None).await?;
        let decode = |reply: Result<Value, GateError>| reply::reported(&reply?);
        Ok(replies.into_iter().map(decode).collect())
    }

    async fn suspect(&self, batch: &[SuspectNote]) -> Result<Verdicts, GateError> {
        let calls = (batch.iter())
            .map(|suspected| {
                let SuspectNote { tenant, job, .. } = suspected;
                let more = reply::crash_arguments(suspected);
                let mut call = self.call_tenant(scripts::crash(), tenant, more);
                call.keys.names = vec![self.keys.suspect(tenant, job)];
                call.keys.types = vec!["string"];
                call
            })
            .collect();
        let replies = self.run(calls, None).await?;
        let decode = |reply: Result<Value, GateError>| reply::suspected(&reply?);
        Ok(replies.into_iter().map(decode).collect())
    }

    async fn dedupe(&self, batch: &[Candidate]) -> Result<DedupeReplies, GateError> {
        let calls = (batch.iter())
            .map(|candidate| {
                let Candidate { tenant, key, .. } = candidate;
                let more = reply::dedupe_arguments(candidate);
                let mut call = self.call_tenant(scripts::dedupe(), tenant, more);
                call.keys.names = vec![self.keys.first(tenant, key)];
                call.keys.types = vec!["string"];
                call
            })
            .collect();
        let replies = self.run(calls, None).await?;
        let decode = |reply: Result<Value, GateError>| reply::deduped(&reply?);
        Ok(replies.into_iter().map(decode).collect())
    }

    async fn sighted(&self, batch: &[JobSighting]) -> Result<(), GateError> {
        self.store_sightings(batch).await
    }

    async fn advertised(&self, batch: &[(Tenant, Quotas)]) -> Result<(), GateError> {
        let calls = (batch.iter())
            .map(|(tenant, quotas)| {
                let more = vec![quotas.text().into_bytes()];
                self.call_tenant(scripts::quota(), tenant, more)
            })
            .collect();
        let replies = self.run(calls, None).await?;
        replies.into_iter().try_for_each(|reply| reply.map(drop))
    }

    async fn learn(&self, batch: &[LimitEvidence]) -> Result<LearnReplies, GateError> {
        let calls = (batch.iter())
            .map(|lesson| {
                let LimitEvidence {
                    tenant,
                    labels,
                    limits,
                    evidence,
                } = lesson;
                let more = reply::learn_arguments(evidence);
                self.call(scripts::learn, (tenant, labels), limits, more)
            })
            .collect();
        let replies = self.run(calls, None).await?;
        let decode = |reply: Result<Value, GateError>| reply::learned(&reply?);
        Ok(replies.into_iter().map(decode).collect())
    }

    async fn change(&self, scope: &BreakerScope, change: &Change) -> Result<u64, GateError> {
        let mut more = reply::change_arguments(change);
        if let BreakerScope::Tenant(tenant) = scope {
            more.push(tenant.key().into_bytes());
        }
        let placeholder = placeholder_tenant("the-api")?;
        let mut call = self.call_for(scripts::change(), (scope, &placeholder), more);
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
