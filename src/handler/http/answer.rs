//! Interprets the API's answer for its job, and describes it without our secrets, which an API may
//! echo.

use std::sync::Arc;
use std::time::SystemTime;

use hyper::StatusCode;
use hyper::header::HeaderMap;
use hyper::http::response::Parts;

use super::redaction::{Redaction, drop_begun, hide};
use super::result_fields::ResultFields;
use super::text::one_line;
use super::tokens::AccessToken;
use crate::{ApiAnswer, Attempt, Fate, Outcome, Trouble};
use rules::answers::{Answers, Consequence, Interpretation, Pushback, ReceivedAnswer, verdict};

/// Number of bytes of a body that are kept: the part that is shown, and room for a secret that
/// crosses its end.
const MAX_KEPT_BYTES: usize = 4 * 1024;
/// Maximum size of a body that rules can read, in bytes.
const MAX_RULES_BODY: usize = 64 * 1024;

/// An answer to a request.
pub(super) struct HttpAnswer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// First bytes of the body.
    pub(super) start: Vec<u8>,
    /// Whether there was, or may have been, more of the body.
    pub(super) cut: bool,
    /// Secret of the job's tenant, which the API may echo.
    pub(super) secret: Option<Arc<str>>,
    /// Access token that the call carried, which the API may echo, too.
    pub(super) token: Option<Arc<AccessToken>>,
}

impl HttpAnswer {
    /// Returns the secrets of this call.
    fn secrets(&self) -> impl Iterator<Item = &str> {
        let of_tenant = self.secret.iter();
        let of_tenant = of_tenant.flat_map(|secret| secret.split_whitespace());
        of_tenant.chain(self.token.iter().map(|token| &*token.text))
    }
}

/// Interprets answers.
pub(super) struct AnswerReader {
    /// Meanings of answers.
    pub(super) answers: Answers,
    /// Secrets to hide if an API echoes our request.
    pub(super) redaction: Redaction,
    /// Parts of answers to keep for results, or `None` if there are no results.
    pub(super) result_fields: Option<ResultFields>,
}

impl AnswerReader {
    /// Returns the maximum number of bytes needed of the body of an answer with this head.
    pub(super) fn keeps(&self, head: &Parts) -> usize {
        // One more byte shows whether the body goes on.
        let for_results = self
            .result_fields
            .as_ref()
            .map_or(0, |fields| fields.max_body + 1);
        let is_read = self.answers.need_body(head.status.as_u16(), &head.headers);
        let for_rules = if is_read { MAX_RULES_BODY + 1 } else { 0 };
        for_results.max(for_rules).max(MAX_KEPT_BYTES)
    }

    /// Returns the whole body, if rules need it and it is short enough.
    fn body_for_rules<'a>(&self, answer: &'a HttpAnswer) -> Option<&'a [u8]> {
        let is_whole = !answer.cut && answer.start.len() <= MAX_RULES_BODY;
        let is_read = is_whole && (self.answers).need_body(answer.status.as_u16(), &answer.headers);
        is_read.then_some(answer.start.as_slice())
    }

    /// Turns an answer into the attempt of its job.
    pub(super) fn read(&self, answer: HttpAnswer) -> Attempt {
        let received = ReceivedAnswer {
            status: answer.status.as_u16(),
            headers: &answer.headers,
            body: self.body_for_rules(&answer),
        };
        let verdict = verdict(&self.answers, &received, SystemTime::now());
        let outcome = self.outcome(&answer, &verdict);
        Attempt {
            outcome,
            seen: verdict.lesson(),
            fate: Fate::Answered,
            trouble: verdict.is_failure.then_some(Trouble::Failing),
            answered: self.answered(answer),
        }
    }

    fn outcome(&self, answer: &HttpAnswer, verdict: &Interpretation<'_>) -> Outcome {
        let after = verdict.seen.refused.and_then(|Pushback { after }| after);
        let why = verdict
            .rule
            .map_or("", |rule| rule.why.trim_end_matches('.'));
        let reason = || self.reason(answer, why);
        match verdict.meaning {
            Consequence::Done => Outcome::Done,
            Consequence::Throttle => Outcome::Throttled {
                after,
                reason: reason(),
            },
            Consequence::Reject => Outcome::Reject { reason: reason() },
            Consequence::Retry => Outcome::Retry {
                after: verdict.retry_after,
                reason: reason(),
            },
        }
    }

    /// Describes the answer. `why` is the reason in the rule that decided its meaning.
    fn reason(&self, answer: &HttpAnswer, why: &str) -> String {
        let status = answer.status;
        let mut reason = format!("the API answered {}", status.as_str());
        if let Some(name) = status.canonical_reason() {
            reason = format!("{reason} {name}");
        }
        if status.is_redirection() {
            reason.push_str(" (a redirect; it is not followed)");
        }
        if !why.is_empty() {
            reason = format!("{reason} ({why})");
        }
        let shown = self.shown(answer);
        if !shown.is_empty() {
            reason = format!("{reason}: {shown}");
        }
        reason
    }

    /// Returns the first bytes of the body as one line of text, without our secrets.
    fn shown(&self, answer: &HttpAnswer) -> String {
        let length = answer.start.len().min(MAX_KEPT_BYTES);
        let secrets = self.redaction.with(answer.secrets());
        let mut text = hide(&answer.start[..length], &secrets);
        if !answer.cut && answer.start.len() < MAX_KEPT_BYTES {
            return one_line(&String::from_utf8_lossy(&text));
        }
        drop_begun(&mut text, &secrets);
        let text = String::from_utf8_lossy(&text);
        // The bound may cut a character in two: drop its first bytes.
        one_line(text.trim_end_matches(char::REPLACEMENT_CHARACTER))
    }

    /// Returns the parts of the answer that belong into the job's result.
    fn answered(&self, answer: HttpAnswer) -> Option<Box<ApiAnswer>> {
        let fields = self.result_fields.as_ref()?;
        let secrets = self.redaction.with(answer.secrets());
        let (status, start) = (answer.status.as_u16(), (answer.start, answer.cut));
        let answered = fields.answered(status, &answer.headers, start, &secrets);
        Some(Box::new(answered))
    }
}
