//! All keys of all sections, and suggestions for unknown ones.

use std::sync::LazyLock;

use super::reading::key::is_in;
use super::reading::{ConfigKey, closest};
use super::sections::http::oauth2;
use super::sections::rate_limiter::limit_keys;
use super::sections::{
    admin, amqp, breaker, delay, dispatch, exec, forward, http, job, log, redis, results, retry,
};
use super::values::pipeline_name::PIPELINES;

/// The keys of each section, in the order of the reference page.
const SECTIONS: [&[&ConfigKey]; 15] = [
    amqp::KEYS,
    redis::KEYS,
    job::KEYS,
    limit_keys::KEYS,
    dispatch::KEYS,
    http::KEYS,
    oauth2::KEYS,
    exec::KEYS,
    forward::KEYS,
    breaker::KEYS,
    results::KEYS,
    delay::KEYS,
    retry::KEYS,
    admin::KEYS,
    log::KEYS,
];

/// All keys, in the order of the reference page.
pub static KEYS: LazyLock<Vec<&ConfigKey>> = LazyLock::new(|| SECTIONS.concat());

/// A key of items of `rate-limiter.limits` that users also write directly below `rate-limiter`.
pub(super) const LIST_KEY: &str = "rate-limiter.max-concurrent";

/// Returns the key with the path `path`.
pub(super) fn find(path: &str) -> Option<&'static ConfigKey> {
    KEYS.iter().find(|key| key.path == path).copied()
}

/// Returns true if `path` is a mapping that contains keys.
pub(super) fn is_section(path: &str) -> bool {
    path.is_empty() || KEYS.iter().any(|key| is_in(key.path, path))
}

/// Suggests a key for the unknown `name` in `section`: the closest name there, or else a key
/// elsewhere with this name or one close to it.
pub(super) fn suggest(section: &str, name: &str) -> Option<String> {
    let own = KEYS.iter().filter_map(|key| match section {
        "" => Some(key.path),
        section => key.path.strip_prefix(section)?.strip_prefix('.'),
    });
    let here = own.filter_map(|rest| rest.split('.').next());
    let here = here.chain(section.is_empty().then_some(PIPELINES));
    if let Some(close) = closest(name, here) {
        return Some(close.to_owned());
    }
    let meant = closest(name, KEYS.iter().map(|key| key.name()))?;
    let full = KEYS.iter().find(|key| key.name() == meant)?;
    Some(full.path.to_owned())
}

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
        let mut names: Vec<_> = KEYS.iter().map(|key| key.env_name()).collect();
        assert!(names.contains(&"SLUICEGATE_AMQP__URL_FILE".to_owned()));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), KEYS.len());
    }
}
