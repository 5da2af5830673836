//! The configuration in force, as YAML, without passwords.

use std::fmt;
use std::time::Duration;

use super::redis::join;
use super::value::show;
use super::{Config, RedisServers, RedisTopology, TenantField};

impl fmt::Display for TenantField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::RoutingKey => f.write_str("routing-key"),
            Self::Json(pointer) => write!(f, "json:{pointer}"),
        }
    }
}

impl fmt::Display for Config {
    /// The file that would give this configuration, with `***` for each password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The Debug form of a text is a YAML double-quoted text for all that passes the checks.
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
        writeln!(f, "  queue: {:?}", amqp.queue)?;
        writeln!(f, "  queue-type: {}", amqp.queue_type.name())?;
        writeln!(f, "  prefetch: {}", amqp.prefetch)?;
        writeln!(f, "redis:")?;
        redis_servers(f, &redis.url)?;
        writeln!(f, "  prefix: {:?}", redis.prefix)?;
        writeln!(f, "job:")?;
        writeln!(f, "  tenant: {:?}", job.tenant.to_string())?;
        let limit = &rate_limiter.policy.default_limits()[0];
        writeln!(f, "rate-limiter:")?;
        writeln!(f, "  use-algo: {}", limit.algorithm().name())?;
        writeln!(f, "  window-size: {}", millis(limit.window_ms()))?;
        writeln!(f, "  max-requests: {}", limit.max())?;
        writeln!(f, "  guard: {}", millis(limit.guard_ms()))?;
        writeln!(f, "  max-penalty: {}", show(rate_limiter.max_penalty))?;
        writeln!(f, "dispatch:")?;
        writeln!(f, "  concurrency: {}", dispatch.concurrency)?;
        writeln!(f, "  shutdown-timeout: {}", show(dispatch.shutdown_timeout))?;
        if let Some(http) = &dispatch.http {
            writeln!(f, "  http:")?;
            writeln!(f, "    url: \"{}\"", http.url)?;
            writeln!(f, "    timeout: {}", show(http.timeout))?;
        }
        writeln!(f, "delay:")?;
        writeln!(f, "  hold: {}", show(delay.hold))?;
        writeln!(f, "  max-delay: {}", show(delay.max_delay))?;
        writeln!(f, "retry:")?;
        writeln!(f, "  max-attempts: {}", retry.max_attempts)?;
        writeln!(f, "  initial-interval: {}", show(retry.initial_interval))?;
        writeln!(f, "  max-interval: {}", show(retry.max_interval))?;
        writeln!(f, "admin:")?;
        writeln!(f, "  listen: \"{}\"", admin.listen)?;
        writeln!(f, "log:")?;
        writeln!(f, "  format: {}", log.format.name())?;
        writeln!(f, "  level: {:?}", log.level)
    }
}

fn redis_servers(f: &mut fmt::Formatter<'_>, servers: &RedisServers) -> fmt::Result {
    writeln!(f, "  url: \"{}\"", join(&servers.urls))?;
    match &servers.topology {
        RedisTopology::Single => {}
        RedisTopology::Cluster => writeln!(f, "  cluster: true")?,
        RedisTopology::Sentinel(all) => writeln!(f, "  sentinels: \"{}\"", join(all))?,
    }
    if let Some(ca) = &servers.tls.ca {
        writeln!(f, "  ca-file: {:?}", ca.path())?;
    }
    if let Some(identity) = &servers.tls.identity {
        writeln!(f, "  cert-file: {:?}", identity.cert.path())?;
        writeln!(f, "  key-file: {:?}", identity.key.path())?;
    }
    Ok(())
}

fn millis(ms: u64) -> String {
    show(Duration::from_millis(ms))
}
