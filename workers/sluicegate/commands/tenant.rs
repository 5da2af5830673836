//! `sluicegate tenant`: what an operator changes for one tenant, at once for all workers.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use sluicegate::config::{Config, closest, show_duration};
use sluicegate::gate::redis::RedisGate;
use sluicegate::gate::{Change, Gate, Whose};
use sluicegate::rules::limit::{Limit, Limits, MAX_REQUESTS};
use sluicegate::rules::policy::{Policy, Source};
use sluicegate::rules::tenant::Tenant;

use super::divert::{DivertArgs, UndivertArgs, divert, undivert};
use super::steer::Span;
use super::times::at;
use super::{Failure, print_json};

/// Pause or divert a tenant, change its limits, or reset its waitlist: at once, for all workers
///
/// Changes are kept in Redis and expire (--for). They apply to the next decision; a delayed job sees them within
/// delay.max-delay. `sluicegate inspect` shows them.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate tenant pause acme --for 1h
  sluicegate tenant resume acme
  sluicegate tenant resume --all
  sluicegate tenant limit acme 100 --for 30m
  sluicegate tenant limit acme --clear
  sluicegate tenant divert acme --for 10m
  sluicegate tenant undivert acme --back
  sluicegate tenant reset acme")]
pub struct TenantArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Admit no job of a tenant; calls in flight go on
    #[command(after_help = "Examples:
  sluicegate tenant pause acme
  sluicegate tenant pause acme --for 1h --json")]
    Pause {
        #[command(flatten)]
        of: Of,
        #[command(flatten)]
        span: Span,
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
    /// Set another max-requests for a tenant, or the configured one again
    #[command(after_help = "Examples:
  sluicegate tenant limit acme 100
  sluicegate tenant limit acme 5 --limit per-second --for 1h
  sluicegate tenant limit acme --clear")]
    Limit {
        #[command(flatten)]
        of: Of,
        /// What the limit's max-requests is meanwhile
        #[arg(value_name = "MAX", required_unless_present = "clear", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_REQUESTS)))]
        max: Option<u32>,
        /// Which limit, where a tenant has several
        #[arg(long, value_name = "NAME")]
        limit: Option<String>,
        /// End what was set: the configuration counts again
        #[arg(long, conflicts_with_all = ["max", "span"])]
        clear: bool,
        #[command(flatten)]
        span: Span,
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
    /// too. Waiting jobs get new tickets when they return.
    #[command(after_help = "Example:
  sluicegate tenant reset acme")]
    Reset {
        #[command(flatten)]
        of: Of,
    },
}

#[derive(Debug, Args)]
struct Of {
    /// Whose
    tenant: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Changes what is asked for.
pub async fn run(args: TenantArgs, config: &Config) -> Result<ExitCode, Failure> {
    let policy = &config.rate_limiter.policy;
    let (of, change) = match args.what {
        What::Pause { of, span } => {
            let duration_ms = span.millis();
            (of, Change::Pause { duration_ms })
        }
        What::Resume { tenant, json, .. } => {
            let Some(tenant) = tenant else {
                return resume_all(config, json).await;
            };
            (Of { tenant, json }, Change::Resume)
        }
        What::Divert(args) => {
            let tenant = parse(&args.tenant)?;
            return divert(args, tenant, config).await;
        }
        What::Undivert(args) => {
            let tenant = parse(&args.tenant)?;
            return undivert(args, tenant, config).await;
        }
        What::Reset { of } => (of, Change::Reset),
        What::Limit {
            of,
            max,
            limit,
            span,
            ..
        } => {
            let name = name(policy, &tenant(&of)?, limit.as_deref())?;
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
    let tenant = tenant(&of)?;
    let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix)?;
    let until_ms = gate.change(&tenant.clone().into(), &change).await?;
    if of.json {
        print_json(&as_json(&tenant, &change, until_ms))?;
    } else {
        let said = in_words(&tenant, &change, until_ms);
        let within = show_duration(config.delay.max_delay);
        let mut out = std::io::stdout().lock();
        writeln!(
            out,
            "{said}\neffective now; delayed jobs see it within {within} (delay.max-delay)"
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends what stops the calls of all tenants.
async fn resume_all(config: &Config, json: bool) -> Result<ExitCode, Failure> {
    let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix)?;
    gate.change(&Whose::Api, &Change::Resume).await?;
    if json {
        print_json(&json!({"tenant": null, "change": "resume"}))?;
    } else {
        let said = "resumed calls of all tenants; a tenant that is suspended alone stays so\nworkers notice within a second";
        writeln!(std::io::stdout().lock(), "{said}")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn tenant(of: &Of) -> Result<Tenant, Failure> {
    parse(&of.tenant)
}

fn parse(tenant: &str) -> Result<Tenant, Failure> {
    Tenant::parse(tenant).map_err(|error| Failure::Usage(error.to_string()))
}

/// The name of the limit that is meant: one that `tenant` can have.
fn name(policy: &Policy, tenant: &Tenant, wanted: Option<&str>) -> Result<String, Failure> {
    let (source, own) = policy.find(tenant, None);
    let mut sets: Vec<&Limits> = vec![own];
    if source == Source::Common && policy.plan_header().is_some() {
        // Its jobs may name any plan.
        sets.extend(policy.plans().values());
    }
    let mut names: Vec<&str> = sets
        .iter()
        .flat_map(|set| set.own())
        .map(Limit::name)
        .collect();
    names.sort_unstable();
    names.dedup();
    let is_global = |name: &str| own.global().any(|limit| limit.name() == name);
    if let Some(wanted) = wanted.filter(|wanted| is_global(wanted)) {
        return Err(Failure::Usage(format!(
            "the limit {wanted} is one of all tenants together (scope: global), not {tenant}'s; change it in the configuration, and workers apply it while they run"
        )));
    }
    if names.is_empty() {
        return Err(Failure::Usage(format!(
            "{tenant} has no limit of its own ({source}): all are of all tenants together (scope: global)"
        )));
    }
    let list = names.join(", ");
    match (wanted, names.as_slice()) {
        (Some(wanted), names) if names.contains(&wanted) => Ok(wanted.to_owned()),
        (Some(wanted), names) => {
            let hint = match closest(wanted, names.iter().copied()) {
                Some(meant) => format!("did you mean {meant}?"),
                None => format!("there are: {list}"),
            };
            Err(Failure::Usage(format!(
                "{tenant} has no limit called {wanted:?} ({source}); {hint}"
            )))
        }
        (None, [only]) => Ok((*only).to_owned()),
        (None, _) => Err(Failure::Usage(format!(
            "{tenant} has several limits; name one with --limit: {list}"
        ))),
    }
}

fn as_json(tenant: &Tenant, change: &Change, until_ms: u64) -> Value {
    let tenant = tenant.as_str();
    match change {
        Change::Pause { .. } => json!({"tenant": tenant, "change": "pause", "until_ms": until_ms}),
        Change::Resume => json!({"tenant": tenant, "change": "resume"}),
        Change::Limit { name, max, .. } => json!({
            "tenant": tenant, "change": "limit", "limit": name, "max_requests": max, "until_ms": until_ms,
        }),
        Change::Unlimit { name } => json!({"tenant": tenant, "change": "clear", "limit": name}),
        Change::Reset => json!({"tenant": tenant, "change": "reset"}),
    }
}

fn in_words(tenant: &Tenant, change: &Change, until_ms: u64) -> String {
    let until = at(until_ms);
    match change {
        Change::Pause { .. } => format!("paused {tenant} until {until}"),
        Change::Resume => format!("resumed {tenant}"),
        Change::Limit { name, max, .. } => {
            format!("limit {name} of {tenant}: max-requests is {max} until {until}")
        }
        Change::Unlimit { name } => {
            format!("limit {name} of {tenant}: max-requests is the configured one")
        }
        Change::Reset => format!("reset the waitlist of {tenant}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(yaml: &str, tenant: &str, wanted: Option<&str>) -> Result<String, String> {
        let config = Config::parse("c.yaml", yaml, std::iter::empty()).expect("valid");
        let tenant = Tenant::parse(tenant).expect("a tenant");
        name(&config.rate_limiter.policy, &tenant, wanted).map_err(|failure| match failure {
            Failure::Usage(why) => why,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn a_limit_is_one_that_the_tenant_can_have() {
        let yaml = "
rate-limiter:
  limits: [{name: second}, {name: minute, max-requests: 100, window-size: 2m}]
  tenants: {acme: {max-requests: 9}}
  plans: {pro: {limits: [{name: tokens}]}}
";
        let global = "rate-limiter: {limits: [{name: all, scope: global}, {name: own}]}";
        let with_header = format!("{yaml}  plan-header: x-plan\n");
        for (yaml, tenant, wanted, expected) in [
            ("", "a", None, Ok("default")),
            ("", "a", Some("default"), Ok("default")),
            (
                "",
                "a",
                Some("defualt"),
                Err("a has no limit called \"defualt\" (rate-limiter); did you mean default?"),
            ),
            (yaml, "acme", None, Ok("default")),
            (
                yaml,
                "a",
                None,
                Err("a has several limits; name one with --limit: minute, second"),
            ),
            (yaml, "a", Some("minute"), Ok("minute")),
            (
                yaml,
                "acme",
                Some("minute"),
                Err(
                    "acme has no limit called \"minute\" (rate-limiter.tenants.acme); there are: default",
                ),
            ),
            (
                yaml,
                "a",
                Some("tokens"),
                Err("a has no limit called \"tokens\" (rate-limiter); there are: minute, second"),
            ),
            (&with_header, "a", Some("tokens"), Ok("tokens")),
            (global, "a", None, Ok("own")),
            (
                global,
                "a",
                Some("all"),
                Err(
                    "the limit all is one of all tenants together (scope: global), not a's; change it in the configuration, and workers apply it while they run",
                ),
            ),
            (
                "rate-limiter: {scope: global}",
                "a",
                None,
                Err(
                    "a has no limit of its own (rate-limiter): all are of all tenants together (scope: global)",
                ),
            ),
        ] {
            let found = named(yaml, tenant, wanted);
            let found = found.as_deref().map_err(String::as_str);
            assert_eq!(found, expected, "{tenant} {wanted:?}");
        }
    }
}
