//! `dispatch.exec`: a program that gets each job.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::input::ConfigInput;
use super::key::{MINUTE, duration, keys, tree};
use super::parse::{ValueError, wrong};
use super::shown_value::{ShownValue, ShownValues};
use super::yaml::Raw;

/// Maximum number of words in a command.
const MAX_WORDS: usize = 64;
/// Maximum length of a word in bytes.
const MAX_WORD_BYTES: usize = 4 << 10;
/// Maximum of `timeout`: RabbitMQ closes a channel with a delivery that is unacked for 30 minutes.
const MAX_CALL_MS: u64 = 25 * MINUTE;

keys! {
    COMMAND: Vec<String> = tree(
        "dispatch.exec.command",
        "list of texts: a program and its arguments",
        schema,
        command,
    )
        .example("[python3, worker.py]")
        .about("The program that is given jobs, in place of an API.")
        .note("It is no line for a shell. See [commands](HANDLERS.md#programs).");
    TIMEOUT: Duration = duration::<1, MAX_CALL_MS>("dispatch.exec.timeout")
        .default("10s")
        .example("2m")
        .about("How long a program may take for one job; then it is killed, and the job is tried again.");
    START_TIMEOUT: Duration = duration::<1, { 10 * MINUTE }>("dispatch.exec.start-timeout")
        .default("30s")
        .example("2m")
        .about("How long a program may take from its start until it is ready for jobs.");
}

/// `dispatch.exec`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exec {
    /// `dispatch.exec.command`: a program and its arguments, at least one text.
    pub command: Vec<String>,
    /// `dispatch.exec.timeout`
    pub timeout: Duration,
    /// `dispatch.exec.start-timeout`
    pub start_timeout: Duration,
}

impl Exec {
    /// Adds the section's values to `values`.
    pub(super) fn show(&self, values: &mut ShownValues) {
        let Self {
            command,
            timeout,
            start_timeout,
        } = self;
        values.set(&COMMAND.key, ShownValue::texts(command));
        values.set(&TIMEOUT.key, ShownValue::duration(*timeout));
        values.set(&START_TIMEOUT.key, ShownValue::duration(*start_timeout));
    }
}

impl ConfigInput {
    /// Reads the section. Returns `Some(None)` without a command, and `None` after a problem.
    pub(super) fn exec(&mut self) -> Option<Option<Exec>> {
        let command = self.optional(&COMMAND);
        let timeout = self.get(&TIMEOUT);
        let start_timeout = self.get(&START_TIMEOUT);
        let (command, timeout, start_timeout) = (command?, timeout?, start_timeout?);
        let Some(command) = command else {
            let (late, slow) = (
                self.is_meant(&TIMEOUT, &timeout),
                self.is_meant(&START_TIMEOUT, &start_timeout),
            );
            let key = match (late, slow) {
                (false, false) => return Some(None),
                (true, _) => &TIMEOUT.key,
                _ => &START_TIMEOUT.key,
            };
            return self.wrong(key, "is of no use without dispatch.exec.command");
        };
        Some(Some(Exec {
            command,
            timeout,
            start_timeout,
        }))
    }

    /// Reports that the command is set together with `other`.
    pub(super) fn exec_with<T>(&mut self, other: &str) -> Option<T> {
        let words = format!("is set, and so is {other}: jobs go one way; keep one of them");
        self.wrong(&COMMAND.key, words)
    }
}

fn command(raw: &Raw) -> Result<Vec<String>, ValueError> {
    const MUST: &str = "a list of a program and its arguments, such as [python3, worker.py]";
    let Raw::List(items) = raw else {
        return Err(wrong(raw, MUST));
    };
    if items.is_empty() || items.len() > MAX_WORDS {
        let number = items.len();
        return Err(format!(
            "has {number} texts; it must be {MUST}, of up to {MAX_WORDS} texts"
        ));
    }
    let mut words = Vec::new();
    for item in items {
        let word = match &item.raw {
            Raw::Text(text) => text.clone(),
            Raw::Int(number) => number.to_string(),
            Raw::Bool(_) | Raw::Float | Raw::Null => {
                return Err(format!(
                    "has an entry that YAML reads as no text; put it in quotes: it must be {MUST}"
                ));
            }
            _ => return Err(format!("has an entry that is no text; it must be {MUST}")),
        };
        if word.len() > MAX_WORD_BYTES || word.contains('\0') {
            return Err(format!(
                "has a text with a zero byte, or of more than {MAX_WORD_BYTES} bytes"
            ));
        }
        words.push(word);
    }
    match words.first() {
        Some(program) if !program.is_empty() => Ok(words),
        _ => Err(format!("names no program; it must be {MUST}")),
    }
}

fn schema() -> Json {
    json!({
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_WORDS,
        "items": {"type": ["string", "integer"], "maxLength": MAX_WORD_BYTES},
    })
}
