//! A worker whose handler prepares: it runs a program for each job, starts it before the permit is
//! requested, and passes it the job's body once the permit has arrived. So the program's startup
//! (an interpreter, a login, a connection) costs no quota. Copy it to write your own.
//!
//! `pipe-worker PROGRAM [ARGUMENT…]` is configured like `sluicegate run`, without `dispatch.http`.
//! The program reads the body from its standard input, to the end, and then calls the API once.
//! `JOB_TENANT` has the tenant and `JOB_ID` the job's ID; the worker's own variables
//! (`SLUICEGATE_…`) are removed. Exit status 0 means done, 75 (EX_TEMPFAIL) means retry later, and
//! any other status means never.

use std::error::Error;
use std::ffi::OsString;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use sluicegate::{Attempt, Config, Job, Outcome, Permit, PreparingHandler};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Maximum time from the permit to the program's end.
const MAX_RUN_TIME: Duration = Duration::from_secs(60);
/// EX_TEMPFAIL of sysexits.h.
const TRY_AGAIN: i32 = 75;

/// The beginning of the names of the worker's environment variables. They may contain passwords.
const OWN_VARIABLES: &[u8] = b"SLUICEGATE_";

/// The program to run for each job.
struct Pipe {
    program: OsString,
    arguments: Vec<OsString>,
}

impl Pipe {
    /// Returns the command for a worker with these environment variables.
    fn command(&self, variables: impl Iterator<Item = (OsString, OsString)>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).env_clear();
        command.envs(
            variables.filter(|(name, _)| !name.as_encoded_bytes().starts_with(OWN_VARIABLES)),
        );
        command
    }
}

fn retry(reason: String) -> Outcome {
    Outcome::Retry {
        after: None,
        reason,
    }
}

impl PreparingHandler for Pipe {
    /// A running program that waits for a body. Dropping it kills the program.
    type Ready = Child;

    /// Returns `None`, since each program gets its job at startup, so no running program fits any
    /// job.
    fn at_once(&self) -> Option<Child> {
        None
    }

    async fn prepare(&self, job: &Job) -> Result<Child, Attempt> {
        self.command(std::env::vars_os())
            .env("JOB_TENANT", job.tenant.as_str())
            .env("JOB_ID", &job.id)
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|why| retry(format!("{}: {why}", self.program.display())).into())
    }

    fn is_ready(&self, program: &mut Child) -> bool {
        matches!(program.try_wait(), Ok(None))
    }

    async fn send(&self, job: &Job, mut program: Child, permit: Permit) -> Attempt {
        if !permit.is_good() {
            return Outcome::Late.into();
        }
        match timeout(MAX_RUN_TIME, finish(job, &mut program)).await {
            Ok(outcome) => outcome.into(),
            // Dropping the program kills it.
            Err(_) => retry(format!(
                "{} took longer than {MAX_RUN_TIME:?}",
                self.program.display()
            ))
            .into(),
        }
    }
}

/// Writes the body and waits for the exit status.
async fn finish(job: &Job, program: &mut Child) -> Outcome {
    let mut input = program.stdin.take().expect("stdin is piped and taken once");
    let written = input.write_all(&job.body).await;
    // Closes the program's input.
    drop(input);
    // The exit status decides even if the program did not read its job to the end.
    match program.wait().await {
        Ok(status) if status.success() => Outcome::Done,
        Ok(status) if status.code() == Some(TRY_AGAIN) => retry("the program said so".to_owned()),
        Ok(status) if status.code().is_none() && written.is_err() => {
            retry(format!("the program did not read its job: {status}"))
        }
        Ok(status) => Outcome::Reject {
            reason: format!("the program ended with {status}"),
        },
        Err(why) => retry(why.to_string()),
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let program = arguments
        .next()
        .ok_or("usage: pipe-worker PROGRAM [ARGUMENT…]")?;
    let arguments = arguments.collect();
    let config = Config::from_env(None)?;
    sluicegate::init_log(&config)?;
    Ok(sluicegate::run_with(config, Pipe { program, arguments }).await?)
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use sluicegate::Tenant;

    use super::*;

    /// Returns a pipe to a shell with these commands.
    fn shell(commands: &str) -> Pipe {
        Pipe {
            program: "sh".into(),
            arguments: ["-c", commands].map(OsString::from).to_vec(),
        }
    }

    /// Returns the outcome of a job with this body in a shell with these commands.
    async fn outcome(commands: &str, body: &'static str, permit: Permit) -> Outcome {
        let pipe = shell(commands);
        let job = Job::new("7", Tenant::parse("acme").expect("a name"), body);
        let mut program = pipe.prepare(&job).await.expect("there is a shell");
        assert!(pipe.is_ready(&mut program), "it waits for its job");
        pipe.send(&job, program, permit).await.outcome
    }

    fn permit() -> Permit {
        Permit::until((Instant::now() + MAX_RUN_TIME).into())
    }

    #[tokio::test]
    async fn the_program_gets_the_job_and_decides_its_outcome() {
        let right = r#"test "$(cat) $JOB_TENANT $JOB_ID" = "hello acme 7""#;
        assert_eq!(outcome(right, "hello", permit()).await, Outcome::Done);
        let again = outcome("cat; exit 75", "hello", permit()).await;
        assert!(matches!(again, Outcome::Retry { .. }), "{again:?}");
        let never = outcome("cat; exit 1", "hello", permit()).await;
        assert!(matches!(never, Outcome::Reject { .. }), "{never:?}");
    }

    #[tokio::test]
    async fn the_program_gets_the_environment_without_the_workers_variables() {
        let path = std::env::var_os("PATH").expect("a path");
        let variables = [
            ("SLUICEGATE_REDIS__URL", "redis://:secret@redis".into()),
            ("LANGUAGE", "en".into()),
            ("PATH", path),
        ];
        let variables = variables.map(|(name, value)| (name.into(), value));
        let only_others = r#"test "${SLUICEGATE_REDIS__URL-none} $LANGUAGE" = "none en""#;
        let mut command = shell(only_others).command(variables.into_iter());
        assert!(command.status().await.expect("a shell").success());
    }

    #[tokio::test]
    async fn the_exit_status_counts_even_if_the_body_was_not_read_to_the_end() {
        let long: &'static str = "x".repeat(1 << 20).leak();
        let done = outcome("head -c 1 > /dev/null; exit 0", long, permit()).await;
        assert_eq!(done, Outcome::Done);
        let never = outcome("head -c 1 > /dev/null; exit 1", long, permit()).await;
        assert!(matches!(never, Outcome::Reject { .. }), "{never:?}");
        let again = outcome("head -c 1 > /dev/null; kill -KILL $$", long, permit()).await;
        assert!(matches!(again, Outcome::Retry { .. }), "{again:?}");
    }

    #[tokio::test]
    async fn without_a_valid_permit_nothing_is_read() {
        let over = Permit::until((Instant::now() - MAX_RUN_TIME).into());
        assert_eq!(outcome("cat", "hello", over).await, Outcome::Late);
    }
}
