//! How full a limit is, for commands and pages that draw it, and the effect that a shadow limit
//! would have had.

use std::time::Duration;

use config::show_duration;
use gate::UsageOfLimit;
use rules::decision::{Tally, TrialStatus};
use rules::limit::{Algorithm, Limit};
use rules::scope::Scope;

/// A limit and its usage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fullness {
    /// Name of the limit.
    pub name: String,
    /// Scope that shares its quota.
    pub scope: Scope,
    /// Window, for example `1m`; empty if the limit counts calls in flight.
    pub window: String,
    /// Units that count now, or `None` if the limit distinguishes jobs by a value that was not
    /// given.
    pub used: Option<u64>,
    /// Maximum number of units.
    pub max: u64,
    /// Time at which an operator's override of `max` ends, by Redis's clock in milliseconds; 0 if
    /// `max` comes from the configuration.
    pub override_until_ms: u64,
    /// Milliseconds from this look until the next unit is available; 0 if one is available now.
    pub next_ms: u64,
    /// Units that wait in the waitlists that use this limit.
    pub waiting: u64,
    /// The effect that a shadow limit would have had, or `None` for an enforced limit. If an
    /// operator tries another `max`, `name` is the name of the enforced limit.
    pub shadow: Option<Tally>,
    /// Whether an operator tries this `max` for the tenant.
    pub is_tried: bool,
}

impl Fullness {
    /// Describes `limit` with its `usage`.
    pub fn of(limit: &Limit, usage: &UsageOfLimit) -> Self {
        let is_one = !limit.scope().is_part();
        Self {
            name: limit.name().to_owned(),
            scope: limit.scope().clone(),
            window: match limit.algorithm() {
                Algorithm::Concurrency => String::new(),
                _ => match limit.calendar() {
                    Some(calendar) => calendar.period.name().to_owned(),
                    None => show_duration(Duration::from_millis(limit.window_ms())),
                },
            },
            used: is_one.then_some(usage.count),
            max: usage.max,
            override_until_ms: usage.override_until_ms,
            next_ms: if is_one { usage.next_ms } else { 0 },
            waiting: if is_one { usage.waiting } else { 0 },
            shadow: None,
            is_tried: limit.tried_for().is_some(),
        }
    }

    /// Describes the shadow limit `limit` with its `usage` and the effect that it would have had.
    pub fn for_shadow(limit: &Limit, usage: &UsageOfLimit, tried: &TrialStatus) -> Self {
        Self {
            name: limit.tried_for().unwrap_or(limit.name()).to_owned(),
            next_ms: 0,
            shadow: Some(tried.tally),
            ..Self::of(limit, usage)
        }
    }

    /// Returns the share in use, from 0 to 1, or `None` if it is unknown. The share is capped at 1,
    /// since an operator may have set a maximum below the current usage.
    // Numbers above 2^53 are rounded.
    #[expect(clippy::cast_precision_loss)]
    pub fn share(&self) -> Option<f64> {
        let used = self.used? as f64;
        Some((used / self.max.max(1) as f64).min(1.0))
    }

    /// Returns true if no unit is available.
    pub fn is_full(&self) -> bool {
        self.used.is_some_and(|used| used >= self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(count: u64, max: u64) -> UsageOfLimit {
        UsageOfLimit {
            max,
            set: max,
            override_until_ms: 0,
            count,
            free: 0,
            next_ms: 7,
            waiting: 3,
            widest: 1,
            calls: None,
            learned: None,
        }
    }

    #[test]
    fn fullness_follows_known_usage() {
        let limit = Limit::concurrent("calls", 4).expect("in range");
        let full = Fullness::of(&limit, &usage(1, 4));
        assert_eq!((full.share(), full.is_full()), (Some(0.25), false));
        assert_eq!(full.window, "");
        // An operator set a maximum below the number of calls in flight.
        let over = Fullness::of(&limit, &usage(4, 2));
        assert_eq!((over.share(), over.is_full()), (Some(1.0), true));
        let by_header = limit.with_scope(Scope::Header("x-path".to_owned()));
        let unknown = Fullness::of(&by_header, &usage(4, 4));
        assert_eq!((unknown.share(), unknown.is_full()), (None, false));
        assert_eq!((unknown.next_ms, unknown.waiting), (0, 0));
    }
}
