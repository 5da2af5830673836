//! `log`: what a worker logs.

use serde_json::{Value as Json, json};
use strum::{IntoStaticStr, VariantArray};

use super::section::section;
use crate::reading::key::{choice, text};
use crate::reading::parse::text as parse_text;
use crate::reading::{Raw, ShownValue, ValueError, hint, keys, show, wrong};
use rules::named::Named;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

keys! {
    FORMAT: LogFormat = choice("log.format")
        .default("text")
        .about("Format of the log: text lines, or one JSON object per line.");
    LEVEL: String = text(
        "log.level",
        "`off`, `error`, `warn`, `info`, `debug`, `trace`, or a list of `target=level`",
        level_schema,
        level,
    )
        .default("info")
        .about("Log level, also per target.")
        .note("The AMQP client is silent unless it is named: `info,lapin=debug`. Its `trace` is \
            never logged, since it contains the password.");
}

section! {
    /// `log`
    #[derive(Debug, Clone, PartialEq)]
    pub struct Log {
        /// `log.format`
        pub format: LogFormat = FORMAT,
        /// `log.level`: a `tracing-subscriber` filter, such as `info` or `sluicegate=debug`.
        pub level: String = LEVEL,
    }
}

/// `log.format`
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum LogFormat {
    /// Text lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

impl Named for LogFormat {}
show!(ShownValue::named => LogFormat);

/// Parses a filter of `tracing-subscriber`. The library takes any bare word for a target that logs
/// everything, so a misspelled level would switch all other logs off. Such words are rejected.
fn level(raw: &Raw) -> Result<String, ValueError> {
    let must = format!(
        "{}, or a list such as info,sluicegate=debug",
        LEVELS.join(", ")
    );
    let text = parse_text(raw, &must)?;
    for part in text.split(',').map(str::trim) {
        let level = part.rsplit('=').next().unwrap_or(part).to_lowercase();
        if !LEVELS.contains(&level.as_str()) {
            return Err(format!("{}{}", wrong(raw, must), hint(&level, LEVELS)));
        }
    }
    match tracing_subscriber::EnvFilter::builder().parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(wrong(raw, must)),
    }
}

fn level_schema() -> Json {
    let levels = LEVELS.join("|");
    let part = format!("\\s*([^,]*=)?({levels})\\s*");
    json!({"type": "string", "pattern": format!("^{part}(,{part})*$"), "examples": LEVELS})
}
