//! `sluicegate tenant`: an operator's changes for one tenant, at once for all workers.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use config::{Config, show_duration};
use gate::Change;
use gate::redis::RedisGate;
use operator::answer::Answer as _;
use operator::tenant::{limit_name, parse};
use operator::tenant_action::TenantAction;
use operator::trials::Trial;
use rules::limit::MAX_REQUESTS;
use serde_json::json;

use super::audit::note;
use super::divert::{DivertArgs, UndivertArgs, divert, undivert};
use super::steer::{DurationOption, FOLLOW_TIMEOUT};
use super::{Failure, print};

/// Pause or divert a tenant, change its limits, or reset its waitlist, at all workers at once
///
/// Changes are stored in Redis and expire (--for). They apply from the next decision on. If jobs
/// can now start earlier, waiting jobs ask again within seconds. Any other job in a delay queue
/// sees the change within delay.max-delay. `sluicegate inspect` shows changes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate tenant pause acme --for 1h
  sluicegate tenant resume acme
  sluicegate tenant resume --all
  sluicegate tenant limit acme 100 --for 30m
  sluicegate tenant limit acme 50 --shadow --for 1d
  sluicegate tenant limit acme --clear
  sluicegate tenant divert acme --for 10m
  sluicegate tenant undivert acme --back
  sluicegate tenant reset acme")]
pub struct TenantArgs {
    #[command(subcommand)]
    what: TenantCommand,
}

#[derive(Debug, Subcommand)]
enum TenantCommand {
    /// Stop admitting a tenant's jobs; calls in flight continue
    #[command(after_help = "Examples:
  sluicegate tenant pause acme
  sluicegate tenant pause acme --for 1h --json")]
    Pause {
        #[command(flatten)]
        of: TenantOptions,
        #[command(flatten)]
        span: DurationOption,
    },
    /// End a tenant's pause and throttle (429), and close its breaker
    ///
    /// With --all, ends the throttle and closes the breaker of all tenants together; a tenant's own
    /// suspension stays. Workers notice within a second.
    #[command(after_help = "Examples:
  sluicegate tenant resume acme
  sluicegate tenant resume --all")]
    Resume {
        /// Tenant
        #[arg(required_unless_present = "all")]
        tenant: Option<String>,
        /// Resume the calls of all tenants (see rate-limiter.throttle-scope and dispatch.breaker)
        #[arg(long, conflicts_with = "tenant")]
        all: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Set, try or clear another max-requests for a tenant
    ///
    /// --shadow tries the limit: it counts from the next start on but denies nothing, and `inspect
    /// TENANT` shows how many jobs would have waited, and for how long. The same command without
    /// --shadow enforces it and keeps its counts.
    #[command(after_help = "Examples:
  sluicegate tenant limit acme 100
  sluicegate tenant limit acme 5 --limit per-second --for 1h
  sluicegate tenant limit acme 5 --shadow --for 1d
  sluicegate tenant limit acme --clear --shadow
  sluicegate tenant limit acme --clear")]
    Limit {
        #[command(flatten)]
        of: TenantOptions,
        /// Temporary max-requests of the limit
        #[arg(value_name = "MAX", required_unless_present = "clear", value_parser = max_requests)]
        max: Option<u64>,
        /// Name of the limit, if the tenant has several
        #[arg(long, value_name = "NAME")]
        limit: Option<String>,
        /// Try the limit: count its effects but deny nothing
        #[arg(long)]
        shadow: bool,
        /// Return to the configured limit and end a trial; with --shadow, end only the trial
        #[arg(long, conflicts_with_all = ["max", "span"])]
        clear: bool,
        #[command(flatten)]
        span: DurationOption,
    },
    /// Move a tenant's jobs to another queue instead of calling them
    ///
    /// Keeps the jobs out of the way of other tenants without losing them. A worker moves each job
    /// when it next sees it. The jobs stay in the queue until `tenant undivert TENANT --back`
    /// returns them; the end of --for only stops further moves.
    #[command(after_help = "Examples:
  sluicegate tenant divert acme --for 10m
  sluicegate tenant divert acme --for 10m --to acme.parked --json")]
    Divert(DivertArgs),
    /// End a divert; with --back, return its jobs
    #[command(after_help = "Examples:
  sluicegate tenant undivert acme
  sluicegate tenant undivert acme --back")]
    Undivert(UndivertArgs),
    /// Empty a tenant's waitlist; usage is kept
    ///
    /// Repairs a wrong waitlist, such as after jobs were deleted from RabbitMQ. The tenant also
    /// leaves the fair queues of shared limits. Waiting jobs get new tickets when they return. The
    /// tenant's adaptive limits forget what they have learned.
    #[command(after_help = "Example:
  sluicegate tenant reset acme")]
    Reset {
        #[command(flatten)]
        of: TenantOptions,
    },
}

fn max_requests(text: &str) -> Result<u64, String> {
    let max = text.parse().ok();
    max.filter(|max| (1..=MAX_REQUESTS).contains(max))
        .ok_or_else(|| {
            format!(
                "it must be a whole number from 1 to {MAX_REQUESTS}; to start no jobs, use \
                `tenant pause`"
            )
        })
}

#[derive(Debug, Args)]
struct TenantOptions {
    /// Tenant
    tenant: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(args: TenantArgs, config: &Config) -> Result<ExitCode, Failure> {
    let policy = &config.rate_limiter.policy;
    let (of, change) = match args.what {
        TenantCommand::Pause { of, span } => {
            let duration_ms = span.millis();
            (of, Change::Pause { duration_ms })
        }
        TenantCommand::Resume { tenant, json, .. } => {
            let Some(tenant) = tenant else {
                return resume_all(config, json).await;
            };
            (TenantOptions { tenant, json }, Change::Resume)
        }
        TenantCommand::Divert(args) => {
            let tenant = parse(&args.tenant)?;
            return divert(args, tenant, config).await;
        }
        TenantCommand::Undivert(args) => {
            let tenant = parse(&args.tenant)?;
            return undivert(args, tenant, config).await;
        }
        TenantCommand::Reset { of } => (of, Change::Reset),
        TenantCommand::Limit {
            of,
            max,
            limit,
            shadow,
            span,
            ..
        } => {
            let tenant = parse(&of.tenant)?;
            let name = limit_name(policy, &tenant, limit.as_deref())?;
            let duration_ms = span.millis();
            let action = match (max, shadow) {
                (Some(max), true) => {
                    TenantAction::Try(Trial::new(policy, tenant, name, max)?, duration_ms)
                }
                (None, true) => TenantAction::EndTry(tenant, name),
                (Some(max), false) => {
                    let change = Change::Limit {
                        name,
                        max,
                        duration_ms,
                    };
                    TenantAction::Change(tenant, change)
                }
                (None, false) => TenantAction::Change(tenant, Change::Unlimit { name }),
            };
            return perform(action, of.json, config).await;
        }
    };
    let action = TenantAction::Change(parse(&of.tenant)?, change);
    perform(action, of.json, config).await
}

async fn perform(action: TenantAction, json: bool, config: &Config) -> Result<ExitCode, Failure> {
    let gate = RedisGate::new(&config.redis.url, &config.redis.prefix)?;
    let effect = describe_effect(&action, config);
    let (name, of, request) = action.audited();
    note(&gate, name, of, request).await;
    let done = action.perform(&gate, FOLLOW_TIMEOUT).await?;
    let text = || format!("{}{effect}", done.text);
    print(json, || done.answer.as_json(), text)?;
    Ok(ExitCode::SUCCESS)
}

/// Ends the suspension of all tenants.
async fn resume_all(config: &Config, json: bool) -> Result<ExitCode, Failure> {
    let gate = RedisGate::new(&config.redis.url, &config.redis.prefix)?;
    note(&gate, "tenant resume --all", json!({}), json!({})).await;
    let resumed = operator::tenant::resume_all(&gate).await?;
    let text = "resumed the calls of all tenants; a tenant's own suspension stays\nworkers notice \
        within a second, and waiting jobs ask again";
    print(json, || resumed.as_json(), || text.to_owned())?;
    Ok(ExitCode::SUCCESS)
}

/// Describes what the action means for jobs, on a line of its own, or returns an empty text.
fn describe_effect(action: &TenantAction, config: &Config) -> String {
    let seen = match action {
        TenantAction::EndTry(..) => return String::new(),
        TenantAction::Try(Trial { tenant, .. }, _) => {
            return format!(
                "\nit denies nothing; `sluicegate inspect {tenant}` shows what it would have done"
            );
        }
        TenantAction::Change(_, Change::Pause { .. }) => {
            "effective now; delayed jobs see it within"
        }
        TenantAction::Change(..) => {
            "effective now; waiting jobs ask again within seconds, jobs behind other tenants' \
            jobs in a delay queue within"
        }
    };
    let within = show_duration(config.delay.max_delay);
    format!("\n{seen} {within} (delay.max-delay)")
}
