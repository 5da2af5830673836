//! `sluicegate inspect`: why does this job wait, and until when?

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::json;
use sluicegate::config::Config;
use sluicegate::gate::redis::RedisGate;
use sluicegate::gate::{Gate, Inspection};
use sluicegate::rules::limit::Limit;
use sluicegate::rules::tenant::Tenant;

use super::{Failure, plain, print_json};

/// Show a tenant's limit: what is used, what is free, who waits, until when
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate inspect acme
  sluicegate inspect acme --json")]
pub struct InspectArgs {
    /// Whose limit
    tenant: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Inspects.
pub async fn run(args: InspectArgs, config: &Config) -> Result<ExitCode, Failure> {
    let tenant = Tenant::parse(&args.tenant).map_err(|error| Failure::Usage(error.to_string()))?;
    let limit = &config.rate_limiter.limit;
    let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix, limit.clone())?;
    let found = gate.inspect(&tenant).await?;
    if args.json {
        print_json(&json!({
            "tenant": tenant.as_str(),
            "limit": limit.name(),
            "algorithm": limit.algorithm().name(),
            "max_requests": limit.max(),
            "window_ms": limit.window_ms(),
            "now_ms": found.now_ms,
            "used": found.count,
            "free": found.free,
            "next_in_ms": found.next_ms,
            "waiting": found.waiting,
            "line_end_in_ms": found.line_end_ms,
            "blocked_until_ms": found.blocked_until_ms,
            "blocked_by": found.blocked_by,
        }))?;
    } else {
        std::io::stdout().write_all(in_words(&tenant, limit, &found).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn in_words(tenant: &Tenant, limit: &Limit, found: &Inspection) -> String {
    let when = |in_ms: u64| {
        format!(
            "in {} ({})",
            span(in_ms),
            at(found.now_ms.saturating_add(in_ms))
        )
    };
    let next = match found.next_ms {
        0 => "now".to_owned(),
        ms => when(ms),
    };
    let line = match found.waiting {
        0 => "nobody waits".to_owned(),
        waiting => format!(
            "{waiting} waiting, the last may start {}",
            when(found.line_end_ms)
        ),
    };
    let blocked = match found.blocked_until_ms.checked_sub(found.now_ms) {
        None | Some(0) => "no".to_owned(),
        Some(ms) => format!("ends {}, by {}", when(ms), plain(&found.blocked_by, 200)),
    };
    format!(
        "tenant   {tenant}
limit    {} per {} ms, {}
used     {} of {}, {} free
next     {next}
line     {line}
blocked  {blocked}
",
        limit.max(),
        limit.window_ms(),
        limit.algorithm().name(),
        found.count,
        limit.max(),
        found.free,
    )
}

/// `350ms`, `12.3s`, `2m 5s`, `3h 20m`, `4d 1h`.
fn span(ms: u64) -> String {
    let s = ms / 1_000;
    match s {
        0 => format!("{ms}ms"),
        1..60 => format!("{s}.{}s", ms % 1_000 / 100),
        60..3_600 => format!("{}m {}s", s / 60, s % 60),
        3_600..86_400 => format!("{}h {}m", s / 3_600, s % 3_600 / 60),
        _ => format!("{}d {}h", s / 86_400, s % 86_400 / 3_600),
    }
}

/// A time in the form of HTTP dates, which is UTC.
fn at(epoch_ms: u64) -> String {
    // The formatter ends with the year 9999.
    const LAST: u64 = 253_402_300_799_000;
    let time: SystemTime = UNIX_EPOCH + Duration::from_millis(epoch_ms.min(LAST));
    httpdate::fmt_http_date(time)
}

#[cfg(test)]
mod tests {
    use sluicegate::config::Config;

    use super::*;

    #[test]
    fn times_are_relative_and_absolute() {
        let found = Inspection {
            now_ms: 1_700_000_000_000,
            count: 5,
            free: 0,
            next_ms: 350,
            waiting: 12,
            line_end_ms: 125_000,
            blocked_until_ms: 1_700_000_012_300,
            blocked_by: "429 from\nthe downstream".to_owned(),
        };
        let tenant = Tenant::parse("acme").expect("a tenant");
        let limit = Config::default().rate_limiter.limit;
        assert_eq!(
            in_words(&tenant, &limit, &found),
            "tenant   acme
limit    5 per 60000 ms, sliding-window-algo
used     5 of 5, 0 free
next     in 350ms (Tue, 14 Nov 2023 22:13:20 GMT)
line     12 waiting, the last may start in 2m 5s (Tue, 14 Nov 2023 22:15:25 GMT)
blocked  ends in 12.3s (Tue, 14 Nov 2023 22:13:32 GMT), by 429 from\\nthe downstream
"
        );
    }

    #[test]
    fn nothing_is_said_of_what_is_over() {
        let found = Inspection {
            now_ms: 1_700_000_000_000,
            count: 0,
            free: 5,
            next_ms: 0,
            waiting: 0,
            line_end_ms: 0,
            blocked_until_ms: 1_600_000_000_000,
            blocked_by: "429".to_owned(),
        };
        let tenant = Tenant::parse("acme").expect("a tenant");
        let text = in_words(&tenant, &Config::default().rate_limiter.limit, &found);
        for line in ["next     now", "line     nobody waits", "blocked  no"] {
            assert!(text.contains(line), "{text}");
        }
        assert_eq!(at(u64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
        assert_eq!(span(90_000_000), "1d 1h");
        assert_eq!(span(3_700_000), "1h 1m");
    }
}
