//! Builds one limit of the configuration from the layers that describe it.

use std::time::Duration;

use super::limit_keys::{
    ADAPTIVE, BURST, CONCURRENT, GUARD, GuardSetting, MAX_CONCURRENT, MAX_REQUESTS, SCOPE, SHADOW,
    STARTS, TIME_ZONE, UNIT, USE_ALGO, WINDOW_SIZE,
};
use super::window_size::WindowSize;
use crate::reading::error::{ConfigProblem, Origin, shown};
use crate::reading::key::Setting;
use crate::reading::parse::ValueError;
use crate::reading::yaml::Raw;
use rules::calendar::{Calendar, Zone};
use rules::limit::{Algorithm, Limit, LimitError, Unit};
use rules::scope::Scope;
use rules::timing::lateness::auto_guard;

/// A value, its origin, and its key for errors.
#[derive(Debug, Clone)]
struct SourcedValue<T> {
    value: T,
    at: Origin,
    key: String,
}

/// The keys that one place of the configuration sets for its limits.
#[derive(Debug, Default)]
pub(super) struct LimitLayer {
    algorithm: Option<SourcedValue<Algorithm>>,
    window: Option<SourcedValue<WindowSize>>,
    zone: Option<SourcedValue<Zone>>,
    starts: Option<SourcedValue<String>>,
    max: Option<SourcedValue<u64>>,
    burst: Option<SourcedValue<u64>>,
    unit: Option<SourcedValue<Unit>>,
    guard: Option<SourcedValue<GuardSetting>>,
    scope: Option<SourcedValue<Scope>>,
    shadow: Option<SourcedValue<bool>>,
    concurrent: Option<SourcedValue<u64>>,
    adaptive: Option<SourcedValue<Option<u8>>>,
    /// Whether a value is wrong and has been reported.
    pub(crate) broken: bool,
}

impl LimitLayer {
    /// Returns true for `unit: cost`.
    pub(crate) fn counts_cost(&self) -> bool {
        (self.unit.as_ref()).is_some_and(|unit| unit.value == Unit::Cost)
    }

    /// Returns origin and key of the scope, if this layer sets one.
    pub(super) fn own_scope(&self) -> Option<(&Origin, &str)> {
        (self.scope.as_ref()).map(|scope| (&scope.at, scope.key.as_str()))
    }

    /// Returns true for `scope: global`.
    pub(crate) fn is_global(&self) -> bool {
        (self.scope.as_ref()).is_some_and(|scope| scope.value == Scope::Global)
    }

    /// Sets the limit key `name` to `raw`. Errors name it `key`.
    pub(crate) fn set(
        &mut self,
        name: &str,
        raw: &Raw,
        at: &Origin,
        key: &str,
    ) -> Result<(), ValueError> {
        let result = (|| {
            let given = (raw, at, key);
            match name {
                name if name == USE_ALGO.key.name() => self.algorithm = take(&USE_ALGO, given)?,
                name if name == WINDOW_SIZE.key.name() => self.window = take(&WINDOW_SIZE, given)?,
                name if name == TIME_ZONE.key.name() => self.zone = take(&TIME_ZONE, given)?,
                name if name == STARTS.key.name() => self.starts = take(&STARTS, given)?,
                name if name == MAX_REQUESTS.key.name() => {
                    self.max = take(&MAX_REQUESTS, given)?;
                }
                name if name == BURST.key.name() => self.burst = take(&BURST, given)?,
                name if name == UNIT.key.name() => self.unit = take(&UNIT, given)?,
                name if name == GUARD.key.name() => self.guard = take(&GUARD, given)?,
                name if name == ADAPTIVE.key.name() => self.adaptive = take(&ADAPTIVE, given)?,
                name if name == SHADOW.key.name() => self.shadow = take(&SHADOW, given)?,
                MAX_CONCURRENT => self.concurrent = take(&CONCURRENT, given)?,
                // The name is in `FLAT`, so this is `scope`.
                _ => self.scope = take(&SCOPE, given)?,
            }
            Ok(())
        })();
        self.broken |= result.is_err();
        result
    }
}

/// Parses a raw value of `setting`, and keeps its origin.
fn take<T>(
    setting: &Setting<T>,
    (raw, at, key): (&Raw, &Origin, &str),
) -> Result<Option<SourcedValue<T>>, ValueError> {
    Ok(Some(SourcedValue {
        value: (setting.read)(raw)?,
        at: at.clone(),
        key: key.to_owned(),
    }))
}

/// Returns the first of `layers` that sets a value, with the value.
fn first<'a, T>(
    layers: &[&'a LimitLayer],
    of: impl Fn(&'a LimitLayer) -> &'a Option<SourcedValue<T>>,
) -> Option<(usize, &'a SourcedValue<T>)> {
    let mut found = layers.iter().enumerate();
    found.find_map(|(depth, layer)| Some((depth, of(layer).as_ref()?)))
}

/// Builds a limit. Returns `None` if one of `layers` is broken, which has been reported.
pub(super) fn build(
    name: &str,
    layers: &[&LimitLayer],
    unit: Unit,
    scope: Scope,
) -> Option<Result<Limit, ConfigProblem>> {
    if layers.iter().any(|layer| layer.broken) {
        return None;
    }
    let limit = build_of_tenant(name, layers, unit)?.map(|limit| limit.with_scope(scope));
    let limit = limit.and_then(|limit| with_band(limit, layers));
    let shadow = first(layers, |layer| &layer.shadow).filter(|(_, shadow)| shadow.value);
    let Some((_, shadow)) = shadow.filter(|_| !is_concurrent(layers)) else {
        return Some(limit);
    };
    let error = |error| ConfigProblem::of(&shadow.at, &shadow.key, error);
    Some(limit.and_then(|limit| limit.in_shadow().map_err(error)))
}

/// Returns the limit with the band in `layers`.
fn with_band(limit: Limit, layers: &[&LimitLayer]) -> Result<Limit, ConfigProblem> {
    let Some((depth, band)) = first(layers, |layer| &layer.adaptive) else {
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
            Err(ConfigProblem::of(&band.at, &band.key, words))
        }
        Some(percent) if limit.algorithm() != Algorithm::Concurrency => {
            Ok(limit.with_band(percent))
        }
        _ => Ok(limit),
    }
}

/// Returns origin and key of the `shadow` in `layers`.
pub(crate) fn shadow<'a>(layers: &[&'a LimitLayer]) -> Option<(&'a Origin, &'a str)> {
    first(layers, |layer| &layer.shadow).map(|(_, shadow)| (&shadow.at, shadow.key.as_str()))
}

/// Returns true for a limit on calls in flight. It takes only its scope from outer levels.
fn is_concurrent(layers: &[&LimitLayer]) -> bool {
    layers
        .first()
        .is_some_and(|layer| layer.concurrent.is_some())
}

/// Returns the scope in `layers`; the first layer that has one wins.
pub(crate) fn scope(layers: &[&LimitLayer]) -> Scope {
    first(layers, |layer| &layer.scope)
        .map(|(_, scope)| scope.value.clone())
        .unwrap_or_default()
}

/// Returns the calendar of the windows in `layers`, or `None` if they have a length.
fn calendar(
    layers: &[&LimitLayer],
    algorithm: &SourcedValue<Algorithm>,
) -> Result<Option<Calendar>, ConfigProblem> {
    let Some((window_depth, window)) = first(layers, |layer| &layer.window) else {
        return Ok(None);
    };
    let zone = first(layers, |layer| &layer.zone);
    let starts = first(layers, |layer| &layer.starts);
    let WindowSize::Calendar(period) = window.value else {
        // A zone or a start of an outer level applies only to limits with a calendar.
        let zone = zone.map(|(depth, zone)| (depth, &zone.at, &zone.key));
        let starts = starts.map(|(depth, starts)| (depth, &starts.at, &starts.key));
        let mut own = [zone, starts].into_iter().flatten();
        return match own.find(|(depth, ..)| *depth <= window_depth) {
            Some((_, at, key)) => {
                let words = "has a meaning only with window-size: day, week or month";
                Err(ConfigProblem::of(at, key, words))
            }
            None => Ok(None),
        };
    };
    if algorithm.value != Algorithm::FixedWindow {
        let words = format!(
            "is {period}, which only fixed-window-algo supports, not {}; set use-algo: {}",
            algorithm.value.name(),
            Algorithm::FixedWindow.name()
        );
        return Err(ConfigProblem::of(&window.at, &window.key, words));
    }
    let zone = zone.map_or(Zone::UTC, |(_, zone)| zone.value);
    let begin = starts.map(|(_, starts)| starts.value.as_str());
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
            Err(ConfigProblem::of(&starts.at, &starts.key, words))
        }
        (calendar, _) => Ok(calendar),
    }
}

fn build_of_tenant(
    name: &str,
    layers: &[&LimitLayer],
    unit: Unit,
) -> Option<Result<Limit, ConfigProblem>> {
    if let [
        LimitLayer {
            concurrent: Some(most),
            ..
        },
        ..,
    ] = layers
    {
        let error = |error| ConfigProblem::of(&most.at, &most.key, error);
        return Some(Limit::concurrent(name, most.value).map_err(error));
    }
    // The keys directly below `rate-limiter` have defaults, so all four of these exist.
    let (_, algorithm) = first(layers, |layer| &layer.algorithm)?;
    let (_, max) = first(layers, |layer| &layer.max)?;
    let (window_depth, window_size) = first(layers, |layer| &layer.window)?;
    let calendar = match calendar(layers, algorithm) {
        Ok(calendar) => calendar,
        Err(problem) => return Some(Err(problem)),
    };
    let window = match (&window_size.value, calendar) {
        (WindowSize::Length(window), _) => *window,
        (_, calendar) => Duration::from_millis(calendar?.nominal_ms()),
    };
    let (guard_depth, guard) = first(layers, |layer| &layer.guard)?;
    // The default of `unit` does not count, since it depends on the other limits of the list.
    let given_unit =
        first(layers, |layer| &layer.unit).filter(|(_, unit)| unit.at != Origin::Default);
    let (which, within) = match (guard.value, algorithm.value) {
        (GuardSetting::Within(within), which) => (which, within),
        (GuardSetting::Auto, which) => (which, auto_guard(which, window)),
        (GuardSetting::Strict, Algorithm::SlidingWindow) => (Algorithm::Strict, Duration::ZERO),
        (GuardSetting::Strict, other) => {
            let words = format!(
                "is strict, which only sliding-window-algo supports, not {}; use a duration, such \
                as 50ms",
                other.name()
            );
            return Some(Err(ConfigProblem::of(&guard.at, &guard.key, words)));
        }
    };
    let limit = match calendar {
        Some(calendar) => Limit::calendar(name, max.value, calendar, within),
        None => Limit::new(name, which, max.value, window, within),
    };
    let limit = match limit {
        Ok(limit) => limit.with_unit(given_unit.map_or(unit, |(_, unit)| unit.value)),
        Err(error @ LimitError::Guard { .. }) => {
            // Report the value that was set closest to the limit.
            let (at, key) = match window_depth < guard_depth {
                true => (&window_size.at, &window_size.key),
                false => (&guard.at, &guard.key),
            };
            return Some(Err(ConfigProblem::of(at, key, error)));
        }
        Err(error) => return Some(Err(ConfigProblem::of(&max.at, &max.key, error))),
    };
    let Some((depth, burst)) = first(layers, |layer| &layer.burst) else {
        return Some(Ok(limit));
    };
    // A burst from an outer level applies only to limits that can have one.
    if depth > 0 && !algorithm.value.has_burst() {
        return Some(Ok(limit));
    }
    let burst_error = |error| ConfigProblem::of(&burst.at, &burst.key, error);
    Some(limit.with_burst(burst.value).map_err(burst_error))
}
