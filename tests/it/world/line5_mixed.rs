//! Jobs of one tenant under different limits, side by side: a plan with a long window, and jobs with a short one.

use sluicegate::broker::Message;
use sluicegate::rules::headers::HeaderValue;

use super::kit::api::Api;
use super::kit::{Bed, MS, SECOND, counts, job, until};
use crate::process::Process;
use crate::servers::{shared_rabbit, shared_redis};

/// What the plan allows in eight seconds.
const PLAN: usize = 3;

fn of_plan(number: usize) -> Message {
    let plan = HeaderValue::Text("small".to_owned());
    job("acme", format_args!("small-{number}")).with_headers(&[("x-plan", plan)], &[])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_with_a_long_window_is_kept_beside_jobs_with_a_short_one() {
    let api = Api::start().await;
    let bed = Bed::on(shared_rabbit().url(), shared_redis().url());
    let limits = "max-requests: 100, window-size: 1s, plan-header: x-plan, \
                  plans: {small: {max-requests: 3, window-size: 8s}}";
    // Whoever waits looks each second, and finds room where it was forgotten that there is none.
    let yaml = bed.yaml(limits, &api.url(), "") + "delay: {max-delay: 1s}\n";
    let worker = Process::start(&yaml);
    worker.says(&["RabbitMQ: consuming"]).await;
    bed.publish(&yaml, (0..2 * PLAN).map(of_plan)).await;
    let small = || {
        let calls = api.calls().into_iter();
        calls.filter(|call| call.job.starts_with("small-"))
    };
    until("a job of the plan", || small().next().is_some()).await;
    for number in 0..20 {
        bed.publish(&yaml, [job("acme", number)]).await;
        tokio::time::sleep(200 * MS).await;
    }
    until("all jobs", || api.count() == 2 * PLAN + 20).await;
    worker.stop();
    let times: Vec<_> = small().map(|call| call.at).collect();
    // Shorter than the plan's window by more than calls are late on a busy machine.
    let (fullest, _) = counts::windows(&times, PLAN, 5 * SECOND);
    assert!(fullest <= PLAN, "{fullest} calls of {PLAN} in 8 s");
}
