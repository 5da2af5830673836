//! A server on a thread of its own, so that nothing else delays its clock.

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;

use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// The running server. Dropping it stops the server.
pub struct SeparateServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl SeparateServer {
    /// Starts `serve` on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// No port, thread or runtime is available.
    pub fn start<S>(serve: impl FnOnce(TcpListener) -> S + Send + 'static) -> io::Result<Self>
    where
        S: Future<Output = io::Result<()>>,
    {
        Self::start_at(
            std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?,
            serve,
        )
    }

    /// Starts `serve` on `listener`.
    ///
    /// # Errors
    /// No thread or runtime is available.
    pub fn start_at<S>(
        listener: std::net::TcpListener,
        serve: impl FnOnce(TcpListener) -> S + Send + 'static,
    ) -> io::Result<Self>
    where
        S: Future<Output = io::Result<()>>,
    {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("downstream".into())
            .spawn(move || {
                runtime.block_on(async {
                    let served = async { serve(TcpListener::from_std(listener)?).await };
                    tokio::select! {
                        result = served => if let Err(error) = result {
                            eprintln!("the downstream failed: {error}");
                        },
                        _ = stopped => {}
                    }
                });
            })?;
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for SeparateServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread has already printed its panic.
            let _ = thread.join();
        }
    }
}
