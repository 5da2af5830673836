//! Every key there is, with its default: the one table behind the file, the environment, the suggestions
//! and the documentation's test.

/// A key of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Its path, such as `rate-limiter.window-size`.
    pub path: &'static str,
    /// Its default, as it would stand in the file; `None`: it has none.
    pub default: Option<&'static str>,
}

const fn key(path: &'static str, default: &'static str) -> Key {
    Key {
        path,
        default: Some(default),
    }
}

const fn unset(path: &'static str) -> Key {
    Key {
        path,
        default: None,
    }
}

impl Key {
    /// Its value is a list or a mapping, which is read as a whole.
    pub fn is_tree(&self) -> bool {
        [LIMITS, PLANS, TENANTS, HEADERS, ANSWERS].contains(&self.path)
    }
}

/// Several limits at once.
pub(super) const LIMITS: &str = "rate-limiter.limits";
/// Sets of limits by name.
pub(super) const PLANS: &str = "rate-limiter.plans";
/// What single tenants have instead.
pub(super) const TENANTS: &str = "rate-limiter.tenants";
/// What each call of the API carries.
pub(super) const HEADERS: &str = "dispatch.http.headers";
/// The file that holds more of them.
pub(super) const HEADERS_FILE: &str = "dispatch.http.headers-file";

/// What the API's answers mean.
pub(super) const ANSWERS: &str = "dispatch.http.answers";

/// All keys, in the order of the documentation.
pub const KEYS: &[Key] = &[
    key("amqp.url", "amqp://guest:guest@127.0.0.1:5672/%2f"),
    unset("amqp.url-file"),
    unset("amqp.ca-file"),
    unset("amqp.cert-file"),
    unset("amqp.key-file"),
    key("amqp.queue", "jobs"),
    key("amqp.queue-type", "quorum"),
    key("amqp.prefetch", "500"),
    key("redis.url", "redis://127.0.0.1:6379"),
    unset("redis.url-file"),
    unset("redis.cluster"),
    unset("redis.sentinels"),
    unset("redis.sentinels-file"),
    unset("redis.ca-file"),
    unset("redis.cert-file"),
    unset("redis.key-file"),
    key("redis.prefix", "rlaas:rate_limit"),
    key("job.tenant", "header:x-tenant"),
    key("job.cost", "header:x-cost"),
    unset("job.deadline"),
    key("rate-limiter.use-algo", "sliding-window-algo"),
    key("rate-limiter.window-size", "60"),
    key("rate-limiter.max-requests", "5"),
    unset("rate-limiter.burst"),
    key("rate-limiter.unit", "cost"),
    key("rate-limiter.guard", "auto"),
    key("rate-limiter.guard-budget", "1%"),
    key("rate-limiter.scope", "tenant"),
    unset(LIMITS),
    unset(PLANS),
    unset(TENANTS),
    unset("rate-limiter.plan-header"),
    key("rate-limiter.max-penalty", "1h"),
    key("rate-limiter.throttle-scope", "auto"),
    key("dispatch.concurrency", "64"),
    key("dispatch.shutdown-timeout", "30s"),
    unset("dispatch.http.url"),
    unset("dispatch.http.url-file"),
    unset(HEADERS),
    unset(HEADERS_FILE),
    unset("dispatch.http.ca-file"),
    unset("dispatch.http.cert-file"),
    unset("dispatch.http.key-file"),
    key("dispatch.http.http2", "true"),
    key("dispatch.http.timeout", "10s"),
    key("dispatch.http.abandoned", "60s"),
    unset(ANSWERS),
    key("dispatch.breaker.enabled", "true"),
    key("dispatch.breaker.failures", "5"),
    key("dispatch.breaker.initial-interval", "1s"),
    key("dispatch.breaker.max-interval", "30s"),
    key("delay.hold", "500ms"),
    key("delay.max-delay", "5m"),
    key("retry.max-attempts", "5"),
    key("retry.initial-interval", "1s"),
    key("retry.max-interval", "5m"),
    key("retry.give-up-after", "7d"),
    key("retry.max-crashes", "5"),
    key("admin.listen", "127.0.0.1:9464"),
    unset("admin.token"),
    unset("admin.token-file"),
    key("log.format", "text"),
    key("log.level", "info"),
];

/// Keys that the design names and this version has not: refused with what to use instead.
pub(super) const NOT_BUILT: &[(&str, &str)] = &[
    ("rate-limiter.max-concurrent", MAX_CONCURRENT),
    (
        "dispatch.exec",
        "commands as handlers are not built yet; use dispatch.http",
    ),
    (
        "dispatch.forward",
        "forwarding to a queue is not built yet; use dispatch.http",
    ),
];

/// Why `max-concurrent` is refused outside of a list.
pub(super) const MAX_CONCURRENT: &str = "is a limit of its own; put it into a list, such as limits: [{name: minute}, {name: running, max-concurrent: 5}]";

/// The key at `path`.
pub(super) fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// `path` is a mapping that holds keys.
pub(super) fn is_section(path: &str) -> bool {
    path.is_empty()
        || KEYS.iter().any(|key| {
            key.path
                .strip_prefix(path)
                .is_some_and(|rest| rest.starts_with('.'))
        })
}

/// Why `path` is refused although the design has it.
pub(super) fn not_built(path: &str) -> Option<&'static str> {
    NOT_BUILT
        .iter()
        .find(|(key, _)| {
            path.strip_prefix(key)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
        .map(|(_, why)| *why)
}

/// What the user may have meant by the unknown key `name` in the section `section`: the closest name
/// there, else a key of this name (or close to it) elsewhere.
pub(super) fn suggest(section: &str, name: &str) -> Option<String> {
    let mut here: Vec<&str> = Vec::new();
    for key in KEYS {
        let rest = if section.is_empty() {
            Some(key.path)
        } else {
            key.path
                .strip_prefix(section)
                .and_then(|rest| rest.strip_prefix('.'))
        };
        if let Some(first) = rest.and_then(|rest| rest.split('.').next()) {
            here.push(first);
        }
    }
    if let Some(close) = closest(name, here) {
        return Some(close.to_owned());
    }
    let leaf = |path: &'static str| path.rsplit('.').next().unwrap_or(path);
    let meant = closest(name, KEYS.iter().map(|key| leaf(key.path)))?;
    let full = KEYS.iter().find(|key| leaf(key.path) == meant)?;
    Some(full.path.to_owned())
}

/// The one of `names` that is a typing error away from `name`, without regard to case, `_` and `-`.
pub fn closest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace('_', "-");
    let wanted = plain(name);
    names
        .into_iter()
        .map(|known| {
            let distance = strsim::damerau_levenshtein(&wanted, &plain(known));
            (distance, known)
        })
        // A third of the letters may differ, so that short names do not match anything.
        .filter(|(distance, known)| *distance <= (known.len() / 3).clamp(1, 6))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// The environment variable that sets `path`: `rate-limiter.use-algo` is `SLUICEGATE_RATE_LIMITER__USE_ALGO`.
pub fn env_name(path: &str) -> String {
    let name = path.replace('.', "__").replace('-', "_").to_uppercase();
    format!("{PREFIX}{name}")
}

/// What the name of each of our environment variables begins with.
pub const PREFIX: &str = "SLUICEGATE_";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions_come_from_the_section_first() {
        for (section, name, meant) in [
            ("", "rate-limitter", Some("rate-limiter")),
            ("", "rateLimiter", Some("rate-limiter")),
            ("", "rate_limiter", Some("rate-limiter")),
            ("rate-limiter", "window_size", Some("window-size")),
            ("rate-limiter", "use-alog", Some("use-algo")),
            ("", "window-size", Some("rate-limiter.window-size")),
            ("rate-limiter", "concurency", Some("dispatch.concurrency")),
            ("amqp", "uri", Some("url")),
            ("amqp", "colour", None),
        ] {
            assert_eq!(suggest(section, name).as_deref(), meant, "{section} {name}");
        }
    }

    #[test]
    fn environment_names_are_unique() {
        let mut names: Vec<_> = KEYS.iter().map(|key| env_name(key.path)).collect();
        assert!(names.contains(&"SLUICEGATE_AMQP__URL_FILE".to_owned()));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), KEYS.len());
    }
}
