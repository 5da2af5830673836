//! Counts of an API's calls, with zero tolerance.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
pub use trial::windows::{aligned, sliding};

use super::api::Call;

/// Returns the maximum number of `times` in any half-open window, and how many came when the window
/// that ends with them was full.
pub fn windows(times: &[Instant], max: usize, window: Duration) -> (usize, usize) {
    assert!(times.is_sorted(), "arrivals in their order");
    let Some(first) = times.first() else {
        return (0, 0);
    };
    let ns = |time: Duration| u64::try_from(time.as_nanos()).expect("no test takes centuries");
    let arrivals: Vec<_> = times.iter().map(|at| (ns(*at - *first), 1)).collect();
    let counts = sliding(&arrivals, ns(window));
    let fullest = counts.iter().max().copied().unwrap_or_default();
    let full = counts.iter().filter(|count| **count > max as u64);
    (
        usize::try_from(fullest).expect("no more than there are"),
        full.count(),
    )
}

/// Returns the times at which the API had read the calls for `tenant`.
pub fn times(calls: &[Call], tenant: &str) -> Vec<Instant> {
    let own = calls.iter().filter(|call| call.tenant == tenant);
    own.map(|call| call.at).collect()
}

/// Returns the times at which the kernel had received the calls for `tenant`. No pause of the API
/// moves them.
pub fn arrivals(calls: &[Call], tenant: &str) -> Vec<Instant> {
    sorted_arrivals(calls.iter().filter(|call| call.tenant == tenant))
}

/// Returns the times at which the kernel had received `calls`, in their order.
pub fn sorted_arrivals<'a>(calls: impl IntoIterator<Item = &'a Call>) -> Vec<Instant> {
    let mut times: Vec<_> = calls.into_iter().map(|call| call.arrived).collect();
    times.sort_unstable();
    times
}

/// Returns the maximum number of concurrent calls.
pub fn at_once(calls: &[Call]) -> usize {
    let mut changes: Vec<(Instant, isize)> = calls
        .iter()
        .flat_map(|call| [Some((call.at, 1)), call.ended.map(|at| (at, -1))])
        .flatten()
        .collect();
    // A call that ends when another begins is not concurrent with it.
    changes.sort_unstable();
    let (mut now, mut max) = (0, 0);
    for (_, change) in changes {
        now += change;
        max = max.max(now);
    }
    usize::try_from(max).expect("no call ends before it begins")
}

/// Returns the number of calls of each job.
pub fn by_job(calls: &[Call]) -> BTreeMap<String, usize> {
    let mut of_each = BTreeMap::new();
    for call in calls {
        *of_each.entry(call.job.clone()).or_default() += 1;
    }
    of_each
}

/// Returns the number of calls beyond the first of each job.
pub fn repeated(calls: &[Call]) -> usize {
    calls.len() - by_job(calls).len()
}

#[test]
fn windows_are_half_open() {
    let started = Instant::now();
    let at = |ms: &[u64]| -> Vec<Instant> {
        (ms.iter().map(|ms| started + Duration::from_millis(*ms))).collect()
    };
    let second = Duration::from_secs(1);
    assert_eq!(windows(&at(&[]), 2, second), (0, 0));
    assert_eq!(windows(&at(&[0, 500, 1000, 1500]), 2, second), (2, 0));
    assert_eq!(windows(&at(&[0, 500, 999, 1499]), 2, second), (3, 2));
}
