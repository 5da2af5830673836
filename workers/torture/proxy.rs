//! A TCP proxy that can hold what goes through it, in both directions or in one, or be slow.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::moments::Mark;

/// Pieces of one direction of a connection that are on their way at once; each has 64 KiB at most.
const ON_THE_WAY: usize = 1024;

/// Connections that wait to be taken.
const BACKLOG: u32 = 1024;

/// What happens to bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Way {
    /// They pass.
    #[default]
    Open,
    /// They are held, and pass when it opens again.
    Held,
    /// They pass after this time, as on a long way.
    Slow(Duration),
}

/// Both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ways {
    /// From the worker to the server.
    pub there: Way,
    /// From the server to the worker.
    pub back: Way,
}

impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let late = |way| match way {
            Way::Slow(by) => by.as_millis(),
            Way::Open | Way::Held => 0,
        };
        write!(
            f,
            "a round trip of {} ms",
            late(self.there) + late(self.back)
        )
    }
}

/// One direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the worker to the server.
    There,
    /// From the server to the worker.
    Back,
}

/// Waits for something to show; from then on, and with the bytes in which it shows, other ways are in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trap {
    pub direction: Direction,
    pub mark: Mark,
    pub then: Ways,
}

/// What connections are told.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    ways: Ways,
    /// How often all were cut.
    cuts: u32,
    /// No new ones are taken.
    refuses: bool,
    /// Until it has caught something.
    trap: Option<Trap>,
}

impl Told {
    fn way(&self, direction: Direction) -> Way {
        match direction {
            Direction::There => self.ways.there,
            Direction::Back => self.ways.back,
        }
    }
}

/// The running proxy; dropped, it ends, and its connections with it.
pub struct Proxy {
    addresses: Vec<SocketAddr>,
    told: Arc<watch::Sender<Told>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Proxy {
    /// Starts one in front of `servers`, on a free port of 127.0.0.1 for each.
    ///
    /// # Errors
    /// There is no port.
    pub async fn start(servers: &[SocketAddr]) -> io::Result<Self> {
        let told = Arc::new(watch::Sender::new(Told::default()));
        let (mut addresses, mut tasks) = (Vec::new(), Vec::new());
        for server in servers {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            addresses.push(listener.local_addr()?);
            let accepting = accept(listener, *server, Arc::downgrade(&told));
            tasks.push(tokio::spawn(accepting));
        }
        Ok(Self {
            addresses,
            told,
            tasks,
        })
    }

    /// Where it listens, in the order of the servers.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What happens to bytes from now on, of connections old and new.
    pub fn set(&self, ways: Ways) {
        self.told.send_modify(|told| told.ways = ways);
    }

    /// Sets a trap and waits until it has caught something; whether it did within `patience`.
    pub async fn catch(&self, trap: Trap, patience: Duration) -> bool {
        let mut seen = self.told.subscribe();
        self.told.send_modify(|told| told.trap = Some(trap));
        // What it waits for is borrowed, which must end before anything is told.
        let caught = (timeout(patience, seen.wait_for(|told| told.trap.is_none())).await).is_ok();
        self.told.send_modify(|told| told.trap = None);
        caught
    }

    /// Refuses connections from now on, or takes them again. Those that are there end.
    pub fn refuse(&self, refuses: bool) {
        self.told.send_modify(|told| {
            told.refuses = refuses;
            told.cuts += 1;
        });
    }

    /// Ends all connections, and what they hold with them.
    pub fn cut(&self) {
        self.told.send_modify(|told| told.cuts += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Ends with the proxy, whose word its connections await.
async fn accept(mut listener: TcpListener, server: SocketAddr, told: Weak<watch::Sender<Told>>) {
    let Some(mut seen) = told.upgrade().map(|told| told.subscribe()) else {
        return;
    };
    loop {
        tokio::select! {
            () = take(&listener, server, &told) => {}
            refuses = seen.wait_for(|told| told.refuses) => if refuses.is_err() {
                return;
            }
        }
        match refuse(listener, &mut seen).await {
            Ok(again) => listener = again,
            Err(error) => {
                eprintln!("a proxy's port is lost: {error}");
                return;
            }
        }
    }
}

/// Takes connections, for ever.
async fn take(listener: &TcpListener, server: SocketAddr, told: &Weak<watch::Sender<Told>>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // No descriptor is free, say.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let told = told.clone();
        tokio::spawn(async move {
            // A server that is away is felt as a connection that ends at once.
            if let Ok(server) = TcpStream::connect(server).await {
                carry(client, server, told).await;
            }
        });
    }
}

/// Connections are refused for as long as that is told; then the port listens again. Nobody else gets it meanwhile.
async fn refuse(
    listener: TcpListener,
    seen: &mut watch::Receiver<Told>,
) -> io::Result<TcpListener> {
    let address = listener.local_addr()?;
    drop(listener);
    let bound = TcpSocket::new_v4()?;
    bound.set_reuseaddr(true)?;
    bound.bind(address)?;
    // It fails when the proxy is gone: then nobody calls.
    let _ = seen.wait_for(|told| !told.refuses).await;
    bound.listen(BACKLOG)
}

/// Until either side ends it, it is cut, or the proxy is gone.
async fn carry(client: TcpStream, server: TcpStream, told: Weak<watch::Sender<Told>>) {
    // Without it small messages wait, which costs time and nothing else.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let Some(mut seen) = told.upgrade().map(|told| told.subscribe()) else {
        return;
    };
    let cuts = seen.borrow().cuts;
    tokio::select! {
        _ = pump(from_client, to_server, told.clone(), Direction::There) => {}
        _ = pump(from_server, to_client, told, Direction::Back) => {}
        _ = seen.wait_for(|told| told.cuts != cuts) => {}
    }
}

/// Until its end has passed, or it can't be passed on. An end is held, and late, as bytes are.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    told: Weak<watch::Sender<Told>>,
    direction: Direction,
) -> Option<()> {
    let mut seen = told.upgrade()?.subscribe();
    let way = seen.clone();
    let (sender, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(ON_THE_WAY);
    let read = async move {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = from.read(&mut buffer).await.unwrap_or(0);
            let bytes = &buffer[..read];
            told.upgrade()?.send_if_modified(|told| {
                let caught = (told.trap)
                    .filter(|trap| trap.direction == direction && trap.mark.is_in(bytes));
                if let Some(trap) = caught {
                    (told.ways, told.trap) = (trap.then, None);
                }
                caught.is_some()
            });
            let late = match way.borrow().way(direction) {
                Way::Slow(by) => by,
                Way::Open | Way::Held => Duration::ZERO,
            };
            sender
                .send((Instant::now() + late, bytes.to_vec()))
                .await
                .ok()?;
            if read == 0 {
                // What is on its way passes before the end does.
                return std::future::pending().await;
            }
        }
    };
    let write = async move {
        loop {
            let (at, bytes) = due.recv().await?;
            sleep_until(at).await;
            let is_open = |told: &Told| told.way(direction) != Way::Held;
            seen.wait_for(is_open).await.ok()?;
            if bytes.is_empty() {
                return None;
            }
            to.write_all(&bytes).await.ok()?;
        }
    };
    tokio::select! {
        ended = read => ended,
        ended = write => ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moments::{Moment, To};

    const HELD: Duration = Duration::from_millis(50);

    /// A server that sends back what comes, behind a proxy, and a connection to it.
    async fn bed() -> (Proxy, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a port");
        let server = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        let proxy = Proxy::start(&[server]).await.expect("a proxy");
        let client = TcpStream::connect(proxy.addresses()[0])
            .await
            .expect("a connection");
        (proxy, client)
    }

    async fn echo(client: &mut TcpStream) -> u8 {
        client.read_u8().await.expect("it comes back")
    }

    #[tokio::test]
    async fn what_is_held_passes_later_in_each_direction() {
        let held = [
            Ways {
                there: Way::Held,
                back: Way::Open,
            },
            Ways {
                there: Way::Open,
                back: Way::Held,
            },
        ];
        for ways in held {
            let (proxy, mut client) = bed().await;
            client.write_u8(1).await.expect("sent");
            assert_eq!(echo(&mut client).await, 1);
            proxy.set(ways);
            client.write_u8(2).await.expect("sent");
            assert!(timeout(HELD, echo(&mut client)).await.is_err(), "{ways:?}");
            proxy.set(Ways::default());
            assert_eq!(echo(&mut client).await, 2);
        }
    }

    #[tokio::test]
    async fn what_is_held_is_lost_when_it_is_cut_and_the_next_connection_passes() {
        let (proxy, mut client) = bed().await;
        // Only a connection that is there can be cut.
        client.write_u8(0).await.expect("sent");
        assert_eq!(echo(&mut client).await, 0);
        let (there, back) = (Way::Held, Way::Held);
        proxy.set(Ways { there, back });
        client.write_u8(1).await.expect("sent");
        proxy.cut();
        assert!(client.read_u8().await.is_err());
        proxy.set(Ways::default());
        let mut next = TcpStream::connect(proxy.addresses()[0])
            .await
            .expect("a connection");
        next.write_u8(2).await.expect("sent");
        assert_eq!(echo(&mut next).await, 2);
    }

    #[tokio::test]
    async fn who_refuses_takes_connections_again_at_the_same_port() {
        let (proxy, mut client) = bed().await;
        client.write_u8(1).await.expect("sent");
        assert_eq!(echo(&mut client).await, 1);
        proxy.refuse(true);
        assert!(client.read_u8().await.is_err(), "it was cut");
        let refused = async || {
            let connected = TcpStream::connect(proxy.addresses()[0]).await;
            connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        };
        while !refused().await {
            tokio::task::yield_now().await;
        }
        proxy.refuse(false);
        while refused().await {
            tokio::task::yield_now().await;
        }
        let mut next = TcpStream::connect(proxy.addresses()[0])
            .await
            .expect("it listens");
        next.write_u8(2).await.expect("sent");
        assert_eq!(echo(&mut next).await, 2);
    }

    #[tokio::test]
    async fn what_is_late_is_late_together_and_in_order() {
        let (proxy, mut client) = bed().await;
        let (there, back) = (Way::Slow(HELD), Way::Open);
        proxy.set(Ways { there, back });
        let began = Instant::now();
        for byte in 0..40 {
            client.write_u8(byte).await.expect("sent");
            tokio::task::yield_now().await;
        }
        let mut all = [0; 40];
        client.read_exact(&mut all).await.expect("all of it");
        assert!(all.iter().copied().eq(0..40), "{all:?}");
        assert!(began.elapsed() >= HELD);
    }

    #[tokio::test]
    async fn an_end_is_held_too() {
        let (proxy, mut client) = bed().await;
        client.write_u8(1).await.expect("sent");
        assert_eq!(echo(&mut client).await, 1);
        let (there, back) = (Way::Held, Way::Open);
        proxy.set(Ways { there, back });
        client.shutdown().await.expect("sent");
        assert!(
            timeout(HELD, client.read_u8()).await.is_err(),
            "the server does not know of it"
        );
        proxy.set(Ways::default());
        assert!(client.read_u8().await.is_err(), "it ends, too");
    }

    #[tokio::test]
    async fn a_slow_way_takes_its_time_and_a_lost_server_ends_the_connection() {
        let (proxy, mut client) = bed().await;
        let (there, back) = (Way::Slow(HELD), Way::Open);
        proxy.set(Ways { there, back });
        let began = tokio::time::Instant::now();
        client.write_u8(1).await.expect("sent");
        assert_eq!(echo(&mut client).await, 1);
        assert!(began.elapsed() >= HELD);
        drop(proxy);
        assert!(client.read_u8().await.is_err());
    }

    #[tokio::test]
    async fn a_trap_holds_what_it_catches_or_what_follows_and_is_gone() {
        const PATIENCE: Duration = Duration::from_secs(30);
        let question = format!("{}1", crate::plan::TENANT);
        for moment in [Moment::Gate, Moment::Permit] {
            let (proxy, mut client) = bed().await;
            let (to, trap) = moment.trap().expect("on a connection");
            assert_eq!(to, To::Redis);
            let (caught, ()) = tokio::join!(proxy.catch(trap, PATIENCE), async {
                client.write_u8(1).await.expect("sent");
                assert_eq!(echo(&mut client).await, 1, "what has no mark passes");
                client.write_all(question.as_bytes()).await.expect("sent");
            });
            assert!(caught);
            let answer = timeout(HELD, echo(&mut client)).await;
            assert!(answer.is_err(), "{moment:?}");
            proxy.set(Ways::default());
            assert_eq!(echo(&mut client).await, question.as_bytes()[0]);
            assert!(!proxy.catch(trap, HELD).await, "nothing comes");
            client.write_all(question.as_bytes()).await.expect("sent");
            assert_eq!(
                echo(&mut client).await,
                question.as_bytes()[1],
                "no trap is left"
            );
        }
    }
}
