//! Calls whose answers are not waited for any more: what is known of them, and what becomes of their connections.
//!
//! What the API's machine has acknowledged can't be recalled, not even by a reset: a program that stood still reads it later. So such
//! a connection is read on, since only its end tells that the call is over. What was not acknowledged is dropped by closing the
//! connection without waiting for that; some of it may have arrived all the same.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::call::{Exchange, Failure, Sent};
use crate::handler::{Fate, LateEnd};

/// Gives calls up.
pub(super) struct Abandoned {
    /// How long a call may still arrive.
    lease: Duration,
    /// A permit for each connection that may be read on.
    readers: Arc<Semaphore>,
}

impl Abandoned {
    /// Calls may arrive for up to `lease` after they were given up; `most` connections are read on at once.
    pub(super) fn new(lease: Duration, most: usize) -> Self {
        Self {
            lease,
            readers: Arc::new(Semaphore::new(most)),
        }
    }

    /// There is no answer in time.
    pub(super) fn give_up(&self, exchange: Exchange) -> Fate {
        exchange.gives_up();
        if !exchange.is_written() {
            return Fate::Unwritten;
        }
        if !exchange.is_acked() {
            exchange.recall();
            return self.fate(LateEnd::never());
        }
        match Arc::clone(&self.readers).try_acquire_owned() {
            Ok(reader) => self.fate(LateEnd::new(async move {
                ended(exchange).await;
                drop(reader);
            })),
            Err(_) => self.fate(LateEnd::never()),
        }
    }

    /// The connection failed before there was an answer.
    pub(super) fn failed(&self, why: &Failure) -> Fate {
        match is_of_the_way(why) {
            true => self.fate(LateEnd::never()),
            false => Fate::Unknown,
        }
    }

    fn fate(&self, ended: LateEnd) -> Fate {
        let lease = self.lease;
        Fate::Abandoned { lease, ended }
    }
}

/// Waits until the call has ended: the API answers, or closes the connection.
async fn ended(mut exchange: Exchange) {
    match exchange.answer().await {
        Sent::Failed(why) if is_of_the_way(&why) => std::future::pending().await,
        Sent::Answered(_) | Sent::Unwritten | Sent::Refused(_) | Sent::Failed(_) => {}
    }
}

/// Whether our own machine gave the connection up, having heard nothing from the other one: that says nothing of the call. An API
/// that closes or resets the connection throws away what it has not read, so nothing of the call arrives after that.
fn is_of_the_way(why: &Failure) -> bool {
    let kind = why.io().map(std::io::Error::kind);
    matches!(
        kind,
        Some(
            ErrorKind::TimedOut
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
                | ErrorKind::NetworkDown
        )
    )
}
