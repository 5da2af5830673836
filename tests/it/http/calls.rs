//! The parts of a call that depend on its job: method, path, query and headers.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use broker::Message;
use config::Config;
use handler::http::HttpHandler;
use handler::{Fate, Outcome};
use kit::Says;
use ring::hmac;
use rules::headers::HeaderValue;
use rules::job::{self, Job};
use rules::tenant::Tenant;

use super::downstream::{AfterAnswer, Downstream, Request};
use super::{answer, permit};

/// Returns a configuration with `keys` in `dispatch.http` that calls `path` of an API at `server`.
fn config(server: &str, path: &str, keys: &str) -> Config {
    let yaml = format!("dispatch: {{http: {{url: 'http://{server}{path}', timeout: 60s{keys}}}}}");
    Config::parse("c.yaml", &yaml, std::iter::empty()).expect("valid")
}

/// Returns the job of a message of `acme` with this body and additional headers.
fn read(
    config: &Config,
    body: &str,
    headers: &[(&str, HeaderValue)],
) -> Result<Job, job::BadMessage> {
    let message = Message {
        routing_key: "jobs".to_owned(),
        properties: Default::default(),
        body: body.to_owned().into(),
    };
    let tenant = ("x-tenant", HeaderValue::Text("acme".to_owned()));
    let headers = [&[tenant], headers].concat();
    let message = (message.with_headers(&headers, &[])).with_id_if_missing("job/7");
    let policy = &config.rate_limiter.policy;
    let claims = job::read(&message, false, &config.job, policy)?;
    let mut job = Job::new("job/7", claims.tenant, message.body);
    job.values = claims.values;
    Ok(job)
}

/// Returns the request that the API receives.
async fn request(path: &str, keys: &str, body: &str, headers: &[(&str, HeaderValue)]) -> Request {
    let downstream = Downstream::answering(answer("200 OK", "", ""), AfterAnswer::Keep).await;
    let config = config(&downstream.addr.to_string(), path, keys);
    let job = read(&config, body, headers).expect("a job");
    let http = config.dispatch.http.expect("a url");
    let handler = HttpHandler::new(&http, 4).expect("a usable url");
    assert_eq!(handler.handle(&job, permit()).await, Outcome::Done);
    let mut requests = downstream.requests();
    assert_eq!(requests.len(), 1);
    requests.remove(0)
}

fn text(value: &str) -> HeaderValue {
    HeaderValue::Text(value.to_owned())
}

#[tokio::test]
async fn a_url_has_values_of_its_job_encoded_for_their_places() {
    let path = "/v1/{tenant}/orders/{json:/order/id}?to={header:x-to}&n={attempt}&id={id}#top";
    let body = r#"{"order": {"id": "a b/ü?#"}}"#;
    let request = request(path, "", body, &[("x-to", text("Zoë & co+%"))]).await;
    assert_eq!(
        request.request_line(),
        "POST /v1/acme/orders/a%20b%2F%C3%BC%3F%23?to=Zo%C3%AB%20%26%20co%2B%25&n=1&id=job%2F7"
    );
    assert_eq!(request.body, body.as_bytes());
}

#[tokio::test]
async fn a_call_has_the_configured_method_and_a_body_if_allowed() {
    for (method, has_body) in [
        ("POST", true),
        ("PUT", true),
        ("PATCH", true),
        ("DELETE", false),
        ("GET", false),
    ] {
        let keys = format!(", method: {method}");
        let request = request("/{json:/n}", &keys, r#"{"n": 12}"#, &[]).await;
        assert_eq!(request.request_line(), format!("{method} /12"));
        assert_eq!(!request.body.is_empty(), has_body, "{method}");
        let kind = request.header("content-type");
        assert_eq!(kind.is_some(), has_body, "{method}");
        assert_eq!(request.header("x-job-id"), Some(&b"job/7"[..]));
    }
}

#[tokio::test]
async fn headers_have_job_values_and_job_headers_are_forwarded() {
    let keys = ", headers: {x-customer: 'c-{json:/c}', x-both: '{tenant} {\"a\"}', x-plain: '{', x-key: 'k1'}, \
        forward-headers: [traceparent, X-Count, x-none, content-encoding], idempotency-key: true";
    let headers = [
        ("traceparent", text("00-4bf9-00f0-01")),
        ("X-Count", HeaderValue::Int(-3)),
        ("content-encoding", text("zstd")),
    ];
    let request = request("/", keys, r#"{"c": "ü"}"#, &headers).await;
    for (name, value) in [
        ("x-customer", Some("c-ü")),
        ("x-both", Some("acme {\"a\"}")),
        ("x-plain", Some("{")),
        ("x-key", Some("k1")),
        ("traceparent", Some("00-4bf9-00f0-01")),
        ("x-count", Some("-3")),
        ("x-none", None),
        ("content-encoding", Some("zstd")),
        ("idempotency-key", Some("job/7")),
    ] {
        assert_eq!(request.header(name), value.map(str::as_bytes), "{name}");
    }
}

#[test]
fn a_job_without_a_required_value_is_rejected_by_name() {
    let path = "/{json:/id}?q={header:x-q}";
    let keys = ", headers: {x-r: '{header:x-r}'}, forward-headers: [x-f]";
    let config = config("h", path, keys);
    let good = [("x-q", text("q")), ("x-r", text("r"))];
    assert!(read(&config, r#"{"id": 1}"#, &good).is_ok());
    let long = "x".repeat(1025);
    let with = |name, value: &str| {
        let others = good.iter().filter(|(good, _)| *good != name);
        let value = text(value);
        others.cloned().chain([(name, value)]).collect::<Vec<_>>()
    };
    for (body, headers, why) in [
        (
            "{}",
            good.to_vec(),
            "json:/id is missing; dispatch.http.url needs it",
        ),
        (
            "",
            good.to_vec(),
            "json:/id can't be read: the body is not JSON",
        ),
        (
            r#"{"id": true}"#,
            good.to_vec(),
            "json:/id is true or false, but must be a string or a 64-bit integer; dispatch.http.url \
            needs it",
        ),
        (
            r#"{"id": ""}"#,
            good.to_vec(),
            "json:/id is empty; dispatch.http.url can't carry it",
        ),
        (
            r#"{"id": "a/../b"}"#,
            good.to_vec(),
            "json:/id has . or .. as a path segment; dispatch.http.url can't carry it",
        ),
        (
            r#"{"id": 1}"#,
            good[1..].to_vec(),
            "header x-q is missing; dispatch.http.url needs it",
        ),
        (
            r#"{"id": 1}"#,
            with("x-q", &long),
            "header x-q has more than 1024 bytes; dispatch.http.url needs it",
        ),
        (
            r#"{"id": 1}"#,
            with("x-r", "a\nb"),
            "header x-r has control characters; dispatch.http.headers can't carry it",
        ),
        (
            r#"{"id": 1}"#,
            with("x-f", "a\0b"),
            "header x-f has control characters; it is one of dispatch.http.forward-headers",
        ),
    ] {
        let error = read(&config, body, &headers).expect_err(why).to_string();
        error.begins(why);
    }
}

#[tokio::test]
async fn fixed_parts_of_a_url_with_placeholders_are_never_shown() {
    let downstream = echo().await;
    let server = downstream.addr.to_string();
    let path = "/v1/{tenant}?key=s3cretkey&n={json:/n}&token=hunter22";
    let keys = ", headers: {x-key: 'Bearer sk-abcdefgh-{tenant}'}";
    let config = config(&server, path, keys);
    let job = read(&config, r#"{"n": 1}"#, &[]).expect("a job");
    let shown = format!("{config}{config:?}");
    let http = config.dispatch.http.expect("a url");
    let handler = HttpHandler::new(&http, 4).expect("a usable url");
    let Outcome::Reject { reason } = handler.handle(&job, permit()).await else {
        panic!("a 400 rejects");
    };
    reason.says("POST /v1/acme?***1***");
    for secret in ["s3cretkey", "hunter22", "sk-abcdefgh"] {
        assert!(!shown.contains(secret), "{shown}");
        assert!(!reason.contains(secret), "{reason}");
    }
}

/// Starts an API that echoes the head of each request in a 400.
async fn echo() -> Downstream {
    Downstream::start(|request: &Request| {
        let body = format!("no: {}", String::from_utf8_lossy(&request.head));
        let answer = answer("400 Bad Request", "", &body);
        (answer.into(), AfterAnswer::Keep)
    })
    .await
}

/// Handles a job of `tenant` with an API that echoes the request in a 400. Returns the reason and
/// the request.
async fn echoed(keys: &str, tenant: &str) -> (String, Option<Request>) {
    let downstream = echo().await;
    let config = config(&downstream.addr.to_string(), "/", keys);
    let http = config.dispatch.http.expect("a url");
    let handler = HttpHandler::new(&http, 4).expect("a usable url");
    let job = Job::new("7 ü", Tenant::parse(tenant).expect("a tenant"), "body");
    let attempt = handler.attempt(&job, permit()).await;
    let reason = match attempt.outcome {
        Outcome::Reject { reason } => reason,
        Outcome::Retry { reason, .. } => format!("again: {reason}"),
        other => panic!("{other:?}"),
    };
    let request = downstream.requests().pop();
    let gives_back = matches!(attempt.fate, Fate::Unwritten);
    assert_eq!(gives_back, request.is_none(), "its permit is given back");
    (reason, request)
}

#[tokio::test]
async fn a_tenants_secret_is_its_own_and_never_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("written");
    };
    write("acme", "k:ey-1\n");
    write("a%2Fb", "key-2");
    let path = folder.path().display();
    let keys = format!(
        ", headers: {{authorization: 'Bearer {{secret:tenant}}'}}, secrets-folder: '{path}'"
    );
    for (tenant, key) in [("acme", "k:ey-1"), ("a/b", "key-2")] {
        let (reason, request) = echoed(&keys, tenant).await;
        let sent = request.expect("a request");
        let expected = format!("Bearer {key}");
        assert_eq!(sent.header("authorization"), Some(expected.as_bytes()));
        reason.says("authorization: Bearer ***");
        assert!(!reason.contains(key), "{reason}");
    }
    let (reason, request) = echoed(&keys, "nobody").await;
    assert!(request.is_none(), "there is no call without a secret");
    let expected =
        format!("there is no secret for this tenant (dispatch.http.secrets-folder: {path}/nobody)");
    assert_eq!(reason, expected);
    write("nobody", "a\nb");
    let (reason, request) = echoed(&keys, "nobody").await;
    assert!(request.is_none());
    reason.begins("again: the secret of this tenant can't be read");
    write("theirs", "key-3");
    let with_default = format!("{keys}, default-secret-file: '{path}/theirs'");
    let (_, request) = echoed(&with_default, "somebody").await;
    let sent = request.expect("a request");
    assert_eq!(sent.header("authorization"), Some(&b"Bearer key-3"[..]));
}

#[tokio::test]
async fn a_call_carries_a_signature_for_each_key() {
    const KEY: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let fixed = format!(", sign: standard-webhooks, sign-secrets: '{KEY} {KEY}'");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("acme"), KEY).expect("written");
    std::fs::write(folder.path().join("b"), "hunter2").expect("written");
    let of_tenants = format!(
        ", sign: standard-webhooks, sign-secrets: '{{secret:tenant}}', secrets-folder: '{}'",
        folder.path().display()
    );
    for (keys, count) in [(&fixed, 2), (&of_tenants, 1)] {
        let (reason, request) = echoed(keys, "acme").await;
        let request = request.expect("a request");
        let header = |name: &str| {
            let value = request.header(name).unwrap_or_else(|| panic!("no {name}"));
            String::from_utf8(value.to_vec()).expect("text")
        };
        assert_eq!(header("webhook-id"), "7 ü");
        let sent: u64 = header("webhook-timestamp").parse().expect("seconds");
        let now = std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .expect("after 1970");
        assert!((sent..sent + 3600).contains(&now.as_secs()), "{sent}");
        let key = BASE64_STANDARD
            .decode(&KEY["whsec_".len()..])
            .expect("base64");
        let signed = format!("7 ü.{sent}.body");
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), signed.as_bytes());
        let signature = format!("v1,{}", BASE64_STANDARD.encode(tag));
        assert_eq!(
            header("webhook-signature"),
            vec![signature; count].join(" ")
        );
        assert!(!reason.contains("MfKQ9r8G"), "{reason}");
    }
    let (reason, request) = echoed(&of_tenants, "b").await;
    assert!(request.is_none());
    reason.begins(
        "the secret of this tenant (dispatch.http.secrets-folder) must contain one or two keys",
    );
}
