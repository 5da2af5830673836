//! `sluicegate tenant divert`: a tenant's jobs go out of the way for a while, and come back when somebody says so.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde_json::json;
use sluicegate::broker::amqp::Client;
use sluicegate::config::{Config, show_duration};
use sluicegate::gate::boards::{Seen, drop_all, put, see};
use sluicegate::gate::redis::RedisGate;
use sluicegate::rules::delays::{DelayLevels, QueueNames};
use sluicegate::rules::steering::Instruction;
use sluicegate::rules::tenant::Tenant;

use super::dead;
use super::steer::{FOLLOW_WITHIN, Span, followed};
use super::times::at;
use super::{Failure, plain, print_json};

/// The longest name of a queue, in bytes.
const LONGEST_NAME: usize = 255;

#[derive(Debug, Args)]
pub struct DivertArgs {
    /// Whose
    pub tenant: String,
    /// The queue that they go to; it is made where there is none [default: the work queue's name and .diverted]
    #[arg(long, value_name = "QUEUE")]
    to: Option<String>,
    #[command(flatten)]
    span: Span,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub struct UndivertArgs {
    /// Whose
    pub tenant: String,
    /// Put the jobs that went there back into the work queue, as new jobs with all attempts
    #[arg(long)]
    back: bool,
    /// The queue that they went to [default: the one of the divert that ends, else as of divert]
    #[arg(long, value_name = "QUEUE", requires = "back")]
    from: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn usual(names: &QueueNames) -> String {
    format!("{}.diverted", names.fresh)
}

fn checked(queue: String, names: &QueueNames) -> Result<Arc<str>, Failure> {
    if queue.is_empty() || queue.len() > LONGEST_NAME {
        return Err(Failure::Usage(format!(
            "the queue's name has {} bytes; it must have 1 to {LONGEST_NAME}",
            queue.len()
        )));
    }
    if queue.contains(char::is_control) {
        return Err(Failure::Usage(
            "the queue's name has a control character".to_owned(),
        ));
    }
    if names.has(&queue) {
        return Err(Failure::Usage(format!(
            "{queue} is one of the workers' own queues: name another one with --to"
        )));
    }
    Ok(queue.into())
}

/// Diverts the jobs of `tenant`.
pub async fn divert(
    args: DivertArgs,
    tenant: Tenant,
    config: &Config,
) -> Result<ExitCode, Failure> {
    let levels = DelayLevels::new(config.delay.max_delay);
    let client = Client::connect_existing(&config.amqp, &levels).await?;
    let names = client.names();
    let queue = checked(args.to.unwrap_or_else(|| usual(names)), names);
    let made = match &queue {
        Ok(queue) => client.make(queue).await,
        Err(_) => Ok(()),
    };
    client.close().await;
    let queue = queue?;
    made?;
    let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix)?;
    let asked = Instruction::Divert(tenant.clone(), Arc::clone(&queue));
    let versions = put(&gate, &asked, args.span.millis()).await?;
    let (seen, followers) = followed(&gate, &versions, FOLLOW_WITHIN).await?;
    let until_ms = until(&seen, &tenant).map_or(0, |(until_ms, _)| until_ms);
    if args.json {
        print_json(&json!({
            "tenant": tenant.as_str(),
            "change": "divert",
            "queue": &*queue,
            "until_ms": until_ms,
            "workers": followers.all,
            "workers_following": followers.following,
        }))?;
    } else {
        let (until, who) = (at(until_ms), followers.in_words());
        let (queue, within) = (plain(&queue, 255), show_duration(config.delay.max_delay));
        writeln!(
            std::io::stdout(),
            "jobs of {tenant} go to {queue} until {until}: {who}\njobs in delay queues go there within {within} (delay.max-delay); calls in flight go on"
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Until when jobs of `tenant` are diverted (ms), and where to.
fn until(seen: &[Seen], tenant: &Tenant) -> Option<(u64, Arc<str>)> {
    let posted = seen.iter().flat_map(|board| &board.posted);
    let all = posted.filter_map(|(instruction, until_ms)| match instruction {
        Instruction::Divert(of, queue) if of == tenant => Some((*until_ms, Arc::clone(queue))),
        _ => None,
    });
    all.max()
}

/// Ends that, and brings jobs back.
pub async fn undivert(
    args: UndivertArgs,
    tenant: Tenant,
    config: &Config,
) -> Result<ExitCode, Failure> {
    let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix)?;
    let before = until(&see(&gate).await?, &tenant);
    let name = Instruction::Divert(tenant.clone(), "".into()).name();
    let versions = drop_all(&gate, &[name]).await?;
    let (_, followers) = followed(&gate, &versions, FOLLOW_WITHIN).await?;
    if !args.json {
        let was = match before {
            Some(_) => "are not diverted any more",
            None => "were not diverted",
        };
        let who = followers.in_words();
        writeln!(std::io::stdout(), "jobs of {tenant} {was}: {who}")?;
    }
    if args.back {
        let levels = DelayLevels::new(config.delay.max_delay);
        let client = Client::connect_existing(&config.amqp, &levels).await?;
        let names = client.names();
        let known = before.map(|(_, queue)| queue.to_string());
        let queue = args.from.or(known).unwrap_or_else(|| usual(names));
        let done = match checked(queue, names) {
            Ok(queue) => dead::bring_back((&client, config), queue, &tenant, args.json).await,
            Err(why) => Err(why),
        };
        client.close().await;
        return done;
    }
    if args.json {
        print_json(&json!({
            "tenant": tenant.as_str(),
            "change": "undivert",
            "workers": followers.all,
            "workers_following": followers.following,
        }))?;
    }
    Ok(ExitCode::SUCCESS)
}
