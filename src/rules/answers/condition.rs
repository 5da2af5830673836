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

    /// Returns true if each value that passes `other` passes this condition, too.
    fn covers(&self, other: &Self) -> bool {
        let lower = |text: &str| text.to_lowercase();
        match (self, other) {
            (Self::Present(true), other) => *other != Self::Present(false),
            (Self::AtMost(most), Self::AtMost(other)) => other <= most,
            (Self::AtLeast(least), Self::AtLeast(other)) => other >= least,
            (Self::Contains(part), Self::Contains(other) | Self::StartsWith(other)) => {
                lower(other).contains(&lower(part))
            }
            (Self::StartsWith(start), Self::StartsWith(other)) => {
                lower(other).starts_with(&lower(start))
            }
            (Self::Present(_), _) => self == other,
            (_, Self::OneOf(all)) => all.iter().all(|value| self.covers_value(value)),
            (one, other) => one == other,
        }
    }

    /// Returns true if each text that is `value` passes. A number has several texts.
    fn covers_value(&self, value: &ExpectedValue) -> bool {
        match (self, value) {
            (Self::OneOf(all), ExpectedValue::Text(text)) => (all.iter())
                .any(|one| matches!(one, ExpectedValue::Text(one) if has_case(one, text))),
            (Self::OneOf(all), value) => all.contains(value),
            (Self::Contains(_) | Self::StartsWith(_), ExpectedValue::Text(_))
            | (Self::AtMost(_) | Self::AtLeast(_), ExpectedValue::Number(_)) => {
                self.passes(&value.to_string())
            }
            _ => false,
        }
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
    /// Returns true if these conditions match each answer that `other` matches.
    pub fn covers(&self, other: &Self) -> bool {
        let (own, others) = (&self.status, &other.status);
        let has_status = |status: &StatusPattern| own.iter().any(|pattern| pattern.covers(*status));
        (own.is_empty() || (!others.is_empty() && others.iter().all(has_status)))
            && cover(&self.headers, &other.headers)
            && cover(&self.body, &other.body)
    }

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

/// Returns true if the tests `own` hold wherever `others` do.
fn cover<P: PartialEq>(own: &[(P, ValueTest)], others: &[(P, ValueTest)]) -> bool {
    own.iter().all(|(place, test)| {
        let mut others = others.iter();
        others.any(|(other_place, other)| other_place == place && test.covers(other))
    })
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

#[cfg(test)]
mod tests {
    use super::ExpectedValue::{Number, Text};
    use super::ValueTest::{AtLeast, AtMost, Contains, OneOf, Present, StartsWith};
    use super::*;

    fn one_of(texts: &[&str]) -> ValueTest {
        OneOf(texts.iter().map(|text| Text((*text).to_owned())).collect())
    }

    fn number(number: i64) -> ValueTest {
        OneOf(vec![Number(number)])
    }

    #[test]
    fn conditions_cover_stricter_ones() {
        let contains = |text: &str| Contains(text.to_owned());
        let starts = |text: &str| StartsWith(text.to_owned());
        let of_header = |test: &ValueTest| Conditions {
            headers: vec![("x".to_owned(), test.clone())],
            ..Conditions::default()
        };
        let of_body = |test: &ValueTest| Conditions {
            body: BodyPointer::parse("/x")
                .map(|place| (place, test.clone()))
                .into_iter()
                .collect(),
            ..Conditions::default()
        };
        for (wide, strict) in [
            (AtMost(3), AtMost(0)),
            (AtMost(3), number(0)),
            (AtLeast(3), AtLeast(4)),
            (AtLeast(3), number(3)),
            (contains("limit"), contains("Rate limited")),
            (contains("limit"), starts("limited")),
            (contains("limit"), one_of(&["LIMIT"])),
            (starts("Rate"), starts("rate limit")),
            (one_of(&["a", "b"]), one_of(&["B"])),
            (Present(true), one_of(&["a"])),
            (Present(true), AtMost(0)),
        ] {
            for of in [&of_header as &dyn Fn(&ValueTest) -> Conditions, &of_body] {
                let (wide, strict) = (of(&wide), of(&strict));
                assert!(
                    wide.covers(&strict) && wide.covers(&wide),
                    "{wide} {strict}"
                );
                assert!(Conditions::default().covers(&strict), "{strict}");
                assert!(!strict.covers(&wide), "{strict} {wide}");
                assert!(!strict.covers(&Conditions::default()), "{strict}");
            }
        }
        for (one, other) in [(one_of(&["1"]), number(1)), (starts("5"), number(50))] {
            assert!(!of_header(&one).covers(&of_header(&other)), "{one} {other}");
        }
        let [is, is_not] = [true, false].map(|present| of_header(&Present(present)));
        assert!(!is.covers(&is_not) && !is_not.covers(&is));
        assert!(!is_not.covers(&of_header(&number(1))) && is_not.covers(&is_not));
    }

    #[test]
    fn a_class_covers_its_statuses() {
        let of = |statuses: &[&str]| Conditions {
            status: statuses
                .iter()
                .filter_map(|text| StatusPattern::parse(text))
                .collect(),
            ..Conditions::default()
        };
        assert!(of(&["4xx", "500"]).covers(&of(&["429", "500", "4xx"])));
        assert!(of(&[]).covers(&of(&["429"])));
        assert!(!of(&["429"]).covers(&of(&["4xx"])));
        assert!(!of(&["4xx"]).covers(&of(&["429", "500"])));
        assert!(!of(&["4xx"]).covers(&of(&[])));
    }
}
