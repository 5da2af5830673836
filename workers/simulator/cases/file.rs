//! Reads a file of cases: YAML with the key `cases`, each with a configuration, jobs and
//! expectations. Errors name the line.

use std::collections::HashSet;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use config::{Config, ConfigErrors, Origin, Pipelines};
use serde_saphyr::{MessageFormatter as _, Spanned, UserMessageFormatter};

use super::Case;
use super::keys::{Expectations, File, Time, WrittenApi, WrittenCase, WrittenJob};
use super::sections::{CaseConfig, Json};
use crate::api::ApiModel;
use crate::forms::MAX_ROUND_TRIP;
use crate::jobs::{SimulatedJob, sort_by};
use crate::mistake;
use crate::profile::PlayedLimits;
use crate::run::MAX_WORKERS;
use crate::stop_rule::work_of;

/// Maximum size of a file, in bytes.
pub const MAX_FILE_BYTES: u64 = 1 << 20;
/// Maximum number of jobs in a case.
const MAX_JOBS_PER_CASE: usize = 100_000;
/// How long a case runs after its last job if it does not set a time.
const AFTER_LAST: Duration = Duration::from_secs(86_400);
/// The reason why a file of cases can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {why}")]
pub struct CasesError {
    file: String,
    line: u64,
    why: String,
}

/// Reads the cases in `text`, the content of the file `name`. Paths of configurations are relative
/// to that file's folder; environment variables are ignored. `pipeline` selects a pipeline for
/// cases that name none.
///
/// # Errors
/// Returns a [`CasesError`] with the reason and the line.
pub fn read(name: &str, text: &str, pipeline: Option<&str>) -> Result<Vec<Case>, CasesError> {
    let load = |path: &Path| Pipelines::load(Some(path), std::iter::empty());
    read_all(name, text, (pipeline, &load))
}

/// Loads a configuration from a file.
type Load<'a> = &'a dyn Fn(&Path) -> Result<Pipelines, ConfigErrors>;

/// Reads like [`read`], but loads separate configuration files with `load`.
///
/// # Errors
/// Returns the same errors as [`read`].
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
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(wrong(
            1,
            format!("the file is larger than {MAX_FILE_BYTES} bytes"),
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
        let message = UserMessageFormatter.format_message(err.without_snippet());
        let before = before_value(text, (line, column));
        wrong(line, mistake::describe(&mistake::at_key(&message, &before)))
    })?;
    if file.cases.is_empty() {
        return Err(wrong(1, "there are no cases in it".to_owned()));
    }
    let folder = Path::new(name).parent().map(Path::to_path_buf);
    let folder = folder.unwrap_or_default();
    let case = |case: Spanned<WrittenCase>| {
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

/// Returns the text before the invalid value on its line. The reader's position may be that of the
/// value's key.
fn before_value(text: &str, (line, column): (u64, u64)) -> String {
    let index = |from_1: u64| usize::try_from(from_1.saturating_sub(1)).unwrap_or(usize::MAX);
    let there = text.lines().nth(index(line)).unwrap_or_default();
    let there: Vec<char> = there.chars().collect();
    let (before, after) = there.split_at(index(column).min(there.len()));
    let is_of_key = |c: &&char| c.is_alphanumeric() || **c == '-' || **c == '_';
    let key = after.iter().take_while(is_of_key).count();
    let key = match after.get(key) {
        Some(':') => &after[..=key],
        _ => &[],
    };
    before.iter().chain(key).collect()
}

/// Where to find configurations.
struct Files<'a> {
    folder: &'a Path,
    pipeline: Option<&'a str>,
    load: Load<'a>,
}

fn read_case(written: WrittenCase, line: u64, files: &Files<'_>) -> Result<Case, (u64, String)> {
    let here = |why: String| (line, why);
    let config = config(&written, line, files)?;
    let workers = written.workers.unwrap_or(1);
    if !(1..=MAX_WORKERS).contains(&workers) {
        return Err(here(format!(
            "workers is {workers}; it must be from 1 to {MAX_WORKERS}"
        )));
    }
    let api = match &written.api {
        Some(api) => read_api(&api.value).map_err(|why| (api.referenced.line(), why))?,
        None => ApiModel::default(),
    };
    let redis = read_redis_latency(written.redis_latency.as_ref()).map_err(here)?;
    let within = match &written.within {
        Some(time) => Some(time.seconds().map_err(here)?),
        None => None,
    };
    let (names, jobs) = read_jobs(written.jobs, line)?;
    let last = jobs.last().map_or(0.0, |job| job.at);
    if let Some(within) = within.filter(|within| *within < last) {
        return Err(here(format!(
            "within is {within:?} s, but the last job is published after {last:?} s"
        )));
    }
    let expected = written.expect.value;
    check_expectations(&expected, &names).map_err(|why| (written.expect.referenced.line(), why))?;
    Ok(Case {
        name: written.name,
        line,
        config,
        workers,
        api,
        redis,
        max: match within {
            Some(within) => Duration::from_secs_f64(within),
            None => Duration::from_secs_f64(last) + AFTER_LAST,
        },
        // A case that sets its own duration may do any amount of work in it.
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

/// Returns the round-trip time to Redis, by default zero.
fn read_redis_latency(written: Option<&Time>) -> Result<Duration, String> {
    let seconds = match written {
        Some(time) => time.seconds()?,
        None => 0.0,
    };
    let max = MAX_ROUND_TRIP.as_secs_f64();
    if seconds > max {
        return Err(format!(
            "redis-latency is {seconds:?} s; it must be at most {max} s: a worker's requests time \
            out after 2 s"
        ));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Returns the jobs of the case at line `line`, sorted by time, and their names.
fn read_jobs(
    written: Vec<Spanned<WrittenJob>>,
    line: u64,
) -> Result<(Vec<String>, Vec<SimulatedJob>), (u64, String)> {
    let mut jobs = Vec::new();
    for job in written {
        let line = job.referenced.line();
        read_job(job.value, &mut jobs).map_err(|why| (line, why))?;
    }
    if jobs.is_empty() {
        return Err((line, "there are no jobs in it".to_owned()));
    }
    sort_by(&mut jobs, |(_, job)| job.at);
    let (names, jobs): (Vec<String>, Vec<SimulatedJob>) = jobs.into_iter().unzip();
    let mut known = HashSet::new();
    let named = names.iter().filter(|name| !name.is_empty());
    if let Some(twice) = named.into_iter().find(|name| !known.insert(*name)) {
        let why = format!("two jobs have the name {}", mistake::shown(twice));
        return Err((line, why));
    }
    Ok((names, jobs))
}

/// Checks that the expectations have valid values and name only jobs in `names`.
fn check_expectations(expected: &Expectations, names: &[String]) -> Result<(), String> {
    for time in expected.times() {
        time.seconds()?;
    }
    if let Some(name) = expected.names().find(|name| !names.contains(name)) {
        return Err(format!("no job has the name {}", mistake::shown(name)));
    }
    if expected
        .deliveries_at_most
        .is_some_and(|max| !max.is_finite())
    {
        return Err("deliveries-at-most is not a number".to_owned());
    }
    if expected.is_empty() {
        return Err("there are no expectations, so the case can't fail".to_owned());
    }
    Ok(())
}

/// Returns the configuration of the case at line `line`, from the file that it names or from the
/// case itself.
fn config(written: &WrittenCase, line: u64, files: &Files<'_>) -> Result<Config, (u64, String)> {
    let here = |why: String| (line, why);
    let pipelines = match &written.config {
        None => {
            let why = "config is missing; give a path or the sections";
            return Err(here(why.to_owned()));
        }
        Some(CaseConfig::Path(path)) => (files.load)(&files.folder.join(path))
            .map_err(|errors| here(errors.to_string().replace('\n', "; ")))?,
        Some(CaseConfig::Json(json)) => Pipelines::parse("config", &json.text, std::iter::empty())
            .map_err(|errors| in_case(&errors, json, line))?,
    };
    // The default pipeline applies only to configurations with named pipelines; other cases of the
    // file may have none.
    let usual = files.pipeline.filter(|_| pipelines.are_named());
    let pipeline = written.pipeline.as_deref().or(usual);
    match pipelines.select(pipeline) {
        Ok((_, config)) => Ok(config.clone()),
        Err(why) if pipeline.is_none() => {
            Err(here(format!("{why}, or with `pipeline: NAME` in the case")))
        }
        Err(why) => Err(here(why)),
    }
}

/// Returns the errors in sections that stand in the case itself, and the line of the first one in
/// the file. An error without a line gets the line of the case.
fn in_case(errors: &ConfigErrors, json: &Json, case: u64) -> (u64, String) {
    let line_of = |origin: &Origin| match origin {
        Origin::File { at, .. } => json.line(at.line),
        _ => None,
    };
    let mut first = None;
    let each = errors.problems().iter().map(|problem| {
        let (text, index) = (problem.to_string(), problem.origin().to_string());
        let text = text.strip_prefix(&index).unwrap_or(&text);
        let text = text.trim_start_matches(": ");
        let line = line_of(problem.origin()).unwrap_or(case);
        match *first.get_or_insert(line) == line {
            true => format!("config: {text}"),
            false => format!("line {line}: config: {text}"),
        }
    });
    let all = each.collect::<Vec<_>>().join("; ");
    (first.unwrap_or(case), all)
}

fn read_api(written: &WrittenApi) -> Result<ApiModel, String> {
    fn of<T: FromStr<Err = String>>(key: &str, text: Option<&String>) -> Result<Option<T>, String> {
        let read = |text: &String| text.parse().map_err(|why| format!("api.{key} {why}"));
        text.map(read).transpose()
    }
    let usual = ApiModel::default();
    Ok(ApiModel {
        latency: of("latency", written.latency.as_ref())?.unwrap_or(usual.latency),
        errors: of("errors", written.errors.as_ref())?.unwrap_or(usual.errors),
        throttles: of("throttles", written.throttles.as_ref())?.unwrap_or(usual.throttles),
        limits: match (&written.limit, &written.limiter) {
            (Some(_), Some(_)) => {
                return Err("api.limit and api.limiter are both set; keep one".to_owned());
            }
            (limit, None) => of("limit", limit.as_ref())?.into_iter().collect(),
            (None, limiter) => {
                let played = of("limiter", limiter.as_ref())?;
                played.map_or_else(Vec::new, |PlayedLimits(limits)| limits)
            }
        },
    })
}

fn read_job(written: WrittenJob, jobs: &mut Vec<(String, SimulatedJob)>) -> Result<(), String> {
    let (count, at) = (written.count.unwrap_or(1), written.at.seconds()?);
    if count == 0 || jobs.len().saturating_add(count) > MAX_JOBS_PER_CASE {
        return Err(format!(
            "count is {count}; a case can have 1 to {MAX_JOBS_PER_CASE} jobs"
        ));
    }
    if count == 1 && written.every.is_some() {
        return Err("every requires count, the number of jobs".to_owned());
    }
    let every = match &written.every {
        Some(every) => every.seconds()?,
        None => 0.0,
    };
    for number in 0..count {
        let job = SimulatedJob {
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
