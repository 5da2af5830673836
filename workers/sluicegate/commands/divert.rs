//! `sluicegate tenant divert`: moves a tenant's jobs out of the way for a while, and back on
//! demand.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use config::{Config, show_duration};
use gate::redis::RedisGate;
use operator::answer::Answer as _;
use operator::divert::{self, checked, usual};
use operator::rabbitmq::open;
use rules::tenant::Tenant;
use serde_json::json;

use super::audit::note;
use super::dead;
use super::steer::{DurationOption, FOLLOW_TIMEOUT};
use super::times::at;
use super::{Failure, plain, print, print_json};

#[derive(Debug, Args)]
pub struct DivertArgs {
    /// Tenant
    pub tenant: String,
    /// Queue for the diverted jobs, created if missing [default: the work queue's name and
    /// .diverted]
    #[arg(long, value_name = "QUEUE")]
    to: Option<String>,
    #[command(flatten)]
    span: DurationOption,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub struct UndivertArgs {
    /// Tenant
    pub tenant: String,
    /// Return the diverted jobs to the workers with all their attempts
    #[arg(long)]
    back: bool,
    /// Queue that holds the diverted jobs [default: the queue of the divert that ends, or else the
    /// default of divert]
    #[arg(long, value_name = "QUEUE", requires = "back")]
    from: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Diverts the jobs of `tenant`.
pub async fn divert(
    args: DivertArgs,
    tenant: Tenant,
    config: &Config,
) -> Result<ExitCode, Failure> {
    let gate = RedisGate::new(&config.redis.url, &config.redis.prefix)?;
    let times = (args.span.millis(), FOLLOW_TIMEOUT);
    let request = json!({"to": args.to, "for_ms": times.0});
    note(
        &gate,
        "tenant divert",
        json!({"tenant": tenant.as_str()}),
        request,
    )
    .await;
    let diverted = divert::divert((&gate, config), &tenant, args.to, times).await?;
    let text = || {
        let (until, who) = (at(diverted.until_ms), diverted.base.describe());
        let queue = plain(&diverted.queue, 255);
        let within = show_duration(config.delay.max_delay);
        format!(
            "jobs of {tenant} go to {queue} until {until}: {who}\njobs in delay queues move \
            within {within} (delay.max-delay); calls in flight continue"
        )
    };
    print(args.json, || diverted.as_json(), text)?;
    Ok(ExitCode::SUCCESS)
}

/// Ends a divert, and brings jobs back if requested.
pub async fn undivert(
    args: UndivertArgs,
    tenant: Tenant,
    config: &Config,
) -> Result<ExitCode, Failure> {
    let gate = RedisGate::new(&config.redis.url, &config.redis.prefix)?;
    // Errors come before the divert ends, since its queue's name is lost then.
    let client = match args.back {
        true => Some(open(config).await?),
        false => None,
    };
    if let (Some(client), Some(from)) = (&client, &args.from) {
        checked(from.clone(), client.names())?;
    }
    let request = json!({"back": args.back, "from": args.from});
    note(
        &gate,
        "tenant undivert",
        json!({"tenant": tenant.as_str()}),
        request,
    )
    .await;
    let (undiverted, known) = divert::undivert(&gate, &tenant, FOLLOW_TIMEOUT).await?;
    if !args.json {
        let was = match &known {
            // No later output can name this queue.
            Some(queue) => format!("are no longer diverted to {}", plain(queue, 255)),
            None => "were not diverted".to_owned(),
        };
        let who = undiverted.base.describe();
        writeln!(std::io::stdout(), "jobs of {tenant} {was}: {who}")?;
    }
    if let Some(client) = client {
        let names = client.names();
        let queue = args.from.or(known).unwrap_or_else(|| usual(&names.fresh));
        let done = match checked(queue, names) {
            Ok(queue) => dead::bring_back((&client, config), queue, &tenant, args.json).await,
            Err(why) => Err(why.into()),
        };
        client.close().await;
        return done;
    }
    if args.json {
        print_json(&undiverted.as_json())?;
    }
    Ok(ExitCode::SUCCESS)
}
