//! Decides what an answer of the API means for its job: by rules, or by its status, a readable
//! `Retry-After`, and whether a limit is used up.

use std::collections::BTreeMap;
use std::fmt;

use http::HeaderMap;
use strum::{IntoStaticStr, VariantArray};

use super::rule::{AnswerRule, AnswerRules, ParsedAnswer};
use crate::named::Named;

/// The consequence of an answer for its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Consequence {
    /// `done`: the job is acked.
    Done,
    /// `retry`: the job failed for now, which uses an attempt.
    Retry,
    /// `throttle`: the API asks for a pause; the job waits and uses no attempt.
    Throttle,
    /// `reject`: the job becomes a dead letter.
    Reject,
}

impl Named for Consequence {}

/// The answers that a line of the table applies to: `409`, `5xx`, or either with `+retry-after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnswerPattern {
    status: StatusPattern,
    /// Whether the line applies only to answers with a readable `Retry-After`.
    retry_after: bool,
}

/// A status or a class of statuses: `409`, `5xx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatusPattern {
    /// A status.
    One(u16),
    /// All statuses with this first digit.
    Class(u16),
}

impl StatusPattern {
    /// Parses the text that [`Display`](fmt::Display) writes. Returns `None` if it is no status
    /// from 100 to 599 and no class from `1xx` to `5xx`.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |digits: &str| {
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| digits.parse::<u16>().ok())?
        };
        match text.strip_suffix("xx") {
            Some(class) => Some(Self::Class(number(class).filter(|n| (1..=5).contains(n))?)),
            None => Some(Self::One(number(text).filter(|n| (100..=599).contains(n))?)),
        }
    }

    /// Returns true for `status`.
    pub fn matches(self, status: u16) -> bool {
        match self {
            Self::One(one) => one == status,
            Self::Class(class) => class == status / 100,
        }
    }

    /// Returns true if all statuses of `other` are among these.
    pub(super) fn covers(self, other: Self) -> bool {
        self == other || matches!(other, Self::One(status) if self.matches(status))
    }
}

impl fmt::Display for StatusPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(status) => write!(f, "{status}"),
            Self::Class(class) => write!(f, "{class}xx"),
        }
    }
}

/// The suffix in the text form of a [`AnswerPattern`].
const RETRY_AFTER: &str = "+retry-after";

impl AnswerPattern {
    /// Parses the text that [`Display`](fmt::Display) writes. Returns `None` for other texts.
    pub fn parse(text: &str) -> Option<Self> {
        let (status, retry_after) = match text.strip_suffix(RETRY_AFTER) {
            Some(status) => (status, true),
            None => (text, false),
        };
        Some(Self {
            status: StatusPattern::parse(status)?,
            retry_after,
        })
    }
}

impl fmt::Display for AnswerPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)?;
        match self.retry_after {
            true => f.write_str(RETRY_AFTER),
            false => Ok(()),
        }
    }
}

const fn one(status: u16) -> AnswerPattern {
    AnswerPattern {
        status: StatusPattern::One(status),
        retry_after: false,
    }
}

const fn class(digit: u16) -> AnswerPattern {
    AnswerPattern {
        status: StatusPattern::Class(digit),
        retry_after: false,
    }
}

const fn with_retry_after(which: AnswerPattern) -> AnswerPattern {
    AnswerPattern {
        retry_after: true,
        ..which
    }
}

/// The default meanings. 423 and 425 are temporary by definition. A 403 with a `Retry-After` is a
/// rate limit as well, such as GitHub's secondary rate limit.
const DEFAULTS: [(AnswerPattern, Consequence); 11] = [
    (class(2), Consequence::Done),
    (class(3), Consequence::Reject),
    (class(4), Consequence::Reject),
    (with_retry_after(one(403)), Consequence::Throttle),
    (one(408), Consequence::Retry),
    (one(423), Consequence::Retry),
    (one(425), Consequence::Retry),
    (one(429), Consequence::Throttle),
    (class(5), Consequence::Retry),
    (with_retry_after(one(503)), Consequence::Throttle),
    // A final 1xx can only be a 101, which no request asks for: the server is at fault.
    (class(1), Consequence::Retry),
];

/// Signs in an answer, besides the status, that decide its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AnswerSigns {
    /// Whether it has a `Retry-After` that can be read.
    pub retry_after: bool,
    /// Whether the answer says that a limit is used up. Limits of one call are ignored: each call
    /// uses them up.
    pub is_exhausted: bool,
}

/// The meanings of answers: configured rules, then the rules of the API's profile, then the table
/// of defaults with the configured lines that replace or refine them. A configured line for one
/// status comes before the profile.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answers {
    own: BTreeMap<AnswerPattern, Consequence>,
    rules: AnswerRules,
    profile: AnswerRules,
}

impl Answers {
    /// Adds a line. Returns false if there already was one for the same answers.
    pub fn set(&mut self, which: AnswerPattern, meaning: Consequence) -> bool {
        self.own.insert(which, meaning).is_none()
    }

    /// Makes a 401 mean `retry`, unless it is configured. For calls with access tokens, which a 401
    /// renews.
    pub fn renewing_tokens(mut self) -> Self {
        self.own.entry(one(401)).or_insert(Consequence::Retry);
        self
    }

    /// Sets the configured rules.
    #[must_use]
    pub fn with_rules(self, rules: AnswerRules) -> Self {
        Self { rules, ..self }
    }

    /// Sets the rules of the API's profile.
    #[must_use]
    pub fn with_profile(self, profile: AnswerRules) -> Self {
        Self { profile, ..self }
    }

    /// Returns the configured rules.
    pub fn rules(&self) -> &AnswerRules {
        &self.rules
    }

    /// Returns true if an answer may stop all tenants, under any `rate-limiter.throttle-scope`.
    pub fn may_stop_all(&self) -> bool {
        self.rules.may_stop_all() || self.profile.may_stop_all()
    }

    /// Returns true if there are rules.
    pub(super) fn has_rules(&self) -> bool {
        !self.rules.is_empty() || !self.profile.is_empty()
    }

    /// Returns true if the meaning of an answer with this head, its wait or its cost may depend on
    /// its body.
    pub fn need_body(&self, status: u16, headers: &HeaderMap) -> bool {
        if !self.has_rules() {
            return false;
        }
        let mut cost = self.rules.cost.iter().chain(&self.profile.cost);
        let of_profile = || match self.own.contains_key(&one(status)) {
            true => None,
            false => self.profile.need_body(status, headers),
        };
        let by_rules = self.rules.need_body(status, headers).or_else(of_profile);
        by_rules == Some(true) || cost.any(|source| source.is_in_body())
    }

    /// Returns the rule that decides the meaning of `answer`, if one does.
    pub(super) fn rule(
        &self,
        status: u16,
        says: AnswerSigns,
        answer: &ParsedAnswer<'_>,
    ) -> Option<&AnswerRule> {
        let plain = one(status);
        let lines = [plain, with_retry_after(plain)];
        let mut lines = lines
            .into_iter()
            .filter(|line| says.retry_after || !line.retry_after);
        self.rules.find(answer).or_else(|| {
            let is_named = lines.any(|line| self.own.contains_key(&line));
            (!is_named).then(|| self.profile.find(answer))?
        })
    }

    /// Returns the actual cost of the call, if a configured source or one of the profile says it.
    pub(super) fn cost(&self, answer: &ParsedAnswer<'_>) -> Option<u64> {
        answer.cost(self.rules.cost.iter().chain(&self.profile.cost))
    }

    /// Returns the meaning of an answer with `status`. The most specific line counts: a status
    /// before a class, and of either the line with `Retry-After` first, if the answer has one.
    ///
    /// A 4xx or 5xx counts as a refusal if nothing is left (GitHub's primary rate limit is a 403),
    /// unless a configured line names this very status, or its class is `done`.
    pub fn meaning(&self, status: u16, says: AnswerSigns) -> Consequence {
        let [one, class] = [one(status), class(status / 100)];
        let lines = [with_retry_after(one), one, with_retry_after(class), class];
        let fits = |which: &AnswerPattern| says.retry_after || !which.retry_after;
        let line = lines.into_iter().filter(fits).find_map(|which| {
            let meaning = self.line(which)?;
            let chosen = which.status == one.status && self.own.contains_key(&which);
            Some((meaning, chosen))
        });
        // No line matches a status such as 600.
        let (meaning, chosen) = line.unwrap_or((Consequence::Retry, false));
        let fails = matches!(meaning, Consequence::Retry | Consequence::Reject);
        let is_refusal = says.is_exhausted && (400..600).contains(&status);
        match is_refusal && fails && !chosen {
            true => Consequence::Throttle,
            false => meaning,
        }
    }

    fn line(&self, which: AnswerPattern) -> Option<Consequence> {
        let default = || DEFAULTS.iter().find(|(known, _)| *known == which);
        let own = self.own.get(&which).copied();
        own.or_else(|| default().map(|(_, meaning)| *meaning))
    }
}

#[cfg(test)]
mod tests {
    use super::Consequence::{Done, Reject, Retry, Throttle};
    use super::*;

    #[track_caller]
    fn check(answers: &Answers, status: u16, plain: Consequence, with_retry_after: Consequence) {
        let meanings = [false, true].map(|retry_after| {
            let says = AnswerSigns {
                retry_after,
                is_exhausted: false,
            };
            answers.meaning(status, says)
        });
        assert_eq!(meanings, [plain, with_retry_after], "{status}");
    }

    #[test]
    fn a_failure_without_quota_is_a_refusal_unless_its_status_is_configured() {
        let mut answers = Answers::default();
        for (which, meaning) in [
            ("404", Reject),
            ("409", Done),
            ("410+retry-after", Reject),
            ("4xx", Retry),
            ("3xx", Retry),
        ] {
            answers.set(AnswerPattern::parse(which).expect(which), meaning);
        }
        let is_exhausted = |answers: &Answers, status, retry_after| {
            let says = AnswerSigns {
                retry_after,
                is_exhausted: true,
            };
            answers.meaning(status, says)
        };
        for status in [400, 402, 403, 408, 420, 423, 429, 499, 500, 503, 509, 599] {
            for table in [&Answers::default(), &answers] {
                let meanings = [false, true].map(|has| is_exhausted(table, status, has));
                assert_eq!(meanings, [Throttle, Throttle], "{status}");
            }
        }
        for (status, meaning) in [(200, Done), (204, Done), (302, Reject), (100, Retry)] {
            let found = is_exhausted(&Answers::default(), status, false);
            assert_eq!(found, meaning, "{status}");
        }
        assert_eq!(is_exhausted(&answers, 302, false), Retry);
        assert_eq!(is_exhausted(&answers, 404, false), Reject);
        assert_eq!(is_exhausted(&answers, 409, false), Done);
        assert_eq!(is_exhausted(&answers, 410, false), Throttle);
        assert_eq!(is_exhausted(&answers, 410, true), Reject);
        let mut answers = Answers::default();
        answers.set(AnswerPattern::parse("4xx").expect("a class"), Done);
        assert_eq!(is_exhausted(&answers, 404, false), Done);
    }

    #[test]
    fn the_defaults() {
        let answers = Answers::default();
        for (statuses, plain, with_retry_after) in [
            (&[200, 201, 202, 204, 299][..], Done, Done),
            (&[300, 302, 304, 399], Reject, Reject),
            (&[400, 401, 404, 409, 410, 422, 499], Reject, Reject),
            (&[403], Reject, Throttle),
            (&[408, 423, 425], Retry, Retry),
            (&[429], Throttle, Throttle),
            (&[500, 501, 502, 504, 599], Retry, Retry),
            (&[503], Retry, Throttle),
            (&[100, 101, 199, 600, 999], Retry, Retry),
        ] {
            for status in statuses {
                check(&answers, *status, plain, with_retry_after);
            }
        }
    }

    #[test]
    fn the_most_specific_line_counts() {
        let mut answers = Answers::default();
        for (which, meaning) in [
            ("4xx", Retry),
            ("403", Done),
            ("409+retry-after", Throttle),
            ("5xx+retry-after", Throttle),
            ("4xx+retry-after", Done),
            ("404", Done),
        ] {
            assert!(answers.set(AnswerPattern::parse(which).expect(which), meaning));
        }
        assert!(!answers.set(AnswerPattern::parse("404").expect("a status"), Reject));
        check(&answers, 404, Reject, Reject);
        check(&answers, 400, Retry, Done);
        check(&answers, 429, Throttle, Throttle);
        check(&answers, 403, Done, Throttle);
        check(&answers, 409, Retry, Throttle);
        check(&answers, 502, Retry, Throttle);
        check(&answers, 200, Done, Done);
    }

    #[test]
    fn a_line_survives_a_round_trip() {
        for text in ["409", "100", "599+retry-after", "5xx", "4xx+retry-after"] {
            let which = AnswerPattern::parse(text).expect(text);
            assert_eq!(which.to_string(), text);
        }
        for text in [
            "",
            "99",
            "600",
            "0xx",
            "6xx",
            "xx",
            "x",
            "4x",
            "40x",
            "+409",
            "409 ",
            "409+",
            "4XX",
            "409+retry",
            "+retry-after",
            "99999",
            "٤xx",
        ] {
            assert_eq!(AnswerPattern::parse(text), None, "{text:?}");
        }
    }
}
