//! The whole configuration of one pipeline. Assembles it from the file, the environment and the
//! defaults, reports all problems at once, shows the configuration, and merges live changes into
//! it.

use std::fmt;
use std::mem::take;

use super::features::OPTIONAL_FEATURES;
use super::keys::KEYS;
use super::reading::{AppliesAt, ConfigInput, ConfigKey, ShownValues};
use super::sections::admin::Admin;
use super::sections::amqp::{Amqp, CONSUMER_TIMEOUT, too_short};
use super::sections::delay::{DelayConfig, MAX_IN_MEMORY};
use super::sections::dispatch::Dispatch;
use super::sections::log::Log;
use super::sections::rate_limiter::RateLimiter;
use super::sections::rate_limiter::limit_keys::{LIMITS, SCOPE};
use super::sections::redis::Redis;
use super::sections::section::{Section as _, section};
use rules::failures::retry::RetryPolicy;
use rules::job::Fields;

/// The configuration file that is read if no other is named.
pub const DEFAULT_FILE: &str = "sluicegate.yaml";

section! {
    /// The checked configuration of a worker, from a file and the environment.
    ///
    /// `Display` shows it as a file, without secrets.
    #[derive(Debug, Clone, PartialEq)]
    pub struct Config {
        /// RabbitMQ.
        #[doc(hidden)]
        pub amqp: Amqp = Amqp::read,
        /// Redis.
        #[doc(hidden)]
        pub redis: Redis = Redis::read,
        /// Locations of a job's fields.
        #[doc(hidden)]
        pub job: Fields = Fields::read,
        /// Limits.
        #[doc(hidden)]
        pub rate_limiter: RateLimiter = RateLimiter::read,
        /// How jobs run.
        #[doc(hidden)]
        pub dispatch: Dispatch = Dispatch::read,
        /// How jobs wait.
        #[doc(hidden)]
        pub delay: DelayConfig = DelayConfig::read,
        /// How failed jobs are tried again.
        #[doc(hidden)]
        pub retry: RetryPolicy = RetryPolicy::read,
        /// Metrics and health.
        #[doc(hidden)]
        pub admin: Admin = Admin::read,
        /// Logs.
        #[doc(hidden)]
        pub log: Log = Log::read,
        /// The keys that are set, with their values.
        pub(super) shown: ShownValues = |input: &mut ConfigInput| Some(take(&mut input.shown)),
    }
    |input| {
        if let (Some(redis), Some(limiter)) = (&redis, &rate_limiter) {
            let list = input.entry(&LIMITS.key).map(|_| &LIMITS.key);
            let key = list.unwrap_or(&SCOPE.key);
            input.check(key, redis.incompatibility(&limiter.policy))?;
        }
        let (timeout, call) = (amqp.as_ref()?.consumer_timeout, dispatch.as_ref()?.call_timeout());
        input.check(&CONSUMER_TIMEOUT.key, too_short(timeout, call))?;
        let call = dispatch.as_ref()?.carried();
        let job = Some(Fields { call, ..job? });
    }
}

impl Default for Config {
    /// Returns the configuration with every key at its default; `dispatch.http` is not set.
    fn default() -> Self {
        Self::parse(DEFAULT_FILE, "", std::iter::empty())
            .expect("the defaults are valid: a unit test parses them")
    }
}

impl Config {
    /// Returns this configuration with the changes in `new` that a running worker can apply.
    #[doc(hidden)]
    pub fn with_live(&self, new: &Self) -> Self {
        let mut config = self.clone();
        config.rate_limiter.take_live(&new.rate_limiter);
        (config.rate_limiter.policy).clone_from(&new.rate_limiter.policy);
        config.dispatch.take_live(&new.dispatch);
        config.delay.take_live(&new.delay);
        config.delay.max_in_memory = config.delay.max_in_memory.min(config.delay.max_delay);
        config.retry.take_live(&new.retry);
        let live = KEYS.iter().filter(|key| key.applies_at == AppliesAt::Live);
        config.shown.take(live, &new.shown);
        let in_memory = &config.delay.max_in_memory;
        config.shown.set(&MAX_IN_MEMORY.key, in_memory);
        config
    }

    /// Returns why values that [`Config::with_live`] took from two configurations do not fit
    /// together, or `None` if they do.
    #[doc(hidden)]
    pub fn conflict(&self) -> Option<String> {
        let limiter = &self.rate_limiter;
        let keys = self.redis.incompatibility(&limiter.policy);
        keys.or_else(|| limiter.conflict())
    }

    /// Returns the keys whose values differ in `new` and take effect only after a restart.
    #[doc(hidden)]
    pub fn restart_keys(&self, new: &Self) -> Vec<&'static str> {
        let differ = |key: &&&ConfigKey| self.shown.get(key) != new.shown.get(key);
        let keys = KEYS
            .iter()
            .filter(|key| key.applies_at == AppliesAt::Restart);
        keys.filter(differ).map(|key| key.path).collect()
    }
}

impl fmt::Display for Config {
    /// Writes a file that yields this configuration, with `***` for each password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown.write(f, &KEYS, 0)
    }
}

impl ConfigInput {
    /// Returns the checked configuration, or `None` if there is a problem.
    pub(super) fn config(&mut self) -> Option<Config> {
        self.check_features(&OPTIONAL_FEATURES);
        Config::read(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::key::{ValueKind, env_name};

    /// Values other than the defaults, as written in the file.
    const EXAMPLES: &str = include_str!("examples.txt");

    /// Parses a file that has a URL, `key: value`, and the other keys without which `key` has no
    /// meaning.
    fn with(key: &ConfigKey, value: &str) -> Config {
        let yaml = match key.path {
            "rate-limiter.burst" => "rate-limiter: {use-algo: token-bucket-algo, burst: 2}",
            "rate-limiter.time-zone" | "rate-limiter.starts" => {
                "rate-limiter: {use-algo: fixed-window-algo, window-size: day}"
            }
            "dispatch.http.url" => "dispatch: {http: {url: 'http://another/'}}",
            "dispatch.http.sign" => {
                "dispatch: {http: {url: 'http://base/', sign-secrets: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw}}"
            }
            "redis.scripts" => {
                "{redis: {prefix: '{base}'}, dispatch: {http: {url: 'http://base/'}}}"
            }
            path if path.starts_with("dispatch.http.oauth2.") => {
                "dispatch: {http: {url: 'http://base/', oauth2: {token-url: 'http://base/', client-id: base, client-secret: base}}}"
            }
            path if path.starts_with("dispatch.exec.") => "dispatch: {exec: {command: [base]}}",
            path if path.starts_with("dispatch.forward.") => {
                "dispatch: {forward: {exchange: base}}"
            }
            _ => "dispatch: {http: {url: 'http://base/'}}",
        };
        let set = (!value.is_empty()).then(|| (env_name(key.path), value.to_owned()));
        Config::parse("c.yaml", yaml, set.into_iter())
            .unwrap_or_else(|errors| panic!("{}: {errors}", key.path))
    }

    #[test]
    fn each_key_is_read_shown_and_applied_as_it_is_declared() {
        for key in KEYS.iter().copied() {
            assert!(key.about.ends_with('.'), "{}: {}", key.path, key.about);
            // A file must exist; other tests create some.
            if matches!(key.kind, ValueKind::File(_)) {
                continue;
            }
            // The only limit can't be a shadow, and several limits are shown as a list.
            if key.path == "rate-limiter.shadow" {
                continue;
            }
            let mut examples = EXAMPLES.lines().filter_map(|line| line.split_once(": "));
            let example = examples.find(|(path, _)| *path == key.path);
            let (_, example) = example.expect(key.path);
            let (old, new) = (with(key, ""), with(key, example));
            let is = |config: &Config| config.shown.get(key).cloned();
            assert!(
                is(&old) != is(&new),
                "{}: its example is not shown",
                key.path
            );
            let changed = old.with_live(&new);
            let restart = old.restart_keys(&new);
            match key.applies_at {
                AppliesAt::Live => {
                    assert_eq!(changed, new, "{} is not applied", key.path);
                    assert_eq!(restart, [""; 0], "{}", key.path);
                }
                AppliesAt::Restart => {
                    assert_eq!(changed, old, "{} is applied", key.path);
                    assert!(restart.contains(&key.path), "{}: {restart:?}", key.path);
                }
            }
            // The output is a file with the same meaning, except for secrets.
            let (shown, again) = (new.to_string(), |config: &Config| {
                let signs = key.path.starts_with("dispatch.http.sign");
                let secret = match signs {
                    true => "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                    false => "0123456789abcdef",
                };
                let text = config.to_string().replace("***", secret);
                Config::parse("c.yaml", &text, std::iter::empty()).expect(key.path)
            });
            assert_eq!(again(&new).to_string(), shown, "{}", key.path);
            if let Some(default) = key.default {
                assert_eq!(with(key, default), with(key, ""), "{}", key.path);
            }
        }
    }

    #[test]
    fn a_changed_secret_is_a_change_though_it_is_not_shown() {
        let of = |password: &str| {
            let yaml = format!("redis: {{url: 'redis://:{password}@h'}}");
            Config::parse("c.yaml", &yaml, std::iter::empty()).expect("valid")
        };
        let (old, new) = (of("one"), of("two"));
        assert_eq!(old.to_string(), new.to_string());
        assert_eq!(old.restart_keys(&new), ["redis.url"]);
        assert_eq!(old.restart_keys(&old), [""; 0]);
    }
}
