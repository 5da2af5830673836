//! The keys of a file of cases, as a user writes them.

use std::collections::BTreeMap;
use std::time::Duration;

use config::parse_duration;
use serde::Deserialize;
use serde::de::Deserializer;
use serde_saphyr::Spanned;

use super::sections::CaseConfig;
use crate::forms::MAX_DURATION;
use crate::jobs::Text;
use crate::mistake;
use crate::scalar::{self, Scalar};

/// Default tolerance for times.
const TOLERANCE: Duration = Duration::from_millis(100);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub cases: Vec<Spanned<WrittenCase>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct WrittenCase {
    pub name: String,
    pub config: Option<CaseConfig>,
    pub pipeline: Option<String>,
    pub workers: Option<usize>,
    pub api: Option<Spanned<WrittenApi>>,
    pub redis_latency: Option<Time>,
    pub within: Option<Time>,
    pub seed: Option<u64>,
    pub jobs: Vec<Spanned<WrittenJob>>,
    pub expect: Spanned<Expectations>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenApi {
    pub latency: Option<String>,
    pub errors: Option<String>,
    pub throttles: Option<String>,
    pub limit: Option<String>,
    pub limiter: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct WrittenJob {
    pub name: Option<String>,
    pub at: Time,
    /// Number of equal jobs.
    pub count: Option<usize>,
    /// Interval between these jobs.
    pub every: Option<Time>,
    pub tenant: String,
    pub cost: Option<u64>,
    pub priority: Option<Text>,
    pub plan: Option<String>,
    /// Named as in files of jobs.
    #[serde(alias = "routing_key")]
    pub routing_key: Option<String>,
    #[serde(default)]
    pub header: BTreeMap<String, Text>,
}

/// A time: seconds, or a number with a unit.
#[derive(Debug, Clone)]
pub(super) enum Time {
    Seconds(f64),
    Text(String),
}

impl Scalar for Time {
    const EXPECTED: &str = "a time: seconds (1.5), or a whole number with a unit (1500ms, 30s, 5m)";

    fn whole(number: i64) -> Self {
        Self::Seconds(number as f64)
    }

    fn real(number: f64) -> Option<Self> {
        Some(Self::Seconds(number))
    }

    fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        scalar::read(deserializer)
    }
}

impl Time {
    /// Returns the time in seconds, from 0 to thirty days.
    pub fn seconds(&self) -> Result<f64, String> {
        let seconds = match self {
            Self::Seconds(seconds) => Some(*seconds),
            Self::Text(text) => parse_duration(text).map(|duration| duration.as_secs_f64()),
        };
        let found = || match self {
            Self::Seconds(seconds) => format!("{seconds:?}"),
            Self::Text(text) => mistake::shown(text),
        };
        seconds
            .filter(|seconds| (0.0..=MAX_DURATION.as_secs_f64()).contains(seconds))
            .ok_or_else(|| {
                format!(
                    "{} is not a time; it must be seconds (1.5), or a whole number with a unit \
                    (1500ms, 30s, 5m), up to 30d",
                    found()
                )
            })
    }
}

/// The expectations. A key that is left out expects nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Expectations {
    /// Start times of the jobs, in order.
    pub starts: Option<Vec<Time>>,
    /// Start times of jobs, by name.
    pub start: Option<BTreeMap<String, Time>>,
    /// Maximum difference between an expected time and the actual one.
    pub tolerance: Option<Time>,
    /// Names of jobs in the order in which they start.
    pub order: Option<Vec<String>>,
    /// Maximum time that jobs wait.
    pub waits_at_most: Option<WaitsAtMost>,
    /// Maximum time until jobs are done.
    pub done_after_at_most: Option<WaitsAtMost>,
    /// Maximum duration of the whole case.
    pub makespan_at_most: Option<Time>,
    /// Units in the fullest window, by limit.
    pub fullest_window: Option<BTreeMap<String, u64>>,
    /// Number of jobs that each shadow limit would have delayed.
    pub would_have_waited: Option<BTreeMap<String, u64>>,
    /// Number of dead letters; `None` expects none.
    pub dead_letters: Option<usize>,
    /// Number of calls that the API answers with 429.
    pub throttled: Option<usize>,
    /// Maximum average number of deliveries per job.
    pub deliveries_at_most: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitsAtMost {
    pub p50: Option<Time>,
    pub p99: Option<Time>,
    pub max: Option<Time>,
}

impl WaitsAtMost {
    fn is_empty(&self) -> bool {
        self.p50.is_none() && self.p99.is_none() && self.max.is_none()
    }
}

impl Expectations {
    /// Returns the tolerance in seconds.
    pub fn tolerance(&self) -> f64 {
        let own = self.tolerance.as_ref();
        own.and_then(|time| time.seconds().ok())
            .unwrap_or(TOLERANCE.as_secs_f64())
    }

    pub fn times(&self) -> impl Iterator<Item = &Time> {
        let starts = self.starts.iter().flatten();
        let start = self.start.iter().flat_map(BTreeMap::values);
        let waits = (self.waits_at_most.iter()).chain(&self.done_after_at_most);
        let waits = waits.flat_map(|waits| [&waits.p50, &waits.p99, &waits.max]);
        let one = [&self.tolerance, &self.makespan_at_most];
        starts.chain(start).chain(waits.chain(one).flatten())
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        let order = self.order.iter().flatten();
        order.chain(self.start.iter().flat_map(BTreeMap::keys))
    }

    pub fn is_empty(&self) -> bool {
        let Self {
            starts,
            start,
            tolerance: _,
            order,
            waits_at_most,
            done_after_at_most,
            makespan_at_most,
            fullest_window,
            would_have_waited,
            dead_letters,
            throttled,
            deliveries_at_most,
        } = self;
        let mut waits = waits_at_most.iter().chain(done_after_at_most);
        // An empty list of starts expects that no job starts.
        starts.is_none()
            && start.iter().all(BTreeMap::is_empty)
            && order.iter().all(Vec::is_empty)
            && waits.all(WaitsAtMost::is_empty)
            && makespan_at_most.is_none()
            && fullest_window.iter().all(BTreeMap::is_empty)
            && would_have_waited.iter().all(BTreeMap::is_empty)
            && dead_letters.is_none()
            && throttled.is_none()
            && deliveries_at_most.is_none()
    }
}
