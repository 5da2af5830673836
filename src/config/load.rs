//! Puts the file, the environment and the defaults together, and reports everything that is wrong at once.

use std::path::Path;
use std::time::Duration;

use super::error::{ConfigErrors, Origin, Problem};
use super::file::{self, MAX_FILE};
use super::form::{self, show};
use super::keys::{LIMITS, PLANS, TENANTS};
use super::limits::{Reader, Tree};
use super::load_tls::TlsKeys;
use super::part::{FLAT, Part};
use super::value;
use super::values::{Values, read_bounded};
use super::yaml::Raw;
use super::{
    Admin, Amqp, Breaker, Config, DEFAULT_FILE, Delay, Dispatch, Fields, Http, Log, RateLimiter,
    Redis, Retry, env, keys,
};
use crate::rules::decision::LEASE_MS;
use crate::rules::limit::Unit;
use crate::rules::pushback::ThrottleScope;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
/// RabbitMQ closes a channel whose delivery is unacked for 30 minutes.
const LONGEST_CALL: Duration = Duration::from_secs(25 * 60);

impl Config {
    /// Reads the file at `path` (`None`: [`DEFAULT_FILE`], which may be missing), then `env`, whose
    /// `SLUICEGATE_…` variables win over the file, and checks everything.
    ///
    /// # Errors
    /// All problems, each with its place; no text of them holds a secret.
    pub fn load(
        path: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigErrors> {
        let file = path.unwrap_or(Path::new(DEFAULT_FILE));
        let name = file.display().to_string();
        let text = match read_bounded(file, MAX_FILE) {
            Ok(text) => text,
            Err(err) if path.is_none() && err.kind() == std::io::ErrorKind::NotFound => {
                String::new()
            }
            Err(err) => {
                let at = Origin::WholeFile(name.into());
                let problem = Problem::new(at, format!("can't be read: {err}"));
                return Err(ConfigErrors::new(vec![problem]));
            }
        };
        Self::parse(&name, &text, env)
    }

    /// As [`Config::load`], with the file's text; `name` is what errors call it, and relative paths in it
    /// start from its folder.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(
        name: &str,
        text: &str,
        env: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigErrors> {
        let (env, mut problems) = env::parse(env);
        let file = match file::parse(name, text) {
            Ok((file, wrong)) => {
                problems.extend(wrong);
                file
            }
            Err(problem) => {
                problems.push(problem);
                Vec::new()
            }
        };
        let mut values = Values {
            file,
            env,
            folder: Path::new(name)
                .parent()
                .map(Path::to_path_buf)
                .unwrap_or_default(),
            problems,
        };
        match values.config() {
            Some(config) if values.problems.is_empty() => Ok(config),
            _ => Err(ConfigErrors::new(values.problems)),
        }
    }
}

impl Default for Config {
    /// Every key at its default; `dispatch.http` has none.
    fn default() -> Self {
        Self::parse(DEFAULT_FILE, "", std::iter::empty())
            .expect("the defaults are valid: a unit test parses them")
    }
}

impl Values {
    /// The checked configuration; `None` or problems when there is something wrong.
    fn config(&mut self) -> Option<Config> {
        // Each part is read before the first `?`, so that one run reports all that is wrong.
        let amqp = self.amqp();
        let redis = self.redis();
        let tenant = self.get("job.tenant", value::tenant_field);
        let cost = self.get("job.cost", value::value_field);
        let deadline = self.get("job.deadline", value::value_field);
        let rate_limiter = self.rate_limiter();
        let dispatch = self.dispatch();
        let delay = self.delay();
        let retry = self.retry();
        let admin = self.admin();
        let format = self.get("log.format", value::log_format);
        let level = self.get("log.level", value::log_level);
        if let (Some(redis), Some(limiter)) = (&redis, &rate_limiter)
            && let Some(words) = redis.misfit(&limiter.policy)
        {
            let key = match self.entry(LIMITS) {
                Some(_) => LIMITS,
                None => "rate-limiter.scope",
            };
            return self.wrong(key, words);
        }
        Some(Config {
            amqp: amqp?,
            redis: redis?,
            job: Fields {
                tenant: tenant?,
                cost: cost?,
                deadline,
            },
            rate_limiter: rate_limiter?,
            dispatch: dispatch?,
            delay: delay?,
            retry: retry?,
            admin: admin?,
            log: Log {
                format: format?,
                level: level?,
            },
        })
    }

    fn amqp(&mut self) -> Option<Amqp> {
        let url = self.amqp_servers();
        const TLS: TlsKeys = ["amqp.ca-file", "amqp.cert-file", "amqp.key-file"];
        let tls = self.tls(TLS);
        let queue = self.get("amqp.queue", value::queue);
        let queue_type = self.get("amqp.queue-type", value::queue_type);
        let prefetch = self.get("amqp.prefetch", |raw| {
            form::integer(raw, 1, u16::MAX.into())
        });
        let url = url?;
        if !url.urls[0].has_scheme("amqps") {
            self.tls_unused(TLS, "amqp.url begin with amqps://")?;
        }
        Some(Amqp {
            url,
            tls: tls?,
            queue: queue?,
            queue_type: queue_type?,
            prefetch: u16::try_from(prefetch?).ok()?,
        })
    }

    fn redis(&mut self) -> Option<Redis> {
        let url = self.redis_servers();
        let prefix = self.get("redis.prefix", value::prefix);
        Some(Redis {
            url: url?,
            prefix: prefix?,
        })
    }

    fn rate_limiter(&mut self) -> Option<RateLimiter> {
        let mut flat = Part::default();
        for name in FLAT {
            let key = format!("rate-limiter.{name}");
            let (raw, at) = match self.entry(&key) {
                Some(entry) => (entry.raw.clone(), entry.at.clone()),
                None => match keys::find(&key)?.default {
                    Some(default) => (Raw::Text(default.to_owned()), Origin::Default),
                    None => continue,
                },
            };
            if let Err(words) = flat.set(name, &raw, &at, &key) {
                self.wrong::<()>(&key, words);
            }
        }
        let max_penalty = self.get("rate-limiter.max-penalty", |raw| {
            form::duration(raw, SECOND, DAY * 7)
        });
        let guard_budget = self.get("rate-limiter.guard-budget", value::guard_budget);
        let throttle_scope = self.get("rate-limiter.throttle-scope", |raw| {
            form::choice(raw, &ThrottleScope::NAMES)
        });
        let key = "rate-limiter.plan-header";
        let plan_header = match self.entry(key) {
            Some(_) => Some(self.get(key, value::header_name)?),
            None => None,
        };
        let [limits, plans, tenants] = [LIMITS, PLANS, TENANTS].map(|key| self.tree(key));
        let mut reader = Reader {
            problems: &mut self.problems,
            flat: &flat,
            global: None,
            unit: Unit::Cost,
        };
        Some(RateLimiter {
            policy: reader.policy(&limits, &plans, &tenants, plan_header)?,
            max_penalty: max_penalty?,
            guard_budget: guard_budget?,
            throttle_scope: throttle_scope?,
        })
    }

    /// The list or mapping at `key`, with where it stands.
    fn tree(&self, key: &str) -> Tree {
        let entry = self.entry(key)?;
        Some((entry.raw.clone(), entry.at.clone()))
    }

    fn dispatch(&mut self) -> Option<Dispatch> {
        let concurrency = self.get("dispatch.concurrency", |raw| form::integer(raw, 1, 10_000));
        let shutdown_timeout = self.get("dispatch.shutdown-timeout", |raw| {
            form::duration(raw, Duration::ZERO, HOUR)
        });
        let breaker = self.breaker();
        let example = "https://api.example.com/jobs";
        let must = format!("a url such as {example}");
        let url = self.secret(
            "dispatch.http.url",
            "dispatch.http.url-file",
            &must,
            false,
            |text| value::secret_url(text, ["http", "https"], example),
        );
        let http2 = self.get("dispatch.http.http2", form::boolean);
        let timeout = self.get("dispatch.http.timeout", |raw| {
            form::duration(raw, Duration::from_millis(1), LONGEST_CALL)
        });
        let abandoned = self.get("dispatch.http.abandoned", |raw| {
            form::duration(raw, Duration::ZERO, Duration::from_millis(LEASE_MS))
        });
        const TLS: TlsKeys = [
            "dispatch.http.ca-file",
            "dispatch.http.cert-file",
            "dispatch.http.key-file",
        ];
        let tls = self.tls(TLS);
        let headers = self.headers(url.as_ref().and_then(Option::as_ref));
        let answers = self.answers();
        let (url, tls, headers, http2) = (url?, tls?, headers?, http2?);
        let (answers, timeout, abandoned) = (answers?, timeout?, abandoned?);
        if let Some(url) = &url
            && !url.has_scheme("https")
        {
            self.tls_unused(TLS, "dispatch.http.url begin with https://")?;
        }
        let breaker = breaker?;
        Some(Dispatch {
            breaker,
            concurrency: usize::try_from(concurrency?).ok()?,
            shutdown_timeout: shutdown_timeout?,
            http: url.map(|url| Http {
                url,
                tls,
                headers,
                answers,
                http2,
                timeout,
                abandoned,
            }),
        })
    }

    fn admin(&mut self) -> Option<Admin> {
        let listen = self.get("admin.listen", value::listen);
        let token = self.secret(
            "admin.token",
            "admin.token-file",
            value::TOKEN,
            false,
            value::token,
        );
        Some(Admin {
            listen: listen?,
            token: token?,
        })
    }

    fn delay(&mut self) -> Option<Delay> {
        let hold = self.get("delay.hold", |raw| {
            form::duration(raw, Duration::ZERO, Duration::from_secs(60))
        });
        let max_delay = self.get("delay.max-delay", |raw| form::duration(raw, SECOND, DAY));
        let (hold, max_delay) = (hold?, max_delay?);
        if max_delay < hold {
            return self.wrong_pair(("delay.max-delay", max_delay), ("delay.hold", hold));
        }
        Some(Delay { hold, max_delay })
    }

    /// `Some(None)`: it is not enabled.
    fn breaker(&mut self) -> Option<Option<Breaker>> {
        let enabled = self.get("dispatch.breaker.enabled", form::boolean);
        let failures = self.get("dispatch.breaker.failures", |raw| {
            form::integer(raw, 1, 1_000)
        });
        let shortest = Duration::from_millis(10);
        let intervals = self.intervals("dispatch.breaker", (shortest, HOUR));
        let (initial_interval, max_interval) = intervals?;
        let breaker = Breaker {
            failures: u32::try_from(failures?).ok()?,
            initial_interval,
            max_interval,
        };
        Some(enabled?.then_some(breaker))
    }

    fn retry(&mut self) -> Option<Retry> {
        let max_attempts = self.get("retry.max-attempts", |raw| form::integer(raw, 1, 1_000_000));
        let give_up_after = self.get("retry.give-up-after", |raw| {
            form::duration(raw, SECOND, DAY * 365)
        });
        let max_crashes = self.get("retry.max-crashes", |raw| form::integer(raw, 0, 1_000));
        let intervals = self.intervals("retry", (Duration::from_millis(1), DAY));
        let (initial_interval, max_interval) = intervals?;
        Some(Retry {
            max_attempts: u32::try_from(max_attempts?).ok()?,
            initial_interval,
            max_interval,
            give_up_after: give_up_after?,
            max_crashes: u32::try_from(max_crashes?).ok()?,
        })
    }

    /// `initial-interval` and `max-interval` of `section`, each within these bounds.
    fn intervals(
        &mut self,
        section: &str,
        (shortest, longest): (Duration, Duration),
    ) -> Option<(Duration, Duration)> {
        let names = ["initial-interval", "max-interval"].map(|name| format!("{section}.{name}"));
        let [initial, max] = [&names[0], &names[1]]
            .map(|key| self.get(key, |raw| form::duration(raw, shortest, longest)));
        let (initial, max) = (initial?, max?);
        if max < initial {
            return self.wrong_pair((names[1].as_str(), max), (names[0].as_str(), initial));
        }
        Some((initial, max))
    }

    /// Reports that `low` is above `high`, at the one of them that was set.
    fn wrong_pair<T>(&mut self, high: (&str, Duration), low: (&str, Duration)) -> Option<T> {
        let (at, words) = if self.origin(high.0) == Origin::Default {
            let words = format!("is {}; it must be at most {}", show(low.1), high.0);
            (low.0, format!("{words}, which is {}", show(high.1)))
        } else {
            let words = format!("is {}; it must be at least {}", show(high.1), low.0);
            (high.0, format!("{words}, which is {}", show(low.1)))
        };
        self.wrong(at, words)
    }
}
