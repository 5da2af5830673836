//! How cases are written down: YAML with `cases`, each with a configuration, jobs, and what is expected.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Visitor};
use serde_saphyr::{MessageFormatter as _, Spanned, UserMessageFormatter};
use sluicegate::config::{Config, ConfigErrors, Pipelines, parse_duration};

use super::Case;
use super::sections::Sections;
use crate::api::Api;
use crate::forms::{LONGEST, LONGEST_QUESTION};
use crate::jobs::{Job, Text, sort_by};
use crate::mistake;
use crate::patience::work_of;
use crate::run::MOST_WORKERS;

/// The longest file, in bytes.
pub const MOST_FILE: u64 = 1 << 20;
/// The most jobs of a case.
const MOST_JOBS: usize = 100_000;
/// For so long after its last job a case goes on, where nothing else is said.
const AFTER_LAST: Duration = Duration::from_secs(86_400);
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
    within: Option<Time>,
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
#[derive(Debug, Clone)]
pub(super) enum Time {
    Seconds(f64),
    Text(String),
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyTime)
    }
}

/// Reads a [`Time`]; what else it finds it says in words.
struct AnyTime;

impl Visitor<'_> for AnyTime {
    type Value = Time;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time: seconds (1.5), or a whole number with a unit (1500ms, 30s, 5m)")
    }

    fn visit_f64<E>(self, seconds: f64) -> Result<Time, E> {
        Ok(Time::Seconds(seconds))
    }

    fn visit_u64<E>(self, seconds: u64) -> Result<Time, E> {
        Ok(Time::Seconds(seconds as f64))
    }

    fn visit_i64<E>(self, seconds: i64) -> Result<Time, E> {
        Ok(Time::Seconds(seconds as f64))
    }

    fn visit_str<E>(self, text: &str) -> Result<Time, E> {
        Ok(Time::Text(text.to_owned()))
    }
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
    /// After how long jobs are done, at most.
    pub done_after_at_most: Option<WaitsAtMost>,
    /// How long all of it takes at most.
    pub makespan_at_most: Option<Time>,
    /// Units in the fullest window of each limit.
    pub fullest_window: Option<BTreeMap<String, u64>>,
    /// How many jobs each shadow limit would have made wait.
    pub would_have_waited: Option<BTreeMap<String, u64>>,
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
            Self::Seconds(seconds) => format!("{seconds:?}"),
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
        let waits = (self.waits_at_most.iter()).chain(&self.done_after_at_most);
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
            done_after_at_most,
            makespan_at_most,
            fullest_window,
            would_have_waited,
            dead_letters,
            throttled,
            deliveries_at_most,
        } = self;
        starts.is_none()
            && start.is_none()
            && order.is_none()
            && waits_at_most.is_none()
            && done_after_at_most.is_none()
            && makespan_at_most.is_none()
            && fullest_window.is_none()
            && would_have_waited.is_none()
            && dead_letters.is_none()
            && throttled.is_none()
            && deliveries_at_most.is_none()
    }
}

/// The cases of the file `name`, which is `text`. Configurations that it names are looked for from its folder; variables of the
/// environment do not count. Of several pipelines `pipeline` is meant where a case names none.
///
/// # Errors
/// [`CasesError`]: what is wrong, and in which line.
pub fn read(name: &str, text: &str, pipeline: Option<&str>) -> Result<Vec<Case>, CasesError> {
    let load = |path: &Path| Pipelines::load(Some(path), std::iter::empty());
    read_all(name, text, (pipeline, &load))
}

/// How a file with a configuration is read.
type Load<'a> = &'a dyn Fn(&Path) -> Result<Pipelines, ConfigErrors>;

/// [`read`], where configurations in files of their own are read by `load`.
///
/// # Errors
/// As there.
pub fn read_with(name: &str, text: &str, load: Load<'_>) -> Result<Vec<Case>, CasesError> {
    read_all(name, text, (None, load))
}

fn read_all(
    name: &str,
    text: &str,
    (pipeline, load): (Option<&str>, Load<'_>),
) -> Result<Vec<Case>, CasesError> {
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
        let at = err.location();
        let (line, column) = at.map_or((1, 1), |at| (at.line(), at.column()));
        let said = UserMessageFormatter.format_message(err.without_snippet());
        let before = before_value(text, (line, column));
        wrong(line, mistake::in_words(&mistake::at_key(&said, &before)))
    })?;
    if file.cases.is_empty() {
        return Err(wrong(1, "there are no cases in it".to_owned()));
    }
    let folder = Path::new(name).parent().map(Path::to_path_buf);
    let folder = folder.unwrap_or_default();
    let case = |case: Spanned<Written>| {
        let line = case.referenced.line();
        let files = Files {
            folder: &folder,
            pipeline,
            load,
        };
        read_case(case.value, line, &files).map_err(|(line, why)| wrong(line, why))
    };
    file.cases.into_iter().map(case).collect()
}

/// What stands before the value that is wrong, on its line: up to where the reader is, which may be at the value's key.
fn before_value(text: &str, (line, column): (u64, u64)) -> String {
    let place = |from_1: u64| usize::try_from(from_1.saturating_sub(1)).unwrap_or(usize::MAX);
    let there = text.lines().nth(place(line)).unwrap_or_default();
    let there: Vec<char> = there.chars().collect();
    let (before, after) = there.split_at(place(column).min(there.len()));
    let is_of_key = |c: &&char| c.is_alphanumeric() || **c == '-' || **c == '_';
    let key = after.iter().take_while(is_of_key).count();
    let key = match after.get(key) {
        Some(':') => &after[..=key],
        _ => &[],
    };
    before.iter().chain(key).collect()
}

/// Where configurations come from.
struct Files<'a> {
    folder: &'a Path,
    pipeline: Option<&'a str>,
    load: Load<'a>,
}

fn read_case(written: Written, line: u64, files: &Files<'_>) -> Result<Case, (u64, String)> {
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
    if redis > LONGEST_QUESTION.as_secs_f64() {
        let most = LONGEST_QUESTION.as_secs();
        return Err(here(format!(
            "redis-latency is {redis:?} s; it must be at most {most} s"
        )));
    }
    let within = match &written.within {
        Some(time) => Some(time.seconds().map_err(here)?),
        None => None,
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
    let last = jobs.last().map_or(0.0, |job| job.at);
    if let Some(within) = within.filter(|within| *within < last) {
        return Err(here(format!(
            "within is {within:?} s, and the last job comes after {last:?} s"
        )));
    }
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
        most: match within {
            Some(within) => Duration::from_secs_f64(within),
            None => Duration::from_secs_f64(last) + AFTER_LAST,
        },
        // Who says how long it may take has it take so long.
        work: match within {
            Some(_) => u64::MAX,
            None => work_of(jobs.len()),
        },
        seed: written.seed.unwrap_or(1),
        jobs: Arc::new(jobs),
        names,
        expected,
    })
}

/// The case's configuration: the file that it names, or what stands there.
fn config(written: &Written, files: &Files<'_>) -> Result<Config, String> {
    let read = match &written.config {
        None => return Err("config is missing: a path, or the sections themselves".to_owned()),
        Some(Sections::Path(path)) => (files.load)(&files.folder.join(path))
            .map_err(|errors| errors.to_string().replace('\n', "; ")),
        Some(Sections::Json(text)) => {
            Pipelines::parse("config", text, std::iter::empty()).map_err(|errors| in_case(&errors))
        }
    };
    let pipelines = read?;
    // Other cases of the file may have a configuration that names none.
    let usual = files.pipeline.filter(|_| pipelines.are_named());
    let pipeline = written.pipeline.as_deref().or(usual);
    match pipelines.one(pipeline) {
        Ok((_, config)) => Ok(config.clone()),
        Err(why) if pipeline.is_none() => {
            Err(format!("{why}, or with `pipeline: NAME` in the case"))
        }
        Err(why) => Err(why),
    }
}

/// What is wrong with sections that stand in the case: their own lines and columns are none of the user's file.
fn in_case(errors: &ConfigErrors) -> String {
    let each = errors.problems().iter().map(|problem| {
        let (said, place) = (problem.to_string(), problem.origin().to_string());
        let said = said.strip_prefix(&place).unwrap_or(&said);
        format!("config: {}", said.trim_start_matches(": "))
    });
    each.collect::<Vec<_>>().join("; ")
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
