//! The configuration in force, as YAML, without passwords.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::form::show;
use super::redis::join;
use super::{Config, RedisServers, RedisTopology, TenantField, Tls, ValueField};
use crate::rules::limit::{Algorithm, DEFAULT_LIMIT, Limit};
use crate::rules::policy::{Own, Policy};
use crate::rules::scope::Scope;

impl fmt::Display for TenantField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::RoutingKey => f.write_str("routing-key"),
            Self::Json(pointer) => write!(f, "json:{pointer}"),
        }
    }
}

impl fmt::Display for ValueField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Json(pointer) => write!(f, "json:{pointer}"),
        }
    }
}

/// A text as a double-quoted one of YAML.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                // What Rust can't print as it is, a YAML parser may not read.
                c if !c.is_ascii() && c.escape_debug().count() > 1 => {
                    write!(f, "\\U{:08x}", u32::from(c))?;
                }
                c => write!(f, "{c}")?,
            }
        }
        f.write_str("\"")
    }
}

impl fmt::Display for Config {
    /// The file that would give this configuration, with `***` for each password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            amqp,
            redis,
            job,
            rate_limiter,
            dispatch,
            delay,
            retry,
            admin,
            log,
        } = self;
        writeln!(f, "amqp:")?;
        writeln!(f, "  url: \"{}\"", amqp.url)?;
        tls(f, "  ", &amqp.tls)?;
        writeln!(f, "  queue: {}", Quoted(&amqp.queue))?;
        writeln!(f, "  queue-type: {}", amqp.queue_type.name())?;
        writeln!(f, "  prefetch: {}", amqp.prefetch)?;
        writeln!(f, "redis:")?;
        redis_servers(f, &redis.url)?;
        writeln!(f, "  prefix: {}", Quoted(&redis.prefix))?;
        writeln!(f, "job:")?;
        writeln!(f, "  tenant: {}", Quoted(&job.tenant.to_string()))?;
        writeln!(f, "  cost: {}", Quoted(&job.cost.to_string()))?;
        if let Some(deadline) = &job.deadline {
            writeln!(f, "  deadline: {}", Quoted(&deadline.to_string()))?;
        }
        writeln!(f, "rate-limiter:")?;
        policy(f, &rate_limiter.policy)?;
        writeln!(f, "  max-penalty: {}", show(rate_limiter.max_penalty))?;
        writeln!(f, "  guard-budget: {}%", rate_limiter.guard_budget)?;
        writeln!(
            f,
            "  throttle-scope: {}",
            rate_limiter.throttle_scope.name()
        )?;
        writeln!(f, "dispatch:")?;
        writeln!(f, "  concurrency: {}", dispatch.concurrency)?;
        writeln!(f, "  shutdown-timeout: {}", show(dispatch.shutdown_timeout))?;
        writeln!(f, "  breaker:")?;
        match &dispatch.breaker {
            None => writeln!(f, "    enabled: false")?,
            Some(breaker) => {
                writeln!(f, "    failures: {}", breaker.failures)?;
                let initial = show(breaker.initial_interval);
                writeln!(f, "    initial-interval: {initial}")?;
                writeln!(f, "    max-interval: {}", show(breaker.max_interval))?;
            }
        }
        if let Some(http) = &dispatch.http {
            writeln!(f, "  http:")?;
            writeln!(f, "    url: \"{}\"", http.url)?;
            if !http.headers.is_empty() {
                writeln!(f, "    headers:")?;
            }
            for name in http.headers.keys() {
                writeln!(f, "      {}: \"***\"", Quoted(name.as_str()))?;
            }
            tls(f, "    ", &http.tls)?;
            writeln!(f, "    http2: {}", http.http2)?;
            writeln!(f, "    timeout: {}", show(http.timeout))?;
            writeln!(f, "    abandoned: {}", show(http.abandoned))?;
            if http.answers.own().len() > 0 {
                writeln!(f, "    answers:")?;
            }
            for (which, meaning) in http.answers.own() {
                writeln!(
                    f,
                    "      {}: {}",
                    Quoted(&which.to_string()),
                    meaning.name()
                )?;
            }
        }
        writeln!(f, "delay:")?;
        writeln!(f, "  hold: {}", show(delay.hold))?;
        writeln!(f, "  max-delay: {}", show(delay.max_delay))?;
        writeln!(f, "retry:")?;
        writeln!(f, "  max-attempts: {}", retry.max_attempts)?;
        writeln!(f, "  initial-interval: {}", show(retry.initial_interval))?;
        writeln!(f, "  max-interval: {}", show(retry.max_interval))?;
        writeln!(f, "  give-up-after: {}", show(retry.give_up_after))?;
        writeln!(f, "  max-crashes: {}", retry.max_crashes)?;
        writeln!(f, "admin:")?;
        writeln!(f, "  listen: \"{}\"", admin.listen)?;
        if let Some(token) = &admin.token {
            writeln!(f, "  token: \"{token}\"")?;
        }
        writeln!(f, "log:")?;
        writeln!(f, "  format: {}", log.format.name())?;
        writeln!(f, "  level: {}", Quoted(&log.level))
    }
}

fn policy(f: &mut fmt::Formatter<'_>, policy: &Policy) -> fmt::Result {
    set(f, "  ", policy.default_limits().iter())?;
    // What all tenants share holds for plans and tenants, too, because it stands above.
    if !policy.plans().is_empty() {
        writeln!(f, "  plans:")?;
    }
    for (name, limits) in policy.plans() {
        writeln!(f, "    {}:", Quoted(name))?;
        set(f, "      ", limits.own())?;
    }
    if !policy.tenants().is_empty() {
        writeln!(f, "  tenants:")?;
    }
    for (pattern, own) in policy.tenants() {
        writeln!(f, "    {}:", Quoted(&pattern.to_string()))?;
        match own {
            Own::Limits(limits) => set(f, "      ", limits.own())?,
            Own::Plan(name) => writeln!(f, "      plan: {}", Quoted(name))?,
        }
    }
    match policy.plan_header() {
        Some(header) => writeln!(f, "  plan-header: {}", Quoted(header)),
        None => Ok(()),
    }
}

/// The keys of `limits`, flat where there is one without a name of its own, each after `indent`.
fn set<'a>(
    f: &mut fmt::Formatter<'_>,
    indent: &str,
    limits: impl Iterator<Item = &'a Limit>,
) -> fmt::Result {
    let limits: Vec<&Limit> = limits.collect();
    if let [only] = limits[..]
        && only.name() == DEFAULT_LIMIT
        && only.algorithm() != Algorithm::Concurrency
    {
        return limit(f, indent, only);
    }
    writeln!(f, "{indent}limits:")?;
    let next = format!("{indent}    ");
    for one in limits {
        writeln!(f, "{indent}  - name: {}", one.name())?;
        limit(f, &next, one)?;
    }
    Ok(())
}

fn limit(f: &mut fmt::Formatter<'_>, indent: &str, limit: &Limit) -> fmt::Result {
    if limit.algorithm() == Algorithm::Concurrency {
        writeln!(f, "{indent}max-concurrent: {}", limit.max())?;
        return scope(f, indent, limit.scope());
    }
    let strict = limit.algorithm() == Algorithm::Strict;
    let algorithm = if strict {
        Algorithm::SlidingWindow
    } else {
        limit.algorithm()
    };
    writeln!(f, "{indent}use-algo: {}", algorithm.name())?;
    writeln!(f, "{indent}window-size: {}", millis(limit.window_ms()))?;
    writeln!(f, "{indent}max-requests: {}", limit.max())?;
    if limit.algorithm().has_burst() {
        writeln!(f, "{indent}burst: {}", limit.burst())?;
    }
    writeln!(f, "{indent}unit: {}", limit.unit().name())?;
    match strict {
        true => writeln!(f, "{indent}guard: strict"),
        false => writeln!(f, "{indent}guard: {}", millis(limit.guard_ms())),
    }?;
    scope(f, indent, limit.scope())
}

fn scope(f: &mut fmt::Formatter<'_>, indent: &str, scope: &Scope) -> fmt::Result {
    match scope {
        Scope::Header(_) => writeln!(f, "{indent}scope: {}", Quoted(&scope.to_string())),
        scope => writeln!(f, "{indent}scope: {scope}"),
    }
}

fn redis_servers(f: &mut fmt::Formatter<'_>, servers: &RedisServers) -> fmt::Result {
    writeln!(f, "  url: \"{}\"", join(&servers.urls))?;
    match &servers.topology {
        RedisTopology::Single => {}
        RedisTopology::Cluster => writeln!(f, "  cluster: true")?,
        RedisTopology::Sentinel(all) => writeln!(f, "  sentinels: \"{}\"", join(all))?,
    }
    tls(f, "  ", &servers.tls)
}

fn tls(f: &mut fmt::Formatter<'_>, indent: &str, tls: &Tls) -> fmt::Result {
    let mut file = |key: &str, path: &Path| {
        let path = path.display().to_string();
        writeln!(f, "{indent}{key}: {}", Quoted(&path))
    };
    if let Some(ca) = &tls.ca_file {
        file("ca-file", ca)?;
    }
    if let Some(identity) = &tls.identity {
        file("cert-file", &identity.cert_file)?;
        file("key-file", &identity.key_file)?;
    }
    Ok(())
}

fn millis(ms: u64) -> String {
    show(Duration::from_millis(ms))
}
