//! `sluicegate pause`, `resume` and `drain`: operators' instructions for all workers.

use std::process::ExitCode;
use std::time::Duration;

use broker::amqp::Client;
use clap::Args;
use config::{Config, Pipelines, show_duration};
use gate::instructions::{BoardView, Versions, put, see};
use gate::redis::RedisGate;
use operator::answer::Answer as _;
use operator::hold::{self, RemainingWork, draining, in_delay_queues, in_work_queues, paused};
use operator::rabbitmq::open;
use rules::steering::{Hold, Instruction};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::audit::note;
use super::per_pipeline::{PerPipeline, PipelineOutput, SelectedPipeline};
use super::steer::{
    DurationOption, FOLLOW_TIMEOUT, Followers, POLL_INTERVAL, WorkerLoad, loads, wait,
};
use super::times::at;
use super::{Failure, count};

/// Pause all workers: they make no calls and take no jobs until `resume --all`
///
/// The pause is stored in Redis and also applies to workers that start later. Calls in flight
/// finish. Then the workers return the jobs in their memory to the queues. No job is lost, and no
/// attempt is used. It pauses all pipelines unless --pipeline names one.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate pause --all
  sluicegate pause --all --for 1h --json

One tenant: sluicegate tenant pause TENANT")]
pub struct PauseArgs {
    /// All tenants at all workers (required)
    #[arg(long, required = true)]
    all: bool,
    #[command(flatten)]
    span: DurationOption,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// End `pause --all` and `drain`
///
/// It resumes all pipelines unless --pipeline names one.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  sluicegate resume --all

After a 429 or an open breaker: sluicegate tenant resume --all")]
pub struct ResumeArgs {
    /// All tenants at all workers (required)
    #[arg(long, required = true)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Finish the jobs that were taken, and take no new ones until `resume --all`
///
/// For maintenance of the API or an upgrade. Jobs that were already taken continue: calls in
/// flight, and jobs that wait in memory or in delay queues. New jobs stay in the work queue. With
/// --wait the command returns when no taken job is left. It drains all pipelines unless --pipeline
/// names one.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate drain
  sluicegate drain --wait 30m
  sluicegate drain --wait 30m --json")]
pub struct DrainArgs {
    /// Wait at most this long until no job is left
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    wait: Option<Duration>,
    #[command(flatten)]
    span: DurationOption,
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
    let asked = PerPipeline::new(all, name)?.then(async |at, ()| {
        let gate = gate_of(at.config)?;
        note(&gate, "pause --all", json!({}), json!({"for_ms": span_ms})).await;
        let versions = put(&gate, &Instruction::All(Hold::Paused), span_ms).await?;
        Ok((gate, versions))
    });
    let output = asked.await.then(async |_, (gate, versions)| {
        let paused = paused(&gate, &versions, FOLLOW_TIMEOUT).await?;
        let (until, who) = (at(paused.until_ms), paused.base.describe());
        let mut text = format!("paused all workers until {until}: {who}\n");
        if paused.calls_in_flight > 0 {
            let calls = count(paused.calls_in_flight, "call");
            text += &format!("{calls} in flight: they finish and are not repeated\n");
        }
        Ok(PipelineOutput {
            json: paused.as_json(),
            text,
            failure: None,
        })
    });
    output.await.end(args.json)
}

/// Ends [`pause`] and [`drain`].
pub async fn resume(
    args: ResumeArgs,
    all: &Pipelines,
    name: Option<&str>,
) -> Result<ExitCode, Failure> {
    let asked = PerPipeline::new(all, name)?.then(async |at, ()| {
        let gate = gate_of(at.config)?;
        note(&gate, "resume --all", json!({}), json!({})).await;
        let resuming = hold::resume(&gate).await?;
        Ok((gate, resuming))
    });
    let output = asked.await.then(async |_, (gate, resuming)| {
        let resumed = resuming.resumed(&gate, FOLLOW_TIMEOUT).await?;
        let who = resumed.base.describe();
        Ok(PipelineOutput {
            json: resumed.as_json(),
            text: match resumed.was {
                Some(_) => format!("resumed all workers: {who}\n"),
                None => format!("nothing was paused or drained: {who}\n"),
            },
            failure: None,
        })
    });
    output.await.end(args.json)
}

fn gate_of(config: &Config) -> Result<RedisGate, Failure> {
    Ok(RedisGate::new(&config.redis.url, &config.redis.prefix)?)
}

/// A pipeline that drains.
struct DrainingPipeline {
    client: Client,
    gate: RedisGate,
    versions: Versions,
    now: hold::Draining,
    /// Whether the drain ended before all jobs were finished.
    is_over: bool,
    /// The text before the wait.
    text: String,
}

/// Makes all workers take no new jobs.
pub async fn drain(
    args: DrainArgs,
    all: &Pipelines,
    name: Option<&str>,
) -> Result<ExitCode, Failure> {
    let span_ms = args.span.millis();
    let asked = PerPipeline::new(all, name)?.then(async |at, ()| {
        let client = open(at.config).await?;
        let gate = gate_of(at.config)?;
        note(&gate, "drain", json!({}), json!({"for_ms": span_ms})).await;
        let versions = put(&gate, &Instruction::All(Hold::Draining), span_ms).await?;
        Ok((client, gate, versions))
    });
    let started = asked.await.then(async |_, (client, gate, versions)| {
        let now = draining(&gate, &client, &versions, FOLLOW_TIMEOUT).await?;
        let (until, who) = (at(now.until_ms), now.base.describe());
        Ok(DrainingPipeline {
            text: format!(
                "no new jobs are taken until {until}: {who}\n{}\n",
                now.left.describe()
            ),
            client,
            gate,
            versions,
            now,
            is_over: false,
        })
    });
    let started = started.await;
    if !args.json {
        started.say(|draining| &draining.text)?;
    }
    let output = started.then(async |at, mut draining| {
        let empty = match args.wait {
            Some(wait) => draining.wait(wait, (!args.json).then_some(at)).await?,
            None => false,
        };
        draining.now.empty = args.wait.map(|_| empty);
        draining.now.jobs_in_work_queue = in_work_queues(&draining.client).await?;
        let output = draining.ended(args.wait, empty);
        draining.client.close().await;
        Ok(output)
    });
    output.await.end(args.json)
}

impl DrainingPipeline {
    /// Waits up to `wait` until no job is left. Returns whether none is. `at` is given if progress
    /// is to be shown for this pipeline.
    async fn wait(
        &mut self,
        wait: Duration,
        at: Option<SelectedPipeline<'_>>,
    ) -> Result<bool, Failure> {
        let end = Instant::now() + wait;
        loop {
            let before = see(&self.gate).await?;
            self.now.base = Followers::of(&before, &self.versions);
            let depth = in_delay_queues(&self.client).await?;
            let now = RemainingWork::of(&loads(&before), depth);
            let is_all = now.is_nothing() && self.now.base.are_all();
            if is_all && still(&self.gate, &before, end).await? {
                self.now.left = now;
                return Ok(true);
            }
            if let Some(at) = at.filter(|_| now != self.now.left) {
                eprintln!("{}{}", at.prefix(), now.describe());
            }
            self.now.left = now;
            self.is_over = hold::until(&before, Hold::Draining).is_none();
            if self.is_over || Instant::now() >= end {
                return Ok(false);
            }
            sleep(5 * POLL_INTERVAL).await;
        }
    }

    /// Returns the final output.
    fn ended(&self, wait: Option<Duration>, empty: bool) -> PipelineOutput {
        let text = match empty {
            true => format!(
                "drained: no job is left to finish; the work queue has {}, which resume --all \
                starts\n",
                count(self.now.jobs_in_work_queue, "job")
            ),
            false => String::new(),
        };
        let failure = wait.filter(|_| !empty).map(|wait| {
            let left = self.now.left.describe();
            match self.is_over {
                true => format!(
                    "not drained: {left}; workers take new jobs again, since --for is over or \
                    resume --all ended the drain"
                ),
                false => format!(
                    "not drained within {}: {left}; workers still take no new jobs",
                    show_duration(wait)
                ),
            }
        });
        PipelineOutput {
            json: self.now.as_json(),
            text,
            failure,
        }
    }
}

/// Returns true if no worker had a job between its report in `before` and its next one. The delay
/// queues were empty in between, so there was no job anywhere.
async fn still(gate: &RedisGate, before: &[BoardView], end: Instant) -> Result<bool, Failure> {
    let looked_at = (see(gate).await?.iter()).map(|board| board.now_ms).max();
    let first = loads(before);
    loop {
        let now = loads(&see(gate).await?);
        let same = |(name, load): (&String, &WorkerLoad)| {
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
        sleep(POLL_INTERVAL).await;
    }
}
