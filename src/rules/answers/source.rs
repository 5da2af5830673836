//! Places in an answer that say how long to wait and what a call cost.

use std::fmt;
use std::time::Duration;

use http::HeaderMap;
use http::header::DATE;
use serde_json::Value as Json;

use super::condition::as_number;
use super::pointer::{BodyPointer, scalar};
use super::rule::ReceivedAnswer;
use super::value::{HeaderWait, SECOND, TimeForm, Wait, any_time, date_ms};
use crate::limit::MAX_REQUESTS;
use crate::named::Named;
use crate::text::show_duration;

/// A header, or a place in the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueSource {
    /// A header, with its name in lower case.
    Header(String),
    /// A place in the body.
    Body(BodyPointer),
}

/// One way to learn how long to wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitSource {
    /// A time in the answer, and its form, or `None` to find out the form.
    At(ValueSource, Option<TimeForm>),
    /// The time in which a bucket gains what a call lacks: `(needed - left) / per_second`.
    Refill {
        /// Units that the call needs.
        needed: BodyPointer,
        /// Units that are left.
        left: BodyPointer,
        /// Units that the bucket gains per second.
        per_second: BodyPointer,
    },
    /// Always the same time.
    Time(Duration),
}

/// The time of an answer, with which dates are compared.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnswerTime {
    /// Milliseconds since the epoch.
    pub(super) ms: u64,
    /// How much later the true time may be.
    pub(super) rounding: Duration,
}

impl ValueSource {
    /// Returns true if the body must be read.
    pub(super) fn is_in_body(&self) -> bool {
        matches!(self, Self::Body(_))
    }

    /// Returns what `read` makes of each value. A header may be repeated, and a pointer may have
    /// several values.
    fn read<T>(
        &self,
        (answer, json): (&ReceivedAnswer<'_>, Option<&Json>),
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Vec<T> {
        match self {
            Self::Header(name) => {
                let values = answer.headers.get_all(name).into_iter();
                values.filter_map(|value| read(value.as_bytes())).collect()
            }
            Self::Body(place) => {
                let values = json.map_or_else(Vec::new, |json| place.values(json));
                let texts = values.into_iter().filter_map(scalar);
                texts.filter_map(|text| read(text.as_bytes())).collect()
            }
        }
    }

    /// Returns the cost at this place: the largest number, rounded up, at most [`MAX_REQUESTS`].
    pub(super) fn cost(&self, answer: (&ReceivedAnswer<'_>, Option<&Json>)) -> Option<u64> {
        let number = |value: &[u8]| {
            let number = as_number(std::str::from_utf8(value).ok()?)?.ceil();
            // The conversion saturates.
            (number >= 0.0).then_some((number as u64).min(MAX_REQUESTS))
        };
        self.read(answer, number).into_iter().max()
    }
}

impl fmt::Display for ValueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header {name}"),
            Self::Body(place) => write!(f, "body {place}"),
        }
    }
}

impl WaitSource {
    /// Returns true if the body must be read.
    pub(super) fn is_in_body(&self) -> bool {
        match self {
            Self::At(source, _) => source.is_in_body(),
            Self::Refill { .. } => true,
            Self::Time(_) => false,
        }
    }

    /// Returns the wait that the answer names here: the longest, if there are several.
    pub(super) fn wait(
        &self,
        answer: (&ReceivedAnswer<'_>, Option<&Json>),
        now: AnswerTime,
    ) -> Option<Wait> {
        match self {
            Self::At(source, form) => {
                let form = form.or_else(|| usual_form(source));
                let read = |value: &[u8]| match form {
                    Some(form) => form.read(value),
                    None => any_time(value),
                };
                let waits = source.read(answer, read).into_iter();
                waits
                    .map(|wait: HeaderWait| wait.wait(now.ms, now.rounding))
                    .max()
            }
            Self::Refill {
                needed,
                left,
                per_second,
            } => {
                let number = |place: &BodyPointer| {
                    let values = place.values(answer.1?);
                    values
                        .into_iter()
                        .find_map(|value| as_number(&scalar(value)?))
                };
                let (needed, left, rate) = (number(needed)?, number(left)?, number(per_second)?);
                let seconds = ((needed - left) / rate).max(0.0);
                let millis = (seconds * 1_000.0).ceil();
                let time =
                    (rate > 0.0).then(|| Duration::try_from_secs_f64(millis / 1_000.0).ok())??;
                let rounding = Duration::ZERO;
                Some(Wait { time, rounding })
            }
            Self::Time(time) => Some(Wait {
                time: *time,
                rounding: Duration::ZERO,
            }),
        }
    }
}

/// Returns the form that a header's name reveals: `retry-after-ms` has milliseconds.
fn usual_form(source: &ValueSource) -> Option<TimeForm> {
    match source {
        ValueSource::Header(name) if name.ends_with("-ms") => Some(TimeForm::Milliseconds),
        ValueSource::Header(_) | ValueSource::Body(_) => None,
    }
}

impl fmt::Display for WaitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(source, None) => write!(f, "as {source} says"),
            Self::At(source, Some(form)) => write!(f, "as {source} says ({})", form.name()),
            Self::Refill {
                needed,
                left,
                per_second,
            } => write!(f, "for (body {needed} - {left}) / {per_second} seconds"),
            Self::Time(time) => write!(f, "for {}", show_duration(*time)),
        }
    }
}

/// Returns the time of an answer with these headers: its `Date`, or else `now_ms`.
pub(super) fn time_of(headers: &HeaderMap, now_ms: u64) -> AnswerTime {
    let mut dates = headers.get_all(DATE).into_iter();
    let date = dates.find_map(|date| date_ms(date.as_bytes()));
    AnswerTime {
        ms: date.unwrap_or(now_ms),
        rounding: date.map_or(Duration::ZERO, |_| SECOND),
    }
}
