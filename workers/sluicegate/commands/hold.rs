//! `sluicegate pause`, `resume` and `drain`: what an operator asks of all workers.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use sluicegate::broker::amqp::Client;
use sluicegate::config::{Config, show_duration};
use sluicegate::gate::boards::{Seen, drop_all, put, see};
use sluicegate::gate::redis::RedisGate;
use sluicegate::rules::delays::DelayLevels;
use sluicegate::rules::steering::{ALL, Hold, Instruction};
use tokio::time::{Instant, sleep};

use super::steer::{EVERY, FOLLOW_WITHIN, Followers, Load, Span, followed, loads, wait};
use super::times::{at, when};
use super::{Failure, count, print_json};

/// Pause all workers: they call nobody and take no jobs until `resume --all`
///
/// Kept in Redis, so it also holds for workers that start later. Calls in flight finish; then the jobs in the workers' memory go
/// back to their queues. Nothing is lost, and no attempt is used.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate pause --all
  sluicegate pause --all --for 1h --json

One tenant: sluicegate tenant pause TENANT")]
pub struct PauseArgs {
    /// All tenants, at all workers
    #[arg(long, required = true)]
    all: bool,
    #[command(flatten)]
    span: Span,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// End `pause --all` and `drain`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  sluicegate resume --all

What a 429 or the breaker stopped: sluicegate tenant resume --all")]
pub struct ResumeArgs {
    /// All tenants, at all workers
    #[arg(long, required = true)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Take no new jobs from the work queue, and finish those that were taken, until `resume --all`
///
/// For maintenance of the API or an upgrade. Jobs that were taken before go on: calls in flight, and jobs that wait in memory or
/// in delay queues for their turn. With --wait it ends when none is left. New jobs stay in the work queue.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate drain
  sluicegate drain --wait 30m
  sluicegate drain --wait 30m --json")]
pub struct DrainArgs {
    /// Wait for so long at most until nothing is left
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    wait: Option<Duration>,
    #[command(flatten)]
    span: Span,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Pauses all workers.
pub async fn pause(args: PauseArgs, config: &Config) -> Result<ExitCode, Failure> {
    let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix)?;
    let asked = Instruction::All(Hold::Paused);
    let versions = put(&gate, &asked, args.span.millis()).await?;
    let (seen, followers) = followed(&gate, &versions, FOLLOW_WITHIN).await?;
    let running: u64 = loads(&seen).values().map(|load| load.running).sum();
    let until_ms = until(&seen, Hold::Paused).unwrap_or_default();
    if args.json {
        print_json(&json!({
            "all": "paused",
            "until_ms": until_ms,
            "workers": followers.all,
            "workers_following": followers.following,
            "calls_in_flight": running,
        }))?;
    } else {
        let (until, who) = (at(until_ms), followers.in_words());
        let mut text = format!("paused all workers until {until}: {who}\n");
        if running > 0 {
            let calls = count(running, "call");
            text += &format!("{calls} in flight: not interrupted, and not made again\n");
        }
        std::io::stdout().write_all(text.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends what [`pause`] and [`drain`] began.
pub async fn resume(args: ResumeArgs, config: &Config) -> Result<ExitCode, Failure> {
    let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix)?;
    let before = held(&see(&gate).await?);
    let versions = drop_all(&gate, &[ALL.to_owned()]).await?;
    let (_, followers) = followed(&gate, &versions, FOLLOW_WITHIN).await?;
    if args.json {
        print_json(&json!({
            "all": "resumed",
            "was": before.map(|(hold, _)| hold.word()),
            "workers": followers.all,
            "workers_following": followers.following,
        }))?;
    } else {
        let who = followers.in_words();
        let text = match before {
            Some(_) => format!("resumed all workers: {who}"),
            None => format!("nothing was paused or drained: {who}"),
        };
        writeln!(std::io::stdout(), "{text}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is asked of all workers at these boards, and until when (ms).
pub fn held(seen: &[Seen]) -> Option<(Hold, u64)> {
    let until = |hold| until(seen, hold).map(|until_ms| (hold, until_ms));
    until(Hold::Paused).or_else(|| until(Hold::Draining))
}

fn until(seen: &[Seen], hold: Hold) -> Option<u64> {
    let posted = seen.iter().flat_map(|board| &board.posted);
    let of_all = posted.filter(|(instruction, _)| *instruction == Instruction::All(hold));
    of_all.map(|(_, until_ms)| *until_ms).max()
}

/// What is asked of all workers, in a line; empty: nothing.
pub fn held_in_words(seen: &[Seen]) -> String {
    let now_ms = seen
        .iter()
        .map(|board| board.now_ms)
        .max()
        .unwrap_or_default();
    let Some((hold, until_ms)) = held(seen) else {
        return String::new();
    };
    let what = match hold {
        Hold::Paused => "paused all workers",
        Hold::Draining => "drains all workers, which take no new jobs",
    };
    let ends = when(now_ms, until_ms.saturating_sub(now_ms));
    format!("an operator {what}; it ends {ends}, or by sluicegate resume --all")
}

/// What is left to be finished.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Left {
    running: u64,
    in_memory: u64,
    in_delay_queues: u64,
}

impl Left {
    fn of(loads: &BTreeMap<String, Load>, in_delay_queues: u64) -> Self {
        Self {
            running: loads.values().map(|load| load.running).sum(),
            in_memory: loads.values().map(|load| load.in_memory).sum(),
            in_delay_queues,
        }
    }

    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    fn in_words(&self) -> String {
        let Self {
            running,
            in_memory,
            in_delay_queues,
        } = self;
        format!(
            "{} in flight, {} in the workers' memory, {in_delay_queues} in delay queues",
            count(*running, "call"),
            count(*in_memory, "job")
        )
    }

    fn as_json(&self) -> Value {
        json!({
            "calls_in_flight": self.running,
            "jobs_in_memory": self.in_memory,
            "jobs_in_delay_queues": self.in_delay_queues,
        })
    }
}

/// Lets all workers take no new jobs.
pub async fn drain(args: DrainArgs, config: &Config) -> Result<ExitCode, Failure> {
    let levels = DelayLevels::new(config.delay.max_delay);
    let client = Client::connect_existing(&config.amqp, &levels).await?;
    let done = drain_with(&args, config, &client).await;
    client.close().await;
    done
}

async fn drain_with(
    args: &DrainArgs,
    config: &Config,
    client: &Client,
) -> Result<ExitCode, Failure> {
    let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix)?;
    let asked = Instruction::All(Hold::Draining);
    let versions = put(&gate, &asked, args.span.millis()).await?;
    let (seen, mut followers) = followed(&gate, &versions, FOLLOW_WITHIN).await?;
    let until_ms = until(&seen, Hold::Draining).unwrap_or_default();
    let mut left = Left::of(&loads(&seen), in_delay_queues(client).await?);
    let mut empty = false;
    if !args.json {
        let (until, who, left) = (at(until_ms), followers.in_words(), left.in_words());
        let text = format!("no new jobs are taken until {until}: {who}\n{left}\n");
        std::io::stdout().write_all(text.as_bytes())?;
    }
    if let Some(wait) = args.wait {
        let end = Instant::now() + wait;
        loop {
            let before = see(&gate).await?;
            followers = Followers::of(&before, &versions);
            let depth = in_delay_queues(client).await?;
            let now = Left::of(&loads(&before), depth);
            if now.is_nothing() && followers.are_all() && still(&gate, &before, end).await? {
                (left, empty) = (now, true);
                break;
            }
            if now != left && !args.json {
                eprintln!("{}", now.in_words());
            }
            left = now;
            if Instant::now() >= end {
                break;
            }
            sleep(5 * EVERY).await;
        }
    }
    let stay = client.depth(&client.names().fresh).await?;
    if args.json {
        print_json(&json!({
            "all": "draining",
            "until_ms": until_ms,
            "workers": followers.all,
            "workers_following": followers.following,
            "left": left.as_json(),
            "empty": args.wait.map(|_| empty),
            "jobs_in_work_queue": stay,
        }))?;
    } else if empty {
        let stay = count(stay.into(), "job");
        writeln!(
            std::io::stdout(),
            "drained: nothing is left to be finished; the work queue has {stay}, resume --all takes them"
        )?;
    }
    match args.wait {
        Some(wait) if !empty => Err(match args.json {
            true => Failure::Said,
            false => Failure::Failed(format!(
                "not empty within {}: {}; no new jobs are taken all the same",
                show_duration(wait),
                left.in_words()
            )),
        }),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Jobs that wait outside the work queue and the workers.
async fn in_delay_queues(client: &Client) -> Result<u64, Failure> {
    let names = client.names();
    let mut all = 0;
    for queue in names.delays().iter().chain([&names.due, &names.recheck]) {
        all += u64::from(client.depth(queue).await?);
    }
    Ok(all)
}

/// No worker had a job between what it said at `before`, and what it says of a moment later. The delay queues were empty between the
/// two: then no job was anywhere.
async fn still(gate: &RedisGate, before: &[Seen], end: Instant) -> Result<bool, Failure> {
    let looked_at = (see(gate).await?.iter()).map(|board| board.now_ms).max();
    let first = loads(before);
    loop {
        let now = loads(&see(gate).await?);
        let same = |(name, load): (&String, &Load)| {
            (now.get(name)).is_some_and(|it| {
                (it.in_memory, it.deliveries) == (load.in_memory, load.deliveries)
            })
        };
        if now.len() != first.len() || !first.iter().all(same) {
            return Ok(false);
        }
        if now.values().all(|load| Some(load.at_ms) > looked_at) {
            return Ok(true);
        }
        if Instant::now() >= end {
            return Ok(false);
        }
        sleep(EVERY).await;
    }
}
