//! The HTTP handler with APIs that give any answer.

mod abandoned;
mod answer_rules;
mod calls;
mod connections;
pub mod downstream;
mod frames;
mod hostile;
mod hosts;
mod oauth2;
mod oauth2_by_tenant;
mod proxy;
mod streams;
mod tls;

use std::collections::HashSet;
use std::time::Duration;

use config::Http;
use handler::http::HttpHandler;
use handler::{Attempt, Outcome, Permit, Trouble};
use hyper::header::{HeaderName, HeaderValue};
use kit::settings;
use rules::answers::{AnswerPattern, Answers, Consequence, LimitInfo, Quotas};
use rules::job::Job;
use rules::tenant::Tenant;
use tokio::net::TcpSocket;

use downstream::{AfterAnswer, Downstream};

fn job(id: &str) -> Job {
    Job::new(id, Tenant::parse("acme").expect("a tenant"), "{}")
}

/// Returns a permit that outlasts any test.
fn permit() -> Permit {
    Permit::until(tokio::time::Instant::now() + Duration::from_secs(3600))
}

fn http(url: impl Into<String>, timeout: Duration) -> Http {
    Http {
        timeout,
        abandoned: LONG,
        ..settings::http(url)
    }
}

fn handler(url: impl Into<String>, timeout: Duration) -> HttpHandler {
    HttpHandler::new(&http(url, timeout), 4).expect("a usable url")
}

/// A timeout for busy machines. No test waits for it.
const LONG: Duration = Duration::from_secs(60);

async fn outcome(downstream: &Downstream) -> Outcome {
    handler(format!("http://{}/", downstream.addr), LONG)
        .handle(&job("1"), permit())
        .await
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Checks the outcome of one answer, without its reason.
async fn check(status: &str, headers: &str, expected: &str) {
    check_by(&Answers::default(), status, headers, expected).await;
}

/// Does the same with `answers` as the meaning of answers.
async fn check_by(answers: &Answers, status: &str, headers: &str, expected: &str) {
    let downstream = Downstream::answering(answer(status, headers, "why"), AfterAnswer::Keep).await;
    let http = Http {
        answers: answers.clone(),
        ..http(format!("http://{}/", downstream.addr), LONG)
    };
    let handler = HttpHandler::new(&http, 4).expect("a usable url");
    let outcome = handler.handle(&job("1"), permit()).await;
    let (kind, reason) = match outcome {
        Outcome::Done => ("done".to_owned(), None),
        Outcome::Retry { after, reason } => (format!("retry {after:?}"), Some(reason)),
        Outcome::Throttled { after, reason } => (format!("throttled {after:?}"), Some(reason)),
        Outcome::Reject { reason } => ("reject".to_owned(), Some(reason)),
        Outcome::Snooze { .. } | Outcome::Late => panic!("no answer does that"),
    };
    assert_eq!(kind, expected, "{status}");
    if let Some(reason) = reason {
        assert!(reason.contains(status), "{reason:?} should name {status}");
    }
    assert_eq!(downstream.requests().len(), 1, "{status}");
}

#[tokio::test]
async fn an_expired_permit_sends_nothing() {
    let downstream = Downstream::answering(answer("200 OK", "", ""), AfterAnswer::Keep).await;
    let handler = handler(format!("http://{}/", downstream.addr), LONG);
    let expired = Permit::until(tokio::time::Instant::now() - Duration::from_millis(1));
    assert_eq!(handler.handle(&job("1"), expired).await, Outcome::Late);
    assert_eq!(downstream.requests().len(), 0);
}

/// The tests of the rules try the other statuses and headers.
#[tokio::test]
async fn status_headers_and_configuration_decide() {
    for (status, headers, expected) in [
        ("204 No Content", "", "done"),
        ("299", "", "done"),
        ("600", "", "retry None"),
        ("101 Switching Protocols", "upgrade: x\r\n", "retry None"),
        ("400 Bad Request", "retry-after: 5\r\n", "reject"),
        ("403 Forbidden", "retry-after: 7\r\n", "throttled Some(7s)"),
        (
            "503 Service Unavailable",
            "retry-after: 7\r\n",
            "throttled Some(7s)",
        ),
        (
            "429 Too Many Requests",
            "date: Mon, 01 Jun 2026 12:00:00 GMT\r\nx-ratelimit-reset: 1780315209\r\n",
            "throttled Some(9s)",
        ),
    ] {
        check(status, headers, expected).await;
    }
    let mut answers = Answers::default();
    for (which, meaning) in [
        ("409", Consequence::Retry),
        ("5xx+retry-after", Consequence::Throttle),
    ] {
        answers.set(AnswerPattern::parse(which).expect(which), meaning);
    }
    for (status, headers, expected) in [
        ("409 Conflict", "", "retry None"),
        (
            "500 Internal Server Error",
            "retry-after: 7\r\n",
            "throttled Some(7s)",
        ),
    ] {
        check_by(&answers, status, headers, expected).await;
    }
}

#[tokio::test]
async fn an_answer_below_500_or_a_done_job_shows_that_the_api_is_sound() {
    let mut answers = Answers::default();
    for (which, meaning) in [("501", Consequence::Reject), ("505", Consequence::Done)] {
        answers.set(AnswerPattern::parse(which).expect(which), meaning);
    }
    for (status, headers, expected) in [
        (
            "503 Service Unavailable",
            "retry-after: 7\r\n",
            Some(Trouble::Failing),
        ),
        ("502 Bad Gateway", "", Some(Trouble::Failing)),
        ("501 Not Implemented", "", Some(Trouble::Failing)),
        ("505 HTTP Version Not Supported", "", None),
        ("429 Too Many Requests", "retry-after: 7\r\n", None),
        ("408 Request Timeout", "", None),
    ] {
        let downstream =
            Downstream::answering(answer(status, headers, ""), AfterAnswer::Keep).await;
        let http = Http {
            answers: answers.clone(),
            ..http(format!("http://{}/", downstream.addr), LONG)
        };
        let handler = HttpHandler::new(&http, 4).expect("a usable url");
        let Attempt { trouble, .. } = handler.attempt(&job("1"), permit()).await;
        assert_eq!(trouble, expected, "{status}");
    }
}

#[tokio::test]
async fn advertised_limits_of_an_answer_are_passed_on() {
    let headers =
        "ratelimit-policy: \"a\";q=9;w=60\r\nratelimit: \"a\";r=0;t=8\r\nx-actual-cost: 3\r\n";
    for (status, expected) in [("200 OK", true), ("302 Found", false)] {
        let downstream =
            Downstream::answering(answer(status, headers, ""), AfterAnswer::Keep).await;
        let handler = handler(format!("http://{}/", downstream.addr), LONG);
        let Attempt { outcome, seen, .. } = handler.attempt(&job("1"), permit()).await;
        assert_eq!(outcome == Outcome::Done, expected, "{outcome:?}");
        let eight = Some(Duration::from_secs(8));
        let all = LimitInfo {
            refused: None,
            used_up: eight,
            rounding: Duration::from_secs(1),
            stops_all: None,
            quotas: Quotas::read("9/60"),
            actual_cost: Some(3),
        };
        assert_eq!(seen, all);
    }
    let refusing =
        Downstream::answering(answer("403 Forbidden", headers, ""), AfterAnswer::Keep).await;
    let refused = handler(format!("http://{}/", refusing.addr), LONG);
    let Attempt { outcome, seen, .. } = refused.attempt(&job("1"), permit()).await;
    let eight = Some(Duration::from_secs(8));
    assert!(
        matches!(outcome, Outcome::Throttled { after, .. } if after == eight),
        "{outcome:?}"
    );
    assert_eq!(seen.used_up, None);
    let downstream = Downstream::answering("", AfterAnswer::Close).await;
    let handler = handler(format!("http://{}/", downstream.addr), LONG);
    let Attempt { outcome, seen, .. } = handler.attempt(&job("1"), permit()).await;
    assert!(matches!(outcome, Outcome::Retry { .. }), "{outcome:?}");
    assert_eq!(seen, LimitInfo::default());
}

#[tokio::test]
async fn the_downstream_gets_the_job() {
    let downstream = Downstream::answering(answer("200 OK", "", ""), AfterAnswer::Keep).await;
    let handler = handler(format!("http://{}/hook?x=1", downstream.addr), LONG);
    let mut job = job("order-7");
    job.attempt = 3;
    job.content_type = Some("application/json".to_owned());
    job.content_encoding = Some("gzip".to_owned());
    job.body = "{\"n\": 7}".into();
    assert_eq!(handler.handle(&job, permit()).await, Outcome::Done);
    let request = &downstream.requests()[0];
    assert_eq!(request.lines()[0], b"POST /hook?x=1 HTTP/1.1");
    assert_eq!(request.body, b"{\"n\": 7}");
    for (name, value) in [
        ("x-tenant", "acme"),
        ("x-job-id", "order-7"),
        ("x-attempt", "3"),
        ("content-type", "application/json"),
        ("content-encoding", "gzip"),
    ] {
        assert_eq!(request.header(name), Some(value.as_bytes()), "{name}");
    }
    // No header that would make the answer unreadable or require another request.
    for name in [
        "accept-encoding",
        "expect",
        "authorization",
        "transfer-encoding",
    ] {
        assert_eq!(request.header(name), None, "{name}");
    }
}

#[tokio::test]
async fn every_job_fits_into_a_request() {
    let downstream = Downstream::answering(answer("200 OK", "", ""), AfterAnswer::Keep).await;
    let handler = handler(format!("http://{}", downstream.addr), LONG);
    let mut job = job(" a\r\nx-tenant: other\u{7f}ü% ");
    job.tenant = Tenant::parse("käse 7 ").expect("a tenant");
    job.content_type = Some("text/plain\r\nx-evil: 1".to_owned());
    job.body = "".into();
    assert_eq!(handler.handle(&job, permit()).await, Outcome::Done);
    let request = &downstream.requests()[0];
    assert_eq!(
        request.header("x-job-id"),
        Some("%20a%0D%0Ax-tenant: other%7Fü%25%20".as_bytes())
    );
    assert_eq!(request.header("x-tenant"), Some("käse 7%20".as_bytes()));
    assert_eq!(
        request.header("content-type"),
        Some(&b"application/octet-stream"[..])
    );
    assert_eq!(request.header("x-evil"), None);
    assert_eq!(request.body, b"");
}

#[tokio::test]
async fn interim_answers_are_skipped() {
    let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n";
    let last = answer("404 Not Found", "", "");
    let downstream = Downstream::answering(format!("{interim}{last}"), AfterAnswer::Keep).await;
    let reason = "the API answered 404 Not Found".to_owned();
    assert_eq!(outcome(&downstream).await, Outcome::Reject { reason });
}

#[tokio::test]
async fn a_missing_answer_is_a_failure() {
    let downstream = Downstream::answering("", AfterAnswer::Hang).await;
    let handler = handler(
        format!("http://{}/", downstream.addr),
        Duration::from_millis(300),
    );
    let reason = "no answer within 300ms (dispatch.http.timeout)".to_owned();
    assert_eq!(
        handler.handle(&job("1"), permit()).await,
        Outcome::Retry {
            after: None,
            reason
        }
    );
}

#[tokio::test]
async fn an_invalid_answer_is_a_failure() {
    for (bytes, then) in [
        ("", AfterAnswer::Close),
        ("HTTP/1.1 20", AfterAnswer::Close),
        ("HTTP/1.1 200 OK\r\ncontent-le", AfterAnswer::Close),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            AfterAnswer::Keep,
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            AfterAnswer::Keep,
        ),
        ("HTTP/1.1 200 OK\r\nx: \u{0}\r\n\r\n", AfterAnswer::Keep),
        ("HTTP/1.1 +20 OK\r\n\r\n", AfterAnswer::Keep),
        ("HTTP/7.3 200 OK\r\n\r\n", AfterAnswer::Keep),
        ("SSH-2.0-OpenSSH_9.9\r\n", AfterAnswer::Keep),
        ("\u{0}\u{1}\u{2}", AfterAnswer::Close),
    ] {
        let downstream = Downstream::answering(bytes, then).await;
        let outcome = outcome(&downstream).await;
        assert!(
            matches!(outcome, Outcome::Retry { after: None, .. }),
            "{bytes:?}: {outcome:?}"
        );
        assert_eq!(downstream.requests().len(), 1, "{bytes:?}");
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_changes_nothing() {
    for (head, expected) in [
        ("200 OK", Outcome::Done),
        (
            "404 Not Found",
            Outcome::Reject {
                reason: "the API answered 404 Not Found: par".to_owned(),
            },
        ),
    ] {
        let bytes = format!("HTTP/1.1 {head}\r\ncontent-length: 9\r\n\r\npar");
        let downstream = Downstream::answering(bytes, AfterAnswer::Close).await;
        assert_eq!(outcome(&downstream).await, expected);
    }
}

#[tokio::test]
async fn a_reason_is_one_short_line() {
    let body = format!("no\tsuch\r\n\u{1b}[31muser\u{202e} {}", "ä".repeat(300));
    let downstream =
        Downstream::answering(answer("404 Not Found", "", &body), AfterAnswer::Keep).await;
    let Outcome::Reject { reason } = outcome(&downstream).await else {
        panic!("a 404 rejects");
    };
    let shown = "the API answered 404 Not Found: no such  \u{fffd}[31muser\u{fffd} ä";
    assert!(reason.starts_with(shown), "{reason}");
    assert!(reason.len() <= "the API answered 404 Not Found: ".len() + 256);
}

/// A request on a reused connection that the server closes without an answer may have been read, so
/// it is not sent again.
#[tokio::test]
async fn a_request_that_may_have_arrived_is_not_repeated() {
    let downstream = Downstream::start(|request| match request.of_connection {
        0 => (answer("200 OK", "", "").into(), AfterAnswer::Keep),
        _ => (Vec::new(), AfterAnswer::Close),
    })
    .await;
    let handler = handler(format!("http://{}/", downstream.addr), LONG);
    // The first connections may not be back in the pool when the next call starts.
    for calls in 1..=1_000 {
        let outcome = handler.handle(&job("1"), permit()).await;
        assert_eq!(downstream.requests().len(), calls);
        let reused = downstream
            .requests()
            .iter()
            .any(|request| request.of_connection == 1);
        if reused {
            assert!(matches!(outcome, Outcome::Retry { .. }), "{outcome:?}");
            return;
        }
        assert_eq!(outcome, Outcome::Done);
    }
    panic!("no connection was ever reused");
}

/// The server closes each idle connection while the next call starts. Whichever happens first, one
/// call is at most one request, and the server's answer counts.
#[tokio::test(flavor = "multi_thread")]
async fn one_call_is_one_request_despite_connection_failures() {
    const CALLS: usize = 300;
    let downstream = Downstream::answering(answer("200 OK", "", ""), AfterAnswer::Close).await;
    let handler = handler(format!("http://{}/", downstream.addr), LONG);
    let mut done = 0;
    for n in 0..CALLS {
        match handler.handle(&job(&n.to_string()), permit()).await {
            Outcome::Done => done += 1,
            // It was closed before or after the request was written.
            Outcome::Retry { .. } | Outcome::Late => {}
            other => panic!("{other:?}"),
        }
    }
    let requests = downstream.requests();
    let ids: HashSet<_> = requests
        .iter()
        .map(|request| request.header("x-job-id").map(<[u8]>::to_vec))
        .collect();
    assert_eq!(ids.len(), requests.len(), "a job was sent twice");
    assert_eq!(requests.len(), done);
    assert!(done > 0);
}

#[tokio::test]
async fn a_refused_connection_is_a_failure_without_secrets() {
    // Bound, so that no other process gets the port, but not listening.
    let socket = TcpSocket::new_v4().expect("a socket");
    socket
        .bind("127.0.0.1:0".parse().expect("an address"))
        .expect("a free port");
    let addr = socket.local_addr().expect("it is bound");
    let handler = handler(format!("http://joe:s3cr%40t@{addr}/?key=k3y"), LONG);
    let Outcome::Retry {
        after: None,
        reason,
    } = handler.handle(&job("1"), permit()).await
    else {
        panic!("nobody listens");
    };
    assert!(reason.contains("Connection refused"), "{reason}");
    for secret in ["joe", "s3cr", "k3y"] {
        assert!(!reason.contains(secret), "{reason}");
    }
}

#[tokio::test]
async fn the_password_is_sent_and_never_shown() {
    // An echo: the answer's body is the request.
    let downstream = Downstream::start(|request| {
        let echo = String::from_utf8_lossy(&request.head).replace("POST", "s3cr@t s3cr%40t");
        let echo = echo
            .lines()
            .filter(|line| line.contains("s3cr") || line.contains("auth"));
        (
            answer("400 Bad Request", "", &echo.collect::<String>()).into(),
            AfterAnswer::Keep,
        )
    })
    .await;
    let handler = handler(
        format!("http://joe:s3cr%40t@{}/?key=k3y", downstream.addr),
        LONG,
    );
    let Outcome::Reject { reason } = handler.handle(&job("1"), permit()).await else {
        panic!("a 400 rejects");
    };
    let request = &downstream.requests()[0];
    assert_eq!(
        request.header("authorization"),
        Some(&b"Basic am9lOnMzY3JAdA=="[..])
    );
    assert_eq!(
        request.header("host"),
        Some(downstream.addr.to_string().as_bytes())
    );
    let expected = "400 Bad Request: *** *** /?*** HTTP/1.1authorization: Basic ***";
    assert!(reason.ends_with(expected), "{reason}");
}

#[tokio::test]
async fn configured_headers_are_sent_and_never_shown() {
    let downstream = Downstream::start(|request| {
        let echo = String::from_utf8_lossy(&request.head).into_owned();
        let echo = echo
            .lines()
            .filter(|line| line.contains("sk-") || line.contains("version"));
        let body = echo.collect::<Vec<_>>().join(";");
        (
            answer("400 Bad Request", "", &body).into(),
            AfterAnswer::Keep,
        )
    })
    .await;
    let mut http = http(format!("http://{}/", downstream.addr), LONG);
    for (name, value) in [
        ("authorization", "Bearer sk-abcdefgh"),
        ("x-api-key", "sk-abcdefghij"),
        ("version", "7"),
        ("user-agent", "shop"),
    ] {
        let name = HeaderName::from_static(name);
        http.headers
            .same
            .insert(name, HeaderValue::from_static(value));
    }
    let handler = HttpHandler::new(&http, 4).expect("a usable url");
    let Outcome::Reject { reason } = handler.handle(&job("1"), permit()).await else {
        panic!("a 400 rejects");
    };
    let request = &downstream.requests()[0];
    for (name, value) in [
        ("authorization", "Bearer sk-abcdefgh"),
        ("x-api-key", "sk-abcdefghij"),
        ("version", "7"),
        ("user-agent", "shop"),
        ("x-tenant", "acme"),
    ] {
        assert_eq!(request.header(name), Some(value.as_bytes()), "{name}");
    }
    assert!(!reason.contains("sk-"), "{reason}");
    for shown in ["authorization: ***", "x-api-key: ***", "version: 7"] {
        assert!(reason.contains(shown), "{reason}");
    }
}

#[tokio::test]
async fn a_secret_split_by_truncation_is_not_shown() {
    const KEY: &str = "sk-0123456789";
    let started = &KEY[..KEY.len() / 2];
    // The secret crosses the end of the kept text, or the answer breaks off in the middle of it.
    let cut_answer = answer("400 Bad Request", "", &format!("{}{KEY}", " ".repeat(4090)));
    let broken = format!("HTTP/1.1 400 Bad Request\r\ncontent-length: 99\r\n\r\nno key {started}");
    for (answer, then, shown) in [
        (cut_answer, AfterAnswer::Keep, "400 Bad Request"),
        (broken, AfterAnswer::Close, "400 Bad Request: no key"),
    ] {
        let downstream = Downstream::answering(answer, then).await;
        let mut http = http(format!("http://{}/", downstream.addr), LONG);
        let name = HeaderName::from_static("x-api-key");
        http.headers
            .same
            .insert(name, HeaderValue::from_static(KEY));
        let handler = HttpHandler::new(&http, 4).expect("a usable url");
        let Outcome::Reject { reason } = handler.handle(&job("1"), permit()).await else {
            panic!("a 400 rejects");
        };
        assert!(reason.ends_with(shown), "{reason}");
    }
}

#[test]
fn an_unusable_url_is_reported_without_its_text() {
    for (url, part) in [
        ("joe:s3cr@t", "http"),
        ("ftp://joe:s3cr@x/", "http://"),
        ("http://joe:s3cr@x:99999/", "port"),
    ] {
        let Err(why) = HttpHandler::new(&http(url, LONG), 1) else {
            panic!("{url} is not the URL of an API");
        };
        let why = why.to_string();
        assert!(why.starts_with("url: ") && why.contains(part), "{why}");
        assert!(!why.contains("joe") && !why.contains("s3cr"), "{why}");
    }
}

/// Advances the time for timers only.
async fn later(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}
