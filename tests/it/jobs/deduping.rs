//! Jobs that are published twice (`x-dedupe-key`): one job per key is called, by any worker. The
//! others are reported and counted as duplicates.

use broker::Message;
use kit::api::{Api, Reply};
use kit::process::sum;
use kit::{Bed, MS, Says, counts, job, until};
use rules::headers::HeaderValue;
use rustix::process::Signal;

use crate::PROGRAM;
use crate::cli::sluicegate;

const LIMITS: &str = "max-requests: 1000, window-size: 1s, guard: 100ms";
const DEDUPE: &str = "job: {dedupe-for: 1h}\n";

fn with_key(job: Message, key: &str) -> Message {
    job.with_headers(&[("x-dedupe-key", HeaderValue::Text(key.to_owned()))], &[])
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_call_one_of_several_jobs_with_the_same_key() {
    const KEYS: usize = 60;
    let api = Api::start().await;
    let bed = Bed::shared();
    let yaml = bed.yaml(LIMITS, &api.url(), "") + DEDUPE;
    let workers = [PROGRAM.start(&yaml), PROGRAM.start(&yaml)];
    let mut all = Vec::new();
    for copy in 0..3 {
        for key in 0..KEYS {
            // The copies have different IDs or the same ID, as if the publisher lost a confirm or
            // forgot that it had published.
            let (key, id) = (format!("k:{key}*"), format!("{copy}/{key}"));
            all.push(with_key(job("own", id), &key));
            all.push(with_key(job("same", format!("same/{key}")), &key));
        }
    }
    // Other tenants' keys are different keys. Jobs without a key are never duplicates.
    all.extend((0..KEYS).map(|n| job("none", format!("none/{n}"))));
    let jobs = all.len();
    bed.publish(&yaml, all).await;
    let dropped = || sum(&workers, "sluicegate_duplicates_total") as usize;
    until("the end of each job", || api.count() + dropped() >= jobs).await;
    assert_eq!((api.count(), dropped()), (3 * KEYS, jobs - 3 * KEYS));
    for worker in workers {
        worker.stop();
    }
    let calls = api.calls();
    assert!(counts::by_job(&calls).values().all(|times| *times == 1));
    let mut keys: Vec<_> = (calls.iter())
        .filter(|call| call.tenant == "own")
        .filter_map(|call| call.job.split_once('/'))
        .map(|(_, key)| key)
        .collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), KEYS, "one of each key");
    assert!(bed.dead(&yaml).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_job_remains_the_first_after_its_worker_was_killed() {
    const KEYS: usize = 20;
    let api = Api::start().await;
    let bed = Bed::shared();
    // Few at once, so that jobs are in all places when the worker ends. Most wait in delay queues.
    let limits = "max-requests: 10, window-size: 1s, guard: 100ms";
    let yaml = bed.yaml(limits, &api.url(), "") + DEDUPE + "delay: {max-in-memory: 200ms}\n";
    api.answers(|_| Reply::ok().after(100 * MS));
    let mut worker = PROGRAM.start(&yaml);
    let first = (0..KEYS).map(|n| with_key(job("a", format!("first/{n}")), &n.to_string()));
    bed.publish(&yaml, first).await;
    until("some calls", || api.count() >= 5).await;
    worker.signal(Signal::KILL);
    worker.ended();
    let second = (0..KEYS).map(|n| with_key(job("a", format!("second/{n}")), &n.to_string()));
    bed.publish(&yaml, second).await;
    let worker = PROGRAM.start(&yaml);
    let ended = || {
        let calls = api.calls();
        let done = calls.iter().filter(|call| call.ended.is_some());
        let first = done.filter(|call| call.job.starts_with("first"));
        let first: std::collections::HashSet<_> = first.map(|call| call.job.as_str()).collect();
        first.len() == KEYS
    };
    until("the end of each first", ended).await;
    let dropped = || worker.metric("sluicegate_duplicates_total");
    until("each second", || dropped() == Some(KEYS as f64)).await;
    worker.stop();
    let calls = api.calls();
    assert!(calls.iter().all(|call| call.job.starts_with("first")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_has_a_result_and_a_replayed_dead_letter_is_no_duplicate() {
    let api = Api::start().await;
    api.answers(|call| match call.job.as_str() {
        "bad" => Reply::status(422),
        _ => Reply::ok(),
    });
    let bed = Bed::shared();
    let http = bed
        .yaml(LIMITS, &api.url(), "")
        .replace("dispatch: {", "dispatch: {results: {to: reply-to}, ");
    let yaml = http + DEDUPE;
    let worker = PROGRAM.start(&yaml);
    let publish = |id: &str, key: &str| {
        let header = format!("x-dedupe-key={key}");
        let args = ["publish", "--tenant", "a", "--id", id, "--header", &header];
        sluicegate(&yaml, &[&args[..], &["--wait", "60s", "--json"]].concat())
    };
    assert_eq!(publish("1", "k").exited(0).json()["result"], "done");
    let second = publish("2", "k").exited(1);
    assert_eq!(second.json()["result"], "duplicate");
    second.err.says("the job is duplicate: ");
    // A dead letter was still the first with its key.
    assert_eq!(publish("bad", "b").exited(1).json()["result"], "dead");
    assert_eq!(publish("3", "b").exited(1).json()["result"], "duplicate");
    let calls = api.count();
    sluicegate(&yaml, &["dead", "replay", "--id", "bad"]).exited(0);
    until("the call of the replayed letter", || {
        api.count() == calls + 1
    })
    .await;
    worker.stop();
}
