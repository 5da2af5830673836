//! Levels of a tenant's jobs (`x-priority`): turns by weight, whichever worker asks, without
//! starvation.

use broker::Message;
use kit::api::{Api, Call};
use kit::{Bed, Says, job, until};
use rules::headers::HeaderValue;

use crate::PROGRAM;
use crate::cli::{json_of, sluicegate};

/// Number of jobs per level, the least important first.
const JOBS: [(&str, usize); 3] = [("low", 100), ("normal", 120), ("high", 180)];
/// Number of calls in a window.
const WINDOW: usize = 14;
/// A window's worth of jobs starts at a time. However slow the machine is, a strict permit lasts
/// until its call, and the next window begins after that.
const LIMITS: &str = "max-requests: 14, window-size: 1s, guard: strict";
const LEVELS: &str = "job: {priorities: {high: 4, normal: 2, low: 1}}\n";

fn of_level(level: &str, n: usize) -> Message {
    let job = job("acme", format!("{level}-{n}"));
    match level {
        // Jobs without a level.
        "normal" => job,
        _ => job.with_headers(&[("x-priority", HeaderValue::Text(level.to_owned()))], &[]),
    }
}

fn of(calls: &[Call], level: &str) -> usize {
    let is_of = |call: &&Call| call.job.starts_with(level);
    calls.iter().filter(is_of).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn levels_take_turns_by_weight_over_a_long_backlog() {
    let api = Api::start().await;
    let bed = Bed::shared();
    let yaml = bed.yaml(LIMITS, &api.url(), "") + LEVELS;
    // The least important arrive first, so that the order of arrival can't be the observed one.
    let all: Vec<_> = JOBS
        .into_iter()
        .flat_map(|(level, jobs)| (0..jobs).map(move |n| of_level(level, n)))
        .collect();
    let number = all.len();
    bed.publish(&yaml, all).await;
    let workers = [PROGRAM.start(&yaml), PROGRAM.start(&yaml)];
    until("all calls", || api.count() >= number).await;
    for worker in workers {
        worker.stop();
    }
    let calls = api.calls();
    assert_eq!(calls.len(), number, "each once");
    // While jobs of all levels wait: the twenty windows after the first one, in which all are called
    // that came first. Strict windows have 14 calls each, in any order.
    let turns = &calls[WINDOW..21 * WINDOW];
    let [high, normal, low] = ["high", "normal", "low"].map(|level| of(turns, level));
    println!("turns: {high} high, {normal} normal, {low} low");
    // The weights are 4, 2 and 1. If one of them was off by one, `high` would have 140 turns or
    // fewer, or 175 or more.
    let about = |turns: usize, expected: usize| turns.abs_diff(expected) <= 13;
    assert!(
        about(high, 160) && about(normal, 80) && about(low, 40),
        "{high} high, {normal} normal, {low} low"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn inspect_counts_waiting_jobs_of_each_level() {
    let api = Api::start().await;
    let bed = Bed::shared();
    // One job is called, and the others wait longer than the test takes.
    let yaml = bed.yaml(
        "max-requests: 1, window-size: 1h, guard: 20s",
        &api.url(),
        "",
    ) + LEVELS;
    let worker = PROGRAM.start(&yaml);
    bed.publish(&yaml, [of_level("normal", 0)]).await;
    until("the first call", || api.count() == 1).await;
    let waiting = [("high", 3), ("normal", 2), ("low", 5)];
    let all = waiting.iter();
    let all: Vec<_> = all
        .flat_map(|(level, jobs)| (1..=*jobs).map(|n| of_level(level, n)))
        .collect();
    bed.publish(&yaml, all).await;
    let inspect = || json_of(&yaml, &["inspect", "acme"]);
    until("all waitlists", || inspect()["waiting"] == 10).await;
    let expected = serde_json::json!({"high": 3, "normal": 2, "low": 5});
    assert_eq!(inspect()["waiting_by_level"], expected);
    let text = sluicegate(&yaml, &["inspect", "acme"]).exited(0).out;
    text.says("(3 high, 2 normal, 5 low)");
    worker.stop();
    assert_eq!(api.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_with_an_unknown_level_is_a_dead_letter() {
    let api = Api::start().await;
    let bed = Bed::shared();
    let yaml = bed.yaml(LIMITS, &api.url(), "") + LEVELS;
    bed.publish(&yaml, [of_level("hihg", 1), of_level("high", 1)])
        .await;
    let worker = PROGRAM.start(&yaml);
    let dead = || worker.metric("sluicegate_dead_letters_total{reason=\"bad-message\"}");
    until("both ends", || api.count() == 1 && dead() == Some(1.0)).await;
    worker.stop();
    let letters = bed.dead(&yaml).await;
    let reason = format!("{:?}", letters[0].header("x-sluicegate-reason"));
    reason.says("it must be one of high, normal, low (job.priorities)");
}
