//! `sluicegate explain`: what does this one job wait for, and when does it start?

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use sluicegate::config::Config;
use sluicegate::gate::redis::RedisGate;
use sluicegate::operator::explain::explain;
use sluicegate::operator::job::Which;
use sluicegate::operator::tenant::parse;

use super::job::{in_words, nobody_has_it, of};
use super::steer::wait;
use super::{Failure, print_json};

/// Show what one job waits for, its place in the line, when it starts, and how sure that is
///
/// A worker that has the job in its memory says how it stands, and the gate when its turn comes. A job in a delay queue or in the
/// work queue is in nobody's memory: `job show --help` says when it is looked at.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate explain --tenant acme --id order-7
  sluicegate explain --tenant acme --id order-7 --wait 5m --json")]
pub struct ExplainArgs {
    /// Whose job
    #[arg(long)]
    tenant: String,
    /// Its message id
    #[arg(long)]
    id: String,
    /// How long to wait until a worker has seen the job
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = wait)]
    wait: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Explains.
pub async fn run(args: ExplainArgs, config: &Config) -> Result<ExitCode, Failure> {
    let which = Which::new(parse(&args.tenant)?, &args.id, config.delay.max_delay)?;
    let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix)?;
    let job = of(&which);
    let told = explain(&gate, config, which, args.wait).await?;
    if args.json {
        print_json(&told.as_json())?;
    }
    match (&told.shown().seen, args.json) {
        (None, true) => Err(Failure::Said),
        (None, false) => Err(nobody_has_it(&job, told.shown(), config)),
        (Some(_), true) => Ok(ExitCode::SUCCESS),
        (Some(seen), false) => {
            let text = in_words(&job, seen) + &told.in_words();
            std::io::stdout().write_all(text.as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
