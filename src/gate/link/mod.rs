//! Connections to Redis: to a single server, to the nodes of a cluster, or to the primary that
//! Sentinel names.

mod cluster;
mod node;
mod parcel;
mod sentinel;
mod shared;
mod slots;
mod stored;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ::redis::io::tcp::TcpSettings;
use ::redis::{
    Client, ClientTlsConfig, Cmd, ConnectionAddr, IntoConnectionInfo, Pipeline, TlsCertificates,
    Value,
};
use futures_util::FutureExt as _;
use futures_util::future::join_all;

use self::cluster::Cluster;
use self::node::Node;
use self::parcel::Parcel;
use self::sentinel::Sentinel;
pub use self::shared::Links;
pub use self::slots::{owned, redirect, slot_of};
use self::stored::StoreLink;
use crate::GateError;
use crate::scripts::Script;
use crate::store::Store;
use config::{Pems, RedisServers, RedisTopology, ScriptCommand, SecretUrl};
use rules::slots::Slots;

/// A command and its destination.
pub struct Request<'a> {
    /// One of the command's keys. In a cluster the command goes to the primary that has this key.
    pub key: &'a str,
    /// The command with its arguments.
    pub command: Cmd,
    /// The command's script, if the node did not have it at the last attempt. It is loaded first,
    /// in the same round trip.
    pub load: Option<&'static Script>,
}

/// One value per request, in order. An error that affects only one node's requests takes their
/// places.
pub type Answers = Vec<Result<Value, GateError>>;

/// One primary.
#[derive(Clone)]
pub struct PrimaryLink {
    /// The node, in a cluster.
    node: Option<Arc<Node>>,
    /// The node's slots as far as they are known, in a cluster.
    pub slots: Slots,
}

impl PrimaryLink {
    /// Returns the same primary restricted to `slots`.
    pub fn with(&self, slots: Slots) -> Self {
        Self {
            node: self.node.clone(),
            slots,
        }
    }

    /// Returns the primary's name in a cluster, or an empty text.
    pub fn name(&self) -> &str {
        self.node.as_ref().map_or("", |node| node.name())
    }
}

/// All primaries. A new `Arc` means that something has changed.
pub type Shards = Arc<Vec<PrimaryLink>>;

/// The connections to Redis, shared by all callers.
pub struct Link {
    servers: RedisServers,
    kind: LinkKind,
    /// The one primary, wherever it is, if there is no cluster.
    only: Shards,
    round_trips: Arc<AtomicU64>,
}

enum LinkKind {
    Single(Node),
    Cluster(Cluster),
    Sentinel(Sentinel),
    /// A store in place of servers.
    Store(StoreLink),
}

impl Link {
    /// Creates a link to `store`, in place of servers.
    pub fn to(store: Arc<dyn Store>) -> Self {
        let round_trips = Arc::default();
        let servers = RedisServers::from(&SecretUrl::new("redis://memory"));
        let kind = LinkKind::Store(StoreLink::new(store, Arc::clone(&round_trips)));
        Self::from_servers(&servers, kind, round_trips)
    }

    fn from_servers(servers: &RedisServers, kind: LinkKind, round_trips: Arc<AtomicU64>) -> Self {
        Self {
            servers: servers.clone(),
            kind,
            only: Arc::new(vec![PrimaryLink {
                node: None,
                slots: Slots::default(),
            }]),
            round_trips,
        }
    }

    /// Creates a link to `servers`. It does not connect yet.
    pub fn new(servers: &RedisServers) -> Result<Self, GateError> {
        let round_trips = Arc::new(AtomicU64::new(0));
        let pems = &(servers.tls.read())
            .map_err(|why| GateError::Refused(format!("{servers} can't be used: {why}")))?;
        let kind = match &servers.topology {
            RedisTopology::Single => {
                let mut nodes = nodes(servers, pems, &round_trips)?;
                let Some(node) = nodes.pop() else {
                    return Err(GateError::Refused("redis.url is empty".to_owned()));
                };
                LinkKind::Single(node)
            }
            RedisTopology::Cluster => {
                let seeds = nodes(servers, pems, &round_trips)?;
                LinkKind::Cluster(Cluster::new(seeds, Arc::clone(&round_trips))?)
            }
            RedisTopology::Sentinel(sentinels) => {
                LinkKind::Sentinel(Sentinel::new(servers, sentinels, pems, &round_trips)?)
            }
        };
        Ok(Self::from_servers(servers, kind, round_trips))
    }

    /// Returns the servers it connects to, for messages.
    pub fn servers(&self) -> &RedisServers {
        &self.servers
    }

    /// Returns the command that calls scripts.
    pub fn scripts(&self) -> ScriptCommand {
        self.servers.scripts
    }

    /// Returns true if a proxy may refuse commands outside of scripts.
    pub fn is_behind_proxy(&self) -> bool {
        self.scripts() == ScriptCommand::Eval && !self.is_cluster()
    }

    /// Returns true if keys live on several nodes, so that one node's error affects only some
    /// requests.
    pub fn is_cluster(&self) -> bool {
        matches!(self.kind, LinkKind::Cluster(_))
    }

    /// Returns the minimum round-trip time, in a cluster that of the nearest primary, or `None` if
    /// it is not known for all of them yet.
    pub fn base(&self) -> Option<Duration> {
        match &self.kind {
            LinkKind::Single(node) => node.base(),
            LinkKind::Sentinel(sentinel) => sentinel.base(),
            LinkKind::Cluster(cluster) => cluster.base(),
            LinkKind::Store(stored) => stored.base(),
        }
    }

    /// Returns the number of round trips so far.
    pub fn round_trips(&self) -> u64 {
        self.round_trips.load(Ordering::Relaxed)
    }

    /// Makes one round trip to each node that has a key of `requests`, to all nodes at once. On one
    /// node the requests run in order. A request that a node redirects was not executed there, and
    /// is sent on. A request that may have been executed gets an error and is not repeated.
    ///
    /// The outer error means that no server can be reached.
    pub async fn send(&self, requests: Vec<Request<'_>>) -> Result<Answers, GateError> {
        if let LinkKind::Cluster(cluster) = &self.kind {
            return Box::pin(cluster.send(&requests)).await;
        }
        let parcel = Parcel::of(requests);
        // Boxed, since the compiler's analysis of callers' futures would be too deep.
        let sent = self.on(&self.only[0], parcel.pipeline()).boxed();
        Ok(parcel.unpack(sent.await?))
    }

    /// Returns all primaries. `anew` first renews the map of a cluster, unless it is recent.
    pub async fn shards(&self, anew: bool) -> Result<Shards, GateError> {
        match &self.kind {
            LinkKind::Cluster(cluster) => Box::pin(cluster.shards(anew)).await,
            LinkKind::Single(_) | LinkKind::Sentinel(_) | LinkKind::Store(_) => {
                Ok(Arc::clone(&self.only))
            }
        }
    }

    /// Makes the link look up the primaries again before their next use.
    pub fn doubt(&self) {
        if let LinkKind::Cluster(cluster) = &self.kind {
            cluster.doubt();
        }
    }

    /// Makes one round trip to `shard` only. A redirected request is not executed and gets an
    /// error.
    pub async fn send_to(
        &self,
        shard: &PrimaryLink,
        requests: Vec<Request<'_>>,
    ) -> Result<Answers, GateError> {
        let (LinkKind::Cluster(cluster), Some(node)) = (&self.kind, &shard.node) else {
            return self.send(requests).await;
        };
        let parcel = Parcel::of(requests);
        let answers = Box::pin(cluster.at(node, parcel.pipeline())).await?;
        let mut answers = parcel.unpack(answers);
        for answer in &mut answers {
            if answer.as_ref().is_ok_and(is_redirect) {
                *answer = Err(moving(node));
            }
        }
        Ok(answers)
    }

    /// Makes one round trip to `shard`.
    pub async fn on(
        &self,
        shard: &PrimaryLink,
        pipeline: &Pipeline,
    ) -> Result<Vec<Value>, GateError> {
        // Boxed, since the futures of the rarer variants would make every caller's future large and
        // deep.
        match (&self.kind, &shard.node) {
            (LinkKind::Single(node), _) => node.send(pipeline).await,
            (LinkKind::Sentinel(sentinel), _) => Box::pin(sentinel.send(pipeline)).await,
            (LinkKind::Store(stored), _) => stored.send(pipeline).await,
            (LinkKind::Cluster(cluster), Some(node)) => {
                let answers = Box::pin(cluster.at(node, pipeline)).await?;
                if answers.iter().any(is_redirect) {
                    return Err(moving(node));
                }
                Ok(answers)
            }
            (LinkKind::Cluster(_), None) => Err(GateError::Refused(format!(
                "{}: a cluster has several primaries",
                self.servers
            ))),
        }
    }

    /// Sends `command` to every primary. Returns each primary's name and answer.
    pub async fn on_primaries(&self, command: Cmd) -> Result<Vec<(String, Value)>, GateError> {
        let mut pipeline = Pipeline::with_capacity(1);
        pipeline.add_command(command);
        let shards = self.shards(false).await?;
        let sent = shards.iter().map(|shard| self.on(shard, &pipeline));
        let mut all = Vec::new();
        for (shard, answers) in shards.iter().zip(join_all(sent).await) {
            let name = match shard.name() {
                "" => self.servers.to_string(),
                name => name.to_owned(),
            };
            all.extend(answers?.into_iter().map(|value| (name.clone(), value)));
        }
        Ok(all)
    }
}

/// Returns true if a node does not have the slot, or no longer has it.
fn is_redirect(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if matches!(error.code(), "MOVED" | "ASK"))
}

/// Returns the error of a node that does not have the slot, or no longer has it.
fn moving(node: &Node) -> GateError {
    GateError::Unreachable(format!("{}: a slot is moving to another node", node.name()))
}

/// Creates a client for the server at `url`.
fn client(url: &SecretUrl, pems: &Pems) -> Result<Client, GateError> {
    let info = url
        .expose()
        .into_connection_info()
        .map(|info| info.set_tcp_settings(TcpSettings::default().set_nodelay(true)))
        .map_err(|_| {
            GateError::Refused(format!(
                "{url} is not a Redis URL; it must look like redis://user:password@host:6379/0"
            ))
        })?;
    // If only the sentinels or only the primary use TLS, the others need no certificates.
    let encrypted = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
    let client = match certificates(pems).filter(|_| encrypted) {
        Some(certificates) => Client::build_with_tls(info, certificates),
        None => Client::open(info),
    };
    client.map_err(|error| GateError::Refused(format!("{url} can't be used: {error}")))
}

/// Returns the certificates in `pems`, if it has any.
fn certificates(pems: &Pems) -> Option<TlsCertificates> {
    let client_tls = pems.identity.as_ref().map(|(cert, key)| ClientTlsConfig {
        client_cert: cert.clone(),
        client_key: key.clone(),
    });
    let root_cert = pems.ca.clone();
    (client_tls.is_some() || root_cert.is_some()).then_some(TlsCertificates {
        client_tls,
        root_cert,
    })
}

/// Creates a node for each URL.
fn nodes(
    servers: &RedisServers,
    pems: &Pems,
    round_trips: &Arc<AtomicU64>,
) -> Result<Vec<Node>, GateError> {
    let node = |url: &SecretUrl| {
        let client = client(url, pems)?;
        Ok(Node::new(client, url.to_string(), Arc::clone(round_trips)))
    };
    servers.urls.iter().map(node).collect()
}
