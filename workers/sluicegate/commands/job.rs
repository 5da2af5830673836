//! `sluicegate job`: what an operator asks of one job that waits.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use sluicegate::config::{Config, show_duration};
use sluicegate::gate::boards::{Seen, Versions, drop_all, put, see};
use sluicegate::gate::redis::RedisGate;
use sluicegate::rules::limit::ceil_ms;
use sluicegate::rules::steering::{Instruction, MAX_ID_BYTES, Sighting, State};
use sluicegate::rules::tenant::Tenant;
use tokio::time::{Instant, sleep};

use super::steer::{EVERY, FOLLOW_WITHIN, Followers, followed, span, wait};
use super::times::at;
use super::{Failure, plain, print_json};

/// For answers that are on their way when a wait ends.
const GRACE: Duration = Duration::from_secs(5);

/// Cancel a job that waits, or show how it stands
///
/// Workers look at what is asked within a second: at the jobs in their memory at once, at any other job when its turn to be
/// looked at comes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate job cancel --tenant acme --id order-7
  sluicegate job show --tenant acme --id order-7")]
pub struct JobArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Call a job no more: it becomes a dead letter at its next look
    ///
    /// A call in flight is not interrupted. Once this says `cancelled`, no worker calls the job again; `dead replay` brings it
    /// back. Without an answer within --wait the job stays cancelled for --for: the next worker that sees it drops it.
    #[command(after_help = "Examples:
  sluicegate job cancel --tenant acme --id order-7
  sluicegate job cancel --tenant acme --id order-7 --wait 5m --json
  sluicegate job cancel --tenant acme --id order-7 --undo")]
    Cancel {
        #[command(flatten)]
        of: Of,
        /// How long to wait until a worker has seen the job
        #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = wait)]
        wait: Duration,
        /// For how long the job stays cancelled: 90s, 30m, 1h, 7d
        #[arg(long = "for", value_name = "DURATION", default_value = "24h", value_parser = span)]
        span: Duration,
        /// End what was asked: a job that no worker has seen yet may be called
        #[arg(long, conflicts_with_all = ["span", "wait"])]
        undo: bool,
    },
    /// Show how a job stands: its phase, its attempt, what it waits for, and until when
    #[command(after_help = "Examples:
  sluicegate job show --tenant acme --id order-7
  sluicegate job show --tenant acme --id order-7 --wait 5m --json")]
    Show {
        #[command(flatten)]
        of: Of,
        /// How long to wait until a worker has seen the job
        #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = wait)]
        wait: Duration,
    },
}

#[derive(Debug, Args)]
struct Of {
    /// Whose job
    #[arg(long)]
    tenant: String,
    /// Its message id
    #[arg(long)]
    id: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

struct Asked<'a> {
    gate: RedisGate,
    config: &'a Config,
    tenant: Tenant,
    id: String,
    json: bool,
}

/// Does what is asked for.
pub async fn run(args: JobArgs, config: &Config) -> Result<ExitCode, Failure> {
    let (What::Cancel { of, .. } | What::Show { of, .. }) = &args.what;
    let tenant = Tenant::parse(&of.tenant).map_err(|error| Failure::Usage(error.to_string()))?;
    if of.id.is_empty() || of.id.len() > MAX_ID_BYTES {
        return Err(Failure::Usage(format!(
            "the id has {} bytes; it must have 1 to {MAX_ID_BYTES}",
            of.id.len()
        )));
    }
    let asked = Asked {
        gate: RedisGate::connect(&config.redis.url, &config.redis.prefix)?,
        config,
        tenant,
        id: of.id.clone(),
        json: of.json,
    };
    match args.what {
        What::Cancel { undo: true, .. } => asked.undo().await,
        What::Cancel { wait, span, .. } => asked.cancel(wait, ceil_ms(span)).await,
        What::Show { wait, .. } => asked.show(wait).await,
    }
}

/// A number that no other request has.
fn new_number() -> u64 {
    // The low half is random, the high one a time.
    let [.., a, b, c, d, e, f] = ulid::Ulid::new().to_bytes();
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

impl Asked<'_> {
    fn words(&self) -> String {
        format!("job {} of {}", plain(&self.id, 255), self.tenant)
    }

    /// When a job is looked at that no worker has in its memory.
    fn next_look(&self) -> String {
        format!(
            "a delayed job is looked at within {} (delay.max-delay), one in the work queue when a worker takes it",
            show_duration(self.config.delay.max_delay)
        )
    }

    async fn undo(&self) -> Result<ExitCode, Failure> {
        let name = Instruction::Cancel(self.tenant.clone(), self.id.clone(), 0).name();
        let versions = drop_all(&self.gate, &[name]).await?;
        let (_, followers) = followed(&self.gate, &versions, FOLLOW_WITHIN).await?;
        if self.json {
            print_json(&json!({
                "tenant": self.tenant.as_str(),
                "id": self.id,
                "state": "undone",
                "workers": followers.all,
                "workers_following": followers.following,
            }))?;
        } else {
            let (job, who) = (self.words(), followers.in_words());
            writeln!(
                std::io::stdout(),
                "{job} is not to be cancelled any more; {who}"
            )?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The request to cancel this job that is in force already.
    fn known(&self, seen: &[Seen]) -> Option<(u64, u64, Versions)> {
        let posted = |board: &Seen| {
            board.posted.iter().find_map(|(instruction, until_ms)| {
                let Instruction::Cancel(tenant, id, number) = instruction else {
                    return None;
                };
                let is_it = *tenant == self.tenant && *id == self.id;
                is_it.then_some((*number, *until_ms))
            })
        };
        // All boards have the same one; else it is asked anew.
        let mut all = seen.iter().map(posted);
        let first = all.next()??;
        let same = all.all(|other| other.is_some_and(|(number, _)| number == first.0));
        let versions = seen
            .iter()
            .map(|board| (board.board.clone(), board.version));
        same.then(|| (first.0, first.1, versions.collect()))
    }

    async fn cancel(&self, wait: Duration, for_ms: u64) -> Result<ExitCode, Failure> {
        let until = Instant::now() + wait;
        let seen = see(&self.gate).await?;
        let (number, until_ms, versions) = match self.known(&seen) {
            Some(known) => known,
            None => {
                let number = new_number();
                let cancel = Instruction::Cancel(self.tenant.clone(), self.id.clone(), number);
                let versions = put(&self.gate, &cancel, for_ms).await?;
                let until_ms = self
                    .known(&see(&self.gate).await?)
                    .map_or(0, |known| known.1);
                (number, until_ms, versions)
            }
        };
        let (sighting, followers) = loop {
            let sighting = self.gate.sighting(&self.tenant, &self.id).await?;
            let sighting = sighting.filter(|sighting| sighting.cancel == Some(number));
            let followers = Followers::of(&see(&self.gate).await?, &versions);
            let state = sighting.as_ref().map(|sighting| sighting.state);
            // Until all follow, one of the others might still call a copy of it.
            let is_over = matches!(state, Some(State::Cancelled | State::Done));
            if is_over && followers.are_all() || Instant::now() >= until {
                break (sighting, followers);
            }
            sleep(EVERY).await;
        };
        let (job, next_look) = (self.words(), self.next_look());
        let state = sighting.as_ref().map(|sighting| sighting.state);
        let (state, words) = match state {
            Some(State::Cancelled) if followers.are_all() => (
                "cancelled",
                format!("cancelled {job}: it is a dead letter, and is not called again"),
            ),
            Some(State::Done) => ("done", format!("{job} was called before, and is done")),
            Some(State::Running) => (
                "running",
                format!(
                    "{job} is being called, which is not interrupted; if the call fails, the job is cancelled before the next one"
                ),
            ),
            _ => (
                "requested",
                format!(
                    "{job} is to be cancelled, and no worker has it in memory ({}); {next_look}\nit stays cancelled until {}",
                    followers.in_words(),
                    at(until_ms)
                ),
            ),
        };
        if self.json {
            print_json(&json!({
                "tenant": self.tenant.as_str(),
                "id": self.id,
                "state": state,
                "until_ms": until_ms,
                "looked_at_within_ms": ceil_ms(self.config.delay.max_delay),
                "workers": followers.all,
                "workers_following": followers.following,
                "seen": sighting,
            }))?;
        } else {
            writeln!(std::io::stdout(), "{words}")?;
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn show(&self, wait: Duration) -> Result<ExitCode, Failure> {
        let until = Instant::now() + wait;
        let number = new_number();
        let show = Instruction::Show(self.tenant.clone(), self.id.clone(), number);
        let versions = put(&self.gate, &show, ceil_ms(wait + GRACE)).await?;
        let sighting = loop {
            let sighting = self.gate.sighting(&self.tenant, &self.id).await?;
            let now = |seen: &Sighting| seen.show == Some(number);
            if sighting.as_ref().is_some_and(now) {
                break sighting;
            }
            if Instant::now() >= until {
                // Nobody has it any more, and the last who had it said why.
                break sighting.filter(|seen| seen.state.is_end());
            }
            sleep(EVERY).await;
        };
        let followers = Followers::of(&see(&self.gate).await?, &versions);
        // It ends by itself, too.
        let _ = drop_all(&self.gate, &[show.name()]).await;
        if self.json {
            print_json(&json!({
                "tenant": self.tenant.as_str(),
                "id": self.id,
                "looked_at_within_ms": ceil_ms(self.config.delay.max_delay),
                "workers": followers.all,
                "workers_following": followers.following,
                "seen": sighting,
            }))?;
        }
        let Some(sighting) = sighting else {
            if self.json {
                return Err(Failure::Said);
            }
            return Err(Failure::Failed(format!(
                "no worker has {} in its memory ({}); {}; --wait DURATION waits for it",
                self.words(),
                followers.in_words(),
                self.next_look()
            )));
        };
        if !self.json {
            let text = in_words(&self.words(), &sighting);
            std::io::stdout().write_all(text.as_bytes())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// How a job stands, a line for each thing.
fn in_words(job: &str, seen: &Sighting) -> String {
    let state = match seen.state {
        State::Waiting => "waits in a worker's memory",
        State::Asking => "asks for its permit",
        State::Running => "is being called",
        State::Done => "was called, and is done",
        State::Cancelled => "was cancelled: it is a dead letter",
        State::Diverted => "went to another queue: its tenant is diverted",
    };
    let mut text = format!("{job} {state}\n");
    let mut line = |name: &str, value: String| text += &format!("{name:<10}{value}\n");
    if seen.at_ms > 0 {
        line("at", at(seen.at_ms));
    }
    line("queue", plain(&seen.queue, 255));
    line("attempt", seen.attempt.to_string());
    line("cost", seen.cost.to_string());
    let here = Duration::from_millis(seen.here_ms);
    line("here for", show_duration(here));
    if let Some(wait_ms) = seen.wait_ms {
        let wait = show_duration(Duration::from_millis(wait_ms));
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
    fn what_a_worker_says_is_shown_line_by_line_and_steers_no_terminal() {
        let sighting = Sighting {
            cancel: None,
            show: Some(1),
            state: State::Waiting,
            at_ms: 1_700_000_000_000,
            attempt: 2,
            cost: 3,
            queue: "jobs\u{1b}[2J".to_owned(),
            here_ms: 1_000,
            wait_ms: Some(30_000),
            ticket: Some(7),
            limit: Some("per-minute".to_owned()),
        };
        let text = in_words("job 1 of a", &sighting);
        for line in [
            "job 1 of a waits in a worker's memory",
            "attempt   2",
            "cost      3",
            "here for  1s",
            "waits     30s, until Tue, 14 Nov 2023 22:13:50 GMT",
            "limit     per-minute",
            "ticket    7",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} not in {text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn requests_have_numbers_of_their_own() {
        assert_ne!(new_number(), new_number());
    }
}
