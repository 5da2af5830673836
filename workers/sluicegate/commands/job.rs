//! `sluicegate job`: an operator's actions on one waiting job.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use config::{Config, show_duration};
use gate::instructions::see;
use gate::redis::RedisGate;
use operator::answer::Answer as _;
use operator::hold::describe_hold;
use operator::job::{CancelState, Canceling, JobRef, JobState};
use operator::tenant::parse;
use rules::limit::ceil_ms;
use rules::steering::{SightedState, Sighting};
use serde_json::{Value, json};

use super::audit::note;
use super::steer::{FOLLOW_TIMEOUT, span, wait};
use super::times::{self, at};
use super::{Failure, plain, print, print_json};

/// Cancel a waiting job, or show its state
///
/// Workers see the request within a second. They apply it at once to jobs in their memory, and to
/// any other job when they next take it from its queue.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate job cancel --tenant acme --id order-7
  sluicegate job show --tenant acme --id order-7")]
pub struct JobArgs {
    #[command(subcommand)]
    what: JobCommand,
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    /// Cancel a job: it becomes a dead letter when a worker next sees it
    ///
    /// A call in flight is not interrupted. Once the command prints `canceled`, no worker calls
    /// the job again; `dead replay` brings it back. If no worker answers within --wait, the
    /// cancellation stays for --for: the next worker that sees the job makes it a dead letter.
    #[command(after_help = "Examples:
  sluicegate job cancel --tenant acme --id order-7
  sluicegate job cancel --tenant acme --id order-7 --wait 5m --json
  sluicegate job cancel --tenant acme --id order-7 --undo")]
    Cancel {
        #[command(flatten)]
        of: JobOptions,
        /// How long to wait for a worker to see the job
        #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = wait)]
        wait: Duration,
        /// How long the cancellation stays: 90s, 30m, 1h, 7d
        #[arg(long = "for", value_name = "DURATION", default_value = "24h", value_parser = span)]
        span: Duration,
        /// Withdraw the cancellation, if no worker has seen the job yet
        #[arg(long, conflicts_with_all = ["span", "wait"])]
        undo: bool,
    },
    /// Show a job's phase, its attempt, why it waits, and when the wait ends
    #[command(after_help = "Examples:
  sluicegate job show --tenant acme --id order-7
  sluicegate job show --tenant acme --id order-7 --wait 5m --json")]
    Show {
        #[command(flatten)]
        of: JobOptions,
        /// How long to wait for a worker to see the job
        #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = wait)]
        wait: Duration,
    },
}

#[derive(Debug, Args)]
struct JobOptions {
    /// Tenant of the job
    #[arg(long)]
    tenant: String,
    /// Message id of the job
    #[arg(long)]
    id: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

struct JobRequest<'a> {
    gate: RedisGate,
    config: &'a Config,
    which: JobRef,
    json: bool,
}

/// Runs the command.
pub async fn run(args: JobArgs, config: &Config) -> Result<ExitCode, Failure> {
    let (JobCommand::Cancel { of, .. } | JobCommand::Show { of, .. }) = &args.what;
    let which = JobRef::new(parse(&of.tenant)?, &of.id, config.delay.max_delay)?;
    let asked = JobRequest {
        gate: RedisGate::new(&config.redis.url, &config.redis.prefix)?,
        config,
        which,
        json: of.json,
    };
    match args.what {
        JobCommand::Cancel { undo: true, .. } => asked.undo().await,
        JobCommand::Cancel { wait, span, .. } => asked.cancel(wait, ceil_ms(span)).await,
        JobCommand::Show { wait, .. } => asked.show(wait).await,
    }
}

impl JobRequest<'_> {
    fn words(&self) -> String {
        of(&self.which)
    }

    fn in_the_audit(&self) -> Value {
        json!({"tenant": self.which.tenant.as_str(), "id": self.which.id})
    }

    async fn undo(&self) -> Result<ExitCode, Failure> {
        let request = json!({"undo": true});
        note(&self.gate, "job cancel", self.in_the_audit(), request).await;
        self.print(&self.which.undo(&self.gate, FOLLOW_TIMEOUT).await?)
    }

    async fn cancel(&self, wait: Duration, for_ms: u64) -> Result<ExitCode, Failure> {
        let request = json!({"for_ms": for_ms});
        note(&self.gate, "job cancel", self.in_the_audit(), request).await;
        self.print(&self.which.cancel(&self.gate, wait, for_ms).await?)
    }

    fn print(&self, now: &Canceling) -> Result<ExitCode, Failure> {
        let job = self.words();
        let words = || match now.state {
            CancelState::Canceled => {
                format!("canceled {job}: it is a dead letter and will not be called again")
            }
            CancelState::Done => format!("{job} was already called and is done"),
            CancelState::Running => format!(
                "{job} is being called, and calls are not interrupted; if the call fails, the job \
                is canceled before the next one"
            ),
            CancelState::Requested => format!(
                "{job} is to be canceled, and no worker has it in memory ({}); {}\nit stays canceled until {}",
                now.base.describe(),
                next_look(self.config),
                at(now.until_ms.0.unwrap_or_default())
            ),
            CancelState::Undone => {
                format!("{job} is no longer to be canceled; {}", now.base.describe())
            }
        };
        print(self.json, || now.as_json(), words)?;
        Ok(ExitCode::SUCCESS)
    }

    async fn show(&self, wait: Duration) -> Result<ExitCode, Failure> {
        let now = self.which.show(&self.gate, wait).await?;
        if self.json {
            print_json(&now.as_json())?;
        }
        let Some(sighting) = &now.seen else {
            if self.json {
                return Err(Failure::AlreadyReported);
            }
            let nobody = job_not_held(&self.words(), &now, self.config, &self.gate).await;
            let more = "sluicegate explain also searches the dead letters";
            return Err(Failure::Failed(format!("{}; {more}", nobody.words())));
        };
        if !self.json {
            let text = describe(&self.words(), sighting);
            std::io::stdout().write_all(text.as_bytes())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Formats a job, such as `job order-7 of acme`.
pub fn of(which: &JobRef) -> String {
    format!("job {} of {}", plain(&which.id, 255), which.tenant)
}

/// Describes when workers check a job that is in no worker's memory.
fn next_look(config: &Config) -> String {
    format!(
        "a worker sees a delayed job within {} (delay.max-delay), and a job in the work queue \
        when it takes it",
        show_duration(config.delay.max_delay)
    )
}

/// Returns the error for a job that is in no worker's memory. It names a pause or drain of all
/// workers, which take no jobs meanwhile.
pub async fn job_not_held(
    job: &str,
    shown: &JobState,
    config: &Config,
    gate: &RedisGate,
) -> Failure {
    let seen = see(gate).await.unwrap_or_default();
    let hold = match describe_hold(&seen) {
        none if none.is_empty() => none,
        hold => format!("\n{hold}"),
    };
    Failure::Failed(format!(
        "no worker has {job} in memory ({}): it may be done; if not, {}; --wait DURATION waits \
        for that{hold}",
        shown.base.describe(),
        next_look(config)
    ))
}

/// Describes a job's state, one line per item.
pub fn describe(job: &str, seen: &Sighting) -> String {
    let state = match seen.state {
        SightedState::Waiting => "waits in a worker's memory",
        SightedState::Asking => "asks for its permit",
        SightedState::Running => "is being called",
        SightedState::Done => "was called and is done",
        SightedState::Canceled => "was canceled: it is a dead letter",
        SightedState::Diverted => "was moved to another queue: its tenant is diverted",
    };
    let mut text = format!("{job} {state}\n");
    let mut line = |name: &str, value: String| text += &format!("{name:<10}{value}\n");
    if seen.at_ms > 0 {
        line("at", at(seen.at_ms));
    }
    line("queue", plain(&seen.queue, 255));
    line("attempt", seen.attempt.to_string());
    line("cost", seen.cost.to_string());
    line("here for", times::span(seen.here_ms));
    if let Some(wait_ms) = seen.wait_ms {
        let wait = times::span(wait_ms);
        line(
            "waits",
            match seen.at_ms {
                0 => wait,
                now_ms => format!("{wait}, until {}", at(now_ms + wait_ms)),
            },
        );
    }
    if let Some(limit) = &seen.limit {
        line("limit", plain(limit, 255));
    }
    if let Some(ticket) = seen.ticket {
        line("ticket", ticket.to_string());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_messages_are_shown_by_line_without_control_characters() {
        let sighting = Sighting {
            cancel: None,
            show: Some(1),
            state: SightedState::Waiting,
            at_ms: 1_700_000_000_000,
            attempt: 2,
            cost: 3,
            queue: "jobs\u{1b}[2J".to_owned(),
            here_ms: 1_000,
            wait_ms: Some(30_000),
            ticket: Some(7),
            limit: Some("per-minute".to_owned()),
            waits: None,
        };
        let text = describe("job 1 of a", &sighting);
        for line in [
            "job 1 of a waits in a worker's memory",
            "attempt   2",
            "cost      3",
            "here for  1.0s",
            "waits     30.0s, until Tue, 14 Nov 2023 22:13:50 GMT",
            "limit     per-minute",
            "ticket    7",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} not in {text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
    }
}
