//! What the server is, and whether it answers.

use std::time::{Duration, Instant};

use ::redis::Value;
use futures_util::future::join_all;

use super::RedisGate;
use crate::gate::refusal;
use crate::gate::{Gate, GateError};
use crate::rules::limit::Limits;
use crate::rules::scope::Labels;
use crate::rules::tenant::Tenant;
use crate::rules::way::SAMPLES;

/// So many pings measure the way, and so much apart: what delays one of them does not delay all.
const PINGS: u32 = SAMPLES as u32;
const APART: Duration = Duration::from_millis(5);

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

impl RedisGate {
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

    /// Measures the way to Redis, where that is not known yet, by some pings. Afterwards [`Gate::base`] tells it.
    ///
    /// # Errors
    /// [`GateError`]: it is not known.
    pub async fn measure(&self) -> Result<(), GateError> {
        if self.link.base().is_some() {
            return Ok(());
        }
        self.pings().await.map(drop)
    }

    /// What round trips take: some, a few milliseconds apart. In a cluster each is that to the slowest of its primaries.
    ///
    /// # Errors
    /// [`GateError`]: Redis does not answer.
    pub async fn pings(&self) -> Result<Vec<Duration>, GateError> {
        // Connected first: that would count as a part of the way.
        self.answers().await?;
        let pings = (0..PINGS).map(|number| async move {
            tokio::time::sleep(APART * number).await;
            let begun = Instant::now();
            self.answers().await?;
            Ok(begun.elapsed())
        });
        join_all(pings).await.into_iter().collect()
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
        // As of jobs without the headers that limits ask for: the scripts are those that jobs get.
        let labels = Labels::of(limits.all(), |_| String::new());
        self.inspect(&tenant, &labels, limits).await?;
        found.ok_or_else(|| {
            GateError::Unreachable(format!("{}: it has no primaries", self.link.servers()))
        })
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
