//! `sluicegate pause`, `resume` and `drain`: what an operator asks of all workers.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use sluicegate::broker::amqp::Client;
use sluicegate::config::{Config, Pipelines, show_duration};
use sluicegate::gate::boards::{Seen, Versions, drop_all, put, see};
use sluicegate::gate::redis::RedisGate;
use sluicegate::rules::delays::DelayLevels;
use sluicegate::rules::steering::{ALL, Hold, Instruction};
use tokio::time::{Instant, sleep};

use super::steer::{EVERY, FOLLOW_WITHIN, Followers, Load, Span, followed, loads, wait};
use super::times::{at, when};
use super::together::{At, Said, Together};
use super::{Failure, count};

/// Pause all workers: they call nobody and take no jobs until `resume --all`
///
/// Kept in Redis, so it also holds for workers that start later. Calls in flight finish; then the jobs in the workers' memory go
/// back to their queues. Nothing is lost, and no attempt is used. Of several pipelines all are paused, unless --pipeline names one.
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
///
/// In all pipelines, unless --pipeline names one.
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
/// in delay queues for their turn. With --wait it ends when none is left. New jobs stay in the work queue. Of several pipelines all drain,
/// unless --pipeline names one.
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
pub async fn pause(
    args: PauseArgs,
    all: &Pipelines,
    name: Option<&str>,
) -> Result<ExitCode, Failure> {
    let span_ms = args.span.millis();
    let asked = Together::new(all, name)?.then(async |at, ()| {
        let gate = gate_of(at.config)?;
        let versions = put(&gate, &Instruction::All(Hold::Paused), span_ms).await?;
        Ok((gate, versions))
    });
    let said = asked.await.then(async |_, (gate, versions)| {
        let (seen, followers) = followed(&gate, &versions, FOLLOW_WITHIN).await?;
        let running: u64 = loads(&seen).values().map(|load| load.running).sum();
        let until_ms = until(&seen, Hold::Paused).unwrap_or_default();
        let (until, who) = (at(until_ms), followers.in_words());
        let mut text = format!("paused all workers until {until}: {who}\n");
        if running > 0 {
            let calls = count(running, "call");
            text += &format!("{calls} in flight: not interrupted, and not made again\n");
        }
        Ok(Said {
            json: json!({
                "all": "paused",
                "until_ms": until_ms,
                "workers": followers.all,
                "workers_following": followers.following,
                "calls_in_flight": running,
            }),
            text,
            failure: None,
        })
    });
    said.await.end(args.json)
}

/// Ends what [`pause`] and [`drain`] began.
pub async fn resume(
    args: ResumeArgs,
    all: &Pipelines,
    name: Option<&str>,
) -> Result<ExitCode, Failure> {
    let asked = Together::new(all, name)?.then(async |at, ()| {
        let gate = gate_of(at.config)?;
        let before = held(&see(&gate).await?);
        let versions = drop_all(&gate, &[ALL.to_owned()]).await?;
        Ok((gate, before, versions))
    });
    let said = asked.await.then(async |_, (gate, before, versions)| {
        let (_, followers) = followed(&gate, &versions, FOLLOW_WITHIN).await?;
        let who = followers.in_words();
        Ok(Said {
            json: json!({
                "all": "resumed",
                "was": before.map(|(hold, _)| hold.word()),
                "workers": followers.all,
                "workers_following": followers.following,
            }),
            text: match before {
                Some(_) => format!("resumed all workers: {who}\n"),
                None => format!("nothing was paused or drained: {who}\n"),
            },
            failure: None,
        })
    });
    said.await.end(args.json)
}

fn gate_of(config: &Config) -> Result<RedisGate, Failure> {
    Ok(RedisGate::connect(&config.redis.url, &config.redis.prefix)?)
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

/// A pipeline that drains.
struct Draining {
    client: Client,
    gate: RedisGate,
    versions: Versions,
    until_ms: u64,
    followers: Followers,
    left: Left,
    /// What is said before the wait.
    text: String,
}

/// Lets all workers take no new jobs.
pub async fn drain(
    args: DrainArgs,
    all: &Pipelines,
    name: Option<&str>,
) -> Result<ExitCode, Failure> {
    let span_ms = args.span.millis();
    let asked = Together::new(all, name)?.then(async |at, ()| {
        let levels = DelayLevels::new(at.config.delay.max_delay);
        let client = Client::connect_existing(&at.config.amqp, &levels).await?;
        let gate = gate_of(at.config)?;
        let versions = put(&gate, &Instruction::All(Hold::Draining), span_ms).await?;
        Ok((client, gate, versions))
    });
    let begun = asked.await.then(async |_, (client, gate, versions)| {
        let (seen, followers) = followed(&gate, &versions, FOLLOW_WITHIN).await?;
        let until_ms = until(&seen, Hold::Draining).unwrap_or_default();
        let left = Left::of(&loads(&seen), in_delay_queues(&client).await?);
        let (until, who) = (at(until_ms), followers.in_words());
        Ok(Draining {
            text: format!(
                "no new jobs are taken until {until}: {who}\n{}\n",
                left.in_words()
            ),
            client,
            gate,
            versions,
            until_ms,
            followers,
            left,
        })
    });
    let begun = begun.await;
    if !args.json {
        begun.say(|draining| &draining.text)?;
    }
    let said = begun.then(async |at, mut draining| {
        let empty = match args.wait {
            Some(wait) => draining.wait(wait, (!args.json).then_some(at)).await?,
            None => false,
        };
        let stay = in_work_queues(&draining.client).await?;
        let said = draining.ended(args.wait, empty, stay);
        draining.client.close().await;
        Ok(said)
    });
    said.await.end(args.json)
}

impl Draining {
    /// Waits until nothing is left, for so long at most: whether nothing is. Progress goes to who asks `at` this pipeline.
    async fn wait(&mut self, wait: Duration, at: Option<At<'_>>) -> Result<bool, Failure> {
        let end = Instant::now() + wait;
        loop {
            let before = see(&self.gate).await?;
            self.followers = Followers::of(&before, &self.versions);
            let depth = in_delay_queues(&self.client).await?;
            let now = Left::of(&loads(&before), depth);
            let is_all = now.is_nothing() && self.followers.are_all();
            if is_all && still(&self.gate, &before, end).await? {
                self.left = now;
                return Ok(true);
            }
            if let Some(at) = at.filter(|_| now != self.left) {
                eprintln!("{}{}", at.prefix(), now.in_words());
            }
            self.left = now;
            if Instant::now() >= end {
                return Ok(false);
            }
            sleep(5 * EVERY).await;
        }
    }

    /// What is said at the end; `stay` jobs are in the work queue.
    fn ended(&self, wait: Option<Duration>, empty: bool, stay: u64) -> Said {
        let text = match empty {
            true => format!(
                "drained: nothing is left to be finished; the work queue has {}, resume --all takes them\n",
                count(stay, "job")
            ),
            false => String::new(),
        };
        let failure = wait.filter(|_| !empty).map(|wait| {
            format!(
                "not empty within {}: {}; no new jobs are taken all the same",
                show_duration(wait),
                self.left.in_words()
            )
        });
        Said {
            json: json!({
                "all": "draining",
                "until_ms": self.until_ms,
                "workers": self.followers.all,
                "workers_following": self.followers.following,
                "left": self.left.as_json(),
                "empty": wait.map(|_| empty),
                "jobs_in_work_queue": stay,
            }),
            text,
            failure,
        }
    }
}

/// Jobs that nobody has taken, in all queues of new jobs.
async fn in_work_queues(client: &Client) -> Result<u64, Failure> {
    let names = client.names();
    let mut all = 0;
    for queue in names.more().iter().chain([&names.fresh]) {
        all += u64::from(client.depth(queue).await?);
    }
    Ok(all)
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
