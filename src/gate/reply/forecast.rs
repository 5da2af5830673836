//! Arguments and reply of `lua/forecast.lua`.

use ::redis::Value;

use super::{numbers, unreadable};
use crate::GateError;
use rules::gate::forecast::{ForecastRequest, ForecastTarget, OpeningTime, POINTS, Schedule, Turn};

/// Returns the arguments of `forecast` after the limits. The first `as_it_is` limits are the
/// current ones.
pub fn forecast_arguments(as_it_is: usize, asked: &ForecastRequest) -> Vec<Vec<u8>> {
    let reset = asked.limits.iter().zip(&asked.ignores_override);
    let reset = reset.filter(|(_, ignores_override)| **ignores_override);
    let opens = match asked.opens {
        OpeningTime::AsItIs => String::new(),
        OpeningTime::Now => "now".to_owned(),
        OpeningTime::In(ms) => ms.to_string(),
    };
    let (cost, ticket) = match asked.target {
        ForecastTarget::Last => (0, None),
        ForecastTarget::Job(ticket, cost) => (cost.max(1), ticket),
    };
    let (generation, number) = ticket.map_or((0, 0), |it| (it.generation, it.number));
    let arguments = [
        as_it_is.to_string(),
        reset
            .map(|(limit, _)| format!("{},", limit.name()))
            .collect(),
        opens,
        asked.not_before_ms.to_string(),
        cost.to_string(),
        generation.to_string(),
        number.to_string(),
    ];
    arguments.map(String::into_bytes).to_vec()
}

/// Parses the reply of `forecast`. `limits` is the number of current limits and of limits asked
/// about.
pub fn forecasted(reply: &Value, limits: [usize; 2]) -> Result<[Schedule; 2], GateError> {
    let decode = || {
        let numbers = numbers(reply)?;
        let [1, now_ms, rest @ ..] = numbers.as_slice() else {
            return None;
        };
        let (as_it_is, rest) = schedule(*now_ms, rest, limits[0])?;
        let (as_it_would_be, []) = schedule(*now_ms, rest, limits[1])? else {
            return None;
        };
        Some([as_it_is, as_it_would_be])
    };
    decode().ok_or_else(|| unreadable("forecast"))
}

/// Parses the schedule at the start of `numbers`. Returns it and the rest.
fn schedule(now_ms: u64, numbers: &[u64], limits: usize) -> Option<(Schedule, &[u64])> {
    let [opens_ms, waiting, units, jobs, rest @ ..] = numbers else {
        return None;
    };
    let (max, rest) = rest.split_at_checked(limits)?;
    let (set, rest) = rest.split_at_checked(limits)?;
    let points = usize::try_from((*units).min(POINTS)).ok()?;
    let (turns, rest) = rest.split_at_checked(points * (limits + 1))?;
    let turn = |row: &[u64]| {
        let (unit, at) = row.split_first()?;
        Some(Turn {
            unit: *unit,
            at: at.to_vec(),
        })
    };
    let schedule = Schedule {
        now_ms,
        opens_ms: *opens_ms,
        waiting: *waiting,
        units: *units,
        jobs: *jobs,
        max: max.to_vec(),
        set: set.to_vec(),
        turns: (turns.chunks(limits + 1).map(turn)).collect::<Option<_>>()?,
    };
    Some((schedule, rest))
}
