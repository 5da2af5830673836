//! Jobs with publish times, read from a file with one JSON object per line.

use std::collections::BTreeMap;
use std::io::{BufRead, Read as _};

use broker::Message;
use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use rules::headers;
use rules::policy::Policy;
use rules::tenant::Tenant;
use rules::text;
use serde::de::Deserializer;
use serde::{Deserialize, Serialize};

use crate::environment::QUEUE;
use crate::forms::{MAX_COST, MAX_DURATION};
use crate::mistake;
use crate::scalar::{self, Scalar};

/// Maximum number of jobs in a simulation. A waiting job takes about a kilobyte.
pub const MAX_JOBS: usize = 2_000_000;
/// Maximum length of a line, in bytes.
const MAX_LINE_BYTES: usize = 64 * 1024;
/// Maximum number of headers of a job.
const MAX_HEADERS: usize = 32;
/// Maximum length of a text, in bytes: that of AMQP's short strings.
const MAX_TEXT_BYTES: usize = 255;

/// The tenant's header. The configured one does not apply, since a job of a file has no message of
/// its own.
pub const TENANT: &str = "x-tenant";

/// A job that is published.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct SimulatedJob {
    /// Publish time, in seconds after the beginning.
    pub at: f64,
    /// Its tenant.
    #[serde(deserialize_with = "text::name")]
    pub tenant: String,
    /// Its cost.
    #[serde(default = "one")]
    pub cost: u64,
    /// Its level (`job.priorities`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Text>,
    /// Its plan (`rate-limiter.plan-header`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "text::name_if_any")]
    pub plan: Option<String>,
    /// The routing key that brought it to its queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "routing-key")]
    pub routing_key: Option<String>,
    /// Other headers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub header: BTreeMap<String, Text>,
}

/// A text or a whole number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Text {
    /// A whole number.
    Number(i64),
    /// A text.
    Text(String),
}

impl Scalar for Text {
    const EXPECTED: &str = "a string or a 64-bit integer";

    fn whole(number: i64) -> Self {
        Self::Number(number)
    }

    fn real(_: f64) -> Option<Self> {
        None
    }

    fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        scalar::read(deserializer)
    }
}

fn one() -> u64 {
    1
}

/// The reason why a file of jobs can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobsError {
    /// A line is invalid.
    #[error("line {line}: {why}")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// The reason.
        why: String,
    },
    /// The file has no jobs.
    #[error(
        "there are no jobs in it; each line must be a JSON object such as {{\"at\": 1.5, \
        \"tenant\": \"acme\"}}"
    )]
    Empty,
    /// The file has too many jobs.
    #[error("there are more than {MAX_JOBS} jobs in it; simulate only a part of them")]
    TooMany,
    /// The file can't be read.
    #[error("it can't be read: {0}")]
    Unreadable(String),
}

impl SimulatedJob {
    /// Creates a job of `tenant` that costs 1.
    pub fn new(at: f64, tenant: impl Into<String>) -> Self {
        Self {
            at,
            tenant: tenant.into(),
            cost: 1,
            priority: None,
            plan: None,
            routing_key: None,
            header: BTreeMap::new(),
        }
    }

    /// Returns the publish time in microseconds after the beginning.
    pub fn at_us(&self) -> u64 {
        (self.at * 1e6).round() as u64
    }

    /// Checks the job's values.
    ///
    /// # Errors
    /// Returns the first problem, as a text that can follow the job's location.
    pub fn check(&self) -> Result<(), String> {
        let days = MAX_DURATION.as_secs();
        // NaN is in no range.
        if !(0.0..=days as f64).contains(&self.at) {
            return Err(format!(
                "at is {:?}; it must be in seconds after the start, from 0 to {days}",
                self.at
            ));
        }
        if !(1..=MAX_COST).contains(&self.cost) {
            return Err(format!(
                "cost is {}; it must be a whole number from 1 to {MAX_COST}",
                self.cost
            ));
        }
        Tenant::parse(&self.tenant).map_err(|why| format!("tenant: {why}"))?;
        if self.header.len() > MAX_HEADERS {
            return Err(format!(
                "it has {} headers; the maximum is {MAX_HEADERS}",
                self.header.len()
            ));
        }
        if self.header.contains_key(headers::COST) {
            return Err(format!(
                "it has a header {}; set cost instead",
                headers::COST
            ));
        }
        let ours = |name: &&String| name.starts_with("x-sluicegate-") || *name == TENANT;
        if let Some(name) = self.header.keys().find(ours) {
            return Err(format!(
                "header {} is reserved for Sluicegate",
                mistake::shown(name)
            ));
        }
        let values = self.header.values().chain(&self.priority);
        let values = values.filter_map(|value| match value {
            Text::Text(text) => Some(text),
            Text::Number(_) => None,
        });
        let texts = (self.header.keys())
            .chain(values)
            .chain(&self.plan)
            .chain(&self.routing_key);
        match texts.into_iter().find(|text| text.len() > MAX_TEXT_BYTES) {
            Some(text) => Err(format!(
                "it has a text of {} bytes; the maximum is {MAX_TEXT_BYTES}",
                text.len()
            )),
            None => Ok(()),
        }
    }

    /// Returns the value of the header `name` that the job sets by itself or by its level.
    pub fn header_value(&self, name: &str) -> Option<&Text> {
        let level = self.priority.as_ref().filter(|_| name == headers::LEVEL);
        level.or_else(|| self.header.get(name))
    }

    /// Returns the plan that the job's message names under `policy`.
    pub fn plan_under(&self, policy: &Policy) -> Option<String> {
        let header = policy.plan_header()?;
        let named = self.plan.clone();
        named.or_else(|| match self.header.get(header)? {
            Text::Text(plan) => Some(plan.clone()),
            Text::Number(plan) => Some(plan.to_string()),
        })
    }

    /// Builds the job's message, with this id.
    pub fn message(&self, id: usize, plan_header: Option<&str>) -> Message {
        let text = |text: &str| AMQPValue::LongString(text.into());
        let value = |value: &Text| match value {
            Text::Number(number) => AMQPValue::LongLongInt(*number),
            Text::Text(it) => text(it),
        };
        let mut table = FieldTable::default();
        for (name, it) in &self.header {
            table.insert(name.as_str().into(), value(it));
        }
        table.insert(TENANT.into(), text(&self.tenant));
        if self.cost != 1 {
            let cost = i64::try_from(self.cost).unwrap_or(i64::MAX);
            table.insert(headers::COST.into(), AMQPValue::LongLongInt(cost));
        }
        if let Some(level) = &self.priority {
            table.insert(headers::LEVEL.into(), value(level));
        }
        if let (Some(name), Some(plan)) = (plan_header, &self.plan) {
            table.insert(name.into(), text(plan));
        }
        Message {
            routing_key: self.routing_key.as_deref().unwrap_or(QUEUE).to_owned(),
            properties: BasicProperties::default()
                .with_message_id(id.to_string().into())
                .with_headers(table),
            body: Bytes::new(),
        }
    }
}

/// Reads jobs, one JSON object per line, and sorts them by time. Empty lines are skipped.
///
/// # Errors
/// Returns a [`JobsError`] that names the invalid line and the expected content.
pub fn read(mut file: impl BufRead) -> Result<Vec<SimulatedJob>, JobsError> {
    let mut jobs = Vec::new();
    let mut bytes = Vec::new();
    for line in 1.. {
        let wrong = |why: String| JobsError::Line { line, why };
        bytes.clear();
        // One byte more than the maximum shows that the line is too long.
        let max = MAX_LINE_BYTES as u64 + 1;
        let read = file.by_ref().take(max).read_until(b'\n', &mut bytes);
        if read.map_err(|why| JobsError::Unreadable(why.to_string()))? == 0 {
            break;
        }
        if bytes.len() > MAX_LINE_BYTES {
            return Err(wrong(format!("it is longer than {MAX_LINE_BYTES} bytes")));
        }
        let text = text::decode(&bytes)
            .map_err(|why| wrong(why.to_string()))?
            .trim();
        if text.is_empty() {
            continue;
        }
        if jobs.len() == MAX_JOBS {
            return Err(JobsError::TooMany);
        }
        if text.starts_with('[') {
            let why = "it is a list; each line must be a JSON object such as {\"at\": 1.5, \"tenant\": \
                \"acme\"}";
            return Err(wrong(why.to_owned()));
        }
        let job: SimulatedJob =
            serde_json::from_str(text).map_err(|why| wrong(in_line(text, &why)))?;
        job.check().map_err(wrong)?;
        jobs.push(job);
    }
    if jobs.is_empty() {
        return Err(JobsError::Empty);
    }
    sort(&mut jobs);
    Ok(jobs)
}

/// Describes the error in the line `text`. In JSON's `… at line 1 column 7`, only the column is
/// useful.
pub fn in_line(text: &str, error: &serde_json::Error) -> String {
    let words = error.to_string();
    let Some((why, column)) = words.rsplit_once(" at line 1 column ") else {
        return mistake::describe(&words);
    };
    let before = text.get(..error.column()).unwrap_or_default();
    let why = mistake::at_key(why, before);
    mistake::describe(&format!("{why} (at byte {column})"))
}

/// Sorts jobs by time. Jobs of the same time keep their order.
pub fn sort(jobs: &mut [SimulatedJob]) {
    sort_by(jobs, |job| job.at);
}

/// Sorts any items by the time that `at` returns, like [`sort`].
pub(crate) fn sort_by<T>(jobs: &mut [T], at: impl Fn(&T) -> f64) {
    jobs.sort_by(|one, two| at(one).total_cmp(&at(two)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<SimulatedJob>, JobsError> {
        read(text.as_bytes())
    }

    #[test]
    fn tenants_plans_and_levels_may_be_whole_numbers() {
        let jobs = read_text("{\"at\": 1, \"tenant\": 42, \"plan\": 7}").expect("usable");
        assert_eq!(
            (&*jobs[0].tenant, jobs[0].plan.as_deref()),
            ("42", Some("7"))
        );
        // Any header of a recorded job. Only job.priorities decides which numbers are levels.
        for priority in [300, -1] {
            let text = format!("{{\"at\": 1, \"tenant\": \"a\", \"priority\": {priority}}}");
            let jobs = read_text(&text).expect("usable");
            assert_eq!(jobs[0].priority, Some(Text::Number(priority)));
        }
        let utf16: Vec<u8> = "\u{feff}{\"at\": 1}\n"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        let why = read(&*utf16).expect_err("it is no UTF-8").to_string();
        assert_eq!(why, "line 1: it is UTF-16 text; save it as UTF-8");
    }

    #[test]
    fn jobs_are_read_in_the_order_of_their_times() {
        let jobs = read_text(concat!(
            "\u{feff}{\"at\": 2, \"tenant\": \"b\", \"cost\": 3, \"priority\": \"high\"}\n\n",
            "{\"tenant\": \"a\", \"at\": 1.5, \"header\": {\"x-endpoint\": \"/v1\", \"n\": 7}}\r\n",
        ));
        let jobs = jobs.expect("they can be read");
        assert_eq!((jobs[0].tenant.as_str(), jobs[0].at_us()), ("a", 1_500_000));
        assert_eq!(jobs[1].priority, Some(Text::Text("high".to_owned())));
        assert_eq!(jobs[0].header["n"], Text::Number(7));
    }

    #[test]
    fn invalid_jobs_are_reported_with_their_line() {
        let good = "{\"at\": 1, \"tenant\": \"a\"}\n";
        for (bad, words) in [
            ("{\"at\": 1, \"tennant\": \"a\"}", "did you mean tenant?"),
            ("{\"at\": -1, \"tenant\": \"a\"}", "at is -1"),
            ("{\"at\": 1e308, \"tenant\": \"a\"}", "at is 1e308; it"),
            ("{\"at\": \"1s\", \"tenant\": \"a\"}", "at: invalid type"),
            ("{\"at\": \"1s\", \"tenant\": \"a\"}", "expected a number"),
            (
                "{\"at\": 1, \"tenant\": \"a\", \"header\": {\"b\": [1]}}",
                "b: invalid type: sequence, expected a string or a 64-bit integer",
            ),
            ("[1, \"a\"]", "it is a list"),
            ("7", "expected a JSON object"),
            ("{\"at\": NaN, \"tenant\": \"a\"}", "expected a JSON value"),
            ("{\"at\": 1e300, \"tenant\": \"a\"}", "from 0 to"),
            ("{\"at\": 1, \"tenant\": \"\"}", "tenant"),
            ("{\"at\": 1, \"tenant\": \"a\", \"cost\": 0}", "cost is 0"),
            (
                "{\"at\": 1, \"tenant\": \"a\", \"cost\": 1.5}",
                "invalid type",
            ),
            (
                "{\"at\": 1, \"tenant\": \"a\", \"header\": {\"x-sluicegate-trip\": \"1\"}}",
                "is reserved for Sluicegate",
            ),
            ("not json", "at byte"),
            ("{\"at\": 1", "EOF"),
        ] {
            let why = read_text(&format!("{good}{bad}\n"))
                .expect_err(bad)
                .to_string();
            assert!(why.starts_with("line 2: ") && why.contains(words), "{why}");
        }
        assert_eq!(read_text(" \n\n"), Err(JobsError::Empty));
        let long = format!("{good}{}", " ".repeat(MAX_LINE_BYTES + 1));
        assert!(matches!(
            read_text(&long),
            Err(JobsError::Line { line: 2, .. })
        ));
        let binary = read(&b"\xff\xfe\x00\x01\n"[..]);
        assert!(matches!(binary, Err(JobsError::Line { line: 1, .. })));
    }
}
