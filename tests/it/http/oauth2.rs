//! Calls with an access token from a token endpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use config::{ClientAuth, OAuth2, Secret, SecretUrl};
use handler::PreparingHandler;
use kit::certificates::TestCertificates;
use tokio::time::Instant;

use super::downstream::{DownstreamBehavior, Request};
use super::*;

/// A token endpoint for tests: its n-th successful answer is the token `token-n`.
struct Endpoint {
    downstream: Downstream,
    status: Arc<AtomicU16>,
}

impl Endpoint {
    /// Starts an endpoint whose tokens live for this many seconds.
    async fn start(life: u64) -> Self {
        Self::with(DownstreamBehavior::default(), life).await
    }

    async fn with(manner: DownstreamBehavior, life: u64) -> Self {
        let (status, given) = (Arc::new(AtomicU16::new(200)), AtomicUsize::new(0));
        let answered = Arc::clone(&status);
        let downstream = Downstream::with(manner, move |request| {
            let text = match answered.load(Ordering::Relaxed) {
                200 => {
                    let number = 1 + given.fetch_add(1, Ordering::Relaxed);
                    let json = format!(
                        r#"{{"access_token": "token-{number}", "token_type": "Bearer", "expires_in": {life}}}"#
                    );
                    answer("200 OK", "", &json)
                }
                status => {
                    let echo =
                        String::from_utf8_lossy(&request.head).replace(['"', '\r', '\n'], "");
                    let json =
                        format!(r#"{{"error": "invalid_client", "error_description": "{echo}"}}"#);
                    answer(&format!("{status} No"), "", &json)
                }
            };
            (text.into_bytes(), AfterAnswer::Keep)
        });
        Self {
            downstream: downstream.await,
            status,
        }
    }

    fn answers(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    fn requests(&self) -> Vec<Request> {
        self.downstream.requests()
    }

    /// Waits until this many requests have arrived.
    async fn is_asked(&self, times: usize) {
        let what = format!("{times} requests");
        kit::until(&what, || self.requests().len() >= times).await;
    }

    fn oauth2(&self, scheme: &str) -> OAuth2 {
        OAuth2 {
            scope: Some("orders:write".to_owned()),
            audience: Some("https://api".to_owned()),
            ..oauth2_at(format!("{scheme}://{}/token?a=b", self.downstream.addr))
        }
    }
}

/// Returns a client of the token endpoint at `url`.
pub fn oauth2_at(url: String) -> OAuth2 {
    OAuth2 {
        token_url: SecretUrl::new(url),
        client_id: Some("shop".to_owned()),
        client_secret: Secret::new("hunter2"),
        client_auth: ClientAuth::Basic,
        scope: None,
        audience: None,
    }
}

/// Returns a configuration that calls `api` with tokens of `endpoint`.
fn with_tokens(api: &Downstream, endpoint: &Endpoint, timeout: Duration) -> Http {
    Http {
        oauth2: Some(endpoint.oauth2("http")),
        ..http(format!("http://{}/", api.addr), timeout)
    }
}

async fn api() -> Downstream {
    Downstream::answering(answer("200 OK", "", "fine"), AfterAnswer::Keep).await
}

/// Returns the tokens of the calls to `api`, in order.
fn carried(api: &Downstream) -> Vec<String> {
    let text = |request: &Request| {
        let value = request.header("authorization").expect("each call has one");
        String::from_utf8_lossy(value).into_owned()
    };
    api.requests().iter().map(text).collect()
}

/// Calls until the reason of the failure has `words`. On a slow machine, the first waits may end
/// before the endpoint's answer.
async fn fails_with(handler: &HttpHandler, words: &str) -> String {
    let patience = Instant::now() + LONG;
    loop {
        match handler.handle(&job("1"), permit()).await {
            Outcome::Retry { reason, .. } if reason.contains(words) => return reason,
            Outcome::Retry { reason, .. } => assert!(Instant::now() < patience, "{reason}"),
            other => panic!("{other:?}"),
        }
    }
}

/// Calls until a call succeeds, which a short timeout may prevent on a slow machine.
async fn succeeds(handler: &HttpHandler) {
    let patience = Instant::now() + LONG;
    while handler.handle(&job("1"), permit()).await != Outcome::Done {
        assert!(Instant::now() < patience);
    }
}

#[tokio::test]
async fn one_token_is_fetched_for_many_calls() {
    for auth in [ClientAuth::Basic, ClientAuth::Post] {
        let (api, endpoint) = (api().await, Endpoint::start(3600).await);
        let mut http = with_tokens(&api, &endpoint, LONG);
        http.oauth2.as_mut().expect("it is set").client_auth = auth;
        let handler = HttpHandler::new(&http, 4).expect("usable");
        let jobs: Vec<_> = (0..20).map(|n| job(&n.to_string())).collect();
        let calls = jobs.iter().map(|job| handler.handle(job, permit()));
        for outcome in futures_util::future::join_all(calls).await {
            assert_eq!(outcome, Outcome::Done);
        }
        assert_eq!(carried(&api), vec!["Bearer token-1"; 20]);
        let requests = endpoint.requests();
        assert_eq!(requests.len(), 1);
        assert_eq!(requests[0].request_line(), "POST /token?a=b");
        let kind = requests[0].header("content-type").expect("it is said");
        assert_eq!(kind, b"application/x-www-form-urlencoded");
        let body = String::from_utf8_lossy(&requests[0].body).into_owned();
        let form = "grant_type=client_credentials&scope=orders%3Awrite&audience=https%3A%2F%2Fapi";
        let basic = requests[0].header("authorization");
        match auth {
            ClientAuth::Basic => {
                assert_eq!(body, form);
                assert_eq!(basic, Some(&b"Basic c2hvcDpodW50ZXIy"[..]));
            }
            ClientAuth::Post => {
                assert_eq!(body, format!("{form}&client_id=shop&client_secret=hunter2"));
                assert_eq!(basic, None);
            }
        }
    }
}

#[tokio::test]
async fn a_token_is_renewed_early_without_delaying_calls() {
    let (api, endpoint) = (api().await, Endpoint::start(1000).await);
    let handler = HttpHandler::new(&with_tokens(&api, &endpoint, LONG), 4).expect("usable");
    assert_eq!(handler.handle(&job("1"), permit()).await, Outcome::Done);
    later(Duration::from_secs(740)).await;
    assert_eq!(handler.handle(&job("2"), permit()).await, Outcome::Done);
    assert_eq!(endpoint.requests().len(), 1);
    // The next answer takes a while, and the old token remains valid until then.
    endpoint.answers(500);
    later(Duration::from_secs(11)).await;
    endpoint.is_asked(2).await;
    assert_eq!(handler.handle(&job("3"), permit()).await, Outcome::Done);
    assert_eq!(carried(&api), vec!["Bearer token-1"; 3]);
    endpoint.answers(200);
    endpoint.is_asked(3).await;
    while carried(&api)
        .last()
        .is_none_or(|last| last == "Bearer token-1")
    {
        assert_eq!(handler.handle(&job("4"), permit()).await, Outcome::Done);
    }
    assert_eq!(carried(&api).last().expect("a call"), "Bearer token-2");
}

#[tokio::test]
async fn calls_wait_until_a_token_is_available() {
    let (api, endpoint) = (api().await, Endpoint::start(3600).await);
    endpoint.answers(401);
    let http = with_tokens(&api, &endpoint, Duration::from_millis(300));
    let handler = HttpHandler::new(&http, 4).expect("usable");
    assert!(handler.at_once().is_none());
    fails_with(&handler, "401").await;
    let prepared = handler.prepare(&job("1")).await;
    let Err(Attempt {
        outcome: Outcome::Retry {
            after: None,
            reason,
        },
        ..
    }) = prepared
    else {
        panic!("there is no token");
    };
    assert_eq!(
        reason,
        "no access token within 300ms (dispatch.http.timeout): the token URL answered 401: \
        invalid_client"
    );
    let attempt = handler.attempt(&job("1"), permit()).await;
    assert_eq!(attempt.trouble, Some(handler::Trouble::Unreachable));
    assert!(api.requests().is_empty() && api.opened() == 0);
    endpoint.answers(200);
    succeeds(&handler).await;
    let carried = carried(&api);
    assert!(carried.iter().all(|token| token == "Bearer token-1"));
    assert!(endpoint.requests().len() < 10, "it pauses after failures");
}

#[tokio::test]
async fn an_expired_token_is_never_used() {
    let (api, endpoint) = (api().await, Endpoint::start(1000).await);
    let http = with_tokens(&api, &endpoint, Duration::from_millis(300));
    let handler = HttpHandler::new(&http, 4).expect("usable");
    succeeds(&handler).await;
    let made = api.requests().len();
    let mut ready = handler.at_once().expect("a connection and a token");
    assert!(handler.is_ready(&mut ready));
    endpoint.answers(500);
    // A little before it expires, since a call takes time.
    later(Duration::from_secs(996)).await;
    let fresh = handler.at_once();
    assert!(fresh.is_none() && !handler.is_ready(&mut ready));
    let attempt = handler.send(&job("2"), ready, permit()).await;
    assert_eq!(attempt.outcome, Outcome::Late);
    let outcome = handler.handle(&job("2"), permit()).await;
    assert!(matches!(outcome, Outcome::Retry { .. }), "{outcome:?}");
    assert_eq!(api.requests().len(), made);
}

#[tokio::test]
async fn a_refused_token_is_renewed_at_once_unless_it_is_new() {
    let api = Downstream::start(|request| {
        let text = match request.header("authorization") {
            Some(b"Bearer token-1") => answer("401 Unauthorized", "", "who is token-1?"),
            _ => answer("200 OK", "", "fine"),
        };
        (text.into_bytes(), AfterAnswer::Keep)
    });
    let (api, endpoint) = (api.await, Endpoint::start(3600).await);
    let http = with_tokens(&api, &endpoint, LONG);
    let handler = HttpHandler::new(&http, 4).expect("usable");
    let reason = "the API answered 401 Unauthorized: who is ***?".to_owned();
    let refused = Outcome::Retry {
        after: None,
        reason: reason.clone(),
    };
    for _ in 0..2 {
        let attempt = handler.attempt(&job("1"), permit()).await;
        assert_eq!((attempt.outcome, attempt.trouble), (refused.clone(), None));
    }
    assert_eq!(endpoint.requests().len(), 1);
    later(Duration::from_secs(10)).await;
    assert_eq!(handler.handle(&job("1"), permit()).await, refused);
    assert_eq!(handler.handle(&job("1"), permit()).await, Outcome::Done);
    assert_eq!(carried(&api).last().expect("a call"), "Bearer token-2");
    assert_eq!(endpoint.requests().len(), 2);

    // The configured meaning of a 401 counts.
    let mut answers = Answers::default();
    let which = AnswerPattern::parse("401").expect("a status");
    assert!(answers.set(which, Consequence::Reject));
    let again = Endpoint::start(3600).await;
    let http = Http {
        answers,
        ..with_tokens(&api, &again, LONG)
    };
    let handler = HttpHandler::new(&http, 4).expect("usable");
    let outcome = handler.handle(&job("1"), permit()).await;
    assert_eq!(outcome, Outcome::Reject { reason });
}

#[tokio::test]
async fn tokens_are_fetched_over_tls_from_trusted_servers_only() {
    let (ours, theirs) = (TestCertificates::new(), TestCertificates::new());
    for (papers, is_trusted) in [(&ours, true), (&theirs, false)] {
        papers.issue("server", &["127.0.0.1"]);
        let manner = DownstreamBehavior {
            tls: Some(papers.acceptor("server", None)),
            ..DownstreamBehavior::default()
        };
        let (api, endpoint) = (api().await, Endpoint::with(manner, 3600).await);
        let http = Http {
            oauth2: Some(endpoint.oauth2("https")),
            tls: ours.trusted(),
            ..with_tokens(&api, &endpoint, Duration::from_secs(5))
        };
        let timeout = if is_trusted {
            LONG
        } else {
            Duration::from_secs(1)
        };
        let handler = HttpHandler::new(&Http { timeout, ..http }, 4).expect("usable");
        if is_trusted {
            assert_eq!(handler.handle(&job("1"), permit()).await, Outcome::Done);
            continue;
        }
        let reason = fails_with(&handler, "no connection to the token URL: ").await;
        assert!(reason.contains("dispatch.http.ca-file"), "{reason}");
        assert!(endpoint.requests().is_empty() && api.requests().is_empty());
    }
}

#[tokio::test]
async fn answers_without_a_token_or_without_an_end_are_failures() {
    let endless = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    for (bytes, then, words) in [
        (
            answer("200 OK", "", "hunter3"),
            AfterAnswer::Keep,
            "without a JSON access_token",
        ),
        (
            endless.to_owned(),
            AfterAnswer::Repeat,
            "larger than 64 KiB",
        ),
        (
            String::new(),
            AfterAnswer::Hang,
            "did not answer within 300ms",
        ),
        (String::new(), AfterAnswer::Close, "did not answer"),
    ] {
        let api = api().await;
        let endpoint = Endpoint {
            downstream: Downstream::answering(bytes, then).await,
            status: Arc::default(),
        };
        let http = with_tokens(&api, &endpoint, Duration::from_millis(300));
        let handler = HttpHandler::new(&http, 4).expect("usable");
        let failure = fails_with(&handler, words).await;
        assert!(!failure.contains("hunter"), "{failure}");
        assert!(api.requests().is_empty());
    }
}
