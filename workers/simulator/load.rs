//! A load described by numbers of tenants, a rate and bursts.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::forms::{ArrivalRate, Burst, CostDistribution, MAX_DURATION, Skew};
use crate::jobs::{MAX_JOBS, SimulatedJob, sort};
use crate::random;

/// Maximum number of tenants.
pub const MAX_TENANTS: usize = 1_000_000;
/// How long jobs are published if neither `lasts` nor `count` ends the load.
const USUALLY: Duration = Duration::from_secs(600);

/// Describes which jobs are published.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadProfile {
    /// Number of tenants: `tenant-1`, `tenant-2` and so on.
    pub tenants: usize,
    /// How unequally the jobs are distributed over tenants.
    pub skew: Skew,
    /// Rate of all tenants together.
    pub rate: Option<ArrivalRate>,
    /// How long jobs come at `rate`; `None` means until `count` jobs were published, or ten minutes
    /// without a `count`.
    pub lasts: Option<Duration>,
    /// Maximum number of jobs that come at `rate`.
    pub count: Option<usize>,
    /// Jobs that are published in addition to those at `rate`.
    pub bursts: Vec<Burst>,
    /// Cost of each job.
    pub cost: CostDistribution,
}

impl LoadProfile {
    /// Generates the jobs. The same seed gives the same jobs.
    ///
    /// # Errors
    /// Returns a text if the load has no rate and no bursts, or too many jobs.
    pub fn jobs(&self, seed: u64) -> Result<Vec<SimulatedJob>, String> {
        if self.rate.is_none() && self.bursts.is_empty() {
            return Err(
                "there are no jobs: give --jobs FILE, --rate (such as poisson:20/s) or \
                --burst (such as 500@30s)"
                    .to_owned(),
            );
        }
        if !(1..=MAX_TENANTS).contains(&self.tenants) {
            return Err(format!(
                "--tenants is {}; it must be from 1 to {MAX_TENANTS}",
                self.tenants
            ));
        }
        let too_many = || format!("there are too many jobs; the maximum is {MAX_JOBS}");
        let mut random = SmallRng::seed_from_u64(seed);
        let shares = Shares::new(self.tenants, self.skew);
        let mut jobs = Vec::new();
        let names: Vec<String> = (1..=self.tenants).map(|n| format!("tenant-{n}")).collect();
        let mut job = |at: f64, random: &mut SmallRng| {
            let tenant = names[shares.next(random)].clone();
            let cost = self.cost.next(random);
            jobs.push(SimulatedJob {
                cost,
                ..SimulatedJob::new(at, tenant)
            });
            jobs.len() <= MAX_JOBS
        };
        for burst in &self.bursts {
            if burst.jobs > MAX_JOBS {
                return Err(too_many());
            }
            for _ in 0..burst.jobs {
                if !job(burst.at.as_secs_f64(), &mut random) {
                    return Err(too_many());
                }
            }
        }
        if let Some(rate) = self.rate {
            let lasts = match (self.lasts, self.count) {
                (Some(lasts), _) => lasts,
                (None, Some(_)) => MAX_DURATION,
                (None, None) => USUALLY,
            };
            let lasts = lasts.min(MAX_DURATION).as_secs_f64();
            let expected = rate.per_second * lasts;
            // Random arrivals may come to fewer jobs than expected, hence a margin.
            let wanted = self
                .count
                .map_or(expected, |count| expected.min(count as f64));
            if wanted > 1.1 * MAX_JOBS as f64 {
                return Err(too_many());
            }
            let mut at = 0.0;
            for number in 0.. {
                if self.count.is_some_and(|count| number >= count) {
                    break;
                }
                at = match rate.at_random {
                    true => at + random::exponential(&mut random) / rate.per_second,
                    // Computed from the number of the job, so that rounding errors do not add up.
                    false => number as f64 / rate.per_second,
                };
                if at >= lasts {
                    break;
                }
                if !job(at, &mut random) {
                    return Err(too_many());
                }
            }
        }
        sort(&mut jobs);
        Ok(jobs)
    }
}

/// Draws the tenant of each job.
struct Shares {
    /// Cumulative weights: entry n is the weight of the first n + 1 tenants together.
    sums: Vec<f64>,
}

impl Shares {
    fn new(tenants: usize, Skew(exponent): Skew) -> Self {
        let mut sum = 0.0;
        let add = |number: usize| {
            sum += (number as f64).powf(-exponent);
            sum
        };
        Self {
            sums: (1..=tenants).map(add).collect(),
        }
    }

    fn next(&self, random: &mut SmallRng) -> usize {
        let all = self.sums.last().copied().unwrap_or(1.0);
        let drawn = random.random::<f64>() * all;
        let index = self.sums.partition_point(|sum| *sum <= drawn);
        index.min(self.sums.len().saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(rate: &str) -> LoadProfile {
        LoadProfile {
            tenants: 10,
            skew: Skew(1.0),
            rate: Some(rate.parse().expect("a rate")),
            lasts: Some(Duration::from_secs(100)),
            count: None,
            bursts: vec!["50@30s".parse().expect("a burst")],
            cost: CostDistribution::ONE,
        }
    }

    #[test]
    fn a_load_matches_its_description_and_is_reproducible() {
        let even = load("uniform:20/s").jobs(1).expect("jobs");
        assert_eq!(even.len(), 2_050);
        assert!(even.is_sorted_by(|one, two| one.at <= two.at));
        let random = load("poisson:20/s").jobs(1).expect("jobs");
        assert!((1_850..2_250).contains(&random.len()), "{}", random.len());
        assert_eq!(Ok(random), load("poisson:20/s").jobs(1));
        let of = |tenant: &str| even.iter().filter(|job| job.tenant == tenant).count();
        assert!(of("tenant-1") > 5 * of("tenant-10"), "by zipf");
    }

    #[test]
    fn absurd_numbers_are_refused() {
        let mut many = load("1000000/s");
        let why = many.jobs(1).expect_err("too many");
        assert!(why.contains("the maximum is 2000000"), "{why}");
        many.tenants = 0;
        assert!(many.jobs(1).is_err());
        let nothing = LoadProfile {
            rate: None,
            bursts: Vec::new(),
            ..load("1/s")
        };
        assert!(nothing.jobs(1).expect_err("nothing").contains("--rate"));
    }
}
