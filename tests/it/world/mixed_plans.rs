//! Jobs of one tenant under different limits. Limits with long windows still count jobs that those
//! with short windows no longer count.

use broker::Message;
use kit::api::Api;
use kit::process::Process;
use kit::{Bed, MS, SECOND, counts, job, until};
use rules::headers::HeaderValue;

use crate::PROGRAM;

const WINDOW: std::time::Duration = SECOND.saturating_mul(4);
const SMALL: usize = 9;
const OTHERS: usize = 12;

fn small(number: usize) -> Message {
    let plan = HeaderValue::Text("small".to_owned());
    job("acme", format_args!("small-{number}")).with_headers(&[("x-plan", plan)], &[])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_with_a_long_window_counts_jobs_without_one() {
    let api = Api::start().await;
    let bed = Bed::shared();
    let limits = "max-requests: 100, window-size: 500ms, guard: 100ms, plan-header: x-plan, \
         plans: {small: {max-requests: 3, window-size: 4s, guard: 1s}}";
    let yaml = bed.yaml(limits, &api.url(), "");
    let workers = [PROGRAM.start(&yaml), PROGRAM.start(&yaml)];
    bed.publish(&yaml, (0..SMALL).map(small)).await;
    for number in 0..OTHERS {
        bed.publish(&yaml, [job("acme", format_args!("other-{number}"))])
            .await;
        tokio::time::sleep(500 * MS).await;
    }
    until("all jobs", || api.count() == SMALL + OTHERS).await;
    workers.into_iter().for_each(Process::stop);
    let mut calls = api.calls();
    calls.sort_by_key(|call| call.arrived);
    let is_small = |at: &usize| calls[*at].job.starts_with("small");
    let of_plan: Vec<_> = (0..calls.len()).filter(is_small).collect();
    let arrivals: Vec<_> = of_plan.iter().map(|at| calls[*at].arrived).collect();
    assert_eq!(counts::windows(&arrivals, 3, WINDOW).1, 0);
    // Nor together with calls of other plans that came more than half a guard earlier. A more
    // recent call may have been decided later.
    for last in of_plan {
        let arrived = calls[last].arrived;
        let before = calls[..last].iter().enumerate();
        let counted = before.filter(|(number, call)| {
            let age = arrived - call.arrived;
            age < WINDOW && (is_small(number) || age > 500 * MS)
        });
        assert!(counted.count() < 3, "{}: {calls:#?}", calls[last].job);
    }
}
