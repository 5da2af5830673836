//! The strict downstream: an API that takes at most so many calls, answers 429 to any call above that
//! with zero tolerance, and writes down every arrival by its own clock. It runs on a thread of its own,
//! so that the rest of the demo does not delay its clock.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sluicegate::rules::limit::Algorithm;
use tokio::sync::oneshot;

use super::plan::{Job, Plan};

/// The demo's own bodies are far shorter.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// One call, as the downstream saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// The job it came for.
    pub job: Job,
    /// What `x-attempt` said; 0 when it said nothing readable.
    pub attempt: u32,
    /// Nanoseconds since the downstream started, on its monotonic clock.
    pub mono_ns: u64,
    /// Nanoseconds since the epoch, on its wall clock.
    pub wall_ns: u64,
    /// What it was answered.
    pub status: u16,
}

/// How far one tenant is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Jobs answered for good: 2xx or 422, each once.
    pub settled: usize,
    /// Calls answered 429.
    pub throttled: usize,
}

/// Everything that arrived.
#[derive(Debug)]
pub struct Ledger {
    plan: Plan,
    arrivals: Vec<Arrival>,
    /// Calls that name no job of the demo, or came when [`Self::room`] was used up.
    strangers: usize,
    /// The times of each tenant's latest calls, at most as many as its limit allows.
    recent: Vec<VecDeque<u64>>,
    progress: Vec<Progress>,
    settled: Vec<bool>,
}

impl Ledger {
    fn new(plan: Plan) -> Self {
        Self {
            arrivals: Vec::with_capacity(plan.total()),
            strangers: 0,
            recent: vec![VecDeque::new(); plan.tenants],
            progress: vec![Progress::default(); plan.tenants],
            settled: vec![false; plan.total()],
            plan,
        }
    }

    /// Arrivals that are written down at most: a demo that goes wrong must not fill the memory.
    fn room(&self) -> usize {
        4 * self.plan.total() + 1000
    }

    /// Writes a call down and decides its answer: a status, and with 429 the time to wait.
    fn arrive(&mut self, job: Job, attempt: u32, mono_ns: u64, wall_ns: u64) -> (u16, Duration) {
        let limit = &self.plan.limit;
        let max = limit.max() as usize;
        let window = limit.window_ms() * 1_000_000;
        let recent = &mut self.recent[job.tenant];
        // The oldest of the last `max` calls decides whether the window is full.
        let oldest = if recent.len() == max {
            recent.pop_front()
        } else {
            None
        };
        let (now, free_at) = match limit.algorithm() {
            Algorithm::FixedWindow => {
                (wall_ns, oldest.map(|oldest| (oldest / window + 1) * window))
            }
            // The only other one that `--algo` takes is the sliding window.
            _ => (mono_ns, oldest.map(|oldest| oldest + window)),
        };
        recent.push_back(now);
        let wait = free_at.map_or(0, |free_at| free_at.saturating_sub(now));
        let status = match (wait, self.plan.rejected(job)) {
            (1.., _) => StatusCode::TOO_MANY_REQUESTS,
            (0, true) => StatusCode::UNPROCESSABLE_ENTITY,
            (0, false) => StatusCode::OK,
        };
        let progress = &mut self.progress[job.tenant];
        if status == StatusCode::TOO_MANY_REQUESTS {
            progress.throttled += 1;
        } else if !std::mem::replace(&mut self.settled[self.plan.id(job)], true) {
            progress.settled += 1;
        }
        let status = status.as_u16();
        self.arrivals.push(Arrival {
            job,
            attempt,
            mono_ns,
            wall_ns,
            status,
        });
        (status, Duration::from_nanos(wait))
    }
}

/// The running downstream; dropped, it ends.
pub struct Downstream {
    address: SocketAddr,
    ledger: Arc<Mutex<Ledger>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Downstream {
    /// Starts it on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// What the system said when there is no port, thread or runtime.
    pub fn start(plan: &Plan) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let ledger = Arc::new(Mutex::new(Ledger::new(plan.clone())));
        let clock = Clock {
            start: Instant::now(),
        };
        let app = Router::new()
            .fallback(call)
            .with_state((clock, Arc::clone(&ledger)));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("downstream".into())
            .spawn(move || {
                runtime.block_on(async {
                    let served = async {
                        let listener = tokio::net::TcpListener::from_std(listener)?;
                        axum::serve(listener, app).await
                    };
                    tokio::select! {
                        result = served => if let Err(error) = result {
                            eprintln!("the demo's downstream failed: {error}");
                        },
                        _ = stopped => {}
                    }
                });
            })?;
        Ok(Self {
            address,
            ledger,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// How far each tenant is.
    pub fn progress(&self) -> Vec<Progress> {
        lock(&self.ledger).progress.clone()
    }

    /// Every arrival so far, in order, and how many calls named no job of the demo.
    pub fn arrivals(&self) -> (Vec<Arrival>, usize) {
        let ledger = lock(&self.ledger);
        (ledger.arrivals.clone(), ledger.strangers)
    }
}

impl Drop for Downstream {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has been printed by then.
            let _ = thread.join();
        }
    }
}

#[derive(Clone, Copy)]
struct Clock {
    start: Instant,
}

impl Clock {
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

/// Nothing that holds the lock can panic half-way, so a poisoned ledger is still a whole one.
fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn call(
    State((clock, ledger)): State<(Clock, Arc<Mutex<Ledger>>)>,
    request: Request,
) -> Response {
    let answer = {
        let mut ledger = lock(&ledger);
        // Read under the lock, so that the ledger is sorted.
        let (mono_ns, wall_ns) = (clock.mono_ns(), clock.wall_ns());
        let headers = request.headers();
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let job = text("x-job-id").and_then(|id| ledger.plan.job(id));
        let right = job.filter(|job| text("x-tenant") == Some(&*Plan::tenant(job.tenant)));
        match right.filter(|_| ledger.arrivals.len() < ledger.room()) {
            Some(job) => {
                let attempt = text("x-attempt").and_then(|n| n.parse().ok()).unwrap_or(0);
                let (status, wait) = ledger.arrive(job, attempt, mono_ns, wall_ns);
                answer(status, wait)
            }
            None => {
                ledger.strangers += 1;
                (
                    StatusCode::NOT_FOUND,
                    HeaderMap::new(),
                    "no job of the demo".to_owned(),
                )
            }
        }
    };
    // The body is read so that the connection can be used again.
    if to_bytes(request.into_body(), MAX_BODY_BYTES).await.is_err() {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    }
    answer.into_response()
}

fn answer(status: u16, wait: Duration) -> (StatusCode, HeaderMap, String) {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut headers = HeaderMap::new();
    let text = match status {
        StatusCode::TOO_MANY_REQUESTS => {
            let seconds = wait.as_millis().div_ceil(1000) as u64;
            headers.insert(header::RETRY_AFTER, seconds.into());
            "the limit is exceeded"
        }
        StatusCode::UNPROCESSABLE_ENTITY => "this job is made to be rejected",
        _ => "done",
    };
    (status, headers, text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::check;
    use sluicegate::rules::limit::Limit;

    const MS: u64 = 1_000_000;

    fn ledger(algorithm: Algorithm) -> Ledger {
        let second = Duration::from_secs(1);
        let limit = Limit::new("default", algorithm, 2, second, Duration::from_millis(50));
        Ledger::new(Plan {
            tenants: 2,
            jobs: 100,
            limit: limit.expect("it is a limit"),
            workers: 1,
        })
    }

    fn answers(ledger: &mut Ledger, tenant: usize, times_ms: &[u64]) -> Vec<(u16, u64)> {
        let calls = times_ms.iter().enumerate().map(|(number, ms)| {
            let (status, wait) = ledger.arrive(Job { tenant, number }, 1, ms * MS, ms * MS);
            (status, wait.as_millis() as u64)
        });
        calls.collect()
    }

    #[test]
    fn a_sliding_limit_is_kept_to_the_nanosecond_for_each_tenant() {
        let mut ledger = ledger(Algorithm::SlidingWindow);
        let expected = [(200, 0), (200, 0), (429, 1), (200, 0)];
        assert_eq!(answers(&mut ledger, 0, &[0, 500, 999, 1500]), expected);
        assert_eq!(answers(&mut ledger, 1, &[1500, 1500]), [(200, 0), (200, 0)]);
        let settled: Vec<_> = ledger
            .progress
            .iter()
            .map(|tenant| tenant.settled)
            .collect();
        assert_eq!((settled, ledger.progress[0].throttled), (vec![3, 2], 1));
    }

    #[test]
    fn a_fixed_limit_starts_anew_at_the_edge() {
        let mut ledger = ledger(Algorithm::FixedWindow);
        let expected = [(200, 0), (200, 0), (429, 1), (200, 0), (200, 0), (429, 999)];
        assert_eq!(
            answers(&mut ledger, 0, &[998, 998, 999, 1000, 1001, 1001]),
            expected
        );
    }

    #[test]
    fn what_it_answers_429_is_what_the_checker_counts() {
        let mut ledger = ledger(Algorithm::SlidingWindow);
        let times: Vec<u64> = (0..90).map(|n| n * n % 97 + n * 400).collect();
        let refused = answers(&mut ledger, 0, &times)
            .iter()
            .filter(|(status, _)| *status == 429)
            .count();
        assert!(refused > 0);
        assert_eq!(refused, check::sliding_violations(&times, 2, 1000));
    }

    #[test]
    fn the_last_job_is_rejected_and_a_repeated_one_settles_once() {
        let mut ledger = ledger(Algorithm::SlidingWindow);
        let last = Job {
            tenant: 0,
            number: 99,
        };
        assert_eq!(ledger.arrive(last, 1, 0, 0).0, 422);
        assert_eq!(ledger.arrive(last, 1, 1, 1).0, 422);
        assert_eq!(ledger.progress[0].settled, 1);
        assert_eq!(ledger.arrivals.len(), 2);
    }
}
