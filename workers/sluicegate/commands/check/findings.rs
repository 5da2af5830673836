//! The findings of `check`, with one line each.

use std::io::Write;

use serde::Serialize;

use crate::commands::plain;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    Ok,
    Warn,
    Error,
}

/// One checked item.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) level: Severity,
    what: &'static str,
    text: String,
}

#[derive(Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    pub(super) fn add(&mut self, level: Severity, what: &'static str, text: impl Into<String>) {
        // Servers may send any text. It is kept on one line.
        let text = plain(&text.into(), 1_000);
        self.0.push(Finding { level, what, text });
    }

    pub(super) fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        for Finding { level, what, text } in &self.0 {
            let level = match level {
                Severity::Ok => "ok",
                Severity::Warn => "warn",
                Severity::Error => "error",
            };
            writeln!(out, "{level:<6}{what:<9} {text}")?;
        }
        Ok(())
    }
}
