//! Turns verdicts into attempts: verdicts of programs of `dispatch.exec`, and of workers behind
//! `dispatch.forward`.

use super::{ApiAnswer, Attempt, Fate, Outcome, Trouble};
use rules::answers::Pushback;
use rules::job::verdict::Verdict;

/// Converts a verdict.
pub(super) fn attempt(verdict: Verdict) -> Attempt {
    let Verdict {
        call: _,
        id: _,
        outcome,
        cost,
        status,
        result,
    } = verdict;
    let refused = match &outcome {
        Outcome::Throttled { after, .. } => Some(Pushback { after: *after }),
        _ => None,
    };
    let mut attempt = Attempt::from(outcome);
    attempt.fate = Fate::Answered;
    attempt.seen.actual_cost = cost;
    attempt.seen.refused = refused;
    if status.is_some() || result.is_some() {
        let (body, content_type) = match result {
            Some(result) => (result.body, result.content_type),
            None => Default::default(),
        };
        attempt.answered = Some(Box::new(ApiAnswer {
            status,
            content_type,
            body,
            ..ApiAnswer::default()
        }));
    }
    attempt
}

/// Returns a temporary failure that uses an attempt.
pub(super) fn retry(reason: impl Into<String>) -> Outcome {
    Outcome::Retry {
        after: None,
        reason: reason.into(),
    }
}

/// Returns an attempt without a call. `trouble` names the party at fault.
pub(super) fn unprepared(trouble: Trouble, reason: impl Into<String>) -> Attempt {
    Attempt {
        fate: Fate::Unwritten,
        trouble: Some(trouble),
        ..retry(reason).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::job::verdict;

    #[test]
    fn a_verdict_brings_its_cost_and_its_answer() {
        let text = br#"{"outcome":"done","cost":12,"status":201,"body":{"a":1}}"#;
        let attempt = attempt(verdict::read(text).expect("a verdict"));
        assert_eq!(attempt.outcome, Outcome::Done);
        assert_eq!(attempt.seen.actual_cost, Some(12));
        assert!(attempt.trouble.is_none() && matches!(attempt.fate, Fate::Answered));
        let answered = attempt.answered.expect("an answer");
        assert_eq!(
            (answered.status, &answered.body[..]),
            (Some(201), &b"{\"a\":1}"[..])
        );
        assert!(super::attempt(Verdict::DONE).answered.is_none());
    }

    #[test]
    fn a_retry_verdict_counts_as_an_api_failure() {
        let text = br#"{"outcome":"retry","after":1}"#;
        let attempt = attempt(verdict::read(text).expect("a verdict"));
        assert!(attempt.trouble.is_some());
    }
}
