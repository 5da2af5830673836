//! `sluicegate queues`: removes what earlier versions left in RabbitMQ.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use sluicegate::broker::amqp::Leftovers;
use sluicegate::config::{Config, parse_duration, show_duration};
use sluicegate::rules::delays::DelayLevels;

use super::progress::Progress;
use super::{Failure, count};

/// The default `delay.max-delay`.
const USUAL: Duration = Duration::from_secs(300);

/// Remove queues that earlier versions left
#[derive(Debug, Args)]
#[command(after_help = "Example:
  sluicegate queues remove-old")]
pub struct QueuesArgs {
    #[command(subcommand)]
    command: QueuesCommand,
}

#[derive(Debug, Subcommand)]
enum QueuesCommand {
    /// Move the jobs of earlier versions' delay queues to this version's, and delete the empty queues
    ///
    /// Each job is published to `jobs.due` (named after amqp.queue) and confirmed before it leaves its queue: after a crash in between
    /// it is in both. Stop all workers of earlier versions first: while one may run, nothing is changed, and the exit status is 1. A
    /// queue is deleted only after no job was found for --quiet-for, since RabbitMQ may hold an expired job for three minutes in which
    /// no client sees it. Workers of this version may run.
    #[command(after_help = "Examples:
  sluicegate queues remove-old
  sluicegate queues remove-old --max-delay 1h --max-delay 15m")]
    RemoveOld(RemoveArgs),
}

#[derive(Debug, Args)]
struct RemoveArgs {
    /// A delay.max-delay that was set once, since each had queues of its own; may be given several times. That of the configuration
    /// and 5m are looked for in any case
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    max_delay: Vec<Duration>,
    /// No job must be found for so long before queues are deleted
    #[arg(long, value_name = "DURATION", default_value = "4m", value_parser = duration)]
    quiet_for: Duration,
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    parse_duration(text).ok_or("a duration is a number with a unit: 500ms, 4m, 1h")
}

/// Removes the queues.
pub async fn run(args: QueuesArgs, config: &Config) -> Result<ExitCode, Failure> {
    let QueuesCommand::RemoveOld(RemoveArgs {
        mut max_delay,
        quiet_for,
    }) = args.command;
    max_delay.extend([config.delay.max_delay, USUAL]);
    let levels = DelayLevels::new(config.delay.max_delay);
    let progress = Progress::begin("looking for delay queues of earlier versions");
    let leftovers = Leftovers::find(&config.amqp, &levels, &max_delay).await?;
    let removed = remove(&leftovers, quiet_for, &progress).await;
    drop(progress);
    leftovers.close().await;
    removed
}

async fn remove(
    leftovers: &Leftovers,
    quiet_for: Duration,
    progress: &Progress,
) -> Result<ExitCode, Failure> {
    let say = |text: String| progress.beside(|| writeln!(std::io::stdout(), "{text}"));
    let number = leftovers.names().len() as u64;
    if number == 0 {
        say("no delay queues of earlier versions".to_owned())?;
        return Ok(ExitCode::SUCCESS);
    }
    let queues = count(number, "delay queue");
    say(format!("{queues} of earlier versions"))?;
    let mut is_first = true;
    loop {
        if leftovers.has_earlier_workers().await? {
            return Err(Failure::Failed(
                "a worker of an earlier version may run: it takes jobs from the work queue and from none of this version's delay queues; stop it, then run this again".to_owned(),
            ));
        }
        progress.says("moving jobs");
        let moved = leftovers.drain().await?;
        if moved > 0 {
            say(format!("{} moved", count(moved, "job")))?;
        } else if !is_first {
            break;
        }
        is_first = false;
        if !quiet_for.is_zero() {
            let pause = show_duration(quiet_for);
            say(format!(
                "waits for {pause}: RabbitMQ may have expired jobs on their way"
            ))?;
        }
        progress.says("waiting for expired jobs");
        tokio::time::sleep(quiet_for).await;
    }
    progress.says("deleting");
    let left = leftovers.delete().await?;
    let deleted = count(number - left.len() as u64, "delay queue");
    say(format!("{deleted} deleted"))?;
    if let Some(first) = left.first() {
        return Err(Failure::Failed(format!(
            "{} not deleted, such as {first}: jobs have come, or something consumes from it; stop that, then run this again",
            count(left.len() as u64, "delay queue")
        )));
    }
    Ok(ExitCode::SUCCESS)
}
