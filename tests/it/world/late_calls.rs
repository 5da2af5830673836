//! The latency to the API varies by more than the guard. With the defaults the limit holds, since a
//! late call counts from its arrival. `guard-budget` bounds the share of the quota that this may
//! cost.

use std::time::Duration;

use broker::Message;
use kit::api::Api;
use kit::process::Process;
use kit::proxy::{Proxy, Transfer, Transfers};
use kit::{Bed, MS, SECOND, counts, jobs, until};

use crate::PROGRAM;

const MAX: usize = 10;
const WINDOW: Duration = Duration::from_secs(3);

/// The result of a run.
#[derive(Debug)]
struct RunResult {
    /// Calls that arrived when the window that ends with them was already full, without tolerance.
    early: usize,
    /// Calls that were counted from their arrival, and late calls that the budget could not pay
    /// for.
    counted: f64,
    unpaid: f64,
}

/// Runs `count` jobs through two workers. `late` is the share of requests that are delayed, and the
/// delay. The proxy acknowledges by itself, so only answers show that a request was late.
async fn run(budget: &str, count: usize, late: (f64, Duration)) -> RunResult {
    let api = Api::start().await;
    let there = Transfer {
        late,
        ..Transfer::between(MS, 3 * MS)
    };
    let ways = Transfers {
        there,
        ..Transfers::OPEN
    };
    let proxy = Proxy::start(api.door.address, ways, 3).await;
    let bed = Bed::shared();
    let limits = format!("max-requests: {MAX}, window-size: 3s{budget}");
    let yaml = bed.yaml(&limits, &api.url_at(proxy.door.address), "");
    let one = || PROGRAM.start_consuming(&yaml);
    let workers = [one().await, one().await];
    bed.publish(&yaml, jobs("acme", count)).await;
    until("all jobs", || api.count() >= count).await;
    let sum = |metric: &str| -> f64 {
        let of = |worker: &Process| worker.metric(metric).unwrap_or_default();
        workers.iter().map(of).sum()
    };
    let by = |detected_by: &str| {
        sum(&format!(
            "sluicegate_late_calls_total{{detected_by=\"{detected_by}\"}}"
        ))
    };
    let counted = by("answer") + by("acknowledgement") + by("nothing");
    let unpaid = sum("sluicegate_late_calls_not_counted_total");
    let calls = api.calls();
    let (_, early) = counts::windows(&counts::times(&calls, "acme"), MAX, WINDOW);
    for worker in workers {
        worker.stop();
    }
    let seen = RunResult {
        early,
        counted,
        unpaid,
    };
    println!("{count} jobs, {late:?} late,{budget}: {seen:?}");
    seen
}

/// Repeats runs until the budget could pay for all late calls of one. A machine that stalls makes
/// calls late, too.
async fn paid(budget: &str, count: usize, late: (f64, Duration)) -> RunResult {
    let started = tokio::time::Instant::now();
    loop {
        assert!(
            started.elapsed() < 300 * SECOND,
            "the purse was always empty"
        );
        let seen = run(budget, count, late).await;
        if seen.unpaid == 0.0 {
            return seen;
        }
    }
}

/// One request in a hundred is retransmitted by TCP. While the budget can pay, no call comes too
/// early.
#[tokio::test(flavor = "multi_thread")]
async fn by_default_the_limit_holds_on_a_slightly_lossy_network() {
    assert_eq!(paid("", 120, (0.02, 230 * MS)).await.early, 0);
}

/// A third of the requests is late. That is too much for the default budget. The limit holds with a
/// budget of the whole quota, and does not with a budget of zero.
#[tokio::test(flavor = "multi_thread")]
async fn the_budget_bounds_the_cost_of_late_answers() {
    let late = (0.3, 600 * MS);
    let all = paid(", guard-budget: 100%", 100, late).await;
    assert!(all.counted > 0.0, "{all:?}");
    assert_eq!((all.early, all.unpaid), (0, 0.0), "{all:?}");
    let nothing = run(", guard-budget: 0%", 100, late).await;
    assert!(nothing.early > 0, "{nothing:?}");
    assert!(nothing.unpaid > 0.0, "{nothing:?}");
}

/// The kernel knows that requests have not arrived if the API's machine has no room for them, so
/// they count until they have. No answer says so earlier, and the budget pays nothing.
#[tokio::test(flavor = "multi_thread")]
async fn unreceived_calls_count_until_the_api_receives_them() {
    let api = Api::start().await;
    api.stand_still(true);
    let bed = Bed::shared();
    let limits = "max-requests: 2, window-size: 8s, guard: 3s, guard-budget: 0%";
    let yaml = bed.yaml(limits, &api.url(), ", timeout: 60s");
    let large = vec![b'x'; 8 << 20];
    let large = jobs("acme", 6).map(|job| Message {
        body: large.clone().into(),
        ..job
    });
    bed.publish(&yaml, large).await;
    let worker = PROGRAM.start(&yaml);
    let nothing = "sluicegate_late_calls_total{detected_by=\"nothing\"}";
    // If these calls were forgotten after a window and its guard, four would lie there.
    tokio::time::sleep(12 * SECOND).await;
    until("calls that are looked at again and again", || {
        worker.metric(nothing) >= Some(8.0)
    })
    .await;
    api.stand_still(false);
    until("all jobs", || api.count() == 6).await;
    worker.stop();
    let times = counts::times(&api.calls(), "acme");
    let (fullest, early) = counts::windows(&times, 2, 8 * SECOND);
    assert_eq!(early, 0, "a window had {fullest} of 2");
}
