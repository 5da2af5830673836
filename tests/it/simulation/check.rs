//! Whether a history keeps the promises.

use std::collections::BTreeMap;

use sluicegate::broker::Message;
use sluicegate::rules::headers;
use sluicegate::rules::job::Field;
use sluicegate::rules::limit::{Algorithm, Limit};

use super::history::{Call, History};
use super::plan::Plan;
use super::world::World;

/// P1, and that nobody is dead without a reason.
pub fn nothing_lost(world: &World) {
    let dead_letters = world.server.messages(&world.server.names().dead);
    let mut dead: BTreeMap<&str, Vec<&Message>> = BTreeMap::new();
    for letter in &dead_letters {
        dead.entry(letter.id().unwrap_or_default())
            .or_default()
            .push(letter);
    }
    let mut history = world.history();
    for planned in &world.plan.jobs {
        let id = planned.id.as_str();
        let letters = dead.get(id).map_or(&[][..], Vec::as_slice);
        let job = history.job(id);
        let (done, rejected, failures) = (job.done, job.rejected, job.failures);
        if job.confirmed && !done && letters.is_empty() {
            history.wrong(format_args!("{id} is lost"));
        }
        for letter in letters {
            let Field::Text(reason) = letter.header(headers::REASON) else {
                history.wrong(format_args!("{id} is dead without a reason"));
                continue;
            };
            let right = match &planned.tenant {
                None => reason.contains("no tenant"),
                Some(_) if reason == "400" => rejected,
                Some(_) => reason.contains("gave up") && failures >= world.plan.retry.max_attempts,
            };
            if !right {
                history.wrong(format_args!(
                    "{id} is dead by {reason:?} after {failures} failures"
                ));
            }
        }
    }
}

/// P2: no window holds more than the limit, tolerance zero.
pub fn never_exceeded(limit: &Limit, history: &mut History) {
    let window = limit.window_ms() * 1000;
    let max = u64::from(limit.max());
    let mut wrongs = Vec::new();
    for (tenant, record) in &history.tenants {
        let most = match limit.algorithm() {
            Algorithm::SlidingWindow => most_in_any(&record.arrivals, window),
            _ => most_in_aligned(&record.arrivals, window),
        };
        if most > max {
            wrongs.push(format!("{tenant}: {most} in a window that allows {max}"));
        }
    }
    for wrong in wrongs {
        history.wrong(format_args!("{wrong}"));
    }
}

fn most_in_any(arrivals: &[Call], window: u64) -> u64 {
    let (mut first, mut sum, mut most) = (0, 0, 0);
    // Arrivals are recorded in the order of time.
    for call in arrivals {
        sum += call.cost;
        while arrivals[first].at_us + window <= call.at_us {
            sum -= arrivals[first].cost;
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

fn most_in_aligned(arrivals: &[Call], window: u64) -> u64 {
    let mut sums = BTreeMap::<u64, u64>::new();
    for call in arrivals {
        *sums.entry(call.at_us / window).or_default() += call.cost;
    }
    sums.values().copied().max().unwrap_or_default()
}

/// P3, where all jobs came at once and nothing went wrong: how long the slowest tenant took, by the ideal.
pub fn makespan(plan: &Plan, history: &History) -> f64 {
    let (max, window) = (
        u64::from(plan.limits[0].max()),
        plan.limits[0].window_ms() * 1000,
    );
    let ratio = |arrivals: &[Call]| {
        let (Some(first), Some(last)) = (arrivals.first(), arrivals.last()) else {
            return 0.0;
        };
        let rounds = (arrivals.len() as u64 - 1) / max;
        let ideal = match plan.limits[0].algorithm() {
            Algorithm::SlidingWindow => rounds * (window + plan.limits[0].guard_ms() * 1000),
            // From the first arrival to the beginning of the last window.
            _ => ((first.at_us / window + rounds) * window).saturating_sub(first.at_us),
        };
        // What the way and one answer of the gate may add to any number of windows.
        let once = (plan.way_varies_ms + 2 * plan.gate_ms + 10) * 1000;
        (last.at_us - first.at_us).saturating_sub(once) as f64 / ideal.max(1) as f64
    };
    let ratios = history
        .tenants
        .values()
        .map(|record| ratio(&record.arrivals));
    ratios.fold(0.0, f64::max)
}

#[test]
fn the_windows_are_slid_without_tolerance() {
    let calls = |times: &[u64]| -> Vec<Call> {
        times.iter().map(|&at_us| Call { at_us, cost: 1 }).collect()
    };
    assert_eq!(most_in_any(&calls(&[0, 9, 10, 11, 19]), 10), 3);
    assert_eq!(most_in_any(&calls(&[0, 10, 20]), 10), 1);
    assert_eq!(most_in_any(&calls(&[0, 9, 9, 10, 11]), 10), 4);
    assert_eq!(most_in_aligned(&calls(&[0, 9, 10, 11, 19]), 10), 3);
    assert_eq!(most_in_any(&[], 10) + most_in_aligned(&[], 10), 0);
}
