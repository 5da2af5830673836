//! Conditions of a rule on status, headers and body of an answer.

use std::borrow::Cow;
use std::fmt;

use http::HeaderMap;
use serde_json::Value as Json;

use super::pointer::{BodyPointer, scalar};
use super::rule::ReceivedAnswer;
use super::status::StatusPattern;

/// A condition on one value, which is a text, a number or a truth value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueTest {
    /// One of these values.
    OneOf(Vec<ExpectedValue>),
    /// Contains this text; ignores case.
    Contains(String),
    /// Begins with this text; ignores case.
    StartsWith(String),
    /// A number up to this one.
    AtMost(i64),
    /// A number from this one on.
    AtLeast(i64),
    /// Whether there is any value other than null.
    Present(bool),
}

/// A value that an answer is compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExpectedValue {
    /// Equal except for case.
    Text(String),
    /// Equal as a number.
    Number(i64),
    /// `true` or `false`.
    Truth(bool),
}

impl ExpectedValue {
    fn is(&self, value: &str) -> bool {
        match self {
            Self::Text(text) => has_case(text, value),
            Self::Number(number) => as_number(value) == Some(*number as f64),
            Self::Truth(truth) => value.parse() == Ok(*truth),
        }
    }
}

impl fmt::Display for ExpectedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => write!(f, "{number}"),
            Self::Truth(truth) => write!(f, "{truth}"),
        }
    }
}

/// Returns true if both texts are equal except for the case of any letter.
fn has_case(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other) || one.to_lowercase() == other.to_lowercase()
}

/// Parses a decimal number.
pub(super) fn as_number(value: &str) -> Option<f64> {
    let number: f64 = value.trim().parse().ok()?;
    number.is_finite().then_some(number)
}

impl ValueTest {
    /// Returns true if one of `values` passes. [`ValueTest::Present`] only asks whether there are
    /// any.
    fn holds<'v>(&self, mut values: impl Iterator<Item = Cow<'v, str>>) -> bool {
        if let Self::Present(present) = self {
            return values.next().is_some() == *present;
        }
        values.any(|value| self.passes(&value))
    }

    fn passes(&self, value: &str) -> bool {
        let lower = || value.to_lowercase();
        match self {
            Self::OneOf(expected) => expected.iter().any(|expected| expected.is(value.trim())),
            Self::Contains(part) => lower().contains(&part.to_lowercase()),
            Self::StartsWith(start) => lower().starts_with(&start.to_lowercase()),
            Self::AtMost(most) => as_number(value).is_some_and(|number| number <= *most as f64),
            Self::AtLeast(least) => as_number(value).is_some_and(|number| number >= *least as f64),
            Self::Present(present) => *present,
        }
    }
}

impl fmt::Display for ValueTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneOf(expected) => {
                let all: Vec<String> = expected.iter().map(ExpectedValue::to_string).collect();
                write!(f, "is {}", all.join(" or "))
            }
            Self::Contains(part) => write!(f, "contains {part:?}"),
            Self::StartsWith(start) => write!(f, "begins with {start:?}"),
            Self::AtMost(most) => write!(f, "is at most {most}"),
            Self::AtLeast(least) => write!(f, "is at least {least}"),
            Self::Present(true) => f.write_str("is present"),
            Self::Present(false) => f.write_str("is absent"),
        }
    }
}

/// The conditions of a rule: all must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Conditions {
    /// Statuses and classes, of which one must match; empty for any status.
    pub status: Vec<StatusPattern>,
    /// Names of headers in lower case, with conditions on their values.
    pub headers: Vec<(String, ValueTest)>,
    /// Places in the body, with conditions on their values.
    pub body: Vec<(BodyPointer, ValueTest)>,
}

impl Conditions {
    /// Returns true if status and headers of an answer match.
    pub(super) fn match_head(&self, status: u16, headers: &HeaderMap) -> bool {
        let matches = |pattern: &StatusPattern| pattern.matches(status);
        let holds = |(name, test): &(String, ValueTest)| {
            let values = headers.get_all(name).into_iter();
            test.holds(values.map(|value| String::from_utf8_lossy(value.as_bytes())))
        };
        (self.status.is_empty() || self.status.iter().any(matches))
            && self.headers.iter().all(holds)
    }

    /// Returns true if all of an answer matches. `json` is its body, if that is JSON and was read.
    /// A condition on the body holds for no other body.
    pub(super) fn match_all(&self, answer: &ReceivedAnswer<'_>, json: Option<&Json>) -> bool {
        self.match_head(answer.status, answer.headers)
            && (self.body.iter()).all(|(place, test)| {
                json.is_some_and(|json| test.holds(present(test, &place.values(json)).into_iter()))
            })
    }
}

/// Returns the texts of `values`. Objects and arrays count if `test` asks for presence.
fn present<'v>(test: &ValueTest, values: &[&'v Json]) -> Vec<Cow<'v, str>> {
    let any = matches!(test, ValueTest::Present(_));
    let text = |value: &&'v Json| match value {
        Json::Array(_) | Json::Object(_) if any => Some(Cow::Borrowed("")),
        value => scalar(value),
    };
    values.iter().filter_map(text).collect()
}

impl fmt::Display for Conditions {
    /// Describes the matching answers: `403 with header retry-after is present`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status: Vec<String> = self.status.iter().map(StatusPattern::to_string).collect();
        match status.is_empty() {
            true => f.write_str("an answer")?,
            false => f.write_str(&status.join(" or "))?,
        }
        let headers = self.headers.iter();
        let headers = headers.map(|(name, test)| format!("header {name} {test}"));
        let body = self.body.iter();
        let body = body.map(|(place, test)| format!("body {place} {test}"));
        let all: Vec<String> = headers.chain(body).collect();
        match all.is_empty() {
            true => Ok(()),
            false => write!(f, " if {}", all.join(" and ")),
        }
    }
}
