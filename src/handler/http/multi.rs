//! HTTP/2: one connection for many calls, each on a stream of its own.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http_body_util::Full;
use hyper::header::HOST;
use hyper::{Request, Response, Uri, Version};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, timeout};

use super::connection::Stream;

/// So much of an answer's body is on its way at once, in bytes.
const WINDOW: u32 = 64 * 1024;
/// An answer's head is no longer, in bytes.
const MAX_HEAD: u32 = 64 * 1024;
/// The server says within this how many streams it takes; until then there is one.
const SETTINGS: Duration = Duration::from_secs(1);

/// An open connection. It is closed when nobody has it any more, and no call is under way.
pub(super) struct Multi {
    sender: SendRequest<Bytes>,
    /// Streams that calls have, or are to have.
    taken: AtomicUsize,
    /// There are so many at most, and no more than the server takes.
    most: usize,
    closed: Arc<AtomicBool>,
    /// When the last call had ended.
    used: Mutex<Instant>,
}

impl Multi {
    /// Speaks HTTP/2 over `stream`, with at most so many calls at once.
    pub(super) async fn over(stream: Stream, most: usize) -> Result<Arc<Self>, h2::Error> {
        let (sender, mut connection) = Builder::new()
            .enable_push(false)
            .initial_max_send_streams(1)
            .initial_window_size(WINDOW)
            .max_header_list_size(MAX_HEAD)
            .handshake::<_, Bytes>(TokioIo::new(stream))
            .await?;
        // A server says how many streams it takes first of all: with its answer to a ping that is known.
        if let Some(mut pings) = connection.ping_pong() {
            let answered = async {
                tokio::select! {
                    biased;
                    answer = pings.ping(h2::Ping::opaque()) => answer.map(drop),
                    ended = &mut connection => ended,
                }
            };
            // One that answers none takes one call at a time until it says more.
            timeout(SETTINGS, answered).await.unwrap_or(Ok(()))?;
        }
        let closed = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&closed);
        tokio::spawn(async move {
            // What is under way is told of an error by itself.
            let _ = connection.await;
            ended.store(true, Ordering::Release);
        });
        Ok(Arc::new(Self {
            sender,
            taken: AtomicUsize::new(0),
            most,
            closed,
            used: Mutex::new(Instant::now()),
        }))
    }

    /// Whether streams can be opened, as far as can be seen without waiting.
    pub(super) fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    /// Since when no call has a stream; `None`: one has.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let idle = self.taken.load(Ordering::Acquire) == 0;
        idle.then(|| *self.used.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A stream for one call, if one is free.
    pub(super) fn take(self: &Arc<Self>) -> Option<Slot> {
        let most = self.most.min(self.sender.current_max_send_streams());
        let more = |taken: usize| (taken < most).then_some(taken + 1);
        (self.taken)
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .ok()?;
        let slot = Slot(Arc::clone(self));
        self.is_open().then_some(slot)
    }
}

/// The right to one stream. Dropped, it is given back.
pub(super) struct Slot(Arc<Multi>);

impl Drop for Slot {
    fn drop(&mut self) {
        *self.0.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Slot {
    /// Whether it can be used now.
    pub(super) fn is_open(&self) -> bool {
        self.0.is_open()
    }

    /// Sends `request` with `body` to `target`: the first poll of [`Exchange::answer`] hands it to the connection, which writes it
    /// as soon as its task runs.
    pub(super) fn send(self, request: Request<Full<Bytes>>, body: Bytes, target: Uri) -> Exchange {
        let (mut head, _) = request.into_parts();
        // The target says it.
        head.headers.remove(HOST);
        (head.uri, head.version) = (target, Version::HTTP_2);
        let sender = self.0.sender.clone();
        Exchange {
            answer: Box::pin(exchange(sender, Request::from_parts(head, ()), body)),
            slot: self,
        }
    }
}

/// What became of a request.
pub(super) enum Sent {
    /// The answer's head is there.
    Answered(Response<RecvStream>),
    /// The server has not looked at it: the connection was closed before, or it refused the stream.
    Unwritten,
    /// The server may have seen it.
    Failed(h2::Error),
}

/// A request on its way. Dropped, its stream is reset.
pub(super) struct Exchange {
    answer: Pin<Box<dyn Future<Output = Sent> + Send>>,
    slot: Slot,
}

impl Exchange {
    /// Waits for the answer's head.
    pub(super) async fn answer(&mut self) -> Sent {
        self.answer.as_mut().await
    }

    /// The stream, for the rest of the answer.
    pub(super) fn into_slot(self) -> Slot {
        self.slot
    }
}

async fn exchange(mut sender: SendRequest<Bytes>, request: Request<()>, body: Bytes) -> Sent {
    // Nobody waits here: a stream is free.
    if poll_fn(|cx| sender.poll_ready(cx)).await.is_err() {
        return Sent::Unwritten;
    }
    let Ok((mut answer, stream)) = sender.send_request(request, body.is_empty()) else {
        return Sent::Unwritten;
    };
    let mut writing = Box::pin(write(stream, body));
    let answered = tokio::select! {
        // An answer may come before the request was written to its end.
        answered = &mut answer => answered,
        stream = &mut writing => {
            // Dropped before the answer, it would be a reset.
            let answered = answer.await;
            drop(stream);
            answered
        }
    };
    match answered {
        Ok(answer) => Sent::Answered(answer),
        Err(why) if was_not_looked_at(&why) => Sent::Unwritten,
        Err(why) => Sent::Failed(why),
    }
}

/// RFC 9113, 8.7: such a request has not been processed.
fn was_not_looked_at(why: &h2::Error) -> bool {
    let refused = why.is_reset() && why.reason() == Some(Reason::REFUSED_STREAM);
    let beyond = why.is_go_away() && why.reason() == Some(Reason::NO_ERROR);
    why.is_remote() && (refused || beyond)
}

/// Writes `body` as far as the server lets it.
async fn write(mut stream: SendStream<Bytes>, mut body: Bytes) -> SendStream<Bytes> {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        match poll_fn(|cx| stream.poll_capacity(cx)).await {
            Some(Ok(room)) => {
                let part = body.split_to(room.min(body.len()));
                if !part.is_empty() && stream.send_data(part, body.is_empty()).is_err() {
                    break;
                }
            }
            // The answer says why.
            Some(Err(_)) | None => break,
        }
    }
    stream
}

/// The next part of an answer's body; `None`: it has ended.
pub(super) async fn next(body: &mut RecvStream) -> Option<Result<Bytes, h2::Error>> {
    let part = body.data().await?;
    if let Ok(part) = &part {
        // It was read, so more may come.
        let _ = body.flow_control().release_capacity(part.len());
    }
    Some(part)
}
