//! Describes what a limit learned from the API's answers, in words and as JSON.

use serde_json::{Value, json};

use crate::text::count;
use crate::times::at;
use gate::UsageOfLimit;
use rules::learned::LearnedState;
use rules::limit::Limit;

/// Returns the number of the first unit that the API refused.
fn refused_at(learned: &LearnedState) -> u64 {
    learned.seen.saturating_sub(learned.refused) + 1
}

/// Returns lines to print below the limit's line; empty if nothing was learned.
pub(super) fn describe(limit: &Limit, usage: &UsageOfLimit, now_ms: u64) -> String {
    let Some(learned) = &usage.learned else {
        return String::new();
    };
    let most = learned
        .highest_max(now_ms)
        .max(limit.floor().unwrap_or_default());
    if most >= usage.set {
        // An operator's higher maximum has ended, or an operator set less than was learned.
        return String::new();
    }
    let in_force = format!("{most} of {} in force", usage.set);
    // If an operator set less, the numbers refer to the configured maximum.
    let max = usage.set.max(limit.max());
    let mut text = String::new();
    if learned.at_ms > 0 {
        let since = at(learned.at_ms);
        let force = match most == learned.to {
            true => format!("{in_force} since {since}"),
            false => format!("{in_force}, {} since {since}", learned.to),
        };
        text += &format!(
            "\n          learned: {force}: the API answered 429 at {} of {max} ({}); back to \
            {max} by {} without further 429s",
            refused_at(learned),
            count(learned.times, "time"),
            at(learned.ends_ms)
        );
        let past = learned.past.iter().filter(|(at_ms, _)| *at_ms > 0);
        let past: Vec<String> = past
            .map(|(at_ms, to)| format!("{to} since {}", at(*at_ms)))
            .collect();
        if !past.is_empty() {
            text += &format!("\n          before that: {}", past.join(", "));
        }
    }
    if learned.advertised_until_ms > now_ms {
        text += &format!(
            "\n          learned: at most {} of {} in force, as advertised by the API; until {} \
            unless it is advertised again",
            learned.advertised_max,
            usage.set,
            at(learned.advertised_until_ms)
        );
    }
    text
}

/// Returns the learned state as JSON, or `null` if there is none.
pub(super) fn as_json(usage: &UsageOfLimit) -> Value {
    let Some(learned) = &usage.learned else {
        return Value::Null;
    };
    let past = learned.past.iter().filter(|(at_ms, _)| *at_ms > 0);
    let past: Vec<Value> = past
        .map(|(at_ms, to)| json!({"at_ms": at_ms, "max_requests": to}))
        .collect();
    let refused = learned.at_ms > 0;
    json!({
        "since_ms": learned.since_ms,
        "lowered_at_ms": refused.then_some(learned.at_ms),
        "lowered_to": refused.then_some(learned.to),
        "refused_at": refused.then(|| refused_at(learned)),
        "refused": learned.times,
        "advertised": (learned.advertised_max > 0).then_some(learned.advertised_max),
        "advertised_until_ms": (learned.advertised_max > 0).then_some(learned.advertised_until_ms),
        "whole_at_ms": learned.ends_ms,
        "before": past,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use rules::decision::{Answer, Question};
    use rules::gate::model::State;
    use rules::gate::usage::Clock;
    use rules::learned::Evidence;
    use rules::limit::Algorithm;

    #[test]
    fn a_learned_limit_is_shown_with_reason_and_duration() {
        let minute = Duration::from_secs(60);
        let limit = Limit::new(
            "minute",
            Algorithm::SlidingWindow,
            100,
            minute,
            Duration::ZERO,
        );
        let limits = [limit.expect("a limit").with_band(50)];
        let mut state = State::default();
        let ask = Question {
            ticket: None,
            cost: 1,
            readmitted: false,
        };
        let shown = |state: &mut State, after_s: u64, refuse: u64, advertised_max: Option<u64>| {
            let clock = Clock::from_micros((1_700_000_000 + after_s) * 1_000_000);
            state.alone(&limits, |scopes| {
                if refuse > 0 {
                    let (answers, _) = scopes.ask(&limits, clock, 200, "p", &[ask; 81]);
                    let starts = |answer: &&Answer| matches!(answer, Answer::Start { .. });
                    assert_eq!(answers.iter().filter(starts).count(), 81);
                }
                let refused = Evidence::Refused {
                    started_ms: clock.now_ms,
                    cost: 1,
                    after_ms: 0,
                    closed_ms: 0,
                };
                for _ in 0..refuse {
                    scopes.learn(&limits, clock, &refused);
                }
                if let Some(advertised_max) = advertised_max {
                    scopes.learn(
                        &limits,
                        clock,
                        &Evidence::Advertised(vec![Some(advertised_max)]),
                    );
                }
                let usage = scopes.inspect(&limits, clock).limits[0];
                (describe(&limits[0], &usage, clock.now_ms), as_json(&usage))
            })
        };
        assert_eq!(shown(&mut state, 0, 0, None), (String::new(), Value::Null));
        let (text, json) = shown(&mut state, 60, 2, None);
        assert_eq!(
            text,
            "\n          learned: 79 of 100 in force since Tue, 14 Nov 2023 22:14:20 GMT: the API \
            answered 429 at 80 of 100 (2 times); back to 100 by Tue, 14 Nov 2023 22:56:20 GMT \
            without further 429s"
        );
        assert_eq!(json["refused_at"], 80);
        assert_eq!(json["whole_at_ms"], 1_700_002_580_000_u64);
        // One step later, and the API advertises more.
        let (text, _) = shown(&mut state, 181, 0, Some(60));
        assert!(
            text.contains("learned: 60 of 100 in force, 79 since"),
            "{text}"
        );
        assert!(
            text.contains("at most 60 of 100 in force, as advertised by the API"),
            "{text}"
        );
        let (text, _) = shown(&mut state, 185, 0, Some(0));
        assert!(
            text.contains("learned: 80 of 100 in force, 79 since"),
            "{text}"
        );
        assert!(!text.contains("says"), "{text}");
    }
}
