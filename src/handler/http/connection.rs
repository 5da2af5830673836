//! A connection for one call at a time (HTTP/1.1). The caller drives it: no task of its own runs
//! between the check of the permit and the write.

use std::error::Error;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{TrySendError, http1};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

use super::bounded::{BoundedStream, Bounds};
use super::call::{BodyBroken, CallFailure, CallResult};
use super::socket::{Socket, Stream};

/// Maximum size of the read buffer in bytes, and so of an answer's head.
const MAX_BUFFER: usize = 64 * 1024;
/// Maximum number of bytes read before an answer's head is complete, including interim answers.
/// Also the maximum after the head, without the bytes of the body: chunk sizes, chunk extensions
/// and trailers. The body's reader counts only the body.
const MAX_READ: usize = 4 * MAX_BUFFER;

type Http1Wire = http1::Connection<TokioIo<BoundedStream>, Full<Bytes>>;
type Http1Answer = Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>>;

/// An open connection. Dropping it closes it.
pub(super) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    /// The connection's I/O; `None` once it is closed.
    wire: Option<Http1Wire>,
    bounds: Bounds,
    socket: Socket,
}

/// A request in flight, with its connection. Dropping it closes the connection.
pub(super) struct OwnExchange {
    /// Boxed, since it has nearly two kilobytes that would be moved.
    connection: Box<Connection>,
    answer: Pin<Box<dyn Future<Output = Http1Answer> + Send>>,
    /// Body of the answer, once its head has arrived.
    body: Option<Incoming>,
    /// Number of bytes written to the connection before this request.
    before: u64,
    /// Length of the request's body.
    body_bytes: u64,
}

impl Connection {
    /// Starts HTTP/1.1 over `stream`.
    pub(super) async fn over(stream: Stream) -> hyper::Result<Self> {
        let bounds = Bounds::new(MAX_READ);
        let socket = Socket::below(&stream);
        let (sender, wire) = http1::Builder::new()
            .max_buf_size(MAX_BUFFER)
            .handshake(TokioIo::new(BoundedStream::new(stream, &bounds)))
            .await?;
        Ok(Self {
            sender,
            wire: Some(wire),
            bounds,
            socket,
        })
    }

    /// Returns true if the next request can probably be sent. Does not wait.
    pub(super) fn is_ready(&mut self) -> bool {
        // The next user of the connection registers its own waker.
        self.advance(&mut Context::from_waker(Waker::noop()));
        self.wire.is_some() && self.sender.is_ready()
    }

    /// Resolves when the server closes the connection, or sends something without a request.
    pub(super) async fn closed(&mut self) -> io::Error {
        let ended = poll_fn(|cx| match &mut self.wire {
            Some(open) => Pin::new(open).poll(cx),
            None => Poll::Ready(Ok(())),
        });
        let why: Box<dyn Error + Send + Sync> = match ended.await {
            Err(why) if !why.is_incomplete_message() => why.into(),
            _ => "the server closes connections before it gets a request".into(),
        };
        self.wire = None;
        io::Error::new(io::ErrorKind::UnexpectedEof, why)
    }

    /// Prepares to send `request`. The first poll of [`OwnExchange::answer`] writes it.
    pub(super) fn send(mut self: Box<Self>, request: Request<Bytes>) -> OwnExchange {
        self.bounds.renew();
        let body_bytes = request.body().len();
        let answer = self.sender.try_send_request(request.map(Full::new));
        OwnExchange {
            answer: Box::pin(answer),
            body: None,
            body_bytes: body_bytes.try_into().unwrap_or(u64::MAX),
            before: self.socket.written(),
            connection: self,
        }
    }

    /// Reads and writes as much as possible without waiting.
    fn advance(&mut self, cx: &mut Context<'_>) {
        // The future that waits for the answer returns the error. If there is none, the error
        // concerns no call.
        if let Some(open) = &mut self.wire
            && Pin::new(open).poll(cx).is_ready()
        {
            self.wire = None;
        }
    }
}

impl OwnExchange {
    /// Waits for the head of the answer.
    pub(super) async fn answer(&mut self) -> CallResult {
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
                CallResult::Answered(head)
            }
            Err(mut why) => match why.take_message() {
                Some(_) => CallResult::Unwritten,
                None => CallResult::Failed(CallFailure::Own(why.into_error())),
            },
        }
    }

    /// Returns the next part of the answer's body, or `None` if it has ended or there is no answer.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, BodyBroken>> {
        let Self {
            connection, body, ..
        } = self;
        let body = body.as_mut().filter(|body| !body.is_end_stream())?;
        let mut frame = body.frame();
        let frame = poll_fn(|cx| {
            connection.advance(cx);
            Pin::new(&mut frame).poll(cx)
        });
        // The other frames are trailers, which have no meaning for the job.
        let data = frame
            .await?
            .map(|frame| frame.into_data().unwrap_or_default());
        if let Ok(part) = &data {
            connection.bounds.allow(part.len());
        }
        Some(data.map_err(|_| BodyBroken))
    }

    /// Returns the connection for the next call. The answer must have been read to its end.
    pub(super) fn into_connection(self) -> Box<Connection> {
        self.connection
    }

    /// Returns true if a byte of the request was written.
    pub(super) fn is_written(&self) -> bool {
        self.connection.socket.written() > self.before
    }

    /// Returns true if the API's machine has acknowledged everything that was written.
    pub(super) fn is_acked(&self) -> bool {
        self.connection.socket.is_acked()
    }

    /// Returns a function that tells at any time whether the API's machine has received the
    /// request. The head's length is not known, so the function may return true while up to that
    /// many bytes at the request's end are not written yet.
    pub(super) fn arrival(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let body_bytes = self.before.saturating_add(self.body_bytes);
        let socket = self.connection.socket.clone();
        move || socket.written() > body_bytes && socket.is_acked()
    }

    /// Closes the connection and drops unacknowledged bytes.
    pub(super) fn recall(self) {
        self.connection.socket.recall();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::Instant;

    use crate::http::HttpHandler;
    use crate::{Permit, PreparingHandler as _};
    use config::Config;
    use kit::gate::tenant;
    use rules::job::Job;

    /// The largest value of `dispatch.results.max-body`.
    const BYTES: usize = 1 << 20;

    #[tokio::test]
    async fn a_result_has_all_of_a_body_that_is_not_too_long() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let api = listener.local_addr().expect("it is bound");
        let yaml = format!(
            "dispatch: {{http: {{url: 'http://{api}/', method: GET}}, \
            results: {{to: reply-to, max-body: {BYTES}}}}}"
        );
        let config = Config::parse("c.yaml", &yaml, std::iter::empty()).expect("valid");
        let http = config.dispatch.http.as_ref().expect("an API");
        let handler = HttpHandler::new(http, 1).expect("a usable url");
        let handler = handler.with_results(&config.dispatch.results);
        let answers = async {
            let (mut stream, _) = listener.accept().await.expect("it connects");
            let mut request = [0; 4096];
            assert!(stream.read(&mut request).await.expect("a request") > 0);
            let mut answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {BYTES}\r\n\r\n");
            answer.push_str(&"x".repeat(BYTES));
            // The peer may have closed the connection.
            let _ = stream.write_all(answer.as_bytes()).await;
        };
        let job = Job::new("1", tenant("acme"), "");
        let calls = async {
            let ready = handler.prepare(&job).await.expect("a connection");
            let permit = Permit::until(Instant::now() + Duration::from_secs(60));
            handler.send(&job, ready, permit).await
        };
        let ((), attempt) = tokio::join!(answers, calls);
        let answer = attempt.answered.expect("a result");
        assert_eq!((answer.body.len(), answer.truncated), (BYTES, false));
    }
}
