//! Parses hypothetical changes and computes the limits that would be enforced.

use std::time::Duration;

use crate::{NotDone, steer};
use config::{closest, parse_duration};
use rules::gate::forecast::{ForecastRequest, OpeningTime};
use rules::limit::{Algorithm, Limit, LimitError, Limits, MAX_REQUESTS, ceil_ms};
use rules::scope::Scope;

/// Keys that can be changed.
const KEYS: [&str; 5] = ["max-requests", "window-size", "plan", "pause", "resume"];

/// One hypothetical change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WhatIf {
    /// Text of the change as given.
    pub(super) text: String,
    hypothesis: Hypothesis,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Hypothesis {
    /// Changes a limit; names it if the text did.
    Limit(Option<String>, LimitNumber),
    /// The jobs name this plan.
    Plan(String),
    /// An operator ends the tenant's suspension.
    Resume,
    /// The tenant is paused for this number of milliseconds.
    Pause(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LimitNumber {
    Max(u64),
    Window(Duration),
}

impl WhatIf {
    /// Parses `max-requests=200`, `NAME.max-requests=200`, `window-size=1m`, `NAME.window-size=1m`,
    /// `plan=gold`, `pause=10m` or `resume`.
    ///
    /// # Errors
    /// The mistake in the text, for people.
    pub fn parse(text: &str) -> Result<Self, String> {
        let hypothesis = match text.split_once('=') {
            None if text == "resume" => Hypothesis::Resume,
            None => {
                return Err(format!(
                    "must be KEY=VALUE, such as max-requests=200, or resume{}",
                    hint(text)
                ));
            }
            Some((key, value)) => {
                let (name, key) = match key.rsplit_once('.') {
                    Some((name, key)) => (Some(name.to_owned()), key),
                    None => (None, key),
                };
                match (key, name) {
                    ("max-requests", name) => {
                        Hypothesis::Limit(name, LimitNumber::Max(max(value)?))
                    }
                    ("window-size", name) => {
                        Hypothesis::Limit(name, LimitNumber::Window(window(value)?))
                    }
                    ("plan", None) if !value.is_empty() => Hypothesis::Plan(value.to_owned()),
                    ("pause", None) => Hypothesis::Pause(pause(value)?),
                    ("resume", None) => {
                        return Err(
                            "resume has no value: it ends a pause or a throttle now".to_owned()
                        );
                    }
                    ("plan", None) => return Err("plan needs a name, such as plan=gold".to_owned()),
                    ("plan" | "pause" | "resume", Some(_)) => {
                        return Err(format!(
                            "{key} belongs to the tenant, not to one limit: write {key} without a \
                            name"
                        ));
                    }
                    (other, _) => return Err(format!("there is no {other:?}{}", hint(other))),
                }
            }
        };
        let text = text.to_owned();
        Ok(Self { text, hypothesis })
    }

    fn wrong(&self, why: impl std::fmt::Display) -> NotDone {
        NotDone::Wrong(format!("what-if {}: {why}", self.text))
    }
}

fn hint(key: &str) -> String {
    match closest(key, KEYS) {
        Some(meant) => format!("; did you mean {meant}?"),
        None => format!("; there are: {}", KEYS.join(", ")),
    }
}

fn max(text: &str) -> Result<u64, String> {
    let max = text.parse::<u64>().ok();
    max.filter(|max| (1..=MAX_REQUESTS).contains(max))
        .ok_or_else(|| {
            format!("max-requests is {text:?}; it must be a whole number from 1 to {MAX_REQUESTS}")
        })
}

fn window(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| {
        format!("window-size is {text:?}; it must be a whole number with a unit, such as 90s or 1h")
    })
}

fn pause(text: &str) -> Result<u64, String> {
    let pause = steer::span(text).map_err(|why| format!("pause is {text:?}: {why}"))?;
    Ok(ceil_ms(pause))
}

/// Returns what would be enforced instead of `limits` after all of `changes`. `of_plan` returns the
/// limits of a plan.
///
/// # Errors
/// [`NotDone::Wrong`]: a change is impossible.
pub(super) fn hypothetical(
    changes: &[WhatIf],
    limits: &Limits,
    of_plan: impl Fn(&str) -> Result<Limits, NotDone>,
) -> Result<ForecastRequest, NotDone> {
    let mut asked = ForecastRequest::as_it_is(limits, 0);
    let mut keys: Vec<String> = Vec::new();
    // A change of plan comes first: the other changes then apply to that plan's limits.
    let plans = |change: &&WhatIf| matches!(change.hypothesis, Hypothesis::Plan(_));
    let in_order = (changes.iter().filter(plans)).chain(changes.iter().filter(|it| !plans(it)));
    for change in in_order {
        let key = match &change.hypothesis {
            Hypothesis::Plan(plan) => {
                let new = of_plan(plan)?;
                same_parts(limits, &new).map_err(|why| change.wrong(why))?;
                asked = ForecastRequest::as_it_is(&new, 0);
                "plan".to_owned()
            }
            Hypothesis::Resume => {
                asked.opens = OpeningTime::Now;
                "its pause".to_owned()
            }
            Hypothesis::Pause(ms) => {
                asked.opens = OpeningTime::In(*ms);
                "its pause".to_owned()
            }
            Hypothesis::Limit(name, number) => {
                let is_shadow =
                    |name: &&str| limits.shadows().iter().any(|limit| limit.name() == *name);
                let name = the_limit(name.as_deref(), &asked.limits).map_err(|why| {
                    match name.as_deref().filter(is_shadow) {
                        Some(name) => {
                            change.wrong(format!("{name} is a shadow limit: it never delays a job"))
                        }
                        None => change.wrong(why),
                    }
                })?;
                for (limit, ignores_override) in
                    asked.limits.iter_mut().zip(&mut asked.ignores_override)
                {
                    if limit.name() == name {
                        *limit = with(limit, *number).map_err(|why| change.wrong(why))?;
                        *ignores_override |= matches!(number, LimitNumber::Max(_));
                    }
                }
                match number {
                    LimitNumber::Max(_) => format!("{name}.max-requests"),
                    LimitNumber::Window(_) => format!("{name}.window-size"),
                }
            }
        };
        if keys.contains(&key) {
            return Err(change.wrong(format!("{key} is given twice")));
        }
        keys.push(key);
    }
    Ok(asked)
}

/// Checks that jobs wait in the same waitlists with both sets of limits.
fn same_parts(now: &[Limit], then: &[Limit]) -> Result<(), String> {
    let parts = |limits: &[Limit]| {
        let scopes = limits
            .iter()
            .map(Limit::scope)
            .filter(|scope| scope.is_part());
        let mut parts: Vec<String> = scopes.map(Scope::to_string).collect();
        parts.sort_unstable();
        parts.dedup();
        match parts.is_empty() {
            true => "nothing".to_owned(),
            false => parts.join(" and "),
        }
    };
    let (now, then) = (parts(now), parts(then));
    match now == then {
        true => Ok(()),
        false => Err(format!(
            "its limits separate a tenant's jobs by {then}, the current limits by {now}: there is \
            no backlog to compare"
        )),
    }
}

/// Returns the name of the limit that a change refers to.
fn the_limit(name: Option<&str>, limits: &[Limit]) -> Result<String, String> {
    let mut names: Vec<&str> = limits.iter().map(Limit::name).collect();
    names.sort_unstable();
    names.dedup();
    match (name, names.as_slice()) {
        (None, [only]) => Ok((*only).to_owned()),
        (None, names) => Err(format!(
            "there are several limits; name one before a dot, such as {}.max-requests=200: {}",
            names.first().unwrap_or(&"NAME"),
            names.join(", ")
        )),
        (Some(name), names) if names.contains(&name) => Ok(name.to_owned()),
        (Some(name), names) => Err(match closest(name, names.iter().copied()) {
            Some(meant) => format!("there is no limit {name:?}; did you mean {meant}?"),
            None => format!(
                "there is no limit {name:?}; there are: {}",
                names.join(", ")
            ),
        }),
    }
}

fn with(limit: &Limit, number: LimitNumber) -> Result<Limit, String> {
    let limit = limit.clone();
    match number {
        LimitNumber::Max(max) => {
            let band = limit.band();
            let limit = limit.with_max(max);
            // An operator can't override a limit shared by all tenants, so this is a number in the
            // configuration file, and the learned band is relative to it.
            Ok(match band.filter(|_| limit.is_global()) {
                Some(percent) => limit.with_band(percent),
                None => limit,
            })
        }
        LimitNumber::Window(_) if limit.algorithm() == Algorithm::Concurrency => Err(format!(
            "{} counts calls in flight and has no window",
            limit.name()
        )),
        LimitNumber::Window(window) => limit
            .with_window(window)
            .map_err(|why: LimitError| why.to_string()),
    }
}

#[cfg(test)]
mod tests;
