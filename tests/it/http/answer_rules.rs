//! Rules on the body of an answer: which bodies are read, and their effects.

use std::time::Duration;

use config::Config;
use handler::http::HttpHandler;
use handler::{Attempt, Outcome};

use super::downstream::{AfterAnswer, Downstream};
use super::{answer, job, permit};

const RULES: &str = "[{when: {status: 200, body: {/code: throttled}}, means: throttle, scope: \
    global, wait: [{body: /wait}], why: The bucket is empty.}, \
    {when: {status: 2xx, headers: {retry-after: {present: true}}}, means: done, wait: [{header: \
    retry-after}]}]";

/// Returns the attempt of a job whose call has this answer.
async fn attempt(text: impl Into<Vec<u8>>, then: AfterAnswer) -> Attempt {
    let downstream = Downstream::answering(text, then).await;
    let yaml = format!(
        "dispatch: {{http: {{url: 'http://{}/', timeout: 60s, cost: [{{body: /cost}}], answers: \
        {RULES}}}}}",
        downstream.addr
    );
    let config = Config::parse("c.yaml", &yaml, std::iter::empty()).expect("valid");
    let http = config.dispatch.http.expect("a url");
    let handler = HttpHandler::new(&http, 4).expect("a usable url");
    let attempt = handler.attempt(&job("1"), permit()).await;
    assert_eq!(downstream.requests().len(), 1);
    attempt
}

/// Returns a refusal that is `size` bytes long.
fn refusal(size: usize) -> String {
    let start = r#"{"code": "THROTTLED", "wait": 0.25, "cost": 7, "rest": ""#;
    format!("{start}{}\"}}", "x".repeat(size - start.len() - 2))
}

#[tokio::test]
async fn a_body_decides_up_to_its_bound() {
    const MAX: usize = 64 * 1024;
    for (size, is_read) in [(100, true), (5_000, true), (MAX, true), (MAX + 1, false)] {
        let text = answer("200 OK", "", &refusal(size));
        let Attempt { outcome, seen, .. } = attempt(text, AfterAnswer::Keep).await;
        match outcome {
            Outcome::Throttled { after, reason } if is_read => {
                assert_eq!(after, Some(Duration::from_millis(250)));
                let start = "the API answered 200 OK (The bucket is empty): {\"code\"";
                assert!(reason.starts_with(start), "{reason}");
                assert_eq!(seen.refused.and_then(|refused| refused.after), after);
                assert_eq!((seen.stops_all, seen.actual_cost), (Some(true), Some(7)));
            }
            Outcome::Done if !is_read => assert_eq!(seen.actual_cost, None),
            other => panic!("{size}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_or_is_no_json_matches_no_rule() {
    let whole = answer("200 OK", "", &refusal(500));
    let cut = whole.as_bytes()[..whole.len() - 1].to_vec();
    let outcome = attempt(cut, AfterAnswer::Close).await.outcome;
    assert_eq!(outcome, Outcome::Done);
    for body in [
        "",
        "throttled",
        "\"throttled\"",
        "[{\"code\": \"throttled\"}]",
        "{\"code\": ",
    ] {
        let text = answer("200 OK", "", body);
        assert_eq!(
            attempt(text, AfterAnswer::Keep).await.outcome,
            Outcome::Done,
            "{body}"
        );
    }
}

#[tokio::test]
async fn a_job_that_is_done_may_stop_its_tenant() {
    let text = answer("200 OK", "retry-after: 20\r\n", "{\"cost\": 3}");
    let Attempt { outcome, seen, .. } = attempt(text, AfterAnswer::Keep).await;
    assert_eq!(outcome, Outcome::Done);
    assert_eq!(seen.used_up, Some(Duration::from_secs(20)));
    assert_eq!((seen.refused, seen.actual_cost), (None, Some(3)));
}
