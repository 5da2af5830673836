//! Reads the verdict of a program on a job, one line of JSON: from a child of `dispatch.exec`, or a
//! worker behind `dispatch.forward`.
//!
//! Both belong to the operator, but may have bugs: a verdict with any field that is not understood
//! is rejected.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use serde_json::Value as Json;

use crate::job::outcome::Outcome;
use crate::text::{one_line, parse_duration};

/// Maximum size of a verdict in bytes: a body of a megabyte, as base64.
pub const MAX_VERDICT: usize = 3 << 19;
/// Maximum number of characters of a reason; the rest is cut off.
const MAX_REASON: usize = 500;
/// Maximum `after`.
const MAX_AFTER: Duration = Duration::from_secs(365 * 86_400);
/// Maximum length of a content type in bytes.
const MAX_TYPE: usize = 255;

/// A body for the job's result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultBody {
    /// The bytes.
    pub body: Bytes,
    /// Their content type.
    pub content_type: Option<String>,
}

/// A program's verdict on a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The number of the call, if given. A program must give it, because its verdicts may come in
    /// any order.
    pub call: Option<u64>,
    /// The ID of the job, if given.
    pub id: Option<String>,
    /// The outcome of the job.
    pub outcome: Outcome,
    /// The actual cost of the job.
    pub cost: Option<u64>,
    /// The status of an answer, for the result.
    pub status: Option<u16>,
    /// The body of an answer, for the result.
    pub result: Option<ResultBody>,
}

impl Verdict {
    /// Done, without any other field.
    pub const DONE: Self = Self {
        call: None,
        id: None,
        outcome: Outcome::Done,
        cost: None,
        status: None,
        result: None,
    };
}

/// Why a text is not a verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoVerdict(String);

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum OutcomeWord {
    Done,
    Retry,
    Snooze,
    Throttled,
    Reject,
}

/// A number of seconds, or a text such as `500ms`.
struct DelayValue(Duration);

impl<'de> Deserialize<'de> for DelayValue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct DelayVisitor;
        const MUST: &str = "a number of seconds, or a text such as \"500ms\", \"10s\" or \"5m\"";
        impl Visitor<'_> for DelayVisitor {
            type Value = Duration;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(MUST)
            }
            fn visit_u64<E: Error>(self, seconds: u64) -> Result<Duration, E> {
                Ok(Duration::from_secs(seconds))
            }
            fn visit_f64<E: Error>(self, seconds: f64) -> Result<Duration, E> {
                Duration::try_from_secs_f64(seconds)
                    .map_err(|_| E::custom(format!("after must be {MUST}")))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
                duration(text).ok_or_else(|| E::custom(format!("after must be {MUST}")))
            }
        }
        let after = from.deserialize_any(DelayVisitor)?;
        if after > MAX_AFTER {
            return Err(D::Error::custom("after is more than 365 days"));
        }
        Ok(Self(after))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
struct WrittenVerdict {
    call: Option<u64>,
    id: Option<String>,
    outcome: OutcomeWord,
    after: Option<DelayValue>,
    reason: Option<String>,
    cost: Option<u64>,
    status: Option<u16>,
    body: Option<Json>,
    body_base64: Option<String>,
    content_type: Option<String>,
}

/// Parses a verdict.
///
/// # Errors
/// Returns a [`NoVerdict`] that explains the error in one line of bounded length without any value
/// of the text.
pub fn read(text: &[u8]) -> Result<Verdict, NoVerdict> {
    let wrong = |why: &str| Err(NoVerdict(why.to_owned()));
    if text.len() > MAX_VERDICT {
        return Err(NoVerdict(format!("it is longer than {MAX_VERDICT} bytes")));
    }
    let written: WrittenVerdict = match serde_json::from_slice(text) {
        Ok(written) => written,
        Err(why) => {
            return Err(NoVerdict(format!(
                "it is not a verdict: {}",
                explained(&why)
            )));
        }
    };
    let after = written.after.map(|DelayValue(after)| after);
    let reason = reason_of(written.reason.as_deref());
    let outcome = match (written.outcome, after) {
        (OutcomeWord::Snooze, Some(after)) => Outcome::Snooze { after },
        (OutcomeWord::Snooze, None) => {
            return wrong(
                "snooze requires after, the time until the job runs \
            again",
            );
        }
        (OutcomeWord::Done | OutcomeWord::Reject, Some(_)) => {
            return wrong("only retry, snooze and throttled can have after");
        }
        (OutcomeWord::Done, None) => Outcome::Done,
        (OutcomeWord::Reject, None) => Outcome::Reject { reason },
        (OutcomeWord::Retry, after) => Outcome::Retry { after, reason },
        (OutcomeWord::Throttled, after) => Outcome::Throttled { after, reason },
    };
    if written
        .status
        .is_some_and(|status| !(100..=999).contains(&status))
    {
        return wrong("status is not a number from 100 to 999");
    }
    let own_type = written.content_type;
    if own_type
        .as_ref()
        .is_some_and(|text| text.len() > MAX_TYPE || text.contains(char::is_control))
    {
        return wrong("content_type is not a valid type name");
    }
    let body = match (written.body, written.body_base64) {
        (Some(_), Some(_)) => return wrong("it has both body and body_base64"),
        (None, None) => None,
        (None, Some(text)) => match BASE64_STANDARD.decode(text) {
            Ok(bytes) => Some((Bytes::from(bytes), None)),
            Err(_) => return wrong("body_base64 is not valid base64"),
        },
        (Some(Json::String(text)), None) => {
            Some((Bytes::from(text), Some("text/plain; charset=utf-8")))
        }
        (Some(json), None) => Some((Bytes::from(json.to_string()), Some("application/json"))),
    };
    Ok(Verdict {
        call: written.call,
        id: written.id,
        outcome,
        cost: written.cost,
        status: written.status,
        result: body.map(|(body, kind)| ResultBody {
            body,
            content_type: own_type.or(kind.map(str::to_owned)),
        }),
    })
}

/// Returns the JSON error, cut to 200 characters on one line, because it may quote the program's
/// text.
fn explained(why: &serde_json::Error) -> String {
    one_line(&why.to_string(), 200)
}

fn reason_of(reason: Option<&str>) -> String {
    match reason.filter(|reason| !reason.trim().is_empty()) {
        Some(reason) => one_line(reason, MAX_REASON),
        None => "it gave no reason".to_owned(),
    }
}

/// Parses a whole number with the unit `ms`, `s`, `m`, `h` or `d`.
fn duration(text: &str) -> Option<Duration> {
    let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
    let is_one_word = !text.contains(char::is_whitespace);
    (has_unit && is_one_word).then(|| parse_duration(text))?
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
struct ReadyMessage {
    ready: bool,
}

/// Returns true if `text` reports that the program is ready for a job: `{"ready": true}`.
pub fn is_ready(text: &[u8]) -> bool {
    serde_json::from_slice::<ReadyMessage>(text).is_ok_and(|message| message.ready)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Verdict, String> {
        read(text.as_bytes()).map_err(|why| why.to_string())
    }

    fn outcome(text: &str) -> Outcome {
        parsed(text)
            .unwrap_or_else(|why| panic!("{text}: {why}"))
            .outcome
    }

    #[test]
    fn each_outcome_is_read_with_its_fields() {
        const S: Duration = Duration::from_secs(1);
        assert_eq!(parsed(r#"{"outcome": "done"}"#), Ok(Verdict::DONE));
        let reason = || "busy".to_owned();
        for (text, meant) in [
            (
                r#"{"outcome":"retry","reason":"busy"}"#,
                Outcome::Retry {
                    after: None,
                    reason: reason(),
                },
            ),
            (
                r#"{"outcome":"retry","after":5,"reason":"busy"}"#,
                Outcome::Retry {
                    after: Some(5 * S),
                    reason: reason(),
                },
            ),
            (
                r#"{"outcome":"snooze","after":"5m"}"#,
                Outcome::Snooze { after: 300 * S },
            ),
            (
                r#"{"outcome":"snooze","after":0.5}"#,
                Outcome::Snooze { after: S / 2 },
            ),
            (
                r#"{"outcome":"throttled","after":"30s","reason":"busy"}"#,
                Outcome::Throttled {
                    after: Some(30 * S),
                    reason: reason(),
                },
            ),
            (
                r#"{"outcome":"reject","reason":"busy"}"#,
                Outcome::Reject { reason: reason() },
            ),
        ] {
            assert_eq!(outcome(text), meant, "{text}");
        }
    }

    #[test]
    fn a_body_is_a_text_json_or_bytes() {
        let body = |text: &str| {
            let result = parsed(text).expect(text).result.expect("a body");
            (result.body, result.content_type.unwrap_or_default())
        };
        let json = "application/json".to_owned();
        assert_eq!(
            body(r#"{"outcome":"done","body":{"a": 1}}"#),
            (r#"{"a":1}"#.into(), json)
        );
        let (text, kind) = body(r#"{"outcome":"done","body":"a\nb"}"#);
        assert_eq!(
            (&text[..], &*kind),
            (&b"a\nb"[..], "text/plain; charset=utf-8")
        );
        let (bytes, kind) =
            body(r#"{"outcome":"done","body_base64":"/w==","content_type":"image/png"}"#);
        assert_eq!((&bytes[..], &*kind), (&[0xff][..], "image/png"));
        let full = parsed(r#"{"call":17,"id":"7","outcome":"done","cost":12,"status":201}"#);
        let full = full.expect("a verdict");
        assert_eq!((full.call, full.id.as_deref()), (Some(17), Some("7")));
        assert_eq!((full.cost, full.status), (Some(12), Some(201)));
    }

    #[test]
    fn unknown_texts_are_not_verdicts() {
        for (text, word) in [
            ("", "EOF"),
            ("done", "expected"),
            ("{}", "outcome"),
            (r#"{"outcome":"ok"}"#, "unknown variant"),
            (r#"{"outcome":"done","more":1}"#, "unknown field"),
            (r#"{"outcome":"done"} x"#, "trailing"),
            (r#"{"outcome":"done","outcome":"retry"}"#, "duplicate"),
            (r#"{"outcome":"snooze"}"#, "after"),
            (r#"{"outcome":"done","after":1}"#, "after"),
            (r#"{"outcome":"retry","after":-1}"#, "seconds"),
            (r#"{"outcome":"retry","after":-0.5}"#, "seconds"),
            (r#"{"outcome":"retry","after":"soon"}"#, "seconds"),
            (r#"{"outcome":"retry","after":"9999d"}"#, "365"),
            (r#"{"outcome":"done","cost":-1}"#, "u64"),
            (r#"{"outcome":"done","call":"17"}"#, "u64"),
            (r#"{"outcome":"done","status":9}"#, "status"),
            (r#"{"outcome":"done","body":1,"body_base64":""}"#, "both"),
            (r#"{"outcome":"done","body_base64":"?"}"#, "base64"),
            (
                r#"{"outcome":"done","content_type":"a\nb"}"#,
                "content_type",
            ),
        ] {
            let why = parsed(text).expect_err(text);
            assert!(why.contains(word), "{text}: {why}");
        }
        let long = format!(
            r#"{{"outcome":"done","body":"{}"}}"#,
            "x".repeat(MAX_VERDICT)
        );
        assert!(parsed(&long).expect_err("too long").contains("longer"));
    }

    #[test]
    fn a_reason_is_one_bounded_line() {
        let long = format!(
            r#"{{"outcome":"reject","reason":"a\nb{}"}}"#,
            "x".repeat(1000)
        );
        let Outcome::Reject { reason } = outcome(&long) else {
            panic!("rejected")
        };
        assert!(reason.starts_with("a bxxx") && reason.len() == MAX_REASON);
        for nothing in [
            r#"{"outcome":"retry"}"#,
            r#"{"outcome":"retry","reason":" "}"#,
        ] {
            let reason = "it gave no reason".to_owned();
            assert_eq!(
                outcome(nothing),
                Outcome::Retry {
                    after: None,
                    reason
                }
            );
        }
    }

    #[test]
    fn ready_is_one_line() {
        assert!(is_ready(br#"{"ready": true}"#));
        for text in [
            "",
            "ready",
            "{}",
            r#"{"ready": false}"#,
            r#"{"ready": true, "x": 1}"#,
        ] {
            assert!(!is_ready(text.as_bytes()), "{text}");
        }
    }
}
