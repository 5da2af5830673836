//! Line 1: what takes long is done before a permit is asked for, so no permit is used up by it.

use std::sync::Arc;

use sluicegate::app;
use sluicegate::config::Config;
use sluicegate::engine::Stop;
use sluicegate::handler::{Attempt, Outcome, Permit, PreparingHandler};
use sluicegate::rules::job::Job;
use tokio::time::Instant;

use super::kit::{Bed, MS, SECOND, counts, jobs, until};
use crate::servers::{shared_rabbit, shared_redis};

/// Permits that were too old to be used, as the worker counts them.
const LATE: &str = "sluicegate_late_admissions_total";

/// Fetches a token for each job, which takes longer than a permit is good for.
struct Tokens(Arc<std::sync::Mutex<Vec<(Instant, String)>>>);

impl PreparingHandler for Tokens {
    type Ready = String;

    fn at_once(&self) -> Option<String> {
        None
    }

    async fn prepare(&self, job: &Job) -> Result<String, Outcome> {
        tokio::time::sleep(600 * MS).await;
        Ok(format!("token of {}", job.id))
    }

    fn is_ready(&self, _: &mut String) -> bool {
        true
    }

    async fn send(&self, job: &Job, token: String, permit: Permit) -> Attempt {
        if !permit.is_good() {
            return Outcome::Late.into();
        }
        assert_eq!(token, format!("token of {}", job.id), "each has its own");
        self.0
            .lock()
            .expect("nobody panics")
            .push((Instant::now(), token));
        Outcome::Done.into()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_prepares_something_slow_uses_its_permits() {
    let bed = Bed::on(shared_rabbit().url(), shared_redis().url());
    let yaml = bed.yaml(
        "max-requests: 5, window-size: 3s, guard: 1s",
        "http://nobody/",
        "",
    );
    let config = Config::parse("world.yaml", &yaml, std::iter::empty()).expect("valid");
    let called = Arc::default();
    let worker = app::Worker::new(config, Tokens(Arc::clone(&called))).expect("usable");
    let metrics = worker.metrics();
    let stop = Stop::default();
    let run = tokio::spawn(worker.run(stop.clone()));
    bed.publish(&yaml, jobs("acme", 20)).await;
    until("all jobs", || {
        called.lock().expect("nobody panics").len() == 20
    })
    .await;
    stop.soft.cancel();
    run.await.expect("no panic").expect("it ends in order");
    let times: Vec<_> = called
        .lock()
        .expect("nobody panics")
        .iter()
        .map(|(at, _)| *at)
        .collect();
    assert_eq!(counts::windows(&times, 5, 3 * SECOND).1, 0);
    let late = metrics.encode();
    let late = late
        .lines()
        .find_map(|line| line.strip_prefix(LATE)?.trim().parse::<u32>().ok());
    assert!(late.is_some_and(|late| late * 4 < 20), "{late:?}");
}
