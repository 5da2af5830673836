//! The strict downstream: it records each call at its arrival, and is as slow and rude as its seed says. Workers call it, or others
//! to whom jobs were forwarded.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::RETRY_AFTER;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use kit::still::{Still, Stillness};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use trial::apart::Apart;

use crate::bed::rude::{RUDE, WAYS};
use crate::history::{Answer, History, Job, What};

/// The path of requests for access tokens; their tenant follows.
pub const TOKENS: &str = "/token/";
/// What a 429 names as `Retry-After`, in whole seconds.
pub const CLOSED: Duration = Duration::from_secs(1);

/// What the downstream does with a call: how long it thinks, and then what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Manners {
    thinks: Duration,
    then: Answer,
}

/// What `seed` says of a job's call number `nth`, or of its fate.
fn manners(seed: u64, job: Job, nth: u64) -> Manners {
    // The fate is the job's, the manners are the call's.
    let of_job = seed ^ (u64::from(job.tenant) << 32 | u64::from(job.number)) ^ 0xd0_57;
    let rejected = StdRng::seed_from_u64(of_job).random_ratio(1, 200);
    let mut random = StdRng::seed_from_u64(of_job.wrapping_add(nth.wrapping_mul(0x9e37_79b9)));
    let thinks = match random.random_range(0..1000) {
        // Longer than the workers wait.
        0..2 => Duration::from_secs(3600),
        2..32 => Duration::from_millis(random.random_range(100..900)),
        _ => Duration::from_millis(random.random_range(0..20)),
    };
    let then = match random.random_range(0..1000) {
        0..2 => Answer::Throttled,
        2..12 => Answer::Failed,
        12..17 => Answer::Cut,
        _ if rejected => Answer::Rejected,
        _ => Answer::Done,
    };
    Manners { thinks, then }
}

/// What all connections share.
struct Api {
    seed: u64,
    history: Arc<History>,
    calls: AtomicU64,
    hangs: AtomicBool,
    trap: watch::Sender<Trap>,
    stillness: Arc<Stillness>,
}

/// Waits for a call of a worker, and holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Trap {
    #[default]
    None,
    For(usize),
    Caught,
}

/// The running downstream; dropped, it ends.
pub struct Downstream {
    server: Apart,
    api: Arc<Api>,
}

/// Whose call it is: of which job, in which attempt, and which worker started it in which of its lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    pub job: Job,
    pub attempt: u32,
    pub worker: usize,
    pub life: u32,
}

impl Downstream {
    /// Starts it on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// There is no port, thread or runtime.
    pub fn start(seed: u64, history: Arc<History>) -> io::Result<Self> {
        let api = Arc::new(Api {
            seed,
            history,
            calls: AtomicU64::new(0),
            hangs: AtomicBool::new(false),
            trap: watch::Sender::new(Trap::None),
            stillness: Arc::default(),
        });
        let serving = Arc::clone(&api);
        let server = Apart::start(move |listener| serve(listener, serving))?;
        Ok(Self { server, api })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// From now on it reads nothing, or again: then what it was sent meanwhile, too.
    pub fn stand_still(&self, still: bool) {
        self.api.stillness.set(still);
    }

    /// From now on it answers nobody, or again; who waits already is answered.
    pub fn hang(&self, hangs: bool) {
        self.api.hangs.store(hangs, Ordering::Relaxed);
    }

    /// Waits for a call of `worker`, which is then not answered before [`Self::release`]; whether one came within
    /// `patience`.
    pub async fn catch(&self, worker: usize, patience: Duration) -> bool {
        self.api.trap.send_replace(Trap::For(worker));
        let mut seen = self.api.trap.subscribe();
        (timeout(patience, seen.wait_for(|trap| *trap == Trap::Caught)).await).is_ok()
    }

    /// Answers the call that was caught, and catches no more.
    pub fn release(&self) {
        self.api.trap.send_replace(Trap::None);
    }

    /// A call that came now on another way; how it ends. A caller that goes away drops it.
    pub async fn call(&self, caller: Caller, is_its_jobs: bool) -> Answer {
        let api = &self.api;
        let mut open = api.arrived(api.history.now(), caller);
        if !is_its_jobs {
            api.history.add(What::Mangled { job: caller.job });
        }
        api.end(&mut open, caller).await
    }
}

impl Api {
    /// Writes down a call that arrived at `at`.
    fn arrived(&self, at: u64, caller: Caller) -> Open<'_> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let Caller {
            job,
            attempt,
            worker,
            life,
        } = caller;
        self.history.add_at(
            at,
            What::Arrived {
                call,
                job,
                attempt,
                worker,
                life,
            },
        );
        Open {
            history: &self.history,
            call,
            answer: Answer::Gone,
        }
    }

    /// Does with the call what the seed says.
    async fn end(&self, open: &mut Open<'_>, caller: Caller) -> Answer {
        self.hold(caller.worker).await;
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        let manners = manners(self.seed, caller.job, open.call);
        sleep(manners.thinks).await;
        open.answer = manners.then;
        manners.then
    }

    /// Holds a call of `worker`, if it is waited for.
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
            // It fails only when the downstream ends.
            let _ = seen.wait_for(|trap| *trap == Trap::None).await;
        }
    }
}

async fn serve(listener: TcpListener, api: Arc<Api>) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(connection(stream, Arc::clone(&api)));
    }
}

/// Serves until the caller or the seed ends it. An error is one of both.
async fn connection(stream: TcpStream, api: Arc<Api>) {
    let stream = Still::new(stream, &api.stillness);
    let service = service_fn(|request| call(Arc::clone(&api), request));
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// The connection is cut: what a handler's error means to hyper.
#[derive(Debug, thiserror::Error)]
#[error("cut")]
struct Cut;

impl From<Infallible> for Cut {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Writes down how a call ended, also when its caller goes away.
struct Open<'a> {
    history: &'a History,
    call: u64,
    answer: Answer,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let Self { call, answer, .. } = *self;
        self.history.add(What::Answered { call, answer });
    }
}

async fn call(api: Arc<Api>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Cut> {
    let at = api.history.now();
    let Some(caller) = caller(&request) else {
        return Ok(other(&request).await);
    };
    let job = caller.job;
    let mut open = api.arrived(at, caller);
    let is_its_tenants = header(request.headers(), "x-tenant") == Some(&*job.tenant_name());
    // One that breaks off is a caller that goes away. The workers' bodies are small.
    if let Ok(body) = request.into_body().collect().await
        && (body.to_bytes() != job.body() || !is_its_tenants)
    {
        api.history.add(What::Mangled { job });
    }
    match api.end(&mut open, caller).await {
        Answer::Done => Ok(status(StatusCode::OK)),
        Answer::Rejected => Ok(status(StatusCode::UNPROCESSABLE_ENTITY)),
        Answer::Failed => Ok(status(StatusCode::INTERNAL_SERVER_ERROR)),
        Answer::Throttled => {
            let mut answer = status(StatusCode::TOO_MANY_REQUESTS);
            (answer.headers_mut()).insert(RETRY_AFTER, CLOSED.as_secs().into());
            Ok(answer)
        }
        Answer::Cut | Answer::Gone => Err(Cut),
    }
}

/// Answers calls for rude tenants, which no job of the history makes, and requests for access tokens.
async fn other<B>(request: &Request<B>) -> Response<Full<Bytes>> {
    let [revoked, waiting, hanging] = WAYS;
    let asks = request.uri().path().strip_prefix(TOKENS);
    let of = asks.or_else(|| header(request.headers(), "x-tenant"));
    match (asks.is_some(), of.unwrap_or_default()) {
        (true, tenant) if tenant.starts_with(revoked) => status(StatusCode::UNAUTHORIZED),
        (true, tenant) if tenant.starts_with(waiting) => std::future::pending().await,
        // Tokens are asked for all the time.
        (true, _) => Response::new(Full::from(r#"{"access_token": "t", "expires_in": 4}"#)),
        (false, tenant) if tenant.starts_with(hanging) => std::future::pending().await,
        (false, tenant) if tenant.starts_with(RUDE) => status(StatusCode::OK),
        _ => status(StatusCode::NOT_FOUND),
    }
}

fn status(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

/// Who calls, by headers and path.
fn caller<B>(request: &Request<B>) -> Option<Caller> {
    let (worker, life) = request.uri().path().strip_prefix('/')?.split_once('/')?;
    Some(Caller {
        job: header(request.headers(), "x-job-id")?.parse().ok()?,
        attempt: header(request.headers(), "x-attempt")?.parse().ok()?,
        worker: worker.parse().ok()?,
        life: life.parse().ok()?,
    })
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_how_each_call_ends_and_most_end_well() {
        let all = |seed| -> Vec<Manners> {
            let job = |number| Job { tenant: 1, number };
            (0..4000)
                .map(|n| manners(seed, job(n), u64::from(n)))
                .collect()
        };
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
        let of = |answer| all(1).iter().filter(|m| m.then == answer).count();
        for answer in [
            Answer::Throttled,
            Answer::Failed,
            Answer::Cut,
            Answer::Rejected,
        ] {
            assert!((1..200).contains(&of(answer)), "{answer:?}: {}", of(answer));
        }
        assert!(of(Answer::Done) > 3500);
    }

    #[test]
    fn a_rejected_job_stays_rejected() {
        let job = |number| Job { tenant: 0, number };
        let ends = |n, nth| manners(1, job(n), nth).then;
        let rejected = (0..4000).find(|n| ends(*n, 0) == Answer::Rejected);
        let rejected = rejected.expect("one of 200");
        assert!((0..100).all(|nth| ends(rejected, nth) != Answer::Done));
    }

    #[test]
    fn a_caller_is_known_by_its_path_and_headers() {
        let request = |path: &str, id: &str| {
            let request = Request::post(path)
                .header("x-job-id", id)
                .header("x-attempt", "2");
            request.body(()).expect("a request")
        };
        let job = Job {
            tenant: 3,
            number: 4,
        };
        let known = Caller {
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
