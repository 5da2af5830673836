//! `sluicegate check`: the configuration, RabbitMQ, Redis and the API, with one line each.

mod destination;
mod findings;
mod measurements;
mod servers;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use broker::amqp::MOVED_AT_ONCE;
use clap::Args;
use config::{Config, PipelineName, Pipelines};
use operator::answer::Answer as _;
use operator::limits::LimitAnswer;
use rules::limit::Limits;
use rules::policy::LimitsSource;
use rules::tenant::Tenant;
use serde_json::{Value as Json, json};
use tokio::time::timeout;

use super::progress::Progress;
use super::{Failure, count, limits, per_pipeline, print_json};
use findings::{Findings, Severity};
use measurements::{MeasurementTerms, Measurements};
use servers::{api, descriptors, rabbitmq, redis};

/// Timeout for all questions to one server together.
const SERVER_TIMEOUT: Duration = Duration::from_secs(60);

/// Check the configuration, RabbitMQ, Redis and the API; change nothing
///
/// Prints the effective configuration without passwords, then one line per check: ok, warn or
/// error. The exit status is 1 if a check fails. It also measures round trips to Redis, connections
/// to the API and RabbitMQ's confirms (with a temporary queue), and explains the results. It sends
/// no request to the API.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate check
  sluicegate check --offline --config new.yaml
  sluicegate check --pipeline orders
  sluicegate check --tenant acme
  sluicegate check --tenant acme --plan pro --json")]
pub struct CheckArgs {
    /// Check only the configuration; contact no server
    #[arg(long)]
    offline: bool,
    /// Print this tenant's effective limits and the part of the configuration that sets them
    #[arg(long)]
    tenant: Option<String>,
    /// Plan that the tenant's jobs name (rate-limiter.plan-header)
    #[arg(long, requires = "tenant")]
    plan: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The findings on one pipeline.
struct PipelineCheck<'a> {
    name: &'a PipelineName,
    source: LimitsSource<'a>,
    limits: &'a Limits,
    findings: Findings,
    /// The measurements as JSON.
    measured: Option<Json>,
}

impl PipelineCheck<'_> {
    fn as_json(&self) -> Json {
        let limits = self
            .limits
            .all()
            .iter()
            .map(|it| LimitAnswer::from(it).as_json());
        json!({
            "source": self.source.to_string(),
            "limits": limits.collect::<Vec<_>>(),
            "checks": self.findings.0,
            "measured": self.measured,
        })
    }

    fn print(&self, out: &mut impl Write, tenant: Option<&Tenant>) -> std::io::Result<()> {
        self.findings.print(out)?;
        if let Some(tenant) = tenant {
            writeln!(out, "limits of {tenant}, from {}:", self.source)?;
            for limit in self.limits.all() {
                writeln!(out, "  {}", limits::line(limit))?;
            }
        }
        Ok(())
    }
}

/// The findings on the selected pipelines.
struct CheckReport<'a> {
    pipelines: &'a Pipelines,
    tenant: Option<Tenant>,
    /// Findings on several named pipelines together.
    common: Findings,
    checked: Vec<PipelineCheck<'a>>,
}

impl CheckReport<'_> {
    fn has_failed(&self) -> bool {
        (self.checked.iter().flat_map(|each| &each.findings.0))
            .any(|finding| finding.level == Severity::Error)
    }

    fn as_json(&self) -> Json {
        let mut all = match self.checked.as_slice() {
            [only] if !self.pipelines.are_named() => only.as_json(),
            all => {
                let each = all
                    .iter()
                    .map(|each| (each.name.to_string(), each.as_json()));
                let each: serde_json::Map<_, _> = each.collect();
                json!({"checks": self.common.0, "pipelines": each})
            }
        };
        all["ok"] = (!self.has_failed()).into();
        all["tenant"] = self.tenant.as_ref().map(Tenant::as_str).into();
        all
    }

    /// Prints the effective configuration, unless a tenant is given, and the findings.
    fn print(&self) -> std::io::Result<()> {
        let pipelines = self.pipelines;
        let mut out = std::io::stdout().lock();
        match self.checked.as_slice() {
            _ if self.tenant.is_some() => {}
            [only] => writeln!(out, "{}", pipelines.each()[only.name])?,
            _ => writeln!(out, "{pipelines}")?,
        }
        self.common.print(&mut out)?;
        for each in &self.checked {
            if pipelines.are_named() {
                writeln!(out, "\npipeline {}", each.name)?;
            }
            each.print(&mut out, self.tenant.as_ref())?;
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
    let chosen = per_pipeline::select(pipelines, name)?;
    let mut common = Findings::default();
    let named = pipelines.are_named();
    if named {
        common.add(Severity::Ok, "config", describe_pipelines(&chosen));
    }
    let warnings = pipelines.warnings();
    let of = |name| warnings.iter().filter(move |(of, _)| *of == name);
    for (_, words) in of(None) {
        common.add(Severity::Warn, "config", words);
    }
    let mut checked = Vec::new();
    let progress = Progress::begin("checking the configuration");
    for (name, config) in chosen {
        let policy = &config.rate_limiter.policy;
        let (source, limits) = match &tenant {
            Some(tenant) => limits::of(policy, tenant, args.plan.as_deref())?,
            None => (LimitsSource::Common, policy.default_limits()),
        };
        let mut findings = Findings::default();
        findings.add(Severity::Ok, "config", "is valid");
        match named {
            true => {
                of(Some(name)).for_each(|(_, words)| findings.add(Severity::Warn, "config", words))
            }
            false => findings.0.append(&mut common.0),
        }
        let whose = (tenant.as_ref(), limits);
        let says = |what: &str| match named {
            true => progress.show(format!("pipeline {name}: checking {what}")),
            false => progress.show(format!("checking {what}")),
        };
        let measured = check_pipeline(config, whose, (args.offline, says), &mut findings).await;
        checked.push(PipelineCheck {
            name,
            source,
            limits,
            findings,
            measured,
        });
    }
    drop(progress);
    let report = CheckReport {
        pipelines,
        tenant,
        common,
        checked,
    };
    match args.json {
        true => print_json(&report.as_json())?,
        false => report.print()?,
    }
    match report.has_failed() {
        true => Err(Failure::Failed("some checks failed, see above".to_owned())),
        false => Ok(ExitCode::SUCCESS),
    }
}

fn describe_pipelines(chosen: &[(&PipelineName, &Config)]) -> String {
    let calls = chosen.iter().map(|(_, config)| config.dispatch.concurrency);
    let (pipelines, calls) = (count(chosen.len() as u64, "pipeline"), calls.sum::<usize>());
    format!("is valid: {pipelines}, at most {calls} calls in flight in total")
}

/// Checks one pipeline and, unless `offline`, its servers.
async fn check_pipeline(
    config: &Config,
    (tenant, limits): (Option<&Tenant>, &Limits),
    (offline, says): (bool, impl Fn(&str)),
    findings: &mut Findings,
) -> Option<Json> {
    for advice in config.advice() {
        findings.add(Severity::Warn, "config", advice);
    }
    destination::offline(config, findings);
    if offline {
        return None;
    }
    let terms = &MeasurementTerms {
        concurrency: config.dispatch.concurrency,
        permit: limits.permit_lasts(),
        has_guard: limits.guard_ms() > 0,
        moved_at_once: MOVED_AT_ONCE,
    };
    let mut measured = Measurements::default();
    let too_slow = |url: String| {
        format!(
            "{url} is too slow: not finished within \
        {SERVER_TIMEOUT:?}"
        )
    };
    // One silent server must not prevent the check of the other.
    says("RabbitMQ");
    let looking = rabbitmq(config, terms, (&mut measured, &mut *findings));
    if timeout(SERVER_TIMEOUT, looking).await.is_err() {
        let why = too_slow(config.amqp.url.to_string());
        findings.add(Severity::Error, "rabbitmq", why);
    }
    says("Redis");
    let looking = redis(
        config,
        (tenant, limits),
        terms,
        (&mut measured, &mut *findings),
    );
    if timeout(SERVER_TIMEOUT, looking).await.is_err() {
        let why = too_slow(config.redis.url.to_string());
        findings.add(Severity::Error, "redis", why);
    }
    if let Some(http) = &config.dispatch.http {
        says("the API");
        // This has its own timeout.
        api(http, terms, (&mut measured, &mut *findings)).await;
    }
    descriptors(config, findings);
    if let Some(text) = measured.describe_throughput(terms) {
        findings.add(Severity::Ok, "capacity", text);
    }
    Some(measured.as_json(terms))
}
