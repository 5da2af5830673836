//! Keeps the starts of a bucket further apart than `window / max`, for APIs that refuse a call that
//! arrives less than `window / max` after the previous one. Pure: `now` is an argument.
//!
//! The gate counts a call when it admits the job, the API when the call arrives. If a call takes
//! longer to arrive than the next one, they arrive closer together than they started. So a *margin*
//! of at most 3 % is added to each distance. The margin follows the lateness of calls
//! ([`Lateness`](super::lateness::Lateness)). A call that is later than the margin moves the next
//! start, so the margin need not cover the worst case. A refusal shows that this was not enough: it
//! widens the distances of its tenant by 1 %. Each further refusal doubles this, up to half of the
//! distance, or up to 4 % for an adaptive limit, which a refusal lowers anyway.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::limit::{Limit, Limits};
use crate::tenant::Tenant;

/// The smallest margin: both clocks count whole milliseconds, and the latencies of calls differ by
/// about one.
const MIN_MARGIN: Duration = Duration::from_millis(3);
/// The largest margin: the longest guard of `auto`.
const LARGEST_MARGIN: Duration = Duration::from_millis(50);
/// The margin is at most the distance divided by this.
const MARGIN_PART: u64 = 33;
/// Distances below this get no margin until the API refuses a call: a job that asks a millisecond
/// late would lose too much of its distance, so the bucket may make up for late starts.
const SHORT_DISTANCE_US: u64 = 50_000;
/// A late call adds its lateness divided by `RISE_PART` to the margin. Each call reduces the part
/// of the margin above the minimum by 1/`FALL_PART`.
const RISE_PART: u32 = 4;
const FALL_PART: u32 = 256;
/// The first refusal adds the distance divided by this; each further refusal doubles it.
const FIRST_PART: u64 = 100;
/// The added distance is at most `window / max` divided by this.
const MAX_PART: u64 = 2;
/// Maximum number of refusals that count.
const MAX_REFUSALS: u32 = 7;
/// The same for an adaptive limit.
const MAX_REFUSALS_OF_LEARNER: u32 = 3;
/// Time without a refusal after which one refusal is forgotten.
const RELAX_INTERVAL: Duration = Duration::from_secs(600);
/// Maximum number of tenants whose refusals are remembered. Refusals of other tenants have no
/// effect.
const MAX_TENANTS: usize = 10_000;

/// The margin of this worker, and the refusals per tenant.
#[derive(Debug)]
pub struct Pacing {
    margin: Duration,
    refused: HashMap<Tenant, TenantRefusals, RandomState>,
    swept: Duration,
}

/// The refusals of one tenant's calls.
#[derive(Debug, Clone, Copy)]
struct TenantRefusals {
    times: u32,
    at: Duration,
}

impl TenantRefusals {
    /// Returns the number of refusals that are not forgotten yet.
    fn left(&self, now: Duration) -> u32 {
        let passed = now.saturating_sub(self.at).as_secs() / RELAX_INTERVAL.as_secs();
        self.times
            .saturating_sub(u32::try_from(passed).unwrap_or(u32::MAX))
    }
}

impl Default for Pacing {
    fn default() -> Self {
        Self {
            margin: MIN_MARGIN,
            refused: HashMap::default(),
            swept: Duration::ZERO,
        }
    }
}

impl Pacing {
    /// Returns the `limits` of `tenant` with the distances of buckets widened.
    pub fn add_spacing(&self, now: Duration, tenant: &Tenant, limits: Limits) -> Limits {
        if !limits.iter().any(|limit| limit.algorithm().has_burst()) {
            return limits;
        }
        let refused = self.refused.get(tenant);
        let times = refused.map_or(0, |refused| refused.left(now));
        limits.with_spacing(|limit| self.spacing_us(limit, times))
    }

    /// Returns by how many microseconds starts are further apart than `window / max`.
    fn spacing_us(&self, limit: &Limit, refusals: u32) -> u32 {
        let distance = 1000 * limit.window_ms() / limit.max();
        let margin = u64::try_from(self.margin.as_micros()).unwrap_or(u64::MAX);
        let margin = margin.min(distance / MARGIN_PART);
        let refusals = match limit.band() {
            Some(_) => refusals.min(MAX_REFUSALS_OF_LEARNER),
            None => refusals,
        };
        let widened = match refusals {
            0 if distance < SHORT_DISTANCE_US => return 0,
            0 => 0,
            times => (distance << (times - 1)) / FIRST_PART,
        };
        let apart = (margin + widened).min(distance / MAX_PART);
        u32::try_from(apart).unwrap_or(u32::MAX)
    }

    /// Reduces the margin after a call.
    pub fn called(&mut self) {
        self.margin -= (self.margin - MIN_MARGIN) / FALL_PART;
    }

    /// Raises the margin after a call that was `late` beyond what the margin covers.
    pub fn late(&mut self, late: Duration) {
        self.margin = (self.margin + late / RISE_PART).min(LARGEST_MARGIN);
    }

    /// Widens the distances of `tenant` after the API refused a call under `limits`. `asked_at` is
    /// when its permit was requested. Refused calls that were in flight together count once.
    pub fn refused(
        &mut self,
        now: Duration,
        tenant: &Tenant,
        (limits, asked_at): (&Limits, Duration),
    ) {
        if !limits.iter().any(|limit| limit.algorithm().has_burst()) {
            return;
        }
        if let Some(refused) = self.refused.get_mut(tenant) {
            if asked_at >= refused.at {
                refused.times = (refused.left(now) + 1).min(MAX_REFUSALS);
                refused.at = now;
            }
        } else if self.has_room(now) {
            let first = TenantRefusals { times: 1, at: now };
            self.refused.insert(tenant.clone(), first);
        }
    }

    /// Returns true if there is room for one more tenant. Looks at all tenants at most once in
    /// [`RELAX_INTERVAL`].
    fn has_room(&mut self, now: Duration) -> bool {
        if self.refused.len() >= MAX_TENANTS && now >= self.swept + RELAX_INTERVAL {
            self.swept = now;
            self.refused.retain(|_, refused| refused.left(now) > 0);
        }
        self.refused.len() < MAX_TENANTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::{MS, SECOND, limit, tenant};
    use crate::limit::Algorithm;

    fn limits(algorithm: Algorithm, max: u64, seconds: u32) -> Limits {
        limit("default", algorithm, max, seconds * SECOND).into()
    }

    fn leaky(max: u64, seconds: u32) -> Limits {
        limits(Algorithm::LeakyBucket, max, seconds)
    }

    fn spacing_us(pacing: &Pacing, now: Duration, limits: Limits) -> u32 {
        pacing.add_spacing(now, &tenant(1), limits)[0]
            .terms()
            .spacing_us()
    }

    #[test]
    fn starts_of_buckets_are_kept_apart_unless_their_distance_is_short() {
        let pacing = Pacing::default();
        for (limits, apart) in [
            (leaky(10, 1), 3_000),
            (leaky(60, 60), 3_000),
            (leaky(20, 1), 1_515),
            (leaky(21, 1), 0),
            (leaky(100, 1), 0),
            (limits(Algorithm::TokenBucket, 10, 1), 3_000),
            (limits(Algorithm::SlidingWindow, 10, 1), 0),
        ] {
            assert_eq!(spacing_us(&pacing, SECOND, limits), apart);
        }
    }

    #[test]
    fn the_margin_follows_late_calls_and_falls_again() {
        let mut pacing = Pacing::default();
        pacing.late(8 * MS);
        assert_eq!(spacing_us(&pacing, SECOND, leaky(60, 60)), 5_000);
        assert_eq!(spacing_us(&pacing, SECOND, leaky(10, 1)), 3_030, "3 %");
        for _ in 0..100 {
            pacing.late(SECOND);
        }
        assert_eq!(spacing_us(&pacing, SECOND, leaky(1, 10)), 50_000);
        for _ in 0..3_000 {
            pacing.called();
        }
        assert_eq!(spacing_us(&pacing, SECOND, leaky(1, 10)), 3_000);
    }

    #[test]
    fn each_refusal_widens_the_distances_of_its_tenant_and_they_relax() {
        let mut pacing = Pacing::default();
        let wide = |pacing: &Pacing, now| spacing_us(pacing, now, leaky(10, 1));
        let mut at = SECOND;
        for apart in [4, 5, 7, 11, 19, 35, 50, 50, 50] {
            pacing.refused(at, &tenant(1), (&leaky(10, 1), at));
            // This call was in flight together with the other one.
            pacing.refused(at, &tenant(1), (&leaky(10, 1), at - MS));
            assert_eq!(wide(&pacing, at), 1_000 * apart);
            at += SECOND;
        }
        let learns = Limits::from(leaky(10, 1)[0].clone().with_band(50));
        let widest = 3_000 + 4_000;
        assert_eq!(
            spacing_us(&pacing, at, learns),
            widest,
            "4 %, because it sinks"
        );
        let after = |intervals| at - SECOND + intervals * RELAX_INTERVAL;
        assert_eq!(wide(&pacing, after(5)), 5_000);
        assert_eq!(wide(&pacing, after(7)), 3_000);
        let other = pacing.add_spacing(at, &tenant(2), leaky(10, 1));
        assert_eq!(other[0].spacing_us(), 3_000);
        assert_eq!(spacing_us(&pacing, at, leaky(100, 1)), 5_000, "half");
        let mut pacing = Pacing::default();
        pacing.refused(at, &tenant(1), (&limits(Algorithm::FixedWindow, 9, 1), at));
        assert_eq!(wide(&pacing, at), 3_000, "no bucket was refused");
    }

    #[test]
    fn memory_is_bounded_and_expired_entries_make_room() {
        let mut pacing = Pacing::default();
        for number in 0..2 * MAX_TENANTS {
            pacing.refused(SECOND, &tenant(number), (&leaky(10, 1), SECOND));
        }
        assert_eq!(pacing.refused.len(), MAX_TENANTS);
        let later = SECOND + 2 * RELAX_INTERVAL;
        pacing.refused(later, &tenant(2 * MAX_TENANTS), (&leaky(10, 1), later));
        assert_eq!(pacing.refused.len(), 1);
    }
}
