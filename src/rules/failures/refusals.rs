//! Detects from refused calls that an API counts differently from the configured limit, and gives
//! advice. Pure: `now` is an argument.
//!
//! A worker calls only within the limit, so refusals suggest that the API counts in another way.
//! One refusal proves nothing: the API may remember earlier calls, or may be overloaded. There is
//! advice after several throttlings of a tenant, if at least 5 % of its calls were refused. Which
//! advice depends on the number of calls that pass between two throttlings: an API that expects an
//! even flow lets a few calls of a burst pass, but an API that counts windows lets nearly all pass.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::limit::{Algorithm, Limit};
use crate::tenant::Tenant;

/// Minimum number of throttlings before there is advice.
const MIN_THROTTLINGS: u32 = 3;
/// Advice is given if at least one of this many calls is refused.
const REFUSED_PART: u32 = 20;
/// An API is assumed to require an even flow if the calls that pass between two throttlings are at
/// most the limit divided by this.
const EVEN_PART: u32 = 4;
/// Number of calls of a tenant after which the counts are halved, so that older calls count less.
const MAX_CALLS: u32 = 400;
/// Age at which refusals are forgotten if there is no room for another tenant.
const MEMORY: Duration = Duration::from_secs(3600);
/// Maximum number of tenants with a refused call whose calls are counted.
const MAX_TENANTS: usize = 10_000;

/// Counts calls of tenants with at least one refused call.
#[derive(Debug, Default)]
pub struct Refusals {
    tenants: HashMap<Tenant, CallCounts, RandomState>,
    swept: Duration,
    /// The last advice, and when it was given.
    advised: Option<(Duration, String)>,
}

/// The calls of one tenant since its first refusal.
#[derive(Debug, Clone, Copy, Default)]
struct CallCounts {
    calls: u32,
    refused: u32,
    /// Refusals of calls that were in flight together count as one throttling.
    throttlings: u32,
    at: Duration,
}

impl CallCounts {
    fn called(&mut self) {
        self.calls += 1;
        if self.calls >= MAX_CALLS {
            self.calls /= 2;
            self.refused /= 2;
            self.throttlings /= 2;
        }
    }
}

impl Refusals {
    /// Counts a call of `tenant` that the API did not refuse.
    pub fn passed(&mut self, tenant: &Tenant) {
        if let Some(counts) = self.tenants.get_mut(tenant) {
            counts.called();
        }
    }

    /// Counts a refused call of `tenant`. `asked_at` is when its permit was requested.
    pub fn refused(&mut self, now: Duration, tenant: &Tenant, asked_at: Duration) {
        if !self.tenants.contains_key(tenant) {
            if !self.has_room(now) {
                return;
            }
            self.tenants.insert(tenant.clone(), CallCounts::default());
        }
        if let Some(counts) = self.tenants.get_mut(tenant) {
            counts.called();
            counts.refused += 1;
            if counts.throttlings == 0 || asked_at >= counts.at {
                counts.throttlings += 1;
                counts.at = now;
            }
        }
    }

    /// Returns advice on the refusals of `tenant` under `limits`, or `None` if there are few
    /// refusals. Remembers the advice for an hour.
    pub fn advise(&mut self, now: Duration, tenant: &Tenant, limits: &[Limit]) -> Option<String> {
        let advice = self.advice(tenant, limits)?;
        self.advised = Some((now, format!("{advice} (tenant {tenant})")));
        Some(advice)
    }

    /// Returns the last advice, including the tenant's name, if it is less than an hour old.
    pub fn last_advice(&self, now: Duration) -> Option<&str> {
        let (at, advice) = self.advised.as_ref()?;
        (*at + MEMORY > now).then_some(advice)
    }

    fn advice(&self, tenant: &Tenant, limits: &[Limit]) -> Option<String> {
        let counts = self.tenants.get(tenant)?;
        let CallCounts {
            calls,
            refused,
            throttlings,
            ..
        } = *counts;
        if throttlings < MIN_THROTTLINGS || refused.saturating_mul(REFUSED_PART) < calls {
            return None;
        }
        let windows = limits.iter().filter(|limit| !limit.is_shadow());
        let windows = windows.filter(|limit| limit.window_ms() > 0);
        let limit = windows.min_by_key(|limit| limit.window_ms())?;
        let passed = (calls - refused) / throttlings;
        let is_even = u64::from(passed.saturating_mul(EVEN_PART)) <= limit.max();
        let (seems, advice) = match limit.algorithm() {
            _ if limit.is_even() => ("allow less", "lower max-requests".to_owned()),
            aligned if aligned.facts().is_aligned && !is_even => (
                "count in other windows",
                format!("use {}", Algorithm::SlidingWindow.name()),
            ),
            _ => (
                match is_even {
                    true => "require an even flow",
                    false => "estimate, or count in other windows",
                },
                format!("use {}", Algorithm::LeakyBucket.name()),
            ),
        };
        Some(format!(
            "{refused} of {calls} calls were refused although the limit {} was kept: the API seems \
            to {seems}; {advice} (or scope: global, if tenants share this quota)",
            limit.name()
        ))
    }

    /// Returns true if there is room for one more tenant. Forgets old refusals at most once per
    /// [`MEMORY`].
    fn has_room(&mut self, now: Duration) -> bool {
        if self.tenants.len() >= MAX_TENANTS && now >= self.swept + MEMORY {
            self.swept = now;
            self.tenants.retain(|_, counts| counts.at + MEMORY > now);
        }
        self.tenants.len() < MAX_TENANTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::{SECOND, guarded, tenant};

    fn limit(algorithm: Algorithm) -> Limit {
        guarded("default", algorithm, 20, 2 * SECOND)
    }

    /// Returns the advice after `times` bursts, in each of which `passed` calls pass and `refused`
    /// are refused.
    fn advice(algorithm: Algorithm, times: u32, (passed, refused): (u32, u32)) -> Option<String> {
        let mut refusals = Refusals::default();
        for burst in 0..times {
            let asked_at = SECOND * 2 * burst;
            for _ in 0..passed {
                refusals.passed(&tenant(1));
            }
            for _ in 0..refused {
                refusals.refused(asked_at + SECOND, &tenant(1), asked_at);
            }
        }
        refusals.advice(&tenant(1), &[limit(algorithm)])
    }

    #[test]
    fn the_pattern_of_refusals_names_the_algorithm_that_fits() {
        use Algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
        for (algorithm, burst, seems, what) in [
            (
                SlidingWindow,
                (1, 19),
                "require an even flow",
                "leaky-bucket",
            ),
            (FixedWindow, (2, 18), "require an even flow", "leaky-bucket"),
            (TokenBucket, (1, 9), "require an even flow", "leaky-bucket"),
            (SlidingWindow, (12, 8), "estimate", "leaky-bucket"),
            (FixedWindow, (19, 2), "other windows", "sliding-window"),
            (LeakyBucket, (5, 1), "allow less", "lower max-requests"),
        ] {
            let advice = advice(algorithm, 4, burst).expect("advice");
            assert!(advice.contains(seems) && advice.contains(what), "{advice}");
        }
        assert_eq!(
            advice(Algorithm::SlidingWindow, 3, (12, 8)).expect("advice"),
            "24 of 48 calls were refused although the limit default was kept: the API seems to \
             estimate, or count in other windows; use leaky-bucket-algo (or scope: global, if tenants \
             share this quota)",
            "from the first refusal on"
        );
    }

    #[test]
    fn few_refusals_form_no_pattern() {
        let sliding = Algorithm::SlidingWindow;
        assert_eq!(advice(sliding, 2, (1, 19)), None, "two throttlings");
        assert!(advice(sliding, 3, (57, 2)).is_some(), "6 of 120 calls");
        assert_eq!(advice(sliding, 3, (58, 2)), None, "6 of 122 calls");
        let mut refusals = Refusals::default();
        for _ in 0..9 {
            refusals.refused(SECOND, &tenant(1), Duration::ZERO);
        }
        let advice = refusals.advice(&tenant(1), &[limit(sliding)]);
        assert_eq!(advice, None, "they were under way together");
    }

    #[test]
    fn the_last_advice_is_remembered_for_an_hour() {
        let (mut refusals, limits) = (Refusals::default(), [limit(Algorithm::SlidingWindow)]);
        for burst in 0..3 {
            refusals.refused(SECOND * burst, &tenant(1), SECOND * burst);
        }
        assert_eq!(refusals.advise(SECOND, &tenant(2), &limits), None);
        assert_eq!(refusals.last_advice(SECOND), None);
        let advice = refusals
            .advise(SECOND, &tenant(1), &limits)
            .expect("advice");
        let last = format!("{advice} (tenant 1)");
        assert_eq!(refusals.last_advice(MEMORY), Some(&*last));
        assert_eq!(refusals.last_advice(SECOND + MEMORY), None);
    }

    #[test]
    fn old_refusals_fade_and_memory_is_bounded() {
        let mut refusals = Refusals::default();
        for burst in 0..9 {
            refusals.refused(SECOND * burst, &tenant(1), SECOND * burst);
        }
        assert!(
            refusals
                .advice(&tenant(1), &[limit(Algorithm::SlidingWindow)])
                .is_some()
        );
        for _ in 0..2 * MAX_CALLS {
            refusals.passed(&tenant(1));
        }
        assert_eq!(
            refusals.advice(&tenant(1), &[limit(Algorithm::SlidingWindow)]),
            None
        );
        for number in 0..2 * MAX_TENANTS {
            refusals.refused(SECOND, &tenant(number), SECOND);
        }
        assert_eq!(refusals.tenants.len(), MAX_TENANTS);
        let later = 10 * SECOND + MEMORY;
        refusals.refused(later, &tenant(2 * MAX_TENANTS), later);
        assert_eq!(refusals.tenants.len(), 1);
    }
}
