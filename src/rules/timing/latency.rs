//! Estimates the minimum latency to a server, such as Redis, from measured round trips. Pure: `now`
//! is an argument.
//!
//! The *base* is the minimum latency. It does no harm, so only the time beyond it counts toward the
//! age of a permit. Proof: let call i be decided at t_i and call j at t_j >= t_i + W + guard, by
//! Redis's clock. The answer's way back and the worker's delay take call i at most
//! `base + guard / 2 - (way there)`, or its permit is too old. Call j's way back takes at least
//! `base - (way there)`. So the calls leave their workers at least W + guard / 2 apart. The other
//! half of the guard covers the latency to the API.
//!
//! A base that is too large would make old permits look young, so the estimate is cautious. Each
//! minute has an estimate: twice its minimum, less its 5 % quantile. The base is the smallest
//! estimate of the last ten minutes.

use std::collections::VecDeque;
use std::time::Duration;

/// Number of round trips before the base is known.
pub const SAMPLES: usize = 20;
/// Length of a span of round trips.
const SPAN: Duration = Duration::from_secs(60);
/// Number of spans from which the base is computed, including the current one.
const SPANS: usize = 10;
/// The quantile as a divisor: one in this many round trips of a span is shorter.
const ONE_OF: usize = 20;
/// Number of the shortest round trips that are kept. A span of more than `KEPT * ONE_OF` round
/// trips uses a lower quantile.
const KEPT: usize = 32;

/// The measured round trips.
#[derive(Debug, Clone, Default)]
pub struct LatencyEstimator {
    /// The spans, newest last.
    spans: VecDeque<MinuteSamples>,
    /// Number of round trips in all spans, counted up to [`SAMPLES`].
    samples: usize,
}

/// The round trips of one minute.
#[derive(Debug, Clone)]
struct MinuteSamples {
    started: Duration,
    number: usize,
    /// The shortest round trips, sorted.
    shortest: Vec<Duration>,
}

impl MinuteSamples {
    fn learn(&mut self, took: Duration) {
        self.number += 1;
        let at = self.shortest.partition_point(|shorter| *shorter <= took);
        if at < KEPT {
            self.shortest.truncate(KEPT - 1);
            self.shortest.insert(at, took);
        }
    }

    fn base(&self) -> Duration {
        let Some(min) = self.shortest.first() else {
            return Duration::ZERO;
        };
        let low = (self.number / ONE_OF).min(self.shortest.len() - 1);
        (*min * 2).saturating_sub(self.shortest[low])
    }
}

impl LatencyEstimator {
    /// Records a round trip of duration `took` that ended now.
    pub fn learn(&mut self, now: Duration, took: Duration) {
        self.samples = (self.samples + 1).min(SAMPLES);
        let current = self.spans.back_mut();
        match current.filter(|span| now.saturating_sub(span.started) < SPAN) {
            Some(span) => span.learn(took),
            None => {
                if self.spans.len() == SPANS {
                    self.spans.pop_front();
                }
                self.spans.push_back(MinuteSamples {
                    started: now,
                    number: 1,
                    shortest: vec![took],
                });
            }
        }
    }

    /// Returns true if there are enough samples to know the base.
    pub fn is_known(&self) -> bool {
        self.samples == SAMPLES
    }

    /// Returns the base, or zero until it is known.
    pub fn base(&self) -> Duration {
        let min = self.spans.iter().map(MinuteSamples::base).min();
        min.filter(|_| self.is_known()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kit::MS;

    const MINUTE: Duration = Duration::from_secs(60);

    fn learnt(
        latency: &mut LatencyEstimator,
        now: Duration,
        latencies_ms: impl IntoIterator<Item = u32>,
    ) {
        for took in latencies_ms {
            latency.learn(now, MS * took);
        }
    }

    #[test]
    fn the_base_is_zero_until_known_and_then_at_most_the_shortest_latency() {
        let mut latency = LatencyEstimator::default();
        learnt(&mut latency, MINUTE, 500..519);
        assert_eq!(
            (latency.is_known(), latency.base()),
            (false, Duration::ZERO)
        );
        learnt(&mut latency, MINUTE, [600]);
        // Twice 500, less the second of twenty.
        assert_eq!((latency.is_known(), latency.base()), (true, MS * 499));
    }

    #[test]
    fn a_shorter_latency_counts_at_once_and_for_ten_minutes() {
        let mut latency = LatencyEstimator::default();
        learnt(&mut latency, MINUTE, [500; 100]);
        assert_eq!(latency.base(), MS * 500);
        learnt(&mut latency, MINUTE * 2, [40; 2]);
        assert_eq!(latency.base(), MS * 40);
        for minute in 3..=11 {
            learnt(&mut latency, MINUTE * minute, [500]);
            assert_eq!(latency.base(), MS * 40);
        }
        learnt(&mut latency, MINUTE * 12, [500]);
        assert_eq!(latency.base(), MS * 500);
    }

    #[test]
    fn a_much_shorter_latency_outweighs_the_others() {
        let mut latency = LatencyEstimator::default();
        learnt(&mut latency, MINUTE, [40]);
        learnt(&mut latency, MINUTE, [500; 99]);
        assert_eq!(latency.base(), Duration::ZERO);
        let mut jitter = LatencyEstimator::default();
        learnt(&mut jitter, MINUTE, (0..2000).map(|n| 40 + n % 50));
        assert_eq!(jitter.base(), MS * 40);
    }

    proptest! {
        #[test]
        fn the_base_never_exceeds_the_shortest_latency_of_ten_minutes(
            ways in prop::collection::vec((0_u32..40, 0_u32..1000), 1..400),
        ) {
            let (mut latency, mut now, mut seen) = (LatencyEstimator::default(), Duration::ZERO, Vec::new());
            for (pause_s, took) in ways {
                now += Duration::from_secs(pause_s.into());
                latency.learn(now, MS * took);
                seen.push((now, MS * took));
                let last = |(at, _): &&(Duration, Duration)| now - *at <= MINUTE * 9;
                let min = seen.iter().filter(last).map(|(_, took)| *took).min();
                prop_assert!(latency.base() <= min.expect("there is one"));
                prop_assert!(latency.spans.len() <= SPANS);
                prop_assert!(latency.spans.iter().all(|span| span.shortest.len() <= KEPT));
            }
        }
    }
}
