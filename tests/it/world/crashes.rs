//! A job that crashes its worker on each call becomes a dead letter; no other job does. Lost
//! sessions end no job.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kit::api::{Api, Reply};
use kit::process::Process;
use kit::proxy::{Proxy, Transfers};
use kit::servers::{shared_rabbit, shared_redis};
use kit::{Bed, MS, SECOND, counts, ids, job, jobs, until};
use rules::headers;
use rules::job::Field;
use rustix::process::Signal;

use crate::PROGRAM;

/// Denies no job, and permits last long enough on a busy machine.
const LIMITS: &str = "max-requests: 100000, window-size: 60s, guard: 20s";

/// Returns the number of jobs that Redis knows as redelivered.
fn noted(bed: &Bed) -> usize {
    let keys = shared_redis().ctl(&["keys", &format!("{}:*", bed.name)]);
    keys.matches(":%suspect:").count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_crashes_its_workers_becomes_a_dead_letter_alone() {
    let api = Api::start().await;
    let bed = Bed::shared();
    let yaml = bed.yaml(LIMITS, &api.url(), "");
    let called = Arc::new(AtomicBool::new(false));
    let strikes = Arc::clone(&called);
    api.answers(move |call| match call.job.as_str() {
        // The worker is gone before the answer.
        "guilty" => {
            strikes.store(true, Ordering::SeqCst);
            Reply::ok().after(3600 * SECOND)
        }
        _ => Reply::ok().after(200 * MS),
    });
    let neighbours = jobs("acme", 15).chain(jobs("other", 15));
    bed.publish(&yaml, neighbours.chain([job("acme", "guilty")]))
        .await;

    let dead = "sluicegate_dead_letters_total{reason=\"crashed\"}";
    let mut worker = PROGRAM.start(&yaml);
    let mut crashes = 0;
    loop {
        let is_over = || worker.metric(dead) == Some(1.0);
        until("its call, or its end", || {
            called.load(Ordering::SeqCst) || is_over()
        })
        .await;
        if is_over() {
            break;
        }
        worker.signal(Signal::KILL);
        worker.ended();
        crashes += 1;
        called.store(false, Ordering::SeqCst);
        worker = PROGRAM.start(&yaml);
    }
    // The crash of its first call was not noted, since the job was not a suspect yet.
    assert_eq!(crashes, 6);
    until("the others", || counts::by_job(&api.calls()).len() == 31).await;
    worker.logs(&["dead letter", "guilty"]).await;
    worker.stop();
    assert_eq!(counts::by_job(&api.calls())["guilty"], 6);
    let letters = bed.dead(&yaml).await;
    assert_eq!(ids(&letters), ["guilty"]);
    let reason = "5 of its calls ended their workers (retry.max-crashes)";
    assert_eq!(letters[0].header(headers::REASON), Field::Text(reason));
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_lost_sessions_kill_no_job() {
    let api = Api::start().await;
    let (amqp, url) = Proxy::before(shared_rabbit().url(), Transfers::round_trip(MS), 12).await;
    let bed = Bed::on(&url, shared_redis().url());
    let http = ", timeout: 3s}, breaker: {enabled: false";
    // Any of the jobs would become a dead letter after a single crash.
    let retry =
        "retry: {max-crashes: 1, max-attempts: 1000, initial-interval: 100ms, max-interval: 1s}\n";
    let yaml = bed.yaml(LIMITS, &api.url(), http) + retry;
    // No job is done until all sessions are lost.
    api.answers(|_| Reply::ok().after(3600 * SECOND));
    bed.publish(&yaml, jobs("acme", 200)).await;
    // Ten workers lose five sessions each. A single worker would wait longer after each loss.
    let workers: Vec<_> = (0..10).map(|_| PROGRAM.start(&yaml)).collect();
    let mut lost = 0;
    for session in 1..=5 {
        let up = |worker: &Process| worker.count(&["RabbitMQ: consuming"]) >= session;
        until("all sessions", || workers.iter().all(up)).await;
        // The workers have jobs again, and some of these run.
        let started = api.count();
        until("calls", || api.count() > started).await;
        lost += noted(&bed);
        amqp.door.cut();
    }
    let started = api.count();
    api.answers(|_| Reply::ok());
    // All of the jobs fit into memory.
    until("all jobs", || {
        let is_empty = |worker: &Process| worker.metric("sluicegate_in_memory") == Some(0.0);
        counts::by_job(&api.calls()[started..]).len() == 200 && workers.iter().all(is_empty)
    })
    .await;
    workers.into_iter().for_each(Process::stop);
    assert!(bed.dead(&yaml).await.is_empty());
    assert!(lost > 0, "no session was lost while a call was noted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_abandons_a_call_on_shutdown_has_not_crashed() {
    let api = Api::start().await;
    let bed = Bed::shared();
    let stop = "}, shutdown-timeout: 100ms, breaker: {enabled: false";
    let yaml = bed.yaml(LIMITS, &api.url(), stop);
    api.answers(|_| Reply::ok().after(3600 * SECOND));
    bed.publish(&yaml, [job("acme", "long")]).await;
    let mut worker = PROGRAM.start(&yaml);
    until("its call", || api.count() == 1).await;
    assert_eq!(noted(&bed), 0, "nobody pays who was delivered once");
    worker.signal(Signal::KILL);
    worker.ended();
    let worker = PROGRAM.start(&yaml);
    until("its next call", || api.count() == 2).await;
    assert_eq!(noted(&bed), 1);
    worker.stop();
    assert_eq!(noted(&bed), 0);
}
