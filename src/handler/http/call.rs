//! A call in flight, over a connection of its own or over a stream of a shared one.

use std::error::Error;
use std::io;

use bytes::Bytes;
use hyper::http::response::Parts;

use super::connection::{self, Connection};
use super::stream;
use crate::Permit;

/// A request in flight. Dropping it ends it: its connection is closed or its stream reset.
pub(super) enum Exchange {
    /// Over HTTP/1.1.
    Own(connection::OwnExchange),
    /// Over HTTP/2.
    Stream(stream::StreamExchange),
}

/// Result of a request.
pub(super) enum CallResult {
    /// The head of the answer has arrived.
    Answered(Parts),
    /// The connection was closed before a byte of the request was written.
    Unwritten,
    /// The API has read the request and reports that it did nothing with it.
    Refused(CallFailure),
    /// The API may have seen the request.
    Failed(CallFailure),
}

/// The reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallFailure {
    #[error(transparent)]
    Own(hyper::Error),
    #[error(transparent)]
    Stream(h2::Error),
}

/// The body of an answer broke off.
pub(super) struct BodyBroken;

impl CallFailure {
    /// Returns the I/O error among the causes, if there is one.
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
    /// Waits for the head of the answer.
    pub(super) async fn answer(&mut self) -> CallResult {
        match self {
            Self::Own(exchange) => exchange.answer().await,
            Self::Stream(exchange) => exchange.answer().await,
        }
    }

    /// Returns the next part of the answer's body, or `None` if it has ended or there is no answer.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, BodyBroken>> {
        match self {
            Self::Own(exchange) => exchange.next().await,
            Self::Stream(exchange) => exchange.next().await,
        }
    }

    /// Returns the connection for the next call if this call had it alone. The answer must have
    /// been read to its end.
    pub(super) fn into_connection(self) -> Option<Box<Connection>> {
        match self {
            Self::Own(exchange) => Some(exchange.into_connection()),
            Self::Stream(_) => None,
        }
    }

    /// Marks the request as being written. From now on, `permit` can tell whether the API's machine
    /// has received all of it, as far as is known.
    pub(super) fn is_written_by(&self, permit: &Permit) {
        match self {
            Self::Own(exchange) => permit.written(exchange.arrival()),
            Self::Stream(exchange) => permit.written(exchange.arrival()),
        }
    }

    /// Marks the call as abandoned: no other call uses its connection from now on.
    pub(super) fn gives_up(&self) {
        if let Self::Stream(exchange) = self {
            exchange.gives_up();
        }
    }

    /// Returns true if a byte of the request was, or may have been, written.
    pub(super) fn is_written(&self) -> bool {
        match self {
            Self::Own(exchange) => exchange.is_written(),
            Self::Stream(_) => true,
        }
    }

    /// Returns true if the API's machine has acknowledged everything that was written.
    pub(super) fn is_acked(&self) -> bool {
        match self {
            Self::Own(exchange) => exchange.is_acked(),
            Self::Stream(exchange) => exchange.is_acked(),
        }
    }

    /// Ends the call and drops unacknowledged bytes.
    pub(super) fn recall(self) {
        match self {
            Self::Own(exchange) => exchange.recall(),
            Self::Stream(exchange) => exchange.recall(),
        }
    }
}
