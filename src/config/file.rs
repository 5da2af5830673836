//! The YAML file: which keys it sets, to what, and where. Unknown keys are refused here.

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{MessageFormatter, Spanned, UserMessageFormatter};

use super::error::{Origin, Problem, shown};
use super::keys;

/// The largest configuration file, in bytes.
pub(super) const MAX_FILE: u64 = 1 << 20;

/// A value as it stands in the file or in the environment.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Raw {
    Null,
    Bool(bool),
    Int(i128),
    Float,
    Text(String),
    /// A list of texts.
    Texts(Vec<String>),
    /// Any other list.
    List,
}

/// A known key that somebody set.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub path: &'static str,
    pub raw: Raw,
    pub at: Origin,
}

/// Any YAML, with the place of each key.
enum Node {
    Scalar(Raw),
    Map(Vec<(Spanned<String>, Node)>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Raw::Null))
    }
    fn visit_none<E: Error>(self) -> Result<Node, E> {
        self.visit_unit()
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(Raw::Bool(value)))
    }
    fn visit_i64<E: Error>(self, value: i64) -> Result<Node, E> {
        self.visit_i128(value.into())
    }
    fn visit_u64<E: Error>(self, value: u64) -> Result<Node, E> {
        self.visit_i128(value.into())
    }
    fn visit_i128<E: Error>(self, value: i128) -> Result<Node, E> {
        Ok(Node::Scalar(Raw::Int(value)))
    }
    fn visit_u128<E: Error>(self, value: u128) -> Result<Node, E> {
        let value = i128::try_from(value).map_err(|_| E::custom("a number that is too large"))?;
        self.visit_i128(value)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Scalar(Raw::Float))
    }
    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Scalar(Raw::Text(value.to_owned())))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut texts = Some(Vec::new());
        while let Some(item) = items.next_element::<Node>()? {
            match (item, &mut texts) {
                (Node::Scalar(Raw::Text(text)), Some(texts)) => texts.push(text),
                _ => texts = None,
            }
        }
        let texts = texts.filter(|texts| !texts.is_empty());
        Ok(Node::Scalar(texts.map_or(Raw::List, Raw::Texts)))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut map: Vec<(Spanned<String>, Node)> = Vec::new();
        while let Some(key) = entries.next_key::<Spanned<String>>()? {
            if map.iter().any(|(known, _)| known.value == key.value) {
                return Err(A::Error::custom(format_args!(
                    "{} is set twice",
                    shown(&key.value)
                )));
            }
            map.push((key, entries.next_value()?));
        }
        Ok(Node::Map(map))
    }
}

/// The keys that `text` sets, and what is wrong with the others.
///
/// # Errors
/// The one problem that keeps `text` from being YAML.
pub(super) fn parse(name: &str, text: &str) -> Result<(Vec<Entry>, Vec<Problem>), Problem> {
    let name: Arc<str> = name.into();
    // A configuration needs none of the depth, and none of the copies, that YAML allows.
    let options = serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_depth: 32,
            max_nodes: 10_000,
            max_documents: 1,
            max_aliases: 100,
        },
    };
    let root: Option<Node> = serde_saphyr::from_str_with_options(text, options)
        .map_err(|err| syntax_problem(&name, text, &err))?;
    let mut walk = Walk {
        name,
        entries: Vec::new(),
        problems: Vec::new(),
    };
    match root {
        None | Some(Node::Scalar(Raw::Null)) => {}
        Some(Node::Map(map)) => walk.section("", map),
        Some(Node::Scalar(_)) => walk.problems.push(Problem::new(
            walk.place(1, 1),
            "the file must hold keys, such as `amqp:` with `  url: …` below it",
        )),
    }
    Ok((walk.entries, walk.problems))
}

struct Walk {
    name: Arc<str>,
    entries: Vec<Entry>,
    problems: Vec<Problem>,
}

impl Walk {
    fn place(&self, line: u64, column: u64) -> Origin {
        Origin::File {
            name: Arc::clone(&self.name),
            line,
            column,
        }
    }

    fn section(&mut self, section: &str, map: Vec<(Spanned<String>, Node)>) {
        for (key, node) in map {
            let at = self.place(key.referenced.line(), key.referenced.column());
            let name = key.value;
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
            match (keys::find(&path).filter(|_| nested), node) {
                (Some(key), Node::Scalar(raw)) => self.entries.push(Entry {
                    path: key.path,
                    raw,
                    at,
                }),
                (Some(key), Node::Map(_)) => self.problems.push(Problem::of(
                    &at,
                    key.path,
                    "holds keys; it must be a single value",
                )),
                (None, node) if nested && keys::is_section(&path) => match node {
                    Node::Map(map) => self.section(&path, map),
                    Node::Scalar(Raw::Null) => {}
                    Node::Scalar(_) => self.problems.push(Problem::of(
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

/// What the YAML parser says, without the text of the file: the line may hold a password.
fn syntax_problem(name: &Arc<str>, text: &str, err: &serde_saphyr::Error) -> Problem {
    let Some(location) = err.location() else {
        return Problem::new(
            Origin::WholeFile(Arc::clone(name)),
            "is not a YAML document that can be read",
        );
    };
    let said = UserMessageFormatter.format_message(err.without_snippet());
    let line = usize::try_from(location.line()).unwrap_or(usize::MAX);
    // Parsers report a broken quote or bracket some lines late, so the lines before count too.
    let secret = text
        .lines()
        .take(line)
        .skip(line.saturating_sub(3))
        .any(|line| line.contains("url") || line.contains('@'));
    let message = if secret || said.contains("://") || said.contains('@') {
        "is not valid YAML (quote texts with special characters; the parser's words may hold a secret and are not shown)"
            .to_owned()
    } else {
        format!("is not valid YAML: {said}")
    };
    Problem::new(
        Origin::File {
            name: Arc::clone(name),
            line: location.line(),
            column: location.column(),
        },
        message,
    )
}
