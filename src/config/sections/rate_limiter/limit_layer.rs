//! Builds one limit of the configuration from the layers that describe it.

use std::fmt::Display;
use std::time::Duration;

use super::limit_keys::{
    ADAPTIVE, BURST, CONCURRENT, GUARD, GuardSetting, MAX_REQUESTS, SCOPE, SHADOW, STARTS,
    TIME_ZONE, UNIT, USE_ALGO, WINDOW_SIZE,
};
use super::window_size::WindowSize;
use crate::reading::{AnySetting, ConfigProblem, Node, Origin, Setting, ValueError, shown};
use rules::calendar::{Calendar, Zone};
use rules::limit::{Algorithm, Limit, LimitError, Unit};
use rules::scope::Scope;
use rules::timing::lateness::auto_guard;

/// A value of a key, and its place.
pub(super) struct PlacedValue<'l, T> {
    value: T,
    node: &'l Node<'l>,
}

impl<T> PlacedValue<'_, T> {
    pub(super) fn wrong(&self, words: impl Display) -> ConfigProblem {
        self.node.wrong(words)
    }
}

/// The keys that one place of the configuration sets for its limits.
#[derive(Debug, Default)]
pub(super) struct LimitLayer<'r> {
    values: Vec<Node<'r>>,
    /// Whether a value is wrong and has been reported.
    pub(crate) broken: bool,
}

impl<'r> LimitLayer<'r> {
    /// Returns true for `unit: cost`.
    pub(crate) fn counts_cost(&self) -> bool {
        (self.value(&UNIT)).is_some_and(|unit| unit.value == Unit::Cost)
    }

    /// Returns true for `scope: global`.
    pub(crate) fn is_global(&self) -> bool {
        (self.value(&SCOPE)).is_some_and(|scope| scope.value == Scope::Global)
    }

    /// Sets `setting` to the value in `node`, which has its name.
    pub(crate) fn set(
        &mut self,
        setting: &dyn AnySetting,
        node: &Node<'r>,
    ) -> Result<(), ValueError> {
        self.values.push(node.clone());
        setting.check(node.raw).or_else(|words| self.refuse(words))
    }

    /// Returns the problem of a value, which is wrong.
    pub(crate) fn refuse(&mut self, words: ValueError) -> Result<(), ValueError> {
        self.broken = true;
        Err(words)
    }

    /// Returns the value of `setting`, if this layer sets a valid one.
    pub(super) fn value<T>(&self, setting: &Setting<T>) -> Option<PlacedValue<'_, T>> {
        let mut values = self.values.iter();
        let node = values.find(|node| node.name == setting.key.name())?;
        let value = (setting.read)(node.raw).ok()?;
        Some(PlacedValue { value, node })
    }
}

/// Returns the first value of `setting` in `layers`, and the number of its layer.
pub(super) fn first<'l, T>(
    layers: &[&'l LimitLayer<'_>],
    setting: &Setting<T>,
) -> Option<(usize, PlacedValue<'l, T>)> {
    let mut found = layers.iter().enumerate();
    found.find_map(|(depth, layer)| Some((depth, layer.value(setting)?)))
}

/// Returns the first value of `setting`, which has a default, in unbroken `layers`.
fn needed<'l, T>(
    layers: &[&'l LimitLayer<'_>],
    setting: &Setting<T>,
) -> (usize, PlacedValue<'l, T>) {
    first(layers, setting).expect("the last layer has the defaults")
}

/// Builds a limit of unbroken `layers`.
pub(super) fn build(
    name: &str,
    layers: &[&LimitLayer<'_>],
    unit: Unit,
    scope: Scope,
) -> Result<Limit, ConfigProblem> {
    let limit = build_of_tenant(name, layers, unit)?.with_scope(scope);
    let limit = with_band(limit, layers)?;
    match first(layers, &SHADOW) {
        Some((_, shadow)) if shadow.value && !is_concurrent(layers) => {
            limit.in_shadow().map_err(|error| shadow.wrong(error))
        }
        _ => Ok(limit),
    }
}

/// Returns the limit with the band in `layers`.
fn with_band(limit: Limit, layers: &[&LimitLayer<'_>]) -> Result<Limit, ConfigProblem> {
    let Some((depth, band)) = first(layers, &ADAPTIVE) else {
        return Ok(limit);
    };
    match band.value {
        Some(_) if limit.scope().is_part() => {
            // A band from an outer level applies only to limits that can have one.
            if depth > 0 {
                return Ok(limit);
            }
            let words = format!(
                "is set with scope {}, but a 429 concerns all of a tenant's jobs; adaptive limits \
                need scope tenant or global",
                limit.scope()
            );
            Err(band.wrong(words))
        }
        Some(percent) if limit.algorithm() != Algorithm::Concurrency => {
            Ok(limit.with_band(percent))
        }
        _ => Ok(limit),
    }
}

/// Returns true for a limit on calls in flight. It takes only its scope from outer levels.
fn is_concurrent(layers: &[&LimitLayer<'_>]) -> bool {
    let own = layers.first();
    own.is_some_and(|layer| layer.value(&CONCURRENT).is_some())
}

/// Returns the scope in `layers`; the first layer that has one wins.
pub(crate) fn scope(layers: &[&LimitLayer<'_>]) -> Scope {
    first(layers, &SCOPE)
        .map(|(_, scope)| scope.value)
        .unwrap_or_default()
}

/// Returns the calendar of the windows in `layers`, or `None` if they have a length.
fn calendar(
    layers: &[&LimitLayer<'_>],
    algorithm: Algorithm,
    (window_depth, window): (usize, &PlacedValue<'_, WindowSize>),
) -> Result<Option<Calendar>, ConfigProblem> {
    let zone = first(layers, &TIME_ZONE);
    let starts = first(layers, &STARTS);
    let WindowSize::Calendar(period) = window.value else {
        // A zone or a start of an outer level applies only to limits with a calendar.
        let words = "has a meaning only with window-size: day, week or month";
        let zone = zone.map(|(depth, zone)| (depth, zone.wrong(words)));
        let starts = starts.map(|(depth, starts)| (depth, starts.wrong(words)));
        let mut own = [zone, starts].into_iter().flatten();
        return match own.find(|(depth, _)| *depth <= window_depth) {
            Some((_, problem)) => Err(problem),
            None => Ok(None),
        };
    };
    if algorithm != Algorithm::FixedWindow {
        let words = format!(
            "is {period}, which only fixed-window-algo supports, not {}; set use-algo: {}",
            algorithm.name(),
            Algorithm::FixedWindow.name()
        );
        return Err(window.wrong(words));
    }
    let zone = zone.map_or(Zone::UTC, |(_, zone)| zone.value);
    let begin = starts.as_ref().map(|(_, starts)| starts.value.as_str());
    match (Calendar::parse(period, zone, begin), starts) {
        (None, Some((_, starts))) => {
            let must = match period {
                "day" => "a time of day, such as 08:00",
                "week" => "a weekday, a time of day or both, such as monday 08:00",
                _ => "a day from 1 to 31, a time of day or both, such as 15 08:00",
            };
            let words = format!(
                "is {}; for window-size: {period} it must be {must}",
                shown(&starts.value)
            );
            Err(starts.wrong(words))
        }
        (calendar, _) => Ok(calendar),
    }
}

fn build_of_tenant(
    name: &str,
    layers: &[&LimitLayer<'_>],
    unit: Unit,
) -> Result<Limit, ConfigProblem> {
    if let Some(most) = layers.first().and_then(|layer| layer.value(&CONCURRENT)) {
        return Limit::concurrent(name, most.value).map_err(|error| most.wrong(error));
    }
    let algorithm = needed(layers, &USE_ALGO).1.value;
    let (_, max) = needed(layers, &MAX_REQUESTS);
    let (window_depth, window_size) = needed(layers, &WINDOW_SIZE);
    let calendar = calendar(layers, algorithm, (window_depth, &window_size))?;
    let window = match (&window_size.value, calendar) {
        (WindowSize::Length(window), _) => *window,
        (_, calendar) => calendar.map_or(Duration::ZERO, |calendar| {
            Duration::from_millis(calendar.nominal_ms())
        }),
    };
    let (guard_depth, guard) = needed(layers, &GUARD);
    // The default of `unit` does not count, since it depends on the other limits of the list.
    let given_unit = first(layers, &UNIT).filter(|(_, unit)| unit.node.at != Origin::Default);
    let (which, within) = match (guard.value, algorithm) {
        (GuardSetting::Within(within), which) => (which, within),
        (GuardSetting::Auto, which) => (which, auto_guard(which, window)),
        (GuardSetting::Strict, Algorithm::SlidingWindow) => (Algorithm::Strict, Duration::ZERO),
        (GuardSetting::Strict, other) => {
            return Err(guard.wrong(format_args!(
                "is strict, which only sliding-window-algo supports, not {}; use a duration, such \
                as 50ms",
                other.name()
            )));
        }
    };
    let limit = match calendar {
        Some(calendar) => Limit::calendar(name, max.value, calendar, within),
        None => Limit::new(name, which, max.value, window, within),
    };
    let limit = limit.map_err(|error| match error {
        // The value that was set closest to the limit is reported.
        LimitError::Guard { .. } if window_depth < guard_depth => window_size.wrong(error),
        LimitError::Guard { .. } => guard.wrong(error),
        error => max.wrong(error),
    })?;
    let limit = limit.with_unit(given_unit.map_or(unit, |(_, unit)| unit.value));
    match first(layers, &BURST) {
        // A burst from an outer level applies only to limits that can have one.
        Some((depth, burst)) if depth == 0 || algorithm.has_burst() => {
            (limit.with_burst(burst.value)).map_err(|error| burst.wrong(error))
        }
        _ => Ok(limit),
    }
}
