//! One call, whatever it goes over: a connection of its own, or a stream of one that many share.

use std::error::Error;

use bytes::Bytes;
use h2::RecvStream;
use http_body_util::Full;
use hyper::body::{Body as _, Incoming};
use hyper::{Request, Response, Uri, http};

use super::connection::{self, Connection};
use super::multi::{self, Slot};

/// What a call is sent over.
pub(super) enum Carrier {
    /// HTTP/1.1.
    Own(Connection),
    /// HTTP/2.
    Stream(Slot),
}

impl Carrier {
    /// Whether the next request can be sent, as far as can be seen without waiting.
    pub(super) fn is_ready(&mut self) -> bool {
        match self {
            Self::Own(connection) => connection.is_ready(),
            Self::Stream(slot) => slot.is_open(),
        }
    }

    /// Sends `request`, which has `body`: the first poll of [`Exchange::answer`] writes. `target` is the whole url.
    pub(super) fn send(
        self,
        request: Request<Full<Bytes>>,
        body: &Bytes,
        target: &Uri,
    ) -> Exchange {
        match self {
            Self::Own(connection) => Exchange::Own(connection.send(request)),
            Self::Stream(slot) => {
                Exchange::Stream(slot.send(request, body.clone(), target.clone()))
            }
        }
    }
}

/// A request on its way.
pub(super) enum Exchange {
    Own(connection::Exchange),
    Stream(multi::Exchange),
}

/// What became of a request.
pub(super) enum Sent {
    /// The answer's head is there.
    Answered(http::response::Parts, Incomplete),
    /// The downstream has seen nothing of it.
    Unwritten,
    /// The downstream may have seen the request.
    Failed(Failure),
}

/// What is still to be read of an answer, with the exchange taken apart.
pub(super) enum Incomplete {
    Own(Incoming),
    Stream(RecvStream),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Own(hyper::Error),
    #[error(transparent)]
    Stream(h2::Error),
}

impl Failure {
    /// The system's error that is behind it.
    pub(super) fn io(&self) -> Option<&std::io::Error> {
        match self {
            Self::Stream(why) => why.get_io(),
            Self::Own(why) => {
                let mut source = why.source();
                while let Some(deeper) = source {
                    if let Some(why) = deeper.downcast_ref() {
                        return Some(why);
                    }
                    source = deeper.source();
                }
                None
            }
        }
    }
}

impl Exchange {
    /// Waits for the answer's head.
    pub(super) async fn answer(&mut self) -> Sent {
        match self {
            Self::Own(exchange) => match exchange.answer().await {
                connection::Sent::Answered(answer) => taken_apart(answer, Incomplete::Own),
                connection::Sent::Unwritten => Sent::Unwritten,
                connection::Sent::Failed(why) => Sent::Failed(Failure::Own(why)),
            },
            Self::Stream(exchange) => match exchange.answer().await {
                multi::Sent::Answered(answer) => taken_apart(answer, Incomplete::Stream),
                multi::Sent::Unwritten => Sent::Unwritten,
                multi::Sent::Failed(why) => Sent::Failed(Failure::Stream(why)),
            },
        }
    }

    /// The rest of the answer.
    pub(super) fn into_body(self, incomplete: Incomplete) -> Body {
        match (self, incomplete) {
            (Self::Own(exchange), Incomplete::Own(body)) => {
                Body::Own(exchange.into_connection(), body)
            }
            (Self::Stream(exchange), Incomplete::Stream(body)) => {
                Body::Stream(exchange.into_slot(), body)
            }
            _ => Body::Broken,
        }
    }

    /// Whether a byte of the request was written, or may have been.
    pub(super) fn is_written(&self) -> bool {
        match self {
            Self::Own(exchange) => exchange.is_written(),
            Self::Stream(_) => true,
        }
    }

    /// Whether the downstream's machine has all that was written, or may have it.
    pub(super) fn is_acked(&self) -> bool {
        match self {
            Self::Own(exchange) => exchange.is_acked(),
            // What the connection has on its way may be others'.
            Self::Stream(_) => true,
        }
    }

    /// Ends the call, and drops what was not acknowledged.
    pub(super) fn recall(self) {
        match self {
            Self::Own(exchange) => exchange.recall(),
            // Dropped, its stream is reset.
            Self::Stream(_) => {}
        }
    }
}

fn taken_apart<B>(answer: Response<B>, body: impl FnOnce(B) -> Incomplete) -> Sent {
    let (head, rest) = answer.into_parts();
    Sent::Answered(head, body(rest))
}

/// An answer's body.
pub(super) enum Body {
    Own(Connection, Incoming),
    Stream(Slot, RecvStream),
    /// There is none.
    Broken,
}

impl Body {
    /// The next part; `None`: it has ended. An error is that it broke off.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, ()>> {
        match self {
            Self::Own(_, body) if body.is_end_stream() => None,
            Self::Own(connection, body) => {
                let frame = connection.next(body).await?;
                // The other frames are trailers, which say nothing about the job.
                Some(match frame {
                    Ok(frame) => Ok(frame.into_data().unwrap_or_default()),
                    Err(_) => Err(()),
                })
            }
            Self::Stream(_, body) => Some(multi::next(body).await?.map_err(drop)),
            Self::Broken => Some(Err(())),
        }
    }

    /// The connection, for the next call, if it has one of its own.
    pub(super) fn into_connection(self) -> Option<Connection> {
        match self {
            Self::Own(connection, _) => Some(connection),
            Self::Stream(..) | Self::Broken => None,
        }
    }
}
