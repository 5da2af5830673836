//! Abandoned calls, whose answers are no longer awaited: their fates, and what happens to their
//! connections.
//!
//! A request that the API's machine has acknowledged can't be recalled, not even by a reset: a
//! program that was stopped reads it later. The connection of such a call is therefore read on,
//! since only its end shows that the call is over. A request that was not acknowledged is dropped
//! by closing the connection without waiting for an acknowledgement. Some of the request may have
//! arrived anyway.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::call::{CallFailure, CallResult, Exchange};
use crate::{Fate, LateEnd};

/// Abandons calls.
pub(super) struct CallAbandoner {
    /// Time for which an abandoned call may still arrive.
    lease: Duration,
    /// A permit for each connection that may be read on.
    readers: Arc<Semaphore>,
    /// Number of these permits.
    max: AtomicUsize,
}

impl CallAbandoner {
    /// Creates the state for calls that may arrive for up to `lease` after they were abandoned. At
    /// most `max` connections are read on at once.
    pub(super) fn new(lease: Duration, max: usize) -> Self {
        Self {
            lease,
            readers: Arc::new(Semaphore::new(max)),
            max: max.into(),
        }
    }

    /// Allows that up to `max` connections are read on at once, if that is more than before.
    pub(super) fn raise(&self, max: usize) {
        let before = self.max.fetch_max(max, Ordering::Relaxed);
        self.readers.add_permits(max.saturating_sub(before));
    }

    /// Abandons a call that has no answer in time.
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

    /// Returns the fate of a call whose connection failed before there was an answer.
    pub(super) fn failed(&self, why: &CallFailure) -> Fate {
        match is_local_timeout(why) {
            true => self.fate(LateEnd::never()),
            false => Fate::Unknown,
        }
    }

    fn fate(&self, ended: LateEnd) -> Fate {
        let lease = self.lease;
        Fate::Abandoned { lease, ended }
    }
}

/// Waits until the call has ended: the API answers or closes the connection.
async fn ended(mut exchange: Exchange) {
    match exchange.answer().await {
        CallResult::Failed(why) if is_local_timeout(&why) => std::future::pending().await,
        CallResult::Answered(_)
        | CallResult::Unwritten
        | CallResult::Refused(_)
        | CallResult::Failed(_) => {}
    }
}

/// Returns true if our own machine gave up the connection because the peer was silent. That reveals
/// nothing about the call. An API that closes or resets the connection discards unread bytes, so
/// nothing of the call arrives after that.
fn is_local_timeout(why: &CallFailure) -> bool {
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
