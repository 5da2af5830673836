//! `sluicegate dead`: lists, replays and drops dead letters.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use broker::amqp::Client;
use clap::{Args, Subcommand};
use config::Config;
use operator::answer::Answer as _;
use operator::dead::{self, LetterChange, LetterQueue, SearchProgress};
use operator::rabbitmq::open;
use operator::text::argument;
use rules::tenant::Tenant;
use serde_json::{Value, json};

use super::audit::note_by;
use super::interrupts::interrupted;
use super::letters::in_columns;
use super::progress::Progress;
use super::rate::Rate;
use super::{Failure, count, plain, print, print_json};

/// List, replay or delete dead letters
///
/// Dead letters are invalid messages and jobs that failed for good: rejected by the API, expired,
/// or out of attempts. They stay in the queue `jobs.dead` (named after amqp.queue) until they are
/// replayed or deleted. Each read takes a message from the queue and returns it. RabbitMQ 4 counts
/// that as a delivery (x-delivery-count; the queue allows a million) and moves the message to the
/// end of the queue.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate dead list --reason 'answered 422'
  sluicegate dead show 01JCW1X5
  sluicegate dead replay --tenant acme
  sluicegate dead replay --all --rate 10/s
  sluicegate dead drop --all")]
pub struct DeadArgs {
    #[command(subcommand)]
    command: DeadCommand,
}

#[derive(Debug, Subcommand)]
enum DeadCommand {
    /// List dead letters, newest first: id, tenant, time, attempt, number and length of waits,
    /// reason
    #[command(after_help = "Example:\n  sluicegate dead list --tenant acme --limit 20 --json")]
    List {
        #[command(flatten)]
        filter: LetterOptions,
        /// Maximum number to show
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        /// Print one line of JSON per dead letter
        #[arg(long)]
        json: bool,
    },
    /// Show the headers and the body of one dead letter
    #[command(after_help = "Example:\n  sluicegate dead show 01JCW1X5 --json")]
    Show {
        /// The job's id
        #[arg(value_name = "ID")]
        id: String,
        /// The job's tenant, if several have this id; an empty text means none [default: that of
        /// the first one in the queue]
        #[arg(long)]
        tenant: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Return dead letters to the work queue as new jobs with all their attempts
    ///
    /// Each job is published and confirmed before its dead letter is removed, so after a crash in
    /// between it is in both queues. Ctrl-C or SIGTERM stops between two jobs; run the command
    /// again for the rest. Replaying a canceled job ends its cancellation.
    #[command(after_help = "Examples:
  sluicegate dead replay --reason 'answered 503' --limit 10
  sluicegate dead replay --all --rate 10/s")]
    Replay {
        #[command(flatten)]
        change: SelectedLetters,
        /// Maximum rate per second, minute or hour (10/s, 100/m, 5/h); shows progress
        #[arg(long, value_name = "NUMBER/UNIT")]
        rate: Option<Rate>,
    },
    /// Delete dead letters
    #[command(after_help = "Example:\n  sluicegate dead drop --id 01JCW1X5")]
    Drop {
        #[command(flatten)]
        change: SelectedLetters,
    },
}

/// Which dead letters.
#[derive(Debug, Clone, Args)]
struct LetterOptions {
    /// Only dead letters whose reason contains this text
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Only dead letters of this tenant; an empty text means those without a tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only the dead letter with this id
    #[arg(long)]
    id: Option<String>,
}

/// Which dead letters to change: a filter, or all.
#[derive(Debug, Args)]
struct SelectedLetters {
    #[command(flatten)]
    filter: LetterOptions,
    /// All dead letters
    #[arg(long, conflicts_with_all = ["reason", "tenant", "id"])]
    all: bool,
    /// Maximum number to change
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl From<LetterOptions> for dead::Filter {
    fn from(filter: LetterOptions) -> Self {
        let LetterOptions { reason, tenant, id } = filter;
        Self { reason, tenant, id }
    }
}

/// Runs the command.
pub async fn run(args: DeadArgs, config: &Config) -> Result<ExitCode, Failure> {
    let asked = match &args.command {
        DeadCommand::Replay { change, rate } => Some((change, LetterChange::Replay(*rate))),
        DeadCommand::Drop { change } => Some((change, LetterChange::Drop)),
        DeadCommand::List { .. } | DeadCommand::Show { .. } => None,
    };
    let mut of_it = None;
    if let Some((chosen, change)) = asked {
        let filter: dead::Filter = chosen.filter.clone().into();
        change.check(&filter, chosen.all, config)?;
        of_it = Some((filter.audited(chosen.limit), change));
    }
    let client = open(config).await?;
    if let Some((request, change)) = of_it {
        let name = match change {
            LetterChange::Replay(_) => "dead replay",
            LetterChange::Drop => "dead drop",
        };
        note_by(config, name, json!({}), request).await?;
    }
    let letters = Letters {
        dead: LetterQueue::new(&client, config),
        noun: "dead letter",
        again: "run the command again".to_owned(),
    };
    let result = match args.command {
        DeadCommand::List {
            filter,
            limit,
            json,
        } => letters.list(filter.into(), limit, json).await,
        DeadCommand::Show { id, tenant, json } => letters.show(&id, tenant.as_deref(), json).await,
        DeadCommand::Replay { change, rate } => {
            letters.change(change, LetterChange::Replay(rate)).await
        }
        DeadCommand::Drop { change } => letters.change(change, LetterChange::Drop).await,
    };
    // All fetched messages without an ack return to their queue.
    client.close().await;
    result
}

/// Moves the jobs of `tenant` in `queue` back to the work queue.
pub async fn bring_back(
    (client, config): (&Client, &Config),
    queue: Arc<str>,
    tenant: &Tenant,
    json: bool,
) -> Result<ExitCode, Failure> {
    let letters = Letters {
        noun: "job",
        // The divert that named the queue has ended.
        again: again(tenant.as_str(), &queue),
        dead: LetterQueue {
            queue,
            ..LetterQueue::new(client, config)
        },
    };
    let chosen = SelectedLetters {
        filter: LetterOptions {
            reason: None,
            tenant: Some(tenant.as_str().to_owned()),
            id: None,
        },
        all: false,
        limit: None,
        json,
    };
    letters.change(chosen, LetterChange::Replay(None)).await
}

/// Returns the advice for the jobs of `tenant` that are still in `queue`.
fn again(tenant: &str, queue: &str) -> String {
    let (tenant, queue) = (argument(tenant), argument(queue));
    format!("run sluicegate tenant undivert --back --from={queue} -- {tenant}")
}

struct Letters<'a> {
    dead: LetterQueue<'a>,
    /// The name of an entry of its queue.
    noun: &'static str,
    /// The advice after an interruption: how to change the remaining entries.
    again: String,
}

/// Returns the note for an incomplete output: the search (`progress`) ended before the queue did,
/// `all` were found, and `hidden` of them are not shown.
fn cut_short(queue: &str, (all, hidden): (usize, usize), progress: &SearchProgress) -> String {
    let why = match progress.is_full() {
        true => format!(" of {} MiB", progress.bytes >> 20),
        false => String::new(),
    };
    let found = count(all as u64, "dead letter");
    format!(
        "{found} found in the first {}{why} of {queue}, {hidden} of them not shown; {} messages \
        behind them were not read: use a filter, or drop or replay the first ones",
        count(progress.seen, "message"),
        progress.left
    )
}

impl Letters<'_> {
    async fn list(
        &self,
        filter: dead::Filter,
        limit: u32,
        as_json: bool,
    ) -> Result<ExitCode, Failure> {
        let progress = Progress::begin("fetching dead letters");
        let show_progress = |found: usize, left| {
            let found = count(found as u64, self.noun);
            progress.show(format!("{found} found, {left} left to read"));
        };
        let dead::LetterList {
            mut rows,
            progress: look,
        } = self.dead.list(&filter, show_progress).await?;
        drop(progress);
        let all = rows.len();
        rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        if as_json {
            for row in &rows {
                print_json(&row.as_json())?;
            }
        } else {
            std::io::stdout().write_all(in_columns(&rows).as_bytes())?;
        }
        let (hidden, queue) = (all - rows.len(), &self.dead.queue);
        if look.left > 0 {
            eprintln!("{}", cut_short(queue, (all, hidden), &look));
        } else if all == 0 && !as_json {
            let those = match filter.is_all() {
                true => "",
                false => " is among these",
            };
            writeln!(std::io::stdout(), "no dead letter in {queue}{those}")?;
        } else if hidden > 0 {
            eprintln!("{hidden} more in {queue}; --limit shows more");
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn show(
        &self,
        id: &str,
        tenant: Option<&str>,
        as_json: bool,
    ) -> Result<ExitCode, Failure> {
        let progress = Progress::begin("searching");
        let letter = self.dead.find(id, tenant).await;
        drop(progress);
        let letter = letter?;
        let shown = self.dead.answer(&letter, usize::MAX);
        if as_json {
            print_json(&shown.as_json())?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut out = std::io::stdout().lock();
        writeln!(out, "id: {}", plain(id, 255))?;
        if let Some(kind) = letter.properties.content_type() {
            writeln!(out, "content-type: {}", plain(kind.as_str(), 255))?;
        }
        for (name, value) in &shown.headers {
            let value = match value {
                Value::String(text) => text.clone(),
                value => value.to_string(),
            };
            writeln!(out, "{}: {}", plain(name, 255), plain(&value, 1_000))?;
        }
        // A body may contain any text. Lines are kept, but nothing else may control the terminal.
        let text: String = (shown.body.lines())
            .map(|line| plain(line, usize::MAX) + "\n")
            .collect();
        write!(out, "\n{text}")?;
        Ok(ExitCode::SUCCESS)
    }

    /// Applies `change` to the dead letters that `chosen` selects.
    async fn change(
        &self,
        chosen: SelectedLetters,
        change: LetterChange,
    ) -> Result<ExitCode, Failure> {
        let progress = Progress::begin("fetching");
        let show_progress =
            |done, left| progress.show(format!("{done} so far, {left} left to read"));
        let (filter, limit) = (chosen.filter.into(), chosen.limit);
        let done = self
            .dead
            .change((&filter, limit), change, interrupted(), show_progress)
            .await;
        drop(progress);
        let done = done?;
        let text = || format!("{} {}", change.keyword(), count(done.done, self.noun));
        print(chosen.json, || done.as_json(change), text)?;
        match done.remainder(&self.dead.queue, self.noun) {
            Some(left) => Err(Failure::Failed(format!("{left}; {} for them", self.again))),
            None => Ok(ExitCode::SUCCESS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_accepts_the_command_for_the_rest() {
        assert_eq!(
            again("-a b", "jobs diverted"),
            "run sluicegate tenant undivert --back --from='jobs diverted' -- '-a b'"
        );
    }

    #[test]
    fn an_incomplete_change_names_each_cause() {
        let left = |stopped, refused| {
            let result = dead::ChangeResult {
                done: 3,
                refused,
                stopped,
                failure: None,
            };
            result.remainder("jobs.dead", "dead letter")
        };
        assert_eq!(left(false, 0), None);
        for (stopped, refused, words) in [
            (true, 0, "interrupted: the other dead letters are"),
            (false, 1, "RabbitMQ refused 1 job: it is"),
            (false, 2, "RabbitMQ refused 2 jobs: they are"),
            (
                true,
                1,
                "interrupted; RabbitMQ refused 1 job: the other dead letters are",
            ),
        ] {
            let expected = format!("{words} still in jobs.dead");
            assert_eq!(left(stopped, refused), Some(expected));
        }
    }

    #[test]
    fn a_truncated_list_shows_the_reason() {
        let progress = |bytes| SearchProgress {
            left: 7,
            seen: 12_000,
            bytes,
            max_bytes: 256 << 20,
        };
        let text = cut_short("jobs.dead", (10_000, 9_900), &progress(5));
        assert!(
            text.starts_with(
                "10000 dead letters found in the first 12000 messages of jobs.dead, \
                9900 of them not shown; 7 messages behind them were not read"
            ),
            "{text}"
        );
        let text = cut_short("jobs.dead", (0, 0), &progress(256 << 20));
        let begin = "0 dead letters found in the first 12000 messages of 256 MiB of jobs.dead";
        assert!(text.starts_with(begin), "{text}");
    }
}
