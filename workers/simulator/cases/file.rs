//! How cases are written down: YAML with `cases`, each with a configuration, jobs, and what is expected.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_saphyr::{MessageFormatter as _, Spanned, UserMessageFormatter};
use sluicegate::config::{Config, ConfigErrors, Pipelines, parse_duration};

use super::Case;
use super::sections::Sections;
use crate::api::Api;
use crate::forms::LONGEST;
use crate::jobs::{Job, Text, sort_by};
use crate::mistake;
use crate::run::MOST_WORKERS;

/// The longest file, in bytes.
pub const MOST_FILE: u64 = 1 << 20;
/// The most jobs of a case.
const MOST_JOBS: usize = 100_000;
/// What a time may differ by, where nothing else is said.
const TOLERANCE: Duration = Duration::from_millis(100);

/// Why a file holds no cases.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {why}")]
pub struct CasesError {
    file: String,
    line: u64,
    why: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cases: Vec<Spanned<Written>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Written {
    name: String,
    config: Option<Sections>,
    pipeline: Option<String>,
    workers: Option<usize>,
    #[serde(default)]
    api: WrittenApi,
    redis_latency: Option<Time>,
    seed: Option<u64>,
    jobs: Vec<Spanned<WrittenJob>>,
    expect: Spanned<Expected>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenApi {
    latency: Option<String>,
    errors: Option<String>,
    throttles: Option<String>,
    limit: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WrittenJob {
    name: Option<String>,
    at: Time,
    /// So many alike
    count: Option<usize>,
    /// after each other.
    every: Option<Time>,
    tenant: String,
    cost: Option<u32>,
    priority: Option<Text>,
    plan: Option<String>,
    routing_key: Option<String>,
    #[serde(default)]
    header: BTreeMap<String, Text>,
}

/// Seconds, or with a unit.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum Time {
    Seconds(f64),
    Text(String),
}

/// What is expected; what is not said may be anything.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Expected {
    /// When jobs start, in the order of their starts.
    pub starts: Option<Vec<Time>>,
    /// When jobs with these names start.
    pub start: Option<BTreeMap<String, Time>>,
    /// What times may differ by.
    pub tolerance: Option<Time>,
    /// In which order jobs with these names start.
    pub order: Option<Vec<String>>,
    /// How long jobs wait at most.
    pub waits_at_most: Option<WaitsAtMost>,
    /// How long all of it takes at most.
    pub makespan_at_most: Option<Time>,
    /// Units in the fullest window of each limit.
    pub fullest_window: Option<BTreeMap<String, u64>>,
    /// How many dead letters there are.
    pub dead_letters: Option<usize>,
    /// How many calls the API answers 429.
    pub throttled: Option<usize>,
    /// How often a job is delivered at most, on average.
    pub deliveries_at_most: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitsAtMost {
    pub p50: Option<Time>,
    pub p99: Option<Time>,
    pub max: Option<Time>,
}

impl Time {
    /// In seconds, from 0 to thirty days.
    pub fn seconds(&self) -> Result<f64, String> {
        let seconds = match self {
            Self::Seconds(seconds) => Some(*seconds),
            Self::Text(text) => parse_duration(text).map(|duration| duration.as_secs_f64()),
        };
        let found = || match self {
            Self::Seconds(seconds) => seconds.to_string(),
            Self::Text(text) => mistake::shown(text),
        };
        seconds
            .filter(|seconds| (0.0..=LONGEST.as_secs_f64()).contains(seconds))
            .ok_or_else(|| {
                format!(
                    "{} is no time; it must be seconds (1.5), or a whole number with a unit (1500ms, 30s, 5m), up to 30d",
                    found()
                )
            })
    }
}

impl Expected {
    /// What times may differ by, in seconds.
    pub fn tolerance(&self) -> f64 {
        let own = self.tolerance.as_ref();
        own.and_then(|time| time.seconds().ok())
            .unwrap_or(TOLERANCE.as_secs_f64())
    }

    fn times(&self) -> impl Iterator<Item = &Time> {
        let starts = self.starts.iter().flatten();
        let start = self.start.iter().flat_map(BTreeMap::values);
        let waits = self.waits_at_most.iter();
        let waits = waits.flat_map(|waits| [&waits.p50, &waits.p99, &waits.max]);
        let one = [&self.tolerance, &self.makespan_at_most];
        starts.chain(start).chain(waits.chain(one).flatten())
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        let order = self.order.iter().flatten();
        order.chain(self.start.iter().flat_map(BTreeMap::keys))
    }

    fn is_empty(&self) -> bool {
        let Self {
            starts,
            start,
            tolerance: _,
            order,
            waits_at_most,
            makespan_at_most,
            fullest_window,
            dead_letters,
            throttled,
            deliveries_at_most,
        } = self;
        starts.is_none()
            && start.is_none()
            && order.is_none()
            && waits_at_most.is_none()
            && makespan_at_most.is_none()
            && fullest_window.is_none()
            && dead_letters.is_none()
            && throttled.is_none()
            && deliveries_at_most.is_none()
    }
}

/// The cases of the file `name`, which is `text`. Configurations that it names are looked for from its folder; variables of the
/// environment do not count.
///
/// # Errors
/// [`CasesError`]: what is wrong, and in which line.
pub fn read(name: &str, text: &str) -> Result<Vec<Case>, CasesError> {
    read_with(name, text, &|path| {
        Pipelines::load(Some(path), std::iter::empty())
    })
}

/// How a file with a configuration is read.
type Load<'a> = &'a dyn Fn(&Path) -> Result<Pipelines, ConfigErrors>;

/// [`read`], where configurations in files of their own are read by `load`.
///
/// # Errors
/// As there.
pub fn read_with(name: &str, text: &str, load: Load<'_>) -> Result<Vec<Case>, CasesError> {
    let wrong = |line: u64, why: String| CasesError {
        file: name.to_owned(),
        line,
        why,
    };
    if text.len() as u64 > MOST_FILE {
        return Err(wrong(
            1,
            format!("the file is longer than {MOST_FILE} bytes"),
        ));
    }
    let options = serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_depth: 32,
            max_nodes: 200_000,
            max_documents: 1,
            max_aliases: 1_000,
        },
    };
    let file: File = serde_saphyr::from_str_with_options(text, options).map_err(|err| {
        let line = err.location().map_or(1, |location| location.line());
        let said = UserMessageFormatter.format_message(err.without_snippet());
        wrong(line, mistake::in_words(&said))
    })?;
    if file.cases.is_empty() {
        return Err(wrong(1, "there are no cases in it".to_owned()));
    }
    let folder = Path::new(name).parent().map(Path::to_path_buf);
    let folder = folder.unwrap_or_default();
    let case = |case: Spanned<Written>| {
        let line = case.referenced.line();
        read_case(case.value, line, (&folder, load)).map_err(|(line, why)| wrong(line, why))
    };
    file.cases.into_iter().map(case).collect()
}

fn read_case(written: Written, line: u64, files: (&Path, Load<'_>)) -> Result<Case, (u64, String)> {
    let here = |why: String| (line, why);
    let config = config(&written, files).map_err(here)?;
    let workers = written.workers.unwrap_or(1);
    if !(1..=MOST_WORKERS).contains(&workers) {
        return Err(here(format!(
            "workers is {workers}; it must be from 1 to {MOST_WORKERS}"
        )));
    }
    let api = api(&written.api).map_err(here)?;
    let redis = match &written.redis_latency {
        Some(time) => time.seconds().map_err(here)?,
        None => 0.0,
    };
    let mut jobs = Vec::new();
    for job in written.jobs {
        let line = job.referenced.line();
        read_job(job.value, &mut jobs).map_err(|why| (line, why))?;
    }
    if jobs.is_empty() {
        return Err(here("there are no jobs in it".to_owned()));
    }
    sort_by(&mut jobs, |(_, job)| job.at);
    let (names, jobs): (Vec<String>, Vec<Job>) = jobs.into_iter().unzip();
    let expected = written.expect.value;
    let there = |why: String| (written.expect.referenced.line(), why);
    for time in expected.times() {
        time.seconds().map_err(there)?;
    }
    if let Some(name) = expected.names().find(|name| !names.contains(name)) {
        return Err(there(format!("no job is called {}", mistake::shown(name))));
    }
    if expected
        .deliveries_at_most
        .is_some_and(|most| !most.is_finite())
    {
        return Err(there("deliveries-at-most is no number".to_owned()));
    }
    if expected.is_empty() {
        return Err(there(
            "nothing is expected: such a case can't fail".to_owned(),
        ));
    }
    Ok(Case {
        name: written.name,
        line,
        config,
        workers,
        api,
        redis: Duration::from_secs_f64(redis),
        seed: written.seed.unwrap_or(1),
        jobs: Arc::new(jobs),
        names,
        expected,
    })
}

/// The case's configuration: the file that it names, or what stands there.
fn config(written: &Written, (folder, load): (&Path, Load<'_>)) -> Result<Config, String> {
    let pipelines = match &written.config {
        None => return Err("config is missing: a path, or the sections themselves".to_owned()),
        Some(Sections::Path(path)) => load(&folder.join(path)),
        Some(Sections::Json(text)) => Pipelines::parse("config", text, std::iter::empty()),
    };
    let pipelines = pipelines.map_err(|errors| errors.to_string().replace('\n', "; "))?;
    let (_, config) = pipelines.one(written.pipeline.as_deref())?;
    Ok(config.clone())
}

fn api(written: &WrittenApi) -> Result<Api, String> {
    fn of<T: FromStr<Err = String>>(key: &str, text: Option<&String>) -> Result<Option<T>, String> {
        let read = |text: &String| text.parse().map_err(|why| format!("api.{key} {why}"));
        text.map(read).transpose()
    }
    let usual = Api::default();
    Ok(Api {
        latency: of("latency", written.latency.as_ref())?.unwrap_or(usual.latency),
        errors: of("errors", written.errors.as_ref())?.unwrap_or(usual.errors),
        throttles: of("throttles", written.throttles.as_ref())?.unwrap_or(usual.throttles),
        limit: of("limit", written.limit.as_ref())?,
    })
}

fn read_job(written: WrittenJob, jobs: &mut Vec<(String, Job)>) -> Result<(), String> {
    let (count, at) = (written.count.unwrap_or(1), written.at.seconds()?);
    if count == 0 || jobs.len().saturating_add(count) > MOST_JOBS {
        return Err(format!(
            "count is {count}; a case has from 1 to {MOST_JOBS} jobs"
        ));
    }
    let every = match &written.every {
        Some(every) => every.seconds()?,
        None => 0.0,
    };
    for number in 0..count {
        let job = Job {
            at: at + every * number as f64,
            tenant: written.tenant.clone(),
            cost: written.cost.unwrap_or(1),
            priority: written.priority.clone(),
            plan: written.plan.clone(),
            routing_key: written.routing_key.clone(),
            header: written.header.clone(),
        };
        job.check()?;
        let name = match (&written.name, count) {
            (Some(name), 1) => name.clone(),
            (Some(name), _) => format!("{name}-{}", number + 1),
            (None, _) => String::new(),
        };
        jobs.push((name, job));
    }
    Ok(())
}
