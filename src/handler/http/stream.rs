//! One call on a stream of a shared connection.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use hyper::header::HOST;
use hyper::{Request, Uri, Version};

use super::call::{BodyBroken, CallFailure, CallResult};
use super::shared_connection::{Http2Wire, StreamSlot, lock};
use super::socket::Socket;

/// A request in flight. Dropping it resets its stream.
pub(super) struct StreamExchange {
    answer: ResponseFuture,
    /// Body of the answer, once its head has arrived.
    body: Option<RecvStream>,
    /// Rest of the request that is not handed over yet.
    rest: Option<UnsentRest>,
    progress: Arc<SendProgress>,
    /// The last field, since it must be returned after the stream has ended.
    slot: StreamSlot,
}

/// Part of a request's body that the server does not accept yet.
struct UnsentRest {
    stream: SendStream<Bytes>,
    body: Bytes,
}

/// How far a request has been sent.
struct SendProgress {
    wire: Arc<Mutex<Http2Wire>>,
    socket: Socket,
    /// Whether all of it was handed to the connection.
    is_handed: AtomicBool,
    /// Number of bytes that the kernel had taken when all of the request was written. The stored
    /// number may be larger than the true one, but never smaller.
    end: OnceLock<u64>,
}

impl StreamExchange {
    /// Sends `request` to `full_uri` and writes it, except for the part that the server does not
    /// accept yet. Returns `None`, and sends nothing, if it can't be sent at once.
    pub(super) fn send(
        mut slot: StreamSlot,
        request: Request<Bytes>,
        full_uri: &Uri,
    ) -> Option<Self> {
        let (mut head, body) = request.into_parts();
        // The URI names the host in HTTP/2.
        head.headers.remove(HOST);
        (head.uri, head.version) = (full_uri.clone(), Version::HTTP_2);
        let wire = Arc::clone(slot.wire());
        let mut wire = lock(&wire);
        // Writes what earlier calls left, and finds out whether the server has gone.
        if !wire.is_drained_now() {
            return None;
        }
        let written = slot.socket().written();
        let mut sender = slot.run()?;
        let head = Request::from_parts(head, ());
        let (answer, stream) = sender.send_request(head, body.is_empty()).ok()?;
        // Only this opens the stream, so that the server accepts a part of the body.
        let _ = wire.advance();
        let mut exchange = Self {
            answer,
            body: None,
            rest: Some(UnsentRest { stream, body }),
            progress: Arc::new(SendProgress::of(&slot)),
            slot,
        };
        // The future that waits for the answer registers its own waker.
        let mut cx = Context::from_waker(Waker::noop());
        exchange.hand_over(&mut cx);
        let ended = wire.advance().is_ready();
        drop(wire);
        exchange.progress.end();
        // The server may have just lowered its limit of streams, or have gone.
        let waits = sender.poll_ready(&mut cx).is_pending();
        let nothing = ended && exchange.slot.socket().written() == written;
        (!waits && !nothing).then_some(exchange)
    }

    /// Waits for the head of the answer.
    pub(super) async fn answer(&mut self) -> CallResult {
        let answered = poll_fn(|cx| {
            self.write(cx);
            Pin::new(&mut self.answer).poll(cx)
        });
        match answered.await {
            Ok(answer) => {
                self.slot.gets_on();
                let (head, body) = answer.into_parts();
                self.body = Some(body);
                CallResult::Answered(head)
            }
            Err(why) if is_refused(&why) => CallResult::Refused(CallFailure::Stream(why)),
            Err(why) => CallResult::Failed(CallFailure::Stream(why)),
        }
    }

    /// Returns the next part of the answer's body, or `None` if it has ended or there is no answer.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, BodyBroken>> {
        let part = poll_fn(|cx| {
            self.write(cx);
            match &mut self.body {
                Some(body) => body.poll_data(cx),
                None => Poll::Ready(None),
            }
        });
        let part = part.await?.map_err(|_| BodyBroken);
        if let (Ok(part), Some(body)) = (&part, &mut self.body) {
            self.slot.gets_on();
            // The part was read, so the server may send more. An error means that nothing more
            // comes.
            let _ = body.flow_control().release_capacity(part.len());
        }
        Some(part)
    }

    /// Returns a function that tells at any time whether the API's machine has received the whole
    /// request.
    pub(super) fn arrival(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let progress = Arc::clone(&self.progress);
        move || progress.has_arrived()
    }

    /// Returns true if the API's machine has received the whole request.
    pub(super) fn is_acked(&self) -> bool {
        self.progress.has_arrived()
    }

    /// Stops sending calls over the connection, which may be dead. Calls in flight continue.
    pub(super) fn gives_up(&self) {
        self.slot.retire();
    }

    /// Resets the stream. Unacknowledged bytes are dropped when the last call on the connection has
    /// ended.
    pub(super) fn recall(self) {
        self.slot.socket().recall();
    }

    /// Hands over and writes more of the request.
    fn write(&mut self, cx: &mut Context<'_>) {
        if self.rest.is_some() {
            let wire = Arc::clone(&self.progress.wire);
            let mut wire = lock(&wire);
            self.hand_over(cx);
            // The future that waits for the answer learns of the connection's end.
            let _ = wire.advance();
        }
    }

    /// Hands as much of the request's body to the connection as the server accepts.
    fn hand_over(&mut self, cx: &mut Context<'_>) {
        let Some(rest) = &mut self.rest else {
            return;
        };
        let handed = rest.hand_over(cx);
        if handed == Poll::Ready(true) {
            self.progress.is_handed.store(true, Ordering::Release);
        }
        if handed.is_ready() {
            self.rest = None;
        }
        self.slot.writes(self.rest.is_some());
    }
}

impl UnsentRest {
    /// Returns `Ready(true)` if all of the body was handed over, and `Ready(false)` if the server
    /// wants no more of it.
    fn hand_over(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let Self { stream, body } = self;
        while !body.is_empty() {
            stream.reserve_capacity(body.len());
            let room = stream.capacity().min(body.len());
            if room > 0 {
                let part = body.split_to(room);
                if stream.send_data(part, body.is_empty()).is_err() {
                    return Poll::Ready(false);
                }
                continue;
            }
            match std::task::ready!(stream.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                // The future that waits for the answer returns the reason.
                Some(Err(_)) | None => return Poll::Ready(false),
            }
        }
        Poll::Ready(true)
    }
}

impl SendProgress {
    fn of(slot: &StreamSlot) -> Self {
        Self {
            wire: Arc::clone(slot.wire()),
            socket: slot.socket().clone(),
            is_handed: AtomicBool::new(false),
            end: OnceLock::new(),
        }
    }

    /// Returns the number of bytes that had been written when all of the request was, or `None` if
    /// part of it is not.
    fn end(&self) -> Option<u64> {
        if let Some(end) = self.end.get() {
            return Some(*end);
        }
        if !self.is_handed.load(Ordering::Acquire) {
            return None;
        }
        // The wire was advanced after the last part was handed over, without releasing the lock in
        // between.
        let is_drained = lock(&self.wire).is_drained();
        is_drained.then(|| *self.end.get_or_init(|| self.socket.written()))
    }

    fn has_arrived(&self) -> bool {
        self.end().is_some_and(|end| self.socket.has_acked(end))
    }
}

/// Returns true if the request has not been processed (RFC 9113, 8.7). If a GOAWAY of the server
/// ends the stream, the stream is above the last one that the server processes.
fn is_refused(why: &h2::Error) -> bool {
    let refused = why.is_reset() && why.reason() == Some(Reason::REFUSED_STREAM);
    why.is_remote() && (refused || why.is_go_away())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hyper_util::client::legacy::connect::HttpConnector;
    use tokio::net::TcpListener;
    use tokio::time::sleep;
    use tower_service::Service;

    use super::super::shared_connection::SharedConnection;
    use super::super::socket::{Sockets, Stream};
    use super::*;

    /// More than the kernel takes for a connection.
    const LARGE: usize = 32 << 20;
    /// Flow-control window of the server.
    const ALL: u32 = 1 << 30;

    async fn until(what: &str, done: impl Fn() -> bool) {
        for _ in 0..60_000 {
            if done() {
                return;
            }
            sleep(Duration::from_millis(1)).await;
        }
        panic!("waited in vain until {what}");
    }

    fn send(shared: &Arc<SharedConnection>, bytes: usize) -> StreamExchange {
        let slot = shared.take().expect("a stream is free");
        let request = Request::post("/").body(vec![b'x'; bytes].into());
        let full_uri = Uri::from_static("http://api/");
        let request = request.expect("a request");
        StreamExchange::send(slot, request, &full_uri).expect("it is sent")
    }

    /// The arrival of a call does not depend on bytes that other calls send after it.
    #[tokio::test]
    async fn a_call_has_arrived_once_all_bytes_are_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/", listener.local_addr().expect("it is bound"));
        let tcp = Sockets(HttpConnector::new()).call(url.parse().expect("a url"));
        let stream = Stream::Http(tcp.await.expect("it listens"));
        let (peer, _) = listener.accept().await.expect("it connects");
        let mut server = h2::server::Builder::new();
        server
            .initial_window_size(ALL)
            .initial_connection_window_size(ALL);
        let server = server.handshake::<_, Bytes>(peer);
        let shared = SharedConnection::over(stream, 4, Arc::default());
        let (server, shared) = tokio::join!(server, shared);
        let (mut server, shared) = (server.expect("HTTP/2"), shared.expect("HTTP/2"));

        let small = send(&shared, 2);
        until("the small one is there", small.arrival()).await;
        // The server announces its window, and then stops reading.
        let _small = server.accept().await.expect("a call");
        let mut large = send(&shared, LARGE);
        let has_arrived = large.arrival();
        tokio::spawn(async move { drop(large.answer().await) });
        let socket = small.slot.socket();
        until("the kernel is full", || {
            socket.waits() && !socket.is_acked()
        })
        .await;
        assert!(shared.take().is_none(), "it would be behind that");
        assert!(!has_arrived() && small.is_acked());

        let reads = async {
            while let Some(Ok((mut request, answer))) = server.accept().await {
                tokio::spawn(async move {
                    while let Some(Ok(part)) = request.body_mut().data().await {
                        let window = request.body_mut().flow_control();
                        window.release_capacity(part.len()).expect("it was taken");
                    }
                    // Dropping it would reset the stream.
                    sleep(Duration::MAX).await;
                    drop(answer);
                });
            }
        };
        tokio::select! {
            () = reads => panic!("it goes on"),
            () = until("the large one is there", has_arrived) => {}
        }
        assert!(shared.take().is_some(), "the lock is free");
    }
}
