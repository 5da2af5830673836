//! Arguments and reply of `lua/learn.lua`, and what `lua/inspect.lua` reports of learned limits.

use ::redis::Value;

use super::{numbers, unreadable};
use crate::{Evidence, GateError, MaxChange};
use rules::learned::LearnedState;

/// Returns the arguments of `learn`.
pub fn learn_arguments(evidence: &Evidence) -> Vec<Vec<u8>> {
    let (what, started_ms, cost, more, closed_ms) = match evidence {
        Evidence::Refused {
            started_ms,
            cost,
            after_ms,
            closed_ms,
        } => (
            "refused",
            *started_ms,
            *cost,
            after_ms.to_string(),
            *closed_ms,
        ),
        Evidence::Advertised(all) => {
            let text = |max: &Option<u64>| max.map_or("-".to_owned(), |max| max.to_string());
            let all: Vec<String> = all.iter().map(text).collect();
            ("advertised", 0, 0, all.join(","), 0)
        }
    };
    let arguments = [
        what.to_owned(),
        started_ms.to_string(),
        cost.to_string(),
        more,
        closed_ms.to_string(),
    ];
    arguments.map(String::into_bytes).to_vec()
}

/// Parses the reply of `learn`.
pub fn learned(reply: &Value) -> Result<Vec<MaxChange>, GateError> {
    let decode = || {
        let numbers = numbers(reply)?;
        let [1, _now, rest @ ..] = numbers.as_slice() else {
            return None;
        };
        let (chunks, []) = rest.as_chunks::<6>() else {
            return None;
        };
        let change = |&[limit, from, to, set, ends_ms, is_new]: &[u64; 6]| {
            Some(MaxChange {
                limit: usize::try_from(limit).ok()?,
                from,
                to,
                set,
                ends_ms,
                is_new: is_new == 1,
            })
        };
        chunks.iter().map(change).collect()
    };
    decode().ok_or_else(|| unreadable("learn"))
}

/// Parses the learned state of each limit, in the format of `lua/inspect.lua`.
pub(super) fn learned_each(text: &str) -> Option<Vec<Option<LearnedState>>> {
    let each = text.split_terminator(';').map(|numbers| match numbers {
        "" => Some(None),
        numbers => LearnedState::read(numbers).map(Some),
    });
    each.collect()
}
