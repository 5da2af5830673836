//! A TCP proxy between two parties. It can delay bytes, hold them, hold them from a recognizable
//! moment on, cut connections, or refuse them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use trial::door::{ANY_PORT, Door};

/// Maximum number of chunks in flight per direction of a connection: more than half a second's
/// worth.
const ON_THE_WAY: usize = 4096;

/// A duration, evenly distributed between the first and the second.
#[derive(Debug, Clone, Copy)]
pub struct Range(pub Duration, pub Duration);

impl Range {
    pub fn pick(self, random: &mut SmallRng) -> Duration {
        random.random_range(self.0..=self.1)
    }
}

/// How one direction treats bytes. The bytes of a connection stay in order.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    /// The delay.
    pub takes: Range,
    /// The share of chunks that take this much longer, as if TCP had to resend them. Later chunks
    /// wait behind them.
    pub late: (f64, Duration),
    /// Whether bytes are held until this is cleared.
    pub held: bool,
}

impl Transfer {
    pub const OPEN: Self = Self::between(Duration::ZERO, Duration::ZERO);

    pub const HELD: Self = Self {
        held: true,
        ..Self::OPEN
    };

    pub const fn between(min: Duration, max: Duration) -> Self {
        Self {
            takes: Range(min, max),
            late: (0.0, Duration::ZERO),
            held: false,
        }
    }

    pub const fn taking(time: Duration) -> Self {
        Self::between(time, time)
    }

    fn pick(&self, random: &mut SmallRng) -> Duration {
        let (share, late) = self.late;
        let again = if random.random_bool(share) {
            late
        } else {
            Duration::ZERO
        };
        self.takes.pick(random) + again
    }
}

/// Both directions.
#[derive(Debug, Clone, Copy)]
pub struct Transfers {
    /// Sent by the party that connects.
    pub there: Transfer,
    /// Sent to the party that connects.
    pub back: Transfer,
}

impl Transfers {
    pub const OPEN: Self = Self {
        there: Transfer::OPEN,
        back: Transfer::OPEN,
    };

    /// Returns delays by which a question and its answer together take `time`. `connect` itself is
    /// answered at once, by the kernel.
    pub const fn round_trip(time: Duration) -> Self {
        let half = Transfer::taking(Duration::from_nanos(time.as_nanos() as u64 / 2));
        Self {
            there: half,
            back: half,
        }
    }

    /// Holds both directions or releases them.
    pub const fn held(mut self, held: bool) -> Self {
        (self.there.held, self.back.held) = (held, held);
        self
    }
}

/// One direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Sent by the party that connects.
    There,
    /// Sent to the party that connects.
    Back,
}

type Shows = dyn Fn(&[u8]) -> bool + Send + Sync;

/// Waits for certain bytes. From these bytes on, other ways are in force.
pub struct Trap {
    pub direction: Direction,
    /// Returns true if these are the bytes.
    pub shows: Box<Shows>,
    pub then: Transfers,
}

/// The settings shared with all connections.
struct ProxySettings {
    ways: Transfers,
    /// The trap, until it has sprung.
    trap: Option<Trap>,
}

impl ProxySettings {
    fn way(&self, direction: Direction) -> &Transfer {
        match direction {
            Direction::There => &self.ways.there,
            Direction::Back => &self.ways.back,
        }
    }

    /// Returns true if these bytes spring the trap.
    fn springs(&mut self, direction: Direction, bytes: &[u8]) -> bool {
        let sprung = (self.trap).take_if(|trap| trap.direction == direction && (trap.shows)(bytes));
        if let Some(trap) = &sprung {
            self.ways = trap.then;
        }
        sprung.is_some()
    }
}

/// A running proxy. Dropping it ends it and its connections.
pub struct Proxy {
    pub door: Door,
    /// The doors for further targets.
    more: Vec<Door>,
    /// The destination of new connections through `door`.
    target: Arc<Mutex<SocketAddr>>,
    settings: Arc<watch::Sender<ProxySettings>>,
}

/// Returns the server of `url`, which must be at a local address.
pub fn server_of(url: &str) -> SocketAddr {
    let url = url::Url::parse(url).expect("a URL");
    let host: IpAddr = (url.host_str().expect("a host").parse()).expect("an address");
    (host, url.port().expect("a port")).into()
}

impl Proxy {
    /// Starts a proxy for `target`. `seed` determines the delays.
    pub async fn start(target: SocketAddr, ways: Transfers, seed: u64) -> Self {
        Self::start_all(&[target], ways, seed).await
    }

    /// Starts a proxy for all of `targets`, with a port for each. Settings apply to all of them.
    pub async fn start_all(targets: &[SocketAddr], ways: Transfers, seed: u64) -> Self {
        let [first, others @ ..] = targets else {
            panic!("a proxy has a target");
        };
        let trap = None;
        let settings = Arc::new(watch::Sender::new(ProxySettings { ways, trap }));
        let target = Arc::new(Mutex::new(*first));
        let door = door(Arc::clone(&target), Arc::clone(&settings), seed);
        let mut more = Vec::new();
        for target in others {
            let target = Arc::new(Mutex::new(*target));
            more.push(self::door(target, Arc::clone(&settings), seed));
        }
        Self {
            door,
            more,
            target,
            settings,
        }
    }

    /// Returns its addresses in the order of its targets.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let doors = std::iter::once(&self.door).chain(&self.more);
        doors.map(|door| door.address)
    }

    /// Starts a proxy for the server of `url`, which must be at a local address. Also returns the
    /// URL through the proxy.
    pub async fn before(url: &str, ways: Transfers, seed: u64) -> (Self, String) {
        let proxy = Self::start(server_of(url), ways, seed).await;
        let mut url = url::Url::parse(url).expect("a URL");
        let set = url.set_port(Some(proxy.door.address.port()));
        set.expect("it has a host");
        (proxy, url.into())
    }

    /// Sets the treatment of bytes from now on, on old and new connections. Bytes in flight keep
    /// their delays.
    pub fn set(&self, ways: Transfers) {
        self.settings.send_modify(|settings| settings.ways = ways);
    }

    /// Sets a trap and waits until it springs. Returns whether it did within `patience`.
    pub async fn catch(&self, trap: Trap, patience: Duration) -> bool {
        let mut seen = self.settings.subscribe();
        self.settings
            .send_modify(|settings| settings.trap = Some(trap));
        // The borrow must end before the next change of the settings.
        let caught =
            (timeout(patience, seen.wait_for(|settings| settings.trap.is_none())).await).is_ok();
        self.settings.send_modify(|settings| settings.trap = None);
        caught
    }

    /// Leads new connections to another target, as DNS does after a failover. Open connections
    /// stay.
    pub fn lead_to(&self, target: SocketAddr) {
        *lock(&self.target) = target;
    }

    /// Ends all connections and drops the bytes they hold.
    pub fn cut(&self) {
        self.door.cut();
        self.more.iter().for_each(Door::cut);
    }
}

/// Opens a port that leads to `target`.
fn door(
    target: Arc<Mutex<SocketAddr>>,
    settings: Arc<watch::Sender<ProxySettings>>,
    seed: u64,
) -> Door {
    let carry = move |client, number| {
        let seed = seed ^ (number as u64) << 32;
        let target = *lock(&target);
        carry(client, target, Arc::clone(&settings), seed)
    };
    Door::open(ANY_PORT, carry).expect("a free port")
}

fn lock(target: &Mutex<SocketAddr>) -> std::sync::MutexGuard<'_, SocketAddr> {
    target.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Carries a connection until both sides have ended it. A reset is passed on as a reset.
async fn carry(
    mut client: TcpStream,
    target: SocketAddr,
    settings: Arc<watch::Sender<ProxySettings>>,
    seed: u64,
) {
    // An unavailable server shows as a connection that ends at once.
    let Ok(mut server) = TcpStream::connect(target).await else {
        return;
    };
    server.set_nodelay(true).expect("a socket");
    let random = |direction| SmallRng::seed_from_u64(seed ^ direction);
    let (there, back) = (Direction::There, Direction::Back);
    let ended = {
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        let there = pass(from_client, to_server, &settings, there, random(0));
        let back = pass(from_server, to_client, &settings, back, random(1));
        tokio::try_join!(there, back)
    };
    if ended.is_err() {
        for stream in [&client, &server] {
            // The connection may be gone already.
            let _ = stream.set_zero_linger();
        }
    }
}

/// Carries one direction until its end has been passed on.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    settings: &watch::Sender<ProxySettings>,
    direction: Direction,
    mut random: SmallRng,
) -> io::Result<()> {
    let (sender, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(ON_THE_WAY);
    let mut seen = settings.subscribe();
    let read = async move {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let length = from.read(&mut buffer).await?;
            settings.send_if_modified(|settings| settings.springs(direction, &buffer[..length]));
            let at = Instant::now() + settings.borrow().way(direction).pick(&mut random);
            // The end travels like bytes. A failed send means that the other side is gone, which it
            // reports itself.
            let taken = sender.send((at, buffer[..length].to_vec())).await;
            if length == 0 || taken.is_err() {
                return Ok(());
            }
        }
    };
    let write = async move {
        while let Some((at, bytes)) = due.recv().await {
            sleep_until(at).await;
            // The sender is borrowed, so this never ends.
            let _ = seen
                .wait_for(|settings| !settings.way(direction).held)
                .await;
            match bytes.is_empty() {
                true => to.shutdown().await?,
                false => to.write_all(&bytes).await?,
            }
        }
        io::Result::Ok(())
    };
    tokio::try_join!(read, write).map(drop)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::TcpListener;

    use super::*;

    const HELD: Duration = Duration::from_millis(50);

    async fn connected(ways: Transfers) -> (Proxy, TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let target = listener.local_addr().expect("bound");
        let proxy = Proxy::start(target, ways, 7).await;
        let client = TcpStream::connect(proxy.door.address)
            .await
            .expect("it listens");
        let (server, _) = listener.accept().await.expect("it is called");
        (proxy, client, server)
    }

    #[tokio::test]
    async fn bytes_take_their_time_in_each_direction_and_stay_in_order() {
        let min = Duration::from_millis(100);
        let mut way = Transfer::between(min, Duration::from_millis(300));
        way.late = (0.2, min);
        let ways = Transfers {
            there: way,
            back: Transfer::taking(min),
        };
        let (_proxy, mut client, mut server) = connected(ways).await;
        let sent = Instant::now();
        for byte in 0..20 {
            client.write_all(&[byte]).await.expect("sent");
            tokio::task::yield_now().await;
        }
        let mut bytes = [0; 20];
        server.read_exact(&mut bytes).await.expect("all of it");
        assert!(sent.elapsed() >= min);
        assert!(bytes.is_sorted(), "{bytes:?}");
        let sent = Instant::now();
        server.write_all(b"back").await.expect("sent");
        drop(server);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.expect("an answer");
        assert_eq!(answer, b"back");
        assert!(sent.elapsed() >= min);
    }

    #[tokio::test]
    async fn held_bytes_pass_later_or_are_lost_with_the_connection() {
        let (proxy, mut client, mut server) = connected(Transfers::OPEN).await;
        proxy.set(Transfers::OPEN.held(true));
        client.write_all(b"1").await.expect("sent");
        let held = tokio::time::timeout(HELD, server.read_u8()).await;
        assert!(held.is_err(), "it passed");
        proxy.set(Transfers::OPEN);
        assert_eq!(server.read_u8().await.expect("it passes"), b'1');
        proxy.set(Transfers::OPEN.held(true));
        client.write_all(b"2").await.expect("sent");
        tokio::time::sleep(HELD).await;
        proxy.door.cut();
        assert!(client.read_u8().await.is_err());
        assert!(server.read_u8().await.is_err());
    }

    #[tokio::test]
    async fn a_proxy_that_refuses_takes_connections_again_at_its_port() {
        let (proxy, mut client, _server) = connected(Transfers::OPEN).await;
        proxy.door.refuse().await;
        assert!(client.read_u8().await.is_err(), "it was cut");
        let refused = TcpStream::connect(proxy.door.address).await;
        assert_eq!(
            refused.expect_err("nobody listens").kind(),
            io::ErrorKind::ConnectionRefused
        );
        proxy.door.take().expect("its port");
        TcpStream::connect(proxy.door.address)
            .await
            .expect("it listens");
    }

    #[tokio::test]
    async fn a_reset_is_passed_on() {
        let (_proxy, mut client, mut server) = connected(Transfers::OPEN).await;
        // Both connections exist once something has passed.
        client.write_u8(1).await.expect("sent");
        assert_eq!(server.read_u8().await.expect("it passes"), 1);
        server.set_zero_linger().expect("a socket");
        drop(server);
        let ended = client.read_u8().await.expect_err("it has ended");
        assert_eq!(ended.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn a_new_connection_uses_the_new_target_and_an_open_one_stays() {
        let (proxy, mut client, mut server) = connected(Transfers::OPEN).await;
        let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let other = other.expect("a free port");
        proxy.lead_to(other.local_addr().expect("bound"));
        client.write_u8(1).await.expect("sent");
        assert_eq!(server.read_u8().await.expect("it passes"), 1);
        let mut client = TcpStream::connect(proxy.door.address)
            .await
            .expect("it listens");
        let (mut server, _) = other.accept().await.expect("it is called");
        client.write_u8(2).await.expect("sent");
        assert_eq!(server.read_u8().await.expect("it passes"), 2);
    }

    #[tokio::test]
    async fn an_end_is_held_too() {
        let (proxy, mut client, mut server) = connected(Transfers::OPEN).await;
        proxy.set(Transfers {
            there: Transfer::HELD,
            back: Transfer::OPEN,
        });
        client.shutdown().await.expect("sent");
        let ended = timeout(HELD, server.read_u8()).await;
        assert!(ended.is_err(), "the server does not know of it");
        server
            .write_u8(1)
            .await
            .expect("the other direction is open");
        assert_eq!(client.read_u8().await.expect("it passes"), 1);
        proxy.set(Transfers::OPEN);
        assert!(server.read_u8().await.is_err(), "it ends, too");
    }

    #[tokio::test]
    async fn a_trap_holds_the_matching_or_following_bytes_once() {
        const PATIENCE: Duration = Duration::from_secs(90);
        let (held, open) = (Transfer::HELD, Transfer::OPEN);
        for (there, back) in [(held, open), (open, held)] {
            let (proxy, mut client, mut server) = connected(Transfers::OPEN).await;
            let trap = || Trap {
                direction: Direction::There,
                shows: Box::new(|bytes| bytes.contains(&2)),
                then: Transfers { there, back },
            };
            let (caught, ()) = tokio::join!(proxy.catch(trap(), PATIENCE), async {
                client.write_u8(1).await.expect("sent");
                let passed = server.read_u8().await;
                assert_eq!(passed.expect("what has no mark passes"), 1);
                client.write_u8(2).await.expect("sent");
            });
            assert!(caught);
            let asked = timeout(HELD, server.read_u8()).await;
            assert_eq!(asked.is_err(), there.held);
            if !there.held {
                server.write_u8(3).await.expect("sent");
                assert!(timeout(HELD, client.read_u8()).await.is_err());
            }
            proxy.set(Transfers::OPEN);
            match there.held {
                true => assert_eq!(server.read_u8().await.expect("it passes"), 2),
                false => assert_eq!(client.read_u8().await.expect("it passes"), 3),
            }
            assert!(!proxy.catch(trap(), HELD).await, "nothing comes");
            client.write_u8(2).await.expect("sent");
            assert_eq!(server.read_u8().await.expect("no trap is left"), 2);
        }
    }

    #[tokio::test]
    async fn a_proxy_for_several_targets_sends_the_same_to_all() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let target = listener.local_addr().expect("bound");
        let proxy = Proxy::start_all(&[target, target], Transfers::OPEN, 7).await;
        let second = proxy.addresses().nth(1).expect("two ways in");
        let mut client = TcpStream::connect(second).await.expect("it listens");
        let (mut server, _) = listener.accept().await.expect("it is called");
        proxy.set(Transfers::OPEN.held(true));
        client.write_u8(1).await.expect("sent");
        assert!(timeout(HELD, server.read_u8()).await.is_err());
        proxy.cut();
        assert!(client.read_u8().await.is_err());
    }
}
