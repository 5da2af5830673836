//! The time from which a published job may start.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use config::{Config, parse_duration};
use rules::job::start::{DELAY, NOT_BEFORE};
use serde_json::Value;

/// The options.
#[derive(Debug, Args)]
pub struct StartOptions {
    /// Earliest start, as a delay after the publication, or, if RabbitMQ writes no timestamp, after a
    /// worker first sees the job (header x-delay)
    #[arg(long, value_name = "TIME", value_parser = delay)]
    delay: Option<Duration>,
    /// Earliest start, as a time of Redis's clock: 2026-01-31T12:00:00Z, or seconds or milliseconds
    /// since 1970 (header x-not-before)
    #[arg(long, value_name = "TIME")]
    not_before: Option<String>,
}

/// Parses the value of `--delay`.
fn delay(text: &str) -> Result<Duration, &'static str> {
    parse_duration(text).ok_or(
        "a duration must be a whole number with a unit: 500ms, 30s, 4m, \
        12h, 7d",
    )
}

impl StartOptions {
    /// Returns true if an option is given.
    pub fn is_some(&self) -> bool {
        self.delay.is_some() || self.not_before.is_some()
    }

    /// Adds the headers for the options.
    ///
    /// # Errors
    /// The problem, as a text for the user.
    pub fn add(self, headers: &mut BTreeMap<String, Value>, config: &Config) -> Result<(), String> {
        if self.is_some() && config.job.max_delayed_start_ms == 0 {
            return Err(
                "job.max-delayed-start is 0: workers start each job as soon as they can".to_owned(),
            );
        }
        let ms = self.delay.map(|delay| delay.as_millis());
        // A delay too long for the number is too long for any job.
        let ms = ms.map(|ms| Value::from(i64::try_from(ms).unwrap_or(i64::MAX)));
        let time = self.not_before.map(Value::String);
        for (option, name, value) in [("--delay", DELAY, ms), ("--not-before", NOT_BEFORE, time)] {
            let Some(value) = value else { continue };
            if headers.insert(name.to_owned(), value).is_some() {
                return Err(format!("{option} and --header {name}=… are both given"));
            }
        }
        Ok(())
    }
}
