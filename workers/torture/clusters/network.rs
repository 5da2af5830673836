//! The network between the nodes of RabbitMQ's cluster, which can be cut so that nothing arrives
//! any more.
//!
//! Nodes ask an epmd for each other's port. Here each node asks an epmd of its own. It passes on
//! the answers of the real one, but replaces the port by that of a proxy between the two nodes. So
//! no privileges are needed, and connections to clients stay open.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as Listener};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kit::proxy::{Proxy, Transfer, Transfers};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Time after which a node takes a silent node for gone (net_ticktime and a quarter of it). With
/// RabbitMQ's default (60 s and a quarter of it), cuts would have to last longer.
pub const NOTICED: Duration = Duration::from_secs(10);
const TICKTIME: &str = "advanced {kernel, [{net_ticktime, 8}]}";
/// Prefix of the names of nodes that the script for private servers starts; rabbitmqctl's names
/// have another one.
const NODE: &[u8] = b"private";
/// Request of epmd's protocol for all names.
const NAMES: u8 = 110;
/// Request for a node's port.
const PORT_PLEASE2: u8 = 122;
/// Answer to [`PORT_PLEASE2`].
const PORT2: u8 = 119;
/// Difference between a node's AMQP port and its distribution port.
const DISTRIBUTION: u16 = 2;
const EPMD: &str = "epmd -address 127.0.0.1 -port \"$0\" </dev/null & cat; kill $!";
/// Maximum size of a node's request, in bytes.
const QUESTION: usize = 1024;

/// The lost direction between a node and the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostDirection {
    Both,
    /// The direction to the node.
    ToIt,
    /// The direction from the node.
    FromIt,
}

impl LostDirection {
    pub fn describe(self) -> &'static str {
        match self {
            Self::Both => "both ways",
            Self::ToIt => "what the others say to it",
            Self::FromIt => "what it says to the others",
        }
    }
}

#[derive(Default)]
struct NetworkState {
    /// Distribution ports of the nodes.
    nodes: Vec<u16>,
    cut: Option<(usize, LostDirection)>,
    /// Proxies, by the node that connects and the port that it connects to.
    proxies: HashMap<(usize, u16), Arc<Proxy>>,
}

impl NetworkState {
    /// Returns what passes from a node to the one at `port`.
    fn ways(&self, from: usize, port: u16) -> Transfers {
        let to = self.nodes.iter().position(|node| *node == port);
        let (Some((node, lost)), Some(to)) = (self.cut, to) else {
            return Transfers::OPEN;
        };
        if from == to || from != node && to != node {
            return Transfers::OPEN;
        }
        let way = |held| if held { Transfer::HELD } else { Transfer::OPEN };
        let (to_it, from_it) = (lost != LostDirection::FromIt, lost != LostDirection::ToIt);
        Transfers {
            there: way(if from == node { from_it } else { to_it }),
            back: way(if from == node { to_it } else { from_it }),
        }
    }

    fn apply(&self) {
        for ((from, port), proxy) in &self.proxies {
            proxy.set(self.ways(*from, *port));
        }
    }
}

/// The running network. Dropping it ends it.
pub struct Network {
    /// Address of each node's own epmd.
    fronts: [SocketAddr; 3],
    state: Arc<Mutex<NetworkState>>,
    tasks: Vec<JoinHandle<()>>,
    /// The real epmd. It ends when the pipe to it is closed.
    _pipe: Child,
    /// Its port.
    #[cfg(test)]
    epmd: u16,
}

impl Network {
    /// Starts the network for three nodes.
    ///
    /// # Errors
    /// Returns an error if no port is free or epmd can't be started.
    pub async fn start() -> io::Result<Self> {
        let port = Listener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        // The pipe is closed however this process ends.
        let pipe = Command::new("sh")
            .args(["-c", EPMD, &port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let epmd_at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let state = Arc::<Mutex<NetworkState>>::default();
        let (mut fronts, mut tasks) = ([epmd_at; 3], Vec::new());
        for (node, front) in fronts.iter_mut().enumerate() {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            *front = listener.local_addr()?;
            tasks.push(tokio::spawn(serve(
                listener,
                node,
                epmd_at,
                Arc::clone(&state),
            )));
        }
        Ok(Self {
            fronts,
            state,
            tasks,
            _pipe: pipe,
            #[cfg(test)]
            epmd: port,
        })
    }

    /// Returns the settings that each node is started with.
    pub fn settings(&self) -> [Vec<String>; 3] {
        (self.fronts).map(|front| vec![format!("epmd {}", front.port()), TICKTIME.to_owned()])
    }

    /// Sets the AMQP ports of the nodes.
    pub fn between(&self, nodes: [u16; 3]) {
        self.change(|state| state.nodes = nodes.map(|port| port + DISTRIBUTION).to_vec());
    }

    /// Holds back all traffic between `node` and the others, or one direction of it. Connections
    /// stay open.
    pub fn cut(&self, node: usize, lost: LostDirection) {
        self.change(|state| state.cut = Some((node, lost)));
    }

    /// Delivers the held bytes, as if their packets were retransmitted.
    pub fn heal(&self) {
        self.change(|state| state.cut = None);
    }

    fn change(&self, change: impl FnOnce(&mut NetworkState)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        state.apply();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Serves as the epmd of one node.
async fn serve(
    listener: TcpListener,
    node: usize,
    epmd: SocketAddr,
    state: Arc<Mutex<NetworkState>>,
) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Probably no file descriptor is free.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            // The node asks again after an error.
            let _ = answer(client, node, epmd, state).await;
        });
    }
}

async fn answer(
    mut client: TcpStream,
    node: usize,
    epmd: SocketAddr,
    state: Arc<Mutex<NetworkState>>,
) -> io::Result<()> {
    let length = client.read_u16().await?;
    let mut question = vec![0; usize::from(length)];
    if question.is_empty() || question.len() > QUESTION {
        return Err(io::ErrorKind::InvalidData.into());
    }
    client.read_exact(&mut question).await?;
    let mut epmd = TcpStream::connect(epmd).await?;
    epmd.write_u16(length).await?;
    epmd.write_all(&question).await?;
    let mut reply = Vec::new();
    match question[0] {
        PORT_PLEASE2 if question[1..].starts_with(NODE) => {
            epmd.read_to_end(&mut reply).await?;
            if let [PORT2, 0, high, low, ..] = reply[..] {
                let port = through(&state, node, u16::from_be_bytes([high, low])).await?;
                reply[2..4].copy_from_slice(&port.to_be_bytes());
            }
            return client.write_all(&reply).await;
        }
        NAMES => {
            epmd.read_to_end(&mut reply).await?;
            // The client rejects an answer that begins with another port.
            if let Some(port) = reply.get_mut(..4) {
                port.copy_from_slice(&u32::from(client.local_addr()?.port()).to_be_bytes());
            }
            return client.write_all(&reply).await;
        }
        _ => {}
    }
    // epmd knows a node while this connection lasts.
    copy_bidirectional(&mut client, &mut epmd).await.map(drop)
}

/// Returns the port of the proxy between a node and the one at `port`.
async fn through(state: &Mutex<NetworkState>, from: usize, port: u16) -> io::Result<u16> {
    let new = Proxy::start((Ipv4Addr::LOCALHOST, port).into(), Transfers::OPEN, 0);
    let new = Arc::new(new.await);
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    let ways = state.ways(from, port);
    let proxy = state.proxies.entry((from, port)).or_insert(new);
    proxy.set(ways);
    Ok(proxy.door.address.port())
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// Registers a node with its epmd until the returned stream is dropped.
    async fn register(front: SocketAddr, name: &str, port: u16) -> TcpStream {
        let mut question = vec![120];
        question.extend(port.to_be_bytes());
        question.extend([77, 0, 0, 6, 0, 5]);
        question.extend((name.len() as u16).to_be_bytes());
        question.extend(name.as_bytes());
        question.extend([0, 0]);
        let mut reply = [0; 2];
        let mut stream = ask(front, &question).await;
        stream.read_exact(&mut reply).await.expect("an answer");
        assert_eq!(reply[1], 0, "registered");
        stream
    }

    async fn ask(front: SocketAddr, question: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(front).await.expect("a connection");
        let length = question.len() as u16;
        stream.write_u16(length).await.expect("sent");
        stream.write_all(question).await.expect("sent");
        stream
    }

    /// Returns a node's port as another node's epmd reports it.
    async fn port_of(front: SocketAddr, name: &str) -> u16 {
        let question = [&[PORT_PLEASE2], name.as_bytes()].concat();
        let mut reply = Vec::new();
        let mut stream = ask(front, &question).await;
        stream.read_to_end(&mut reply).await.expect("an answer");
        assert_eq!(reply[..2], [PORT2, 0], "{reply:?}");
        u16::from_be_bytes([reply[2], reply[3]])
    }

    #[tokio::test]
    async fn nodes_connect_through_proxies_that_can_be_cut() {
        const HELD: Duration = Duration::from_millis(50);
        const PATIENCE: Duration = Duration::from_secs(60);
        let network = Network::start().await.expect("a network");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, network.epmd))
            .await
            .is_err()
        {
            sleep(Duration::from_millis(20)).await;
        }
        let _one = register(network.fronts[1], "private1", port).await;
        let _tool = register(network.fronts[1], "rabbitmqcli", port).await;
        assert_eq!(port_of(network.fronts[0], "rabbitmqcli").await, port);
        let way = port_of(network.fronts[0], "private1").await;
        assert_ne!(way, port);
        assert_eq!(way, port_of(network.fronts[0], "private1").await);
        assert_ne!(way, port_of(network.fronts[2], "private1").await);

        network.between([1, port - DISTRIBUTION, 2]);
        let there = TcpStream::connect((Ipv4Addr::LOCALHOST, way)).await;
        let mut there = there.expect("a connection");
        let (mut back, _) = listener.accept().await.expect("a connection");
        for (lost, arrives) in [
            (LostDirection::Both, [false, false]),
            (LostDirection::ToIt, [true, false]),
            (LostDirection::FromIt, [false, true]),
        ] {
            network.cut(0, lost);
            there.write_u8(1).await.expect("sent");
            back.write_u8(2).await.expect("sent");
            let within = arrives.map(|arrives| if arrives { PATIENCE } else { HELD });
            let early = [
                timeout(within[0], back.read_u8()).await.is_ok(),
                timeout(within[1], there.read_u8()).await.is_ok(),
            ];
            assert_eq!(early, arrives, "{lost:?}");
            network.heal();
            let (late, early) = (back.read_u8(), there.read_u8());
            match arrives {
                [false, false] => drop((late.await.expect("late"), early.await.expect("late"))),
                [true, false] => drop(early.await.expect("late")),
                _ => drop(late.await.expect("late")),
            }
        }
        network.cut(2, LostDirection::Both);
        there.write_u8(3).await.expect("sent");
        assert_eq!(back.read_u8().await.expect("it is between others"), 3);
    }
}
