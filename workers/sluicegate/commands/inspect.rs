//! `sluicegate inspect`: why does this job wait, and until when?

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use sluicegate::config::Config;
use sluicegate::gate::redis::RedisGate;
use sluicegate::gate::registry::{self, Named};
use sluicegate::gate::{Gate, Inspection, Usage};
use sluicegate::rules::limit::Limit;
use sluicegate::rules::policy::Policy;
use sluicegate::rules::tenant::Tenant;

use super::times::{at, when};
use super::{Failure, api, limits, plain, print_json};

/// Show a tenant's limits: what is used, what is free, who waits, why, and until when
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate inspect acme
  sluicegate inspect acme --plan pro
  sluicegate inspect acme --json")]
pub struct InspectArgs {
    /// Whose limits
    tenant: String,
    /// The plan that its jobs name (rate-limiter.plan-header)
    #[arg(long)]
    plan: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One limit in force, and its use.
type Row<'a> = (&'a Limit, &'a Usage);

/// Inspects.
pub async fn run(args: InspectArgs, config: &Config) -> Result<ExitCode, Failure> {
    let tenant = Tenant::parse(&args.tenant).map_err(|error| Failure::Usage(error.to_string()))?;
    let policy = &config.rate_limiter.policy;
    let plan = args.plan.as_deref();
    let (source, _) = limits::of(policy, &tenant, plan)?;
    let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix)?;
    let (known, now_ms) = registry::look(&gate).await?;
    let own = Named::new(policy.clone())?;
    let limits = &(known.fleet(Arc::clone(&own.policy), &own.id, now_ms)).limits(&tenant, plan);
    let found = gate.inspect(&tenant, limits).await?;
    let others: Vec<Other> = (known.policies().iter())
        .filter(|other| other.id != own.id)
        .map(|other| Other {
            policy: &other.id,
            since_ms: other.since_ms,
            used_ms: other.used_ms,
            until_ms: known.dropped_at(&other.id).unwrap_or(now_ms),
            limits: own_limits(&other.policy, &tenant, plan),
        })
        .collect();
    let in_force = others.is_empty() || known.find(&own.id).is_some();
    let rows: Vec<Row> = limits.iter().zip(&found.limits).collect();
    let with_max = |(limit, usage): &Row| (*limit).clone().with_max(usage.max);
    let ours: Vec<Limit> = rows.iter().map(with_max).collect();
    let said = api::said(&found, &ours);
    if args.json {
        let waits = Waits::of(&rows, &found);
        print_json(&json!({
            "tenant": tenant.as_str(),
            "source": source.to_string(),
            "now_ms": found.now_ms,
            "limits": rows.iter().map(as_json).collect::<Vec<_>>(),
            "waiting": found.waiting,
            "line_end_in_ms": found.line_end_ms,
            "blocked_until_ms": found.blocked_until_ms,
            "blocked_by": found.blocked_by,
            "waits_for": waits.short(),
            "reason": waits.in_words(&found),
            "advertised": said,
            "advertised_at_ms": found.quotas_at_ms,
            "in_force": in_force,
            "other_configurations": others,
        }))?;
    } else {
        let source = match hint(policy, args.plan.as_deref()) {
            Some(hint) => format!("{source} ({hint})"),
            None => source.to_string(),
        };
        let mut text = in_words(&tenant, &source, &rows, &found);
        text += &api::in_words(&found, &said);
        for other in &others {
            text += &other.in_words();
        }
        if !in_force {
            text += "beside   no worker has the limits of this file in force\n";
        }
        std::io::stdout().write_all(text.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Limits of another configuration, which workers have or had until lately: they are enforced beside those of this one.
#[derive(Debug, Serialize)]
struct Other<'a> {
    policy: &'a str,
    since_ms: u64,
    used_ms: u64,
    /// Unless a worker has it in force after `used_ms`.
    until_ms: u64,
    /// What it gives this tenant.
    limits: Vec<String>,
}

fn own_limits(policy: &Policy, tenant: &Tenant, plan: Option<&str>) -> Vec<String> {
    let limits = policy.limits(tenant, plan).iter();
    let words = |limit: &Limit| format!("{}: {}", limit.name(), limits::in_words(limit));
    limits.map(words).collect()
}

impl Other<'_> {
    fn in_words(&self) -> String {
        let mut text = format!(
            "beside   another configuration that workers have had since {} and last at {}: its limits count until {}, and for longer if a worker keeps it\n",
            at(self.since_ms),
            at(self.used_ms),
            at(self.until_ms),
        );
        for limit in &self.limits {
            text += &format!("  limit  {limit}\n");
        }
        text
    }
}

/// What the user may have to add.
fn hint(policy: &Policy, plan: Option<&str>) -> Option<String> {
    let header = policy.plan_header().filter(|_| plan.is_none())?;
    Some(format!(
        "a job that names a plan in {header} may have others: --plan"
    ))
}

fn as_json((limit, usage): &Row<'_>) -> Value {
    let mut json = limits::as_json(limit);
    json["configured_max_requests"] = json["max_requests"].take();
    json["max_requests"] = usage.max.into();
    json["override_until_ms"] = usage.override_until_ms.into();
    json["used"] = usage.count.into();
    json["free"] = usage.free.into();
    json["next_in_ms"] = usage.next_ms.into();
    json
}

/// What a job that comes now waits for.
enum Waits<'a> {
    Block,
    Line,
    Limit(&'a str, u64),
    Nothing,
}

impl<'a> Waits<'a> {
    fn of(rows: &[Row<'a>], found: &Inspection) -> Self {
        let latest = rows.iter().max_by_key(|(_, usage)| usage.next_ms);
        if found.blocked_until_ms > found.now_ms {
            return Self::Block;
        }
        match latest {
            Some((limit, usage)) if usage.next_ms > 0 => Self::Limit(limit.name(), usage.next_ms),
            _ if found.waiting > 0 => Self::Line,
            _ => Self::Nothing,
        }
    }

    fn short(&self) -> Option<String> {
        match self {
            Self::Block => Some("block".to_owned()),
            Self::Line => Some("line".to_owned()),
            Self::Limit(name, _) => Some(format!("limit {name}")),
            Self::Nothing => None,
        }
    }

    fn in_words(&self, found: &Inspection) -> String {
        let first = match self {
            Self::Block => format!(
                "nobody starts before the block ends, {}",
                when(
                    found.now_ms,
                    found.blocked_until_ms.saturating_sub(found.now_ms)
                )
            ),
            Self::Limit(name, next_ms) => {
                format!(
                    "the limit {name} has no room: the next unit may start {}",
                    when(found.now_ms, *next_ms)
                )
            }
            Self::Line => "there is room, and it belongs to those in the line".to_owned(),
            Self::Nothing => return "a job of cost 1 starts now".to_owned(),
        };
        match found.waiting {
            0 => first,
            waiting => format!(
                "{first}; a new job stands behind {waiting} in the line, which ends {}",
                when(found.now_ms, found.line_end_ms)
            ),
        }
    }
}

fn in_words(tenant: &Tenant, source: &str, rows: &[Row<'_>], found: &Inspection) -> String {
    let mut text = format!("tenant   {tenant}\nsource   {source}\n");
    for (limit, usage) in rows {
        let next = match usage.next_ms {
            0 => "now".to_owned(),
            ms => when(found.now_ms, ms),
        };
        let changed = match usage.override_until_ms {
            0 => String::new(),
            until => format!(
                "\n         an operator set {} instead of {}, until {}",
                usage.max,
                limit.max(),
                at(until)
            ),
        };
        // Writing to a text can't fail.
        let _ = write!(
            text,
            "limit    {}: {}{changed}
  used   {} of {}, {} free
  next   {next}\n",
            limit.name(),
            limits::in_words(limit),
            usage.count,
            usage.max,
            usage.free,
        );
    }
    let line = match found.waiting {
        0 => "nobody waits".to_owned(),
        waiting => format!(
            "{waiting} waiting, the last may start {}",
            when(found.now_ms, found.line_end_ms)
        ),
    };
    let blocked = match found.blocked_until_ms.checked_sub(found.now_ms) {
        None | Some(0) => "no".to_owned(),
        Some(ms) => format!(
            "ends {}, by {}",
            when(found.now_ms, ms),
            plain(&found.blocked_by, 200)
        ),
    };
    let why = Waits::of(rows, found).in_words(found);
    let _ = write!(
        text,
        "line     {line}\nblocked  {blocked}\nwhy      {why}\n"
    );
    text
}

#[cfg(test)]
mod tests {
    use sluicegate::rules::quota::Quotas;

    use super::*;

    const NOW: u64 = 1_700_000_000_000;

    fn usage(count: u64, free: u64, next_ms: u64) -> Usage {
        Usage {
            max: 5,
            override_until_ms: 0,
            count,
            free,
            next_ms,
        }
    }

    fn shown(usage: Usage, change: impl FnOnce(&mut Inspection)) -> String {
        let mut found = Inspection {
            now_ms: NOW,
            limits: vec![usage],
            waiting: 0,
            line_end_ms: 0,
            blocked_until_ms: 0,
            blocked_by: String::new(),
            quotas: Quotas::default(),
            quotas_at_ms: 0,
        };
        change(&mut found);
        let tenant = Tenant::parse("acme").expect("a tenant");
        let policy = Config::default().rate_limiter.policy;
        let rows: Vec<Row> = policy.default_limits().iter().zip(&found.limits).collect();
        let ours: Vec<Limit> = rows.iter().map(|(limit, _)| (*limit).clone()).collect();
        let said = api::in_words(&found, &api::said(&found, &ours));
        in_words(&tenant, "rate-limiter", &rows, &found) + &said
    }

    #[test]
    fn times_are_relative_and_absolute() {
        let text = shown(usage(5, 0, 350), |found| {
            found.waiting = 12;
            found.line_end_ms = 125_000;
            found.blocked_until_ms = NOW + 12_300;
            found.blocked_by = "429 from\nthe downstream".to_owned();
        });
        assert_eq!(
            text,
            "tenant   acme
source   rate-limiter
limit    default: at most 5 units of cost in any 1m: sliding-window-algo, guard 50ms; worst case in any window: 5
  used   5 of 5, 0 free
  next   in 350ms (Tue, 14 Nov 2023 22:13:20 GMT)
line     12 waiting, the last may start in 2m 5s (Tue, 14 Nov 2023 22:15:25 GMT)
blocked  ends in 12.3s (Tue, 14 Nov 2023 22:13:32 GMT), by 429 from\\nthe downstream
why      nobody starts before the block ends, in 12.3s (Tue, 14 Nov 2023 22:13:32 GMT); a new job stands behind 12 in the line, which ends in 2m 5s (Tue, 14 Nov 2023 22:15:25 GMT)
"
        );
    }

    #[test]
    fn nothing_is_said_of_what_is_over() {
        let text = shown(usage(0, 5, 0), |found| {
            found.blocked_until_ms = 1_600_000_000_000;
            found.blocked_by = "429".to_owned();
        });
        for line in [
            "  next   now",
            "line     nobody waits",
            "blocked  no",
            "why      a job of cost 1 starts now",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn it_says_why_a_job_waits_and_what_an_operator_set() {
        let operators = Usage {
            max: 1,
            override_until_ms: NOW + 1_000,
            ..usage(1, 0, 350)
        };
        let text = shown(operators, |_| {});
        for line in [
            "an operator set 1 instead of 5, until Tue, 14 Nov 2023 22:13:21 GMT\n",
            "  used   1 of 1, 0 free\n",
            "why      the limit default has no room: the next unit may start in 350ms",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let text = shown(usage(3, 2, 0), |found| found.waiting = 1);
        assert!(
            text.contains("why      there is room, and it belongs"),
            "{text}"
        );
    }

    #[test]
    fn what_the_api_says_stands_beside_ours() {
        let said = |text: &str| {
            shown(usage(0, 5, 0), |found| {
                found.quotas = Quotas::read(text);
                found.quotas_at_ms = NOW;
            })
        };
        assert!(!said("").contains("api"));
        let text = said("4/60,2/0");
        for line in [
            "api      says that it takes 4 in 1m, 2 in a window that it does not name (noted Tue, 14 Nov 2023 22:13:20 GMT)\n",
            "warning  the API says that it takes 4 calls in 60s, and the limit default lets 5 through: set its max-requests to 4\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        for kept in ["5/60", "2/0", "6/60"] {
            assert!(!said(kept).contains("warning"), "{kept}");
        }
    }
}
