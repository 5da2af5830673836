//! Handlers: they do the work of an admitted job.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test may have many cases")
)]
#![deny(missing_docs)]

pub mod exec;
pub mod forward;
#[cfg(feature = "http")]
pub mod http;
pub mod lines;
mod verdicts;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use rules::answers::LimitInfo;
pub use rules::failures::breaker::Trouble;
use rules::job::Job;
pub use rules::job::outcome::Outcome;
use rules::tenant::Tenant;

/// The right to call the API once, now. The gate counted the call when it admitted the job. A call
/// that is sent much later would fall into a window in which it was not counted.
///
/// Clones are the same permit.
#[derive(Debug, Clone)]
pub struct Permit {
    send_by: Instant,
    arrival: Arc<OnceLock<ArrivalProbe>>,
}

/// Tells whether the written request has arrived.
struct ArrivalProbe(Box<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for ArrivalProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ArrivalProbe")
    }
}

impl Permit {
    /// Creates a permit for a call that must be sent by `send_by`.
    pub fn until(send_by: Instant) -> Self {
        Self {
            send_by,
            arrival: Arc::default(),
        }
    }

    /// Returns true if the call may still be sent. Check this right before writing the request, and
    /// return [`Outcome::Late`] if it is false.
    pub fn is_good(&self) -> bool {
        Instant::now() <= self.send_by
    }

    /// Reports that the call is being written. `has_arrived` tells, at any later time, whether the
    /// peer's machine has acknowledged all of it. A call that arrived later than the guard covers
    /// is then counted from its arrival. Without this report, a call that arrives later than the
    /// guard covers goes unnoticed.
    pub fn written(&self, has_arrived: impl Fn() -> bool + Send + Sync + 'static) {
        // A permit is for one call: only the first report counts.
        let _ = self.arrival.set(ArrivalProbe(Box::new(has_arrived)));
    }

    /// Returns true if the arrival of the call can be observed.
    pub fn is_watched(&self) -> bool {
        self.arrival.get().is_some()
    }

    /// Returns whether the call has arrived, or `None` if that can't be observed.
    pub fn has_arrived(&self) -> Option<bool> {
        self.arrival
            .get()
            .map(|ArrivalProbe(has_arrived)| has_arrived())
    }
}

/// The fate of a call: whether it arrived at the API, as far as that is known.
#[derive(Debug)]
pub enum Fate {
    /// Nothing was written: the API sees nothing of the call, and its permit is given back.
    Unwritten,
    /// The call was or may have been written, and its arrival can't be observed. It does not arrive
    /// any later.
    Unknown,
    /// The API answered, so the call has arrived.
    Answered,
    /// The call was written and its answer is no longer awaited. It may still arrive or be in
    /// progress. Limits on calls in flight continue to count it.
    Abandoned {
        /// Maximum time for which they count it, at most a minute.
        lease: Duration,
        /// Resolves if the call ends earlier.
        ended: LateEnd,
    },
}

/// Resolves when it is known that an abandoned call has ended, which may never happen. It is
/// dropped when the end of the call no longer matters.
pub struct LateEnd(Pin<Box<dyn Future<Output = ()> + Send>>);

impl LateEnd {
    /// Creates a future that resolves when `ended` does.
    pub fn new(ended: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Box::pin(ended))
    }

    /// Creates a future that never resolves.
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

/// The result of a call: the verdict, what the API's answer said about limits, and how far the call
/// got.
#[derive(Debug)]
pub struct Attempt {
    /// Verdict on the job.
    pub outcome: Outcome,
    /// Information in the answer, or [`LimitInfo::default`] if there was none. Its `actual_cost`
    /// corrects the job's charge.
    pub seen: LimitInfo,
    /// Fate of the call, which decides about its permit.
    pub fate: Fate,
    /// The party at fault, for the breakers (`dispatch.breaker`), or `None` if the API is sound.
    pub trouble: Option<Trouble>,
    /// The API's answer for the job's result (`dispatch.results`), or `None` if the result has no
    /// answer.
    pub answered: Option<Box<ApiAnswer>>,
}

/// The API's answer to a call, for the job's result.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ApiAnswer {
    /// Status, or `None` if the API has none.
    pub status: Option<u16>,
    /// Names and values of up to 32 headers. A value longer than 2,048 bytes is left out.
    pub headers: Vec<(String, String)>,
    /// Media type of the body.
    pub content_type: Option<String>,
    /// Encoding of the body, such as `gzip`.
    pub content_encoding: Option<String>,
    /// Body, cut at `dispatch.results.max-body`.
    pub body: Bytes,
    /// Whether the body was cut.
    pub truncated: bool,
}

impl From<Outcome> for Attempt {
    /// Creates the attempt of an API that said nothing about limits. [`Outcome::Retry`] means that
    /// the API is failing.
    fn from(outcome: Outcome) -> Self {
        let fate = match outcome {
            Outcome::Late => Fate::Unwritten,
            _ => Fate::Unknown,
        };
        let failed = matches!(outcome, Outcome::Retry { .. });
        Self {
            outcome,
            seen: LimitInfo::default(),
            fate,
            trouble: failed.then_some(Trouble::Failing),
            answered: None,
        }
    }
}

/// Does the work of a job, with nothing to prepare before it. A panic counts as [`Outcome::Retry`]
/// of a call that may still be in flight.
///
/// A handler that opens connections, fetches tokens or renders bodies should be a
/// [`PreparingHandler`]: anything that takes longer than a permit is valid must be done before the
/// permit is requested.
pub trait Handler: Send + Sync + 'static {
    /// Works on `job` with at most one call of the API, which `permit` allows.
    fn handle(&self, job: &Job, permit: Permit) -> impl Future<Output = Outcome> + Send;

    /// Does what [`Handler::handle`] does, for a handler that learns a job's actual cost or the
    /// state of the API's own limits. The worker calls this method.
    fn attempt(&self, job: &Job, permit: Permit) -> impl Future<Output = Attempt> + Send {
        async move { self.handle(job, permit).await.into() }
    }
}

/// Does the work of a job in two parts: first everything that takes time, then, with a permit, the
/// call. The permit is requested last, so that it does not expire during the preparation. Every
/// [`Handler`] is a `PreparingHandler` that has nothing to prepare.
///
/// The worker prepares up to `dispatch.concurrency` calls, including calls in flight. A panic
/// counts as [`Outcome::Retry`].
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
///         // The peer has neither sent anything nor closed the connection.
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
    /// Everything that a call needs beside its permit: a connection, a token, a rendered body.
    /// Dropping it gives it back.
    type Ready: Send + 'static;

    /// Returns resources that fit any job and are available without waiting, such as an idle
    /// connection.
    fn at_once(&self) -> Option<Self::Ready>;

    /// Does what [`PreparingHandler::at_once`] does, for a job of `tenant`. It may include
    /// resources for that tenant alone, such as its token.
    fn at_once_for(&self, tenant: &Tenant) -> Option<Self::Ready> {
        let _ = tenant;
        self.at_once()
    }

    /// Learns that at most `calls` calls are made at a time from now on, because
    /// `dispatch.concurrency` was changed.
    fn set_concurrency(&self, calls: usize) {
        let _ = calls;
    }

    /// Prepares the call for `job`. This may wait and fail, but must not call the API, since no
    /// permit is used. The error is the job's attempt; its `trouble` names the party at fault. A
    /// worker that could not reach the API also prepares a call without making it, as a test.
    fn prepare(&self, job: &Job) -> impl Future<Output = Result<Self::Ready, Attempt>> + Send;

    /// Returns true if the call could be made at once. It is checked right before the permit is
    /// requested.
    fn is_ready(&self, ready: &mut Self::Ready) -> bool;

    /// Makes the call. The first poll must check the permit and write the request, without waiting
    /// in between.
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
