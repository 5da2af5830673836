//! Logs, by tracing: lines for people or one JSON object a line, on standard error. Traces: `traces`.

pub(crate) mod traces;

use std::io::IsTerminal;

use tracing::{Level, Metadata};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt, registry};

use crate::config::{Config, Log, LogFormat};

/// Client libraries say at `info` what we say ourselves. lapin says every refusal at `error`, those that we ask for
/// too, and its warnings hold whole messages with their bodies; what it returns to us, we say once.
const QUIET: &str = "lapin=off,hyper=warn,redis=warn";

/// What `log.level` can't ask for: at `trace` lapin shows each frame that it writes, the login with its password too.
fn may_be_said(of: &Metadata<'_>) -> bool {
    let shows_frames = ["lapin", "amq_protocol"].map(|name| of.target().starts_with(name));
    *of.level() != Level::TRACE || shows_frames == [false, false]
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// `log.level` is no filter.
    #[error(
        "log.level: {0:?} is no filter: {1}; use a level (error, warn, info, debug, trace), or target=level pairs"
    )]
    Filter(String, String),
    /// Logging is set up already.
    #[error("logging is set up already: {0}")]
    Twice(String),
}

/// Sends this process's logs to standard error, as `log.format` and `log.level` say. A program with a `tracing` subscriber of
/// its own does without, and keeps lapin's `trace` out of its logs: it holds passwords.
///
/// # Errors
/// [`TelemetryError`] when `log.level` is no filter, or a subscriber is set already.
pub fn init_log(config: &Config) -> Result<(), TelemetryError> {
    init(&config.log)
}

/// The same of `log` alone.
///
/// # Errors
/// As [`init_log`].
#[doc(hidden)]
pub fn init(log: &Log) -> Result<(), TelemetryError> {
    let filter = EnvFilter::try_new(format!("{QUIET},{}", log.level))
        .map_err(|why| TelemetryError::Filter(log.level.clone(), why.to_string()))?;
    let lines = fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let lines = match log.format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let all = registry().with(filter).with(filter_fn(may_be_said));
    let set = all.with(lines).try_init();
    set.map_err(|why| TelemetryError::Twice(why.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_is_none_is_named() {
        let log = Log {
            format: LogFormat::Text,
            level: "sluicegate=loud".to_owned(),
        };
        let why = init(&log).expect_err("there is no such level").to_string();
        assert!(
            why.starts_with("log.level: \"sluicegate=loud\" is no filter: "),
            "{why}"
        );
    }

    #[test]
    fn libraries_are_quiet_unless_they_are_asked_for() {
        let filter = |level: &str| {
            EnvFilter::try_new(format!("{QUIET},{level}"))
                .expect("a filter")
                .to_string()
        };
        let has = |filter: &str, directive| filter.split(',').any(|d| d == directive);
        let debug = filter("debug");
        assert!(has(&debug, "debug") && has(&debug, "lapin=off"), "{debug}");
        let asked = filter("info,lapin=debug");
        assert!(
            has(&asked, "lapin=debug") && !has(&asked, "lapin=off"),
            "{asked}"
        );
    }
}
