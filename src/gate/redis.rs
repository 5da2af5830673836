//! The gate in Redis: one pipeline of script calls for a whole batch.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::redis::aio::{ConnectionManager, ConnectionManagerConfig};
use ::redis::io::tcp::TcpSettings;
use ::redis::{Client, IntoConnectionInfo, Pipeline, RedisResult, Value};

use crate::config::SecretUrl;
use crate::gate::keys::{CallKeys, Keys};
use crate::gate::refusal;
use crate::gate::reply;
use crate::gate::scripts::{self, Script};
use crate::gate::{Gate, GateError, Inspection, TenantAsk, TenantReply};
use crate::rules::limit::{Limit, ceil_ms};
use crate::rules::tenant::Tenant;

/// How long Redis may take to answer, and to accept a connection.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How often a call is sent whose script was not cached, or whose window was guessed wrong.
const TRIES: usize = 4;
/// The longest pause between two attempts to connect.
const RECONNECT: Duration = Duration::from_secs(1);

/// A gate that all workers with the same Redis, prefix and limit share.
///
/// It connects when it is first asked, and again whenever the connection is lost; while Redis can't be reached,
/// every call fails with [`GateError::Unreachable`] within seconds.
pub struct RedisGate {
    client: Client,
    url: SecretUrl,
    keys: Keys,
    limit: Limit,
    link: Mutex<Link>,
    /// The last reading of Redis's clock, and when it was taken.
    clock: Mutex<Option<(u64, Instant)>>,
    round_trips: AtomicU64,
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

/// The connection in use.
#[derive(Default)]
struct Link {
    manager: Option<ConnectionManager>,
    /// How many there were: a task that saw one fail drops that one, not the one that replaced it.
    number: u64,
}

/// One script call: what is sent, and for messages what it was for.
struct Call<'a> {
    script: &'static Script,
    keys: CallKeys,
    arguments: Vec<String>,
    tenant: &'a Tenant,
}

impl RedisGate {
    /// A gate on the Redis at `url` that enforces `limit` for each tenant, with keys that begin with `prefix`.
    /// It does not connect yet.
    ///
    /// # Errors
    /// [`GateError::Refused`] when `url` is no Redis url.
    pub fn connect(url: &SecretUrl, prefix: &str, limit: Limit) -> Result<Self, GateError> {
        let client = url
            .expose()
            .into_connection_info()
            .and_then(|info| {
                Client::open(info.set_tcp_settings(TcpSettings::default().set_nodelay(true)))
            })
            .map_err(|_| {
                GateError::Refused(format!(
                    "{url} is no Redis url; it must look like redis://user:password@host:6379/0"
                ))
            })?;
        Ok(Self {
            client,
            url: url.clone(),
            keys: Keys::new(prefix),
            limit,
            link: Mutex::new(Link::default()),
            clock: Mutex::new(None),
            round_trips: AtomicU64::new(0),
            test_clock: None,
        })
    }

    /// Keys for a Redis Cluster: the tenant in braces, so that all keys of one tenant share a slot.
    pub fn in_cluster(mut self) -> Self {
        self.keys = self.keys.in_cluster();
        self
    }

    /// Lets the scripts use `clock` in place of Redis's. For tests: workers with clocks of their own would not
    /// keep a limit.
    pub fn with_test_clock(mut self, clock: TestClock) -> Self {
        self.test_clock = Some(clock);
        self
    }

    /// How many round trips were made.
    pub fn round_trips(&self) -> u64 {
        self.round_trips.load(Ordering::Relaxed)
    }

    /// Whether Redis answers.
    ///
    /// # Errors
    /// [`GateError`] says why it does not.
    pub async fn ping(&self) -> Result<(), GateError> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("PING");
        match self.send(&pipeline, 0, 1).await?.as_slice() {
            [Value::ServerError(error)] => Err(refusal::refused(error, "PING")),
            _ => Ok(()),
        }
    }

    /// What the server is, and whether the gate's scripts may run on it.
    ///
    /// # Errors
    /// [`GateError`] says what is in the way.
    pub async fn check(&self) -> Result<Health, GateError> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("INFO");
        let reply = self.send(&pipeline, 0, 1).await?;
        let info = match reply.as_slice() {
            [Value::ServerError(error)] => return Err(refusal::refused(error, "INFO")),
            [value] => ::redis::from_redis_value_ref::<String>(value).unwrap_or_default(),
            _ => String::new(),
        };
        let tenant = Tenant::parse("sluicegate-check")
            .map_err(|error| GateError::Refused(error.to_string()))?;
        self.inspect(&tenant).await?;
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

    fn limit(&self, _tenant: &Tenant) -> &Limit {
        &self.limit
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

    /// The arguments that `acquire` and `inspect` share.
    fn call<'a>(&self, script: &'static Script, tenant: &'a Tenant, more: &[String]) -> Call<'a> {
        let limit = self.limit(tenant);
        let mut arguments = vec![
            self.test_micros(),
            limit.max().to_string(),
            limit.window_ms().to_string(),
            limit.guard_ms().to_string(),
        ];
        let keys = self.keys.call(tenant, limit, self.estimate());
        arguments.push(keys.index.to_string());
        arguments.extend_from_slice(more);
        Call {
            script,
            keys,
            arguments,
            tenant,
        }
    }

    fn test_micros(&self) -> String {
        self.test_clock
            .as_ref()
            .map_or_else(String::new, |clock| clock().to_string())
    }

    /// Makes all calls in one round trip, and those again whose script Redis had lost or whose window was guessed
    /// wrong. One reply for each call, in order.
    async fn run(&self, mut calls: Vec<Call<'_>>) -> Result<Vec<Value>, GateError> {
        let mut replies: Vec<Value> = calls.iter().map(|_| Value::Nil).collect();
        let mut open: Vec<usize> = (0..calls.len()).collect();
        let mut missing: Vec<&'static Script> = Vec::new();
        for _ in 0..TRIES {
            if open.is_empty() {
                return Ok(replies);
            }
            let answers = self.send_calls(&missing, &open, &calls).await?;
            missing.clear();
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
                    Value::ServerError(error) => return Err(self.explain(&error, call).await),
                    answer => {
                        if let Some(now) = reply::clock(&answer) {
                            self.learn(now);
                        }
                        if reply::outside(&answer) {
                            let more = call.arguments.split_off(reply::FIXED_ARGUMENTS);
                            *call = self.call(call.script, call.tenant, &more);
                            again.push(index);
                        } else {
                            replies[index] = answer;
                        }
                    }
                }
            }
            open = again;
        }
        if open.is_empty() {
            return Ok(replies);
        }
        Err(GateError::Unreachable(format!(
            "{}: its clock jumps, or it drops the script cache, faster than a call can be repeated",
            self.url
        )))
    }

    /// Sends `open` of `calls` as one pipeline, `missing` scripts first.
    async fn send_calls(
        &self,
        missing: &[&'static Script],
        open: &[usize],
        calls: &[Call<'_>],
    ) -> Result<Vec<Value>, GateError> {
        let mut pipeline = Pipeline::with_capacity(missing.len() + open.len());
        for script in missing {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(script.source);
        }
        for call in open.iter().map(|index| &calls[*index]) {
            pipeline
                .cmd("EVALSHA")
                .arg(&call.script.sha)
                .arg(call.keys.names.len())
                .arg(&call.keys.names)
                .arg(&call.arguments);
        }
        let mut answers = self.send(&pipeline, 0, missing.len() + open.len()).await?;
        for answer in answers.drain(..missing.len()) {
            if let Value::ServerError(error) = answer {
                return Err(refusal::refused(&error, "SCRIPT LOAD"));
            }
        }
        Ok(answers)
    }

    /// One round trip.
    async fn send(
        &self,
        pipeline: &Pipeline,
        offset: usize,
        count: usize,
    ) -> Result<Vec<Value>, GateError> {
        let (mut manager, number) = self.link().map_err(|e| refusal::broken(&e, &self.url))?;
        self.round_trips.fetch_add(1, Ordering::Relaxed);
        let sent = tokio::time::timeout(
            TIMEOUT * 2,
            manager.send_packed_commands(pipeline, offset, count),
        );
        let error = match sent.await {
            Ok(Ok(answers)) if answers.len() == count => return Ok(answers),
            Ok(Ok(_)) => GateError::Unreachable(format!("{}: an answer is missing", self.url)),
            Ok(Err(error)) => refusal::broken(&error, &self.url),
            Err(_) => GateError::Unreachable(format!("{}: no answer in time", self.url)),
        };
        // A manager reconnects by itself after some errors, not after all (a login that failed, a peer that is
        // silent): a new one does after every error.
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if link.number == number {
            link.manager = None;
        }
        Err(error)
    }

    /// The connection in use and its number.
    fn link(&self) -> RedisResult<(ConnectionManager, u64)> {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(manager) = &link.manager {
            return Ok((manager.clone(), link.number));
        }
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(TIMEOUT))
            .set_connection_timeout(Some(TIMEOUT))
            .set_number_of_retries(1)
            .set_max_delay(RECONNECT);
        let manager = ConnectionManager::new_lazy_with_config(self.client.clone(), config)?;
        link.manager = Some(manager.clone());
        link.number += 1;
        Ok((manager, link.number))
    }

    /// Why a script failed, with the key that was meant.
    async fn explain(&self, error: &::redis::ServerError, call: &Call<'_>) -> GateError {
        let names = &call.keys.names;
        let what = format!(
            "{} of tenant {} ({})",
            call.script.name,
            call.tenant,
            names.join(", ")
        );
        if !refusal::is_wrong_type(error) {
            return refusal::refused(error, &what);
        }
        let mut pipeline = Pipeline::with_capacity(names.len());
        for name in names {
            pipeline.cmd("TYPE").arg(name);
        }
        match self.send(&pipeline, 0, names.len()).await {
            Ok(types) => refusal::wrong_type(names, &types, &self.limit(call.tenant).algorithm()),
            Err(error) => error,
        }
    }
}

impl Gate for RedisGate {
    async fn ask(&self, batch: &[TenantAsk]) -> Result<Vec<TenantReply>, GateError> {
        let calls = batch
            .iter()
            .map(|ask| {
                let script = scripts::acquire(self.limit(&ask.tenant).algorithm());
                self.call(script, &ask.tenant, &reply::acquire_arguments(ask))
            })
            .collect();
        let replies = self.run(calls).await?;
        batch
            .iter()
            .zip(&replies)
            .map(|(ask, reply)| reply::acquired(reply, ask.asks.len()))
            .collect()
    }

    async fn block(&self, tenant: &Tenant, duration: Duration, by: &str) -> Result<(), GateError> {
        let call = Call {
            script: scripts::block(),
            keys: CallKeys {
                names: vec![self.keys.line(tenant)],
                index: 0,
            },
            arguments: vec![
                self.test_micros(),
                ceil_ms(duration).to_string(),
                by.to_owned(),
            ],
            tenant,
        };
        self.run(vec![call]).await.map(drop)
    }

    async fn inspect(&self, tenant: &Tenant) -> Result<Inspection, GateError> {
        let script = scripts::inspect(self.limit(tenant).algorithm());
        let replies = self.run(vec![self.call(script, tenant, &[])]).await?;
        reply::inspected(&replies)
    }
}
