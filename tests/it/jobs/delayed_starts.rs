//! Delayed starts (`x-delay`, `x-not-before`): by the API's own clock no job is called early, and
//! each is called, whichever worker ends on the way.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use broker::Message;
use kit::api::{Api, Reply};
use kit::{Bed, job, until};
use rules::headers::HeaderValue;
use rules::job::Field;
use rustix::process::Signal;
use tokio::time::Instant;

use crate::PROGRAM;
use crate::cli::servers;
use crate::cli::sluicegate;

const JOBS: i64 = 25;

/// Jobs wait in memory and in delay queues, and make several trips.
const DELAYS: &str = "delay: {max-in-memory: 200ms, max-delay: 1s}\n";

fn since_1970() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("after 1970")
}

fn now_ms() -> i64 {
    i64::try_from(since_1970().as_millis()).expect("in range")
}

fn with(job: Message, headers: &[(&str, i64)]) -> Message {
    let all: Vec<_> = (headers.iter())
        .map(|(name, value)| (*name, HeaderValue::Int(*value)))
        .collect();
    job.with_headers(&all, &[])
}

#[tokio::test(flavor = "multi_thread")]
async fn no_job_starts_early_when_a_worker_is_killed() {
    let api = Api::start().await;
    let bed = Bed::shared();
    let yaml = bed.yaml("max-requests: 1000, window-size: 1s", &api.url(), "") + DELAYS;
    // Some fail once. Their next attempts do not wait for their delay again.
    api.answers(|call| match call.attempt {
        1 if call.job.ends_with('0') => Reply::status(500),
        _ => Reply::ok(),
    });
    let yaml = yaml + "retry: {initial-interval: 100ms}\n";
    let mut killed = PROGRAM.start(&yaml);
    let worker = PROGRAM.start(&yaml);
    bed.publish(&yaml, [job("first", "first")]).await;
    until("the first call", || api.count() == 1).await;
    // The survivor takes some of the jobs before they are due only if it is ready by now.
    let is_ready = || worker.get("/readyz").as_deref() == Some("ready\n");
    until("the survivor", is_ready).await;

    let (begin, begin_ms) = (Instant::now(), now_ms());
    let mut due = HashMap::new();
    let mut all = Vec::new();
    for n in 0..JOBS {
        let ms = 120 * n;
        // A delay from when a worker first sees the job, a delay from when it was published, and a
        // time.
        for (kind, headers) in [
            ("seen", vec![("x-delay", ms)]),
            (
                "dated",
                vec![("x-delay", ms), ("timestamp_in_ms", begin_ms)],
            ),
            ("until", vec![("x-not-before", begin_ms + ms)]),
            (
                "both",
                vec![("x-not-before", begin_ms + ms), ("x-delay", 1)],
            ),
            ("over", vec![("x-delay", -100_000)]),
        ] {
            let id = format!("{kind}-{n}");
            due.insert(id.clone(), if kind == "over" { 0 } else { ms });
            all.push(with(job(kind, id), &headers));
        }
    }
    let mut bad = vec![
        with(job("bad", "long"), &[("x-delay", 31 * 86_400_000)]),
        with(
            job("bad", "far"),
            &[("x-not-before", begin_ms + 31 * 86_400_000)],
        ),
    ];
    for (name, text) in [("x-delay", "soon"), ("x-not-before", "tomorrow")] {
        let header = [(name, HeaderValue::Text(text.to_owned()))];
        bad.push(job("bad", text).with_headers(&header, &[]));
    }
    let calls = all.len();
    bed.publish(&yaml, all.into_iter().chain(bad)).await;
    until("some calls", || api.count() > calls / 4).await;
    killed.signal(Signal::KILL);
    killed.ended();
    let done = || {
        let ok = api
            .calls()
            .into_iter()
            .filter(|call| call.ended.is_some() && (call.attempt > 1 || !call.job.ends_with('0')));
        ok.map(|call| call.job).collect::<HashSet<_>>().len()
    };
    until("all calls", || done() == calls + 1).await;

    for call in api.calls() {
        let Some(ms) = due.get(&call.job) else {
            continue;
        };
        let at = call.at - begin;
        // Both clocks were read within this millisecond.
        let earliest =
            Duration::from_millis(ms.cast_unsigned()).saturating_sub(Duration::from_millis(1));
        assert!(at >= earliest, "{} after {at:?}, not {ms} ms", call.job);
    }
    let counted = worker.metric("sluicegate_delayed_starts_total");
    assert!(counted > Some(0.0), "{counted:?}");
    worker.stop();
    let letters = bed.dead(&yaml).await;
    let reason = |letter: &Message| match letter.header("x-sluicegate-reason") {
        Field::Text(reason) => reason.to_owned(),
        _ => panic!("a reason: {letter:?}"),
    };
    // The killed worker may have held a job that then became a dead letter twice.
    let of_jobs: HashMap<_, _> = (letters.iter())
        .map(|letter| (letter.id(), reason(letter)))
        .collect();
    let mut reasons: Vec<String> = of_jobs.into_values().collect();
    reasons.sort_unstable();
    assert_eq!(reasons.len(), 4, "{reasons:?}");
    for (reason, header) in
        reasons
            .iter()
            .zip(["x-delay ", "x-delay ", "x-not-before ", "x-not-before "])
    {
        assert!(reason.starts_with(&format!("header {header}")), "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn publish_sets_the_earliest_start_of_a_job() {
    let yaml = servers::yaml();
    let publish = ["publish", "--tenant", "acme", "--id"];
    let at = "2026-01-31T12:00:00Z";
    sluicegate(&yaml, &[&publish[..], &["a", "--delay", "10s"]].concat()).exited(0);
    sluicegate(&yaml, &[&publish[..], &["b", "--not-before", at]].concat()).exited(0);
    let client = kit::client(&yaml).await;
    let jobs = kit::drain(&client, &client.names().fresh).await;
    assert_eq!(jobs[0].header("x-delay"), Field::Int(10_000));
    assert_eq!(jobs[1].header("x-not-before"), Field::Text(at));
    for (more, why) in [
        (&["--delay", "soon"][..], "a duration must be"),
        (&["--delay", "31d"], "job.max-delayed-start"),
        (
            &["--not-before", "tomorrow"],
            "header x-not-before is \"tomorrow\"",
        ),
        (&["--delay", "1s", "--header", "x-delay=2"], "both given"),
    ] {
        let done = sluicegate(&yaml, &[&publish[..], &["c"], more].concat()).exited(2);
        assert!(done.err.contains(why), "{more:?}: {}", done.err);
    }
    let off = format!("{yaml}job: {{max-delayed-start: 0}}\n");
    let done = sluicegate(&off, &[&publish[..], &["c", "--delay", "1s"]].concat()).exited(2);
    assert!(done.err.contains("max-delayed-start is 0"), "{}", done.err);
}
