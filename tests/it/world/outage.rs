//! The API fails: it refuses or closes connections, does not answer, or answers 5xx, for all tenants
//! or for one. No job is lost.

use std::collections::HashMap;

use kit::api::{Api, Call, Reply};
use kit::process::{DONE, Process, sum};
use kit::{Bed, MS, SECOND, counts, job, jobs, until};
use trial::door::Door;

use crate::PROGRAM;

/// Uses up all attempts within seconds, so that an outage of seconds is like one of minutes.
const SHORT: &str = "retry: {initial-interval: 100ms, max-interval: 300ms}\n";
/// Denies no job, and permits last long enough on a busy machine.
const LIMITS: &str = "max-requests: 100000, window-size: 60s, guard: 20s";
const OPEN: &str = "sluicegate_breaker_open";

fn done(workers: &[Process]) -> f64 {
    sum(workers, DONE)
}

/// Returns the number of attempts that were used before the first of these calls of each job.
fn used(calls: &[Call]) -> u32 {
    let mut first = HashMap::new();
    for call in calls {
        first.entry(call.job.as_str()).or_insert(call.attempt);
    }
    first.values().map(|attempt| attempt - 1).sum()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutageKind {
    Refuses,
    /// Like a TCP proxy without its backend.
    Closes,
    Fails,
    Silent,
}

async fn outage(manner: OutageKind) {
    let api = Api::start().await;
    let bed = Bed::shared();
    // Answers may come late on a busy machine.
    let timeout = match manner {
        OutageKind::Silent => "500ms",
        _ => "60s",
    };
    let http = format!(", timeout: {timeout}}}, breaker: {{max-interval: 2s");
    let yaml = bed.yaml(LIMITS, &api.url(), &http) + SHORT;
    if matches!(manner, OutageKind::Refuses | OutageKind::Closes) {
        api.door.refuse().await;
    }
    let closing = (manner == OutageKind::Closes)
        .then(|| Door::open(api.door.address, |_, _| async {}).expect("its port"));
    let closed = || closing.as_ref().map_or(0, Door::opened);
    match manner {
        OutageKind::Refuses | OutageKind::Closes => {}
        OutageKind::Fails => api.answers(|_| Reply::status(502).after(20 * MS)),
        OutageKind::Silent => api.answers(|_| Reply::ok().after(3600 * SECOND)),
    }
    let all = (0..6).flat_map(|tenant| jobs(&format!("t{tenant}"), 50).collect::<Vec<_>>());
    bed.publish(&yaml, all).await;
    let workers = [PROGRAM.start(&yaml), PROGRAM.start(&yaml)];
    until("both to know", || sum(&workers, OPEN) == 2.0).await;
    // All calls in flight but a probe have ended.
    let in_flight = || sum(&workers, "sluicegate_calls_in_flight");
    until("the end of other calls", || in_flight() <= 1.0).await;
    tokio::time::sleep(2 * SECOND).await;
    let (before, closed_before) = (api.count(), closed());
    // Ten times as long as all attempts take.
    tokio::time::sleep(10 * SECOND).await;
    // At most two connections per probe, and tests of workers that can't make calls.
    let connections = closed() - closed_before;
    assert!(connections < 50, "{connections}");
    let calls = api.calls();
    let probes = &calls[before..];
    assert!(
        counts::at_once(probes) <= 1 || manner == OutageKind::Silent,
        "{probes:?}"
    );
    // A failed probe is repeated after 2 s, or up to a quarter earlier, so at most 7 come in 10 s.
    // A slow machine makes them later.
    let arrivals = counts::sorted_arrivals(probes);
    let early = counts::windows(&arrivals, 1, 1_500 * MS).1;
    assert_eq!(early, 0, "{arrivals:?}");
    let dead = "sluicegate_dead_letters_total{reason=\"attempts\"}";
    assert_eq!(sum(&workers, dead), 0.0);

    let back = api.count();
    api.answers(|_| Reply::ok());
    if let Some(door) = &closing {
        door.refuse().await;
    }
    if matches!(manner, OutageKind::Refuses | OutageKind::Closes) {
        api.door.take().expect("its port");
    }
    until("all jobs", || done(&workers) >= 300.0).await;
    // Four failures came before the breaker opened, and the outage used no more attempts. Later
    // failures are due to a busy machine.
    let used = used(&api.calls()[back..]);
    assert!(used <= 4, "{used}");
    until("both to go on", || sum(&workers, OPEN) == 0.0).await;
    workers.into_iter().for_each(Process::stop);
    assert!(bed.dead(&yaml).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_refuses_connections_costs_no_job() {
    outage(OutageKind::Refuses).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_closes_connections_costs_no_job() {
    outage(OutageKind::Closes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_answers_5xx_costs_no_job_and_is_called_once_at_a_time() {
    outage(OutageKind::Fails).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_does_not_answer_costs_no_job() {
    outage(OutageKind::Silent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_for_one_tenant_is_its_own() {
    let api = Api::start().await;
    let bed = Bed::shared();
    let yaml = bed.yaml(LIMITS, &api.url(), "}, breaker: {max-interval: 1s") + SHORT;
    api.answers(|call| match call.tenant.as_str() {
        // A second probe would be called during this time.
        "bad" => Reply::status(500).after(500 * MS),
        _ => Reply::ok(),
    });
    let mut workers = vec![PROGRAM.start(&yaml)];
    bed.publish(&yaml, jobs("bad", 20)).await;
    let opened = "sluicegate_breaker_opened_total{whose=\"tenant\"}";
    until("its breaker", || sum(&workers, opened) >= 1.0).await;
    let in_flight = "sluicegate_calls_in_flight";
    until("the other calls", || sum(&workers, in_flight) == 0.0).await;
    let before = api.count();
    // This one has not seen a call fail.
    workers.push(PROGRAM.start(&yaml));
    workers[1].logs(&["RabbitMQ: consuming"]).await;
    let more = (20..40).map(|number| job("bad", format!("bad-{number}")));
    bed.publish(&yaml, more.chain(jobs("good", 50))).await;
    until("the others", || done(&workers) >= 50.0).await;
    assert_eq!(sum(&workers, OPEN), 0.0, "the API's");
    let probes = || -> Vec<_> {
        let calls = api.calls().split_off(before).into_iter();
        calls.filter(|call| call.tenant == "bad").collect()
    };
    until("probes", || probes().len() >= 6).await;
    assert_eq!(counts::at_once(&probes()), 1, "{:?}", probes());
    api.answers(|_| Reply::ok());
    until("all jobs", || done(&workers) >= 90.0).await;
    workers.into_iter().for_each(Process::stop);
    assert!(bed.dead(&yaml).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_fails_alone_uses_its_attempts() {
    let api = Api::start().await;
    let bed = Bed::shared();
    let yaml = bed.yaml(LIMITS, &api.url(), "") + SHORT;
    api.answers(|_| Reply::status(500));
    let workers = [PROGRAM.start(&yaml)];
    bed.publish(&yaml, [job("acme", "poison")]).await;
    let dead = "sluicegate_dead_letters_total{reason=\"attempts\"}";
    until("its end", || sum(&workers, dead) >= 1.0).await;
    workers.into_iter().for_each(Process::stop);
    assert_eq!(api.count(), 5);
}
