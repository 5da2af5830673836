//! The smallest worker with its own handler. Copy it to write yours. It is configured like
//! `sluicegate run`, and needs no `dispatch.http`.

use std::error::Error;
use std::process::ExitCode;

use sluicegate::{Config, Handler, Job, Outcome, Permit};

struct Echo;

impl Handler for Echo {
    async fn handle(&self, job: &Job, _permit: Permit) -> Outcome {
        println!(
            "{} {} {}",
            job.tenant,
            job.id,
            String::from_utf8_lossy(&job.body)
        );
        Outcome::Done
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let config = Config::from_env(None)?;
    sluicegate::init_log(&config)?;
    Ok(sluicegate::run_with(config, Echo).await?)
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}
