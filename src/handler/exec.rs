//! Gives each job to a program that runs beside the worker (`dispatch.exec`). The program reads one
//! line of JSON and writes one line, which names the call that it answers.
//!
//! A program serves many jobs, one at a time. It reports when it is ready, however long that takes,
//! and only then does the worker ask for a permit. A program that hangs, ends, or writes a line
//! that is no answer to its job is killed with all processes that it has started, and another
//! program replaces it.

mod child;
mod pool;
mod stderr;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

use super::verdicts::retry;
use super::{Attempt, Outcome, Permit, PreparingHandler};
use config::Exec;
use pool::{ProgramJob, ProgramPool, ReadyProgram};
use rules::job::Job;

/// Time that programs get to end by themselves.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Gives jobs to programs.
pub struct ExecHandler {
    pool: Arc<ProgramPool>,
    /// Number of the next call. Each call has its own, so a late answer is never taken for an
    /// answer to the next job.
    calls: AtomicU64,
}

impl ExecHandler {
    /// Starts the first program of `exec`. More follow as jobs need them, up to
    /// `dispatch.concurrency`. Calls `replaced` for each program that another one replaces. Must be
    /// called within a tokio runtime.
    pub fn new(exec: &Exec, replaced: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            pool: Arc::new(ProgramPool::new(exec, replaced)),
            calls: AtomicU64::new(1),
        }
    }

    /// Returns a future that ends all programs after the worker has ended.
    pub fn closer(&self) -> impl Future<Output = ()> + use<> {
        let pool = Arc::clone(&self.pool);
        async move { pool.close(STOP_GRACE).await }
    }
}

// Not for authors of workers, who see the pages of the trait.
#[doc(hidden)]
impl PreparingHandler for ExecHandler {
    type Ready = ReadyProgram;

    fn at_once(&self) -> Option<ReadyProgram> {
        self.pool.take()
    }

    async fn prepare(&self, _: &Job) -> Result<ReadyProgram, Attempt> {
        self.pool.wait().await
    }

    fn is_ready(&self, ready: &mut ReadyProgram) -> bool {
        ready.is_good()
    }

    async fn send(&self, job: &Job, ready: ReadyProgram, permit: Permit) -> Attempt {
        let (reply, answer) = oneshot::channel();
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let work = ProgramJob {
            call,
            id: job.id.clone(),
            line: job.line(call),
            permit: permit.clone(),
            reply,
        };
        if !permit.is_good() {
            return Outcome::Late.into();
        }
        // The program ended after it was offered: nothing was written.
        let Ok(_claim) = ready.give(work) else {
            return Outcome::Late.into();
        };
        let gone = || retry("the program's task has ended").into();
        answer.await.unwrap_or_else(|_| gone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::gate::tenant;
    use tokio::time::{Instant, sleep};

    /// A program that still runs could call the API, although no limit counts its call any more.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_program_that_is_late_is_gone_when_its_job_ends() {
        // This process adopts the processes that a program leaves, as a container's first one does.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).expect("Linux");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("pids");
        let script = r#"sleep 600 & echo "$$ $!" >"$0"; echo '{"ready": true}'; read -r job; wait"#;
        let file_name = file.to_str().expect("text").to_owned();
        let exec = Exec {
            command: ["sh", "-c", script, &file_name].map(str::to_owned).to_vec(),
            timeout: Duration::from_millis(50),
            start_timeout: Duration::from_secs(10),
        };
        let handler = ExecHandler::new(&exec, || ());
        let job = Job::new("1", tenant("acme"), "");
        let ready = handler.prepare(&job).await.expect("a program");
        let ids = std::fs::read_to_string(&file).expect("their IDs");
        let permit = Permit::until(Instant::now() + Duration::from_secs(10));
        let attempt = handler.send(&job, ready, permit).await;
        let is_there = |id: &&str| std::path::Path::new("/proc").join(id).exists();
        let there: Vec<&str> = ids.split_whitespace().filter(is_there).collect();
        assert!(
            matches!(attempt.outcome, Outcome::Retry { .. }),
            "{attempt:?}"
        );
        rustix::process::set_child_subreaper(None).expect("Linux");
        assert_eq!(there, Vec::<&str>::new(), "of {ids}");
        handler.closer().await;
    }

    /// A program that closes its output is ending, and may take a moment.
    #[tokio::test]
    async fn a_program_that_is_ending_gets_no_job() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("closed");
        let script = r#"echo '{"ready": true}'; sleep 0.1; exec >&-; : >"$0"; sleep 1"#;
        let file_name = file.to_str().expect("text").to_owned();
        let exec = Exec {
            command: ["sh", "-c", script, &file_name].map(str::to_owned).to_vec(),
            timeout: Duration::from_secs(10),
            start_timeout: Duration::from_secs(10),
        };
        let handler = ExecHandler::new(&exec, || ());
        let job = Job::new("1", tenant("acme"), "");
        let ready = handler.prepare(&job).await.expect("a program");
        while !file.exists() {
            sleep(Duration::from_millis(10)).await;
        }
        // The runtime looks at the output before it wakes a sleeping task.
        sleep(Duration::from_millis(10)).await;
        let permit = Permit::until(Instant::now() + Duration::from_secs(10));
        let attempt = handler.send(&job, ready, permit).await;
        assert_eq!(attempt.outcome, Outcome::Late);
        handler.closer().await;
    }
}
