//! Short notations for a load and an API: `poisson:20/s`, `500@30s`, `lognormal:80ms,0.5`,
//! `100/60s`.

use std::str::FromStr;
use std::time::Duration;

use config::parse_duration;
use rand::Rng;
use rand::rngs::SmallRng;
use rules::limit::MAX_REQUESTS;

use crate::limiter::Counting;
use crate::mistake::shown;
use crate::random;

/// Maximum rate, in jobs per second.
const MAX_PER_SECOND: f64 = 1_000_000.0;
/// Maximum sigma of a lognormal distribution: one value in a hundred is ten thousand times the
/// median.
const MAX_SIGMA: f64 = 4.0;
/// Maximum duration of a load, and maximum delay before it begins.
pub const MAX_DURATION: Duration = Duration::from_secs(30 * 86_400);
/// Maximum duration of a call, longer than any `dispatch.*.timeout`.
pub const MAX_CALL_DURATION: Duration = Duration::from_secs(3_600);
/// Maximum round trip to Redis: a worker gives up after 2 s.
pub const MAX_ROUND_TRIP: Duration = Duration::from_millis(1_900);
/// Maximum cost of a job.
pub const MAX_COST: u64 = MAX_REQUESTS;

/// Arrival of new jobs: `poisson:20/s` (at random), or `uniform:20/s` and `20/s` (evenly spaced);
/// also with `/m` and `/h`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ArrivalRate {
    /// Whether jobs come at random, as from independent publishers.
    pub at_random: bool,
    /// Average number of jobs per second.
    pub per_second: f64,
}

impl FromStr for ArrivalRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "is {}; it must be a rate of jobs, such as poisson:20/s, uniform:20/s or 300/m",
                shown(text)
            )
        };
        let (at_random, rest) = match text.split_once(':') {
            Some(("poisson", rest)) => (true, rest),
            Some(("uniform", rest)) => (false, rest),
            None => (false, text),
            Some(_) => return Err(wrong()),
        };
        let (number, unit) = rest.split_once('/').ok_or_else(wrong)?;
        let seconds = match unit {
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        let per_second = not_negative(number).ok_or_else(wrong)? / seconds;
        if per_second == 0.0 {
            return Err(format!(
                "is {}, so no job would be published; it must be at least one job per day, such \
                as poisson:20/s",
                shown(text)
            ));
        }
        if !(1.0 / 86_400.0..=MAX_PER_SECOND).contains(&per_second) {
            return Err(format!(
                "is {}; it must be from one job per day to {MAX_PER_SECOND} per second",
                shown(text)
            ));
        }
        Ok(Self {
            at_random,
            per_second,
        })
    }
}

/// Jobs that are published at once: `500@30s`, or `500` at the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// Number of jobs.
    pub jobs: usize,
    /// Time after the beginning.
    pub at: Duration,
}

impl FromStr for Burst {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "is {}; it must be a number of jobs and a time, such as 500@30s",
                shown(text)
            )
        };
        let (jobs, at) = text.split_once('@').unwrap_or((text, "0s"));
        let jobs = jobs.parse().ok().filter(|jobs| *jobs > 0);
        let at = parse_duration(at).filter(|at| *at <= MAX_DURATION);
        Ok(Self {
            jobs: jobs.ok_or_else(wrong)?,
            at: at.ok_or_else(wrong)?,
        })
    }
}

/// Cost of a job: `3` or `fixed:3`, `uniform:1-5`, `lognormal:800,0.7` (the median, and the
/// standard deviation of the logarithm).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostDistribution(Spread);

impl CostDistribution {
    /// A cost of 1 for each job.
    pub const ONE: Self = Self(Spread::Fixed(1.0));

    /// Returns the cost of the next job, from 1 to [`MAX_COST`].
    pub fn next(&self, random: &mut SmallRng) -> u64 {
        self.0.next(random).round().clamp(1.0, MAX_COST as f64) as u64
    }
}

impl FromStr for CostDistribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let number = text.parse::<u64>().ok()?;
            (1..=MAX_COST).contains(&number).then_some(number as f64)
        };
        Spread::read(text, number).map(Self).ok_or_else(|| {
            format!(
                "is {}; it must have whole numbers from 1 to {MAX_COST}: 3, uniform:1-5 or \
                 lognormal:800,0.7 (median and deviation, up to {MAX_SIGMA})",
                shown(text)
            )
        })
    }
}

/// Latency of the API: `80ms` or `fixed:80ms`, `uniform:50ms-200ms`, `lognormal:80ms,0.5`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latency(Spread);

impl Latency {
    /// Returns a constant latency.
    pub fn fixed(latency: Duration) -> Self {
        Self(Spread::Fixed(latency.as_secs_f64()))
    }

    /// Returns the latency of the next call, at most [`MAX_CALL_DURATION`].
    pub fn next(&self, random: &mut SmallRng) -> Duration {
        let longest = MAX_CALL_DURATION.as_secs_f64();
        Duration::from_secs_f64(self.0.next(random).clamp(0.0, longest))
    }
}

impl FromStr for Latency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let latency = parse_duration(text).filter(|latency| *latency <= MAX_CALL_DURATION)?;
            Some(latency.as_secs_f64())
        };
        Spread::read(text, number).map(Self).ok_or_else(|| {
            format!(
                "is {}; it must have durations of at most 1h (the longest call): 80ms, \
                 uniform:50ms-200ms or lognormal:80ms,0.5 (median and deviation, up to \
                 {MAX_SIGMA})",
                shown(text)
            )
        })
    }
}

/// A distribution of numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Spread {
    Fixed(f64),
    Uniform(f64, f64),
    Lognormal(f64, f64),
}

impl Spread {
    fn read(text: &str, number: impl Fn(&str) -> Option<f64>) -> Option<Self> {
        match text.split_once(':') {
            None => number(text).map(Self::Fixed),
            Some(("fixed", one)) => number(one).map(Self::Fixed),
            Some(("uniform", two)) => {
                let (from, to) = two.split_once('-')?;
                let (from, to) = (number(from)?, number(to)?);
                (from <= to).then_some(Self::Uniform(from, to))
            }
            Some(("lognormal", two)) => {
                let (median, sigma) = two.split_once(',')?;
                let sigma = positive(sigma).filter(|sigma| *sigma <= MAX_SIGMA)?;
                Some(Self::Lognormal(number(median)?, sigma))
            }
            Some(_) => None,
        }
    }

    fn next(self, random: &mut SmallRng) -> f64 {
        match self {
            Self::Fixed(value) => value,
            Self::Uniform(from, to) => random.random_range(from..=to),
            Self::Lognormal(median, sigma) => random::lognormal(random, median, sigma),
        }
    }
}

/// A percentage: `2%`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Percent(f64);

impl Percent {
    /// Zero percent.
    pub const NONE: Self = Self(0.0);

    /// Returns the value as a fraction from 0 to 1.
    pub fn part(self) -> f64 {
        self.0
    }
}

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').and_then(not_negative);
        let part = number
            .map(|percent| percent / 100.0)
            .filter(|part| *part <= 1.0);
        part.map(Self).ok_or_else(|| {
            let missing = match not_negative(text) {
                Some(_) => format!(" without a %: write {text}%"),
                None => String::new(),
            };
            format!("is {}{missing}; it must be from 0% to 100%", shown(text))
        })
    }
}

/// The API's own limit: `100/60s` or `100/60s:all` for all tenants together, or `100/60s:tenant`
/// for each of them. The name of a limiter may follow: `100/60s:tenant:nginx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiLimit {
    /// Maximum number of calls in a window.
    pub max: usize,
    /// Length of the window.
    pub window: Duration,
    /// Whether each tenant has its own limit.
    pub per_tenant: bool,
    /// How calls are counted.
    pub counting: Counting,
    /// Number of calls that a bucket holds, or `None` for the usual one of `counting`.
    pub burst: Option<usize>,
    /// Whether a call counts as its job's cost, instead of 1.
    pub by_cost: bool,
}

impl FromStr for ApiLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "is {}; it must be calls per time, such as 100/60s (all tenants together) or \
                100/60s:tenant (per tenant)",
                shown(text)
            )
        };
        let mut words = text.split(':');
        let (max, window) = (words.next())
            .and_then(|rest| rest.split_once('/'))
            .ok_or_else(wrong)?;
        let (whose, counting) = match (words.next(), words.next()) {
            (Some(whose @ ("all" | "tenant")), counting) => (whose, counting),
            (counting, None) => ("all", counting),
            _ => return Err(wrong()),
        };
        if words.next().is_some() {
            return Err(wrong());
        }
        let counting = counting.map(|name| {
            let unknown = |why| format!("is {} with an unknown limiter: {why}", shown(text));
            name.parse().map_err(unknown)
        });
        let max = max
            .parse()
            .ok()
            .filter(|max| (1..=MAX_REQUESTS as usize).contains(max));
        let window = parse_duration(window).filter(|window| !window.is_zero());
        Ok(Self {
            max: max.ok_or_else(wrong)?,
            window: window
                .filter(|window| *window <= MAX_DURATION)
                .ok_or_else(wrong)?,
            per_tenant: whose == "tenant",
            counting: counting.transpose()?.unwrap_or_default(),
            burst: None,
            by_cost: false,
        })
    }
}

/// Distribution of jobs over tenants: `even`, or `zipf` and `zipf:1.2`, in which the n-th tenant
/// has 1/n^1.2 of the jobs of the first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Skew(pub f64);

impl FromStr for Skew {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let exponent = match text {
            "even" => Some(0.0),
            "zipf" => Some(1.0),
            _ => text
                .strip_prefix("zipf:")
                .and_then(positive)
                .filter(|exponent| *exponent <= 5.0),
        };
        exponent.map(Self).ok_or_else(|| {
            format!(
                "is {}; it must be even, zipf or zipf:EXPONENT (up to 5)",
                shown(text)
            )
        })
    }
}

fn positive(text: &str) -> Option<f64> {
    not_negative(text).filter(|number| *number > 0.0)
}

/// Parses a number that is written with digits alone: no `inf`, no `NaN`, no `1e9`.
fn not_negative(text: &str) -> Option<f64> {
    let digits = |c: char| c.is_ascii_digit() || c == '.';
    let number = text.parse().ok().filter(|_| text.chars().all(digits));
    number.filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn every_valid_form_is_accepted() {
        let rate = |text: &str| {
            text.parse::<ArrivalRate>()
                .map(|r| (r.at_random, r.per_second))
        };
        assert_eq!(rate("poisson:20/s"), Ok((true, 20.0)));
        assert_eq!(rate("300/m"), Ok((false, 5.0)));
        assert_eq!(rate("uniform:1.5/s"), Ok((false, 1.5)));
        let burst = "500@30s".parse::<Burst>();
        let at = Duration::from_secs(30);
        assert_eq!(burst, Ok(Burst { jobs: 500, at }));
        assert_eq!("2.5%".parse::<Percent>().map(Percent::part), Ok(0.025));
        let limit = "100/60s:tenant".parse::<ApiLimit>().expect("a limit");
        assert_eq!((limit.max, limit.per_tenant), (100, true));
        let of_all = ApiLimit {
            per_tenant: false,
            ..limit
        };
        for text in ["100/60s", "100/60s:all", "100/60s:sliding"] {
            assert_eq!(text.parse(), Ok(of_all), "{text}");
        }
        let even = ApiLimit {
            counting: Counting::Even,
            ..limit
        };
        assert_eq!("100/60s:tenant:nginx".parse(), Ok(even));
        assert_eq!("zipf".parse::<Skew>(), Ok(Skew(1.0)));
        let mut random = SmallRng::seed_from_u64(1);
        assert_eq!(
            "3".parse::<CostDistribution>().map(|c| c.next(&mut random)),
            Ok(3)
        );
        let cost: CostDistribution = "uniform:1-5".parse().expect("costs");
        assert!((0..100).all(|_| (1..=5).contains(&cost.next(&mut random))));
        let latency: Latency = "80ms".parse().expect("a latency");
        assert_eq!(latency.next(&mut random), Duration::from_millis(80));
    }

    #[test]
    fn invalid_forms_are_refused_with_the_valid_ones() {
        for text in [
            "",
            "20",
            "-1/s",
            "NaN/s",
            "inf/s",
            "1e9/s",
            "9999999999/s",
            "0/s",
            "poison:1/s",
            "1/d",
        ] {
            let why = text.parse::<ArrivalRate>().expect_err(text);
            assert!(why.contains("it must be"), "{why}");
        }
        let zero = "poisson:0/s"
            .parse::<ArrivalRate>()
            .expect_err("none comes");
        assert!(zero.contains("so no job would be published"), "{zero}");
        let bare = "5".parse::<Percent>().expect_err("no %");
        assert!(bare.contains("without a %: write 5%"), "{bare}");
        for text in ["", "0", "x@1s", "1@", "1@-3s", "1@40d"] {
            assert!(text.parse::<Burst>().is_err(), "{text}");
        }
        for text in [
            "0",
            "-1",
            "1.5",
            "uniform:5-1",
            "lognormal:1",
            "lognormal:1,9",
            "1000000000001",
            "normal:1,1",
        ] {
            assert!(text.parse::<CostDistribution>().is_err(), "{text}");
        }
        for text in ["", "80", "fast", "lognormal:80ms,NaN", "2h"] {
            // A bare number means seconds, as in the configuration.
            assert_eq!(text.parse::<Latency>().is_err(), text != "80", "{text}");
        }
        for text in ["2", "-1%", "101%", "NaN%", "%"] {
            assert!(text.parse::<Percent>().is_err(), "{text}");
        }
        for text in ["100", "0/1s", "1/0s", "1/60s:each", "1/60s:all:tenant"] {
            assert!(text.parse::<ApiLimit>().is_err(), "{text}");
        }
        assert!("zipf:NaN".parse::<Skew>().is_err());
    }
}
