//! The nodes of a Redis Cluster. Each request goes to the primary that has its slot.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::cluster_routing::Slot;
use ::redis::{Client, ConnectionAddr, ConnectionInfo, Pipeline, ServerError, Value};
use futures_util::future::{join_all, select_ok};
use tokio::time::{Instant, timeout};

use super::node::{Node, TIMEOUT_IN_ALL};
use super::parcel::Parcel;
use super::slots::{self, Address, Range};
use super::{Answers, PrimaryLink, Request, Shards};
use crate::GateError;
use crate::fault::Fault;
use rules::slots::Slots;

/// Maximum number of times a request is sent: twice more if the slot has just moved, and once for a
/// slot that is moving.
const HOPS: usize = 4;
/// Maximum number of known nodes asked for the slot map at once, besides the URLs of the
/// configuration. The first answer counts, unless it names a primary that failed.
const ASKED: usize = 5;
/// How long a renewal waits for a better map if the first one names a failed primary. A former
/// primary that was cut off from the other nodes names itself for as long as it runs. After a wait
/// in vain, the next one is [`SILENCE`] later.
const BETTER: Duration = Duration::from_millis(100);
/// How long a map that nothing contradicts serves a caller that wants it anew. Workers look every
/// second or two, for several purposes.
const RECENT: Duration = Duration::from_secs(1);
/// How long one node is asked for the map before all are.
const ALONE: Duration = Duration::from_millis(500);
/// How long a node that timed out is not contacted. Its tenants get an error at once, and tenants
/// of other nodes don't wait with them.
const SILENCE: Duration = Duration::from_secs(5);

/// The connections to all nodes, each created when first needed.
pub struct Cluster {
    seeds: Vec<Arc<Node>>,
    map: Mutex<Map>,
    /// Held while the map is renewed, so that one caller asks on behalf of all.
    renewing: tokio::sync::Mutex<()>,
    round_trips: Arc<AtomicU64>,
}

/// The last known slot map.
#[derive(Default)]
struct Map {
    nodes: HashMap<Address, Arc<Node>>,
    slots: HashMap<Slot, Arc<Node>>,
    /// The same map by primary, as of the last renewal.
    shards: Shards,
    /// Number of renewals.
    version: u64,
    /// When it was last renewed. `None` means that there is no map yet.
    renewed: Option<Instant>,
    /// Whether an answer contradicted the map, so that it must be renewed before the next use.
    stale: bool,
    /// The names of the primaries that failed since the last renewal.
    failed: HashSet<String>,
    /// When a renewal last waited in vain for a map without them.
    awaited: Option<Instant>,
}

/// A request without an answer yet.
struct OpenRequest {
    index: usize,
    slot: Slot,
    /// The node it was redirected to, and whether for this request only (`ASK`).
    sent_on: Option<(Arc<Node>, bool)>,
}

impl OpenRequest {
    /// Returns all `requests`, which were not sent yet.
    fn all(requests: &[Request<'_>]) -> Vec<Self> {
        requests
            .iter()
            .enumerate()
            .map(|(index, request)| Self {
                index,
                slot: Slot::for_key(request.key),
                sent_on: None,
            })
            .collect()
    }
}

/// The requests for one node in one round trip.
struct NodeParcel {
    node: Arc<Node>,
    parcel: Parcel,
    requests: Vec<OpenRequest>,
}

impl NodeParcel {
    /// Sends the parcel. Returns it with the answer to each request.
    async fn send(self) -> (Self, Result<Answers, GateError>) {
        let answers = ask(&self.node, self.parcel.pipeline()).await;
        let answers = answers.map(|answers| self.parcel.unpack(answers));
        (self, answers)
    }
}

impl Cluster {
    pub fn new(seeds: Vec<Node>, round_trips: Arc<AtomicU64>) -> Result<Self, GateError> {
        if seeds.is_empty() {
            return Err(GateError::Refused("redis.url is empty".to_owned()));
        }
        Ok(Self {
            seeds: seeds.into_iter().map(Arc::new).collect(),
            map: Mutex::default(),
            renewing: tokio::sync::Mutex::default(),
            round_trips,
        })
    }

    /// Sends as [`super::Link::send`] does.
    pub async fn send(&self, requests: &[Request<'_>]) -> Result<Answers, GateError> {
        self.fresh_map().await?;
        let mut open = OpenRequest::all(requests);
        let unsent = "its slot moves between nodes faster than requests can follow";
        let mut answers: Answers = requests
            .iter()
            .map(|request| Err(GateError::Unreachable(format!("{}: {unsent}", request.key))))
            .collect();
        let mut reached = false;
        for _ in 0..HOPS {
            if open.is_empty() {
                break;
            }
            let parcels = self.pack(requests, std::mem::take(&mut open), &mut answers);
            let sent = join_all(parcels.into_iter().map(NodeParcel::send)).await;
            for (parcel, sent) in sent {
                match sent {
                    Ok(sent) => {
                        reached = true;
                        open.extend(self.take_answers(parcel, sent, &mut answers));
                    }
                    Err(why) => {
                        self.doubt_primary(&parcel.node);
                        for request in parcel.requests {
                            answers[request.index] = Err(why.clone());
                        }
                    }
                }
            }
        }
        if !reached && !requests.is_empty() {
            // Finds out whether only these nodes are unreachable, or all.
            self.fresh_map().await?;
        }
        Ok(answers)
    }

    /// Packs the open requests by node. A request whose slot no node has gets that answer.
    fn pack(
        &self,
        requests: &[Request<'_>],
        open: Vec<OpenRequest>,
        answers: &mut Answers,
    ) -> Vec<NodeParcel> {
        let mut parcels: Vec<NodeParcel> = Vec::new();
        for request in open {
            let Some((node, asking)) = self.route_of(&request) else {
                let key = requests[request.index].key;
                answers[request.index] = Err(GateError::Unreachable(format!(
                    "no node has the slot of {key}"
                )));
                self.map().stale = true;
                continue;
            };
            let at = parcels
                .iter()
                .position(|known| Arc::ptr_eq(&known.node, &node));
            let at = at.unwrap_or_else(|| {
                parcels.push(NodeParcel {
                    node,
                    parcel: Parcel::default(),
                    requests: Vec::new(),
                });
                parcels.len() - 1
            });
            let Request { command, load, .. } = &requests[request.index];
            parcels[at].parcel.add(*load, asking, command.clone());
            parcels[at].requests.push(request);
        }
        parcels
    }

    /// Stores the final answers of a node. Returns the requests that it redirected.
    fn take_answers(
        &self,
        parcel: NodeParcel,
        sent: Answers,
        answers: &mut Answers,
    ) -> Vec<OpenRequest> {
        let mut redirected = Vec::new();
        for (mut request, answer) in parcel.requests.into_iter().zip(sent) {
            match self.sent_on(&parcel.node, request.slot, &answer) {
                Some(kind) => {
                    request.sent_on = Some(kind);
                    redirected.push(request);
                }
                None => answers[request.index] = answer,
            }
        }
        redirected
    }

    /// Returns all primaries and their slots. `anew` renews the map first, unless it is recent.
    pub async fn shards(&self, anew: bool) -> Result<Shards, GateError> {
        self.map_of(if anew { RECENT } else { Duration::MAX })
            .await?;
        Ok(Arc::clone(&self.map().shards))
    }

    /// Marks the map as stale, so that it is renewed before the next use.
    pub fn doubt(&self) {
        self.map().stale = true;
    }

    /// Marks the map as stale because `node` failed as a primary.
    fn doubt_primary(&self, node: &Node) {
        let mut map = self.map();
        map.stale = true;
        map.failed.insert(node.name().to_owned());
    }

    /// Sends `pipeline` to `node` only.
    pub async fn at(&self, node: &Node, pipeline: &Pipeline) -> Result<Vec<Value>, GateError> {
        let answers = ask(node, pipeline).await;
        let moved = |answer: &Value| matches!(answer, Value::ServerError(error) if matches!(error.code(), "MOVED" | "ASK"));
        match &answers {
            Ok(answers) if Fault::among(answers) != Fault::Address => {
                if answers.iter().any(moved) {
                    self.doubt();
                }
            }
            _ => self.doubt_primary(node),
        }
        answers
    }

    /// Returns the minimum round-trip time, as [`super::Link::base`] does.
    pub fn base(&self) -> Option<Duration> {
        let shards = Arc::clone(&self.map().shards);
        let bases = shards.iter().map(|shard| shard.node.as_ref()?.base());
        bases.collect::<Option<Vec<_>>>()?.into_iter().min()
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the node for a request, and whether it was redirected there for this request only.
    fn route_of(&self, request: &OpenRequest) -> Option<(Arc<Node>, bool)> {
        match &request.sent_on {
            Some(kind) => Some(kind.clone()),
            None => Some((self.map().slots.get(&request.slot).cloned()?, false)),
        }
    }

    /// Returns the node that `answer` redirects a request to, or `None` if the answer is final.
    fn sent_on(
        &self,
        node: &Node,
        slot: Slot,
        answer: &Result<Value, GateError>,
    ) -> Option<(Arc<Node>, bool)> {
        let Ok(Value::ServerError(error)) = answer else {
            return None;
        };
        match error.code() {
            "MOVED" => {
                let target = self.target(node, error);
                let mut map = self.map();
                map.stale = true;
                let target = target?;
                let target = self.node(&mut map, target)?;
                map.slots.insert(slot, Arc::clone(&target));
                Some((target, false))
            }
            "ASK" => {
                let target = self.target(node, error)?;
                let target = self.node(&mut self.map(), target)?;
                Some((target, true))
            }
            _ => {
                if Fault::of(error) == Fault::Address {
                    self.doubt_primary(node);
                }
                None
            }
        }
    }

    /// Returns the address in a `MOVED` or `ASK`.
    fn target(&self, node: &Node, error: &ServerError) -> Option<Address> {
        slots::redirect(error.details()?, &slots::host(node.info()))
    }

    /// Returns the node at `address`, and creates it if it is new.
    fn node(&self, map: &mut Map, address: Address) -> Option<Arc<Node>> {
        if let Some(known) = map.nodes.get(&address) {
            return Some(Arc::clone(known));
        }
        let seed = self.seeds.first()?;
        let info = at(seed.info(), &address);
        let node = Node::new(
            Client::open(info).ok()?,
            address.to_string(),
            Arc::clone(&self.round_trips),
        );
        let node = Arc::new(node);
        map.nodes.insert(address, Arc::clone(&node));
        Some(node)
    }

    /// Renews the map if there is none or it is stale.
    async fn fresh_map(&self) -> Result<(), GateError> {
        self.map_of(Duration::MAX).await
    }

    /// Renews the map if there is none, or it is stale or older than `max_age`. Callers that wait
    /// for another's renewal fail in the same time.
    async fn map_of(&self, max_age: Duration) -> Result<(), GateError> {
        match timeout(TIMEOUT_IN_ALL, self.renew_map(max_age)).await {
            Ok(renewed) => renewed,
            Err(_) => Err(GateError::Unreachable(format!(
                "no node of the cluster answered within {TIMEOUT_IN_ALL:?}"
            ))),
        }
    }

    async fn renew_map(&self, max_age: Duration) -> Result<(), GateError> {
        let (version, doubted) = {
            let map = self.map();
            let known = map.renewed.filter(|_| !map.stale);
            if known.is_some_and(|at| at.elapsed() <= max_age) {
                return Ok(());
            }
            (map.version, known.is_none())
        };
        let _one = self.renewing.lock().await;
        if self.map().version != version {
            return Ok(());
        }
        let ranges = self.ask_for_map(doubted).await?;
        let mut map = self.map();
        let old = std::mem::take(&mut map.nodes);
        let known: HashMap<Address, Arc<Node>> = old;
        map.slots.clear();
        let mut shards: Vec<PrimaryLink> = Vec::new();
        for range in ranges {
            if let Some(node) = known.get(&range.primary) {
                map.nodes.insert(range.primary.clone(), Arc::clone(node));
            }
            let Some(node) = self.node(&mut map, range.primary) else {
                continue;
            };
            let same = |shard: &&mut PrimaryLink| {
                (shard.node.as_ref()).is_some_and(|known| Arc::ptr_eq(known, &node))
            };
            match shards.iter_mut().find(same) {
                Some(shard) => shard.slots.add(range.first, range.last),
                None => shards.push(PrimaryLink {
                    node: Some(Arc::clone(&node)),
                    slots: Slots::range(range.first, range.last),
                }),
            }
            for slot in (range.first..=range.last).filter_map(Slot::new) {
                map.slots.insert(slot, Arc::clone(&node));
            }
        }
        shards.sort_by(|one, two| one.name().cmp(two.name()));
        if !same_shards(&map.shards, &shards) {
            map.shards = Arc::new(shards);
        }
        map.version += 1;
        map.renewed = Some(Instant::now());
        map.stale = false;
        map.failed.clear();
        Ok(())
    }

    /// Asks one node for the map, or all if it is `doubted` or that node does not answer. Prefers a
    /// map without failed primaries.
    async fn ask_for_map(&self, doubted: bool) -> Result<Vec<Range>, GateError> {
        let mut pipeline = Pipeline::with_capacity(1);
        pipeline.cmd("CLUSTER").arg("SLOTS");
        let ask = |node: Arc<Node>| {
            let pipeline = &pipeline;
            Box::pin(async move {
                let answers = node.send(pipeline).await?;
                slots::parse(&answers, &slots::host(node.info()), node.name())
            })
        };
        let nodes = self.candidates();
        if let Some(first) = nodes.first().filter(|_| !doubted)
            && let Ok(Ok(ranges)) = timeout(ALONE, ask(Arc::clone(first))).await
        {
            return Ok(ranges);
        }
        let (first, others) = select_ok(nodes.into_iter().map(ask)).await?;
        let awaited = self.map().awaited;
        let may_wait = awaited.is_none_or(|at| at.elapsed() >= SILENCE);
        if others.is_empty() || !may_wait || !self.names_failed(&first) {
            return Ok(first);
        }
        let better = others.into_iter().map(|answer| {
            Box::pin(async move {
                match answer.await {
                    Ok(ranges) if !self.names_failed(&ranges) => Ok(ranges),
                    _ => Err(()),
                }
            })
        });
        if let Ok(Ok((better, _))) = timeout(BETTER, select_ok(better)).await {
            return Ok(better);
        }
        self.map().awaited = Some(Instant::now());
        Ok(first)
    }

    /// Returns true if one of the primaries in `ranges` failed since the last renewal.
    fn names_failed(&self, ranges: &[Range]) -> bool {
        let failed = &self.map().failed;
        (ranges.iter()).any(|range| failed.contains(&range.primary.to_string()))
    }

    /// Returns the nodes to ask for the map: known nodes whose last answer arrived, and the seeds.
    fn candidates(&self) -> Vec<Arc<Node>> {
        let mut nodes: Vec<Arc<Node>> = self.map().nodes.values().cloned().collect();
        nodes.retain(|node| node.silent().is_none());
        nodes.truncate(ASKED);
        nodes.extend(self.seeds.iter().cloned());
        nodes
    }
}

/// Makes one round trip to `node`, unless it timed out lately.
async fn ask(node: &Node, pipeline: &Pipeline) -> Result<Vec<Value>, GateError> {
    match node.silent() {
        Some(since) if since < SILENCE => Err(GateError::Unreachable(format!(
            "{}: it did not answer and is not asked again for a moment",
            node.name()
        ))),
        _ => node.send(pipeline).await,
    }
}

/// Returns true if both lists have the same nodes with the same slots.
fn same_shards(one: &[PrimaryLink], two: &[PrimaryLink]) -> bool {
    let same = |(one, two): (&PrimaryLink, &PrimaryLink)| {
        let nodes = one.node.as_ref().zip(two.node.as_ref());
        nodes.is_some_and(|(one, two)| Arc::ptr_eq(one, two)) && one.slots == two.slots
    };
    one.len() == two.len() && one.iter().zip(two).all(same)
}

/// Returns `info` for the node at `address`, with the same login and TLS.
fn at(info: &ConnectionInfo, address: &Address) -> ConnectionInfo {
    let (host, port) = (address.host.clone(), address.port);
    let addr = match info.addr() {
        ConnectionAddr::TcpTls {
            insecure,
            tls_params,
            ..
        } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.clone().set_addr(addr)
}

#[cfg(test)]
mod tests {
    use redis::cmd;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Answers each command of a connection with `OK`, and `CLUSTER SLOTS` with the primary at
    /// `port` after `delay`.
    async fn serve(mut stream: TcpStream, port: u16, delay: Duration) -> Option<()> {
        let mut buffer = [0; 4096];
        loop {
            let length = stream.read(&mut buffer).await.ok().filter(|n| *n > 0)?;
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            let mut answers = String::new();
            for command in text.split('*').skip(1) {
                if command.contains("SLOTS") {
                    tokio::time::sleep(delay).await;
                    let primary = format!("*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$2\r\nid\r\n");
                    answers += &format!("*1\r\n*3\r\n:0\r\n:16383\r\n{primary}");
                } else {
                    answers += "+OK\r\n";
                }
            }
            stream.write_all(answers.as_bytes()).await.ok()?;
        }
    }

    async fn listen() -> (TcpListener, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        (listener, port)
    }

    /// Returns a cluster whose primary is closed. One node still names it, and the promoted primary
    /// names itself after `delay`.
    async fn cluster(delay: Duration) -> Cluster {
        let (closed, old) = listen().await;
        drop(closed);
        let promoted = listen().await;
        let new = promoted.1;
        let nodes = [
            (listen().await, old, Duration::ZERO),
            (promoted, new, delay),
        ];
        let round_trips = Arc::default();
        let mut seeds = Vec::new();
        for ((listener, port), primary, delay) in nodes {
            let client = Client::open(format!("redis://127.0.0.1:{port}")).expect("a url");
            seeds.push(Node::new(
                client,
                port.to_string(),
                Arc::clone(&round_trips),
            ));
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(stream, primary, delay));
                }
            });
        }
        Cluster::new(seeds, round_trips).expect("seeds")
    }

    async fn get(cluster: &Cluster) -> Result<Value, GateError> {
        let mut command = cmd("GET");
        command.arg("key");
        let request = Request {
            key: "key",
            command,
            load: None,
        };
        let mut answers = cluster.send(&[request]).await.expect("a map");
        answers.remove(0)
    }

    #[tokio::test]
    async fn a_node_that_names_a_failed_primary_does_not_hide_the_promoted_one() {
        let cluster = cluster(Duration::from_millis(20)).await;
        // If the machine stalls for this long, the first question finds the promoted primary.
        let answer = match get(&cluster).await {
            Err(_closed) => get(&cluster).await,
            answer => answer,
        };
        assert_eq!(answer.expect("it answers"), Value::Okay);
    }

    #[tokio::test]
    async fn other_tenants_wait_once_for_a_map_without_a_failed_primary() {
        let cluster = cluster(Duration::from_secs(3600)).await;
        get(&cluster).await.expect_err("the primary is closed");
        let awaited = cluster.map().awaited;
        assert!(awaited.is_some());
        for _ in 0..3 {
            get(&cluster).await.expect_err("the primary is closed");
        }
        assert_eq!(cluster.map().awaited, awaited);
    }
}
