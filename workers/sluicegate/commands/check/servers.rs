//! The findings of `check` on RabbitMQ, Redis and the API.

use std::time::Duration;

use broker::BrokerError;
use broker::amqp::{Confirms, QueueState, confirms, inventory};
use config::{Config, Http, RedisTopology, ResultsTo, show_duration};
use gate::GateError;
use gate::redis::{NODE_OF_A_CLUSTER, RedisGate, ServerHealth};
use gate::reports;
use handler::http::{Reach, reach};
use operator::hold;
use operator::other_policies::others as others_of;
use rules::broker::existing_queue::EffectOnJobs;
use rules::broker::holding::Holding;
use rules::delays::DelayLevels;
use rules::limit::Limits;
use rules::report::view::FleetReport;
use rules::tenant::Tenant;
use rustix::process::{Resource, getrlimit};

use super::destination;
use super::findings::{Findings, Severity};
use super::measurements::{ApiConnection, MeasurementTerms, Measurements, Times};
use crate::commands::recovery::Recovery;
use crate::commands::{count, gate};

/// Maximum number of differing keys that are listed for other configurations.
const MAX_LISTED_KEYS: usize = 12;

/// The server in the findings on RabbitMQ.
const RABBITMQ: &str = "rabbitmq";
/// The server in the findings on Redis.
const REDIS: &str = "redis";

/// Explains `amqp.consumer-timeout`.
fn unacked(config: &Config) -> String {
    let (timeout, call) = (config.amqp.consumer_timeout, config.dispatch.call_timeout());
    let longest = Holding::new(timeout, call).longest();
    format!(
        "a job waits unacked for at most {} before a call of at most {}, or less if RabbitMQ \
        reports a consumer_timeout below {} (amqp.consumer-timeout)",
        show_duration(longest),
        show_duration(call),
        show_duration(timeout)
    )
}

/// Checks the server and its queues.
pub(super) async fn rabbitmq(
    config: &Config,
    terms: &MeasurementTerms,
    (measured, findings): (&mut Measurements, &mut Findings),
) {
    let levels = DelayLevels::new(config.delay.max_delay);
    let found = match inventory(&config.amqp, &levels).await {
        Ok(found) => found,
        Err(error) => return findings.add(Severity::Error, RABBITMQ, error.to_string()),
    };
    let version = found.version.as_deref().unwrap_or("of an unknown version");
    findings.add(
        Severity::Ok,
        RABBITMQ,
        format!("{} answers: RabbitMQ {version}", found.at),
    );
    for error in &found.silent {
        findings.add(Severity::Warn, RABBITMQ, error.to_string());
    }
    if let Some(limit) = &found.limit {
        findings.add(Severity::Error, RABBITMQ, limit.to_string());
    }
    let names = &found.names;
    let (delay_queues, work): (Vec<_>, Vec<_>) = (found.queues.iter())
        .partition(|(name, _)| names.delays().iter().any(|known| **known == **name));
    for (name, state) in work {
        work_queue(config, name, state, findings);
    }
    delay_queue_states(&delay_queues, findings);
    findings.add(Severity::Ok, RABBITMQ, unacked(config));
    destination::rabbitmq(config, findings).await;
    confirm_latency(config, terms, (measured, findings)).await;
}

/// Describes a queue that is not a delay queue.
fn work_queue(config: &Config, name: &str, state: &QueueState, findings: &mut Findings) {
    match state {
        QueueState::Ready { messages } => {
            let ready = count(u64::from(*messages), "message");
            findings.add(
                Severity::Ok,
                RABBITMQ,
                format!("queue {name}: {ready} ready"),
            );
        }
        QueueState::Missing => findings.add(
            Severity::Ok,
            RABBITMQ,
            format!("queue {name} does not exist yet; `run` and `publish` create it"),
        ),
        QueueState::Differs(differs) => {
            findings.add(Severity::Error, RABBITMQ, differs.to_string());
        }
        QueueState::Unusable(error) => findings.add(Severity::Error, RABBITMQ, error.to_string()),
        QueueState::Existing {
            messages,
            properties,
        } => {
            let messages = count(u64::from(*messages), "message");
            let effects = properties.effects(config.amqp.consumer_timeout);
            existing_queue(name, &messages, effects, findings);
        }
    }
}

/// Describes all delay queues together, and each that can't be used.
fn delay_queue_states(queues: &[&(String, QueueState)], findings: &mut Findings) {
    let mut waiting = 0_u64;
    let mut missing = 0;
    for (_, state) in queues {
        match state {
            QueueState::Ready { messages } => waiting += u64::from(*messages),
            QueueState::Missing => missing += 1,
            QueueState::Differs(differs) => {
                findings.add(Severity::Error, RABBITMQ, differs.to_string());
            }
            // Sluicegate declares delay queues.
            QueueState::Existing { .. } | QueueState::Unusable(_) => {}
        }
    }
    let all = queues.len();
    let text = match missing {
        0 => format!(
            "{all} delay queues: {} ready, not counting jobs that workers hold",
            count(waiting, "message")
        ),
        _ => format!(
            "{missing} of {all} delay queues do not exist yet; `run` and `publish` create them"
        ),
    };
    findings.add(Severity::Ok, RABBITMQ, text);
}

/// Measures the confirm latency.
async fn confirm_latency(
    config: &Config,
    terms: &MeasurementTerms,
    (measured, findings): (&mut Measurements, &mut Findings),
) {
    match confirms(&config.amqp, more_connections(config)).await {
        Confirms::Measured(took) => {
            measured.confirm = Times::of(took);
            if let Some((level, text)) = measured.describe_confirms(terms) {
                findings.add(level, RABBITMQ, text);
            }
        }
        Confirms::None(why) => findings.add(
            Severity::Warn,
            RABBITMQ,
            format!("a publish was not confirmed: {why}"),
        ),
        Confirms::Forbidden(why) => findings.add(Severity::Error, RABBITMQ, why.to_string()),
        // The measurement opens as many connections as a worker.
        Confirms::Unknown(why @ BrokerError::Limit { .. }) => {
            findings.add(Severity::Error, RABBITMQ, why.to_string());
        }
        Confirms::Unknown(why) => findings.add(
            Severity::Ok,
            RABBITMQ,
            format!("confirm latency was not measured: {why}"),
        ),
    }
}

/// Describes a queue that Sluicegate does not declare.
fn existing_queue(name: &str, messages: &str, effects: Vec<EffectOnJobs>, findings: &mut Findings) {
    let text = format!("queue {name} exists and is left as it is: {messages} ready");
    findings.add(Severity::Ok, RABBITMQ, text);
    for effect in effects {
        let (level, text) = match effect {
            EffectOnJobs::None(text) => (Severity::Ok, text),
            EffectOnJobs::Risk(text) => (Severity::Warn, text),
            EffectOnJobs::Unfit(text) => (Severity::Error, text),
        };
        findings.add(level, RABBITMQ, format!("queue {name}: {text}"));
    }
}

/// Returns the number of connections to RabbitMQ that a worker opens on demand, in addition to the
/// two for its jobs.
fn more_connections(config: &Config) -> usize {
    let results = match config.dispatch.results.to {
        ResultsTo::None => 0,
        ResultsTo::Exchange => 1,
        // RabbitMQ's direct reply-to has one of its own.
        ResultsTo::ReplyTo => 2,
    };
    results + usize::from(config.dispatch.forward.is_some())
}

/// Number of file descriptors that a worker needs in addition to those of its calls.
const DESCRIPTORS: u64 = 40;

/// Checks that a process started from here may have as many file descriptors as its calls need.
pub(super) fn descriptors(config: &Config, findings: &mut Findings) {
    let Some(limit) = getrlimit(Resource::Nofile).current else {
        return;
    };
    let calls = u64::try_from(config.dispatch.concurrency).unwrap_or(u64::MAX);
    let wanted = calls.saturating_add(DESCRIPTORS);
    if limit < wanted {
        let text = format!(
            "a process started from here can have {limit} file descriptors, but a worker with \
            dispatch.concurrency {calls} needs up to {wanted}; raise the limit (LimitNOFILE, \
            ulimit -n)"
        );
        findings.add(Severity::Warn, "capacity", text);
    }
}

/// Checks the API without sending a request.
pub(super) async fn api(
    http: &Http,
    terms: &MeasurementTerms,
    (measured, findings): (&mut Measurements, &mut Findings),
) {
    const WHAT: &str = "api";
    if http.host.is_some() {
        let text = format!(
            "calls go to {}, whose host differs between jobs, so no connection was measured",
            http.url
        );
        return findings.add(Severity::Ok, WHAT, text);
    }
    let Reach {
        at,
        proxy,
        connected,
        encrypted,
        is_http2,
    } = match reach(http).await {
        Ok(reach) => reach,
        // Workers start without the API, and their jobs wait.
        Err(why) => return findings.add(Severity::Warn, WHAT, why),
    };
    measured.api = Times::of(connected).map(|connect| ApiConnection {
        at,
        proxy,
        connect,
        tls: Times::of(encrypted),
        is_http2,
    });
    if let Some((level, text)) = measured.describe_api(terms) {
        findings.add(level, WHAT, text);
    }
}

/// Checks the server, and whether it admits jobs.
pub(super) async fn redis(
    config: &Config,
    (tenant, limits): (Option<&Tenant>, &Limits),
    terms: &MeasurementTerms,
    (measured, findings): (&mut Measurements, &mut Findings),
) {
    let (at, health, round_trips) = match measure_redis(config).await {
        Ok(found) => found,
        Err(error) => return findings.add(Severity::Error, REDIS, gate(&error)),
    };
    let url = &config.redis.url;
    findings.add(
        Severity::Ok,
        REDIS,
        format!(
            "{url} answers and runs the scripts: {} {}",
            health.server, health.version
        ),
    );
    measured.redis = Times::of(round_trips);
    if let Some((level, text)) = measured.describe_redis(terms) {
        findings.add(level, REDIS, text);
    }
    redis_settings(&health, findings);
    // The tenant of the test may be on this node, but tenants of other nodes would be refused.
    if health.cluster && url.topology == RedisTopology::Single {
        return findings.add(Severity::Error, REDIS, NODE_OF_A_CLUSTER);
    }
    if let Err(error) = at.accepts_writes().await {
        return findings.add(Severity::Error, REDIS, gate(&error));
    }
    let jobs = match tenant {
        Some(tenant) => format!("job of {tenant}"),
        None => "job with the common limits".to_owned(),
    };
    for (primary, recovery) in recoveries((&at, config), tenant, limits).await {
        let (level, text) = describe_recovery(&jobs, &recovery);
        findings.add(level, REDIS, format!("{primary}{text}"));
    }
    fleet(&at, findings).await;
    other_policies(&at, config, findings).await;
}

/// Checks the server's eviction policy and its role.
fn redis_settings(health: &ServerHealth, findings: &mut Findings) {
    match health.maxmemory_policy.as_deref() {
        Some("noeviction") => findings.add(Severity::Ok, REDIS, "maxmemory-policy is noeviction"),
        Some(policy) => findings.add(Severity::Error, REDIS, format!("maxmemory-policy is {policy}: under memory pressure Redis would evict usage; set it to noeviction")),
        None => findings.add(Severity::Warn, REDIS, "does not report its maxmemory-policy; it must be \
            noeviction"),
    }
    match health.role.as_deref() {
        Some("master") | None => {}
        Some(role) => findings.add(
            Severity::Error,
            REDIS,
            format!("is a {role}; redis.url must name the master"),
        ),
    }
}

/// Lists operators' instructions, and the advice of running workers.
async fn fleet(at: &RedisGate, findings: &mut Findings) {
    let fleet = match reports::see(at).await {
        Ok(fleet) => fleet,
        Err(error) => return findings.add(Severity::Error, REDIS, gate(&error)),
    };
    let held = hold::describe_hold(&fleet.boards);
    if !held.is_empty() {
        findings.add(Severity::Warn, REDIS, held);
    }
    if let Some(words) = describe_advice(&fleet.view) {
        findings.add(Severity::Warn, "api", words);
    }
    for error in &fleet.failed {
        findings.add(Severity::Error, REDIS, gate(error));
    }
}

/// Lists the policies that workers enforce in addition to that of `config`.
async fn other_policies(at: &RedisGate, config: &Config, findings: &mut Findings) {
    let others = match others_of(at, &config.rate_limiter.policy).await {
        Ok(others) => others,
        Err(error) => return findings.add(Severity::Error, REDIS, error.to_string()),
    };
    let both = [
        others.describe(MAX_LISTED_KEYS),
        others.describe_abandoned(MAX_LISTED_KEYS),
    ];
    for words in both.into_iter().flatten() {
        let words = format!("{words}; inspect TENANT shows the limits and when they end");
        findings.add(Severity::Warn, REDIS, words);
    }
    for error in &others.failed {
        let why =
            format!("the other workers' policies at a primary of the cluster are unknown: {error}");
        findings.add(Severity::Error, REDIS, why);
    }
}

/// Connects, and returns the server's properties and the times of some round trips.
async fn measure_redis(
    config: &Config,
) -> Result<(RedisGate, ServerHealth, Vec<Duration>), GateError> {
    let gate = RedisGate::new(&config.redis.url, &config.redis.prefix)?;
    let limits = config.rate_limiter.policy.default_limits();
    let health = gate.check(limits).await?;
    let round_trips = gate.pings().await?;
    Ok((gate, health, round_trips))
}

/// Returns, for each primary in question, whether it admits jobs, with its name and a colon if
/// there are several.
async fn recoveries(
    (at, config): (&RedisGate, &Config),
    tenant: Option<&Tenant>,
    limits: &Limits,
) -> Vec<(String, Recovery)> {
    let policy = &config.rate_limiter.policy;
    let outlooks = at.outlook(tenant, limits, policy).await;
    let outlooks = outlooks.unwrap_or_else(|why| vec![Err(why)]);
    let outlooks = outlooks.into_iter().map(|outlook| {
        let primary = outlook.as_ref().map_or("", |outlook| &outlook.primary);
        let primary = match primary {
            "" => String::new(),
            name => format!("{name}: "),
        };
        (primary, Recovery::from(outlook))
    });
    outlooks.collect()
}

fn describe_recovery(jobs: &str, recovery: &Recovery) -> (Severity, String) {
    let unknown = || {
        let words = recovery.describe().unwrap_or_default();
        format!("whether jobs are admitted is {words}")
    };
    match recovery {
        Recovery::Over => (
            Severity::Ok,
            "has lost no data; jobs are admitted".to_owned(),
        ),
        Recovery::Waits { why, .. } => {
            let end = recovery.end().unwrap_or_default();
            let text = format!(
                "no {jobs} is admitted until the recovery wait ends, {end}: Redis may have lost data: {why}"
            );
            (Severity::Warn, text)
        }
        Recovery::Refused(why) => (Severity::Error, why.clone()),
        Recovery::NoWorker => (Severity::Ok, unknown()),
        Recovery::Unread(_) => (Severity::Warn, unknown()),
    }
}

/// Returns what one worker has concluded from refused calls. All workers call the same API, so one
/// is enough.
fn describe_advice(view: &FleetReport) -> Option<String> {
    let all = view.workers.iter().map(|worker| &*worker.report.advice);
    let some: Vec<&str> = all.filter(|advice| !advice.is_empty()).collect();
    let workers = count(some.len() as u64, "worker");
    some.first().map(|advice| format!("{workers}: {advice}"))
}
