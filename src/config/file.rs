//! The YAML file: finds the keys that it sets, with values and positions, and reports unknown keys.

use std::fmt::Display;
use std::sync::Arc;

use super::keys;
use super::reading::{ConfigProblem, KeyEntry, Origin, Position, Raw, YamlField, shown, yaml};
use super::sections::rate_limiter::limit_keys::LIST_ONLY;
use super::values::pipeline_name::{MAX_PIPELINES, PIPELINES, PipelineName, SHARED, wrong_name};

/// Maximum size of a configuration file in bytes.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 20;

/// Content of a file.
#[derive(Debug, Default)]
pub(super) struct ParsedFile {
    /// Keys at the top level.
    pub entries: Vec<KeyEntry>,
    /// Pipelines, or `None` if the file names none and is a single one.
    pub pipelines: Option<DeclaredPipelines>,
}

/// The pipelines of a file.
#[derive(Debug)]
pub(super) struct DeclaredPipelines {
    pub at: Origin,
    pub each: Vec<Sections>,
}

/// The keys of one pipeline.
#[derive(Debug)]
pub(super) struct Sections {
    pub name: PipelineName,
    pub entries: Vec<KeyEntry>,
    /// Where the pipeline begins, and where the next entry does.
    pub lines: (Position, Option<Position>),
}

/// Returns the keys that `text` sets, and the problems of the others.
///
/// # Errors
/// The problem that makes `text` invalid YAML.
pub(super) fn parse(
    name: &str,
    text: &str,
) -> Result<(ParsedFile, Vec<ConfigProblem>), ConfigProblem> {
    let name: Arc<str> = name.into();
    let root = yaml::read(text).map_err(|error| {
        let at = match error.at {
            Some(position) => in_file(&name, position),
            None => Origin::WholeFile(Arc::clone(&name)),
        };
        ConfigProblem::new(at, error.message)
    })?;
    let mut walk = Walk {
        name,
        within: String::new(),
        entries: Vec::new(),
        problems: Vec::new(),
    };
    let mut pipelines = None;
    match root {
        None | Some(Raw::Null) => {}
        Some(Raw::Map(mut map)) => {
            if let Some(index) = map.iter().position(|field| field.name == PIPELINES) {
                let end = map.get(index + 1).map(|field| field.at);
                pipelines = Some(walk.pipelines(map.remove(index), end));
            }
            walk.section("", map);
        }
        Some(_) => walk.problems.push(ConfigProblem::new(
            in_file(&walk.name, Position { line: 1, column: 1 }),
            "the file must contain keys, such as `amqp:` with `  url: …` below it",
        )),
    }
    let entries = walk.take_entries();
    let parsed = ParsedFile { entries, pipelines };
    Ok((parsed, walk.problems))
}

fn in_file(name: &Arc<str>, at: Position) -> Origin {
    Origin::File {
        name: Arc::clone(name),
        at,
    }
}

struct Walk {
    name: Arc<str>,
    /// Prefix of keys in errors: empty, or `pipelines.NAME.`.
    within: String,
    entries: Vec<KeyEntry>,
    problems: Vec<ConfigProblem>,
}

impl Walk {
    /// Returns the entries found since the last call.
    fn take_entries(&mut self) -> Vec<KeyEntry> {
        std::mem::take(&mut self.entries)
    }

    fn wrong(&mut self, at: &Origin, path: &str, words: impl Display) {
        let path = format!("{}{path}", self.within);
        self.problems.push(ConfigProblem::of(at, &path, words));
    }

    /// Reads the pipelines in the value of a key. The next key begins at `end`.
    fn pipelines(
        &mut self,
        YamlField { at, raw, .. }: YamlField,
        end: Option<Position>,
    ) -> DeclaredPipelines {
        let at = in_file(&self.name, at);
        let mut each = Vec::new();
        let map = match raw {
            Raw::Map(map) if !map.is_empty() => map,
            _ => {
                let words = "must contain at least one pipeline, such as `orders:` with its \
                    sections below it; remove it if there is only one pipeline";
                self.wrong(&at, PIPELINES, words);
                Vec::new()
            }
        };
        if map.len() > MAX_PIPELINES {
            let words = format!(
                "has {} pipelines; the maximum per process is {MAX_PIPELINES}",
                map.len()
            );
            self.wrong(&at, PIPELINES, words);
        }
        let begins: Vec<Position> = map.iter().map(|field| field.at).collect();
        let ends = begins.iter().skip(1).copied().map(Some).chain([end]);
        for (field, end) in map.into_iter().take(MAX_PIPELINES).zip(ends) {
            let at = in_file(&self.name, field.at);
            let Some(name) = PipelineName::parse(&field.name) else {
                self.wrong(&at, PIPELINES, wrong_name(&field.name));
                continue;
            };
            match field.raw {
                Raw::Map(map) => {
                    self.within = format!("{PIPELINES}.{name}.");
                    self.section("", map);
                    self.within.clear();
                }
                // The pipeline takes everything from the top level.
                Raw::Null => {}
                _ => {
                    let words = "is a single value; it must contain sections, indented below it";
                    self.wrong(&at, &format!("{PIPELINES}.{name}"), words);
                }
            }
            each.push(Sections {
                name,
                entries: self.take_entries(),
                lines: (field.at, end),
            });
        }
        DeclaredPipelines { at, each }
    }

    fn section(&mut self, section: &str, map: Vec<YamlField>) {
        for YamlField { name, at, raw } in map {
            let at = in_file(&self.name, at);
            let path = if section.is_empty() {
                name.clone()
            } else {
                format!("{section}.{name}")
            };
            let in_pipeline = !self.within.is_empty();
            // Dotted names such as `amqp.url: …` are not accepted in the file.
            let nested = !name.contains('.');
            let misplaced = match &*path {
                PIPELINES if in_pipeline => Some(
                    "is inside another pipeline; list all pipelines side by side at the top level",
                ),
                shared if in_pipeline && SHARED.contains(&shared) => {
                    Some("applies to all pipelines; write it at the top level")
                }
                keys::LIST_KEY if nested => Some(LIST_ONLY),
                _ => None,
            };
            if let Some(words) = misplaced {
                self.wrong(&at, &path, words);
                continue;
            }
            match (keys::find(&path).filter(|_| nested), raw) {
                (Some(key), Raw::Map(_)) if !key.is_tree() => {
                    self.wrong(&at, key.path, "contains keys; it must be a single value");
                }
                (Some(key), raw) => self.entries.push(KeyEntry {
                    path: key.path,
                    raw,
                    at,
                }),
                (None, raw) if nested && keys::is_section(&path) => match raw {
                    Raw::Map(map) => self.section(&path, map),
                    Raw::Null => {}
                    _ => {
                        let words = "is a single value; it must contain keys, indented below it";
                        self.wrong(&at, &path, words);
                    }
                },
                (None, _) => {
                    let place = format!("{}{section}", self.within);
                    let place = place.trim_end_matches('.');
                    self.problems.push(unknown(&at, (section, place), &name));
                }
            }
        }
    }
}

/// Returns the problem of an unknown key. `place` is the user's name for the section.
fn unknown(at: &Origin, (section, place): (&str, &str), name: &str) -> ConfigProblem {
    let place = match place {
        "" => String::new(),
        place => format!(" in {place}"),
    };
    let hint = match keys::suggest(section, name) {
        _ if keys::find(name).is_some() => {
            "; write it nested, each part on a line of its own".to_owned()
        }
        Some(meant) => format!("; did you mean {meant}?"),
        None => "; docs/CONFIGURATION.md lists all keys".to_owned(),
    };
    let words = format!("unknown key {}{place}{hint}", shown(name));
    ConfigProblem::new(at.clone(), words)
}
