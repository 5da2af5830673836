//! A TCP proxy between any two parties: it delays what passes, holds it, cuts connections, or refuses them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::door::Door;

/// Pieces of one direction of a connection that are on their way at once: more than half a second's worth.
const ON_THE_WAY: usize = 4096;

/// How long something takes: from the first to the second, evenly distributed.
#[derive(Debug, Clone, Copy)]
pub struct Range(pub Duration, pub Duration);

impl Range {
    pub fn pick(self, random: &mut SmallRng) -> Duration {
        random.random_range(self.0..=self.1)
    }
}

/// What happens to what goes in one direction. The bytes of a connection stay in order.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    /// How long it takes.
    pub takes: Range,
    /// This share of the pieces takes so much longer, as when TCP has to send them again; what is behind them waits.
    pub late: (f64, Duration),
    /// It is held; it passes when it is held no more.
    pub held: bool,
}

impl Way {
    pub const OPEN: Self = Self::between(Duration::ZERO, Duration::ZERO);

    pub const fn between(least: Duration, most: Duration) -> Self {
        Self {
            takes: Range(least, most),
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
pub struct Ways {
    /// From who connects.
    pub there: Way,
    /// To who connects.
    pub back: Way,
}

impl Ways {
    pub const OPEN: Self = Self {
        there: Way::OPEN,
        back: Way::OPEN,
    };

    /// So far away that a question and its answer take `time`. `connect` itself is answered at once, by the kernel.
    pub const fn round_trip(time: Duration) -> Self {
        let half = Way::taking(Duration::from_nanos(time.as_nanos() as u64 / 2));
        Self {
            there: half,
            back: half,
        }
    }

    /// Nothing passes in either direction.
    pub const fn held(mut self, held: bool) -> Self {
        (self.there.held, self.back.held) = (held, held);
        self
    }
}

/// A running proxy. Dropped, it ends, and its connections with it.
pub struct Proxy {
    pub door: Door,
    ways: Arc<watch::Sender<Ways>>,
}

impl Proxy {
    /// One before `target`; `seed` decides the delays.
    pub async fn start(target: SocketAddr, ways: Ways, seed: u64) -> Self {
        let ways = Arc::new(watch::Sender::new(ways));
        let told = Arc::clone(&ways);
        let door = Door::open(move |client, number| {
            carry(
                client,
                target,
                told.subscribe(),
                seed ^ (number as u64) << 32,
            )
        });
        Self {
            door: door.await,
            ways,
        }
    }

    /// One before the server of `url`, which is at an address of this machine, and the URL that leads through it.
    pub async fn before(url: &str, ways: Ways, seed: u64) -> (Self, String) {
        let mut url = url::Url::parse(url).expect("a URL");
        let host: IpAddr = (url.host_str().expect("a host").parse()).expect("an address");
        let target = (host, url.port().expect("a port"));
        let proxy = Self::start(target.into(), ways, seed).await;
        let set = url.set_port(Some(proxy.door.address.port()));
        set.expect("it has a host");
        (proxy, url.into())
    }

    /// What happens to bytes from now on, of connections old and new; what is on its way keeps its delay.
    pub fn set(&self, ways: Ways) {
        self.ways.send_replace(ways);
    }
}

/// Until both sides have ended it. A reset is passed on as one.
async fn carry(mut client: TcpStream, target: SocketAddr, ways: watch::Receiver<Ways>, seed: u64) {
    // A server that is away shows as a connection that ends at once.
    let Ok(mut server) = TcpStream::connect(target).await else {
        return;
    };
    server.set_nodelay(true).expect("a socket");
    let random = |direction| SmallRng::seed_from_u64(seed ^ direction);
    let ended = {
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        let there = |ways: &Ways| ways.there;
        let there = pass(from_client, to_server, ways.clone(), there, random(0));
        let back = |ways: &Ways| ways.back;
        let back = pass(from_server, to_client, ways, back, random(1));
        tokio::try_join!(there, back)
    };
    if ended.is_err() {
        for stream in [&client, &server] {
            // It may be gone already.
            let _ = stream.set_zero_linger();
        }
    }
}

/// One direction, until its end has been passed on.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut ways: watch::Receiver<Ways>,
    way: impl Fn(&Ways) -> Way,
    mut random: SmallRng,
) -> io::Result<()> {
    let (sender, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(ON_THE_WAY);
    let seen = ways.clone();
    let way = &way;
    let read = async move {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let length = from.read(&mut buffer).await?;
            let at = Instant::now() + way(&seen.borrow()).pick(&mut random);
            // Its end travels like bytes do. Nobody takes it: the other side is gone, and says so itself.
            let taken = sender.send((at, buffer[..length].to_vec())).await;
            if length == 0 || taken.is_err() {
                return Ok(());
            }
        }
    };
    let write = async move {
        while let Some((at, bytes)) = due.recv().await {
            sleep_until(at).await;
            // An error: the proxy is gone.
            let _ = ways.wait_for(|ways| !way(ways).held).await;
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

    async fn connected(ways: Ways) -> (Proxy, TcpStream, TcpStream) {
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
        let least = Duration::from_millis(100);
        let mut way = Way::between(least, Duration::from_millis(300));
        way.late = (0.2, least);
        let ways = Ways {
            there: way,
            back: Way::taking(least),
        };
        let (_proxy, mut client, mut server) = connected(ways).await;
        let sent = Instant::now();
        for byte in 0..20 {
            client.write_all(&[byte]).await.expect("sent");
            tokio::task::yield_now().await;
        }
        let mut bytes = [0; 20];
        server.read_exact(&mut bytes).await.expect("all of it");
        assert!(sent.elapsed() >= least);
        assert!(bytes.is_sorted(), "{bytes:?}");
        let sent = Instant::now();
        server.write_all(b"back").await.expect("sent");
        drop(server);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.expect("an answer");
        assert_eq!(answer, b"back");
        assert!(sent.elapsed() >= least);
    }

    #[tokio::test]
    async fn what_is_held_passes_later_or_is_lost_when_it_is_cut() {
        let (proxy, mut client, mut server) = connected(Ways::OPEN).await;
        proxy.set(Ways::OPEN.held(true));
        client.write_all(b"1").await.expect("sent");
        let held = tokio::time::timeout(HELD, server.read_u8()).await;
        assert!(held.is_err(), "it passed");
        proxy.set(Ways::OPEN);
        assert_eq!(server.read_u8().await.expect("it passes"), b'1');
        proxy.set(Ways::OPEN.held(true));
        client.write_all(b"2").await.expect("sent");
        tokio::time::sleep(HELD).await;
        proxy.door.cut();
        assert!(client.read_u8().await.is_err());
        assert!(server.read_u8().await.is_err());
    }

    #[tokio::test]
    async fn a_proxy_that_refuses_takes_connections_again_at_its_port() {
        let (proxy, mut client, _server) = connected(Ways::OPEN).await;
        proxy.door.refuse().await;
        assert!(client.read_u8().await.is_err(), "it was cut");
        let refused = TcpStream::connect(proxy.door.address).await;
        assert_eq!(
            refused.expect_err("nobody listens").kind(),
            io::ErrorKind::ConnectionRefused
        );
        proxy.door.take().await;
        TcpStream::connect(proxy.door.address)
            .await
            .expect("it listens");
    }

    #[tokio::test]
    async fn a_reset_is_passed_on() {
        let (_proxy, mut client, mut server) = connected(Ways::OPEN).await;
        // Both connections are there when something has passed.
        client.write_u8(1).await.expect("sent");
        assert_eq!(server.read_u8().await.expect("it passes"), 1);
        server.set_zero_linger().expect("a socket");
        drop(server);
        let ended = client.read_u8().await.expect_err("it has ended");
        assert_eq!(ended.kind(), io::ErrorKind::ConnectionReset);
    }
}
