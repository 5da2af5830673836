//! What the API's answer means for its job, and what is said of it: without our secrets, which an API may echo.

use std::sync::Arc;
use std::time::SystemTime;

use hyper::StatusCode;
use hyper::header::HeaderMap;

use super::failed;
use super::kept::Kept;
use super::redaction::{Redaction, drop_begun, hide};
use super::text::one_line;
use super::tokens::Token;
use crate::handler::{Answered, Attempt, Fate, Outcome, Trouble};
use crate::rules::answers::{Answers, Meaning, Pushback, Verdict, verdict};

/// So much of a body is kept, in bytes: what is shown, and room for a secret that crosses its end.
const KEPT: usize = 4 * 1024;

/// What came back for a request.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// The first bytes of the body.
    pub(super) start: Vec<u8>,
    /// There was more of it, or there may have been.
    pub(super) cut: bool,
    /// The secret of its job's tenant, which it may echo.
    pub(super) secret: Option<Arc<str>>,
    /// The access token that the call carried, which it may echo, too.
    pub(super) token: Option<Arc<Token>>,
}

impl Answer {
    /// What its call had for itself that nobody else may see.
    fn secrets(&self) -> impl Iterator<Item = &str> {
        let of_tenant = self.secret.iter();
        let of_tenant = of_tenant.flat_map(|secret| secret.split_whitespace());
        of_tenant.chain(self.token.iter().map(|token| &*token.text))
    }
}

/// Says what answers mean.
pub(super) struct Reader {
    /// Which means what.
    pub(super) answers: Answers,
    /// What an API that echoes our request must not bring into a reason.
    pub(super) redaction: Redaction,
    /// What is kept of answers for results; `None`: nobody wants them.
    pub(super) kept: Option<Kept>,
}

impl Reader {
    /// So much of an answer's body it wants at most, in bytes.
    pub(super) fn keeps(&self) -> usize {
        // One byte more shows that there are more.
        let for_results = self.kept.as_ref().map_or(0, |kept| kept.max_body + 1);
        for_results.max(KEPT)
    }

    /// What becomes of the job that was answered so.
    pub(super) fn read(&self, answer: Answer) -> Attempt {
        let headers = answer.headers.iter();
        let headers = headers.map(|(name, value)| (name.as_str(), value.as_bytes()));
        let status = answer.status.as_u16();
        let verdict = verdict(&self.answers, status, headers, SystemTime::now());
        let outcome = self.outcome(&answer, &verdict);
        let mut seen = verdict.seen;
        // Another status is another matter: limits learn nothing from it.
        seen.refused = seen
            .refused
            .filter(|_| answer.status == StatusCode::TOO_MANY_REQUESTS);
        // Another status that is mapped to a retry is the job's affair.
        let fails = verdict.meaning == Meaning::Retry && answer.status.is_server_error();
        Attempt {
            outcome,
            seen,
            fate: Fate::Answered,
            trouble: fails.then_some(Trouble::Failing),
            answered: self.answered(answer),
        }
    }

    fn outcome(&self, answer: &Answer, verdict: &Verdict) -> Outcome {
        let after = verdict.seen.refused.and_then(|Pushback { after }| after);
        match verdict.meaning {
            Meaning::Done => Outcome::Done,
            Meaning::Throttle => Outcome::Throttled {
                after,
                reason: self.reason(answer),
            },
            Meaning::Reject => Outcome::Reject {
                reason: self.reason(answer),
            },
            Meaning::Retry => failed(self.reason(answer)),
        }
    }

    /// The answer in words.
    fn reason(&self, answer: &Answer) -> String {
        let status = answer.status;
        let mut reason = format!("the API answered {}", status.as_str());
        if let Some(name) = status.canonical_reason() {
            reason = format!("{reason} {name}");
        }
        if status.is_redirection() {
            reason.push_str(" (a redirect; it is not followed)");
        }
        let shown = self.shown(answer);
        if !shown.is_empty() {
            reason = format!("{reason}: {shown}");
        }
        reason
    }

    /// The first bytes of the body as one line of text, without our secrets.
    fn shown(&self, answer: &Answer) -> String {
        let kept = answer.start.len().min(KEPT);
        let secrets = self.redaction.with(answer.secrets());
        let mut text = hide(&answer.start[..kept], &secrets);
        if !answer.cut && answer.start.len() < KEPT {
            return one_line(&String::from_utf8_lossy(&text));
        }
        drop_begun(&mut text, &secrets);
        let text = String::from_utf8_lossy(&text);
        // The first bytes of a character.
        one_line(text.trim_end_matches(char::REPLACEMENT_CHARACTER))
    }

    /// What is told of the answer in its job's result.
    fn answered(&self, answer: Answer) -> Option<Box<Answered>> {
        let kept = self.kept.as_ref()?;
        let secrets = self.redaction.with(answer.secrets());
        let (status, start) = (answer.status.as_u16(), (answer.start, answer.cut));
        let answered = kept.answered(status, &answer.headers, start, &secrets);
        Some(Box::new(answered))
    }
}
