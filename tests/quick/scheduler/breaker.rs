//! The scheduler while calls fail: its reports to breakers, used attempts, waiting jobs, and the
//! choice of the probe.

use broker::DeliverySource;
use engine::action::{Action, JobKey};
use gate::{BreakerEvent, BreakerScope, GateError, Rule, Standing};
use handler::{Attempt, Fate, Outcome, Trouble};
use kit::SECOND;
use rules::headers::HeaderValue;
use rules::job::{Field, Job};

use crate::scheduler::{
    CAPACITY, Desk, Done, MS, START, STORE_MS, by_header, message, retry, settings, throttled,
    usual, wait,
};

const RULE: Rule = Rule {
    failures: 5,
    first_wait_ms: 1_000,
    longest_wait_ms: 30_000,
    lease_ms: 60_000,
};

pub fn desk() -> Desk {
    let mut settings = settings(8, usual(), by_header());
    settings.live.breaker = Some(RULE);
    Desk::of(settings)
}

fn failed(trouble: Trouble) -> Attempt {
    Attempt {
        trouble: Some(trouble),
        ..retry("502").into()
    }
}

/// Returns a closed standing after this many failures.
pub fn closed(failures: u64) -> Standing {
    Standing {
        now_ms: STORE_MS,
        failures,
        ..Standing::default()
    }
}

/// Returns an open standing for this long.
pub fn open(wait_ms: u64) -> Standing {
    Standing {
        is_open: true,
        closed_until_ms: STORE_MS + wait_ms,
        reason: "the breaker".to_owned(),
        ..closed(5)
    }
}

pub fn granted() -> Standing {
    Standing {
        is_granted: true,
        ..open(30_000)
    }
}

/// Returns the reports as text.
pub fn words(done: &Done) -> Vec<String> {
    let word = |(scope, event): &(BreakerScope, BreakerEvent)| {
        let scope = match scope {
            BreakerScope::Tenant(tenant) => tenant.as_str(),
            BreakerScope::Api => "api",
        };
        let event = match event {
            BreakerEvent::Failed { started_ms, of, .. } => {
                let what = if *started_ms == 0 { "" } else { "probe " };
                // The IDs of these jobs are random.
                let of = if of.len() > 9 { "job" } else { of };
                format!("{what}failed of {of:?}")
            }
            BreakerEvent::Succeeded => "sound".to_owned(),
            BreakerEvent::Probe => "may I?".to_owned(),
            BreakerEvent::Release { .. } => "release".to_owned(),
            BreakerEvent::Read => "look".to_owned(),
        };
        format!("{scope}: {event}")
    };
    done.reported.iter().map(word).collect()
}

impl Desk {
    fn fails(&mut self, key: JobKey, trouble: Trouble) -> Done {
        self.ended_within(MS, key, failed(trouble))
    }

    pub fn answer_reports(&mut self, standings: Vec<Standing>) -> Done {
        let standings = standings.into_iter().map(Ok).collect();
        self.scheduler.reported(self.now, Ok(standings));
        self.step(MS * 5)
    }

    /// Makes a job fail without a connection, which opens the API's breaker.
    fn shut(&mut self) -> Done {
        let key = self.start_one();
        self.fails(key, Trouble::Unreachable);
        self.answer_reports(vec![open(1_000)])
    }
}

pub fn attempt_of(done: &Done) -> i64 {
    let (_, moved) = &done.published[0];
    match moved.message.header("x-sluicegate-attempt") {
        Field::Int(attempt) => attempt,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_kind_of_a_failure_selects_its_breakers() {
    let mut desk = desk();
    let key = desk.start_one();
    let done = desk.fails(key, Trouble::Failing);
    // The script recognizes the tenant's probe by its start time.
    assert_eq!(
        words(&done),
        ["a: probe failed of \"job\"", "api: failed of \"a\""]
    );
    desk.answer_reports(vec![closed(1), closed(1)]);
    let key = desk.start_one();
    let done = desk.fails(key, Trouble::Unreachable);
    assert_eq!(words(&done), ["api: failed of \"\""]);
}

/// Returns an attempt without a call.
pub fn unwritten(outcome: Outcome, trouble: Option<Trouble>) -> Attempt {
    Attempt {
        fate: Fate::Unwritten,
        trouble,
        ..outcome.into()
    }
}

fn no_token() -> Attempt {
    unwritten(retry("no token"), Some(Trouble::Tenant))
}

#[test]
fn a_tenants_own_failure_does_not_reach_the_api_breaker() {
    let mut called = desk();
    let key = called.start_one();
    assert_eq!(
        words(&called.ended_within(MS, key, no_token())),
        ["a: probe failed of \"job\""]
    );
    let mut desk = desk();
    desk.start_one();
    desk.ready = 0;
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let key = desk.answer(MS, vec![vec![CAPACITY]]).prepared[0];
    desk.prepared(key, Err(no_token()));
    // The start of its preparation tells whether it was a probe.
    let done = desk.step(MS);
    assert_eq!(words(&done), ["a: probe failed of \"job\""]);
    let (_, BreakerEvent::Failed { started_ms, .. }) = &done.reported[0] else {
        panic!("{:?}", done.reported)
    };
    assert!(*started_ms >= STORE_MS, "{started_ms}");
    assert_eq!(attempt_of(&desk.answer_reports(vec![closed(1)])), 2);
}

#[test]
fn an_api_probe_blocked_by_its_tenant_is_released() {
    let mut desk = desk();
    desk.shut();
    desk.ready = 0;
    desk.step(SECOND);
    desk.answer_reports(vec![granted()]);
    let key = desk.answer(MS, vec![vec![CAPACITY]]).prepared[0];
    desk.prepared(key, Err(no_token()));
    assert_eq!(
        words(&desk.step(MS)),
        ["a: probe failed of \"job\"", "api: release"]
    );
}

#[test]
fn an_impossible_request_does_not_count_as_a_success() {
    let mut desk = desk();
    let key = desk.start_one();
    desk.fails(key, Trouble::Unreachable);
    desk.answer_reports(vec![closed(1)]);
    let key = desk.start_one();
    let reason = "there is no secret for this tenant".to_owned();
    let attempt = unwritten(Outcome::Reject { reason }, None);
    assert_eq!(words(&desk.ended_within(MS, key, attempt)), [""; 0]);
}

#[test]
fn while_the_breakers_are_closed_a_failure_uses_an_attempt_and_once_one_opens_none() {
    for (tenant, api, attempt) in [
        (closed(4), closed(4), Some(2)),
        (open(1_000), closed(5), None),
        (closed(1), open(1_000), None),
    ] {
        let mut desk = desk();
        let key = desk.start_one();
        let waits = desk.fails(key, Trouble::Failing);
        assert!(waits.published.is_empty(), "it waits for what that means");
        let done = desk.answer_reports(vec![tenant, api.clone()]);
        match attempt {
            Some(attempt) => assert_eq!(attempt_of(&done), attempt),
            None => {
                assert!(done.published.is_empty() && done.acked.is_empty());
                // It asks again, and the gate says how long its tenant is suspended. While no job
                // may call the API, it waits here.
                assert_eq!(done.asked.is_empty(), api.is_open);
            }
        }
    }
}

#[test]
fn unreported_failures_use_no_attempt() {
    let mut desk = desk();
    let key = desk.start_one();
    desk.fails(key, Trouble::Failing);
    let away = GateError::Unreachable("a test".to_owned());
    desk.scheduler.reported(desk.now, Err(away));
    assert_eq!(attempt_of(&desk.step(MS)), 1);
}

#[test]
fn successes_are_reported_only_after_known_failures() {
    let mut desk = desk();
    let key = desk.start_one();
    assert_eq!(words(&desk.ended_within(MS, key, Outcome::Done)), [""; 0]);

    let key = desk.start_one();
    desk.fails(key, Trouble::Failing);
    desk.answer_reports(vec![closed(1), closed(1)]);
    desk.has_failures = true;
    for expected in [&["a: sound", "api: sound"][..], &[]] {
        let key = desk.start_one();
        let done = desk.ended_within(MS, key, Outcome::Done);
        assert_eq!(words(&done), expected);
        desk.answer_reports(vec![closed(0); expected.len()]);
        desk.has_failures = false;
    }
    // A 404 is an answer, too.
    let key = desk.start_one();
    desk.fails(key, Trouble::Unreachable);
    desk.answer_reports(vec![closed(1)]);
    let key = desk.start_one();
    let reason = "404".to_owned();
    assert_eq!(
        words(&desk.ended_within(MS, key, Outcome::Reject { reason })),
        ["api: sound"]
    );
}

/// A breaker may have been opened before breakers were disabled, or by another worker.
#[test]
fn a_worker_without_breakers_opens_none_and_closes_those_of_others() {
    let mut desk = Desk::new(8);
    desk.has_failures = true;
    for (attempt, expected) in [
        (failed(Trouble::Failing), "a: release"),
        (Outcome::Done.into(), "a: sound"),
    ] {
        let key = desk.start_one();
        assert_eq!(words(&desk.ended_within(MS, key, attempt)), [expected]);
        desk.answer_reports(vec![closed(5)]);
    }
}

/// A server that is down may answer some calls with a 503 that asks for a pause, and others with a
/// 502.
#[test]
fn a_server_error_that_is_no_retry_neither_counts_nor_ends_the_failures() {
    let mut desk = desk();
    let key = desk.start_one();
    desk.fails(key, Trouble::Failing);
    desk.answer_reports(vec![closed(1), closed(1)]);
    desk.has_failures = true;
    let calls = [(); 3].map(|()| desk.start_one());
    let throttles = throttled(Some(SECOND));
    let reason = "500".to_owned();
    let failing = Some(Trouble::Failing);
    for (key, outcome, trouble, expected) in [
        (calls[0], throttles.clone(), failing, &["a: release"][..]),
        (
            calls[1],
            Outcome::Reject { reason },
            failing,
            &["a: release"],
        ),
        (calls[2], throttles, None, &["a: sound", "api: sound"]),
    ] {
        let attempt = Attempt {
            trouble,
            ..outcome.into()
        };
        assert_eq!(words(&desk.ended_within(MS, key, attempt)), expected);
        desk.answer_reports(vec![closed(1); expected.len()]);
    }
}

#[test]
fn while_the_api_breaker_is_open_only_one_probe_asks() {
    let mut desk = desk();
    let done = desk.shut();
    assert!(done.asked.is_empty() && done.published.is_empty());
    let done = desk.deliver(DeliverySource::Fresh, &["a", "b", "b"]);
    assert!(done.asked.is_empty(), "closed");

    // Checked every second, since another worker's probe may succeed.
    let done = desk.step(SECOND);
    assert_eq!(words(&done), ["api: may I?"]);
    assert!(desk.answer_reports(vec![open(500)]).asked.is_empty());
    let done = desk.step(SECOND);
    assert_eq!(words(&done), ["api: may I?"]);
    let done = desk.answer_reports(vec![granted()]);
    let jobs: usize = done.asked.iter().map(|ask| ask.asks.len()).sum();
    assert_eq!((jobs, done.asked[0].budget), (1, 1));
    let done = desk.answer(MS, vec![vec![START]]);
    let (probe, ..) = done.dispatched[0];
    assert!(desk.step(SECOND * 3).asked.is_empty(), "one at a time");

    let done = desk.fails(probe, Trouble::Failing);
    assert_eq!(words(&done)[1], "api: probe failed of \"a\"");
    let done = desk.answer_reports(vec![closed(2), open(2_000)]);
    assert!(done.published.is_empty(), "no attempt is used");
    desk.step(SECOND * 2);
    let done = desk.answer_reports(vec![granted()]);
    assert_eq!(done.asked.len(), 1);
    let done = desk.answer(MS, vec![vec![START]]);
    let (probe, ..) = done.dispatched[0];
    // The API answers, so all jobs may ask at once.
    let done = desk.ended_within(MS * 5, probe, Outcome::Done);
    assert!(words(&done).contains(&"api: sound".to_owned()));
    let jobs: usize = done.asked.iter().map(|ask| ask.asks.len()).sum();
    assert_eq!(jobs, 3);
}

/// Requests and starts the next probe. Returns its job.
fn next_probe(desk: &mut Desk) -> (JobKey, Job) {
    desk.step(SECOND * 2);
    desk.answer_reports(vec![granted()]);
    let (key, job, ..) = desk.answer(MS, vec![vec![START]]).dispatched.remove(0);
    (key, job)
}

#[test]
fn jobs_and_tenants_without_failures_are_probes_first() {
    let mut desk = desk();
    desk.shut();
    // The first job of tenant b fails regardless of the API.
    desk.deliver(DeliverySource::Fresh, &["b", "b"]);
    let (probe, first) = next_probe(&mut desk);
    assert_eq!(
        first.tenant.as_str(),
        "a",
        "there was no connection, which is not its fault"
    );
    desk.fails(probe, Trouble::Failing);
    desk.answer_reports(vec![closed(1), open(1_000)]);
    let (probe, second) = next_probe(&mut desk);
    assert_eq!(second.tenant.as_str(), "b");
    desk.fails(probe, Trouble::Failing);
    desk.answer_reports(vec![closed(1), open(1_000)]);
    // Both have failed and take turns. c has not failed.
    desk.deliver(DeliverySource::Fresh, &["c"]);
    let (probe, third) = next_probe(&mut desk);
    assert_eq!(third.tenant.as_str(), "c");
    desk.fails(probe, Trouble::Failing);
    desk.answer_reports(vec![closed(1), open(1_000)]);
    let mut jobs = Vec::new();
    for _ in 0..3 {
        let (probe, job) = next_probe(&mut desk);
        desk.fails(probe, Trouble::Failing);
        desk.answer_reports(vec![closed(1), open(1_000)]);
        jobs.push((job.tenant.to_string(), job.id.clone()));
    }
    let of_b = jobs
        .iter()
        .find(|(tenant, _)| tenant == "b")
        .expect("its turn");
    assert_ne!(of_b.1, second.id, "its other job has not failed");
}

#[test]
fn a_probe_that_may_not_start_is_released() {
    let mut desk = desk();
    desk.shut();
    desk.step(SECOND);
    let done = desk.answer_reports(vec![granted()]);
    assert_eq!(done.asked.len(), 1);
    desk.answer(MS, vec![vec![wait(400, 1)]]);
    assert_eq!(words(&desk.step(MS))[0], "api: release");
}

#[test]
fn a_probe_that_leaves_during_preparation_is_released() {
    for session_ends in [true, false] {
        let mut desk = desk();
        desk.shut();
        desk.ready = 0;
        desk.step(SECOND);
        desk.answer_reports(vec![granted()]);
        let key = desk.answer(MS, vec![vec![CAPACITY]]).prepared[0];
        if session_ends {
            desk.scheduler.session_down();
        } else {
            desk.scheduler.stop();
        }
        desk.prepared(key, Err(retry("no connection").into()));
        assert!(words(&desk.step(MS)).contains(&"api: release".to_owned()));
        if session_ends {
            // It looks again, since otherwise no job would ever start here. No job could be the
            // probe, so it looks once a second.
            desk.scheduler.session_up(2);
            assert_eq!(words(&desk.answer_reports(vec![open(0)])), ["api: look"]);
            assert_eq!(words(&desk.answer_reports(vec![open(0)])), [""; 0]);
            assert_eq!(
                desk.scheduler.next_tick(desk.now),
                Some(desk.now + SECOND - MS * 5)
            );
            assert_eq!(words(&desk.step(SECOND)), ["api: look"]);
        }
    }
}

#[test]
fn a_success_while_a_failure_is_being_reported_resets_the_count() {
    let mut desk = desk();
    let keys = [(); 4].map(|()| desk.start_one());
    let done = desk.fails(keys[0], Trouble::Failing);
    assert_eq!(done.reported.len(), 2);
    desk.scheduler
        .finished(desk.now, keys[1], MS, Outcome::Done);
    desk.scheduler
        .finished(desk.now, keys[2], MS, Outcome::Done);
    desk.fails(keys[3], Trouble::Failing);
    let done = desk.answer_reports(vec![closed(1), closed(1)]);
    let expected = [
        "a: sound",
        "api: sound",
        "a: probe failed of \"job\"",
        "api: failed of \"a\"",
    ];
    assert_eq!(words(&done), expected);
}

#[test]
fn a_call_refused_before_sending_does_not_count_for_the_api() {
    let mut desk = desk();
    let key = desk.start_one();
    desk.fails(key, Trouble::Unreachable);
    desk.answer_reports(vec![closed(1)]);
    desk.ready = 0;
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let key = desk.answer(MS, vec![vec![CAPACITY]]).prepared[0];
    let reason = "no such method".to_owned();
    let now = desk.now;
    let refused = Outcome::Reject { reason };
    desk.scheduler.prepared(now, key, None, Err(refused.into()));
    assert_eq!(words(&desk.step(MS)), [""; 0]);
}

#[test]
fn long_waits_for_the_api_move_to_a_delay_queue_without_an_attempt() {
    let mut desk = desk();
    desk.shut();
    let mut moved = Vec::new();
    for _ in 0..40 {
        let done = desk.step(SECOND);
        if !done.reported.is_empty() {
            desk.answer_reports(vec![open(1_000)]);
        }
        if !done.published.is_empty() {
            assert_eq!(attempt_of(&done), 1);
        }
        moved.extend(done.published);
    }
    assert_eq!(moved.len(), 1);
    assert!(moved[0].1.queue.contains("delay"), "{:?}", moved[0].1.queue);
}

#[test]
fn jobs_that_fail_or_are_refused_for_too_long_are_given_up() {
    let throttled = || Attempt::from(throttled(Some(SECOND)));
    let failing = || failed(Trouble::Failing);
    // It uses no attempt, so nothing else ends a job whose host never answers.
    let unreachable = || failed(Trouble::Unreachable);
    for attempt in [&failing as &dyn Fn() -> Attempt, &throttled, &unreachable] {
        let first = i64::try_from(STORE_MS).expect("small") - 7 * 86_400_000;
        for (age_ms, is_given_up) in [(-1_000, false), (0, true)] {
            let mut desk = desk();
            let headers = [
                ("x-tenant", HeaderValue::Text("a".to_owned())),
                ("x-sluicegate-first-call", HeaderValue::Int(first - age_ms)),
            ];
            desk.deliver_messages(DeliverySource::Due, vec![message(&headers)]);
            let done = desk.answer(MS, vec![vec![START]]);
            let (key, job, _): &(JobKey, Job, _) = &done.dispatched[0];
            assert_eq!(job.attempt, 1);
            let mut done = desk.ended_within(MS, *key, attempt());
            if !done.reported.is_empty() {
                done = desk.answer_reports(vec![open(1_000), closed(1)]);
            }
            let to = done
                .published
                .first()
                .map(|(_, moved)| moved.queue.to_string());
            assert_eq!(to.as_deref() == Some("jobs.dead"), is_given_up, "{to:?}");
        }
    }
}

#[test]
fn a_free_probe_is_granted_as_soon_as_a_job_needs_it() {
    let mut desk = desk();
    desk.shut();
    assert_eq!(words(&desk.step(SECOND)), ["api: may I?"]);
    assert_eq!(desk.answer_reports(vec![granted()]).asked.len(), 1);
    desk.answer(MS, vec![vec![wait(21, 1)]]);
    assert_eq!(words(&desk.step(MS)), ["api: release", "api: look"]);
    assert_eq!(words(&desk.answer_reports(vec![open(0), open(0)])), [""; 0]);
    // A look every second would always ask at the same moment of each window.
    assert_eq!(words(&desk.step(MS * 30)), ["api: may I?"]);
}

#[test]
fn a_changed_rule_is_reported_with_the_next_failure() {
    let mut desk = desk();
    let mut live = settings(8, usual(), by_header()).live;
    live.breaker = Some(Rule {
        failures: 2,
        ..RULE
    });
    desk.scheduler.change(live);
    let key = desk.start_one();
    (desk.scheduler).finished(desk.now, key, MS, failed(Trouble::Failing));
    desk.scheduler.tick(desk.now);
    let failures = |action| match action {
        Action::Report(rule, _) => Some(rule.failures),
        _ => None,
    };
    let mut actions = desk.scheduler.take_actions().into_iter();
    assert_eq!(actions.find_map(failures), Some(2));
}

#[test]
fn a_stopping_worker_gives_up_the_probe_that_it_prepares() {
    let mut desk = desk();
    let key = desk.start_one();
    desk.ended_within(MS, key, failed(Trouble::Unreachable));
    desk.answer_reports(vec![open(1_000)]);
    desk.ready = 0;
    desk.deliver(DeliverySource::Fresh, &["a"]);
    desk.step(SECOND);
    assert_eq!(desk.answer_reports(vec![granted()]).asked.len(), 1);
    let key = desk.answer(MS, vec![vec![CAPACITY]]).prepared[0];
    desk.scheduler.stop();
    assert_eq!(words(&desk.step(MS)), ["api: release"]);
    desk.prepared(key, Ok(()));
    assert_eq!(words(&desk.step(MS)), [] as [&str; 0]);
}
