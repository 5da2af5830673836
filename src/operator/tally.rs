//! Describes the result of a shadow limit's trial in words.

use super::text::grouped;
use super::times::span;
use rules::decision::Tally;
use rules::gate::shadow::MAX_BEHIND_MS;

/// Describes the result: `would have made 312 of 4,000 wait, the longest 41.0s`.
pub fn describe(tally: &Tally) -> String {
    let (starts, waited) = (grouped(tally.starts), grouped(tally.waited));
    let mut text = match (tally.starts, tally.waited) {
        (0, _) => return "has counted no start".to_owned(),
        (_, 0) => return format!("would have made none of {starts} wait"),
        _ => format!("would have made {waited} of {starts} wait"),
    };
    if tally.worst_ms > 0 {
        text += &format!(", the longest {}", span(tally.worst_ms));
    }
    text
}

/// Describes the result where there is little room: `312 of 4,000 would wait, longest 41.0s`.
pub fn short(tally: &Tally) -> String {
    let (starts, waited) = (grouped(tally.starts), grouped(tally.waited));
    match (tally.starts, tally.worst_ms) {
        (0, _) => "no start yet".to_owned(),
        (_, 0) => format!("{waited} of {starts} would wait"),
        (_, worst_ms) => format!(
            "{waited} of {starts} would wait, longest {}",
            span(worst_ms)
        ),
    }
}

/// Returns a note on jobs that would hardly ever have started:
/// `; 3 for more than 1d 0h, or for ever: …`. Empty if every job would have had its turn.
pub fn never(tally: &Tally) -> String {
    if tally.never == 0 {
        return String::new();
    }
    let (never, max) = (grouped(tally.never), span(MAX_BEHIND_MS));
    format!(
        "; {never} for more than {max} or forever: the limit would not keep up, or the jobs cost \
        more than the whole limit"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_is_summarized_in_a_sentence() {
        let tally = |starts, waited, never, worst_ms| Tally {
            starts,
            waited,
            never,
            worst_ms,
        };
        for (tally, words, few) in [
            (tally(0, 0, 0, 0), "has counted no start", "no start yet"),
            (
                tally(1_234_567, 0, 0, 0),
                "would have made none of 1,234,567 wait",
                "0 of 1,234,567 would wait",
            ),
            (
                tally(4_000, 312, 0, 41_000),
                "would have made 312 of 4,000 wait, the longest 41.0s",
                "312 of 4,000 would wait, longest 41.0s",
            ),
            (
                tally(40, 12, 3, 86_000_000),
                "would have made 12 of 40 wait, the longest 23h 53m; 3 for more than 1d 0h or \
                forever: the limit would not keep up, or the jobs cost more than the whole limit",
                "12 of 40 would wait, longest 23h 53m",
            ),
        ] {
            assert_eq!(describe(&tally) + &never(&tally), words);
            assert_eq!(short(&tally), few);
        }
    }
}
