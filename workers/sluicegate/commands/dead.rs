//! `sluicegate dead`: the dead letters, and what to do with them.

use std::cmp::Reverse;
use std::io::Write;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use sluicegate::broker::amqp::{Client, Fetched};
use sluicegate::broker::{Message, Outgoing};
use sluicegate::config::{Config, TenantField};
use sluicegate::gate::boards::drop_all;
use sluicegate::gate::redis::RedisGate;
use sluicegate::rules::delays::DelayLevels;
use sluicegate::rules::headers::ROUTING_KEY;
use sluicegate::rules::job::{self, Field};
use sluicegate::rules::steering::{CANCELLED, Instruction};
use sluicegate::rules::tenant::Tenant;
use tokio::time::{Instant, sleep_until};

use super::letters::{Row, again, headers, hex, in_columns, reason};
use super::pace::Rate;
use super::progress::Progress;
use super::steer::{FOLLOW_WITHIN, followed};
use super::{Failure, count, plain, print_json};

/// Jobs that are published again at once, before their confirms are awaited.
const BATCH: usize = 100;
/// `list` looks at so many at most that its filter lets through: the queue gives the oldest first, and the newest are shown first.
const MOST_LISTED: usize = 10_000;
/// Nor does it fetch more, in bytes of bodies: each message comes over the network, though only its headers are shown.
const MOST_LISTED_BYTES: usize = 256 << 20;
/// Bytes of their bodies, and one job more.
const BATCH_BYTES: usize = 4 << 20;

/// Look at dead letters, replay them, or drop them
///
/// Dead letters are invalid messages, and jobs that were given up: rejected by the API, expired, or out of attempts.
/// They are in the queue `jobs.dead` (named after amqp.queue). What is not replayed or dropped stays there:
/// looking takes a message from the queue and gives it back, which RabbitMQ 4 counts as a delivery
/// (x-delivery-count; the queue allows a million of them) and puts at the queue's end.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate dead list --reason 'HTTP 422'
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
    /// List dead letters, the newest first: id, tenant, when it died, after which attempt, how many waits and how long, why
    #[command(after_help = "Example:\n  sluicegate dead list --tenant acme --limit 20 --json")]
    List {
        #[command(flatten)]
        filter: Filter,
        /// How many to show
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        /// Print a line of JSON for each
        #[arg(long)]
        json: bool,
    },
    /// Show one dead letter: headers and body
    #[command(after_help = "Example:\n  sluicegate dead show 01JCW1X5 --json")]
    Show {
        /// The job's id
        #[arg(value_name = "ID")]
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Put dead letters back into the work queue, as new jobs with all attempts
    ///
    /// Each is published and confirmed before its dead letter goes away: after a crash in between it is in
    /// both queues. Ctrl-C ends it between two of them; run it again for the rest. A job that was cancelled is cancelled no more.
    #[command(after_help = "Examples:
  sluicegate dead replay --reason 'HTTP 503' --limit 10
  sluicegate dead replay --all --rate 10/s")]
    Replay {
        #[command(flatten)]
        change: Change,
        /// So many at most in a second, a minute or an hour: 10/s, 100/m, 5/h; it says how far it is
        #[arg(long, value_name = "NUMBER/UNIT")]
        rate: Option<Rate>,
    },
    /// Delete dead letters
    #[command(after_help = "Example:\n  sluicegate dead drop --id 01JCW1X5")]
    Drop {
        #[command(flatten)]
        change: Change,
    },
}

/// Which dead letters.
#[derive(Debug, Clone, Args)]
struct Filter {
    /// Only those whose reason contains this
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Only those of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only the one with this id
    #[arg(long)]
    id: Option<String>,
}

/// Which dead letters to change: a filter, or all.
#[derive(Debug, Args)]
struct Change {
    #[command(flatten)]
    filter: Filter,
    /// All of them
    #[arg(long, conflicts_with_all = ["reason", "tenant", "id"])]
    all: bool,
    /// So many at most
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
}

/// Does it.
pub async fn run(args: DeadArgs, config: &Config) -> Result<ExitCode, Failure> {
    if let DeadCommand::Replay { change, .. } | DeadCommand::Drop { change } = &args.command {
        let Filter { reason, tenant, id } = &change.filter;
        if !change.all && reason.is_none() && tenant.is_none() && id.is_none() {
            return Err(Failure::Usage(
                "which dead letters? name --reason, --tenant or --id, or all with --all".to_owned(),
            ));
        }
        if config.job.tenant == TenantField::RoutingKey
            && matches!(args.command, DeadCommand::Replay { .. })
        {
            return Err(Failure::Usage(
                "job.tenant is routing-key, which a dead letter may have lost: publish it to your exchange again"
                    .to_owned(),
            ));
        }
    }
    let levels = DelayLevels::new(config.delay.max_delay);
    let client = Client::connect_existing(&config.amqp, &levels).await?;
    let dead = Dead {
        queue: Arc::clone(&client.names().dead),
        noun: "dead letter",
        client: &client,
        config,
    };
    let result = match args.command {
        DeadCommand::List {
            filter,
            limit,
            json,
        } => dead.list(&filter, limit, json).await,
        DeadCommand::Show { id, json } => dead.show(id, json).await,
        DeadCommand::Replay { change, rate } => dead.change(&change, Some(rate)).await,
        DeadCommand::Drop { change } => dead.change(&change, None).await,
    };
    // Everything that was fetched and not acked goes back to its queue.
    client.close().await;
    result
}

/// Puts the jobs of `tenant` that are in `queue` back into the work queue.
pub async fn bring_back(
    (client, config): (&Client, &Config),
    queue: Arc<str>,
    tenant: &Tenant,
    json: bool,
) -> Result<ExitCode, Failure> {
    let dead = Dead {
        queue,
        noun: "job",
        client,
        config,
    };
    let change = Change {
        filter: Filter {
            reason: None,
            tenant: Some(tenant.as_str().to_owned()),
            id: None,
        },
        all: false,
        limit: None,
        json,
    };
    dead.change(&change, Some(None)).await
}

/// Waits for Ctrl-C; for ever where that can't be heard.
async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

/// How far a look at the queue has come.
struct Look {
    /// Of those that were there at its beginning: not looked at yet.
    left: u32,
    seen: u64,
    /// Of the bodies of what was fetched.
    bytes: usize,
    most_bytes: usize,
}

impl Look {
    fn at(left: u32, most_bytes: usize) -> Self {
        Self {
            left,
            seen: 0,
            bytes: 0,
            most_bytes,
        }
    }
}

/// What is told where `all` were found, `hidden` of them are not shown, and the `look` ended before the queue did.
fn cut_short(queue: &str, (all, hidden): (usize, usize), look: &Look) -> String {
    let Look { left, seen, .. } = look;
    let why = match look.bytes >= look.most_bytes {
        true => format!(" of {} MiB", look.bytes >> 20),
        false => String::new(),
    };
    let found = count(all as u64, "dead letter");
    format!(
        "{found} found in the first {}{why} of {queue}, {hidden} of them not shown; {left} messages behind them were not looked at: a filter looks for some of them, and drop or replay takes the first ones away",
        count(*seen, "message")
    )
}

struct Dead<'a> {
    queue: Arc<str>,
    /// What is in it.
    noun: &'static str,
    client: &'a Client,
    config: &'a Config,
}

impl Dead<'_> {
    async fn list(&self, filter: &Filter, limit: u32, as_json: bool) -> Result<ExitCode, Failure> {
        let mut look = Look::at(self.client.depth(&self.queue).await?, MOST_LISTED_BYTES);
        let mut rows = Vec::new();
        let progress = Progress::begin("fetching dead letters");
        while rows.len() < MOST_LISTED
            && let Some(fetched) = self.next(filter, &mut look).await?
        {
            let message = &fetched.message;
            rows.push(Row::new(message, self.tenant(message)));
            let found = count(rows.len() as u64, self.noun);
            progress.says(format!("{found} found, {} left to look at", look.left));
        }
        drop(progress);
        let all = rows.len();
        // Of those without a time, in the order of the queue.
        rows.sort_by_key(|row| Reverse(row.died_ms));
        rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        if as_json {
            for row in &rows {
                print_json(&row.as_json())?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        std::io::stdout().write_all(in_columns(&rows).as_bytes())?;
        let (hidden, queue) = (all - rows.len(), &self.queue);
        if look.left > 0 {
            eprintln!("{}", cut_short(queue, (all, hidden), &look));
        } else if all == 0 {
            writeln!(std::io::stdout(), "no dead letter in {queue}")?;
        } else if hidden > 0 {
            eprintln!("{hidden} more in {queue}; --limit shows more");
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn show(&self, id: String, as_json: bool) -> Result<ExitCode, Failure> {
        let filter = Filter {
            id: Some(id.clone()),
            reason: None,
            tenant: None,
        };
        let mut look = Look::at(self.client.depth(&self.queue).await?, usize::MAX);
        let progress = Progress::begin("looking for it");
        let found = self.next(&filter, &mut look).await?;
        drop(progress);
        let Some(fetched) = found else {
            return Err(Failure::Failed(format!(
                "{} holds no dead letter with the id {id:?}",
                self.queue
            )));
        };
        let message = fetched.message;
        let body = match std::str::from_utf8(&message.body) {
            Ok(text) => text.to_owned(),
            Err(_) => hex(&message.body),
        };
        let headers = headers(&message);
        let kind = message.properties.content_type();
        if as_json {
            print_json(&json!({
                "id": id,
                "tenant": self.tenant(&message),
                "reason": reason(&message),
                "content_type": kind.as_ref().map(|kind| kind.as_str()),
                "headers": headers,
                // Bytes that are no text are shown as hexadecimal digits.
                "encoding": if std::str::from_utf8(&message.body).is_ok() { "utf-8" } else { "hex" },
                "body": body,
            }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut out = std::io::stdout().lock();
        writeln!(out, "id: {}", plain(&id, 255))?;
        if let Some(kind) = kind {
            writeln!(out, "content-type: {}", plain(kind.as_str(), 255))?;
        }
        for (name, value) in &headers {
            let value = match value {
                Value::String(text) => text.clone(),
                value => value.to_string(),
            };
            writeln!(out, "{}: {}", plain(name, 255), plain(&value, 1_000))?;
        }
        // A body may hold anything: lines stay lines, but nothing else may steer the terminal.
        let text: String = body
            .lines()
            .map(|line| plain(line, usize::MAX) + "\n")
            .collect();
        write!(out, "\n{text}")?;
        Ok(ExitCode::SUCCESS)
    }

    /// Replays what `change` names, not faster than that, or drops it where `replay` is `None`.
    async fn change(
        &self,
        change: &Change,
        replay: Option<Option<Rate>>,
    ) -> Result<ExitCode, Failure> {
        let rate = replay.flatten();
        let most = rate.map_or(BATCH, Rate::batch).min(BATCH);
        let mut stop = pin!(interrupted());
        let (mut stopped, began) = (false, Instant::now());
        let progress = Progress::begin("fetching");
        // What dies again meanwhile is behind these.
        let mut look = Look::at(self.client.depth(&self.queue).await?, usize::MAX);
        let limit = u64::from(change.limit.unwrap_or(u32::MAX));
        let (mut done, mut refused) = (0, 0);
        let mut failure = None;
        let mut more = true;
        while more {
            let mut batch = Vec::new();
            let mut bytes = 0;
            while batch.len() < most && bytes < BATCH_BYTES {
                let taken = done + refused + batch.len() as u64;
                match if taken < limit {
                    self.next(&change.filter, &mut look).await
                } else {
                    Ok(None)
                } {
                    Ok(Some(fetched)) => {
                        bytes += fetched.message.body.len();
                        batch.push(fetched);
                    }
                    Ok(None) => {
                        more = false;
                        break;
                    }
                    Err(error) => {
                        failure = Some(error);
                        more = false;
                        break;
                    }
                }
            }
            match self.settle(batch, replay.is_some()).await {
                Ok((settled, not)) => {
                    done += settled;
                    refused += not;
                }
                Err(error) => {
                    failure = Some(error);
                    more = false;
                }
            }
            progress.says(format!("{done} so far, {} left to look at", look.left));
            let due = began + rate.map_or(Duration::ZERO, |rate| rate.due(done + refused));
            tokio::select! {
                biased;
                () = &mut stop, if more => (stopped, more) = (true, false),
                () = sleep_until(due), if more => {}
                else => {}
            }
        }
        drop(progress);
        let what = if replay.is_some() {
            "replayed"
        } else {
            "dropped"
        };
        if change.json {
            print_json(&json!({what: done, "refused": refused, "interrupted": stopped}))?;
        } else {
            writeln!(std::io::stdout(), "{what} {}", count(done, self.noun))?;
        }
        match failure {
            None if stopped => Err(Failure::Failed(format!(
                "interrupted: the others are still in {}; run it again for them",
                self.queue
            ))),
            Some(error) => Err(error),
            None if refused > 0 => Err(Failure::Failed(format!(
                "RabbitMQ refused {}; they are still in {}",
                count(refused, "job"),
                self.queue
            ))),
            None => Ok(ExitCode::SUCCESS),
        }
    }

    /// Publishes `batch` anew when it is to be replayed, then acks what is safe. How many were, and how many
    /// RabbitMQ refused.
    async fn settle(&self, batch: Vec<Fetched>, replay: bool) -> Result<(u64, u64), Failure> {
        let tags: Vec<u64> = batch.iter().map(|fetched| fetched.tag).collect();
        let mut safe = vec![true; tags.len()];
        if replay && !batch.is_empty() {
            self.end_cancels(&batch).await?;
            let names = self.client.names();
            let jobs: Vec<Outgoing> = (batch.into_iter())
                .map(|fetched| again(fetched.message, names))
                .collect();
            let answers = self.client.publish(&jobs).await?;
            safe = answers.iter().map(Result::is_ok).collect();
        }
        let (mut done, mut refused) = (0, 0);
        for (tag, safe) in tags.into_iter().zip(safe) {
            if safe {
                self.client.ack(tag).await?;
                done += 1;
            } else {
                refused += 1;
            }
        }
        Ok((done, refused))
    }

    /// Jobs that were cancelled are cancelled no more, at any worker.
    async fn end_cancels(&self, batch: &[Fetched]) -> Result<(), Failure> {
        let cancelled = batch.iter().filter(|it| reason(&it.message) == CANCELLED);
        let names = cancelled.filter_map(|Fetched { message, .. }| {
            let tenant = Tenant::parse(&self.tenant(message)?).ok()?;
            Some(Instruction::Cancel(tenant, message.id()?.to_owned(), 0).name())
        });
        let names: Vec<String> = names.collect();
        if names.is_empty() {
            return Ok(());
        }
        let gate = RedisGate::connect(&self.config.redis.url, &self.config.redis.prefix)?;
        let versions = drop_all(&gate, &names).await?;
        let (_, followers) = followed(&gate, &versions, FOLLOW_WITHIN).await?;
        if !followers.are_all() {
            return Err(Failure::Failed(format!(
                "cancelled jobs are not replayed yet: {}; run it again",
                followers.in_words()
            )));
        }
        Ok(())
    }

    /// The next dead letter that `filter` names, of those that `look` has left. The others stay fetched until the
    /// connection closes, so none is met twice.
    async fn next(&self, filter: &Filter, look: &mut Look) -> Result<Option<Fetched>, Failure> {
        while look.left > 0 && look.bytes < look.most_bytes {
            let Some(fetched) = self.client.get(&self.queue).await? else {
                look.left = 0;
                return Ok(None);
            };
            look.left -= 1;
            look.seen += 1;
            look.bytes += fetched.message.body.len();
            if self.matches(filter, &fetched.message) {
                return Ok(Some(fetched));
            }
        }
        Ok(None)
    }

    fn matches(&self, filter: &Filter, message: &Message) -> bool {
        let id = filter.id.as_deref();
        let tenant = filter.tenant.as_deref();
        id.is_none_or(|id| message.id() == Some(id))
            && (filter.reason.as_deref()).is_none_or(|part| reason(message).contains(part))
            && tenant.is_none_or(|tenant| self.tenant(message).as_deref() == Some(tenant))
    }

    /// The tenant as the message names it, usable or not.
    fn tenant(&self, message: &Message) -> Option<String> {
        let place = &self.config.job.tenant;
        if let TenantField::Header(name) = place {
            return match message.header(name) {
                Field::Text(tenant) => Some(tenant.to_owned()),
                _ => None,
            };
        }
        if let (TenantField::RoutingKey, Field::Text(key)) = (place, message.header(ROUTING_KEY)) {
            return Some(key.to_owned());
        }
        let tenant = job::read_tenant(message, place).ok()?;
        Some(tenant.as_str().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_ends_early_says_why() {
        let look = |bytes| Look {
            left: 7,
            seen: 12_000,
            bytes,
            most_bytes: MOST_LISTED_BYTES,
        };
        let text = cut_short("jobs.dead", (10_000, 9_900), &look(5));
        assert!(
            text.starts_with("10000 dead letters found in the first 12000 messages of jobs.dead, 9900 of them not shown; 7 messages behind them were not looked at"),
            "{text}"
        );
        let text = cut_short("jobs.dead", (0, 0), &look(MOST_LISTED_BYTES));
        let begin = "0 dead letters found in the first 12000 messages of 256 MiB of jobs.dead";
        assert!(text.starts_with(begin), "{text}");
    }
}
