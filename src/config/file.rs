//! The YAML file: which keys it sets, to what, and where. Unknown keys are refused here.

use std::sync::Arc;

use super::error::{Origin, Position, Problem, shown};
use super::input::{Entry, named_twice};
use super::keys;
use super::yaml::{self, Field, Raw};

/// The largest configuration file, in bytes.
pub(super) const MAX_FILE: u64 = 1 << 20;

/// The keys that `text` sets, and what is wrong with the others.
///
/// # Errors
/// The one problem that keeps `text` from being YAML.
pub(super) fn parse(name: &str, text: &str) -> Result<(Vec<Entry>, Vec<Problem>), Problem> {
    let name: Arc<str> = name.into();
    let root = yaml::read(text).map_err(|error| {
        let at = match error.at {
            Some(position) => in_file(&name, position),
            None => Origin::WholeFile(Arc::clone(&name)),
        };
        Problem::new(at, error.message)
    })?;
    let mut walk = Walk {
        name,
        entries: Vec::new(),
        problems: Vec::new(),
    };
    match root {
        None | Some(Raw::Null) => {}
        Some(Raw::Map(map)) => walk.section("", map),
        Some(_) => walk.problems.push(Problem::new(
            in_file(&walk.name, Position { line: 1, column: 1 }),
            "the file must hold keys, such as `amqp:` with `  url: …` below it",
        )),
    }
    let twice = named_twice(&walk.entries);
    walk.problems.extend(twice);
    Ok((walk.entries, walk.problems))
}

fn in_file(name: &Arc<str>, position: Position) -> Origin {
    Origin::File {
        name: Arc::clone(name),
        line: position.line,
        column: position.column,
    }
}

struct Walk {
    name: Arc<str>,
    entries: Vec<Entry>,
    problems: Vec<Problem>,
}

impl Walk {
    fn section(&mut self, section: &str, map: Vec<Field>) {
        for Field { name, at, raw } in map {
            let at = in_file(&self.name, at);
            let path = if section.is_empty() {
                name.clone()
            } else {
                format!("{section}.{name}")
            };
            // `amqp.url: …` on one line is not how the file is written.
            let nested = !name.contains('.');
            if let Some(why) = keys::not_built(&path).filter(|_| nested) {
                self.problems.push(Problem::of(&at, &path, why));
                continue;
            }
            match (keys::find(&path).filter(|_| nested), raw) {
                (Some((key, _)), Raw::Map(_)) if !key.is_tree() => self.problems.push(Problem::of(
                    &at,
                    key.path,
                    "holds keys; it must be a single value",
                )),
                (Some((key, name)), raw) => self.entries.push(Entry {
                    path: key.path,
                    name,
                    raw,
                    at,
                }),
                (None, raw) if nested && keys::is_section(&path) => match raw {
                    Raw::Map(map) => self.section(&path, map),
                    Raw::Null => {}
                    _ => self.problems.push(Problem::of(
                        &at,
                        &path,
                        "is a single value; it must hold keys, indented below it",
                    )),
                },
                (None, _) => self.problems.push(unknown(&at, section, &name)),
            }
        }
    }
}

fn unknown(at: &Origin, section: &str, name: &str) -> Problem {
    let place = if section.is_empty() {
        String::new()
    } else {
        format!(" in {section}")
    };
    let hint = if keys::find(name).is_some() {
        "; write it nested, each part on a line of its own".to_owned()
    } else {
        match keys::suggest(section, name) {
            Some(meant) => format!("; did you mean {meant}?"),
            None => "; docs/CONFIGURATION.md lists all keys".to_owned(),
        }
    };
    Problem::new(
        at.clone(),
        format!("unknown key {}{place}{hint}", shown(name)),
    )
}
