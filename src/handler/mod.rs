//! What is done with a job that may start.

pub mod exec;
pub mod forward;
#[cfg(feature = "http")]
pub mod http;
mod ruled;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::rules::answers::Seen;
pub use crate::rules::breaker::Trouble;
use crate::rules::job::Job;
use crate::rules::tenant::Tenant;

/// A handler's verdict on one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Done: the job is acked.
    Done,
    /// Failed for now: it costs an attempt and is tried again after `after`, or by the retry schedule.
    Retry {
        /// When to try again; `None`: the configured backoff.
        after: Option<Duration>,
        /// For the log, and for the dead letter when no attempt is left.
        reason: String,
    },
    /// Not now: tried again after `after`, and no attempt is used.
    Snooze {
        /// When to try again.
        after: Duration,
    },
    /// The API asked this tenant to stop: the tenant is throttled for all workers, and the job waits
    /// without using an attempt.
    Throttled {
        /// For how long; `None`: the API did not say.
        after: Option<Duration>,
        /// For the log and `inspect`.
        reason: String,
    },
    /// Nothing was sent, since the permit ran out, or what was prepared turned out to be of no use: the job asks for a new
    /// permit. No attempt is used.
    Late,
    /// Never: the job becomes a dead letter.
    Reject {
        /// Why, for `x-sluicegate-reason`.
        reason: String,
    },
}

/// The right to call the API once, now. The gate counted the call when it was asked; a call that is
/// sent much later would fall into a window in which it was not counted.
///
/// Clones are the same permit.
#[derive(Debug, Clone)]
pub struct Permit {
    send_by: Instant,
    way: Arc<OnceLock<Way>>,
}

/// Tells whether what was written has arrived.
struct Way(Box<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Way")
    }
}

impl Permit {
    /// A permit for a call that is sent until `send_by`.
    pub fn until(send_by: Instant) -> Self {
        Self {
            send_by,
            way: Arc::default(),
        }
    }

    /// Whether the call may still be sent. Look right before it is written, and answer [`Outcome::Late`] if not.
    pub fn is_good(&self) -> bool {
        Instant::now() <= self.send_by
    }

    /// The call is being written, and `has_arrived` tells, at any later time, whether the machine at the other end of its
    /// connection has acknowledged all of it. A call that came later than the guard covers is then counted from when it
    /// came. Not calling this leaves the way unknown: the guard covers it, or nothing does.
    pub fn written(&self, has_arrived: impl Fn() -> bool + Send + Sync + 'static) {
        // One permit, one call: only the first one counts.
        let _ = self.way.set(Way(Box::new(has_arrived)));
    }

    /// Whether somebody can tell that the call has arrived.
    pub(crate) fn is_watched(&self) -> bool {
        self.way.get().is_some()
    }

    /// Whether the call has arrived; `None`: nobody can tell.
    pub(crate) fn has_arrived(&self) -> Option<bool> {
        self.way.get().map(|Way(has_arrived)| has_arrived())
    }
}

/// What is known of a call's way to the API.
#[derive(Debug)]
pub enum Fate {
    /// Nothing was written: the API sees nothing of the call, and its permit is given back.
    Unwritten,
    /// It was written, or may have been, and nothing tells whether it has arrived; it does not arrive any more.
    Unknown,
    /// The API answered, so it has arrived.
    Answered,
    /// It was written, and its answer is not waited for any more: it may still arrive, or be worked on. Limits that count
    /// calls in flight count it on.
    Abandoned {
        /// For so long, at most a minute, unless it ends before.
        lease: Duration,
        /// When it does.
        ended: LateEnd,
    },
}

/// Resolves when it is known that a call that was given up has ended after all; it may never do so. Dropped, nobody wants to
/// know any more.
pub struct LateEnd(Pin<Box<dyn Future<Output = ()> + Send>>);

impl LateEnd {
    /// It is known when `ended` resolves.
    pub fn new(ended: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Box::pin(ended))
    }

    /// It is never known.
    pub fn never() -> Self {
        Self::new(std::future::pending())
    }
}

impl fmt::Debug for LateEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LateEnd")
    }
}

impl Future for LateEnd {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

/// A verdict, what the API's answer said of limits, and how far the call came.
#[derive(Debug)]
pub struct Attempt {
    /// What becomes of the job.
    pub outcome: Outcome,
    /// What was said; [`Seen::default`] where nothing was. Its `actual_cost` corrects what the job was charged.
    pub seen: Seen,
    /// What becomes of its permit.
    pub fate: Fate,
    /// The party at fault, for the breakers (`dispatch.breaker`), or `None` if the API is sound.
    pub trouble: Option<Trouble>,
    /// What the API answered, for whoever waits for the job's result (`dispatch.results`); `None`: nothing is told of it.
    pub answered: Option<Box<Answered>>,
}

/// What the API answered to a call, for the job's result.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answered {
    /// The status; `None`: the API has none.
    pub status: Option<u16>,
    /// Names and values of headers that are told, up to 32; a value longer than 2,048 bytes is left out.
    pub headers: Vec<(String, String)>,
    /// What the body is.
    pub content_type: Option<String>,
    /// How the body is packed.
    pub content_encoding: Option<String>,
    /// The body; what is longer than `dispatch.results.max-body` is cut.
    pub body: Bytes,
    /// The body went on.
    pub truncated: bool,
}

impl From<Outcome> for Attempt {
    /// A verdict of an API that said nothing of limits; [`Outcome::Retry`] says that it is failing.
    fn from(outcome: Outcome) -> Self {
        let fate = match outcome {
            Outcome::Late => Fate::Unwritten,
            _ => Fate::Unknown,
        };
        let failed = matches!(outcome, Outcome::Retry { .. });
        Self {
            outcome,
            seen: Seen::default(),
            fate,
            trouble: failed.then_some(Trouble::Failing),
            answered: None,
        }
    }
}

/// Does the work of one job, and has nothing to prepare before it. A panic counts as [`Outcome::Retry`], of a
/// call that may still be in flight.
///
/// A handler that opens connections, fetches tokens or renders bodies is a [`PreparingHandler`] instead: what takes
/// longer than a permit is good for must be done before the permit is asked for.
pub trait Handler: Send + Sync + 'static {
    /// Works on `job`: one call of the API at most, which `permit` allows.
    fn handle(&self, job: &Job, permit: Permit) -> impl Future<Output = Outcome> + Send;

    /// As [`Handler::handle`], for a handler that learns what a job really cost, or what is left of the API's
    /// own limit. This is what the worker calls.
    fn attempt(&self, job: &Job, permit: Permit) -> impl Future<Output = Attempt> + Send {
        async move { self.handle(job, permit).await.into() }
    }
}

/// Does the work of one job in two parts: first all that takes time, then, with a permit, the call. The permit comes
/// last, so it is not used up by what it does not pay for. Each [`Handler`] is one that has nothing to prepare.
///
/// The worker prepares up to `dispatch.concurrency` calls, those that run included. A panic counts as [`Outcome::Retry`].
///
/// ```
/// use std::io::ErrorKind::WouldBlock;
///
/// use sluicegate::{Attempt, Job, Outcome, Permit, PreparingHandler, Trouble};
/// use tokio::io::AsyncWriteExt;
/// use tokio::net::TcpStream;
///
/// /// Sends each job's body on a connection of its own.
/// struct Sender;
///
/// fn again(why: std::io::Error) -> Outcome {
///     Outcome::Retry { after: None, reason: why.to_string() }
/// }
///
/// impl PreparingHandler for Sender {
///     type Ready = TcpStream;
///
///     fn at_once(&self) -> Option<TcpStream> {
///         None // there is no pool
///     }
///
///     async fn prepare(&self, _: &Job) -> Result<TcpStream, Attempt> {
///         TcpStream::connect("api.example.com:4242").await.map_err(|why| Attempt {
///             trouble: Some(Trouble::Unreachable), // the API's failure, not the tenant's
///             ..again(why).into()
///         })
///     }
///
///     fn is_ready(&self, ready: &mut TcpStream) -> bool {
///         // Nothing was said yet, and the end was not either.
///         matches!(ready.try_read(&mut [0]), Err(why) if why.kind() == WouldBlock)
///     }
///
///     async fn send(&self, job: &Job, mut ready: TcpStream, permit: Permit) -> Attempt {
///         if !permit.is_good() {
///             return Outcome::Late.into(); // nothing was sent: the job asks for a new permit
///         }
///         match ready.write_all(&job.body).await {
///             Ok(()) => Outcome::Done.into(),
///             Err(why) => again(why).into(), // one call: no retries of its own
///         }
///     }
/// }
/// ```
pub trait PreparingHandler: Send + Sync + 'static {
    /// What a call needs beside its permit: a connection, a token, a rendered body. Dropped, it is given back.
    type Ready: Send + 'static;

    /// What fits any job and is there without waiting, such as an open connection that no call uses.
    fn at_once(&self) -> Option<Self::Ready>;

    /// As [`PreparingHandler::at_once`], for a job of `tenant`: what fits its jobs alone may be there, too, such as its token.
    fn at_once_for(&self, tenant: &Tenant) -> Option<Self::Ready> {
        let _ = tenant;
        self.at_once()
    }

    /// Prepares the call for `job`. It may wait and fail, and never calls the API: no permit is used. The error says what becomes of the
    /// job, and its `trouble` names the party at fault.
    fn prepare(&self, job: &Job) -> impl Future<Output = Result<Self::Ready, Attempt>> + Send;

    /// Whether the call could be made at once. Looked at right before the permit is asked for.
    fn is_ready(&self, ready: &mut Self::Ready) -> bool;

    /// The one call. Its first poll looks at the permit and writes, with nothing to wait for in between.
    fn send(
        &self,
        job: &Job,
        ready: Self::Ready,
        permit: Permit,
    ) -> impl Future<Output = Attempt> + Send;
}

impl<H: Handler> PreparingHandler for H {
    type Ready = ();

    fn at_once(&self) -> Option<()> {
        Some(())
    }

    async fn prepare(&self, _: &Job) -> Result<(), Attempt> {
        Ok(())
    }

    fn is_ready(&self, (): &mut ()) -> bool {
        true
    }

    fn send(&self, job: &Job, (): (), permit: Permit) -> impl Future<Output = Attempt> + Send {
        self.attempt(job, permit)
    }
}
