//! `sluicegate explain`: what one job waits for and when it starts, or why it is a dead letter.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use config::Config;
use gate::redis::RedisGate;
use operator::answer::Answer as _;
use operator::dead::LetterQueue;
use operator::explain::letters::{FailedSearch, LetterInQueue, search};
use operator::explain::{JobExplanation, explain};
use operator::job::JobRef;
use operator::rabbitmq::{LETTERS_TIMEOUT, close, connect};
use operator::tenant::parse;
use tokio::time::Instant;

use super::job::{describe, job_not_held, of};
use super::progress::Progress;
use super::steer::wait;
use super::{Failure, plain, print_json};

/// How long workers may take to report the job before it is searched for among the dead letters.
/// Only after that does the command wait for it.
const WORKERS_SAY: Duration = Duration::from_secs(2);

/// Show what a job waits for, its position, when it starts, and how certain that is
///
/// The worker that has the job in memory reports its state, and the gate forecasts its turn. A job
/// in a delay queue or in the work queue is in no worker's memory; `job show --help` says when
/// workers see it. If no worker has the job, the command searches the first 1,000 dead letters. It
/// shows a dead letter's reason and how to replay it. Each read counts as a delivery (see `dead
/// --help`).
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate explain --tenant acme --id order-7
  sluicegate explain --tenant acme --id order-7 --wait 5m --json")]
pub struct ExplainArgs {
    /// Tenant of the job
    #[arg(long)]
    tenant: String,
    /// Message id of the job
    #[arg(long)]
    id: String,
    /// How long to wait for a worker to see the job
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = wait)]
    wait: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(args: ExplainArgs, config: &Config) -> Result<ExitCode, Failure> {
    let which = JobRef::new(parse(&args.tenant)?, &args.id, config.delay.max_delay)?;
    let gate = RedisGate::new(&config.redis.url, &config.redis.prefix)?;
    let job = of(&which);
    let at_first = args.wait.min(WORKERS_SAY);
    let mut explanation = explain(&gate, config, which.clone(), at_first).await?;
    if explanation.may_be_dead() {
        let found = among_letters(config, &which).await;
        let waits = args.wait.saturating_sub(at_first);
        if found.is_err() && !explanation.is_found() && !waits.is_zero() {
            explanation = explain(&gate, config, which, waits).await?;
        }
        // A worker's answer by now is newer than the search.
        if explanation.may_be_dead() {
            explanation = explanation.with(found);
        }
    }
    if args.json {
        print_json(&explanation.as_json())?;
        return match explanation.is_found() {
            true => Ok(ExitCode::SUCCESS),
            false => Err(Failure::AlreadyReported),
        };
    }
    let text = match shown(&job, &explanation) {
        Some(text) => text,
        None => return Err(missing(&job, &explanation, config, &gate).await),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the job's state as text, or `None` if it is unknown.
fn shown(job: &str, explanation: &JobExplanation) -> Option<String> {
    let begin = match (&explanation.seen, &explanation.dead_letter) {
        (Some(seen), _) => describe(job, seen),
        (None, Some(letter)) => {
            let queue = plain(&letter.queue, 255);
            format!("{job} is a dead letter in {queue}\n")
        }
        (None, None) => return None,
    };
    Some(begin + &explanation.describe())
}

async fn missing(
    job: &str,
    explanation: &JobExplanation,
    config: &Config,
    gate: &RedisGate,
) -> Failure {
    let nobody = job_not_held(job, explanation, config, gate).await;
    match explanation.search_failure() {
        Some(vain) => Failure::Failed(format!("{}\n{vain}", nobody.words())),
        None => nobody,
    }
}

/// Searches for the job among the dead letters.
async fn among_letters(config: &Config, which: &JobRef) -> Result<LetterInQueue, FailedSearch> {
    let progress = Progress::begin("searching the dead letters");
    let connected = connect(config).await;
    let client = connected.map_err(|why| FailedSearch::unread(why.to_string()))?;
    let dead = LetterQueue {
        until: Some(Instant::now() + LETTERS_TIMEOUT),
        ..LetterQueue::new(&client, config)
    };
    let found = search(&dead, which).await;
    drop(progress);
    close(client).await;
    found
}
