//! `sluicegate tenant`: an operator's changes for one tenant, at once for all workers.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use sluicegate::config::{Config, show_duration};
use sluicegate::gate::Change;
use sluicegate::gate::redis::RedisGate;
use sluicegate::operator::tenant::{self as operator, AppliedChange, limit_name, parse};
use sluicegate::rules::limit::MAX_REQUESTS;

use super::audit::note;
use super::divert::{DivertArgs, UndivertArgs, divert, undivert};
use super::steer::DurationOption;
use super::times::at;
use super::{Failure, print_json, shadow_trial};

/// Pause or divert a tenant, change its limits, or reset its waitlist: at once, for all workers
///
/// Changes are kept in Redis and expire (--for). They apply to the next decision. Where jobs may start earlier, those that wait ask
/// anew within seconds; any other job in a delay queue sees a change within delay.max-delay. `sluicegate inspect` shows them.
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
    /// Admit no job of a tenant; calls in flight go on
    #[command(after_help = "Examples:
  sluicegate tenant pause acme
  sluicegate tenant pause acme --for 1h --json")]
    Pause {
        #[command(flatten)]
        of: TenantOptions,
        #[command(flatten)]
        span: DurationOption,
    },
    /// End a pause, a throttle (429), and what a breaker stopped
    ///
    /// With --all, those of all tenants together; a tenant that is suspended alone stays so. Workers notice within a second.
    #[command(after_help = "Examples:
  sluicegate tenant resume acme
  sluicegate tenant resume --all")]
    Resume {
        /// Whose
        #[arg(required_unless_present = "all")]
        tenant: Option<String>,
        /// What stops the calls of all tenants (rate-limiter.throttle-scope, dispatch.breaker)
        #[arg(long, conflicts_with = "tenant")]
        all: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Set or try another max-requests for a tenant, or the configured one again
    ///
    /// With --shadow it is tried: from the next start on it counts, denies nothing, and `inspect TENANT` says which jobs it would have
    /// made wait, and for how long. The same command without --shadow enforces it, with all that has started.
    #[command(after_help = "Examples:
  sluicegate tenant limit acme 100
  sluicegate tenant limit acme 5 --limit per-second --for 1h
  sluicegate tenant limit acme 5 --shadow --for 1d
  sluicegate tenant limit acme --clear --shadow
  sluicegate tenant limit acme --clear")]
    Limit {
        #[command(flatten)]
        of: TenantOptions,
        /// What the limit's max-requests is meanwhile
        #[arg(value_name = "MAX", required_unless_present = "clear", value_parser = max_requests)]
        max: Option<u32>,
        /// Which limit, where a tenant has several
        #[arg(long, value_name = "NAME")]
        limit: Option<String>,
        /// Try it: count what it would do, and deny nothing
        #[arg(long)]
        shadow: bool,
        /// End what was set and tried: the configuration counts again; with --shadow, what was tried alone
        #[arg(long, conflicts_with_all = ["max", "span"])]
        clear: bool,
        #[command(flatten)]
        span: DurationOption,
    },
    /// Let a tenant's jobs go to another queue instead of being called
    ///
    /// Out of the way of others, without losing any: each is moved at its next look. They stay there until `tenant undivert
    /// TENANT --back` puts them back; the time of --for only ends that more go there.
    #[command(after_help = "Examples:
  sluicegate tenant divert acme --for 10m
  sluicegate tenant divert acme --for 10m --to acme.parked --json")]
    Divert(DivertArgs),
    /// End a divert; with --back, bring its jobs back
    #[command(after_help = "Examples:
  sluicegate tenant undivert acme
  sluicegate tenant undivert acme --back")]
    Undivert(UndivertArgs),
    /// Empty a tenant's waitlist; usage still counts
    ///
    /// For a waitlist that is wrong, such as after its jobs were deleted from RabbitMQ. It leaves the fair queues of shared limits,
    /// too. Waiting jobs get new tickets when they return. What the tenant's adaptive limits have learned is forgotten.
    #[command(after_help = "Example:
  sluicegate tenant reset acme")]
    Reset {
        #[command(flatten)]
        of: TenantOptions,
    },
}

fn max_requests(text: &str) -> Result<u32, String> {
    let max = text.parse().ok();
    max.filter(|max| (1..=MAX_REQUESTS).contains(max))
        .ok_or_else(|| {
            format!(
                "it must be a whole number from 1 to {MAX_REQUESTS}; `tenant pause` lets none start"
            )
        })
}

#[derive(Debug, Args)]
struct TenantOptions {
    /// Whose
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
    let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix)?;
    let of_it = json!({"tenant": tenant.as_str()});
    let (action, request) = in_the_audit(&change);
    note(&gate, action, of_it, request).await;
    let changed = operator::change(&gate, tenant, change).await?;
    if of.json {
        print_json(&changed.as_json())?;
    } else {
        let (said, seen) = (in_words(&changed), seen_in_words(&changed, config));
        writeln!(std::io::stdout().lock(), "{said}\n{seen}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends whatever stops the calls of all tenants.
async fn resume_all(config: &Config, json: bool) -> Result<ExitCode, Failure> {
    let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix)?;
    note(&gate, "tenant resume --all", json!({}), json!({})).await;
    let resumed = operator::resume_all(&gate).await?;
    if json {
        print_json(&resumed)?;
    } else {
        let said = "resumed calls of all tenants; a tenant that is suspended alone stays so\nworkers notice within a second, and jobs that wait ask anew";
        writeln!(std::io::stdout().lock(), "{said}")?;
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
pub fn seen_in_words(changed: &AppliedChange, config: &Config) -> String {
    let seen = match changed.change {
        Change::Pause { .. } => "effective now; delayed jobs see it within",
        _ => {
            "effective now; jobs that wait ask anew within seconds, behind other tenants' jobs in a delay queue within"
        }
    };
    let within = show_duration(config.delay.max_delay);
    format!("{seen} {within} (delay.max-delay)")
}

/// Describes the change.
pub fn in_words(changed: &AppliedChange) -> String {
    let (tenant, until) = (&changed.tenant, at(changed.until_ms));
    match &changed.change {
        Change::Pause { .. } => format!("paused {tenant} until {until}"),
        Change::Resume => format!("resumed {tenant}"),
        Change::Limit { name, max, .. } => {
            format!("limit {name} of {tenant}: max-requests is {max} until {until}")
        }
        Change::Unlimit { name } => {
            format!("limit {name} of {tenant}: max-requests is the configured one")
        }
        Change::Reset => {
            format!("reset the waitlist of {tenant}, and forgot what its own limits had learned")
        }
    }
}
