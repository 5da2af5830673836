//! `sluicegate check`: the configuration, RabbitMQ and Redis, one line each.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::{Value as Json, json};
use sluicegate::broker::amqp::{QueueState, inventory};
use sluicegate::config::{Config, PipelineName, Pipelines, RedisTopology};
use sluicegate::gate::boards;
use sluicegate::gate::fleet::registry::{self, Named};
use sluicegate::gate::redis::{Health, NODE_OF_A_CLUSTER, RedisGate};
use sluicegate::gate::{Gate, GateError};
use sluicegate::operator::hold;
use sluicegate::rules::delays::DelayLevels;
use sluicegate::rules::limit::Limits;
use sluicegate::rules::policy::Source;
use sluicegate::rules::tenant::Tenant;
use tokio::time::timeout;

use super::recovery::Recovery;
use super::{Failure, check_way, count, gate, limits, plain, print_json, together};

/// A shorter round trip to Redis is nothing to speak of, and a longer one is too long.
const FAR: Duration = Duration::from_millis(10);
const MOST_FAR: Duration = Duration::from_millis(500);
/// For all questions to one server together.
const SERVER_TIMEOUT: Duration = Duration::from_secs(60);

/// Check the configuration, RabbitMQ and Redis; change nothing
///
/// Prints the effective configuration without passwords, then a line for each thing that was checked: ok, warn
/// or error. The exit status is 1 if there is an error.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate check
  sluicegate check --offline --config new.yaml
  sluicegate check --pipeline orders
  sluicegate check --tenant acme
  sluicegate check --tenant acme --plan pro --json")]
pub struct CheckArgs {
    /// Look at the configuration only, at no server
    #[arg(long)]
    offline: bool,
    /// Print this tenant's effective limits, and which part of the configuration they come from
    #[arg(long)]
    tenant: Option<String>,
    /// The plan that its jobs name (rate-limiter.plan-header)
    #[arg(long, requires = "tenant")]
    plan: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Ok,
    Warn,
    Error,
}

/// One thing that was checked.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    level: Level,
    what: &'static str,
    text: String,
}

#[derive(Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn add(&mut self, level: Level, what: &'static str, text: impl Into<String>) {
        // Servers may say anything; it stays on its line.
        let text = plain(&text.into(), 1_000);
        self.0.push(Finding { level, what, text });
    }

    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        for Finding { level, what, text } in &self.0 {
            let level = match level {
                Level::Ok => "ok",
                Level::Warn => "warn",
                Level::Error => "error",
            };
            writeln!(out, "{level:<6}{what:<9} {text}")?;
        }
        Ok(())
    }
}

/// What was found of one pipeline.
struct Checked<'a> {
    name: &'a PipelineName,
    source: Source<'a>,
    limits: &'a Limits,
    findings: Findings,
}

impl Checked<'_> {
    fn as_json(&self) -> Json {
        let limits = self.limits.iter().map(limits::as_json);
        json!({
            "source": self.source.to_string(),
            "limits": limits.collect::<Vec<_>>(),
            "checks": self.findings.0,
        })
    }

    fn print(&self, out: &mut impl Write, tenant: Option<&Tenant>) -> std::io::Result<()> {
        self.findings.print(out)?;
        if let Some(tenant) = tenant {
            writeln!(out, "limits of {tenant}, from {}:", self.source)?;
            for limit in self.limits.iter() {
                writeln!(out, "  {}: {}", limit.name(), limits::in_words(limit))?;
            }
        }
        Ok(())
    }
}

/// Checks all pipelines, or the one called `name`.
pub async fn run(
    args: CheckArgs,
    pipelines: &Pipelines,
    name: Option<&str>,
) -> Result<ExitCode, Failure> {
    let tenant = match &args.tenant {
        Some(id) => Some(Tenant::parse(id).map_err(|error| Failure::Usage(error.to_string()))?),
        None => None,
    };
    let chosen = together::chosen(pipelines, name)?;
    let mut common = Findings::default();
    let named = pipelines.are_named();
    if named {
        let calls = chosen.iter().map(|(_, config)| config.dispatch.concurrency);
        let (pipelines, calls) = (count(chosen.len() as u64, "pipeline"), calls.sum::<usize>());
        let text = format!("is valid: {pipelines}, together at most {calls} calls in flight");
        common.add(Level::Ok, "config", text);
    }
    let warnings = pipelines.warnings();
    let of = |name| warnings.iter().filter(move |(of, _)| *of == name);
    for (_, words) in of(None) {
        common.add(Level::Warn, "config", words);
    }
    let mut checked = Vec::new();
    for (name, config) in chosen {
        let policy = &config.rate_limiter.policy;
        let (source, limits) = match &tenant {
            Some(tenant) => limits::of(policy, tenant, args.plan.as_deref())?,
            None => (Source::Common, policy.default_limits()),
        };
        let mut findings = Findings::default();
        findings.add(Level::Ok, "config", "is valid");
        match named {
            true => {
                of(Some(name)).for_each(|(_, words)| findings.add(Level::Warn, "config", words))
            }
            false => findings.0.append(&mut common.0),
        }
        look(
            config,
            (tenant.as_ref(), limits),
            args.offline,
            &mut findings,
        )
        .await;
        checked.push(Checked {
            name,
            source,
            limits,
            findings,
        });
    }
    let failed = (checked.iter().flat_map(|each| &each.findings.0))
        .any(|finding| finding.level == Level::Error);
    if args.json {
        let mut all = match checked.as_slice() {
            [only] if !named => only.as_json(),
            all => {
                let each = all
                    .iter()
                    .map(|each| (each.name.to_string(), each.as_json()));
                let each: serde_json::Map<_, _> = each.collect();
                json!({"checks": common.0, "pipelines": each})
            }
        };
        all["ok"] = (!failed).into();
        all["tenant"] = tenant.as_ref().map(Tenant::as_str).into();
        print_json(&all)?;
    } else {
        let mut out = std::io::stdout().lock();
        match checked.as_slice() {
            _ if tenant.is_some() => {}
            [only] => writeln!(out, "{}", pipelines.each()[only.name])?,
            _ => writeln!(out, "{pipelines}")?,
        }
        common.print(&mut out)?;
        for each in &checked {
            if named {
                writeln!(out, "\npipeline {}", each.name)?;
            }
            each.print(&mut out, tenant.as_ref())?;
        }
    }
    if failed {
        return Err(Failure::Failed(
            "not everything is in order, see above".to_owned(),
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Looks at one pipeline, and unless `offline` at its servers.
async fn look(
    config: &Config,
    limits: (Option<&Tenant>, &Limits),
    offline: bool,
    findings: &mut Findings,
) {
    for advice in config.advice() {
        findings.add(Level::Warn, "config", advice);
    }
    check_way::offline(config, findings);
    if offline {
        return;
    }
    let too_slow = |url: String| format!("{url} is too slow: no end within {SERVER_TIMEOUT:?}");
    // One silent server must not keep the other from being checked.
    match timeout(SERVER_TIMEOUT, rabbitmq(config, findings)).await {
        Ok(()) => {}
        Err(_) => findings.add(
            Level::Error,
            "rabbitmq",
            too_slow(config.amqp.url.to_string()),
        ),
    }
    match timeout(SERVER_TIMEOUT, redis(config, limits, findings)).await {
        Ok(()) => {}
        Err(_) => findings.add(
            Level::Error,
            "redis",
            too_slow(config.redis.url.to_string()),
        ),
    }
}

async fn rabbitmq(config: &Config, findings: &mut Findings) {
    const WHAT: &str = "rabbitmq";
    let levels = DelayLevels::new(config.delay.max_delay);
    let found = match inventory(&config.amqp, &levels).await {
        Ok(found) => found,
        Err(error) => return findings.add(Level::Error, WHAT, error.to_string()),
    };
    let version = found
        .version
        .unwrap_or_else(|| "of an unknown version".to_owned());
    findings.add(
        Level::Ok,
        WHAT,
        format!("{} answers: RabbitMQ {version}", found.at),
    );
    for error in &found.silent {
        findings.add(Level::Warn, WHAT, error.to_string());
    }
    let names = &found.names;
    let (delay_queues, work): (Vec<_>, Vec<_>) = (found.queues.iter())
        .partition(|(name, _)| names.delays().iter().any(|known| **known == **name));
    for (name, state) in work {
        match state {
            QueueState::Ready { messages } => {
                findings.add(
                    Level::Ok,
                    WHAT,
                    format!(
                        "queue {name}: {} ready",
                        count(u64::from(*messages), "message")
                    ),
                );
            }
            QueueState::Missing => findings.add(
                Level::Warn,
                WHAT,
                format!("queue {name} does not exist yet; run and publish create it"),
            ),
            QueueState::Differs(differs) => findings.add(Level::Error, WHAT, differs.to_string()),
        }
    }
    let mut waiting = 0_u64;
    let mut missing = 0;
    for (_, state) in &delay_queues {
        match state {
            QueueState::Ready { messages } => waiting += u64::from(*messages),
            QueueState::Missing => missing += 1,
            QueueState::Differs(differs) => findings.add(Level::Error, WHAT, differs.to_string()),
        }
    }
    let there = delay_queues.len() - missing;
    if missing == 0 {
        findings.add(
            Level::Ok,
            WHAT,
            format!(
                "{there} delay queues: {} ready, without those that workers have",
                count(waiting, "message")
            ),
        );
    } else {
        findings.add(
            Level::Warn,
            WHAT,
            format!(
                "{missing} of {} delay queues do not exist yet; run and publish create them",
                delay_queues.len()
            ),
        );
    }
    check_way::rabbitmq(config, findings).await;
}

async fn redis(
    config: &Config,
    (tenant, limits): (Option<&Tenant>, &Limits),
    findings: &mut Findings,
) {
    const WHAT: &str = "redis";
    let (health, round_trip) = match looked_at(config).await {
        Ok(found) => found,
        Err(error) => return findings.add(Level::Error, WHAT, gate(&error)),
    };
    let url = &config.redis.url;
    findings.add(
        Level::Ok,
        WHAT,
        format!(
            "{url} answers and runs the scripts: {} {}",
            health.server, health.version
        ),
    );
    if round_trip > MOST_FAR {
        let text = format!(
            "a round trip takes {:?}: workers are built for {MOST_FAR:?} at most",
            round_trip
        );
        findings.add(Level::Warn, WHAT, text);
    } else if round_trip >= FAR {
        let text = far(round_trip, config.dispatch.concurrency);
        findings.add(Level::Ok, WHAT, text);
    }
    match health.maxmemory_policy.as_deref() {
        Some("noeviction") => findings.add(Level::Ok, WHAT, "maxmemory-policy is noeviction"),
        Some(policy) => findings.add(Level::Error, WHAT, format!("maxmemory-policy is {policy}: under memory pressure Redis would evict usage; set it to noeviction")),
        None => findings.add(Level::Warn, WHAT, "does not tell its maxmemory-policy; it must be noeviction"),
    }
    match health.role.as_deref() {
        Some("master") | None => {}
        Some(role) => findings.add(
            Level::Error,
            WHAT,
            format!("is a {role}; redis.url must name the master"),
        ),
    }
    // The tenant that was tried may live on this node; those of the other nodes would be refused.
    if health.cluster && url.topology == RedisTopology::Single {
        return findings.add(Level::Error, WHAT, NODE_OF_A_CLUSTER);
    }
    let jobs = match tenant {
        Some(tenant) => format!("job of {tenant}"),
        None => "job with the common limits".to_owned(),
    };
    for (primary, recovery) in recoveries(config, tenant, limits).await {
        let (level, text) = recovery_in_words(&jobs, &recovery);
        findings.add(level, WHAT, format!("{primary}{text}"));
    }
    match held(config).await {
        Ok(words) if words.is_empty() => {}
        Ok(words) => findings.add(Level::Warn, WHAT, words),
        Err(error) => findings.add(Level::Error, WHAT, gate(&error)),
    }
    match others(config).await {
        Ok((number, failed)) => {
            if number > 0 {
                findings.add(Level::Warn, WHAT, others_in_words(number, failed.len()));
            }
            for error in &failed {
                let why = format!(
                    "a primary of the cluster does not say which policies other workers enforce there: {error}"
                );
                findings.add(Level::Error, WHAT, why);
            }
        }
        Err(error) => findings.add(Level::Error, WHAT, gate(&error)),
    }
}

/// What Redis is, and what a round trip to it takes at least.
async fn looked_at(config: &Config) -> Result<(Health, Duration), GateError> {
    let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix)?;
    let limits = config.rate_limiter.policy.default_limits();
    let health = gate.check(limits).await?;
    gate.measure().await?;
    Ok((health, gate.base()))
}

/// Of each primary that is asked for: its name and a colon, where there are several, and whether jobs are admitted there.
async fn recoveries(
    config: &Config,
    tenant: Option<&Tenant>,
    limits: &Limits,
) -> Vec<(String, Recovery)> {
    let policy = &config.rate_limiter.policy;
    let looks = match RedisGate::connect(&config.redis.url, &config.redis.prefix) {
        Ok(gate) => gate.outlook(tenant, limits, policy).await,
        Err(why) => Err(why),
    };
    let looks = looks.unwrap_or_else(|why| vec![Err(why)]);
    let looks = looks.into_iter().map(|look| {
        let primary = look.as_ref().map_or("", |look| &look.primary);
        let primary = match primary {
            "" => String::new(),
            name => format!("{name}: "),
        };
        (primary, Recovery::from(look))
    });
    looks.collect()
}

fn recovery_in_words(jobs: &str, recovery: &Recovery) -> (Level, String) {
    let unknown = || {
        let words = recovery.in_words().unwrap_or_default();
        format!("whether jobs are admitted {words}")
    };
    match recovery {
        Recovery::Over => (Level::Ok, "has lost no data: jobs are admitted".to_owned()),
        Recovery::Waits { why, .. } => {
            let end = recovery.end().unwrap_or_default();
            let text = format!(
                "no {jobs} is admitted until the recovery wait ends, {end}: Redis may have lost data: {why}"
            );
            (Level::Warn, text)
        }
        Recovery::NoWorker => (Level::Ok, unknown()),
        Recovery::Unread(_) => (Level::Warn, unknown()),
    }
}

/// What a way of `round_trip` costs.
fn far(round_trip: Duration, concurrency: usize) -> String {
    // A call has its worker slot for that long at least.
    let calls = (concurrency as f64 / round_trip.as_secs_f64()) as u64;
    let ms = round_trip.as_millis();
    format!(
        "a round trip takes {ms} ms: each job gets its permit that much later, and with dispatch.concurrency {concurrency} a worker makes at most {calls} calls a second"
    )
}

/// So many policies were found, where so many primaries did not say theirs.
fn others_in_words(number: u64, failed: usize) -> String {
    let least = if failed > 0 { "at least " } else { "" };
    let (policies, are) = match number {
        1 => ("policy", "is"),
        _ => ("policies", "are"),
    };
    format!(
        "{least}{number} {policies} of other workers {are} enforced as well; inspect TENANT shows the limits, and until when"
    )
}

/// What operators ask of all workers.
async fn held(config: &Config) -> Result<String, GateError> {
    let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix)?;
    Ok(hold::held_in_words(&boards::see(&gate).await?))
}

/// How many other policies workers enforce, or have enforced within the longest window, and why primaries did not say.
async fn others(config: &Config) -> Result<(u64, Vec<GateError>), GateError> {
    let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix)?;
    let own = Named::new(config.rate_limiter.policy.clone())?;
    let seen = registry::look(&gate).await?;
    let policies = seen.known.policies().iter();
    let others = policies.filter(|known| known.id != own.id).count() as u64;
    Ok((others, seen.failed))
}
