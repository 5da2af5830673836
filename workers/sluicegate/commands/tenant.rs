//! `sluicegate tenant`: an operator's changes for one tenant, at once for all workers.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use config::{Config, show_duration};
use gate::Change;
use gate::redis::RedisGate;
use operator::answer::Answer as _;
use operator::tenant::{self, AppliedChange, limit_name, parse};
use rules::limit::MAX_REQUESTS;
use serde_json::{Value, json};

use super::audit::note;
use super::divert::{DivertArgs, UndivertArgs, divert, undivert};
use super::steer::DurationOption;
use super::times::at;
use super::{Failure, print_json, shadow_trial};

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
            let name = limit_name(policy, &parse(&of.tenant)?, limit.as_deref())?;
            if shadow {
                return shadow_trial::run((&of.tenant, name, max), span.millis(), of.json, config)
                    .await;
            }
            let change = match max {
                Some(max) => Change::Limit {
                    name,
                    max,
                    duration_ms: span.millis(),
                },
                None => Change::Unlimit { name },
            };
            (of, change)
        }
    };
    let tenant = parse(&of.tenant)?;
    let gate = RedisGate::new(&config.redis.url, &config.redis.prefix)?;
    let of_it = json!({"tenant": tenant.as_str()});
    let (action, request) = in_the_audit(&change);
    note(&gate, action, of_it, request).await;
    let changed = tenant::change(&gate, tenant, change).await?;
    if of.json {
        print_json(&changed.answer().as_json())?;
    } else {
        let (text, seen) = (describe(&changed), describe_effect(&changed, config));
        writeln!(std::io::stdout().lock(), "{text}\n{seen}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends the suspension of all tenants.
async fn resume_all(config: &Config, json: bool) -> Result<ExitCode, Failure> {
    let gate = RedisGate::new(&config.redis.url, &config.redis.prefix)?;
    note(&gate, "tenant resume --all", json!({}), json!({})).await;
    let resumed = tenant::resume_all(&gate).await?;
    if json {
        print_json(&resumed.as_json())?;
    } else {
        let text = "resumed the calls of all tenants; a tenant's own suspension stays\nworkers \
            notice within a second, and waiting jobs ask again";
        writeln!(std::io::stdout().lock(), "{text}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the audit entry: its name, and the request besides the tenant.
pub fn in_the_audit(change: &Change) -> (&'static str, Value) {
    match change {
        Change::Pause { duration_ms } => ("tenant pause", json!({"for_ms": duration_ms})),
        Change::Resume => ("tenant resume", json!({})),
        Change::Limit {
            name,
            max,
            duration_ms,
        } => (
            "tenant limit",
            json!({"limit": name, "max": max, "for_ms": duration_ms}),
        ),
        Change::Unlimit { name } => ("tenant limit", json!({"limit": name, "clear": true})),
        Change::Reset => ("tenant reset", json!({})),
    }
}

/// Describes when jobs notice the change.
pub fn describe_effect(changed: &AppliedChange, config: &Config) -> String {
    let seen = match changed.change {
        Change::Pause { .. } => "effective now; delayed jobs see it within",
        _ => {
            "effective now; waiting jobs ask again within seconds, jobs behind other tenants' \
            jobs in a delay queue within"
        }
    };
    let within = show_duration(config.delay.max_delay);
    format!("{seen} {within} (delay.max-delay)")
}

/// Describes the change.
pub fn describe(changed: &AppliedChange) -> String {
    let (tenant, until) = (&changed.tenant, at(changed.until_ms));
    match &changed.change {
        Change::Pause { .. } => format!("paused {tenant} until {until}"),
        Change::Resume => format!("resumed {tenant}"),
        Change::Limit { name, max, .. } => {
            format!("limit {name} of {tenant}: max-requests is {max} until {until}")
        }
        Change::Unlimit { name } => {
            format!("limit {name} of {tenant}: max-requests is as configured")
        }
        Change::Reset => {
            format!("reset the waitlist of {tenant} and what its own limits had learned")
        }
    }
}
