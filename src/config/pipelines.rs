//! All pipelines of a process: the entries of `pipelines`, or a single one without it. Each has a
//! complete configuration, including keys taken from the top level.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use super::clashes::clashes;
use super::env;
use super::file::{self, DeclaredPipelines, MAX_FILE_BYTES, ParsedFile, Sections};
use super::keys::KEYS;
use super::load::{Config, DEFAULT_FILE};
use super::reading::key::{PREFIX, is_in};
use super::reading::{
    ConfigErrors, ConfigInput, ConfigKey, ConfigProblem, KeyEntry, Origin, Raw, ShownValues, hint,
    read_bounded,
};
use super::sections::admin::Admin;
use super::sections::log::Log;
use super::sections::{amqp, redis};
use super::values::pipeline_name::{PIPELINES, PipelineName, SHARED};
use rules::delays::DelayLevels;

/// Groups of keys that a pipeline takes from the top level either as a whole or not at all: the
/// connection to a server, since its login and authorities belong together; the limits; the calls
/// of an API, since their secrets are for that API only; and the receiver of results.
const KEY_GROUPS: [&[&str]; 5] = [
    &[
        "amqp.url",
        "amqp.url-file",
        "amqp.ca-file",
        "amqp.cert-file",
        "amqp.key-file",
    ],
    &[
        "redis.url",
        "redis.url-file",
        "redis.cluster",
        "redis.sentinels",
        "redis.sentinels-file",
        "redis.ca-file",
        "redis.cert-file",
        "redis.key-file",
    ],
    &["rate-limiter"],
    &["dispatch.http", "dispatch.forward", "dispatch.exec"],
    &["dispatch.results"],
];

/// The checked configuration of a process.
///
/// `Display` shows it as a file, without secrets.
#[derive(Debug, Clone)]
pub struct Pipelines {
    /// Metrics and health, shared by all pipelines.
    pub admin: Admin,
    /// Logs, shared by all pipelines.
    pub log: Log,
    each: BTreeMap<PipelineName, Config>,
    /// Position of `pipelines` in the file, or `None` for a file with a single pipeline.
    declared_at: Option<Origin>,
    /// Warnings about keys at the top level that no pipeline takes.
    idle: Vec<String>,
    /// The values of the top level.
    shown: ShownValues,
}

impl Pipelines {
    /// Does what [`Config::from_env`] does, for a file with or without `pipelines`.
    ///
    /// # Errors
    /// See [`Config::from_env`].
    pub fn from_env(path: Option<&Path>) -> Result<Self, ConfigErrors> {
        let (mut env, mut problems) = (Vec::new(), Vec::new());
        // Other programs' variables may contain any bytes.
        for (name, value) in std::env::vars_os() {
            let Ok(name) = name.into_string() else {
                continue;
            };
            match value.into_string() {
                Ok(value) => env.push((name, value)),
                Err(_) if name.starts_with(PREFIX) => {
                    let words = "is not UTF-8 text";
                    problems.push(ConfigProblem::new(Origin::Env(name), words));
                }
                Err(_) => {}
            }
        }
        let read = Self::load(path, env.into_iter());
        if problems.is_empty() {
            return read;
        }
        let others = read.err();
        problems.extend(others.iter().flat_map(ConfigErrors::problems).cloned());
        Err(ConfigErrors::new(problems))
    }

    /// Does what [`Config::load`] does, for a file with or without `pipelines`.
    ///
    /// # Errors
    /// See [`Config::load`].
    pub fn load(
        path: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigErrors> {
        let file = path.unwrap_or(Path::new(DEFAULT_FILE));
        let name = file.display().to_string();
        let text = match read_bounded(file, MAX_FILE_BYTES) {
            Ok(text) => text,
            Err(err) if path.is_none() && err.kind() == std::io::ErrorKind::NotFound => {
                String::new()
            }
            Err(err) => {
                let at = Origin::WholeFile(name.into());
                let problem = ConfigProblem::new(at, format!("can't be read: {err}"));
                return Err(ConfigErrors::new(vec![problem]));
            }
        };
        Self::parse(&name, &text, env)
    }

    /// Does what [`Config::parse`] does, for a file with or without `pipelines`.
    ///
    /// # Errors
    /// See [`Config::parse`].
    pub fn parse(
        name: &str,
        text: &str,
        env: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigErrors> {
        let (file, mut problems) = match file::parse(name, text) {
            Ok(read) => read,
            Err(problem) => (ParsedFile::default(), vec![problem]),
        };
        let each = file.pipelines.iter().flat_map(|declared| &declared.each);
        let names: Vec<PipelineName> = each.map(|sections| sections.name.clone()).collect();
        let (variables, wrong) = env::parse(env, &names);
        problems.extend(wrong);
        let folder = Path::new(name).parent().map(Path::to_path_buf);
        let mut input = ConfigInput {
            layers: vec![variables.entries, file.entries],
            folder: folder.unwrap_or_default(),
            problems,
            ..ConfigInput::default()
        };
        // The top level is also read on its own, so that mistakes in values that no pipeline takes
        // from it are reported.
        let top = input.config();
        let read = match file.pipelines {
            Some(declared) => read_pipelines(&mut input, top, declared, variables.pipelines),
            None => (top.filter(|top| check_forward_target(&mut input, top))).map(Self::from),
        };
        match read {
            Some(read) if input.problems.is_empty() => Ok(read),
            _ => Err(ConfigErrors::new(input.problems)),
        }
    }

    /// Returns the configuration of a file without `pipelines`.
    pub(super) fn into_config(mut self) -> Result<Config, ConfigErrors> {
        match (&self.declared_at, self.each.pop_first()) {
            (None, Some((_, config))) => Ok(config),
            (at, _) => {
                let at = at.clone().unwrap_or(Origin::Default);
                let words = "this program supports one pipeline; use a file with its sections at \
                    the top level";
                let problem = ConfigProblem::of(&at, PIPELINES, words);
                Err(ConfigErrors::new(vec![problem]))
            }
        }
    }

    /// Returns true if the file names its pipelines. A single pipeline has no name in metrics and
    /// logs.
    pub fn are_named(&self) -> bool {
        self.declared_at.is_some()
    }

    /// Returns the pipelines in the order of their names. There is at least one, except after
    /// [`Pipelines::restrict_to`].
    pub fn each(&self) -> &BTreeMap<PipelineName, Config> {
        &self.each
    }

    /// Returns all names, for people.
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.each.keys().map(PipelineName::as_str).collect();
        names.join(", ")
    }

    /// Returns `config` with the `admin` and the `log` of these pipelines.
    pub fn with_shared_keys(&self, config: &Config) -> Config {
        let mut config = config.clone();
        config.admin.clone_from(&self.admin);
        config.log.clone_from(&self.log);
        let shared = KEYS.iter().filter(|key| is_shared(key));
        config.shown.take(shared, &self.shown);
        config
    }

    /// Keeps only the pipeline `name`, or none if there is no such pipeline.
    pub fn restrict_to(mut self, name: &PipelineName) -> Self {
        self.each.retain(|known, _| known == name);
        self
    }

    /// Returns the pipeline `name`, or the only one.
    ///
    /// # Errors
    /// There is no such pipeline, or there are several and `name` is `None`. The message lists the
    /// names.
    pub fn select(&self, name: Option<&str>) -> Result<(&PipelineName, &Config), String> {
        let Some(name) = name else {
            let mut all = self.each.iter();
            return match (all.next(), all.next()) {
                (Some(only), None) => Ok(only),
                _ => Err(format!(
                    "there are {} pipelines: {}; select one with --pipeline NAME",
                    self.each.len(),
                    self.names()
                )),
            };
        };
        let mut all = self.each.iter();
        if let Some(found) = all.find(|(known, _)| known.as_str() == name) {
            return Ok(found);
        }
        let known = self.each.keys().map(PipelineName::as_str);
        let (there, hint) = (self.names(), hint(name, known));
        Err(match self.are_named() {
            true => format!("there is no pipeline {name:?}; there are: {there}{hint}"),
            false => format!(
                "there is no pipeline {name:?}; a configuration without `{PIPELINES}` has one, \
                called {there}"
            ),
        })
    }

    /// Returns warnings about valid keys without effect: [`Config::warnings`] of each pipeline. A
    /// warning that all pipelines share is returned once, without a name.
    pub fn warnings(&self) -> Vec<(Option<&PipelineName>, String)> {
        let mut each = self.each.iter().map(|(name, config)| {
            let name = self.are_named().then_some(name);
            (name, config.warnings())
        });
        let (mut found, mut all) = (Vec::new(), self.idle.clone());
        let rest: Vec<_> = each.by_ref().collect();
        if let Some(((_, first), others)) = rest.split_first() {
            let common = first
                .iter()
                .filter(|words| (others.iter()).all(|(_, theirs)| theirs.contains(words)));
            all.extend(common.cloned());
        }
        for (name, words) in rest {
            let own = words.into_iter().filter(|words| !all.contains(words));
            found.extend(own.map(|words| (name, words)));
        }
        let all = all.into_iter().map(|words| (None, words));
        all.chain(found).collect()
    }
}

impl Config {
    /// Does what [`Config::load`] does, with the environment of this process.
    ///
    /// # Errors
    /// See [`Config::load`]; also a `SLUICEGATE_…` variable that is not text.
    pub fn from_env(path: Option<&Path>) -> Result<Self, ConfigErrors> {
        Pipelines::from_env(path)?.into_config()
    }

    /// Reads the file at `path` (`None` for `sluicegate.yaml`, which may be missing) and `env`,
    /// whose `SLUICEGATE_…` variables override the file, and checks everything.
    ///
    /// # Errors
    /// All problems, each with its position and without secrets. A file with `pipelines` is an
    /// error, too: only `sluicegate run` can run it.
    pub fn load(
        path: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigErrors> {
        Pipelines::load(path, env)?.into_config()
    }

    /// Does what [`Config::load`] does, given the file's text. `name` is the file's name in errors,
    /// and relative paths start from its folder.
    ///
    /// # Errors
    /// See [`Config::load`].
    pub fn parse(
        name: &str,
        text: &str,
        env: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigErrors> {
        Pipelines::parse(name, text, env)?.into_config()
    }
}

impl From<Config> for Pipelines {
    /// Returns the pipelines of a file without `pipelines`.
    fn from(config: Config) -> Self {
        Self {
            admin: config.admin.clone(),
            log: config.log.clone(),
            shown: config.shown.clone(),
            declared_at: None,
            idle: Vec::new(),
            each: BTreeMap::from([(PipelineName::default_one(), config)]),
        }
    }
}

impl fmt::Display for Pipelines {
    /// Writes a file that yields these pipelines, with `***` for each password. Each pipeline has
    /// all of its keys there.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shared, own): (Vec<_>, Vec<_>) = KEYS.iter().partition(|key| is_shared(key));
        if !self.are_named() {
            return self.each.values().try_for_each(|only| write!(f, "{only}"));
        }
        self.shown.write(f, &shared, 0)?;
        writeln!(f, "{PIPELINES}:")?;
        for (name, config) in &self.each {
            // Quoted, since YAML may read some names as numbers or booleans.
            writeln!(f, "  \"{name}\":")?;
            config.shown.write(f, &own, 4)?;
        }
        Ok(())
    }
}

/// Returns true if all pipelines of a process share `key`.
fn is_shared(key: &ConfigKey) -> bool {
    SHARED.iter().any(|shared| is_in(key.path, shared))
}

/// Reads the pipelines that a file declares. Returns `None` after a problem. `input` has the top
/// level, which is read as `top`.
fn read_pipelines(
    input: &mut ConfigInput,
    top: Option<Config>,
    declared: DeclaredPipelines,
    variables: Vec<Vec<KeyEntry>>,
) -> Option<Pipelines> {
    let mut each = BTreeMap::new();
    let mut places = BTreeMap::new();
    for (sections, variables) in declared.each.into_iter().zip(variables) {
        let (name, lines) = (sections.name.clone(), sections.lines);
        let at = declared.at.inside(lines.0);
        if let Some(config) = read_pipeline(input, (top.as_ref(), at), sections, variables) {
            places.insert(name.clone(), lines.0);
            each.insert(name, config);
        }
    }
    let top = top?;
    for (name, words) in clashes(&each) {
        let at = declared.at.inside(places[&name]);
        let key = format!("{PIPELINES}.{name}");
        input.problems.push(ConfigProblem::of(&at, &key, words));
    }
    let takes_queue = each.contains_key(&PipelineName::default_one());
    let queues = [&amqp::QUEUE.key, &amqp::QUEUES.key].map(|key| input.entry(key));
    let queues = queues.into_iter().flatten().filter(|_| !takes_queue);
    let idle = queues.map(|entry| {
        format!(
            "{}: {}: no pipeline uses it: each of several pipelines has its own queues, named \
            after the pipeline by default",
            entry.at, entry.path
        )
    });
    let idle = idle.collect();
    Some(Pipelines {
        admin: top.admin,
        log: top.log,
        shown: top.shown,
        each,
        declared_at: Some(declared.at),
        idle,
    })
}

/// Reads one pipeline. Its sections and variables override keys taken from the top level.
fn read_pipeline(
    input: &mut ConfigInput,
    (top, at): (Option<&Config>, Origin),
    sections: Sections,
    variables: Vec<KeyEntry>,
) -> Option<Config> {
    let Sections {
        name,
        entries,
        lines,
    } = sections;
    let own = [variables, entries];
    let sets = |is: &dyn Fn(&str) -> bool| own.iter().flatten().any(|entry| is(entry.path));
    let is_default = name.is_default();
    let [queue, queues] = [amqp::QUEUE.key.path, amqp::QUEUES.key.path];
    let takes = |entry: &&KeyEntry| {
        let together = KEY_GROUPS.iter().find(|group| is_of(group, entry.path));
        let own = together.is_some_and(|group| sets(&|path| is_of(group, path)));
        !own && (is_default || ![queue, queues].contains(&entry.path))
    };
    let taken = |layer: &Vec<KeyEntry>| layer.iter().filter(takes).cloned().collect();
    let taken: Vec<Vec<KeyEntry>> = input.layers.iter().map(taken).collect();
    let named = match (is_default, top) {
        (false, Some(top)) => named_after(&name, top, &at),
        _ => Vec::new(),
    };
    let layers = own.iter().cloned().chain([named]).chain(taken);
    let mut whole = ConfigInput {
        layers: layers.collect(),
        folder: input.folder.clone(),
        ..ConfigInput::default()
    };
    let config = whole.config();
    let config = config.filter(|config| check_forward_target(&mut whole, config));
    let begin = name.env_prefix();
    for problem in whole.problems {
        let is_own = match problem.origin() {
            Origin::File { at, .. } => lines.0 <= *at && lines.1.is_none_or(|end| *at < end),
            Origin::Env(variable) => variable.starts_with(&begin),
            Origin::WholeFile(_) | Origin::Default => true,
        };
        let problem = match is_own {
            true => problem.within(&format!("{PIPELINES}.{name}.")),
            false => problem,
        };
        // A problem at the top level is reported once.
        if !input.problems.contains(&problem) {
            input.problems.push(problem);
        }
    }
    config
}

/// Reports a fixed target that would forward the jobs of `config` to its own queues, and returns
/// false then. It is not called for a top level with pipelines, since no queue is known there.
fn check_forward_target(input: &mut ConfigInput, config: &Config) -> bool {
    let own = (config.amqp).names(&DelayLevels::new(config.delay.max_delay));
    let forward = config.dispatch.forward.as_ref();
    forward.is_none_or(|forward| input.check_forward_target(forward, &own).is_some())
}

/// Returns true if the key at `path` belongs to `group`.
fn is_of(group: &[&str], path: &str) -> bool {
    group.iter().any(|key| is_in(path, key))
}

/// Returns the keys that are derived from the pipeline's name unless it sets them: its queue, and
/// the prefix of its Redis keys. The pipeline `default` uses the prefix of `top` unchanged. No
/// tenant's key of it can begin with `PREFIX:%pipeline`, because a tenant's `%` always precedes two
/// hexadecimal digits and `pi` is not hexadecimal.
fn named_after(name: &PipelineName, top: &Config, at: &Origin) -> Vec<KeyEntry> {
    let entry = |path, text| KeyEntry {
        path,
        raw: Raw::Text(text),
        at: at.clone(),
    };
    let prefix = format!("{}:%pipeline:{name}", top.redis.prefix);
    vec![
        entry(amqp::QUEUE.key.path, name.to_string()),
        entry(redis::PREFIX.key.path, prefix),
    ]
}

#[cfg(test)]
mod tests;
