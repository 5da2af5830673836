//! What shadow limits have seen of a tenant: in words, and as JSON.

use serde_json::Value;

use crate::gate::Usage;
use crate::operator::labels::Given;
use crate::operator::limits;
use crate::operator::times::{at, span};
use crate::rules::decision::{Tally, Tried};
use crate::rules::limit::Limit;
use crate::rules::shadow::MOST_BEHIND_MS;

/// One shadow, its usage, and what it has seen.
pub(super) type Row<'a> = (&'a Limit, &'a (Usage, Tried));

/// `4,000`
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `would have made 312 of 4,000 wait, the longest 41.0s`
fn verdict(tally: &Tally) -> String {
    let (starts, waited) = (grouped(tally.starts), grouped(tally.waited));
    let mut text = match (tally.starts, tally.waited) {
        (0, _) => return "has seen no start".to_owned(),
        (_, 0) => return format!("would have made none of {starts} wait"),
        _ => format!("would have made {waited} of {starts} wait"),
    };
    if tally.worst_ms > 0 {
        text += &format!(", the longest {}", span(tally.worst_ms));
    }
    if tally.never > 0 {
        let (never, most) = (grouped(tally.never), span(MOST_BEHIND_MS));
        text += &format!(
            "; {never} for more than {most}, or for ever: it would not keep up, or they cost more than the whole limit"
        );
    }
    text
}

/// For people: three lines.
pub(super) fn in_words((limit, (usage, tried)): &Row<'_>, given: &Given) -> String {
    let head = format!("shadow    {}: {}\n", limit.name(), limits::in_words(limit));
    if given.lacks(limit) {
        return format!(
            "{head}  tried   one for each {}: see --header or --routing-key\n",
            limit.scope()
        );
    }
    let since = match tried.since_ms {
        0 => String::new(),
        since => format!(", since {}", at(since)),
    };
    let behind = match tried.behind_ms {
        0 => String::new(),
        ms => format!(
            "\n  behind  {}: a job that comes now would wait for those ahead of it",
            span(ms)
        ),
    };
    let (count, max) = (usage.count, usage.max);
    format!(
        "{head}  tried   {}{since}{behind}\n  used    {count} of {max}; it denies nothing\n",
        verdict(&tried.tally)
    )
}

/// For programs.
pub(super) fn as_json((limit, (usage, tried)): &Row<'_>, given: &Given) -> Value {
    let known = !given.lacks(limit);
    let Tally {
        starts,
        waited,
        never,
        worst_ms,
    } = tried.tally;
    let share = (starts > 0).then(|| waited as f64 / starts as f64);
    let mut json = limits::as_json(limit);
    json["used"] = known.then_some(usage.count).into();
    json["since_ms"] = known.then_some(tried.since_ms).into();
    json["starts"] = known.then_some(starts).into();
    json["would_have_waited"] = known.then_some(waited).into();
    json["would_have_waited_share"] = share.filter(|_| known).into();
    json["would_never_have_started"] = known.then_some(never).into();
    json["longest_wait_ms"] = known.then_some(worst_ms).into();
    json["behind_ms"] = known.then_some(tried.behind_ms).into();
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_a_sentence() {
        let tally = |starts, waited, never, worst_ms| Tally {
            starts,
            waited,
            never,
            worst_ms,
        };
        for (tally, words) in [
            (tally(0, 0, 0, 0), "has seen no start"),
            (
                tally(1_234_567, 0, 0, 0),
                "would have made none of 1,234,567 wait",
            ),
            (
                tally(4_000, 312, 0, 41_000),
                "would have made 312 of 4,000 wait, the longest 41.0s",
            ),
            (
                tally(40, 12, 3, 86_000_000),
                "would have made 12 of 40 wait, the longest 23h 53m; 3 for more than 1d 0h, or for ever: it would not keep up, or they cost more than the whole limit",
            ),
        ] {
            assert_eq!(verdict(&tally), words);
        }
    }
}
