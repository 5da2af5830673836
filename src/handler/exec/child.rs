//! One program: starts it, asks it, and ends it with all processes that it has started.

use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::io::AsyncWriteExt;
use tokio::process::{self, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::codec::FramedRead;

use super::stderr::{self, LogRateLimit};
use crate::lines::{LineDecoder, TooLong};
use config::{Exec, env_name};
use rules::job::verdict::{self, MAX_VERDICT};
use runtime::shortage;

/// Time for a program that has closed its output to end, before it is killed.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);
/// Time for a killed program to disappear.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for killed processes that the program has started to end.
const REAP_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval at which a program's end is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A line that was read, or `None` at the end.
type ReadLine = io::Result<Option<Result<Bytes, TooLong>>>;

/// A running program. Dropping it kills the program and all processes that it has started.
pub(super) struct Child {
    process: process::Child,
    group: Group,
    /// Standard input; `None` once it is closed.
    input: Option<ChildStdin>,
    output: FramedRead<ChildStdout, LineDecoder>,
}

/// The process group of a program. The group's ID stays reserved until the program and all processes
/// that it has started are reaped.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.0 {
            // An error means that all processes have ended.
            let _ = kill_process_group(leader, signal);
        }
    }

    /// Describes how the program ended, or returns `None` if it runs. Does not reap it.
    fn ended(&self) -> Option<String> {
        let leader = self.0?;
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(leader), how).ok()??;
        Some(match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => format!("with exit status {code}"),
            (None, Some(signal)) => format!("by signal {signal}"),
            (None, None) => "for an unknown reason".to_owned(),
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// The reason why a program is not ready.
pub(super) struct NotStarted {
    pub why: String,
    /// Whether this machine lacked a resource that is needed to start it.
    pub is_short: bool,
}

impl From<String> for NotStarted {
    fn from(why: String) -> Self {
        Self {
            why,
            is_short: false,
        }
    }
}

impl Child {
    /// Starts the program and waits until it reports that it is ready.
    pub async fn start(exec: &Exec, stderr_limit: Arc<LogRateLimit>) -> Result<Self, NotStarted> {
        let first = exec.command.split_first();
        let (program, arguments) = first.ok_or_else(|| "there is no command".to_owned())?;
        let mut command = Command::new(program);
        command.args(arguments);
        // The worker's own environment variables may contain passwords.
        let own = env_name("");
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(own.as_bytes()) {
                command.env_remove(name);
            }
        }
        let started = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Keeps a Ctrl-C in the terminal from the program: the worker gets it, and ends the
            // program's group itself.
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let mut process = started.map_err(|why| {
            let missing = shortage::of(&why);
            let advice = missing.map_or(String::new(), |missing| format!(" ({missing})"));
            NotStarted {
                why: format!("{program} can't be started: {why}{advice}"),
                is_short: missing.is_some(),
            }
        })?;
        let id = process.id().and_then(|id| i32::try_from(id).ok());
        let group = Group(id.and_then(Pid::from_raw));
        let pipes = (
            process.stdin.take(),
            process.stdout.take(),
            process.stderr.take(),
        );
        let (Some(input), Some(output), Some(errors)) = pipes else {
            return Err(format!("{program} has no pipes").into());
        };
        tokio::spawn(stderr::log(errors, id.unwrap_or_default(), stderr_limit));
        let mut child = Self {
            process,
            group,
            input: Some(input),
            output: FramedRead::new(output, LineDecoder::new(MAX_VERDICT)),
        };
        let within = exec.start_timeout;
        let why = match timeout(within, child.next_line()).await {
            Ok(Ok(line)) if verdict::is_ready(&line) => return Ok(child),
            Ok(Ok(_)) => r#"its first line must be {"ready": true}"#.to_owned(),
            Ok(Err(why)) => format!("{why} before it was ready"),
            Err(_) => format!(
                r#"it did not write {{"ready": true}} within {within:?} (dispatch.exec.start-timeout)"#
            ),
        };
        child.kill().await;
        Err(why.into())
    }

    /// Reads the next line. An error says why there is none.
    pub async fn next_line(&mut self) -> Result<Bytes, String> {
        let read = self.read().await;
        self.line(read).await
    }

    /// Reads the next line, or learns of the end of the output. Dropping the future loses no bytes.
    pub async fn read(&mut self) -> ReadLine {
        self.output.try_next().await
    }

    /// Returns the line that was read. An error says why there is none, which takes a moment if the
    /// program is ending.
    pub async fn line(&self, read: ReadLine) -> Result<Bytes, String> {
        match read {
            Ok(Some(Ok(line))) => Ok(line),
            Ok(Some(Err(TooLong))) => {
                Err(format!("it wrote a line longer than {MAX_VERDICT} bytes"))
            }
            Ok(None) => Err(self.describe_end().await),
            Err(why) => Err(format!("its output can't be read: {why}")),
        }
    }

    /// Writes `line` and reads the line that answers it.
    pub async fn ask(&mut self, line: &[u8], deadline: Instant) -> Result<Bytes, NoAnswer> {
        let asked = async {
            let Some(input) = &mut self.input else {
                return Err("its input is closed".to_owned());
            };
            let written = match input.write_all(line).await {
                Ok(()) => input.flush().await,
                Err(why) => Err(why),
            };
            if let Err(why) = written {
                // The program's exit status explains more than the failed write.
                return Err(match self.next_line().await {
                    Err(ended) => ended,
                    Ok(_) => format!("it does not read its input: {why}"),
                });
            }
            self.next_line().await
        };
        match timeout_at(deadline, asked).await {
            Ok(answer) => answer.map_err(NoAnswer::Broken),
            Err(_) => Err(NoAnswer::Late),
        }
    }

    async fn describe_end(&self) -> String {
        match self.has_ended(EXIT_TIMEOUT).await {
            Some(how) => format!("it ended {how}"),
            None => "it closed its output".to_owned(),
        }
    }

    async fn has_ended(&self, within: Duration) -> Option<String> {
        let until = Instant::now() + within;
        loop {
            let ended = self.group.ended();
            if ended.is_some() || Instant::now() >= until {
                return ended;
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Asks the program to end, and kills it if it has not ended within `grace`.
    pub async fn stop(mut self, grace: Duration) {
        self.input = None;
        self.group.signal(Signal::TERM);
        let _ = self.has_ended(grace).await;
        self.kill().await;
    }

    /// Kills the program and all processes that it has started.
    pub async fn kill(&mut self) {
        let Some(leader) = self.group.0 else { return };
        self.group.signal(Signal::KILL);
        // A process that can't be killed is left to the system.
        if timeout(KILL_TIMEOUT, self.process.wait()).await.is_ok() {
            reap_group(leader).await;
            // The system may give the group's ID to other processes from now on.
            self.group.0 = None;
        }
    }
}

/// Reaps the killed processes of a group whose leader is reaped. They are children of this process
/// if it is a container's first process. Otherwise the system reaps them.
async fn reap_group(leader: Pid) {
    let until = Instant::now() + REAP_TIMEOUT;
    let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    while let Ok(ended) = waitid(WaitId::Pgid(Some(leader)), how) {
        match ended {
            Some(_) => {}
            None if Instant::now() < until => sleep(POLL_INTERVAL).await,
            None => return,
        }
    }
}

/// The reason why there is no answer.
pub(super) enum NoAnswer {
    /// The program took too long.
    Late,
    /// The program is no longer usable, for this reason.
    Broken(String),
}
