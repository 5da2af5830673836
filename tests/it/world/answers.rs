//! The same status means different things at different APIs.

use std::time::{SystemTime, UNIX_EPOCH};

use kit::api::{Api, Reply};
use kit::process::DONE;
use kit::{Bed, SECOND, ids, job, jobs, until};

use crate::PROGRAM;

/// GitHub answers like this when its secondary limit is exceeded.
#[tokio::test(flavor = "multi_thread")]
async fn a_403_with_retry_after_closes_its_tenant_and_one_without_is_a_dead_letter() {
    let api = Api::start().await;
    let first = std::sync::Mutex::new(true);
    api.answers(move |call| {
        let is_first = std::mem::take(&mut *first.lock().expect("no panic"));
        match call.job.as_str() {
            "forbidden" => Reply::status(403),
            _ if is_first => Reply::status(403).header("retry-after", "3"),
            _ => Reply::ok(),
        }
    });
    let bed = Bed::shared();
    let limits = "max-requests: 100, window-size: 1s, guard: 200ms";
    let yaml = bed.yaml(limits, &api.url(), "");
    bed.publish(&yaml, [job("acme", "first")]).await;
    let worker = PROGRAM.start(&yaml);
    worker.logs(&["throttled by the API"]).await;
    let others = jobs("acme", 5).chain([job("other", "forbidden")]);
    bed.publish(&yaml, others).await;
    until("all jobs", || api.count() == 1 + 6 + 1).await;
    worker.logs(&["dead letter", "forbidden"]).await;
    worker.stop();
    let calls = api.calls();
    let closed = calls[0].ended.expect("it was answered");
    let of_tenant = calls[1..].iter().filter(|call| call.tenant == "acme");
    for call in of_tenant {
        assert!(call.at - closed >= 3 * SECOND, "{calls:#?}");
        assert_eq!(call.attempt, 1, "a closed tenant uses no attempt");
    }
    assert_eq!(ids(&bed.dead(&yaml).await), ["forbidden"]);
}

/// GitHub answers like this when its primary limit is used up.
#[tokio::test(flavor = "multi_thread")]
async fn a_403_without_remaining_quota_closes_its_tenant_and_uses_no_attempt() {
    let api = Api::start().await;
    let opens = std::sync::Mutex::new(None);
    api.answers(move |call| {
        let mut opens = opens.lock().expect("no panic");
        let now = SystemTime::now();
        let opens = *opens.get_or_insert(now + 4 * SECOND);
        let reset = opens.duration_since(UNIX_EPOCH).expect("after 1970");
        let reset = (reset.as_secs() + 1).to_string();
        match call.tenant.as_str() {
            "other" => Reply::status(403),
            _ if now >= opens => Reply::ok(),
            _ => Reply::status(403)
                .header("x-ratelimit-limit", "60")
                .header("x-ratelimit-remaining", "0")
                .header("x-ratelimit-reset", &reset),
        }
    });
    let bed = Bed::shared();
    let yaml = bed.yaml("max-requests: 20, window-size: 1s", &api.url(), "");
    bed.publish(&yaml, jobs("acme", 10).chain([job("other", "forbidden")]))
        .await;
    let worker = PROGRAM.start(&yaml);
    until("all of acme", || worker.metric(DONE) == Some(10.0)).await;
    worker.logs(&["dead letter", "forbidden"]).await;
    worker.stop();
    let calls = api.calls();
    let of_acme = calls.iter().filter(|call| call.tenant == "acme");
    for call in of_acme {
        assert_eq!(call.attempt, 1, "a throttled job uses no attempt");
    }
    assert_eq!(ids(&bed.dead(&yaml).await), ["forbidden"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_decides_the_meaning_of_answers() {
    let api = Api::start().await;
    api.answers(|call| match (call.job.as_str(), call.attempt) {
        ("conflict", 1) => Reply::status(409),
        ("gone", _) => Reply::status(404),
        ("refused", _) => Reply::status(451),
        _ => Reply::ok(),
    });
    let bed = Bed::shared();
    let limits = "max-requests: 100, window-size: 1s, guard: 200ms";
    let answers = ", answers: {409: retry, 404: done}";
    let yaml = bed.yaml(limits, &api.url(), answers) + "retry: {initial-interval: 100ms}\n";
    let all = ["conflict", "gone", "refused"].map(|id| job("acme", id));
    bed.publish(&yaml, all).await;
    let worker = PROGRAM.start(&yaml);
    until("all calls", || api.count() == 4).await;
    worker.logs(&["dead letter", "refused"]).await;
    until("both", || worker.metric(DONE) == Some(2.0)).await;
    worker.stop();
    assert_eq!(ids(&bed.dead(&yaml).await), ["refused"]);
}
