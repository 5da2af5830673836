//! Verdicts of programs and other workers on jobs.

use std::time::Duration;

use rules::job::outcome::Outcome;
use rules::job::verdict::{MAX_VERDICT, is_ready, read};

/// Maximum wait that a verdict can ask for.
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// Checks a verdict: a line of a program, or the body that another worker sent to the done queue.
///
/// Its fields must be bounded, and those shown to people must be a single line. So must an error,
/// which must not contain more than a part of the input.
pub fn check(data: &[u8]) {
    let ready = is_ready(data);
    let verdict = match read(data) {
        Ok(verdict) => verdict,
        Err(why) => {
            let why = why.to_string();
            assert!(
                why.chars().count() <= 250 && !why.contains(char::is_control),
                "{why}"
            );
            return;
        }
    };
    assert!(data.len() <= MAX_VERDICT);
    assert!(!ready, "one line says one thing");
    if let Outcome::Retry { after, .. } | Outcome::Throttled { after, .. } = &verdict.outcome {
        assert!(after.is_none_or(|after| after <= YEAR));
    }
    if let Outcome::Snooze { after } = &verdict.outcome {
        assert!(*after <= YEAR);
    }
    assert!(
        verdict
            .status
            .is_none_or(|status| (100..=999).contains(&status))
    );
    let reason = match &verdict.outcome {
        Outcome::Retry { reason, .. }
        | Outcome::Throttled { reason, .. }
        | Outcome::Reject { reason } => reason,
        Outcome::Done | Outcome::Snooze { .. } => "",
        Outcome::Late => unreachable!("no program says so"),
    };
    assert!(reason.chars().count() <= 500 && !reason.contains(char::is_control));
    if let Some(result) = &verdict.result {
        // Unescaping makes a text shorter, but a number may be written longer.
        assert!(result.body.len() <= 8 * data.len());
        let kind = result.content_type.as_deref().unwrap_or_default();
        assert!(kind.len() <= 255 && !kind.contains(char::is_control));
    }
}
