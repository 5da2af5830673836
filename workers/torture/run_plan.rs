//! The arguments, and the plan of a run derived from them.

use std::env;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use rules::delays::{DelayLevels, QueueNames};

use crate::bed::rude::{SLOW, SLOW_MAX};
use crate::checker::CheckRules;
use crate::clusters::{RabbitMq, RedisKind, ServerKinds};
use crate::dispatch::DispatchMode;
use crate::downstream::CLOSED;
use crate::faults::FaultKind;
use crate::job_attributes::DEDUPE_DAYS;
use crate::schedule::Pace;

/// Window of the limits.
const WINDOW: Duration = Duration::from_secs(1);
/// Beginning of the run without faults: its share of the run, and its maximum.
const CALM: (f64, Duration) = (0.15, Duration::from_secs(30));
/// Prefix of all keys in Redis.
const PREFIX: &str = "torture";
/// Prefix of a tenant's name, before its number.
pub const TENANT: &str = "tenant-";
/// Maximum number of starts of a tenant in a window.
pub const MAX: u64 = 10;
/// The same maximum while `worker-config` has changed it.
pub const OTHER_MAX: u64 = 6;
/// The value of `retry.max-attempts`: more than a streak of failures or a hanging downstream uses
/// up.
const MAX_ATTEMPTS: u32 = 20;
/// The value of `retry.max-crashes`: workers are killed here whichever job they run.
const MAX_CRASHES: u32 = 1000;
/// The value of `delay.max-delay`: short, so that some waits take longer.
const MAX_DELAY: Duration = Duration::from_secs(5);

/// Breaks workers, RabbitMQ, Redis and the connections between them under load, and checks the
/// run's history: no job was lost, and no limit was exceeded
#[derive(Debug, Clone, Parser)]
#[command(name = "torture", after_long_help = AFTER)]
pub struct Args {
    /// Seed of faults, latencies and answers [default: random]
    #[arg(long)]
    pub seed: Option<u64>,
    /// How long jobs are published and faults are injected; then all jobs must end
    #[arg(long, default_value_t = 2.0)]
    pub minutes: f64,
    /// Kinds of faults, separated by commas: `all` (except redis-evict, downstream-still and rude
    /// neighbors), `none`; `-KIND` excludes one
    #[arg(
        long,
        default_value = "all",
        allow_hyphen_values = true,
        value_delimiter = ','
    )]
    pub faults: Vec<String>,
    /// Number of worker processes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=4))]
    pub workers: u8,
    /// Number of tenants, each with its own limit
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub tenants: u32,
    /// `strict`, or milliseconds, which the variation of the latency to the downstream must not
    /// exceed
    #[arg(long, default_value = "strict")]
    pub guard: String,
    /// Kind of RabbitMQ
    #[arg(long, value_enum, default_value = "single")]
    pub rabbitmq: RabbitMq,
    /// Kind of Redis
    #[arg(long, value_enum, default_value = "single")]
    pub redis: RedisKind,
    /// How workers process an admitted job
    #[arg(long, value_enum, default_value = "http")]
    pub dispatch: DispatchMode,
    /// Longest duration of a fault in seconds
    #[arg(long, default_value_t = 30)]
    pub longest: u64,
    /// Longest pause before a fault in seconds
    #[arg(long, default_value_t = 5)]
    pub pause: u64,
    /// Count overfull windows without failing (with --guard, on a machine that may stall)
    #[arg(long)]
    pub count_windows: bool,
    /// Keep the workers' configurations and logs in this folder
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// File for the history as JSON lines [default: target/torture-SEED.jsonl, after a failed run
    /// only]
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// Program under test [default: the one next to this program]
    #[arg(long, value_name = "FILE", env = "TORTURE_PROGRAM")]
    pub program: Option<PathBuf>,
}

const AFTER: &str = "Examples:
  scripts/torture                                        2 minutes, all faults, a new seed
  scripts/torture --seed 7 --minutes 30 --history h.jsonl
  scripts/torture --faults worker-kill,rabbit-kill
  scripts/torture --faults all,-redis-wipe,-redis-flush --guard 100
  scripts/torture --rabbitmq cluster --redis sentinel    several servers, one of which is broken
  scripts/torture --dispatch forward                     other workers get the jobs and report when they are done
  scripts/torture --faults none                          no faults

Exit status: 0 all promises held, 1 a promise was broken or the run failed, 2 wrong usage.";

/// The plan of a run.
#[derive(Debug, Clone)]
pub struct RunPlan {
    pub seed: u64,
    pub lasts: Duration,
    pub servers: ServerKinds,
    pub dispatch: DispatchMode,
    pub kinds: Vec<FaultKind>,
    pub workers: usize,
    pub tenants: u32,
    /// `None` means strict.
    pub guard: Option<Duration>,
    pub longest: Duration,
    pub pause: Duration,
    pub count_windows: bool,
    /// Whether the servers are those of `scripts/torture --rabbitmq4`.
    pub newer_servers: bool,
}

/// Quotes a text as a JSON string, which is valid YAML, too.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Settings that differ between workers.
pub struct PerWorkerSettings<'a> {
    /// The worker and its life, which each call carries.
    pub worker: (usize, u32),
    pub amqp: &'a str,
    /// Keys of the section `redis`, as lines.
    pub redis: &'a str,
    pub queue: &'a str,
    pub downstream: &'a str,
    pub admin: SocketAddr,
    pub max: u64,
}

impl RunPlan {
    /// Derives a plan from the arguments.
    ///
    /// # Errors
    /// Returns a sentence for the user if the arguments are invalid.
    pub fn new(args: &Args) -> Result<Self, String> {
        if !(args.minutes > 0.0 && args.minutes <= 24.0 * 60.0) {
            return Err(format!(
                "--minutes {}: must be above 0, at most a day",
                args.minutes
            ));
        }
        let servers = ServerKinds {
            rabbitmq: args.rabbitmq,
            redis: args.redis,
        };
        Ok(Self {
            servers,
            seed: args.seed.unwrap_or_else(|| rand::random::<u32>().into()),
            lasts: Duration::from_secs_f64(args.minutes * 60.0),
            dispatch: args.dispatch,
            kinds: kinds(&args.faults, &possible(servers, args.dispatch))?,
            workers: args.workers.into(),
            tenants: args.tenants,
            guard: guard(&args.guard)?,
            longest: Duration::from_secs(args.longest),
            pause: Duration::from_secs(args.pause),
            count_windows: args.count_windows,
            newer_servers: are_newer(|name| env::var_os(name).map(PathBuf::from)),
        })
    }

    /// Returns the pace of the faults.
    pub fn pace(&self) -> Pace {
        Pace {
            workers: self.workers,
            pause: self.pause,
            longest: self.longest,
            losses_are_rare: self.guard.is_none(),
        }
    }

    /// Returns how long no fault begins.
    pub fn calm(&self) -> Duration {
        self.lasts.mul_f64(CALM.0).min(CALM.1)
    }

    /// Returns the rules that the history is checked against.
    pub fn rules(&self) -> CheckRules {
        CheckRules {
            window: u64::try_from(WINDOW.as_nanos()).unwrap_or(u64::MAX),
            max_attempts: MAX_ATTEMPTS,
            breakers: self.breakers(),
            windows_hold: !self.count_windows && self.dispatch == DispatchMode::Http,
            forwards: self.dispatch == DispatchMode::Forward,
            closed: u64::try_from(CLOSED.as_nanos()).unwrap_or(u64::MAX),
            // Each run has a listener, and each job requests a result.
            results: true,
            neighbors: self.must_have_neighbors(),
        }
    }

    /// Returns true if some rude neighbor must be alone long enough to judge how other tenants
    /// fare: there are no other faults, and the first one begins within the run. A fault that has
    /// begun lasts as long as it must.
    fn must_have_neighbors(&self) -> bool {
        let only_rude = self.kinds.iter().all(|kind| kind.is_rude());
        !self.kinds.is_empty() && only_rude && self.calm() + self.pause < self.lasts
    }

    /// Returns true if the workers have breakers: they do if the API can fail or a neighbor can be
    /// rude. Otherwise they have none, so that each failure must use an attempt; with breakers, an
    /// observer can't tell which failures use one.
    fn breakers(&self) -> bool {
        let mut kinds = self.kinds.iter();
        kinds.any(|kind| *kind == FaultKind::DownstreamRefuse || kind.is_rude())
    }

    /// Returns the time in which a tenant may start its limit, against which throughput is
    /// measured.
    pub fn period(&self) -> Duration {
        WINDOW + self.guard.unwrap_or_default()
    }

    /// Returns the workers' queues.
    pub fn queues(&self, work: &str) -> QueueNames {
        QueueNames::new(work, &DelayLevels::new(MAX_DELAY))
    }

    fn guard_text(&self) -> String {
        self.guard.map_or("strict".to_owned(), |guard| {
            format!("{}ms", guard.as_millis())
        })
    }

    /// Returns a worker's configuration.
    pub fn yaml(&self, settings: &PerWorkerSettings<'_>) -> String {
        let PerWorkerSettings {
            amqp,
            redis,
            queue,
            admin,
            max,
            ..
        } = settings;
        // Each tenant needs a token if some tenants may get none.
        let tokens = self.kinds.contains(&FaultKind::RudeTenant);
        let to = self.dispatch.yaml(settings, tokens);
        let slow = match self.kinds.contains(&FaultKind::RudeSlow) {
            true => format!("  tenants: {{{SLOW}: {{max-requests: {SLOW_MAX}}}}}\n"),
            false => String::new(),
        };
        format!(
            "amqp:\n  url: {amqp}\n  queue: {queue}\n  prefetch: 100\n\
             redis:\n{redis}  prefix: {PREFIX}\n\
             rate-limiter:\n  max-requests: {max}\n  window-size: {window}ms\n  guard: {guard}\n{slow}\
             dispatch:\n  concurrency: 32\n  shutdown-timeout: 10s\n  breaker:\n    enabled: {breakers}\n{to}  results:\n    to: reply-to\n\
             job:\n  dedupe-for: {DEDUPE_DAYS}d\n\
             delay:\n  max-delay: {max_delay}s\n\
             retry:\n  max-attempts: {MAX_ATTEMPTS}\n  max-crashes: {MAX_CRASHES}\n  initial-interval: 200ms\n  max-interval: 3s\n\
             admin:\n  listen: {admin}\n",
            amqp = quoted(amqp),
            queue = quoted(queue),
            window = WINDOW.as_millis(),
            guard = self.guard_text(),
            breakers = self.breakers(),
            max_delay = MAX_DELAY.as_secs(),
            admin = quoted(&admin.to_string()),
        )
    }

    /// Returns the command that repeats the run.
    pub fn command(&self) -> String {
        let faults = words(&self.kinds, &possible(self.servers, self.dispatch));
        // The script takes that argument only as the first one.
        let newer = match self.newer_servers {
            true => " --rabbitmq4",
            false => "",
        };
        let mut command = format!(
            "scripts/torture{newer} --seed {} --minutes {} --faults {faults} --workers {} --tenants {} --longest {} --pause {}",
            self.seed,
            self.lasts.as_secs_f64() / 60.0,
            self.workers,
            self.tenants,
            self.longest.as_secs(),
            self.pause.as_secs(),
        );
        if let Some(guard) = self.guard {
            let _ = write!(command, " --guard {}", guard.as_millis());
        }
        if self.servers.rabbitmq != RabbitMq::Single {
            command.push_str(" --rabbitmq cluster");
        }
        match self.servers.redis {
            RedisKind::Single => {}
            RedisKind::Sentinel => command.push_str(" --redis sentinel"),
            RedisKind::Cluster => command.push_str(" --redis cluster"),
        }
        if self.dispatch == DispatchMode::Forward {
            command.push_str(" --dispatch forward");
        }
        if self.count_windows {
            command.push_str(" --count-windows");
        }
        command
    }
}

/// Returns true if these variables name servers that `scripts/lib/newer-servers` installed: its
/// tree has both.
fn are_newer(variable: impl Fn(&str) -> Option<PathBuf>) -> bool {
    let (tree, redis) = (
        variable("TEST_RABBITMQ_CHROOT"),
        variable("TEST_REDIS_SERVER"),
    );
    tree.zip(redis)
        .is_some_and(|(tree, redis)| redis == tree.join("valkey-server"))
}

/// Returns the shortest `--faults` argument for these kinds, out of `all`.
fn words(kinds: &[FaultKind], all: &[FaultKind]) -> String {
    let text = |kind: &FaultKind| kind.to_string();
    let named = kinds.iter().filter(|kind| kind.is_named()).map(text);
    let left_out: Vec<String> = (all.iter())
        .filter(|kind| !kind.is_named() && !kinds.contains(kind))
        .map(|kind| format!("-{kind}"))
        .collect();
    let words: Vec<String> = match kinds.len() {
        0 => return "none".to_owned(),
        some if left_out.len() < some => {
            (["all".to_owned()].into_iter().chain(left_out).chain(named)).collect()
        }
        _ => kinds.iter().map(text).collect(),
    };
    words.join(",")
}

/// Returns the possible kinds of faults.
fn possible(servers: ServerKinds, dispatch: DispatchMode) -> Vec<FaultKind> {
    let mut kinds = servers.kinds();
    kinds.retain(|kind| dispatch.has(*kind));
    kinds
}

fn kinds(words: &[String], all: &[FaultKind]) -> Result<Vec<FaultKind>, String> {
    let kind = |name: &str| {
        let names = || all.iter().map(ToString::to_string).collect::<Vec<_>>();
        let found = FaultKind::from_str(name, false).ok();
        found.filter(|kind| all.contains(kind)).ok_or_else(|| {
            format!(
                "--faults: {name:?} is not available in this run; use all, none, {}",
                names().join(", ")
            )
        })
    };
    let mut kinds = Vec::new();
    for word in words {
        match word.as_str() {
            "all" => {
                kinds = (all.iter().copied())
                    .filter(|kind| !kind.is_named())
                    .collect()
            }
            "none" => kinds.clear(),
            name => match name.strip_prefix('-') {
                Some(without) => {
                    let without = kind(without)?;
                    kinds.retain(|kind| *kind != without);
                }
                None => kinds.push(kind(name)?),
            },
        }
    }
    kinds.sort_unstable();
    kinds.dedup();
    Ok(kinds)
}

fn guard(text: &str) -> Result<Option<Duration>, String> {
    if text == "strict" {
        return Ok(None);
    }
    let ms = text.trim_end_matches("ms").parse::<u64>();
    let below_half = |ms: &u64| 2 * u128::from(*ms) < WINDOW.as_millis();
    match ms.ok().filter(below_half) {
        Some(ms) => Ok(Some(Duration::from_millis(ms))),
        None => Err(format!(
            "--guard {text}: must be strict, or milliseconds below half of {WINDOW:?}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use config::Config;

    use super::*;

    fn plan(args: &[&str]) -> Result<RunPlan, String> {
        let args = Args::try_parse_from(["torture"].iter().chain(args));
        RunPlan::new(&args.map_err(|error| error.to_string())?)
    }

    #[test]
    fn faults_are_chosen_by_name() {
        let chosen = |list| plan(&["--faults", list]).map(|plan| plan.kinds);
        let all = chosen("all").expect("kinds");
        assert!(all.contains(&FaultKind::RabbitKill) && !all.contains(&FaultKind::RabbitNodeKill));
        assert!(chosen("rabbit-node-kill").is_err(), "there is one server");
        let both = ["--rabbitmq", "cluster", "--redis", "sentinel"];
        let all = plan(&both).expect("a plan").kinds;
        assert!(
            all.contains(&FaultKind::RabbitNodeKill) && all.contains(&FaultKind::RedisPrimaryKill)
        );
        assert!(
            !all.contains(&FaultKind::RedisHole),
            "workers find it by themselves"
        );
        assert_eq!(chosen("none").as_deref(), Ok(&[][..]));
        let two = [FaultKind::WorkerKill, FaultKind::RedisCut];
        assert_eq!(chosen("redis-cut,worker-kill").as_deref(), Ok(&two[..]));
        assert!(
            !chosen("all,-redis-wipe")
                .expect("kinds")
                .contains(&FaultKind::RedisWipe)
        );
        let none = chosen("redis-fire").expect_err("no such fault");
        assert!(
            none.contains("redis-fire") && none.contains("redis-kill"),
            "{none}"
        );
    }

    #[test]
    fn the_command_repeats_the_run() {
        for args in [
            vec![
                "--seed",
                "7",
                "--minutes",
                "0.5",
                "--faults",
                "redis-cut",
                "--guard",
                "100",
            ],
            vec!["--seed", "8", "--redis", "cluster", "--rabbitmq", "cluster"],
            vec!["--seed", "9", "--redis", "sentinel"],
            vec!["--seed", "9", "--dispatch", "forward"],
            vec![
                "--seed",
                "7",
                "--count-windows",
                "--workers",
                "2",
                "--longest",
                "3",
            ],
        ] {
            let first = plan(&args).expect("a plan");
            let command = first.command();
            // The script takes this word itself.
            let words = command.split(' ').skip(1);
            let words: Vec<&str> = words.filter(|word| *word != "--rabbitmq4").collect();
            let again = plan(&words).expect("a plan");
            assert_eq!(format!("{first:?}"), format!("{again:?}"));
        }
    }

    #[test]
    fn the_command_names_newer_servers_first() {
        let mut plan = plan(&["--seed", "7"]).expect("a plan");
        plan.newer_servers = true;
        let command = plan.command();
        assert!(
            command.starts_with("scripts/torture --rabbitmq4 --seed 7 "),
            "{command}"
        );
        plan.newer_servers = false;
        assert!(!plan.command().contains("--rabbitmq4"));
        let newer = |tree: Option<&str>, redis: Option<&str>| {
            are_newer(|name| match name {
                "TEST_RABBITMQ_CHROOT" => tree.map(PathBuf::from),
                _ => redis.map(PathBuf::from),
            })
        };
        assert!(newer(Some("/r/trixie"), Some("/r/trixie/valkey-server")));
        for (tree, redis) in [
            (None, None),
            (Some("/r/trixie"), None),
            (None, Some("/r/trixie/valkey-server")),
            (Some("/r/trixie"), Some("/opt/redis-server")),
        ] {
            assert!(!newer(tree, redis), "{tree:?} {redis:?}");
        }
    }

    #[test]
    fn only_long_runs_with_nothing_but_rude_neighbors_must_have_one() {
        let must = |faults, minutes| {
            let args = ["--faults", faults, "--minutes", minutes, "--pause", "5"];
            plan(&args).expect("a plan").rules().neighbors
        };
        assert!(must("rude-jobs,downstream-refuse-most", "0.1"));
        assert!(!must("rude-jobs", "0.09"));
        assert!(!must("rude-jobs,redis-cut", "5"));
        assert!(!must("none", "5"));
    }

    #[test]
    fn invalid_run_plans_are_reported() {
        for (args, why) in [
            (["--minutes", "0"], "--minutes 0: must be above 0"),
            (["--guard", "500"], "--guard 500: must be strict"),
            (["--guard", "600"], "--guard 600: must be strict"),
            (["--guard", "lax"], "--guard lax: must be strict"),
            (["--guard", "9223372036854775808"], "must be strict"),
            (["--workers", "1"], "--workers"),
        ] {
            let error = plan(&args).expect_err("invalid");
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn workers_read_their_configuration() {
        let admin = "127.0.0.1:1".parse().expect("an address");
        for args in [
            ["--guard", "strict"],
            ["--guard", "100"],
            ["--faults", "rude-tenant"],
            ["--faults", "rude-slow"],
            ["--dispatch", "forward"],
        ] {
            let text = plan(&args).expect("a plan").yaml(&PerWorkerSettings {
                amqp: "amqp://guest:guest@127.0.0.1:5/%2f",
                redis: "  url: redis://127.0.0.1:6\n",
                queue: "q",
                downstream: "http://127.0.0.1:7",
                worker: (0, 1),
                admin,
                max: MAX,
            });
            let config = Config::parse("worker.yaml", &text, std::iter::empty()).expect(&text);
            assert_eq!(config.warnings(), [""; 0]);
        }
    }
}
