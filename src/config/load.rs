//! Puts the file, the environment and the defaults together, and reports everything that is wrong at once.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::{ConfigErrors, Origin, Problem, shown};
use super::file::{self, Entry, MAX_FILE};
use super::keys::{LIMITS, PLANS, TENANTS};
use super::limits::{Reader, Tree};
use super::part::{FLAT, Part};
use super::value::{self, Wrong, show};
use super::yaml::{self, Raw};
use super::{
    Admin, Amqp, Config, DEFAULT_FILE, Delay, Dispatch, Fields, Http, Log, RateLimiter, Redis,
    Retry, env, keys,
};
use crate::rules::limit::Unit;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
/// The largest file with a url, in bytes.
const LONGEST_SECRET: u64 = 16 << 10;
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

/// What was set, by whom, and what was found wrong so far.
pub(super) struct Values {
    file: Vec<Entry>,
    env: Vec<Entry>,
    folder: PathBuf,
    problems: Vec<Problem>,
}

impl Values {
    /// The checked configuration; `None` or problems when there is something wrong.
    fn config(&mut self) -> Option<Config> {
        // Each part is read before the first `?`, so that one run reports all that is wrong.
        let amqp = self.amqp();
        let redis = self.redis();
        let tenant = self.get("job.tenant", value::tenant_field);
        let cost = self.get("job.cost", value::cost_field);
        let rate_limiter = self.rate_limiter();
        let dispatch = self.dispatch();
        let delay = self.delay();
        let retry = self.retry();
        let listen = self.get("admin.listen", value::listen);
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
            },
            rate_limiter: rate_limiter?,
            dispatch: dispatch?,
            delay: delay?,
            retry: retry?,
            admin: Admin { listen: listen? },
            log: Log {
                format: format?,
                level: level?,
            },
        })
    }

    fn amqp(&mut self) -> Option<Amqp> {
        let url = self.amqp_servers();
        let ca_file = self.ca_file("amqp.ca-file");
        let queue = self.get("amqp.queue", value::queue);
        let queue_type = self.get("amqp.queue-type", value::queue_type);
        let prefetch = self.get("amqp.prefetch", |raw| {
            value::integer(raw, 1, u16::MAX.into())
        });
        Some(Amqp {
            url: url?,
            ca_file: ca_file?,
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
            value::duration(raw, SECOND, DAY * 7)
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
        })
    }

    /// The list or mapping at `key`, with where it stands.
    fn tree(&self, key: &str) -> Tree {
        let entry = self.entry(key)?;
        Some((entry.raw.clone(), entry.at.clone()))
    }

    fn dispatch(&mut self) -> Option<Dispatch> {
        let concurrency = self.get("dispatch.concurrency", |raw| value::integer(raw, 1, 10_000));
        let shutdown_timeout = self.get("dispatch.shutdown-timeout", |raw| {
            value::duration(raw, Duration::ZERO, HOUR)
        });
        let example = "https://api.example.com/jobs";
        let url = self.secret(
            "dispatch.http.url",
            "dispatch.http.url-file",
            example,
            false,
            |text| value::secret_url(text, ["http", "https"], example),
        );
        let timeout = self.get("dispatch.http.timeout", |raw| {
            value::duration(raw, Duration::from_millis(1), LONGEST_CALL)
        });
        let timeout = timeout?;
        Some(Dispatch {
            concurrency: usize::try_from(concurrency?).ok()?,
            shutdown_timeout: shutdown_timeout?,
            http: url?.map(|url| Http { url, timeout }),
        })
    }

    fn delay(&mut self) -> Option<Delay> {
        let hold = self.get("delay.hold", |raw| {
            value::duration(raw, Duration::ZERO, Duration::from_secs(60))
        });
        let max_delay = self.get("delay.max-delay", |raw| value::duration(raw, SECOND, DAY));
        let (hold, max_delay) = (hold?, max_delay?);
        if max_delay < hold {
            return self.wrong_pair(("delay.max-delay", max_delay), ("delay.hold", hold));
        }
        Some(Delay { hold, max_delay })
    }

    fn retry(&mut self) -> Option<Retry> {
        let max_attempts = self.get("retry.max-attempts", |raw| {
            value::integer(raw, 1, 1_000_000)
        });
        let shortest = Duration::from_millis(1);
        let initial = self.get("retry.initial-interval", |raw| {
            value::duration(raw, shortest, DAY)
        });
        let max = self.get("retry.max-interval", |raw| {
            value::duration(raw, shortest, DAY)
        });
        let (initial_interval, max_interval) = (initial?, max?);
        if max_interval < initial_interval {
            return self.wrong_pair(
                ("retry.max-interval", max_interval),
                ("retry.initial-interval", initial_interval),
            );
        }
        Some(Retry {
            max_attempts: u32::try_from(max_attempts?).ok()?,
            initial_interval,
            max_interval,
        })
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

    pub(super) fn entry(&self, key: &str) -> Option<&Entry> {
        let find = |entries: &'_ [Entry]| entries.iter().position(|entry| entry.path == key);
        match find(&self.env) {
            Some(at) => self.env.get(at),
            None => self.file.get(find(&self.file)?),
        }
    }

    fn origin(&self, key: &str) -> Origin {
        self.entry(key)
            .map_or(Origin::Default, |entry| entry.at.clone())
    }

    pub(super) fn wrong<T>(&mut self, key: &str, words: impl std::fmt::Display) -> Option<T> {
        let problem = Problem::of(&self.origin(key), key, words);
        self.problems.push(problem);
        None
    }

    /// The value of `key`, or of its default; `None` after a problem, which is kept.
    pub(super) fn get<T>(
        &mut self,
        key: &str,
        parse: impl FnOnce(&Raw) -> Result<T, Wrong>,
    ) -> Option<T> {
        let parsed = match self.entry(key) {
            Some(entry) => parse(&entry.raw),
            None => {
                let default = keys::find(key)?.default?;
                parse(&Raw::Text(default.to_owned()))
            }
        };
        match parsed {
            Ok(value) => Some(value),
            Err(words) => self.wrong(key, words),
        }
    }

    /// What `read` makes of the url at `key`, or in the file that `file_key` names; `Some(None)`: neither is set and
    /// there is no default. The environment's pair wins over the file's. With `several` a list may stand there, which
    /// is read with commas between its urls.
    pub(super) fn secret<T>(
        &mut self,
        key: &'static str,
        file_key: &'static str,
        example: &str,
        several: bool,
        read: impl Fn(&str) -> Result<T, Wrong>,
    ) -> Option<Option<T>> {
        let pair = |entries: &[Entry]| {
            let of = |key| entries.iter().find(|entry| entry.path == key).cloned();
            match (of(key), of(file_key)) {
                (None, None) => None,
                pair => Some(pair),
            }
        };
        let (url, file) = match pair(&self.env).or_else(|| pair(&self.file)) {
            Some((Some(_), Some(file))) => {
                let words = format!("{key} is set too; keep one of them");
                self.problems.push(Problem::of(&file.at, file_key, words));
                return None;
            }
            Some(pair) => pair,
            None => (None, None),
        };
        let (at, name, parsed) = match (url, file) {
            (Some(entry), _) => {
                let text = match &entry.raw {
                    Raw::Text(text) => Ok(text.clone()),
                    Raw::List(urls) if several => yaml::joined(urls).ok_or_else(|| {
                        format!("holds no urls alone; each must be one such as {example}")
                    }),
                    Raw::List(_) => Err(format!("is a list; it must be a url such as {example}")),
                    Raw::Null => Err(format!("is empty; it must be a url such as {example}")),
                    _ => Err(format!("is no text; it must be a url such as {example}")),
                };
                let parsed = text.and_then(|text| read(&text));
                (entry.at, key, parsed)
            }
            (None, Some(entry)) => {
                let what = "the path of a file that holds the url";
                let text = self.named_file(&entry, what, LONGEST_SECRET);
                let parsed = text.and_then(|(_, text)| {
                    read(&text).map_err(|words| format!("the text of the file {words}"))
                });
                (entry.at, file_key, parsed)
            }
            (None, None) => {
                let default = keys::find(key)?.default;
                return Some(default.and_then(|url| read(url).ok()));
            }
        };
        match parsed {
            Ok(url) => Some(Some(url)),
            Err(words) => {
                self.problems.push(Problem::of(&at, name, words));
                None
            }
        }
    }

    /// The file of certificates at `key`; `Some(None)`: none is set. It is read now to tell mistakes early.
    fn ca_file(&mut self, key: &str) -> Option<Option<PathBuf>> {
        const LONGEST: u64 = 1 << 20;
        let Some(entry) = self.entry(key) else {
            return Some(None);
        };
        let path = self.path_of(entry, "the path of a file with certificates (PEM)");
        let checked = path.and_then(|path| match read_bounded(&path, LONGEST) {
            Ok(text) if text.contains("-----BEGIN CERTIFICATE-----") => Ok(Some(path)),
            Ok(_) => Err(format!("{} holds no certificate (PEM)", path.display())),
            Err(err) => Err(format!("{} can't be read: {err}", path.display())),
        });
        match checked {
            Ok(path) => Some(path),
            Err(words) => self.wrong(key, words),
        }
    }

    /// The file that `entry` names. A path in the file starts from the file's folder, one in a variable from
    /// the working directory.
    fn path_of(&self, entry: &Entry, must: &str) -> Result<PathBuf, Wrong> {
        let name = value::text(&entry.raw, must)?;
        Ok(match entry.at {
            Origin::Env(_) => PathBuf::from(name),
            _ => self.folder.join(name),
        })
    }

    /// The name of the file that `entry` names, and its text without the newline at its end.
    pub(super) fn named_file(
        &self,
        entry: &Entry,
        must: &str,
        longest: u64,
    ) -> Result<(String, String), Wrong> {
        let (name, path) = (value::text(&entry.raw, must)?, self.path_of(entry, must)?);
        let text = read_bounded(&path, longest)
            .map_err(|err| format!("{} can't be read: {err}", shown(name)))?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let text = line.strip_suffix('\r').unwrap_or(line).to_owned();
        Ok((name.to_owned(), text))
    }
}

/// The text of the file at `path`; an error above `limit` bytes.
fn read_bounded(path: &Path, limit: u64) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(std::io::Error::other(format!(
            "it is larger than {limit} bytes"
        )));
    }
    String::from_utf8(bytes).map_err(|_| std::io::Error::other("it is not UTF-8 text"))
}
