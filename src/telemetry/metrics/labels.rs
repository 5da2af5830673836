//! Metrics with a label. All series exist from the start: a rate over a series that appears later
//! misses its first count.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::{MetricType, TypedMetric};

/// Maximum number of limits with their own series, for each metric.
pub(super) const MAX_LIMITS: usize = 64;
/// Value of the label `limit` for the series shared by all other limits.
const OTHER_LIMITS: &str = "other";

/// A metric with a label that has a few fixed values.
#[derive(Debug, Clone)]
pub struct ByLabel<M> {
    label: &'static str,
    /// The series by the label's value. They are few, so searching them takes less time than
    /// hashing.
    series: Vec<(&'static str, M)>,
    new: fn() -> M,
}

/// Returns a metric with `label` and a series for each of its `values`.
pub(super) fn by<M: Clone + Default, const N: usize>(
    label: &'static str,
    values: [&'static str; N],
) -> ByLabel<M> {
    ByLabel::new(label, values, M::default)
}

impl<M: Clone> ByLabel<M> {
    /// Returns a metric with `label` and a series, made by `new`, for each of its `values`.
    pub(super) fn new<const N: usize>(
        label: &'static str,
        values: [&'static str; N],
        new: fn() -> M,
    ) -> Self {
        let series = values.into_iter().map(|value| (value, new())).collect();
        Self { label, series, new }
    }

    /// Returns the series of `value`. One without a series is a mistake in the program; it counts
    /// nowhere.
    pub(super) fn of(&self, value: &str) -> M {
        let found = self.series.iter().find(|(name, _)| *name == value);
        debug_assert!(found.is_some(), "{} has no value {value}", self.label);
        found.map_or_else(self.new, |(_, series)| series.clone())
    }
}

impl ByLabel<Counter> {
    /// Adds one to the series of `value`.
    pub fn count(&self, value: &str) {
        self.of(value).inc();
    }
}

/// A metric with the label `limit`. The first limits have their own series, all others share one:
/// a configuration may name any number of limits.
#[derive(Debug, Clone)]
pub struct ByLimit<M> {
    series: Family<[(&'static str, String); 1], M>,
    /// The limits that have their own series, so that a lookup allocates nothing.
    known: Arc<Mutex<Vec<(String, M)>>>,
    others: M,
}

impl<M: Clone + Default> Default for ByLimit<M> {
    fn default() -> Self {
        let series = Family::default();
        let others = series.get_or_create_owned(&[("limit", OTHER_LIMITS.to_owned())]);
        Self {
            series,
            known: Arc::default(),
            others,
        }
    }
}

impl<M: Clone> ByLimit<M> {
    /// Returns the series of `limit`, which it may share.
    pub fn of(&self, limit: &str) -> M {
        self.own(limit).unwrap_or_else(|| self.others.clone())
    }

    /// Returns the series of `limit`, or `None` if it has no series of its own because there are
    /// too many.
    pub(super) fn own(&self, limit: &str) -> Option<M> {
        let mut known = (self.known.lock()).unwrap_or_else(PoisonError::into_inner);
        if let Some((_, series)) = known.iter().find(|(name, _)| name == limit) {
            return Some(series.clone());
        }
        if known.len() >= MAX_LIMITS {
            return None;
        }
        let label = [("limit", limit.to_owned())];
        let series = self.series.get_or_create_owned(&label);
        known.push((limit.to_owned(), series.clone()));
        Some(series)
    }

    /// Runs `run` on each limit's own series.
    pub(super) fn each(&self, mut run: impl FnMut(&M)) {
        let known = (self.known.lock()).unwrap_or_else(PoisonError::into_inner);
        known.iter().for_each(|(_, series)| run(series));
    }
}

impl<M: EncodeMetric + TypedMetric> EncodeMetric for ByLabel<M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (value, series) in &self.series {
            series.encode(encoder.encode_family(&[(self.label, *value)])?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}

impl<M: EncodeMetric + TypedMetric> EncodeMetric for ByLimit<M> {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        self.series.encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}
