//! What a call carries of its job: method, path, query and headers.

use sluicegate::broker::Message;
use sluicegate::config::Config;
use sluicegate::handler::Outcome;
use sluicegate::handler::http::HttpHandler;
use sluicegate::rules::headers::HeaderValue;
use sluicegate::rules::job::{self, Job};

use super::downstream::{Downstream, Request, Then};
use super::{answer, permit};

/// A configuration whose `dispatch.http` has `keys`, and calls `path` of an API at `server`.
fn config(server: &str, path: &str, keys: &str) -> Config {
    let yaml = format!("dispatch: {{http: {{url: 'http://{server}{path}', timeout: 60s{keys}}}}}");
    Config::parse("c.yaml", &yaml, std::iter::empty()).expect("valid")
}

/// The job of a message of `acme`, with this body and these headers more.
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

/// What the API sees of it.
async fn request(path: &str, keys: &str, body: &str, headers: &[(&str, HeaderValue)]) -> Request {
    let downstream = Downstream::answering(answer("200 OK", "", ""), Then::Keep).await;
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
        request.what(),
        "POST /v1/acme/orders/a%20b%2F%C3%BC%3F%23?to=Zo%C3%AB%20%26%20co%2B%25&n=1&id=job%2F7"
    );
    assert_eq!(request.body, body.as_bytes());
}

#[tokio::test]
async fn a_call_has_the_method_that_is_configured_and_a_body_where_one_means_something() {
    for (method, has_body) in [
        ("POST", true),
        ("PUT", true),
        ("PATCH", true),
        ("DELETE", false),
        ("GET", false),
    ] {
        let keys = format!(", method: {method}");
        let request = request("/{json:/n}", &keys, r#"{"n": 12}"#, &[]).await;
        assert_eq!(request.what(), format!("{method} /12"));
        assert_eq!(!request.body.is_empty(), has_body, "{method}");
        let kind = request.header("content-type");
        assert_eq!(kind.is_some(), has_body, "{method}");
        assert_eq!(request.header("x-job-id"), Some(&b"job/7"[..]));
    }
}

#[tokio::test]
async fn headers_have_values_of_their_jobs_and_jobs_headers_go_along() {
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
fn a_job_without_a_value_is_none_and_says_which() {
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
            "json:/id is true or false, and neither a text nor a whole number; dispatch.http.url needs it",
        ),
        (
            r#"{"id": ""}"#,
            good.to_vec(),
            "json:/id is empty; dispatch.http.url can't carry it",
        ),
        (
            r#"{"id": "a/../b"}"#,
            good.to_vec(),
            "json:/id has . or .. as a part of a path; dispatch.http.url can't carry it",
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
        assert!(error.starts_with(why), "{error}");
    }
}

#[tokio::test]
async fn what_is_the_same_in_a_url_with_placeholders_is_shown_to_nobody() {
    let downstream = Downstream::start(|request: &Request| {
        let body = format!("no: {}", String::from_utf8_lossy(&request.head));
        (answer("400 Bad Request", "", &body).into(), Then::Keep)
    })
    .await;
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
    assert!(reason.contains("POST /v1/acme?***1***"), "{reason}");
    for secret in ["s3cretkey", "hunter22", "sk-abcdefgh"] {
        assert!(!shown.contains(secret), "{shown}");
        assert!(!reason.contains(secret), "{reason}");
    }
}
