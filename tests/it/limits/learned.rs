//! An adaptive limit on real servers: an API grants less than the configured limit, and later as
//! much.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::api::{Api, Call, Reply};
use kit::{Bed, jobs, until};
use serde_json::Value;
use tokio::time::Instant;

use crate::PROGRAM;
use crate::cli::{json_of, sluicegate};

const WINDOW: Duration = Duration::from_millis(500);

/// The API's limit in any window, which its users don't know. It counts calls from when the kernel
/// received them, so that a pause of this process brings none together.
#[derive(Default)]
struct HiddenLimit {
    takes: AtomicUsize,
    refused: AtomicUsize,
    taken: Mutex<VecDeque<Instant>>,
}

impl HiddenLimit {
    fn answer(&self, call: &Call) -> Reply {
        let mut taken = self.taken.lock().expect("no panic");
        while taken.front().is_some_and(|at| *at + WINDOW <= call.arrived) {
            taken.pop_front();
        }
        if taken.len() < self.takes.load(Ordering::SeqCst) {
            taken.push_back(call.arrived);
            return Reply::ok();
        }
        self.refused.fetch_add(1, Ordering::SeqCst);
        Reply::status(429).header("retry-after", "1")
    }

    fn refused(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }
}

fn limit_of(yaml: &str) -> Value {
    let mut json = json_of(yaml, &["inspect", "acme"]);
    json["limits"][0].take()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_sinks_to_what_the_api_gives_and_rises_when_it_gives_more() {
    let api = Api::start().await;
    let hidden = Arc::new(HiddenLimit::default());
    hidden.takes.store(15, Ordering::SeqCst);
    let answering = Arc::clone(&hidden);
    api.answers(move |call| answering.answer(call));
    let bed = Bed::shared();
    let limits =
        "max-requests: 20, window-size: 500ms, guard: 200ms, adaptive: {within: 50%..100%}";
    let yaml = bed.yaml(limits, &api.url(), "");
    let worker = PROGRAM.start_consuming(&yaml).await;
    bed.publish(&yaml, jobs("acme", 4_000)).await;
    let lowered = "limit lowered: the API admits less than the limit";
    worker
        .logs(&[lowered, "tenant=acme limit=\"default\" from=20"])
        .await;
    let limit = limit_of(&yaml);
    let max = limit["max_requests"].as_u64().expect("a number");
    assert!((10..20).contains(&max), "{limit}");
    assert_eq!(limit["configured_max_requests"], 20);
    assert!(limit["learned"]["refused"].as_u64() > Some(0), "{limit}");
    let words = sluicegate(&yaml, &["inspect", "acme"]).exited(0).out;
    assert!(words.contains(" of 20 in force"), "{words}");
    assert!(words.contains("the API answered 429 at "), "{words}");
    // Without learning, a quarter of all calls would be refused.
    until("many calls were made", || api.count() >= 400).await;
    let (calls, refused) = (api.count(), hidden.refused());
    println!("{refused} of {calls} are refused");
    assert!(refused * 10 < calls, "{refused} of {calls} are refused");
    // The operator resets the tenant, and the API refuses again.
    let before = worker.count(&[lowered, "from=20"]);
    sluicegate(&yaml, &["tenant", "reset", "acme"]).exited(0);
    let again = || worker.count(&[lowered, "from=20"]) > before;
    until("it has learned again", again).await;
    hidden.takes.store(1_000, Ordering::SeqCst);
    let whole = || limit_of(&yaml)["max_requests"] == 20;
    let began = Instant::now();
    while !whole() {
        assert!(
            began.elapsed() < Duration::from_secs(300),
            "{}",
            limit_of(&yaml)
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(limit_of(&yaml)["learned"], Value::Null);
    worker
        .logs(&["limit restored", "limit=\"default\" lowered_s="])
        .await;
    worker.stop();
}
