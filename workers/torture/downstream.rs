//! The strict downstream. It records each call when it arrives, and its seed decides how slow and
//! rude it is. The callers are workers, or other workers to which jobs were forwarded.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::Incoming;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use trial::api::{ApiServer, Cut, Reply, header};

use crate::bed::rude::{RUDE, SLOW, WAYS};
use crate::history::{DownstreamAnswer, EventKind, History, JobId};

/// Path of requests for access tokens, followed by the tenant.
pub const TOKENS: &str = "/token/";
/// Duration of a call of [`SLOW`]: less than `dispatch.http.timeout`, so that no breaker stops its
/// calls.
const SLOW_CALL: Duration = Duration::from_secs(4);
/// The `Retry-After` of a 429, in whole seconds. It is longer than the window of the limits: a
/// tenant that has used up its limit makes no calls for a window, even if its worker ignores the
/// 429. It is short, so that several 429s cost no tenant the share that it must have beside a rude
/// neighbor.
pub const CLOSED: Duration = Duration::from_secs(2);

/// How the downstream treats a call: the delay, and then the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CallBehavior {
    delay: Duration,
    then: DownstreamAnswer,
}

/// Returns how `seed` treats call number `nth` of the run, which is a call of `job`.
fn manners(seed: u64, job: JobId, nth: u64) -> CallBehavior {
    // Rejection depends on the job; everything else depends on the call.
    let of_job = seed ^ (u64::from(job.tenant) << 32 | u64::from(job.number)) ^ 0xd0_57;
    let rejected = StdRng::seed_from_u64(of_job).random_ratio(1, 200);
    let mut random = StdRng::seed_from_u64(of_job.wrapping_add(nth.wrapping_mul(0x9e37_79b9)));
    let delay = match random.random_range(0..1000) {
        // Longer than the workers wait.
        0..2 => Duration::from_secs(3600),
        2..32 => Duration::from_millis(random.random_range(100..900)),
        _ => Duration::from_millis(random.random_range(0..20)),
    };
    let then = match random.random_range(0..1000) {
        0..2 => DownstreamAnswer::Throttled,
        2..12 => DownstreamAnswer::Failed,
        12..17 => DownstreamAnswer::Cut,
        _ if rejected => DownstreamAnswer::Rejected,
        _ => DownstreamAnswer::Done,
    };
    CallBehavior { delay, then }
}

/// State shared by all connections.
struct DownstreamState {
    seed: u64,
    history: Arc<History>,
    calls: AtomicU64,
    hangs: AtomicBool,
    trap: watch::Sender<Trap>,
}

/// Waits for a call of a worker, and holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Trap {
    #[default]
    None,
    For(usize),
    Caught,
}

/// The running downstream. Dropping it ends it.
pub struct Downstream {
    server: ApiServer,
    api: Arc<DownstreamState>,
}

/// The origin of a call: its job and attempt, and the worker with its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallOrigin {
    pub job: JobId,
    pub attempt: u32,
    pub worker: usize,
    pub life: u32,
}

impl Downstream {
    /// Starts the downstream on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// Returns an error if there is no port, thread or runtime.
    pub fn start(seed: u64, history: Arc<History>) -> io::Result<Self> {
        let api = Arc::new(DownstreamState {
            seed,
            history,
            calls: AtomicU64::new(0),
            hangs: AtomicBool::new(false),
            trap: watch::Sender::new(Trap::None),
        });
        let called = Arc::clone(&api);
        let server = ApiServer::start_apart(move |request| call(Arc::clone(&called), request))?;
        Ok(Self { server, api })
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.server.door.address
    }

    /// Stops reading from connections, or resumes it and reads everything that was sent meanwhile.
    pub fn stand_still(&self, still: bool) {
        self.server.stand_still(still);
    }

    /// Sets whether new calls hang forever. Calls that already wait for an answer get one.
    pub fn hang(&self, hangs: bool) {
        self.api.hangs.store(hangs, Ordering::Relaxed);
    }

    /// Waits for a call of `worker`, which is then not answered before [`Self::release`]. Returns
    /// true if one came within `patience`.
    pub async fn catch(&self, worker: usize, patience: Duration) -> bool {
        self.api.trap.send_replace(Trap::For(worker));
        let mut seen = self.api.trap.subscribe();
        (timeout(patience, seen.wait_for(|trap| *trap == Trap::Caught)).await).is_ok()
    }

    /// Answers the caught call, and catches no more.
    pub fn release(&self) {
        self.api.trap.send_replace(Trap::None);
    }

    /// Takes a call that did not come over HTTP, and returns how it ends. Dropping the future means
    /// that the caller left.
    pub async fn call(&self, caller: CallOrigin, is_its_jobs: bool) -> DownstreamAnswer {
        let api = &self.api;
        let mut open = api.arrived(api.history.now(), caller);
        if !is_its_jobs {
            api.history.add(EventKind::Mangled { job: caller.job });
        }
        api.end(&mut open, caller).await
    }
}

impl DownstreamState {
    /// Records a call that arrived at `at`.
    fn arrived(&self, at: u64, caller: CallOrigin) -> OpenCall<'_> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let CallOrigin {
            job,
            attempt,
            worker,
            life,
        } = caller;
        self.history.add_at(
            at,
            EventKind::Arrived {
                call,
                job,
                attempt,
                worker,
                life,
            },
        );
        OpenCall {
            history: &self.history,
            call,
            answer: DownstreamAnswer::Gone,
        }
    }

    /// Ends the call as the seed decides.
    async fn end(&self, open: &mut OpenCall<'_>, caller: CallOrigin) -> DownstreamAnswer {
        self.hold(caller.worker).await;
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        let manners = manners(self.seed, caller.job, open.call);
        sleep(manners.delay).await;
        open.answer = manners.then;
        manners.then
    }

    /// Holds the call if one of `worker` is awaited.
    async fn hold(&self, worker: usize) {
        let caught = self.trap.send_if_modified(|trap| {
            let caught = *trap == Trap::For(worker);
            if caught {
                *trap = Trap::Caught;
            }
            caught
        });
        if caught {
            let mut seen = self.trap.subscribe();
            // Fails only when the downstream ends.
            let _ = seen.wait_for(|trap| *trap == Trap::None).await;
        }
    }
}

/// Records how a call ended, even if its caller leaves.
struct OpenCall<'a> {
    history: &'a History,
    call: u64,
    answer: DownstreamAnswer,
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        let Self { call, answer, .. } = *self;
        self.history.add(EventKind::Answered { call, answer });
    }
}

async fn call(api: Arc<DownstreamState>, request: Request<Incoming>) -> Reply {
    let at = api.history.now();
    let Some(caller) = caller(&request) else {
        return other(&request).await;
    };
    let job = caller.job;
    let mut open = api.arrived(at, caller);
    let is_its_tenants = header(request.headers(), "x-tenant") == Some(&*job.tenant_name());
    // A body that breaks off means that the caller left. The workers' bodies are small.
    if let Ok(body) = request.into_body().collect().await
        && (body.to_bytes() != job.body() || !is_its_tenants)
    {
        api.history.add(EventKind::Mangled { job });
    }
    match api.end(&mut open, caller).await {
        DownstreamAnswer::Done => Reply::ok(),
        DownstreamAnswer::Rejected => Reply::status(422),
        DownstreamAnswer::Failed => Reply::status(500),
        DownstreamAnswer::Throttled => {
            Reply::status(429).header("retry-after", &CLOSED.as_secs().to_string())
        }
        DownstreamAnswer::Cut | DownstreamAnswer::Gone => Reply::cut(Cut::Closed),
    }
}

/// Answers calls for rude tenants, whose jobs are not in the history, and requests for access
/// tokens.
async fn other<B>(request: &Request<B>) -> Reply {
    let [revoked, waiting, hanging] = WAYS;
    let asks = request.uri().path().strip_prefix(TOKENS);
    let of = asks.or_else(|| header(request.headers(), "x-tenant"));
    match (asks.is_some(), of.unwrap_or_default()) {
        (true, tenant) if tenant.starts_with(revoked) => Reply::status(401),
        (true, tenant) if tenant.starts_with(waiting) => std::future::pending().await,
        // Expires soon, so that workers keep requesting tokens.
        (true, _) => Reply::ok().body(r#"{"access_token": "t", "expires_in": 4}"#),
        (false, tenant) if tenant.starts_with(hanging) => std::future::pending().await,
        (false, SLOW) => Reply::ok().after(SLOW_CALL),
        (false, tenant) if tenant.starts_with(RUDE) => Reply::ok(),
        _ => Reply::status(404),
    }
}

/// Reads the origin of a call from its headers and path.
fn caller<B>(request: &Request<B>) -> Option<CallOrigin> {
    let (worker, life) = request.uri().path().strip_prefix('/')?.split_once('/')?;
    Some(CallOrigin {
        job: header(request.headers(), "x-job-id")?.parse().ok()?,
        attempt: header(request.headers(), "x-attempt")?.parse().ok()?,
        worker: worker.parse().ok()?,
        life: life.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_how_each_call_ends_and_most_end_well() {
        let all = |seed| -> Vec<CallBehavior> {
            let job = |number| JobId { tenant: 1, number };
            (0..4000)
                .map(|n| manners(seed, job(n), u64::from(n)))
                .collect()
        };
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
        let of = |answer| all(1).iter().filter(|m| m.then == answer).count();
        for answer in [
            DownstreamAnswer::Throttled,
            DownstreamAnswer::Failed,
            DownstreamAnswer::Cut,
            DownstreamAnswer::Rejected,
        ] {
            assert!((1..200).contains(&of(answer)), "{answer:?}: {}", of(answer));
        }
        assert!(of(DownstreamAnswer::Done) > 3500);
    }

    #[test]
    fn a_rejected_job_stays_rejected() {
        let job = |number| JobId { tenant: 0, number };
        let ends = |n, nth| manners(1, job(n), nth).then;
        let rejected = (0..4000).find(|n| ends(*n, 0) == DownstreamAnswer::Rejected);
        let rejected = rejected.expect("one of 200");
        assert!((0..100).all(|nth| ends(rejected, nth) != DownstreamAnswer::Done));
    }

    #[test]
    fn a_caller_is_identified_by_path_and_headers() {
        let request = |path: &str, id: &str| {
            let request = Request::post(path)
                .header("x-job-id", id)
                .header("x-attempt", "2");
            request.body(()).expect("a request")
        };
        let job = JobId {
            tenant: 3,
            number: 4,
        };
        let known = CallOrigin {
            job,
            attempt: 2,
            worker: 1,
            life: 7,
        };
        assert_eq!(caller(&request("/1/7", "3-4")), Some(known));
        for (path, id) in [
            ("/", "3-4"),
            ("/1", "3-4"),
            ("/1/x", "3-4"),
            ("/1/7", "stranger"),
        ] {
            assert_eq!(caller(&request(path, id)), None, "{path} {id}");
        }
    }
}
