//! The log of the process: to standard error through `tracing`, as text or as one JSON object per
//! line.

use std::io::IsTerminal;
use std::sync::Mutex;

use tracing::{Level, Metadata};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt, registry};

use crate::log_output::{LogOutput, PATIENCE};
use config::{Config, Log, LogFormat};

/// Filter directives that silence client libraries. At `info` they log what Sluicegate logs itself.
/// lapin logs every refusal at `error`, even an expected one, and its warnings contain whole
/// messages with their bodies. Errors that it returns to us are logged once, by us.
const QUIET: &str = "lapin=off,hyper=warn,redis=warn";

/// Returns false for lapin's `trace` events, which `log.level` can't enable: they show each frame
/// that lapin writes, including the login with its password.
fn may_log(of: &Metadata<'_>) -> bool {
    let shows_frames = ["lapin", "amq_protocol"].map(|name| of.target().starts_with(name));
    *of.level() != Level::TRACE || shows_frames == [false, false]
}

/// The reason why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// `log.level` is not a valid filter.
    #[error(
        "log.level: {0:?} is not a valid filter: {1}; use a level (error, warn, info, debug, \
        trace), or target=level pairs"
    )]
    Filter(String, String),
    /// A `tracing` subscriber is already set.
    #[error("logging is already set up: {0}")]
    Twice(String),
}

/// Sends this process's logs to standard error, as `log.format` and `log.level` configure. A
/// program with its own `tracing` subscriber does not call this, and must keep lapin's `trace`
/// events out of its logs: they contain passwords.
///
/// # Errors
/// [`TelemetryError`] if `log.level` is not a valid filter, or a subscriber is already set.
pub fn init_log(config: &Config) -> Result<(), TelemetryError> {
    init(&config.log)
}

/// Does what [`init_log`] does, given only the `log` section.
///
/// # Errors
/// See [`init_log`].
#[doc(hidden)]
pub fn init(log: &Log) -> Result<(), TelemetryError> {
    let filter = EnvFilter::try_new(format!("{QUIET},{}", log.level))
        .map_err(|why| TelemetryError::Filter(log.level.clone(), why.to_string()))?;
    let output = LogOutput::new(std::io::stderr(), PATIENCE, log.format);
    let lines = fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(Mutex::new(output));
    let lines = match log.format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let all = registry().with(filter).with(filter_fn(may_log));
    let set = all.with(lines).try_init();
    set.map_err(|why| TelemetryError::Twice(why.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_filter_is_named() {
        let log = Log {
            format: LogFormat::Text,
            level: "sluicegate=loud".to_owned(),
        };
        let why = init(&log).expect_err("there is no such level").to_string();
        assert!(
            why.starts_with("log.level: \"sluicegate=loud\" is not a valid filter: "),
            "{why}"
        );
    }

    #[test]
    fn libraries_are_quiet_unless_enabled_by_the_filter() {
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
