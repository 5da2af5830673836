//! What cases are written with: the keys of a file, each as it stands there.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde::de::Deserializer;
use serde_saphyr::Spanned;
use sluicegate::config::parse_duration;

use super::sections::Sections;
use crate::forms::LONGEST;
use crate::jobs::Text;
use crate::mistake;
use crate::scalar::{self, Scalar};

/// What a time may differ by, where nothing else is said.
const TOLERANCE: Duration = Duration::from_millis(100);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub cases: Vec<Spanned<Written>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Written {
    pub name: String,
    pub config: Option<Sections>,
    pub pipeline: Option<String>,
    pub workers: Option<usize>,
    pub api: Option<Spanned<WrittenApi>>,
    pub redis_latency: Option<Time>,
    pub within: Option<Time>,
    pub seed: Option<u64>,
    pub jobs: Vec<Spanned<WrittenJob>>,
    pub expect: Spanned<Expected>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenApi {
    pub latency: Option<String>,
    pub errors: Option<String>,
    pub throttles: Option<String>,
    pub limit: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct WrittenJob {
    pub name: Option<String>,
    pub at: Time,
    /// So many alike
    pub count: Option<usize>,
    /// after each other.
    pub every: Option<Time>,
    pub tenant: String,
    pub cost: Option<u32>,
    pub priority: Option<Text>,
    pub plan: Option<String>,
    /// Files of jobs call it so.
    #[serde(alias = "routing_key")]
    pub routing_key: Option<String>,
    #[serde(default)]
    pub header: BTreeMap<String, Text>,
}

/// Seconds, or with a unit.
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
    /// In seconds, from 0 to thirty days.
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
            .filter(|seconds| (0.0..=LONGEST.as_secs_f64()).contains(seconds))
            .ok_or_else(|| {
                format!(
                    "{} is no time; it must be seconds (1.5), or a whole number with a unit (1500ms, 30s, 5m), up to 30d",
                    found()
                )
            })
    }
}

/// What is expected; what is not said may be anything.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Expected {
    /// When jobs start, in the order of their starts.
    pub starts: Option<Vec<Time>>,
    /// When jobs with these names start.
    pub start: Option<BTreeMap<String, Time>>,
    /// What times may differ by.
    pub tolerance: Option<Time>,
    /// In which order jobs with these names start.
    pub order: Option<Vec<String>>,
    /// How long jobs wait at most.
    pub waits_at_most: Option<WaitsAtMost>,
    /// After how long jobs are done, at most.
    pub done_after_at_most: Option<WaitsAtMost>,
    /// How long all of it takes at most.
    pub makespan_at_most: Option<Time>,
    /// Units in the fullest window of each limit.
    pub fullest_window: Option<BTreeMap<String, u64>>,
    /// How many jobs each shadow limit would have made wait.
    pub would_have_waited: Option<BTreeMap<String, u64>>,
    /// How many dead letters there are; `None`: none.
    pub dead_letters: Option<usize>,
    /// How many calls the API answers 429.
    pub throttled: Option<usize>,
    /// How often a job is delivered at most, on average.
    pub deliveries_at_most: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitsAtMost {
    pub p50: Option<Time>,
    pub p99: Option<Time>,
    pub max: Option<Time>,
}

impl Expected {
    /// What times may differ by, in seconds.
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
        starts.is_none()
            && start.is_none()
            && order.is_none()
            && waits_at_most.is_none()
            && done_after_at_most.is_none()
            && makespan_at_most.is_none()
            && fullest_window.is_none()
            && would_have_waited.is_none()
            && dead_letters.is_none()
            && throttled.is_none()
            && deliveries_at_most.is_none()
    }
}
