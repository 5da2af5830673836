//! HTTP/2: one connection for many calls, each on a stream of its own.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::connection::Stream;

/// What is read of an answer before it is taken, in bytes.
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
        }))
    }

    /// Whether streams can be opened, as far as can be seen without waiting.
    pub(super) fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    /// No call has a stream.
    pub(super) fn is_idle(&self) -> bool {
        self.taken.load(Ordering::Acquire) == 0
    }

    /// A stream for one call, if one is free.
    pub(super) fn take(self: &Arc<Self>) -> Option<Slot> {
        let most = self.most.min(self.sender.current_max_send_streams());
        let more = |taken: usize| (taken < most).then_some(taken + 1);
        let taken = (self.taken).fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        let free = self.is_open() && taken.is_ok();
        if taken.is_ok() && !free {
            self.taken.fetch_sub(1, Ordering::AcqRel);
        }
        free.then(|| Slot(Arc::clone(self)))
    }
}

/// The right to one stream. Dropped, it is given back.
pub(super) struct Slot(Arc<Multi>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Slot {
    /// Whether it can be used now.
    pub(super) fn is_open(&self) -> bool {
        self.0.is_open()
    }

    /// Sends `request`: the first poll of this hands it to the connection, which writes it as soon as its task runs.
    pub(super) async fn send(&self, request: Request<()>, body: Bytes) -> Sent {
        let mut sender = self.0.sender.clone();
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
