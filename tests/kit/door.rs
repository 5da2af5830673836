//! A port that takes connections, refuses them, takes them again, and ends those that are there.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::servers::free_port;

type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Shared {
    serve: Box<dyn Fn(TcpStream, usize) -> Serving + Send + Sync>,
    /// Connections until now.
    opened: AtomicUsize,
    /// How often all of them were ended.
    cuts: watch::Sender<u64>,
}

/// Dropped, it is closed, and its connections end.
pub struct Door {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

impl Door {
    /// Serves each connection with `serve`, which gets its number, from 0.
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
        };
        door.take().await;
        door
    }

    /// Refuses connections from now on, and ends those that are there.
    pub async fn refuse(&self) {
        let accepting = self.accepting.lock().expect("nobody panics").take();
        if let Some(task) = accepting {
            task.abort();
            // It is cancelled, and its port closed with it.
            let _ = task.await;
        }
        self.cut();
    }

    /// Takes connections again, at the same port.
    pub async fn take(&self) {
        let listener = TcpListener::bind(self.address).await.expect("its port");
        let shared = Arc::clone(&self.shared);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // Nagle's algorithm would add delays of its own.
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
        *self.accepting.lock().expect("nobody panics") = Some(task);
    }

    /// Ends all connections.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Connections until now.
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
