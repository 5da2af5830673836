//! The strict API: it allows a limited number of calls, answers 429 to any call above that with
//! zero tolerance, and records every arrival by its own clock.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{HeaderMap, Request};
use trial::api::{ApiServer, Reply, header};

use super::answers::words_of;
use super::ledger::{Arrival, ArrivalLedger, TenantProgress};
use super::scenario::Scenario;
use super::workload::{DemoJob, Workload};

/// Maximum size of a body. The demo's own bodies are far shorter.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// The running API. Dropping it stops it.
pub struct DemoApi {
    server: ApiServer,
    clock: DemoClock,
    ledger: Arc<Mutex<ArrivalLedger>>,
}

impl DemoApi {
    /// Starts it on a free port of 127.0.0.1. Its clock counts from `start`.
    ///
    /// # Errors
    /// The system's error, if no port, thread or runtime is available.
    pub fn start(plan: &Workload, start: Instant) -> io::Result<Self> {
        let ledger = Arc::new(Mutex::new(ArrivalLedger::new(plan.clone())));
        let clock = DemoClock { start };
        let called = Arc::clone(&ledger);
        let answer = move |request| call(clock, Arc::clone(&called), request);
        Ok(Self {
            server: ApiServer::start_apart(answer)?,
            clock,
            ledger,
        })
    }

    /// Returns its URL.
    pub fn url(&self) -> String {
        format!("http://{}/", self.server.door.address)
    }

    /// Ends its connections and refuses new ones from now on. Returns the time by its clock.
    pub async fn go_away(&self) -> u64 {
        self.server.door.refuse().await;
        self.clock.mono_ns()
    }

    /// Accepts connections again at the same port. Returns the time by its clock.
    ///
    /// # Errors
    /// The system's error, if it can't listen.
    pub fn come_back(&self) -> io::Result<u64> {
        let since = self.clock.mono_ns();
        self.server.door.take().map(|()| since)
    }

    /// Returns the beginning of its clock.
    pub fn origin(&self) -> Instant {
        self.clock.start
    }

    /// Returns each tenant's progress.
    pub fn progress(&self) -> Vec<TenantProgress> {
        lock(&self.ledger).progress()
    }

    /// Returns all arrivals so far, in order, and the number of calls that named no job of the
    /// demo.
    pub fn arrivals(&self) -> (Vec<Arrival>, usize) {
        lock(&self.ledger).arrivals()
    }
}

#[derive(Clone, Copy)]
struct DemoClock {
    start: Instant,
}

impl DemoClock {
    fn mono_ns(self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
    fn wall_ns(self) -> u64 {
        let since_epoch = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// No code that holds the lock can panic halfway, so a poisoned ledger is still consistent.
fn lock(ledger: &Mutex<ArrivalLedger>) -> MutexGuard<'_, ArrivalLedger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn call(
    clock: DemoClock,
    ledger: Arc<Mutex<ArrivalLedger>>,
    request: Request<Incoming>,
) -> Reply {
    let reply = arrive(clock, &mut lock(&ledger), request.headers());
    // Read the body, so that the connection can be reused.
    match Limited::new(request.into_body(), MAX_BODY_BYTES)
        .collect()
        .await
    {
        Ok(_) => reply,
        Err(_) => Reply::status(413),
    }
}

/// Records a call and decides its answer.
fn arrive(clock: DemoClock, ledger: &mut ArrivalLedger, headers: &HeaderMap) -> Reply {
    // Read under the lock, so that the ledger is sorted.
    let (mono_ns, wall_ns) = (clock.mono_ns(), clock.wall_ns());
    let job = header(headers, "x-job-id").and_then(|id| ledger.plan().job(id));
    let tenant = |job: &DemoJob| ledger.plan().tenant(job.tenant);
    let right = job.filter(|job| header(headers, "x-tenant") == Some(&*tenant(job)));
    let Some(job) = right.filter(|_| ledger.has_room()) else {
        ledger.stranger();
        return Reply::status(404).body("no job of the demo");
    };
    let attempt = header(headers, "x-attempt").and_then(|n| n.parse().ok());
    let (status, wait) = ledger.arrive(job, attempt.unwrap_or(0), mono_ns, wall_ns);
    let (words, retry_after) = match status {
        429 => ("not now", Some(wait.as_millis().div_ceil(1000))),
        422 => ("this job is made to be rejected", None),
        _ => ("done", None),
    };
    let mut reply = Reply::status(status).body(words_of(ledger.last(), words));
    if let Some(seconds) = retry_after {
        reply = reply.header("retry-after", &seconds.to_string());
    }
    if ledger.plan().scenario == Scenario::Costs {
        let cost = ledger.plan().cost(job).actual;
        reply = reply.header("x-actual-cost", &cost.to_string());
    }
    reply
}
