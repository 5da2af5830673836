//! The worker's history of the last two hours, for the charts: a ring of points for each pipeline,
//! sampled from its metrics. It asks no server and takes 14,400 bytes per pipeline, independent of
//! the load.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use telemetry::metrics::Metrics;

/// Interval of the samples.
pub const SAMPLE_INTERVAL: Duration = Duration::from_secs(2);
/// Number of samples in a point.
const SAMPLES_PER_POINT: u32 = 5;
/// Maximum number of points: two hours of them.
pub const MAX_POINTS: usize = 720;
/// Number of series, in the order of a point's values.
pub const SERIES: usize = 5;

/// A point, which covers ten seconds: starts per second, jobs waiting in memory, denials per
/// second, calls in flight, saturation.
pub type Point = [f32; SERIES];

/// Memory used for one pipeline, in bytes.
#[cfg(test)]
const RING_BYTES: usize = 14_400;

/// History of a pipeline over the last two hours.
#[derive(Debug, Default, Clone)]
pub struct Ring {
    /// Points, oldest first.
    pub points: VecDeque<Point>,
    /// Number of points ever made.
    pub number: u64,
    /// Sums over the samples since the last point.
    sums: [f64; SERIES],
    samples: u32,
    /// Jobs started and denied in total when the last point was made.
    counted: Option<[u64; 2]>,
    /// Time at which the last point was made.
    at: Duration,
}

/// A sample of the metrics.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Jobs started and denied in total.
    pub counted: [u64; 2],
    /// Jobs waiting in memory, calls in flight, saturation.
    pub now: [f64; 3],
}

impl Sample {
    fn at(metrics: &Metrics) -> Self {
        let load = metrics.load_now();
        // Numbers above 2^53 are rounded.
        #[expect(clippy::cast_precision_loss)]
        let [waiting, running] = [metrics.tenants().waiting, load.running].map(|n| n as f64);
        Self {
            counted: metrics.decided_so_far(),
            now: [waiting, running, load.saturation],
        }
    }
}

impl Ring {
    /// Adds a sample taken at `now`.
    pub fn add_sample(&mut self, now: Duration, sample: Sample) {
        let Some(before) = self.counted else {
            (self.counted, self.at) = (Some(sample.counted), now);
            return;
        };
        let [waiting, running, saturation] = sample.now;
        for (index, value) in [(1, waiting), (3, running), (4, saturation)] {
            self.sums[index] += value;
        }
        self.samples += 1;
        let seconds = now.saturating_sub(self.at).as_secs_f64();
        if self.samples < SAMPLES_PER_POINT || seconds <= 0.0 {
            return;
        }
        // Counters continue when a pipeline is restarted.
        let per_second = |index: usize| {
            let counted = sample.counted[index].saturating_sub(before[index]);
            f64::from(u32::try_from(counted).unwrap_or(u32::MAX)) / seconds
        };
        let mean = |index: usize| self.sums[index] / f64::from(self.samples);
        let point = [per_second(0), mean(1), per_second(1), mean(3), mean(4)];
        // Seven digits are more than a chart shows.
        #[expect(clippy::cast_possible_truncation)]
        let point = point.map(|value| value as f32);
        if self.points.len() >= MAX_POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
        self.number += 1;
        (self.sums, self.samples) = Default::default();
        (self.counted, self.at) = (Some(sample.counted), now);
    }
}

/// Histories of all pipelines.
#[derive(Default)]
pub struct PipelineHistories(Mutex<BTreeMap<String, Ring>>);

impl PipelineHistories {
    /// Samples all `pipelines` at `now` and removes pipelines that no longer exist.
    pub fn sample<'a>(
        &self,
        now: Duration,
        pipelines: impl Iterator<Item = (&'a str, &'a Metrics)>,
    ) {
        let mut rings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *rings);
        for (name, metrics) in pipelines {
            let mut ring = before.remove(name).unwrap_or_default();
            ring.add_sample(now, Sample::at(metrics));
            rings.insert(name.to_owned(), ring);
        }
    }

    /// Returns the history of the pipeline `name`.
    pub fn of(&self, name: &str) -> Ring {
        let rings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rings.get(name).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(starts: u64, denials: u64, waiting: f64) -> Sample {
        Sample {
            counted: [starts, denials],
            now: [waiting, 3.0, 0.5],
        }
    }

    #[test]
    fn a_point_holds_the_counts_of_ten_seconds_and_the_mean_of_gauges() {
        let mut ring = Ring::default();
        ring.add_sample(Duration::ZERO, sample(100, 7, 0.0));
        for second in [2, 4, 6, 8, 10_u32] {
            assert!(ring.points.is_empty());
            let starts = 100 + 5 * u64::from(second);
            ring.add_sample(
                Duration::from_secs(second.into()),
                sample(starts, 7, second.into()),
            );
        }
        assert_eq!(ring.points, [[5.0, 6.0, 0.0, 3.0, 0.5]]);
        // The process was held up: the counts are divided by the time that passed.
        for second in [12, 14, 16, 18, 110] {
            ring.add_sample(Duration::from_secs(second), sample(250, 7, 0.0));
        }
        assert_eq!(ring.points[1][0], 1.0);
        assert_eq!(ring.number, 2);
    }

    #[test]
    fn history_keeps_two_hours_in_bounded_memory() {
        let mut ring = Ring::default();
        for second in 0..40_000 {
            ring.add_sample(Duration::from_secs(2 * second), sample(second, 0, 1.0));
        }
        assert_eq!(ring.points.len(), MAX_POINTS);
        assert_eq!(MAX_POINTS * size_of::<Point>(), RING_BYTES);
        let span = SAMPLE_INTERVAL * SAMPLES_PER_POINT * u32::try_from(MAX_POINTS).expect("few");
        assert_eq!(span, Duration::from_secs(7_200));
        assert_eq!(ring.number, 39_999 / 5);
    }

    #[test]
    fn removed_pipelines_are_forgotten() {
        let (history, metrics) = (PipelineHistories::default(), Metrics::default());
        for second in 0..6 {
            let both = [("a", &metrics), ("b", &metrics)];
            history.sample(2 * Duration::from_secs(second), both.into_iter());
        }
        assert_eq!(history.of("a").points.len(), 1);
        history.sample(Duration::from_secs(12), [("a", &metrics)].into_iter());
        assert_eq!(history.of("a").points.len(), 1);
        assert_eq!(history.of("b").points.len(), 0);
    }
}
