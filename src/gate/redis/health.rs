//! The server's version and settings, and whether it answers.

use std::time::{Duration, Instant};

use ::redis::{Pipeline, ServerError, Value};
use futures_util::future::join_all;

use super::RedisGate;
use crate::epoch::{ServerIdentity, info_of, server_command, server_identity};
use crate::link::Request;
use crate::primaries::Primary;
use crate::refusal;
use crate::{Gate, GateError};
use rules::limit::Limits;
use rules::scope::Labels;
use rules::tenant::Tenant;
use rules::timing::latency::SAMPLES;

/// Number of pings in a measurement.
const PINGS: u32 = SAMPLES as u32;
/// Time between two pings. With pauses, one delay does not affect all of them.
const APART: Duration = Duration::from_millis(5);

/// Number of tenants whose keys must be on one server behind a proxy.
const KEYS_TRIED: u32 = 16;

/// The command that tries a write.
pub(super) const WRITE: &str = "SET";

/// The findings of [`RedisGate::check`]. In a cluster they describe the first primary with a
/// problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerHealth {
    /// `redis` or `valkey`.
    pub server: &'static str,
    /// The version, such as `7.0.15`.
    pub version: String,
    /// The `maxmemory-policy`. Any other than `noeviction` can lose usage. `None` if the server
    /// does not report it.
    pub maxmemory_policy: Option<String>,
    /// `master`, or `slave` for a replica. `None` if the server does not report it.
    pub role: Option<String>,
    /// Whether the server is a node of a Redis Cluster.
    pub cluster: bool,
}

impl RedisGate {
    /// Checks that Redis answers, in a cluster all of its primaries. It changes nothing, so it may
    /// be called before [`RedisGate::begin`].
    ///
    /// # Errors
    /// [`GateError`] with the reason.
    pub async fn answers(&self) -> Result<(), GateError> {
        for (node, answer) in self.link.on_primaries(::redis::cmd("PING")).await? {
            if let Value::ServerError(error) = answer {
                return Err(refusal::refused(&error, &format!("PING at {node}")));
            }
        }
        Ok(())
    }

    /// Measures the round-trip time to Redis with a few pings, unless it is known. Afterwards
    /// [`Gate::base`] returns it.
    ///
    /// # Errors
    /// [`GateError`] if it can't be measured.
    pub async fn measure(&self) -> Result<(), GateError> {
        if self.link.base().is_some() {
            return Ok(());
        }
        self.pings().await.map(drop)
    }

    /// Returns the times of a few round trips to each primary, started a few milliseconds apart.
    ///
    /// # Errors
    /// [`GateError`] if Redis does not answer.
    pub async fn pings(&self) -> Result<Vec<Duration>, GateError> {
        // Connect first, so that connecting is not measured.
        self.answers().await?;
        let mut ping = Pipeline::with_capacity(1);
        ping.cmd("PING");
        let ping = &ping;
        let primaries = self.link.shards(false).await?;
        let pings = (0..PINGS).flat_map(|number| {
            primaries.iter().map(move |primary| async move {
                tokio::time::sleep(APART * number).await;
                let started = Instant::now();
                self.link.on(primary, ping).await?;
                Ok(started.elapsed())
            })
        });
        join_all(pings).await.into_iter().collect()
    }

    /// Reports what the server is, and checks that the gate's scripts for `limits` may run on it.
    ///
    /// # Errors
    /// [`GateError`] with the obstacle.
    pub async fn check(&self, limits: &Limits) -> Result<ServerHealth, GateError> {
        let mut found: Option<ServerHealth> = None;
        let by_script = self.link.is_behind_proxy();
        let asking = match by_script {
            true => server_command(&self.keys.epoch(None)),
            false => ::redis::cmd("INFO"),
        };
        for (node, answer) in self.link.on_primaries(asking).await? {
            let info = match answer {
                // A user with the documented permissions only may not call `INFO`.
                Value::ServerError(error) if error.code() == "NOPERM" => String::new(),
                Value::ServerError(error) => {
                    return Err(refusal::refused(&error, &format!("INFO at {node}")));
                }
                value if by_script => info_of(&value).unwrap_or_default(),
                value => ::redis::from_redis_value(value).unwrap_or_default(),
            };
            let health = ServerHealth::from_info(&info);
            if found.as_ref().is_none_or(ServerHealth::is_good) {
                found = Some(health);
            }
        }
        let tenant = Tenant::parse("sluicegate-check")
            .map_err(|error| GateError::Refused(error.to_string()))?;
        // Labels of a job without the headers that limits use. The scripts are those that jobs get.
        let labels = Labels::of(limits.all(), |_| String::new());
        self.inspect(&tenant, &labels, limits).await?;
        if by_script {
            self.has_one_server().await?;
        }
        found.ok_or_else(|| {
            GateError::Unreachable(format!("{}: it has no primaries", self.link.servers()))
        })
    }
}

impl RedisGate {
    /// Checks that all primaries accept writes. Changes nothing.
    ///
    /// # Errors
    /// [`GateError`] with the reason of the first that does not.
    pub async fn accepts_writes(&self) -> Result<(), GateError> {
        for primary in self.registries().await?.iter() {
            if let Some(error) = self.write_error(primary).await? {
                return Err(refusal::refused(&error, WRITE));
            }
        }
        Ok(())
    }

    /// Returns the error answer of a primary to a write that changes nothing, as its key does not
    /// exist.
    pub(super) async fn write_error(
        &self,
        primary: &Primary,
    ) -> Result<Option<ServerError>, GateError> {
        let key = format!("{}:check", primary.policies);
        let mut command = ::redis::cmd(WRITE);
        command.arg(&key).arg("").arg("XX");
        let request = Request {
            key: &key,
            command,
            load: None,
        };
        let answer = self.link.send(vec![request]).await?.into_iter().next();
        Ok(match answer.transpose()? {
            Some(Value::ServerError(error)) => Some(error),
            _ => None,
        })
    }

    /// Checks that a proxy sends all keys to one server, so that the epoch tells whether any usage
    /// is lost.
    async fn has_one_server(&self) -> Result<(), GateError> {
        let tenants =
            (0..KEYS_TRIED).map(|number| Tenant::parse(&format!("sluicegate-check-{number}")));
        let tenants = tenants.filter_map(Result::ok);
        let mut keys: Vec<String> = tenants.map(|tenant| self.keys.waitlist(&tenant)).collect();
        keys.push(self.keys.epoch(None));
        let requests = keys.iter().map(|key| Request {
            key,
            command: server_command(key),
            load: None,
        });
        let answers = self.link.send(requests.collect()).await?;
        let mut processes = Vec::new();
        for answer in answers {
            let info = info_of(&answer?);
            let info = info.and_then(|info: String| ServerIdentity::parse(&info));
            processes.extend(info.map(|server| server.process));
        }
        processes.dedup();
        match processes.len() {
            0 | 1 => Ok(()),
            _ => Err(GateError::Refused(format!(
                "{}: the proxy spreads keys with one hash tag over several servers, so limits would \
                not hold after one of them loses its data; make it use hash tags (Envoy: \
                enable_hashtagging)",
                self.link.servers()
            ))),
        }
    }
}

impl ServerHealth {
    /// Parses the reply of `INFO`. Its fields stay empty if the user may not call `INFO`.
    fn from_info(info: &str) -> Self {
        let field = |name| server_identity::field(info, name).map(str::to_owned);
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
