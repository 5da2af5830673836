//! How full a limit is, for whoever draws it; and what a shadow limit would have done.

use std::time::Duration;

use crate::config::show_duration;
use crate::gate::Usage;
use crate::rules::decision::{Tally, Tried};
use crate::rules::limit::{Algorithm, Limit};
use crate::rules::scope::Scope;

/// One limit, as full as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fullness {
    /// Its name.
    pub name: String,
    /// Whose quota it is.
    pub scope: Scope,
    /// `1m`: its window; empty: it counts calls in flight.
    pub window: String,
    /// Units that count now. `None`: its jobs are told apart by a value, and nobody said which.
    pub used: Option<u64>,
    /// The most that may count.
    pub max: u32,
    /// Until when an operator set that, by Redis's clock in milliseconds; 0: it is the configuration's.
    pub override_until_ms: u64,
    /// When the next unit is available, in milliseconds from the look on; 0: now.
    pub next_ms: u64,
    /// Units that wait where it counts.
    pub waiting: u64,
    /// Of a shadow what it would have done; of one that an operator tries the name is that of the limit in whose place. `None`: it is
    /// enforced.
    pub shadow: Option<Tally>,
    /// An operator tries it, for this tenant.
    pub is_tried: bool,
}

impl Fullness {
    /// Of `limit`, which counts this.
    pub fn of(limit: &Limit, usage: &Usage) -> Self {
        let is_one = !limit.scope().is_part();
        Self {
            name: limit.name().to_owned(),
            scope: limit.scope().clone(),
            window: match limit.algorithm() {
                Algorithm::Concurrency => String::new(),
                _ => show_duration(Duration::from_millis(limit.window_ms())),
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

    /// Of the shadow `limit`, which counts this, and has seen this.
    pub fn of_shadow(limit: &Limit, usage: &Usage, tried: &Tried) -> Self {
        Self {
            name: limit.tried_for().unwrap_or(limit.name()).to_owned(),
            next_ms: 0,
            shadow: Some(tried.tally),
            ..Self::of(limit, usage)
        }
    }

    /// From 0 to 1: an operator may have set less than is used already. `None`: it is not known.
    // Above 2^53 the last digits are rounded.
    #[expect(clippy::cast_precision_loss)]
    pub fn share(&self) -> Option<f64> {
        let used = self.used? as f64;
        Some((used / f64::from(self.max.max(1))).min(1.0))
    }

    /// Nothing is left of it.
    pub fn is_full(&self) -> bool {
        self.used.is_some_and(|used| used >= u64::from(self.max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(count: u64, max: u32) -> Usage {
        Usage {
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
    fn a_limit_is_as_full_as_it_is_known_to_be() {
        let limit = Limit::concurrent("calls", 4).expect("in range");
        let full = Fullness::of(&limit, &usage(1, 4));
        assert_eq!((full.share(), full.is_full()), (Some(0.25), false));
        assert_eq!(full.window, "");
        // An operator set less than is in flight already.
        let over = Fullness::of(&limit, &usage(4, 2));
        assert_eq!((over.share(), over.is_full()), (Some(1.0), true));
        let by_header = limit.with_scope(Scope::Header("x-path".to_owned()));
        let unknown = Fullness::of(&by_header, &usage(4, 4));
        assert_eq!((unknown.share(), unknown.is_full()), (None, false));
        assert_eq!((unknown.next_ms, unknown.waiting), (0, 0));
    }
}
