//! The strict API: it allows a limited number of calls, answers 429 to any call above that with
//! zero tolerance, and records every arrival by its own clock.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpSocket;
use trial::separate_server::SeparateServer;

use super::answers::words_of;
use super::ledger::{Arrival, ArrivalLedger, TenantProgress};
use super::scenario::Scenario;
use super::workload::{DemoJob, Workload};

/// Maximum size of a body. The demo's own bodies are far shorter.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// The running API. Dropping it stops it.
pub struct DemoApi {
    address: SocketAddr,
    door: Door,
    app: Router,
    clock: DemoClock,
    ledger: Arc<Mutex<ArrivalLedger>>,
}

/// Whether it accepts connections.
enum Door {
    Open(SeparateServer),
    /// Its port refuses connections and is reserved.
    Shut(TcpSocket),
    /// It could be neither closed nor opened again.
    Lost,
}

impl DemoApi {
    /// Starts it on a free port of 127.0.0.1. Its clock counts from `start`.
    ///
    /// # Errors
    /// The system's error, if no port, thread or runtime is available.
    pub fn start(plan: &Workload, start: Instant) -> io::Result<Self> {
        let ledger = Arc::new(Mutex::new(ArrivalLedger::new(plan.clone())));
        let clock = DemoClock { start };
        let app = Router::new()
            .fallback(call)
            .with_state((clock, Arc::clone(&ledger)));
        let served = app.clone();
        let server = SeparateServer::start(async |listener| axum::serve(listener, served).await)?;
        Ok(Self {
            address: server.address(),
            door: Door::Open(server),
            app,
            clock,
            ledger,
        })
    }

    /// Returns its URL.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Ends its connections and refuses new ones from now on. Returns the time by its clock.
    ///
    /// # Errors
    /// Its port is lost.
    pub fn go_away(&mut self) -> io::Result<u64> {
        if let Door::Open(server) = std::mem::replace(&mut self.door, Door::Lost) {
            // This also closes its port.
            drop(server);
        }
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(self.address)?;
        self.door = Door::Shut(socket);
        Ok(self.clock.mono_ns())
    }

    /// Accepts connections again at the same port. Returns the time by its clock.
    ///
    /// # Errors
    /// No thread or runtime is available.
    pub fn come_back(&mut self) -> io::Result<u64> {
        let since = self.clock.mono_ns();
        if let Door::Shut(socket) = std::mem::replace(&mut self.door, Door::Lost) {
            let listener = socket.listen(BACKLOG)?.into_std()?;
            let app = self.app.clone();
            let serve = async |listener| axum::serve(listener, app).await;
            self.door = Door::Open(SeparateServer::start_at(listener, serve)?);
        }
        Ok(since)
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
    State((clock, ledger)): State<(DemoClock, Arc<Mutex<ArrivalLedger>>)>,
    request: Request,
) -> Response {
    let answer = {
        let mut ledger = lock(&ledger);
        // Read under the lock, so that the ledger is sorted.
        let (mono_ns, wall_ns) = (clock.mono_ns(), clock.wall_ns());
        let headers = request.headers();
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let job = text("x-job-id").and_then(|id| ledger.plan().job(id));
        let tenant = |job: &DemoJob| ledger.plan().tenant(job.tenant);
        let right = job.filter(|job| text("x-tenant") == Some(&*tenant(job)));
        match right.filter(|_| ledger.has_room()) {
            Some(job) => {
                let attempt = text("x-attempt").and_then(|n| n.parse().ok()).unwrap_or(0);
                let (status, wait) = ledger.arrive(job, attempt, mono_ns, wall_ns);
                let plan = ledger.plan();
                let costs = plan.scenario == Scenario::Costs;
                let actual_cost = costs.then(|| plan.cost(job).actual);
                let (status, headers, words) = answer(status, wait, actual_cost);
                (status, headers, words_of(ledger.last(), &words))
            }
            None => {
                ledger.stranger();
                (
                    StatusCode::NOT_FOUND,
                    HeaderMap::new(),
                    "no job of the demo".to_owned(),
                )
            }
        }
    };
    // Read the body, so that the connection can be reused.
    if to_bytes(request.into_body(), MAX_BODY_BYTES).await.is_err() {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    }
    answer.into_response()
}

fn answer(
    status: u16,
    wait: Duration,
    actual_cost: Option<u64>,
) -> (StatusCode, HeaderMap, String) {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut headers = HeaderMap::new();
    if let Some(cost) = actual_cost {
        headers.insert("x-actual-cost", cost.into());
    }
    let text = match status {
        StatusCode::TOO_MANY_REQUESTS => {
            let seconds = wait.as_millis().div_ceil(1000) as u64;
            headers.insert(header::RETRY_AFTER, seconds.into());
            "not now"
        }
        StatusCode::UNPROCESSABLE_ENTITY => "this job is made to be rejected",
        _ => "done",
    };
    (status, headers, text.to_owned())
}
