//! `dispatch.exec`: a program that gets each job.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::section::section;
use crate::reading::key::{MAX_CALL_MS, MINUTE, duration, tree};
use crate::reading::{Raw, ValueError, keys, wrong};

/// Maximum number of words in a command.
const MAX_WORDS: usize = 64;
/// Maximum length of a word in bytes.
const MAX_WORD_BYTES: usize = 4 << 10;

keys! {
    COMMAND: Vec<String> = tree(
        "dispatch.exec.command",
        "list of texts: a program and its arguments",
        schema,
        command,
    )
        .about("Program that processes jobs instead of an API.")
        .note("It runs without a shell. See [commands](HANDLERS.md#programs).");
    TIMEOUT: Duration = duration::<1, MAX_CALL_MS>("dispatch.exec.timeout")
        .default("10s")
        .about("Time that a program has for one job; after that it is killed, and the job is \
            retried.");
    START_TIMEOUT: Duration = duration::<1, { 10 * MINUTE }>("dispatch.exec.start-timeout")
        .default("30s")
        .about("Time that a program has from its start until it is ready for jobs.");
}

section! {
    /// `dispatch.exec`
    #[derive(Debug, Clone, PartialEq, Eq)]
    optional struct Exec {
        /// `dispatch.exec.command`: a program and its arguments, at least one text.
        pub command: Vec<String> = COMMAND,
        /// `dispatch.exec.timeout`
        pub timeout: Duration = TIMEOUT,
        /// `dispatch.exec.start-timeout`
        pub start_timeout: Duration = START_TIMEOUT,
    }
    |input| {
        if input.lacks(&COMMAND.key) {
            let words = "has no effect without dispatch.exec.command; set that or remove this key";
            return input.unused("dispatch.exec.", words);
        }
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
            "has {number} entries; it must be {MUST}, with at most {MAX_WORDS} entries"
        ));
    }
    let mut words = Vec::new();
    for item in items {
        let word = match &item.raw {
            Raw::Text(text) => text.clone(),
            Raw::Int(number) => number.to_string(),
            Raw::Bool(_) | Raw::Float | Raw::Null => {
                return Err(format!(
                    "has an entry that YAML does not read as text; put it in quotes: it must be \
                    {MUST}"
                ));
            }
            _ => return Err(format!("has an entry that is not text; it must be {MUST}")),
        };
        if word.len() > MAX_WORD_BYTES || word.contains('\0') {
            return Err(format!(
                "has an entry with a zero byte or with more than {MAX_WORD_BYTES} bytes"
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
