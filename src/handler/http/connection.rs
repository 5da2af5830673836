//! A connection for one call at a time (HTTP/1.1), driven by whoever uses it: no task of its own stands between the look at
//! the permit and the write.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Waker};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{TrySendError, http1};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

use super::bounded::{Bounded, Bounds};
use super::call::{Broken, Failure, Sent};
use super::socket::{Socket, Stream};

/// What is read is buffered up to this, in bytes: an answer's head is no longer.
const MAX_BUFFER: usize = 64 * 1024;
/// So many bytes are read, interim answers included, until the head of an answer is complete, and as many after it: what
/// frames a body (sizes of chunks, their extensions, trailers) is not counted by who reads the body.
const MAX_READ: usize = 4 * MAX_BUFFER;

type Wire = http1::Connection<TokioIo<Bounded>, Full<Bytes>>;
type Answer = Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>>;

/// An open connection. Dropped, it is closed.
pub(super) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    /// `None`: closed.
    wire: Option<Wire>,
    bounds: Bounds,
    socket: Socket,
}

/// A request on its way, and its connection. Dropped, it is closed.
pub(super) struct Exchange {
    /// Nearly two kilobytes, which are not moved with it.
    connection: Box<Connection>,
    answer: Pin<Box<dyn Future<Output = Answer> + Send>>,
    /// The answer's body, once its head is there.
    body: Option<Incoming>,
    /// Bytes that had been written to the connection before.
    before: u64,
    /// The length of the request's body.
    whole: u64,
}

impl Connection {
    /// Speaks HTTP/1.1 over `stream`.
    pub(super) async fn over(stream: Stream) -> hyper::Result<Self> {
        let bounds = Bounds::new(MAX_READ);
        let socket = Socket::below(&stream);
        let (sender, wire) = http1::Builder::new()
            .max_buf_size(MAX_BUFFER)
            .handshake(TokioIo::new(Bounded::new(stream, &bounds)))
            .await?;
        Ok(Self {
            sender,
            wire: Some(wire),
            bounds,
            socket,
        })
    }

    /// Whether the next request can be sent, as far as can be seen without waiting.
    pub(super) fn is_ready(&mut self) -> bool {
        // Whoever waits for this connection next leaves a waker of its own.
        self.advance(&mut Context::from_waker(Waker::noop()));
        self.wire.is_some() && self.sender.is_ready()
    }

    /// Sends `request`: the first poll of [`Exchange::answer`] writes.
    pub(super) fn send(mut self: Box<Self>, request: Request<Bytes>) -> Exchange {
        self.bounds.renew();
        let whole = request.body().len();
        let answer = self.sender.try_send_request(request.map(Full::new));
        Exchange {
            answer: Box::pin(answer),
            body: None,
            whole: whole.try_into().unwrap_or(u64::MAX),
            before: self.socket.written(),
            connection: self,
        }
    }

    /// Reads and writes what can be without waiting.
    fn advance(&mut self, cx: &mut Context<'_>) {
        // An error is passed on by what waits for the answer; with nobody waiting there is nobody to tell.
        if let Some(open) = &mut self.wire
            && Pin::new(open).poll(cx).is_ready()
        {
            self.wire = None;
        }
    }
}

impl Exchange {
    /// Waits for the answer's head.
    pub(super) async fn answer(&mut self) -> Sent {
        let Self {
            connection,
            answer,
            body,
            ..
        } = self;
        let answer = poll_fn(|cx| {
            connection.advance(cx);
            answer.as_mut().poll(cx)
        });
        match answer.await {
            Ok(answer) => {
                connection.bounds.renew();
                let (head, rest) = answer.into_parts();
                *body = Some(rest);
                Sent::Answered(head)
            }
            Err(mut why) => match why.take_message() {
                Some(_) => Sent::Unwritten,
                None => Sent::Failed(Failure::Own(why.into_error())),
            },
        }
    }

    /// The next part of the answer's body; `None`: it has ended, or there is no answer.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, Broken>> {
        let Self {
            connection, body, ..
        } = self;
        let body = body.as_mut().filter(|body| !body.is_end_stream())?;
        let mut frame = body.frame();
        let frame = poll_fn(|cx| {
            connection.advance(cx);
            Pin::new(&mut frame).poll(cx)
        });
        // The other frames are trailers, which say nothing about the job.
        let data = frame
            .await?
            .map(|frame| frame.into_data().unwrap_or_default());
        Some(data.map_err(|_| Broken))
    }

    /// The connection, for the next call: the answer was read to its end.
    pub(super) fn into_connection(self) -> Box<Connection> {
        self.connection
    }

    /// Whether a byte of the request was written.
    pub(super) fn is_written(&self) -> bool {
        self.connection.socket.written() > self.before
    }

    /// Whether the API's machine has all that was written.
    pub(super) fn is_acked(&self) -> bool {
        self.connection.socket.is_acked()
    }

    /// Tells whether the API's machine has all of the request, but for as many bytes at its end as its head has at most. It may be
    /// asked at any time.
    pub(super) fn arrival(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let whole = self.before.saturating_add(self.whole);
        let socket = self.connection.socket.clone();
        move || socket.written() > whole && socket.is_acked()
    }

    /// Closes the connection, and drops what was not acknowledged.
    pub(super) fn recall(self) {
        self.connection.socket.recall();
    }
}
