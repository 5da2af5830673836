//! Ctrl-C and SIGTERM, for commands that end in order.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Waits for Ctrl-C or SIGTERM, which are caught from now on.
pub fn interrupted() -> impl Future<Output = ()> {
    let int = caught(signal(SignalKind::interrupt()));
    let term = caught(signal(SignalKind::terminate()));
    async move {
        tokio::select! {
            () = int => {}
            () = term => {}
        }
    }
}

/// Waits for the signal. Never returns if it can't be caught.
async fn caught(signal: io::Result<Signal>) {
    match signal {
        Ok(mut signal) => drop(signal.recv().await),
        Err(_) => std::future::pending().await,
    }
}
