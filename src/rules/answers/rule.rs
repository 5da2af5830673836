//! Rules that decide what an answer means by its status, headers and body:
//! `dispatch.http.answers` as a list, and the rules of `dispatch.http.api`.

use std::fmt;
use std::time::SystemTime;

use http::HeaderMap;
use serde_json::Value as Json;

use super::condition::Conditions;
use super::source::{AnswerTime, ValueSource, WaitSource, time_of};
use super::status::Consequence;
use super::value::{Wait, epoch_ms};
use crate::named::Named;

/// An answer of the API.
#[derive(Debug)]
pub struct ReceivedAnswer<'a> {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The body, or `None` if no rule needs it, or not all of it was read.
    pub body: Option<&'a [u8]>,
}

/// A rule: what matching answers mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerRule {
    /// The conditions.
    pub when: Conditions,
    /// The meaning for the job.
    pub means: Consequence,
    /// Whether a pause stops all tenants or only the job's, or `None` to follow
    /// `rate-limiter.throttle-scope`.
    pub stops_all: Option<bool>,
    /// Sources of the wait; the first readable one counts. If empty, the usual headers count.
    pub wait: Vec<WaitSource>,
    /// The reason, a short sentence; may be empty.
    pub why: String,
}

impl AnswerRule {
    fn reads_body(&self) -> bool {
        !self.when.body.is_empty() || self.wait.iter().any(WaitSource::is_in_body)
    }

    /// Returns the wait that an answer names.
    pub(super) fn wait(&self, answer: &ParsedAnswer<'_>) -> Option<Wait> {
        let parts = answer.parts();
        let mut waits = self.wait.iter();
        waits.find_map(|source| source.wait(parts, answer.time))
    }
}

impl fmt::Display for AnswerRule {
    /// Describes the rule in words for an operator.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.when, self.means.name())?;
        let stops = match self.stops_all {
            Some(true) => " all tenants",
            Some(false) => " its tenant",
            None => "",
        };
        f.write_str(stops)?;
        for (at, wait) in self.wait.iter().enumerate() {
            write!(f, "{} {wait}", if at == 0 { "," } else { ", or" })?;
        }
        match self.why.is_empty() {
            true => Ok(()),
            false => write!(f, " ({})", self.why.trim_end_matches('.')),
        }
    }
}

/// Rules of one origin, and the places of a call's cost.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AnswerRules {
    /// The rules; the first that matches counts.
    pub rules: Vec<AnswerRule>,
    /// Sources of the actual cost; the first readable one counts.
    pub cost: Vec<ValueSource>,
}

impl AnswerRules {
    pub(super) fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.cost.is_empty()
    }

    /// Returns true if a rule may stop all tenants.
    pub(super) fn may_stop_all(&self) -> bool {
        self.rules.iter().any(|rule| rule.stops_all == Some(true))
    }

    /// Returns the first rule that matches.
    pub(super) fn find(&self, answer: &ParsedAnswer<'_>) -> Option<&AnswerRule> {
        let mut rules = self.rules.iter();
        rules.find(|rule| rule.when.match_all(answer.received, answer.json.as_ref()))
    }

    /// Returns whether the body of an answer with this head is needed to find the rule that
    /// matches, or for its wait. Returns `None` if no rule can match.
    pub(super) fn need_body(&self, status: u16, headers: &HeaderMap) -> Option<bool> {
        let can_match = |rule: &&AnswerRule| rule.when.match_head(status, headers);
        let mut rules = self.rules.iter().filter(can_match);
        let first = rules.next()?;
        // A rule that reads the body is followed by others if it does not match.
        Some(first.reads_body())
    }
}

/// An answer with its body as JSON.
pub(super) struct ParsedAnswer<'a> {
    received: &'a ReceivedAnswer<'a>,
    json: Option<Json>,
    time: AnswerTime,
}

impl<'a> ParsedAnswer<'a> {
    /// Parses the body. A body that is not JSON has no values.
    pub(super) fn of(received: &'a ReceivedAnswer<'a>, now: SystemTime) -> Self {
        let json = received.body.map(serde_json::from_slice);
        Self {
            received,
            json: json.and_then(Result::ok),
            time: time_of(received.headers, epoch_ms(now)),
        }
    }

    fn parts(&self) -> (&ReceivedAnswer<'a>, Option<&Json>) {
        (self.received, self.json.as_ref())
    }

    /// Returns the cost at the first readable one of `sources`.
    pub(super) fn cost<'s>(
        &self,
        sources: impl IntoIterator<Item = &'s ValueSource>,
    ) -> Option<u64> {
        let mut sources = sources.into_iter();
        sources.find_map(|source| source.cost(self.parts()))
    }
}

#[cfg(test)]
mod tests;
