//! The run over time: the backlog and the used share of the busiest quota.

use super::quota::MeasuredQuota;
use crate::jobs::SimulatedJob;

/// Maximum number of slots.
const SLOTS: u64 = 240;

/// A part of the run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunInterval {
    /// Its beginning, in seconds.
    pub at: f64,
    /// Its end, in seconds.
    pub until: f64,
    /// Jobs that were published and not done at its end.
    pub backlog: usize,
    /// Used share of the amount that the busiest quota allows in this time; 0 or more.
    pub used: f64,
}

/// Divides a run into slots. `ends` are the times at which the jobs ended, and the run ended at
/// `end_us`.
pub(super) fn of(
    jobs: &[SimulatedJob],
    ends: &[Option<u64>],
    (busiest, end_us): (Option<&MeasuredQuota>, u64),
) -> Vec<RunInterval> {
    let published = jobs.iter().map(SimulatedJob::at_us);
    let last = end_us.max(1);
    // A slot shorter than a window would show single windows instead of their usage.
    let window = busiest.map_or(0, |quota| quota.limit.window_ms() * 1000);
    let wide = (last / SLOTS + 1).max(window).max(1_000);
    let count = usize::try_from(last.div_ceil(wide)).unwrap_or(usize::MAX);
    let slot = |us: u64| {
        usize::try_from(us / wide)
            .unwrap_or(usize::MAX)
            .min(count - 1)
    };
    let (mut came, mut went, mut units) =
        (vec![0_usize; count], vec![0_usize; count], vec![0.0; count]);
    for (at, end) in published.zip(ends).filter(|(at, _)| *at <= last) {
        came[slot(at)] += 1;
        if let Some(end) = end {
            went[slot(*end)] += 1;
        }
    }
    let mut allowed = 0.0;
    if let Some(quota) = busiest {
        let max = quota.limit.max() as f64;
        match quota.limit.window_ms() * 1000 {
            // Calls in flight.
            0 => {
                allowed = max;
                for (at, _, until) in &quota.calls {
                    units[slot(*at)] += (until - at) as f64 / wide as f64;
                }
            }
            window => {
                allowed = max * wide as f64 / window as f64;
                for (at, of_call, _) in &quota.calls {
                    units[slot(*at)] += *of_call as f64;
                }
            }
        }
    }
    let mut backlog = 0;
    let each = |number: usize| {
        backlog += came[number];
        backlog -= went[number].min(backlog);
        RunInterval {
            at: (number as u64 * wide) as f64 / 1e6,
            until: ((number as u64 + 1) * wide).min(last) as f64 / 1e6,
            backlog,
            used: if allowed > 0.0 {
                units[number] / allowed
            } else {
                0.0
            },
        }
    };
    (0..count).map(each).collect()
}
