//! The gate in Redis: one pipeline of script calls for a whole batch.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::redis::{Pipeline, Value};

use crate::config::SecretUrl;
use crate::gate::epoch::{Sent, Watch};
use crate::gate::keys::{CallKeys, Keys};
use crate::gate::link::Link;
use crate::gate::refusal;
use crate::gate::reply;
use crate::gate::scripts::{self, Script};
use crate::gate::{Change, Gate, GateError, Inspection, Replies, Start, TenantAsk, TenantSettled};
use crate::rules::limit::{Limit, Limits, ceil_ms};
use crate::rules::tenant::Tenant;

/// How often a call is sent whose script was not cached, or whose window was guessed wrong.
const TRIES: usize = 4;

/// A gate that all workers with the same Redis and prefix share.
///
/// It connects when it is first asked, and again whenever the connection is lost; while Redis can't be reached,
/// every call fails with [`GateError::Unreachable`] within seconds.
pub struct RedisGate {
    link: Link,
    keys: Keys,
    /// Without it, a Redis that lost its memory is not noticed: for those who admit nothing.
    watch: Option<Watch>,
    /// The last reading of Redis's clock, and when it was taken.
    clock: Mutex<Option<(u64, Instant)>>,
    test_clock: Option<TestClock>,
}

/// Microseconds since the epoch, in place of Redis's clock.
pub type TestClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What [`RedisGate::check`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// `redis` or `valkey`.
    pub server: &'static str,
    /// Its version, such as `7.0.15`.
    pub version: String,
    /// `maxmemory-policy`; anything but `noeviction` can lose what has started. `None`: the server does not say.
    pub maxmemory_policy: Option<String>,
    /// `master` or `slave`. `None`: the server does not say.
    pub role: Option<String>,
    /// It is a node of a Redis Cluster.
    pub cluster: bool,
}

/// One script call: what is sent, and what it is for.
struct Call<'a> {
    script: &'static Script,
    tenant: &'a Tenant,
    /// What the script decides about; none for one that knows the line alone.
    limits: &'a [Limit],
    keys: CallKeys,
    /// A key after those of the limits.
    mark: Option<String>,
    /// The arguments after those of the limits.
    more: Vec<String>,
}

impl RedisGate {
    /// A gate on the Redis at `url`, with keys that begin with `prefix`. It does not connect yet.
    ///
    /// # Errors
    /// [`GateError::Refused`] when `url` is no Redis url.
    pub fn connect(url: &SecretUrl, prefix: &str) -> Result<Self, GateError> {
        Ok(Self {
            link: Link::new(url)?,
            keys: Keys::new(prefix),
            watch: None,
            clock: Mutex::new(None),
            test_clock: None,
        })
    }

    /// Keys for a Redis Cluster: the tenant in braces, so that all keys of one tenant share a slot.
    pub fn in_cluster(mut self) -> Self {
        self.keys = self.keys.in_cluster();
        self
    }

    /// For a worker: admits nothing while Redis may not know all that has started. After `memory` no start counts
    /// any more; limits that are asked for and remember longer make it longer.
    pub fn watching(mut self, memory: Duration) -> Self {
        self.watch = Some(Watch::new(self.keys.epoch(), memory));
        self
    }

    /// A watching gate learns what is known of starts before this worker's, and looks what Redis knows. Until it was
    /// called, a Redis without an epoch counts as one that lost its memory.
    ///
    /// # Errors
    /// [`GateError`]: nothing may be admitted yet. It needs not be called again.
    pub async fn begin(&self, start: Start) -> Result<(), GateError> {
        if let Some(watch) = &self.watch {
            watch.set_start(start);
            watch.ready(&self.link, self.test_clock()).await?;
        }
        Ok(())
    }

    /// Lets the scripts use `clock` in place of Redis's. For tests: workers with clocks of their own would not
    /// keep a limit.
    pub fn with_test_clock(mut self, clock: TestClock) -> Self {
        self.test_clock = Some(clock);
        self
    }

    /// How many round trips were made.
    pub fn round_trips(&self) -> u64 {
        self.link.round_trips()
    }

    /// Whether Redis answers, and a watching gate may admit. A worker calls it every few seconds, so that others know
    /// that it lives.
    ///
    /// # Errors
    /// [`GateError`] says why it does not.
    pub async fn ping(&self) -> Result<(), GateError> {
        if let Some(watch) = &self.watch {
            return watch.heartbeat(&self.link, self.test_clock()).await;
        }
        let mut pipeline = Pipeline::new();
        pipeline.cmd("PING");
        match self.link.send(&pipeline).await?.as_slice() {
            [Value::ServerError(error)] => Err(refusal::refused(error, "PING")),
            _ => Ok(()),
        }
    }

    /// What the server is, and whether the gate's scripts for `limits` may run on it.
    ///
    /// # Errors
    /// [`GateError`] says what is in the way.
    pub async fn check(&self, limits: &Limits) -> Result<Health, GateError> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("INFO");
        let reply = self.link.send(&pipeline).await?;
        let info = match reply.as_slice() {
            [Value::ServerError(error)] => return Err(refusal::refused(error, "INFO")),
            [value] => ::redis::from_redis_value_ref::<String>(value).unwrap_or_default(),
            _ => String::new(),
        };
        let tenant = Tenant::parse("sluicegate-check")
            .map_err(|error| GateError::Refused(error.to_string()))?;
        self.inspect(&tenant, limits).await?;
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .map(|value| value.trim().to_owned())
        };
        let valkey = field("valkey_version");
        Ok(Health {
            server: if valkey.is_some() { "valkey" } else { "redis" },
            version: valkey
                .or_else(|| field("redis_version"))
                .unwrap_or_default(),
            maxmemory_policy: field("maxmemory_policy"),
            role: field("role"),
            cluster: field("redis_mode").as_deref() == Some("cluster"),
        })
    }

    /// The best guess of Redis's clock in milliseconds; 0 before its first answer. It is never ahead, as long as
    /// the two clocks run at the same pace.
    fn estimate(&self) -> u64 {
        let clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        clock.map_or(0, |(now, read)| {
            now + u64::try_from(read.elapsed().as_millis()).unwrap_or(u64::MAX - now)
        })
    }

    fn learn(&self, now_ms: u64) {
        *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = Some((now_ms, Instant::now()));
    }

    fn call<'a>(
        &self,
        script: &'static Script,
        tenant: &'a Tenant,
        limits: &'a [Limit],
        more: Vec<String>,
    ) -> Call<'a> {
        Call {
            script,
            tenant,
            limits,
            keys: self.keys.call(tenant, limits, self.estimate()),
            mark: None,
            more,
        }
    }

    /// A watching gate that ends: nobody has to wait for its word any more. Nothing may be asked after it.
    ///
    /// # Errors
    /// [`GateError`]: Redis was not told, and after a restart of it others may wait for one span.
    pub async fn leave(&self) -> Result<(), GateError> {
        match &self.watch {
            Some(watch) => watch.leave(&self.link).await,
            None => Ok(()),
        }
    }

    fn test_clock(&self) -> Option<u64> {
        self.test_clock.as_ref().map(|clock| clock())
    }

    fn test_micros(&self) -> String {
        self.test_clock()
            .map_or_else(String::new, |micros| micros.to_string())
    }

    /// Makes all calls in one round trip, and those again whose script Redis had lost or whose window was guessed
    /// wrong. One reply for each call, in order; an error that concerns one call alone stands in its place. With
    /// `pulse` the calls admit: they count only if Redis still knows all that has started.
    async fn run(
        &self,
        mut calls: Vec<Call<'_>>,
        pulse: Option<(&Watch, Sent)>,
    ) -> Result<Vec<Result<Value, GateError>>, GateError> {
        let mut replies: Vec<_> = calls.iter().map(|_| Ok(Value::Nil)).collect();
        let mut open: Vec<usize> = (0..calls.len()).collect();
        let mut missing: Vec<&'static Script> = Vec::new();
        let mut earliest = u64::MAX;
        // The last pulse is behind all calls.
        let mut counts = pulse.is_none();
        for _ in 0..TRIES {
            if open.is_empty() && counts {
                return Ok(replies);
            }
            let mut answers = self.send_calls(&missing, &open, &calls, &pulse).await?;
            missing.clear();
            let beat = pulse.as_ref().zip(answers.pop_if(|_| pulse.is_some()));
            let mut again = Vec::new();
            for (index, answer) in open.into_iter().zip(answers) {
                let call = &mut calls[index];
                match answer {
                    Value::ServerError(error) if error.code() == "NOSCRIPT" => {
                        if !missing.iter().any(|known| known.sha == call.script.sha) {
                            missing.push(call.script);
                        }
                        again.push(index);
                    }
                    Value::ServerError(error) if refusal::is_wrong_type(&error) => {
                        replies[index] = Err(self.explain(call).await);
                    }
                    Value::ServerError(error) => {
                        return Err(refusal::refused(&error, &call.words()));
                    }
                    answer => match reply::head(&answer) {
                        Some((false, now)) => {
                            self.learn(now);
                            call.keys = self.keys.call(call.tenant, call.limits, now);
                            again.push(index);
                        }
                        head => {
                            if let Some((_, now)) = head {
                                self.learn(now);
                                earliest = earliest.min(now);
                            }
                            replies[index] = Ok(answer);
                        }
                    },
                }
            }
            open = again;
            counts = match beat {
                Some((_, Value::ServerError(error))) if error.code() == "NOSCRIPT" => {
                    missing.push(scripts::pulse());
                    false
                }
                Some(((watch, _), Value::ServerError(error))) => return Err(watch.refused(&error)),
                Some(((watch, sent), answer)) => {
                    watch.beaten(sent, &answer, earliest)?;
                    true
                }
                None => true,
            };
        }
        if open.is_empty() && counts {
            return Ok(replies);
        }
        Err(GateError::Unreachable(format!(
            "{}: its clock jumps, or it drops the script cache, faster than a call can be repeated",
            self.link.url()
        )))
    }

    /// Sends `open` of `calls` as one pipeline, `missing` scripts first and the pulse last.
    async fn send_calls(
        &self,
        missing: &[&'static Script],
        open: &[usize],
        calls: &[Call<'_>],
        pulse: &Option<(&Watch, Sent)>,
    ) -> Result<Vec<Value>, GateError> {
        let mut pipeline = Pipeline::with_capacity(missing.len() + open.len() + 1);
        for script in missing {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(&script.source);
        }
        for call in open.iter().map(|index| &calls[*index]) {
            pipeline
                .cmd("EVALSHA")
                .arg(&call.script.sha)
                .arg(call.keys.names.len() + usize::from(call.mark.is_some()))
                .arg(&call.keys.names)
                .arg(&call.mark)
                .arg(self.test_micros());
            if !call.limits.is_empty() {
                pipeline.arg(reply::limit_arguments(call.limits, &call.keys.limits));
            }
            pipeline.arg(&call.more);
        }
        if let Some((watch, sent)) = pulse {
            watch.pulse(&mut pipeline, sent, &self.test_micros(), false);
        }
        let mut answers = self.link.send(&pipeline).await?;
        for answer in answers.drain(..missing.len()) {
            if let Value::ServerError(error) = answer {
                return Err(refusal::refused(&error, "SCRIPT LOAD"));
            }
        }
        Ok(answers)
    }

    /// The only reply of one call.
    async fn run_one(&self, call: Call<'_>) -> Result<Value, GateError> {
        let replies = self.run(vec![call], None).await?;
        replies.into_iter().next().unwrap_or(Ok(Value::Nil))
    }

    /// One exchange with the registry of policies: the arguments of `policies.lua` after the clock, and its reply.
    pub(super) async fn run_policies(&self, more: Vec<String>) -> Result<Value, GateError> {
        // Only for the words of an error.
        let nobody =
            Tenant::parse("all-policies").map_err(|error| GateError::Refused(error.to_string()))?;
        let mut call = self.call(scripts::policies(), &nobody, &[], more);
        call.keys.names = vec![self.keys.policies()];
        self.run_one(call).await
    }

    /// Which key holds something of another type.
    async fn explain(&self, call: &Call<'_>) -> GateError {
        let names = &call.keys.names;
        let mut pipeline = Pipeline::with_capacity(names.len());
        for name in names {
            pipeline.cmd("TYPE").arg(name);
        }
        match self.link.send(&pipeline).await {
            Ok(types) => {
                let sliding = call.keys.sliding(call.limits);
                refusal::wrong_type(names, &types, sliding)
            }
            Err(error) => error,
        }
    }
}

impl Call<'_> {
    fn words(&self) -> String {
        format!(
            "{} of tenant {} ({})",
            self.script.name,
            self.tenant,
            self.keys.names.join(", ")
        )
    }
}

impl Gate for RedisGate {
    async fn ask(&self, batch: &[TenantAsk]) -> Result<Replies, GateError> {
        let pulse = match &self.watch {
            None => None,
            Some(watch) => {
                for ask in batch {
                    watch.cover(Duration::from_millis(ask.limits.memory_ms()));
                }
                Some((watch, watch.ready(&self.link, self.test_clock()).await?))
            }
        };
        let calls = batch
            .iter()
            .map(|ask| {
                let script = scripts::acquire(&ask.limits);
                let more = reply::acquire_arguments(ask);
                self.call(script, &ask.tenant, &ask.limits, more)
            })
            .collect();
        let replies = self.run(calls, pulse).await?;
        let decode = |(ask, reply): (&TenantAsk, Result<Value, GateError>)| {
            reply::acquired(&reply?, ask.asks.len())
        };
        Ok(batch.iter().zip(replies).map(decode).collect())
    }

    async fn settle(&self, batch: &[TenantSettled]) -> Result<(), GateError> {
        let calls = batch
            .iter()
            .map(|settled| {
                let TenantSettled { tenant, limits, .. } = settled;
                let more = reply::settle_arguments(&settled.settled);
                let mut call = self.call(scripts::settle(limits), tenant, limits, more);
                call.mark = Some(self.keys.mark(tenant, &settled.call));
                call
            })
            .collect();
        // A tenant whose own keys can't be used has nothing to settle.
        self.run(calls, None).await.map(drop)
    }

    async fn block(&self, tenant: &Tenant, duration: Duration, by: &str) -> Result<(), GateError> {
        let more = vec![ceil_ms(duration).to_string(), by.to_owned()];
        let call = self.call(scripts::block(), tenant, &[], more);
        self.run_one(call).await.map(drop)
    }

    async fn change(&self, tenant: &Tenant, change: &Change) -> Result<u64, GateError> {
        let more = reply::change_arguments(change).to_vec();
        let call = self.call(scripts::change(), tenant, &[], more);
        reply::changed(&self.run_one(call).await?)
    }

    async fn inspect(&self, tenant: &Tenant, limits: &Limits) -> Result<Inspection, GateError> {
        let call = self.call(scripts::inspect(limits), tenant, limits, Vec::new());
        reply::inspected(&self.run_one(call).await?, limits.len())
    }
}
