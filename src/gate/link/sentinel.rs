//! The primary that Sentinel names. Sentinel is asked on each connect, and again when the
//! connection is lost or turns out to lead to a replica.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::redis::io::tcp::TcpSettings;
use ::redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use ::redis::{
    Client, ConnectionAddr, ErrorKind, Pipeline, RedisError, RedisResult, TlsMode, Value,
};

use super::node::{Node, TIMEOUT_IN_ALL};
use super::{certificates, client};
use crate::fault::Fault;
use crate::{GateError, refusal};
use config::{Pems, RedisServers, SecretUrl};

/// The connection to a primary that may change.
pub struct Sentinel {
    /// Locked while Sentinel is asked, so that one caller asks on behalf of all.
    sentinels: tokio::sync::Mutex<SentinelClient>,
    primary: Mutex<Option<Arc<Node>>>,
    /// The name of the whole setup in errors.
    name: String,
    round_trips: Arc<AtomicU64>,
}

impl Sentinel {
    /// Creates the connection to the primary whose name is the host in the URL of `servers`.
    pub fn new(
        servers: &RedisServers,
        sentinels: &[SecretUrl],
        pems: &Pems,
        round_trips: &Arc<AtomicU64>,
    ) -> Result<Self, GateError> {
        let name = servers.to_string();
        let unusable = |error| GateError::Refused(format!("{name} can't be used: {error}"));
        let (Some(url), Some(first)) = (servers.urls.first(), sentinels.first()) else {
            return Err(GateError::Refused("redis.sentinels is empty".to_owned()));
        };
        let primary = client(url, pems)?;
        let (addr, login) = (
            primary.get_connection_info().addr(),
            primary.get_connection_info().redis_settings(),
        );
        let (ConnectionAddr::Tcp(master, _) | ConnectionAddr::TcpTls { host: master, .. }) = addr
        else {
            return Err(GateError::Refused(format!(
                "{url} has no name of a primary"
            )));
        };
        let addresses = sentinels
            .iter()
            .map(|url| Ok(client(url, pems)?.get_connection_info().addr().clone()))
            .collect::<Result<Vec<_>, GateError>>()?;
        let tcp = TcpSettings::default().set_nodelay(true);
        let mut builder = SentinelClientBuilder::new(addresses, master, SentinelServerType::Master)
            .map_err(unusable)?
            .set_client_to_redis_db(login.db())
            .set_client_to_redis_tcp_settings(tcp);
        if let Some(user) = login.username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = login.password() {
            builder = builder.set_client_to_redis_password(password);
        }
        if matches!(addr, ConnectionAddr::TcpTls { .. }) {
            builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
            if let Some(certificates) = certificates(pems) {
                builder = builder.set_client_to_redis_certificates(certificates);
            }
        }
        // All sentinels have one login; the configuration ensures that.
        let first = client(first, pems)?;
        let login = first.get_connection_info().redis_settings();
        if let Some(user) = login.username() {
            builder = builder.set_client_to_sentinel_username(user);
        }
        if let Some(password) = login.password() {
            builder = builder.set_client_to_sentinel_password(password);
        }
        Ok(Self {
            sentinels: tokio::sync::Mutex::new(builder.build().map_err(unusable)?),
            primary: Mutex::default(),
            round_trips: Arc::clone(round_trips),
            name,
        })
    }

    /// Makes one round trip to the primary. After a failure, or an answer by which another server
    /// may be the primary, the next call asks Sentinel again.
    pub async fn send(&self, pipeline: &Pipeline) -> Result<Vec<Value>, GateError> {
        let node = self.primary().await?;
        let sent = node.send(pipeline).await;
        let lost = match &sent {
            Ok(answers) => Fault::among(answers) == Fault::Address,
            Err(_) => true,
        };
        if lost {
            let mut current = self.primary.lock().unwrap_or_else(PoisonError::into_inner);
            if current
                .as_ref()
                .is_some_and(|known| Arc::ptr_eq(known, &node))
            {
                *current = None;
            }
        }
        sent
    }

    fn known(&self) -> Option<Arc<Node>> {
        let current = self.primary.lock().unwrap_or_else(PoisonError::into_inner);
        current.clone()
    }

    /// Returns the minimum round-trip time, as [`super::Link::base`] does.
    pub fn base(&self) -> Option<Duration> {
        self.known()?.base()
    }

    async fn primary(&self) -> Result<Arc<Node>, GateError> {
        if let Some(node) = self.known() {
            return Ok(node);
        }
        let find = async {
            let mut sentinels = self.sentinels.lock().await;
            match self.known() {
                Some(node) => Ok(node),
                None => match sentinels.async_get_client().await {
                    Ok(client) => Ok(self.found(client)),
                    Err(error) => {
                        let sentinel = sentinels.async_get_sentinel_client().await;
                        Err(self.unfound(&error, sentinel))
                    }
                },
            }
        };
        match tokio::time::timeout(TIMEOUT_IN_ALL, find).await {
            Ok(found) => found,
            Err(_) => Err(GateError::Unreachable(format!(
                "{}: no Sentinel names a primary in time; check that the primary and the servers \
                of redis.sentinels are running",
                self.name
            ))),
        }
    }

    /// Returns the error if the search for the primary ended in `error` and then a search for any
    /// Sentinel in `sentinel`.
    fn unfound(&self, error: &RedisError, sentinel: RedisResult<Client>) -> GateError {
        let name = &self.name;
        match sentinel {
            Err(why) => match refusal::broken(&why, name, "redis.sentinels") {
                GateError::Unreachable(why) => GateError::Unreachable(format!(
                    "{why}; check that the servers of redis.sentinels are running and are Sentinels"
                )),
                refused => refused,
            },
            Ok(_) if error.kind() == ErrorKind::MasterNameNotFoundBySentinel => {
                GateError::Unreachable(format!(
                    "{name}: no server of redis.sentinels has a primary of this name that is up; \
                    the name is the host in redis.url"
                ))
            }
            Ok(_) => refusal::broken(error, name, "redis.url"),
        }
    }

    fn found(&self, client: Client) -> Arc<Node> {
        let name = format!("{} ({})", client.get_connection_info().addr(), self.name);
        let node = Arc::new(Node::new(client, name, Arc::clone(&self.round_trips)));
        let mut current = self.primary.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Some(Arc::clone(&node));
        node
    }
}
