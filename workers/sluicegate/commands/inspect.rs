//! `sluicegate inspect`: why does this job wait, and until when?

mod levels;
mod others;
mod shown;
mod waits;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::ops::Deref;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde_json::json;
use sluicegate::config::Config;
use sluicegate::gate::boards;
use sluicegate::gate::fleet::registry::{self, Named};
use sluicegate::gate::redis::RedisGate;
use sluicegate::gate::{Event, Gate, Rule, Standing, Usage, Whose};
use sluicegate::rules::limit::Limit;
use sluicegate::rules::policy::Policy;
use sluicegate::rules::scope::Scope;
use sluicegate::rules::steering::{Hold, Steering};
use sluicegate::rules::tenant::Tenant;

use self::others::Other;
use self::shown::{as_json, counts_cost, in_words};
use self::waits::Waits;
use super::labels::LabelArgs;
use super::recovery::Recovery;
use super::times::when;
use super::{Failure, api, hold, limits, plain, print_json};

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

/// A shorter round trip to Redis is nothing to speak of.
const FAR_MS: u64 = 10;

/// One effective limit, and its usage.
type Row<'a> = (&'a Limit, &'a Usage);

/// Inspects.
pub async fn run(args: InspectArgs, config: &Config) -> Result<ExitCode, Failure> {
    let tenant = Tenant::parse(&args.tenant).map_err(|error| Failure::Usage(error.to_string()))?;
    let policy = &config.rate_limiter.policy;
    let plan = args.plan.as_deref();
    let (source, _) = limits::of(policy, &tenant, plan)?;
    let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix)?;
    let registry::Seen {
        known,
        now_ms,
        failed,
    } = registry::look(&gate).await?;
    let own = Named::new(policy.clone())?;
    let limits = &(known.fleet(Arc::clone(&own.policy), &own.id, now_ms)).limits(&tenant, plan);
    let given = args.labels.given(limits)?;
    let priorities = &config.job.priorities;
    let (found, levels) =
        levels::inspect(&gate, &tenant, &given.labels, limits, priorities).await?;
    // A primary of a cluster that is away says nothing of the way to the others, and is named by `failed`.
    let measured = gate.measure().await;
    if failed.is_empty() {
        measured?;
    }
    let round_trip_ms = u64::try_from(gate.base().as_millis()).unwrap_or(u64::MAX);
    let held = held_by_operator(&gate).await;
    let look = [(Whose::Api, Event::Look)];
    // In a cluster the primary that knows it may be away, and another have the tenant.
    let all = (gate.report(&Rule::NONE, &look).await?).into_iter().next();
    let all = all.unwrap_or_else(|| Ok(Standing::default()));
    let all = all.map_err(|why| plain(&why.to_string(), 200));
    let recovery = match gate.outlook(Some(&tenant), limits, policy).await {
        Ok(looks) => looks
            .into_iter()
            .next()
            .map_or(Recovery::NoWorker, Recovery::from),
        Err(why) => Recovery::from(Err(why)),
    };
    let others: Vec<Other> = (known.policies().iter())
        .filter(|other| other.id != own.id)
        .map(|other| Other::new(other, &known, now_ms, &tenant, plan))
        .collect();
    let in_force = others.is_empty() || known.find(&own.id).is_some();
    let unread: Vec<String> = failed
        .iter()
        .map(|why| plain(&why.to_string(), 200))
        .collect();
    let rows: Vec<Row> = limits.iter().zip(&found.limits).collect();
    let with_max = |(limit, usage): &Row| (*limit).clone().with_max(usage.max);
    let ours: Vec<Limit> = rows.iter().map(with_max).collect();
    let said = api::said(&found, &ours);
    if args.json {
        let waits = Waits::of(&rows, &given, &found, &recovery);
        let (recovery_until, recovery_why) = recovery.as_json();
        let one_waitlist = given.missing.is_empty();
        let missing: Vec<String> = given.missing.iter().map(Scope::to_string).collect();
        print_json(&json!({
            "tenant": tenant.as_str(),
            "source": source.to_string(),
            "now_ms": found.now_ms,
            "labels": given.as_json(),
            "labels_missing": missing,
            "limits": rows.iter().map(|row| as_json(row, &given)).collect::<Vec<_>>(),
            "waiting": one_waitlist.then_some(found.waiting),
            "waiting_by_level": levels.iter().cloned().collect::<BTreeMap<_, _>>(),
            "waitlist_end_in_ms": one_waitlist.then_some(found.waitlist_end_ms),
            "line_end_in_ms": one_waitlist.then_some(found.waitlist_end_ms),
            "new_job_in_ms": one_waitlist.then_some(found.turn_ms.max(recovery.in_ms())),
            "recovery_wait_until_ms": recovery_until,
            "recovery_wait_reason": recovery_why,
            "suspended_until_ms": found.blocked_until_ms,
            "suspended_by": found.blocked_by,
            "all_suspended_until_ms": all.as_ref().ok().map(|all| all.closed_until_ms),
            "all_suspended_by": all.as_ref().ok().map(|all| &all.by),
            "all_suspended_unread": all.as_ref().err(),
            "held": held.as_ref().ok().and_then(|held| held.hold).map(Hold::word),
            "diverted_to": held.as_ref().ok().and_then(|held| held.diverts(&tenant)).map(|queue| &**queue),
            "blocked_until_ms": found.blocked_until_ms,
            "blocked_by": found.blocked_by,
            "all_blocked_until_ms": all.as_ref().ok().map(|all| all.closed_until_ms),
            "all_blocked_by": all.as_ref().ok().map(|all| &all.by),
            "all_blocked_unread": all.as_ref().err(),
            "waits_for": waits.short(),
            "reason": waits.in_words(&given, &found, counts_cost(&rows, &found)),
            "advertised": said,
            "advertised_at_ms": found.quotas_at_ms,
            "redis_round_trip_ms": round_trip_ms,
            "in_force": in_force,
            "other_configurations": others,
            "other_configurations_unread": unread,
        }))?;
    } else {
        let source = match hint(policy, args.plan.as_deref()) {
            Some(hint) => format!("{source} ({hint})"),
            None => source.to_string(),
        };
        let mut text = in_words(
            &tenant,
            &source,
            &rows,
            &given,
            (&found, &levels),
            &recovery,
        );
        text += &match &all {
            Ok(all) => all_suspended(all),
            Err(why) => {
                format!("all       whether all tenants are suspended is not known: {why}\n")
            }
        };
        match &held {
            Ok(held) => {
                text += &held.words;
                if let Some(queue) = held.diverts(&tenant) {
                    let queue = plain(queue, 255);
                    text += &format!("diverted  its jobs go to {queue}; tenant undivert ends it\n");
                }
            }
            Err(why) => text += &format!("all       what operators ask is not known: {why}\n"),
        }
        text += &api::in_words(&found, &said);
        if round_trip_ms >= FAR_MS {
            text += &format!(
                "redis     a round trip takes {round_trip_ms} ms: each permit comes that much later\n"
            );
        }
        for other in &others {
            text += &other.in_words();
        }
        for why in &unread {
            text += &format!(
                "also      the other policies at a primary of the cluster are not known: {why}\n"
            );
        }
        if !in_force {
            text += "also      no worker enforces the limits of this file\n";
        }
        std::io::stdout().write_all(text.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What operators ask of all workers.
struct Held {
    steering: Steering,
    words: String,
}

impl Deref for Held {
    type Target = Steering;

    fn deref(&self) -> &Steering {
        &self.steering
    }
}

async fn held_by_operator(gate: &RedisGate) -> Result<Held, String> {
    let seen = boards::see(gate).await;
    let seen = seen.map_err(|why| plain(&why.to_string(), 200))?;
    let mut words = hold::held_in_words(&seen);
    if !words.is_empty() {
        words = format!("all       {words}\n");
    }
    let steering = boards::in_force(&seen);
    Ok(Held { steering, words })
}

/// What suspends all tenants; empty: nothing does.
fn all_suspended(all: &Standing) -> String {
    let by = plain(&all.by, 200);
    let until = match all.closed_until_ms.checked_sub(all.now_ms) {
        Some(ms @ 1..) => format!("the next is admitted {}", when(all.now_ms, ms)),
        _ if all.is_open => "until one succeeds".to_owned(),
        _ => return String::new(),
    };
    format!("all       all tenants are suspended, {until}, by {by}; tenant resume --all ends it\n")
}

/// What the user may have to add.
fn hint(policy: &Policy, plan: Option<&str>) -> Option<String> {
    let header = policy.plan_header().filter(|_| plan.is_none())?;
    Some(format!(
        "a job that names a plan in {header} may have others: --plan"
    ))
}
