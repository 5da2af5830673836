//! The gate in Redis: one pipeline of script calls for a whole batch.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::redis::{Cmd, ServerError, Value};

use crate::config::RedisServers;
use crate::gate::epoch::{Sent, Watch};
use crate::gate::keys::{CallKeys, Keys};
use crate::gate::link::{Link, Request};
use crate::gate::refusal;
pub use crate::gate::refusal::NODE_OF_A_CLUSTER;
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

/// What [`RedisGate::check`] found: in a cluster, on the first of its primaries that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// `redis` or `valkey`.
    pub server: &'static str,
    /// Its version, such as `7.0.15`.
    pub version: String,
    /// `maxmemory-policy`; anything but `noeviction` can lose what has started. `None`: the server does not say.
    pub maxmemory_policy: Option<String>,
    /// `master`, or `slave` where a replica was found. `None`: the server does not say.
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
    /// The node did not know the script.
    load: bool,
    /// A key after those of the limits.
    mark: Option<String>,
    /// The arguments after those of the limits.
    more: Vec<String>,
}

impl RedisGate {
    /// A gate on the Redis at `servers`, with keys that begin with `prefix`. It does not connect yet.
    ///
    /// # Errors
    /// [`GateError::Refused`] when a url is no Redis url.
    pub fn connect(servers: impl Into<RedisServers>, prefix: &str) -> Result<Self, GateError> {
        let link = Link::new(&servers.into())?;
        let keys = Keys::new(prefix);
        let keys = if link.is_cluster() {
            keys.in_cluster()
        } else {
            keys
        };
        Ok(Self {
            link,
            keys,
            watch: None,
            clock: Mutex::new(None),
            test_clock: None,
        })
    }

    /// For a worker: admits nothing while Redis may not know all that has started. After `memory` no start counts
    /// any more; limits that are asked for and remember longer make it longer. The shards of a cluster are not
    /// watched: one that lost its memory starts from nothing.
    pub fn watching(mut self, memory: Duration) -> Self {
        self.watch = (!self.link.is_cluster()).then(|| Watch::new(self.keys.epoch(), memory));
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

    /// Whether Redis answers (in a cluster, all of its primaries), and a watching gate may admit. A worker calls it
    /// every few seconds, so that others know that it lives.
    ///
    /// # Errors
    /// [`GateError`] says why it does not.
    pub async fn ping(&self) -> Result<(), GateError> {
        if let Some(watch) = &self.watch {
            return watch.heartbeat(&self.link, self.test_clock()).await;
        }
        self.answers().await
    }

    /// Whether Redis answers (in a cluster, all of its primaries). Changes nothing there, so that it may be asked before
    /// [`RedisGate::begin`].
    ///
    /// # Errors
    /// [`GateError`] says why it does not.
    pub async fn answers(&self) -> Result<(), GateError> {
        for (node, answer) in self.link.on_primaries(::redis::cmd("PING")).await? {
            if let Value::ServerError(error) = answer {
                return Err(refusal::refused(&error, &format!("PING at {node}")));
            }
        }
        Ok(())
    }

    /// What the server is, and whether the gate's scripts for `limits` may run on it.
    ///
    /// # Errors
    /// [`GateError`] says what is in the way.
    pub async fn check(&self, limits: &Limits) -> Result<Health, GateError> {
        let mut found: Option<Health> = None;
        for (node, answer) in self.link.on_primaries(::redis::cmd("INFO")).await? {
            let info = match answer {
                // A user who may do what the scripts do, and no more, may not ask for this.
                Value::ServerError(error) if error.code() == "NOPERM" => String::new(),
                Value::ServerError(error) => {
                    return Err(refusal::refused(&error, &format!("INFO at {node}")));
                }
                value => ::redis::from_redis_value(value).unwrap_or_default(),
            };
            let health = Health::from_info(&info);
            if found.as_ref().is_none_or(Health::is_good) {
                found = Some(health);
            }
        }
        let tenant = Tenant::parse("sluicegate-check")
            .map_err(|error| GateError::Refused(error.to_string()))?;
        self.inspect(&tenant, limits).await?;
        found.ok_or_else(|| {
            GateError::Unreachable(format!("{}: it has no primaries", self.link.servers()))
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
            load: false,
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

    /// Makes all calls in one round trip to each node, and those again whose script a node had lost or whose window
    /// was guessed wrong. One reply for each call, in order; an error that concerns one call, or one node of several,
    /// stands in its place. With `pulse` the calls admit: they count only if Redis still knows all that has started.
    async fn run(
        &self,
        mut calls: Vec<Call<'_>>,
        pulse: Option<(&Watch, Sent)>,
    ) -> Result<Vec<Result<Value, GateError>>, GateError> {
        let mut replies: Vec<_> = calls.iter().map(|_| Ok(Value::Nil)).collect();
        let mut open: Vec<usize> = (0..calls.len()).collect();
        let mut earliest = u64::MAX;
        // The last pulse is behind all calls.
        let mut counts = pulse.is_none();
        let mut load_pulse = false;
        for _ in 0..TRIES {
            if open.is_empty() && counts {
                return Ok(replies);
            }
            let mut requests: Vec<_> = open
                .iter()
                .map(|index| self.request(&calls[*index]))
                .collect();
            if let Some((watch, sent)) = &pulse {
                requests.push(watch.request(sent, &self.test_micros(), load_pulse));
            }
            let mut answers = self.link.send(requests).await?;
            let beat = pulse.as_ref().zip(answers.pop_if(|_| pulse.is_some()));
            let mut again = Vec::new();
            for (index, answer) in open.into_iter().zip(answers) {
                let call = &mut calls[index];
                match answer {
                    Ok(Value::ServerError(error)) if error.code() == "NOSCRIPT" => {
                        call.load = true;
                        again.push(index);
                    }
                    Ok(Value::ServerError(error)) if refusal::is_wrong_type(&error) => {
                        replies[index] = Err(self.explain(call).await);
                    }
                    Ok(Value::ServerError(error)) if refusal::is_unreadable(&error) => {
                        replies[index] = Err(refusal::unreadable(&error, &call.words()));
                    }
                    Ok(Value::ServerError(error)) => {
                        let why = self.refused(&error, call);
                        replies[index] = Err(self.for_this_call(why)?);
                    }
                    Err(why) => replies[index] = Err(self.for_this_call(why)?),
                    Ok(answer) => match reply::head(&answer) {
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
                Some((_, Ok(Value::ServerError(error)))) if error.code() == "NOSCRIPT" => {
                    load_pulse = true;
                    false
                }
                Some(((watch, _), Ok(Value::ServerError(error)))) => {
                    return Err(watch.refused(&error));
                }
                Some((_, Err(why))) => return Err(why),
                Some(((watch, sent), Ok(answer))) => {
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
            self.link.servers()
        )))
    }

    fn request<'c>(&self, call: &'c Call<'_>) -> Request<'c> {
        let mut command = Cmd::new();
        command
            .arg("EVALSHA")
            .arg(&call.script.sha)
            .arg(call.keys.names.len() + usize::from(call.mark.is_some()))
            .arg(&call.keys.names)
            .arg(&call.mark)
            .arg(self.test_micros());
        if !call.limits.is_empty() {
            command.arg(reply::limit_arguments(call.limits, &call.keys.limits));
        }
        command.arg(&call.more);
        Request {
            key: call.keys.line(),
            command,
            load: call.load.then_some(call.script),
        }
    }

    /// Redis answered `call` with an error.
    fn refused(&self, error: &ServerError, call: &Call<'_>) -> GateError {
        match refusal::refused(error, &call.words()) {
            // The next call finds the new primary.
            GateError::Refused(why)
                if refusal::is_read_only(error) && self.link.finds_primaries() =>
            {
                GateError::Unreachable(why)
            }
            why => why,
        }
    }

    /// Whether an error of a node concerns this call alone: a cluster has others.
    fn for_this_call(&self, why: GateError) -> Result<GateError, GateError> {
        if self.link.is_cluster() {
            Ok(why)
        } else {
            Err(why)
        }
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
        let request = |name: &'_ String| {
            let mut command = ::redis::cmd("TYPE");
            command.arg(name);
            Request {
                key: call.keys.line(),
                command,
                load: None,
            }
        };
        let sent = self.link.send(names.iter().map(request).collect()).await;
        match sent.and_then(|types| types.into_iter().collect::<Result<Vec<_>, _>>()) {
            Ok(types) => {
                let sliding = call.keys.sliding(call.limits);
                refusal::wrong_type(names, &types, sliding)
            }
            Err(error) => error,
        }
    }
}

impl Health {
    /// What `INFO` says; nothing is known where it may not be asked for.
    fn from_info(info: &str) -> Self {
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .map(|value| value.trim().to_owned())
        };
        let valkey = field("valkey_version");
        let mode = field("redis_mode").or_else(|| field("server_mode"));
        Self {
            server: if valkey.is_some() { "valkey" } else { "redis" },
            version: valkey
                .or_else(|| field("redis_version"))
                .unwrap_or_default(),
            maxmemory_policy: field("maxmemory_policy"),
            role: field("role"),
            cluster: mode.as_deref() == Some("cluster"),
        }
    }

    fn is_good(&self) -> bool {
        self.maxmemory_policy.as_deref() == Some("noeviction")
            && self.role.as_deref() == Some("master")
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
        let replies = self.run(calls, None).await?;
        // A tenant whose own keys can't be used has nothing to settle; one whose shard is away has it once more.
        let away = |why: &GateError| !matches!(why, GateError::Refused(_));
        match replies
            .into_iter()
            .find_map(|reply| reply.err().filter(away))
        {
            Some(why) => Err(why),
            None => Ok(()),
        }
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
