//! One call on its way, whatever it goes over: a connection of its own, or a stream of one that many share.

use std::error::Error;
use std::io;

use bytes::Bytes;
use hyper::http::response::Parts;

use super::connection::{self, Connection};
use super::stream;
use crate::handler::Permit;

/// A request on its way. Dropped, it is ended: its connection is closed, or its stream reset.
pub(super) enum Exchange {
    /// Over HTTP/1.1.
    Own(connection::Exchange),
    /// Over HTTP/2.
    Stream(stream::Exchange),
}

/// What became of a request.
pub(super) enum Sent {
    /// The answer's head is there.
    Answered(Parts),
    /// The connection was closed before a byte of the request was written.
    Unwritten,
    /// The API has read the request, and says that nothing was done with it.
    Refused(Failure),
    /// The API may have seen the request.
    Failed(Failure),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Own(hyper::Error),
    #[error(transparent)]
    Stream(h2::Error),
}

/// An answer's body broke off.
pub(super) struct Broken;

impl Failure {
    /// The system's error that is behind it.
    pub(super) fn io(&self) -> Option<&io::Error> {
        match self {
            Self::Own(why) => {
                let deeper = std::iter::successors(why.source(), |&deeper| deeper.source());
                deeper.filter_map(|why| why.downcast_ref()).next()
            }
            Self::Stream(why) => why.get_io(),
        }
    }
}

impl Exchange {
    /// Waits for the answer's head.
    pub(super) async fn answer(&mut self) -> Sent {
        match self {
            Self::Own(exchange) => exchange.answer().await,
            Self::Stream(exchange) => exchange.answer().await,
        }
    }

    /// The next part of the answer's body; `None`: it has ended, or there is no answer.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, Broken>> {
        match self {
            Self::Own(exchange) => exchange.next().await,
            Self::Stream(exchange) => exchange.next().await,
        }
    }

    /// The connection, for the next call, if this one had it alone: the answer was read to its end.
    pub(super) fn into_connection(self) -> Option<Box<Connection>> {
        match self {
            Self::Own(exchange) => Some(exchange.into_connection()),
            Self::Stream(_) => None,
        }
    }

    /// It is being written: `permit` can tell from now on whether the API's machine has all of it, as far as is known.
    pub(super) fn is_written_by(&self, permit: &Permit) {
        match self {
            Self::Own(exchange) => permit.written(exchange.arrival()),
            Self::Stream(exchange) => permit.written(exchange.arrival()),
        }
    }

    /// There is no answer in time: no other call uses the connection from now on.
    pub(super) fn gives_up(&self) {
        if let Self::Stream(exchange) = self {
            exchange.gives_up();
        }
    }

    /// Whether a byte of the request was written, or may have been.
    pub(super) fn is_written(&self) -> bool {
        match self {
            Self::Own(exchange) => exchange.is_written(),
            Self::Stream(_) => true,
        }
    }

    /// Whether the API's machine has all that was written.
    pub(super) fn is_acked(&self) -> bool {
        match self {
            Self::Own(exchange) => exchange.is_acked(),
            Self::Stream(exchange) => exchange.is_acked(),
        }
    }

    /// Ends the call, and drops what was not acknowledged.
    pub(super) fn recall(self) {
        match self {
            Self::Own(exchange) => exchange.recall(),
            Self::Stream(exchange) => exchange.recall(),
        }
    }
}
