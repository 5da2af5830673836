//! The limits of the demo's API, and the costs of its jobs.

use std::time::Duration;

use clap::ValueEnum;
use rules::limit::{Algorithm, Limit, LimitError, Unit};

/// How long the API throttles a tenant. `Retry-After` has whole seconds.
pub const CLOSED: Duration = Duration::from_secs(2);

/// The values of `--scenario`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// One limit: --limit calls per --window
    Limit,
    /// Three limits at once: --limit, 4 times as many calls in 10 windows, and 11 times as many in
    /// 30
    Limits,
    /// Calls and tokens: --limit, and 100 times as many tokens per --window. Jobs reserve tokens
    /// (x-cost), and the API reports how many they used (x-actual-cost)
    Costs,
    /// One limit; now and then the API answers 429 with Retry-After: 2 and accepts no call of that
    /// tenant until then
    Throttling,
    /// One limit; each job's publisher gets the API's answer (reply_to)
    Results,
    /// Three pipelines per worker, each with its own limit and API: one gets a flood, one loses its
    /// API, and the third must not notice
    Pipelines,
}

/// The cost of a job in units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobCost {
    /// The reserved units: `x-cost`.
    pub asked: u64,
    /// The units that the API counts: `x-actual-cost`. Never more than reserved.
    pub actual: u64,
}

impl Scenario {
    /// Returns the limits. The first is `max` in `window`.
    ///
    /// # Errors
    /// A limit is not valid.
    pub fn limits(
        self,
        algorithm: Algorithm,
        max: u32,
        window: Duration,
        guard: Duration,
    ) -> Result<Vec<Limit>, LimitError> {
        let limit = |name: &str, times: u64, windows: u32, unit| {
            let (max, window) = (u64::from(max) * times, window.saturating_mul(windows));
            Ok(Limit::new(name, algorithm, max, window, guard)?.with_unit(unit))
        };
        match self {
            Self::Limit | Self::Throttling | Self::Results | Self::Pipelines => {
                Ok(vec![limit("default", 1, 1, Unit::Calls)?])
            }
            Self::Limits => Ok(vec![
                limit("short", 1, 1, Unit::Calls)?,
                limit("middle", 4, 10, Unit::Calls)?,
                limit("long", 11, 30, Unit::Calls)?,
            ]),
            Self::Costs => Ok(vec![
                limit("calls", 1, 1, Unit::Calls)?,
                limit("tokens", 100, 1, Unit::Cost)?,
            ]),
        }
    }

    /// Returns the default number of tenants. All pipelines together make about as many calls as
    /// one in other scenarios.
    pub fn tenants(self) -> u32 {
        match self {
            Self::Pipelines => 2,
            Self::Limit | Self::Limits | Self::Costs | Self::Throttling | Self::Results => 5,
        }
    }

    /// Returns the default number of jobs per tenant for a first limit of `max`.
    pub fn jobs(self, max: u32) -> u32 {
        match self {
            Self::Limits => max * 16,
            Self::Pipelines => max * 10,
            Self::Limit | Self::Costs | Self::Throttling | Self::Results => 200,
        }
    }

    /// Returns the cost of a tenant's job with this number for a first limit of `max`. Of every
    /// hundred jobs, half are small, so that the limit of calls applies, and half are large, so
    /// that the limit of tokens does.
    pub fn cost(self, max: u64, number: usize) -> JobCost {
        if self != Self::Costs {
            return JobCost {
                asked: 1,
                actual: 1,
            };
        }
        let (min, most) = match number % 100 {
            ..50 => (20, 60),
            _ => (100, 400),
        };
        // At most the limit.
        let asked = u64::from(min + scatter(number, 1) % (most - min + 1)).min(100 * max);
        let share = 40 + scatter(number, 2) % 61;
        let actual = (asked * u64::from(share)).div_ceil(100);
        JobCost { asked, actual }
    }

    /// Returns how many calls of a tenant pass between two that make the API throttle it, or `None`
    /// if it never does. The throttling call is in the middle of a window's calls, so that others
    /// are in flight.
    pub fn closes_each(self, max: u64) -> Option<usize> {
        (self == Self::Throttling).then_some((max as usize * 5 / 2).max(2))
    }

    /// Returns the total time that one tenant is throttled while `jobs` jobs are called.
    pub fn closed(self, max: u64, jobs: usize) -> Duration {
        let times = self.closes_each(max).map_or(0, |each| jobs / each);
        CLOSED.saturating_mul(u32::try_from(times).unwrap_or(u32::MAX))
    }

    /// Describes the API's behavior beyond limits, for a first limit of `max`.
    pub fn describe(self, max: u64) -> String {
        match (self, self.closes_each(max)) {
            (Self::Costs, _) => ", and reports what each used".to_owned(),
            (Self::Results, _) => ", and its answers go to the publishers".to_owned(),
            (_, Some(each)) => {
                format!(", and throttles a tenant for {CLOSED:?} at every {each}th of its calls")
            }
            (_, None) => String::new(),
        }
    }

    /// Returns the maximum number of deliveries per job. It is stricter than P4, because the demo's
    /// load is simpler.
    pub fn deliveries_per_job(self) -> f64 {
        match self {
            Self::Limit | Self::Results | Self::Pipelines => 3.1,
            Self::Limits => 3.6,
            Self::Costs => 4.1,
            // Jobs that arrive while the tenant is throttled are delivered once more, each time.
            Self::Throttling => 5.1,
        }
    }
}

/// Returns the same number for the same job, without a pattern (SplitMix64).
fn scatter(number: usize, salt: u64) -> u32 {
    let mut z = (number as u64).wrapping_add(salt.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z >> 33) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_reserve_what_the_limit_can_give_and_the_api_takes_no_more() {
        for max in [1, 20, 10_000] {
            for number in 0..500 {
                let JobCost { asked, actual } = Scenario::Costs.cost(max, number);
                assert!((1..=asked).contains(&actual), "{max} {number}");
                assert!(asked <= 100 * max);
            }
        }
        let total = |of: fn(JobCost) -> u64| -> u64 {
            (0..200).map(|n| of(Scenario::Costs.cost(20, n))).sum()
        };
        let share = total(|c| c.actual) as f64 / total(|c| c.asked) as f64;
        assert!((0.6..0.8).contains(&share), "{share}");
    }

    #[test]
    fn only_throttling_throttles() {
        assert_eq!(Scenario::Costs.closed(20, 1000), Duration::ZERO);
        assert_eq!(Scenario::Throttling.closed(20, 200), 4 * CLOSED);
    }
}
