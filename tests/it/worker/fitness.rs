//! A worker that can't reach the API leaves the jobs to one that can.

use std::time::Duration;

use kit::api::{Api, Reply};
use kit::{Bed, SECOND, jobs, until};
use tokio::time::Instant;

use crate::PROGRAM;

/// The number of jobs of each of two tenants.
const JOBS: usize = 200;

/// Publishes jobs and waits for their calls. Returns how long that takes.
async fn all_called(bed: &Bed, api: &Api, yaml: &str) -> Duration {
    let (started, before) = (Instant::now(), api.count());
    for tenant in ["acme", "bert"] {
        bed.publish(yaml, jobs(tenant, JOBS)).await;
    }
    until("all calls", || api.count() >= before + 2 * JOBS).await;
    started.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_cannot_reach_the_api_returns_jobs_to_one_that_can() {
    let api = Api::start().await;
    api.answers(|_| Reply::ok().after(Duration::from_millis(200)));
    let bed = Bed::shared();
    let of = |url: &str| {
        let yaml = bed.yaml("max-requests: 1000, window-size: 1s", url, "");
        yaml.replace("dispatch: {", "dispatch: {concurrency: 16, ")
    };
    let unreachable = Api::start().await;
    unreachable.door.refuse().await;
    let (healthy, sick) = (of(&api.url()), of(&unreachable.url()));
    let sound = PROGRAM.start(&healthy);
    let alone = all_called(&bed, &api, &healthy).await;

    let unfit = PROGRAM.start(&sick);
    let beside = all_called(&bed, &api, &healthy).await;
    // A worker that kept its share would take ten times as long.
    assert!(
        beside < 3 * alone + 5 * SECOND,
        "{beside:?}, alone {alone:?}"
    );
    unfit.logs(&["this worker can't make calls"]).await;
    until("the sick one is not ready", || {
        let readiness = unfit.get("/readyz").unwrap_or_default();
        readiness.starts_with("not ready") && readiness.contains("this worker can't make calls")
    })
    .await;
    until("the sound one is ready", || {
        sound.get("/readyz").as_deref() == Some("ready\n")
    })
    .await;
    // No job is left that could show that the API is back.
    unreachable.door.take().expect("its port");
    until("the sick one is ready", || {
        unfit.get("/readyz").as_deref() == Some("ready\n")
    })
    .await;
    assert_eq!(unreachable.count(), 0);
    sound.stop();
    unfit.stop();
    let calls = api.calls();
    assert_eq!(calls.len(), 4 * JOBS, "each once");
    assert!(calls.iter().all(|call| call.attempt == 1));
    assert!(bed.dead(&healthy).await.is_empty());
}

/// The tenants' breakers, which all workers share, stay closed.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_token_server_stops_no_tenant() {
    let (api, tokens) = (Api::start().await, Api::start().await);
    tokens.answers(|_| Reply::ok().body(r#"{"access_token": "t", "expires_in": 3600}"#));
    let bed = Bed::shared();
    let of = |api: &str, tokens: &str| {
        let oauth2 = format!(
            ", oauth2: {{token-url: '{tokens}{{tenant}}', client-id: x, client-secret: hunter2}}"
        );
        bed.yaml("max-requests: 1000, window-size: 1s", api, &oauth2)
    };
    let nowhere = "http://127.0.0.1:9/";
    let (healthy, sick) = (of(&api.url(), &tokens.url()), of(nowhere, nowhere));
    let unfit = PROGRAM.start(&sick);
    for tenant in ["acme", "bert"] {
        bed.publish(&sick, jobs(tenant, JOBS)).await;
    }
    unfit
        .logs(&["this worker can't make calls", "no access token"])
        .await;
    let sound = PROGRAM.start(&healthy);
    until("all calls", || api.count() >= 2 * JOBS).await;
    for worker in [&unfit, &sound] {
        let stops = worker.count(&["breaker of this tenant open"]);
        assert_eq!(stops, 0, "{}", worker.log().join("\n"));
    }
    sound.stop();
    unfit.stop();
    let calls = api.calls();
    assert_eq!(calls.len(), 2 * JOBS, "each once");
    assert!(calls.iter().all(|call| call.attempt == 1));
}

/// All of its jobs are in delay queues by then.
#[tokio::test(flavor = "multi_thread")]
async fn a_single_worker_resumes_its_jobs_when_the_api_is_back() {
    let api = Api::start().await;
    api.door.refuse().await;
    let bed = Bed::shared();
    let yaml = bed.yaml("max-requests: 1000, window-size: 1s", &api.url(), "");
    let worker = PROGRAM.start(&yaml);
    bed.publish(&yaml, jobs("acme", 8)).await;
    worker.logs(&["this worker can't make calls"]).await;
    api.door.take().expect("its port");
    until("all calls", || api.count() >= 8).await;
    worker.logs(&["this worker can make calls again"]).await;
    until("it is ready", || {
        worker.get("/readyz").as_deref() == Some("ready\n")
    })
    .await;
    worker.stop();
    let calls = api.calls();
    assert_eq!(calls.len(), 8, "each once");
    assert!(calls.iter().all(|call| call.attempt == 1));
}
