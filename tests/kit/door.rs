//! A port that can accept connections, refuse them, accept them again, and end open ones.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::servers::free_port;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// Delay before a failed accept is retried, for example if no file descriptor is free.
const TAKE_AGAIN: Duration = Duration::from_millis(100);

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
    accepting: Mutex<Option<JoinHandle<()>>>,
    /// Reserves its port while it refuses connections.
    reserved: Mutex<Option<TcpSocket>>,
}

impl Door {
    /// Serves each connection with `serve`, which gets the connection's number, from 0.
    pub async fn open<S>(serve: impl Fn(TcpStream, usize) -> S + Send + Sync + 'static) -> Self
    where
        S: Future<Output = ()> + Send + 'static,
    {
        let door = Self {
            address: (Ipv4Addr::LOCALHOST, free_port()).into(),
            shared: Arc::new(Shared {
                serve: Box::new(move |stream, number| Box::pin(serve(stream, number))),
                opened: AtomicUsize::new(0),
                cuts: watch::Sender::new(0),
            }),
            accepting: Mutex::default(),
            reserved: Mutex::default(),
        };
        door.take().await;
        door
    }

    /// Refuses connections from now on, and ends open ones.
    pub async fn refuse(&self) {
        let accepting = self.accepting.lock().expect("no panic").take();
        if let Some(task) = accepting {
            task.abort();
            // The task is canceled, which closes its port.
            let _ = task.await;
            *self.reserved.lock().expect("no panic") = Some(self.bound());
        }
        self.cut();
    }

    /// Accepts connections again, at the same port.
    pub async fn take(&self) {
        let bound = self.reserved.lock().expect("no panic").take();
        let listener = bound.unwrap_or_else(|| self.bound()).listen(BACKLOG);
        let listener = listener.expect("its port");
        let shared = Arc::clone(&self.shared);
        let task = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    sleep(TAKE_AGAIN).await;
                    continue;
                };
                // Nagle's algorithm would add its own delays.
                stream.set_nodelay(true).expect("a socket");
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
        *self.accepting.lock().expect("no panic") = Some(task);
    }

    fn bound(&self) -> TcpSocket {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("a socket");
        socket.bind(self.address).expect("its port");
        socket
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
        if let Ok(Some(task)) = self.accepting.lock().map(|mut task| task.take()) {
            task.abort();
        }
        self.cut();
    }
}
