//! A worker with access tokens per tenant: a tenant without a token does not affect the others.

use kit::api::{Api, Call, Reply};
use kit::{Bed, SECOND, jobs, until};

use crate::PROGRAM;

/// Number of jobs of each tenant that gets a token.
const JOBS: usize = 60;
/// Number of jobs of each other tenant.
const JOBS_WITHOUT: usize = 20;
const HEALTHY: [&str; 3] = ["good-1", "good-2", "good-3"];
const HANGING: usize = 24;

/// Answers as the tenant of `call`, which the path names, requires.
fn token(call: &Call) -> Reply {
    let tenant = call.uri.path().trim_matches('/');
    match tenant.split('-').next() {
        Some("revoked") => Reply::status(401).body(r#"{"error": "invalid_client"}"#),
        Some("hangs") => Reply::ok().after(3600 * SECOND),
        _ => Reply::ok().body(r#"{"access_token": "t", "expires_in": 3600}"#),
    }
}

fn called(api: &Api, tenant: &str) -> usize {
    let calls = api.calls();
    calls.iter().filter(|call| call.tenant == tenant).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_with_failing_tokens_stop_no_others() {
    let (api, tokens) = (Api::start().await, Api::start().await);
    tokens.answers(token);
    let bed = Bed::shared();
    // The wait for a hanging answer outlasts this test.
    let http = format!(
        ", timeout: 10m, oauth2: {{token-url: '{}{{tenant}}', client-id: x, client-secret: hunter2}}",
        tokens.url()
    );
    let yaml = bed.yaml("max-requests: 20, window-size: 1s", &api.url(), &http);
    let yaml = yaml.replace("dispatch: {", "dispatch: {concurrency: 32, ");
    let hanging: Vec<_> = (0..HANGING).map(|n| format!("hangs-{n}")).collect();
    let without = hanging.iter().map(String::as_str).chain(["revoked"]);
    let without = without.flat_map(|tenant| jobs(tenant, JOBS_WITHOUT));
    bed.publish(&yaml, without).await;
    let worker = PROGRAM.start(&yaml);
    until("all hanging endpoints are asked", || {
        tokens.count() >= HANGING
    })
    .await;
    for tenant in HEALTHY {
        bed.publish(&yaml, jobs(tenant, JOBS)).await;
    }
    until("all calls of the healthy tenants", || {
        HEALTHY.iter().all(|tenant| called(&api, tenant) >= JOBS)
    })
    .await;
    assert_eq!(api.count(), HEALTHY.len() * JOBS, "each once, and no other");
    // The API itself works.
    worker
        .logs(&["breaker of this tenant open", "revoked"])
        .await;
    let stops = worker.count(&["breaker of the API open"]);
    assert_eq!(stops, 0, "{}", worker.log().join("\n"));
    worker.stop();
}
