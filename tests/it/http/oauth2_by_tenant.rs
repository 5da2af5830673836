//! Calls with access tokens per tenant.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use config::{OAuth2, Secret, SecretFiles};
use handler::{PreparingHandler, Trouble};
use tokio::time::Instant;

use super::downstream::Request;
use super::oauth2::oauth2_at;
use super::*;

const ONE_TOKEN: Duration = Duration::from_secs(1000);

/// Returns a client of the endpoint that has a path for each tenant.
fn by_tenant(tokens: &Downstream) -> OAuth2 {
    oauth2_at(format!("http://{}/{{tenant}}", tokens.addr))
}

/// A token endpoint that knows the secret of each client. Its n-th token for `a` is `a-n`.
struct Endpoint {
    downstream: Downstream,
    secrets: Arc<Mutex<BTreeMap<&'static str, &'static str>>>,
    folder: tempfile::TempDir,
}

impl Endpoint {
    async fn start() -> Self {
        let secrets: Arc<Mutex<BTreeMap<_, _>>> = Arc::default();
        let (known, given) = (Arc::clone(&secrets), Mutex::new(BTreeMap::new()));
        let downstream = Downstream::start(move |request| {
            let basic = request.header("authorization").expect("a client");
            let basic = basic.strip_prefix(b"Basic ").expect("basic");
            let pair = BASE64_STANDARD.decode(basic).expect("base64");
            let pair = String::from_utf8(pair).expect("text");
            let (id, secret) = pair.split_once(':').expect("a pair");
            let text = match known.lock().expect("whole").get(id) {
                Some(known) if *known == secret => {
                    let mut given = given.lock().expect("whole");
                    let number: &mut u32 = given.entry(id.to_owned()).or_default();
                    *number += 1;
                    let life = ONE_TOKEN.as_secs();
                    let json =
                        format!(r#"{{"access_token": "{id}-{number}", "expires_in": {life}}}"#);
                    answer("200 OK", "", &json)
                }
                _ => answer("401 No", "", r#"{"error": "invalid_client"}"#),
            };
            (text.into_bytes(), AfterAnswer::Keep)
        });
        Self {
            downstream: downstream.await,
            secrets,
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    /// Sets the secret of this client from now on.
    fn knows(&self, id: &'static str, secret: &'static str) {
        let mut secrets = self.secrets.lock().expect("whole");
        secrets.insert(id, secret);
    }

    /// Writes the file of this tenant.
    fn write(&self, tenant: &str, text: &str) {
        std::fs::write(self.folder.path().join(tenant), text).expect("written");
    }

    fn calls(&self, api: &Downstream, client_id: Option<&str>) -> Http {
        Http {
            oauth2: Some(OAuth2 {
                client_id: client_id.map(str::to_owned),
                client_secret: Secret::new("{secret:tenant}"),
                ..by_tenant(&self.downstream)
            }),
            secrets: Some(SecretFiles {
                folder: Some(self.folder.path().to_owned()),
                default: None,
            }),
            ..http(format!("http://{}/", api.addr), LONG)
        }
    }
}

fn job_of(tenant: &str) -> Job {
    let mut job = job("1");
    job.tenant = Tenant::parse(tenant).expect("a tenant");
    job
}

/// Calls until the token is there or refused. On a slow machine, a job is first put off.
async fn call(handler: &HttpHandler, job: &Job) -> Outcome {
    let patience = Instant::now() + LONG;
    loop {
        match handler.handle(job, permit()).await {
            Outcome::Snooze { .. } => assert!(Instant::now() < patience),
            outcome => return outcome,
        }
    }
}

/// Echoes the token, and refuses those whose numbers are in `refused`.
async fn api(refused: &'static str) -> Downstream {
    Downstream::start(move |request| {
        let text = String::from_utf8_lossy(request.header("authorization").unwrap_or_default());
        let text = match text.ends_with(refused) {
            true => answer("401 Unauthorized", "", &format!("{text}!")),
            false => answer("200 OK", "", ""),
        };
        (text.into_bytes(), AfterAnswer::Keep)
    })
    .await
}

/// Returns the tenants and tokens of the calls to `api`, each once.
fn carried(api: &Downstream) -> Vec<String> {
    let text = |request: &Request| {
        let of = |name| String::from_utf8_lossy(request.header(name).unwrap_or_default());
        format!("{}: {}", of("x-tenant"), of("authorization"))
    };
    let mut all: Vec<_> = api.requests().iter().map(text).collect();
    all.sort();
    all.dedup();
    all
}

#[tokio::test]
async fn each_tenants_own_token_is_fetched_once() {
    let (api, endpoint) = (api("none").await, Endpoint::start().await);
    for (tenant, id, secret) in [("a", "shop-a", "hunter2"), ("b", "shop-b", "hunter3")] {
        endpoint.knows(id, secret);
        endpoint.write(tenant, secret);
    }
    let http = endpoint.calls(&api, Some("shop-{tenant}"));
    let handler = HttpHandler::new(&http, 4).expect("usable");
    assert!(handler.at_once().is_none(), "no token fits any job");
    let jobs: Vec<_> = (0..20)
        .map(|n| job_of(if n % 2 == 0 { "a" } else { "b" }))
        .collect();
    let calls = jobs.iter().map(|job| call(&handler, job));
    for outcome in futures_util::future::join_all(calls).await {
        assert_eq!(outcome, Outcome::Done);
    }
    assert_eq!(
        carried(&api),
        ["a: Bearer shop-a-1", "b: Bearer shop-b-1"].map(str::to_owned)
    );
    let asked = endpoint.downstream.requests();
    let mut asked: Vec<_> = asked.iter().map(Request::request_line).collect();
    asked.sort();
    assert_eq!(asked, ["POST /a", "POST /b"]);
    // A job needs no preparation if its tenant has a token. No other tenant has one.
    let mut ready = handler
        .at_once_for(&job_of("a").tenant)
        .expect("a token, and a connection");
    assert!(handler.is_ready(&mut ready));
    assert!(handler.at_once_for(&job_of("c").tenant).is_none());
}

#[tokio::test]
async fn a_refused_client_stops_only_its_tenant_until_the_secret_changes() {
    let (api, endpoint) = (api("none").await, Endpoint::start().await);
    endpoint.knows("own-a", "new");
    endpoint.knows("own-b", "good");
    endpoint.write("a", "own-a:old");
    endpoint.write("b", "own-b:good\n");
    endpoint.write("odd", "no-colon");
    let handler = HttpHandler::new(&endpoint.calls(&api, None), 4).expect("usable");
    let begun = Instant::now();
    for _ in 0..20 {
        let outcome = call(&handler, &job_of("a")).await;
        let reason = "no access token: the token URL answered 401: invalid_client".to_owned();
        let expected = Outcome::Retry {
            after: None,
            reason,
        };
        assert_eq!(outcome, expected);
        assert_eq!(call(&handler, &job_of("b")).await, Outcome::Done);
    }
    // During a pause of at least a second no request is made.
    let of = |path: &str| {
        let requests = endpoint.downstream.requests();
        requests
            .iter()
            .filter(|request| request.request_line() == path)
            .count()
    };
    let (of_a, of_b) = (of("POST /a"), of("POST /b"));
    let most = 10 + begun.elapsed().as_secs();
    assert!((of_a as u64) < most, "{of_a}");
    assert_eq!(of_b, 1);
    endpoint.write("a", "own-a:new");
    let patience = Instant::now() + LONG;
    while handler.handle(&job_of("a"), permit()).await != Outcome::Done {
        assert!(Instant::now() < patience);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for (tenant, part) in [
        ("odd", "is not client-id:client-secret"),
        ("nobody", "there is no secret for this tenant"),
    ] {
        match handler.handle(&job_of(tenant), permit()).await {
            Outcome::Reject { reason } => assert!(reason.contains(part), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        carried(&api),
        ["a: Bearer own-a-1", "b: Bearer own-b-1"].map(str::to_owned)
    );
}

#[tokio::test]
async fn a_tenants_token_is_renewed_while_it_has_jobs_and_when_the_api_refuses_it() {
    let (api, endpoint) = (api("-2").await, Endpoint::start().await);
    endpoint.knows("own", "good");
    endpoint.write("a", "own:good");
    let handler = HttpHandler::new(&endpoint.calls(&api, None), 4).expect("usable");
    let job = job_of("a");
    let call = || call(&handler, &job);
    assert_eq!(call().await, Outcome::Done);
    later(ONE_TOKEN * 3 / 4 - Duration::from_secs(10)).await;
    assert_eq!(call().await, Outcome::Done);
    assert_eq!(endpoint.downstream.requests().len(), 1);
    // From then on the next token is fetched, and calls use the old one until it arrives.
    later(Duration::from_secs(11)).await;
    let patience = Instant::now() + LONG;
    let reason = loop {
        assert!(Instant::now() < patience);
        match call().await {
            Outcome::Done => {}
            Outcome::Retry { reason, .. } => break reason,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(reason, "the API answered 401 Unauthorized: Bearer ***!");
    assert_eq!(endpoint.downstream.requests().len(), 2);
    // The token is new, so the job may be at fault.
    assert!(matches!(call().await, Outcome::Retry { .. }));
    assert_eq!(endpoint.downstream.requests().len(), 2);
    later(Duration::from_secs(10)).await;
    assert!(matches!(call().await, Outcome::Retry { .. }));
    assert_eq!(call().await, Outcome::Done);
    assert_eq!(endpoint.downstream.requests().len(), 3);
    assert_eq!(
        carried(&api),
        ["a: Bearer own-1", "a: Bearer own-2", "a: Bearer own-3"].map(str::to_owned)
    );
}

#[tokio::test]
async fn hanging_endpoints_delay_no_other_tenants() {
    let api = api("none").await;
    let tokens = Downstream::start(|request| match request.request_line().contains("/hangs") {
        true => (Vec::new(), AfterAnswer::Hang),
        false => {
            let json = r#"{"access_token": "t", "expires_in": 1000}"#;
            (answer("200 OK", "", json).into_bytes(), AfterAnswer::Keep)
        }
    });
    let tokens = tokens.await;
    let http = Http {
        oauth2: Some(by_tenant(&tokens)),
        ..http(format!("http://{}/", api.addr), 60 * LONG)
    };
    let handler = HttpHandler::new(&http, 4).expect("usable");
    let hanging: Vec<_> = (0..100).map(|n| job_of(&format!("hangs-{n}"))).collect();
    let handler = &handler;
    let prepare = |job| async move {
        let attempt = handler.prepare(job).await.err().expect("there is no token");
        (attempt.outcome, attempt.trouble)
    };
    // Each returns before its token's request ends, and uses no attempt.
    let all = futures_util::future::join_all(hanging.iter().map(prepare)).await;
    for end in all {
        assert!(matches!(end, (Outcome::Snooze { .. }, None)), "{end:?}");
    }
    let patience = Instant::now() + LONG;
    while handler.handle(&job_of("good"), permit()).await != Outcome::Done {
        assert!(Instant::now() < patience);
    }
    // The requests that have waited longest are canceled for others, and their tenants have failed.
    let patience = Instant::now() + LONG;
    loop {
        if let (Outcome::Retry { .. }, trouble) = prepare(&hanging[0]).await {
            break assert_eq!(trouble, Some(Trouble::Tenant));
        }
        assert!(Instant::now() < patience);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_short_lived_token_is_not_fetched_for_each_call() {
    let api = api("none").await;
    let tokens = Downstream::start(|_| {
        let json = r#"{"access_token": "t", "expires_in": 0.001}"#;
        (answer("200 OK", "", json).into_bytes(), AfterAnswer::Keep)
    })
    .await;
    let http = Http {
        oauth2: Some(by_tenant(&tokens)),
        ..http(format!("http://{}/", api.addr), LONG)
    };
    let handler = HttpHandler::new(&http, 4).expect("usable");
    let begun = Instant::now();
    for _ in 0..20 {
        let attempt = handler.prepare(&job_of("a")).await;
        assert!(attempt.is_err(), "it has expired");
    }
    // The pauses between attempts are at least a second.
    let fetched = tokens.requests().len();
    let most = 5 + begun.elapsed().as_secs();
    assert!(fetched as u64 <= most, "{fetched}");
}
