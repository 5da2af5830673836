//! The pool of programs, as many as there are simultaneous calls. Each is started, offered while it
//! is idle, and replaced once it is no longer usable.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::child::{Child, NoAnswer, NotStarted};
use super::stderr::LogRateLimit;
use crate::verdicts::{self, retry, unprepared};
use crate::{Attempt, Outcome, Permit, Trouble};
use config::Exec;
use rules::failures::retry::Backoff;
use rules::job::verdict::{self, Verdict};

/// Minimum interval at which the same reason is logged again.
const REMINDER_INTERVAL: Duration = Duration::from_secs(60);
/// Run time after which a program counts as good even if it served no job.
const MIN_GOOD_RUN: Duration = Duration::from_secs(60);

/// A job for a program.
pub(super) struct ProgramJob {
    /// Number of the call, which the answer must repeat.
    pub call: u64,
    pub id: String,
    pub line: Vec<u8>,
    pub permit: Permit,
    pub reply: oneshot::Sender<Attempt>,
}

/// An idle program, reserved for a job.
pub struct ReadyProgram {
    offer: oneshot::Sender<ProgramJob>,
    _claim: ProgramClaim,
}

impl ReadyProgram {
    /// Returns true if the program is still idle.
    pub(super) fn is_good(&self) -> bool {
        !self.offer.is_closed()
    }

    /// Gives the job to the program. Fails if the program has ended meanwhile. The claim must be
    /// kept until the job has ended.
    pub(super) fn give(self, work: ProgramJob) -> Result<ProgramClaim, ()> {
        let Self {
            offer,
            _claim: claim,
        } = self;
        offer.send(work).map(|()| claim).map_err(drop)
    }
}

/// A call that wants or has a program. The pool has as many programs as it ever had seats at once.
pub(super) struct ProgramClaim(Arc<PoolState>);

impl Drop for ProgramClaim {
    fn drop(&mut self) {
        self.0.seats.fetch_sub(1, Ordering::Relaxed);
    }
}

struct PoolState {
    exec: Exec,
    idle: Mutex<Vec<oneshot::Sender<ProgramJob>>>,
    offered: Notify,
    seats: AtomicUsize,
    programs: AtomicUsize,
    stderr_limit: Arc<LogRateLimit>,
    /// Called for each program that another one replaces.
    replaced: Box<dyn Fn() + Send + Sync>,
    /// Whether the last program could not be started because this machine lacked a resource.
    is_short: AtomicBool,
    /// Reason why the last program ended, and when it was logged.
    last: Mutex<(String, Option<Instant>)>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// The pool of programs.
pub(super) struct ProgramPool(Arc<PoolState>);

impl ProgramPool {
    /// Starts the first program, so that a command that can't run shows at once. Must be called
    /// within a tokio runtime.
    pub fn new(exec: &Exec, replaced: impl Fn() + Send + Sync + 'static) -> Self {
        let shared = Arc::new(PoolState {
            exec: exec.clone(),
            idle: Mutex::default(),
            offered: Notify::new(),
            seats: AtomicUsize::new(0),
            programs: AtomicUsize::new(0),
            stderr_limit: Arc::new(LogRateLimit::new()),
            replaced: Box::new(replaced),
            is_short: AtomicBool::new(false),
            last: Mutex::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        shared.add_program();
        Self(shared)
    }

    /// Takes an idle program, if there is one.
    pub fn take(&self) -> Option<ReadyProgram> {
        let offer = self.0.take()?;
        Some(ReadyProgram {
            offer,
            _claim: self.0.claim(),
        })
    }

    /// Waits for an idle program. The error says why there is none.
    pub async fn wait(&self) -> Result<ReadyProgram, Attempt> {
        let shared = &self.0;
        let within = shared.exec.start_timeout;
        let deadline = Instant::now() + within;
        let claim = shared.claim();
        loop {
            let mut offered = pin!(shared.offered.notified());
            // Registers before looking, so that a program offered in between is not missed.
            offered.as_mut().enable();
            if let Some(offer) = shared.take() {
                return Ok(ReadyProgram {
                    offer,
                    _claim: claim,
                });
            }
            if timeout_at(deadline, offered).await.is_err() {
                let last = shared.last.lock().unwrap_or_else(PoisonError::into_inner);
                let why = match last.0.as_str() {
                    "" => "all programs are busy",
                    why => why,
                };
                let trouble = match shared.is_short.load(Ordering::Relaxed) {
                    true => Trouble::Local,
                    false => Trouble::Unreachable,
                };
                let why = format!(
                    "no program is ready within {within:?} (dispatch.exec.start-timeout): {why}"
                );
                return Err(unprepared(trouble, why));
            }
        }
    }

    /// Ends all programs: asks each to end, and kills it if it has not ended within `grace`.
    pub async fn close(&self, grace: Duration) {
        *(self.0.last.lock().unwrap_or_else(PoisonError::into_inner)) = Default::default();
        self.0.stop.cancel();
        self.0.tasks.close();
        // Each task ends by itself. Tasks that hang are dropped with the process.
        let _ = tokio::time::timeout(grace + Duration::from_secs(5), self.0.tasks.wait()).await;
    }
}

impl Drop for ProgramPool {
    fn drop(&mut self) {
        self.0.stop.cancel();
    }
}

impl PoolState {
    fn take(&self) -> Option<oneshot::Sender<ProgramJob>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let offer = idle.pop()?;
            if !offer.is_closed() {
                return Some(offer);
            }
        }
    }

    fn claim(self: &Arc<Self>) -> ProgramClaim {
        let seats = self.seats.fetch_add(1, Ordering::Relaxed) + 1;
        if seats > self.programs.load(Ordering::Relaxed) {
            self.add_program();
        }
        ProgramClaim(Arc::clone(self))
    }

    fn add_program(self: &Arc<Self>) {
        if !self.stop.is_cancelled() {
            self.programs.fetch_add(1, Ordering::Relaxed);
            let shared = Arc::clone(self);
            self.tasks.spawn(async move { shared.keep_one().await });
        }
    }

    /// Keeps one program running until the pool is closed.
    async fn keep_one(&self) {
        let mut pauses = Backoff::default();
        while !self.stop.is_cancelled() {
            let started = tokio::select! {
                started = Child::start(&self.exec, Arc::clone(&self.stderr_limit)) => started,
                () = self.stop.cancelled() => return,
            };
            let (began, mut served) = (Instant::now(), 0_u64);
            let why = match started {
                Err(NotStarted { why, is_short }) => {
                    self.is_short.store(is_short, Ordering::Relaxed);
                    Some(why)
                }
                Ok(mut child) => {
                    self.is_short.store(false, Ordering::Relaxed);
                    let why = self.serve(&mut child, &mut served).await;
                    match why {
                        None => child.stop(self.grace()).await,
                        Some(_) => child.kill().await,
                    }
                    why
                }
            };
            let Some(why) = why else { return };
            self.log_restart(&why, served);
            (self.replaced)();
            if served > 0 || began.elapsed() >= MIN_GOOD_RUN {
                pauses.reset();
            }
            let pause = pauses.next(rand::random());
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Time that a program gets to end by itself.
    fn grace(&self) -> Duration {
        super::STOP_GRACE.min(self.exec.timeout)
    }

    /// Offers `child` for one job after another. Returns the reason why it is no longer usable, or
    /// `None` if the pool is closed.
    async fn serve(&self, child: &mut Child, served: &mut u64) -> Option<String> {
        loop {
            let (offer, mut offered) = oneshot::channel::<ProgramJob>();
            {
                let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
                idle.retain(|offer| !offer.is_closed());
                idle.push(offer);
            }
            self.offered.notify_one();
            let work = tokio::select! {
                biased;
                // This branch comes first: a program that is no longer usable gets no job.
                read = child.read() => {
                    // No job may begin while the program ends.
                    not_begun(&mut offered);
                    return Some(match child.line(read).await {
                        Ok(_) => "it wrote a line without a job".to_owned(),
                        Err(why) => why,
                    });
                }
                work = &mut offered => match work {
                    Ok(work) => work,
                    // The program was reserved for a job that did not come.
                    Err(_) => continue,
                },
                () = self.stop.cancelled() => {
                    not_begun(&mut offered);
                    return None;
                }
            };
            let end = self.work(child, work).await;
            *served += u64::from(end.is_none());
            if end.is_some() {
                return end;
            }
        }
    }

    /// Performs one job. Returns the reason if the program is no longer usable.
    async fn work(&self, child: &mut Child, work: ProgramJob) -> Option<String> {
        let ProgramJob {
            call,
            id,
            line,
            permit,
            mut reply,
        } = work;
        if !permit.is_good() {
            // The caller may have gone.
            let _ = reply.send(Outcome::Late.into());
            return None;
        }
        let within = self.exec.timeout;
        let answer = tokio::select! {
            answer = child.ask(&line, Instant::now() + within) => answer,
            // The caller is gone because the worker ends. Another worker will run the job, so it
            // must not continue here.
            () = reply.closed() => return Some("its job was abandoned".to_owned()),
        };
        let (outcome, why) = match answer {
            Ok(answer) => match answer_to(call, &id, &answer) {
                Ok(verdict) => {
                    let _ = reply.send(verdicts::attempt(verdict));
                    return None;
                }
                Err(why) => (
                    retry(format!("the program's answer is invalid: {why}")),
                    format!("its answer is invalid: {why}"),
                ),
            },
            Err(NoAnswer::Late) => (
                retry(format!(
                    "no answer from the program within {within:?} (dispatch.exec.timeout)"
                )),
                format!("it did not answer within {within:?}"),
            ),
            Err(NoAnswer::Broken(why)) => (
                retry(format!("the program with this job: {why}")),
                format!("{why}, during a job"),
            ),
        };
        // Limits on calls in flight no longer count the call after this report.
        child.kill().await;
        let _ = reply.send(outcome.into());
        Some(why)
    }

    fn log_restart(&self, why: &str, served: u64) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let known = last.0 == why && last.1.is_some_and(|at| at.elapsed() < REMINDER_INTERVAL);
        if known {
            debug!(
                reason = why,
                jobs = served,
                "a program has ended: starting another"
            );
            return;
        }
        warn!(
            reason = why,
            jobs = served,
            "a program has ended: starting another"
        );
        *last = (why.to_owned(), Some(Instant::now()));
    }
}

/// Parses the answer to the call number `call` for the job `id`. The error says why the line is no
/// answer.
fn answer_to(call: u64, id: &str, line: &[u8]) -> Result<Verdict, String> {
    let verdict = verdict::read(line).map_err(|why| match line.trim_ascii_start() {
        [b'{', ..] => why.to_string(),
        _ => format!("{why}; standard output is for answers, standard error for the log"),
    })?;
    if verdict.id.as_ref().is_some_and(|of| of != id) {
        return Err("it has another job's id".to_owned());
    }
    match verdict.call {
        Some(of) if of == call => Ok(verdict),
        Some(_) => Err(r#"it has another call's "call" value"#.to_owned()),
        None => Err(r#"it has no "call": copy the job's "call" into it"#.to_owned()),
    }
}

/// Returns a job that arrived at the last moment as late: its program has not seen it.
fn not_begun(offered: &mut oneshot::Receiver<ProgramJob>) {
    offered.close();
    if let Ok(work) = offered.try_recv() {
        let _ = work.reply.send(Outcome::Late.into());
    }
}
