//! `sluicegate tenant limit --shadow`: another `max` is tried, or no more.

use std::io::Write;
use std::process::ExitCode;

use serde_json::json;
use sluicegate::config::Config;
use sluicegate::gate::redis::RedisGate;
use sluicegate::operator::tenant::parse;
use sluicegate::operator::trials::{Trial, end};

use super::noted::note;
use super::steer::FOLLOW_WITHIN;
use super::times::at;
use super::{Failure, print_json};

/// Tries `max` of the limit `name` of `tenant` for `for_ms`; without `max`, ends that.
pub async fn run(
    (tenant, name, max): (&str, String, Option<u32>),
    for_ms: u64,
    as_json: bool,
    config: &Config,
) -> Result<ExitCode, Failure> {
    let tenant = parse(tenant)?;
    let policy = &config.rate_limiter.policy;
    let trial = max.map(|max| Trial::new(policy, tenant.clone(), name.clone(), max));
    let trial = trial.transpose()?;
    let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix)?;
    let request = match max {
        Some(max) => json!({"limit": name, "max": max, "for_ms": for_ms, "shadow": true}),
        None => json!({"limit": name, "clear": true, "shadow": true}),
    };
    let of_it = json!({"tenant": tenant.as_str()});
    note(&gate, "tenant limit", of_it, request).await;
    let (json, words) = match trial {
        Some(trial) => {
            let begun = trial.begin(&gate, (for_ms, FOLLOW_WITHIN)).await?;
            let (trial, until) = (&begun.trial, at(begun.until_ms));
            let who = begun.followers.in_words();
            let words = format!(
                "limit {name} of {tenant}: max-requests {} is tried until {until}: {who}\nit denies nothing; `sluicegate inspect {tenant}` says what it would have done",
                trial.max
            );
            (begun.as_json(), words)
        }
        None => {
            let ended = end(&gate, (tenant.clone(), name.clone()), FOLLOW_WITHIN).await?;
            let was = match ended.before {
                Some(max) => format!("max-requests {max} is tried no more"),
                None => "nothing was tried".to_owned(),
            };
            let who = ended.followers.in_words();
            (
                ended.as_json(),
                format!("limit {name} of {tenant}: {was}: {who}"),
            )
        }
    };
    match as_json {
        true => print_json(&json)?,
        false => writeln!(std::io::stdout().lock(), "{words}")?,
    }
    Ok(ExitCode::SUCCESS)
}
