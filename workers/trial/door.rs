//! A port that can accept connections, refuse them, accept them again, and end open ones.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// Delay before a failed accept is retried, for example if no file descriptor is free.
const TAKE_AGAIN: Duration = Duration::from_millis(100);

/// A free port of 127.0.0.1.
pub const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Shared {
    serve: Box<dyn Fn(TcpStream, usize) -> Serving + Send + Sync>,
    /// Number of connections so far.
    opened: AtomicUsize,
    /// How many times all connections were ended.
    cuts: watch::Sender<u64>,
}

/// An open port. Dropping it closes the port and ends its connections.
pub struct Door {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    /// Runs its connections.
    runtime: Handle,
    accepting: Mutex<Option<JoinHandle<()>>>,
    /// Reserves the port while it refuses connections.
    _reserved: TcpSocket,
}

impl Door {
    /// Opens a port. Serves each connection with `serve`, which gets the connection's number, from
    /// 0. Connections run on the current runtime.
    ///
    /// # Errors
    /// The system's error, if it can't listen at `address`.
    pub fn open<S>(
        address: SocketAddr,
        serve: impl Fn(TcpStream, usize) -> S + Send + Sync + 'static,
    ) -> io::Result<Self>
    where
        S: Future<Output = ()> + Send + 'static,
    {
        let reserved = bound(address)?;
        let door = Self {
            address: reserved.local_addr()?,
            shared: Arc::new(Shared {
                serve: Box::new(move |stream, number| Box::pin(serve(stream, number))),
                opened: AtomicUsize::new(0),
                cuts: watch::Sender::new(0),
            }),
            runtime: Handle::current(),
            accepting: Mutex::default(),
            _reserved: reserved,
        };
        door.take()?;
        Ok(door)
    }

    /// Refuses connections from now on, and ends open ones. They have ended when it returns.
    pub async fn refuse(&self) {
        let accepting = self.accepting().take();
        if let Some(task) = accepting {
            task.abort();
            // The task is canceled, which closes its port.
            let _ = task.await;
        }
        self.cut();
        self.shared.cuts.closed().await;
    }

    /// Accepts connections again, at the same port.
    ///
    /// # Errors
    /// The system's error, if it can't listen.
    pub fn take(&self) -> io::Result<()> {
        let _in_runtime = self.runtime.enter();
        let listener = bound(self.address)?.listen(BACKLOG)?;
        let shared = Arc::clone(&self.shared);
        let task = self.runtime.spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    sleep(TAKE_AGAIN).await;
                    continue;
                };
                // Nagle's algorithm would add its own delays. A connection that has already ended
                // can't be set.
                let _ = stream.set_nodelay(true);
                let number = shared.opened.fetch_add(1, Ordering::Relaxed);
                let (serving, mut cuts) = ((shared.serve)(stream, number), shared.cuts.subscribe());
                tokio::spawn(async move {
                    tokio::select! {
                        () = serving => {}
                        _ = cuts.changed() => {}
                    }
                });
            }
        });
        *self.accepting() = Some(task);
        Ok(())
    }

    fn accepting(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.accepting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all connections.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Returns the number of connections so far.
    pub fn opened(&self) -> usize {
        self.shared.opened.load(Ordering::Relaxed)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if let Some(task) = self.accepting().take() {
            task.abort();
        }
        self.cut();
    }
}

/// Returns a socket that is bound to `address` but does not listen. Several such sockets can have
/// one port, which the system gives to no one else.
fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}
