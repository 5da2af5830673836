//! `sluicegate tenant limit --shadow`: tries another `max`, or ends the trial.

use std::io::Write;
use std::process::ExitCode;

use config::Config;
use gate::redis::RedisGate;
use operator::answer::Answer as _;
use operator::tenant::parse;
use operator::trials::{EndedTrial, StartedTrial, Trial, end};
use serde_json::{Value, json};

use super::audit::note;
use super::steer::FOLLOW_TIMEOUT;
use super::times::at;
use super::{Failure, print_json};

/// Tries `max` of the limit `name` of `tenant` for `for_ms` milliseconds. Without `max`, ends the
/// trial.
pub async fn run(
    (tenant, name, max): (&str, String, Option<u64>),
    for_ms: u64,
    as_json: bool,
    config: &Config,
) -> Result<ExitCode, Failure> {
    let tenant = parse(tenant)?;
    let policy = &config.rate_limiter.policy;
    let trial = max.map(|max| Trial::new(policy, tenant.clone(), name.clone(), max));
    let trial = trial.transpose()?;
    let gate = RedisGate::new(&config.redis.url, &config.redis.prefix)?;
    let request = in_the_audit(&name, max, for_ms);
    let of_it = json!({"tenant": tenant.as_str()});
    note(&gate, "tenant limit", of_it, request).await;
    let (answer, words) = match trial {
        Some(trial) => {
            let started = trial.begin(&gate, (for_ms, FOLLOW_TIMEOUT)).await?;
            let words = format!(
                "{}\nit denies nothing; `sluicegate inspect {tenant}` shows what it would have \
                done",
                describe_start(&started)
            );
            (started.answer(), words)
        }
        None => {
            let ended = end(&gate, (tenant, name), FOLLOW_TIMEOUT).await?;
            (ended.answer(), describe_ending(&ended))
        }
    };
    match as_json {
        true => print_json(&answer.as_json())?,
        false => writeln!(std::io::stdout().lock(), "{words}")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the audited request besides the tenant.
pub fn in_the_audit(limit: &str, max: Option<u64>, for_ms: u64) -> Value {
    match max {
        Some(max) => json!({"limit": limit, "max": max, "for_ms": for_ms, "shadow": true}),
        None => json!({"limit": limit, "clear": true, "shadow": true}),
    }
}

/// Describes the trial.
pub fn describe_start(started: &StartedTrial) -> String {
    let Trial { tenant, limit, max } = &started.trial;
    let (until, who) = (at(started.until_ms), started.followers.describe());
    format!("limit {limit} of {tenant}: trying max-requests {max} until {until}: {who}")
}

/// Describes the end of the trial.
pub fn describe_ending(ended: &EndedTrial) -> String {
    let was = match ended.before {
        Some(max) => format!("max-requests {max} is no longer tried"),
        None => "nothing was tried".to_owned(),
    };
    let who = ended.followers.describe();
    let (tenant, limit) = (&ended.tenant, &ended.limit);
    format!("limit {limit} of {tenant}: {was}: {who}")
}
