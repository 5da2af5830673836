//! `sluicegate inspect`: why does this job wait, and until when?

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use sluicegate::config::Config;
use sluicegate::gate::redis::RedisGate;
use sluicegate::operator::inspect::inspect;
use sluicegate::rules::tenant::Tenant;

use super::labels::LabelArgs;
use super::{Failure, print_json};

/// Show a tenant's limits: what is used, what is available, how much waits, why, and until when
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate inspect acme
  sluicegate inspect acme --plan pro
  sluicegate inspect acme --header x-endpoint=/v1
  sluicegate inspect acme --json")]
pub struct InspectArgs {
    /// Whose limits
    tenant: String,
    /// The plan that its jobs name (rate-limiter.plan-header)
    #[arg(long)]
    plan: Option<String>,
    #[command(flatten)]
    labels: LabelArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Inspects.
pub async fn run(args: InspectArgs, config: &Config) -> Result<ExitCode, Failure> {
    let tenant = Tenant::parse(&args.tenant).map_err(|error| Failure::Usage(error.to_string()))?;
    let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix)?;
    let labels = |limits: &_| args.labels.given(limits);
    let found = inspect(&gate, config, tenant, args.plan.as_deref(), labels).await?;
    if args.json {
        print_json(&found.as_json())?;
    } else {
        std::io::stdout().write_all(found.in_words().as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}
