//! Forecasts when a tenant's backlog ends, as things stand and after a hypothetical change.

use std::fmt::Write as _;

use super::description::{amount, starts_alone};
use super::what_if::WhatIf;
use crate::answer::{answers, words};
use crate::times::{span, when};
use gate::GateError;
use gate::redis::RedisGate;
use rules::gate::forecast::{Certainty, ForecastEnd, ForecastRequest, ForecastUnknowns, end};
use rules::job::priority::Priorities;
use rules::layout::Layout;
use rules::limit::{Limit, Limits};
use rules::scope::Labels;
use rules::tenant::Tenant;

/// Forecasts of the end of a backlog, as things stand and after the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Forecast {
    changes: Vec<String>,
    now_ms: u64,
    waiting: u64,
    as_it_is: BacklogEnd,
    would_be: BacklogEnd,
    /// Notes on the hypothetical limits: a learned limit is lower, or jobs cost more than the
    /// limit.
    notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct BacklogEnd {
    at_ms: u64,
    limit: Option<String>,
    sure: Certainty,
    doubts: ForecastUnknowns,
}

impl BacklogEnd {
    fn of(end: ForecastEnd, limits: &[Limit]) -> Self {
        let limit = end.limit.and_then(|index| limits.get(index));
        Self {
            at_ms: end.at_ms,
            limit: limit.map(|limit| limit.name().to_owned()),
            sure: end.sure,
            doubts: end.doubts,
        }
    }

    /// Returns the later of two waitlists' ends.
    fn later(self, other: Self) -> Self {
        let (sure, doubts) = (self.sure.max(other.sure), self.doubts.and(other.doubts));
        let latest = match other.at_ms > self.at_ms {
            true => other,
            false => self,
        };
        Self {
            sure,
            doubts,
            ..latest
        }
    }
}

answers! {
    /// The forecast of a backlog, as things stand and after changes.
    pub struct WhatIfAnswer {
        pub changes: Vec<String>,
        pub waiting: u64,
        pub now: ForecastEndAnswer,
        pub then: ForecastEndAnswer,
        pub earlier_by_ms: i64,
        pub sure: SureWord,
        pub notes: Vec<String>,
    }

    /// The end of a backlog.
    pub struct ForecastEndAnswer {
        pub ends_at_ms: u64,
        pub ends_in_ms: u64,
        pub limit: Option<String>,
    }
}
words! {
    /// How certain the forecast is.
    pub struct SureWord = [Certainty::Exact, Certainty::Estimated].map(Certainty::keyword);
}

/// Asks the gate about each of the tenant's waitlists.
pub(super) async fn forecast(
    gate: &RedisGate,
    (tenant, labels): (&Tenant, &Labels),
    limits: &Limits,
    (changes, would_be): (&[WhatIf], &ForecastRequest),
    (priorities, widest): (&Priorities, u64),
) -> Result<Forecast, GateError> {
    let levels = priorities.waitlists();
    let mut waitlists: Vec<Labels> = levels
        .map(|(_, waitlist)| labels.clone().with_level(waitlist))
        .collect();
    if waitlists.is_empty() {
        waitlists.push(labels.clone());
    }
    let mut all: Option<Forecast> = None;
    for labels in waitlists {
        let shares = !Layout::of(limits, tenant, &labels).shared.is_empty();
        let [now, then] = gate.forecast((tenant, &labels), limits, would_be).await?;
        let one = Forecast {
            changes: changes.iter().map(|change| change.text.clone()).collect(),
            now_ms: now.now_ms,
            waiting: now.waiting,
            as_it_is: BacklogEnd::of(end(limits, &now, shares), limits),
            would_be: BacklogEnd::of(end(&would_be.limits, &then, shares), &would_be.limits),
            notes: notes(would_be, &then.max, widest),
        };
        all = Some(match all {
            None => one,
            Some(before) => Forecast {
                waiting: before.waiting + one.waiting,
                as_it_is: before.as_it_is.later(one.as_it_is),
                would_be: before.would_be.later(one.would_be),
                ..before
            },
        });
    }
    all.ok_or_else(|| GateError::Refused("there is no waitlist".to_owned()))
}

/// Returns notes on the changed limits, of which `max` would be in force.
fn notes(would_be: &ForecastRequest, max: &[u64], widest: u64) -> Vec<String> {
    let all = would_be
        .limits
        .iter()
        .zip(max)
        .zip(&would_be.ignores_override);
    let changed = all.filter(|(_, is_said)| **is_said).map(|(it, _)| it);
    let notes = changed.flat_map(|(limit, max)| {
        // An operator's command for one tenant does not reset a limit of all tenants.
        let forgets = match limit.is_global() {
            true => "",
            false => "; tenant reset forgets it",
        };
        let learned = (*max < limit.max()).then(|| {
            format!(
                "{} admits {max}, not {}, as learned from the API's answers{forgets}",
                limit.name(),
                limit.max()
            )
        });
        let in_force = limit.clone().with_max(*max);
        learned.into_iter().chain(starts_alone(&in_force, widest))
    });
    notes.collect()
}

impl Forecast {
    /// Returns when the last job is admitted as things stand, in milliseconds since the epoch.
    pub(super) fn ends_at_ms(&self) -> u64 {
        self.as_it_is.at_ms
    }

    fn sure(&self) -> Certainty {
        self.as_it_is.sure.max(self.would_be.sure)
    }

    pub(super) fn answer(&self) -> WhatIfAnswer {
        let ends = |ends: &BacklogEnd| ForecastEndAnswer {
            ends_at_ms: ends.at_ms,
            ends_in_ms: ends.at_ms.saturating_sub(self.now_ms),
            limit: ends.limit.clone(),
        };
        WhatIfAnswer {
            changes: self.changes.clone(),
            waiting: self.waiting,
            now: ends(&self.as_it_is),
            then: ends(&self.would_be),
            earlier_by_ms: self.as_it_is.at_ms.cast_signed() - self.would_be.at_ms.cast_signed(),
            sure: self.sure().keyword().into(),
            notes: self.notes.clone(),
        }
    }

    pub(super) fn describe(&self, of_cost: bool) -> String {
        let mut text = format!("what if   {}\n", self.changes.join(", "));
        if self.waiting == 0 {
            return text + "  now     no job waits, so nothing would change\n";
        }
        let ends = |ends: &BacklogEnd| {
            let in_ms = ends.at_ms.saturating_sub(self.now_ms);
            let by = ends.limit.as_ref().map(|name| format!(" (limit {name})"));
            format!("{}{}", when(self.now_ms, in_ms), by.unwrap_or_default())
        };
        let (now, then) = (self.as_it_is.at_ms, self.would_be.at_ms);
        let differs = match now.abs_diff(then) {
            0 => "the same time".to_owned(),
            ms if then < now => format!("{} earlier", span(ms)),
            ms => format!("{} later", span(ms)),
        };
        let doubts = self.as_it_is.doubts.and(self.would_be.doubts);
        let sure = match self.sure() {
            Certainty::Exact => {
                "exact, if the limits do not change and no other job comes".to_owned()
            }
            _ => format!("estimated: {}", doubts.words()),
        };
        // Writing to a String can't fail.
        let _ = write!(
            text,
            "  now     {} waiting, the last is admitted {}\n  then    the last is admitted {}: {differs}\n  sure    {sure}\n",
            amount(self.waiting, of_cost),
            ends(&self.as_it_is),
            ends(&self.would_be),
        );
        for note in &self.notes {
            let _ = writeln!(text, "  then    {note}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_backlog_ends_are_shown_with_their_difference() {
        let ends = |at_ms| BacklogEnd {
            at_ms,
            limit: Some("default".to_owned()),
            sure: Certainty::Exact,
            doubts: ForecastUnknowns::default(),
        };
        let now_ms = 1_700_000_000_000;
        let forecast = Forecast {
            changes: vec!["max-requests=200".to_owned()],
            now_ms,
            waiting: 120,
            as_it_is: ends(now_ms + 125_000),
            would_be: ends(now_ms + 60_000),
            notes: vec!["all start alone".to_owned()],
        };
        assert_eq!(
            forecast.describe(false),
            "what if   max-requests=200
  now     120 jobs waiting, the last is admitted in 2m 5s (Tue, 14 Nov 2023 22:15:25 GMT) (limit default)
  then    the last is admitted in 1m 0s (Tue, 14 Nov 2023 22:14:20 GMT) (limit default): 1m 5s earlier
  sure    exact, if the limits do not change and no other job comes
  then    all start alone
"
        );
        assert_eq!(forecast.answer().earlier_by_ms, 65_000);
        let nobody = Forecast {
            waiting: 0,
            ..forecast
        };
        assert!(nobody.describe(false).contains("no job waits"));
    }
}
