//! `sluicegate inspect`: why a job waits, and until when.

use std::process::ExitCode;

use clap::Args;
use config::Config;
use gate::redis::RedisGate;
use operator::answer::Answer as _;
use operator::inspect::{WhatIf, inspect};
use rules::tenant::Tenant;

use super::labels::LabelArgs;
use super::{Failure, print};

/// Show a tenant's limits, usage and backlog, why its jobs wait, and when they start
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate inspect acme
  sluicegate inspect acme --plan pro
  sluicegate inspect acme --header x-endpoint=/v1
  sluicegate inspect acme --what-if max-requests=200
  sluicegate inspect acme --what-if per-day.max-requests=5000 --what-if resume
  sluicegate inspect acme --json")]
pub struct InspectArgs {
    /// Tenant
    tenant: String,
    /// Plan that the tenant's jobs name (rate-limiter.plan-header)
    #[arg(long)]
    plan: Option<String>,
    #[command(flatten)]
    labels: LabelArgs,
    /// Show when the backlog would end after a change, without making it: max-requests=N,
    /// window-size=DURATION (prefixed with NAME. if there are several limits), plan=NAME,
    /// pause=DURATION, resume
    #[arg(long, value_name = "KEY=VALUE", value_parser = WhatIf::parse)]
    what_if: Vec<WhatIf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(args: InspectArgs, config: &Config) -> Result<ExitCode, Failure> {
    let tenant = Tenant::parse(&args.tenant).map_err(|error| Failure::Usage(error.to_string()))?;
    let gate = RedisGate::new(&config.redis.url, &config.redis.prefix)?;
    let labels = |limits: &_| args.labels.given(limits);
    let whose = (tenant, args.plan.as_deref());
    let found = inspect(&gate, config, whose, labels, &args.what_if).await?;
    print(args.json, || found.answer().as_json(), || found.describe())?;
    Ok(ExitCode::SUCCESS)
}
