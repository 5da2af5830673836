//! Facts about the load: how late starts are, and which jobs wait although there is room, and for
//! what.

use std::time::Duration;

use broker::DeliverySource;
use engine::facts::{Fact, JobFact};
use gate::TenantReply;
use handler::Outcome;
use kit::SECOND;
use rules::headers::{self, HeaderValue};
use rules::report::load::{Census, MissingResource};

use crate::scheduler::{Desk, MS, START, STORE_MS, message, reply, wait};

/// Returns the delays of the starts since the last call, and whether their jobs are named.
fn starts(desk: &mut Desk) -> Vec<(Duration, bool)> {
    let facts = desk.facts().into_iter();
    let started = |fact| match fact {
        Fact::Job(JobFact::Started(late, scope)) => Some((late, scope.is_some())),
        _ => None,
    };
    facts.filter_map(started).collect()
}

fn census(desk: &mut Desk) -> Census {
    desk.scheduler.census(desk.now)
}

fn idle(lacks: MissingResource, jobs: usize) -> [usize; 4] {
    let mut idle = [0; 4];
    idle[lacks as usize] = jobs;
    idle
}

#[test]
fn a_new_job_is_due_when_it_comes() {
    let mut desk = Desk::new(4);
    desk.deliver(DeliverySource::Fresh, &["a"]);
    desk.answer(7 * MS, vec![vec![START]]);
    // The desk takes its facts a moment after it delivers.
    assert_eq!(starts(&mut desk), [(12 * MS, false)]);
}

#[test]
fn a_denied_job_is_due_at_the_end_of_its_wait() {
    let mut desk = Desk::new(4);
    desk.deliver(DeliverySource::Fresh, &["a"]);
    desk.answer(MS, vec![vec![wait(300, 4)]]);
    assert!(!desk.step(301 * MS).asked.is_empty());
    desk.answer(4 * MS, vec![vec![START]]);
    let late = starts(&mut desk);
    assert!(late.len() == 1 && late[0].0 <= 6 * MS, "{late:?}");
}

#[test]
fn a_job_that_comes_late_out_of_a_delay_queue_is_late_by_that_much() {
    let mut desk = Desk::with_clock(4);
    starts(&mut desk);
    let came = |ms: u64| {
        headers::trip(rules::delays::Trip {
            until_ms: STORE_MS - ms,
            wait_ms: 8_000,
        })
    };
    let tenant = || ("x-tenant", HeaderValue::Text("a".into()));
    let job = message(&[
        tenant(),
        came(90_000),
        ("x-sluicegate-attempt", HeaderValue::Int(1)),
    ]);
    desk.deliver_messages(DeliverySource::Delay(9), vec![job]);
    desk.answer(MS, vec![vec![START]]);
    let late = starts(&mut desk);
    assert_eq!(late.len(), 1);
    let (late, named) = late[0];
    assert!(named, "what is late has a name");
    assert!(
        (90 * SECOND..90 * SECOND + 10 * MS).contains(&late),
        "{late:?}"
    );
}

#[test]
fn a_job_with_an_expired_permit_waits_since_its_arrival() {
    let mut desk = Desk::new(4);
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let done = desk.answer(60 * SECOND, vec![vec![START]]);
    assert!(done.dispatched.is_empty(), "too late for its permit");
    // Unused permits are returned first.
    assert_eq!(desk.step(5 * MS).settled.len(), 1);
    desk.settled_all(1);
    desk.step(5 * MS);
    desk.answer(MS, vec![vec![START]]);
    let late = starts(&mut desk);
    assert!(late.len() == 1 && late[0].0 > 60 * SECOND, "{late:?}");
}

#[test]
fn a_job_without_a_slot_leaves_quota_idle() {
    let mut desk = Desk::new(1);
    let key = desk.start_one();
    desk.deliver(DeliverySource::Fresh, &["b", "b"]);
    assert_eq!(census(&mut desk).idle, [0; 4], "it has just come");
    desk.now += 2 * SECOND;
    let now = census(&mut desk);
    assert_eq!(now.idle, idle(MissingResource::Slot, 2));
    assert_eq!((now.waiting, now.suspended), (1, 0));
    assert!((2 * SECOND..2 * SECOND + 10 * MS).contains(&now.oldest));
    desk.ended_within(MS, key, Outcome::Done);
    assert_eq!(census(&mut desk).idle.iter().sum::<usize>(), 2);
    assert_eq!(
        census(&mut desk).idle[MissingResource::Redis as usize],
        1,
        "it asks"
    );
    desk.answer(MS, vec![vec![START]]);
    assert_eq!(census(&mut desk).idle, idle(MissingResource::Slot, 1));
}

#[test]
fn waits_for_redis_and_for_limits_are_distinguished() {
    let mut desk = Desk::new(4);
    desk.deliver(DeliverySource::Fresh, &["a", "b"]);
    desk.now += 2 * SECOND;
    assert_eq!(census(&mut desk).idle, idle(MissingResource::Redis, 2));
    desk.answer(MS, vec![vec![wait(300, 1)], vec![wait(300, 2)]]);
    let now = census(&mut desk);
    assert_eq!(now.idle, [0; 4], "the time of both has not come");
    assert_eq!((now.waiting, now.oldest), (2, Duration::ZERO));
}

#[test]
fn without_jobs_no_quota_counts_as_idle() {
    let mut desk = Desk::new(1);
    desk.start_one();
    desk.deliver(DeliverySource::Fresh, &["b"]);
    desk.now += 2 * SECOND;
    assert_eq!(census(&mut desk).idle, idle(MissingResource::Slot, 1));
    desk.scheduler.stop();
    assert_eq!(census(&mut desk).idle, [0; 4]);
}

#[test]
fn only_an_answer_suspends_a_tenant() {
    let mut desk = Desk::new(4);
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let reply = TenantReply {
        blocked_until_ms: STORE_MS + 5_000,
        ..reply(vec![wait(5_000, 1)])
    };
    desk.answered(Ok(vec![Ok(reply)]));
    assert_eq!(census(&mut desk).suspended, 1);
    desk.now += 5 * SECOND;
    assert_eq!(census(&mut desk).suspended, 0);
}

#[test]
fn tenant_counts_are_reported_once_and_waiting_jobs_repeatedly() {
    let mut desk = Desk::new(4);
    desk.deliver(DeliverySource::Fresh, &["a", "b", "b"]);
    desk.answer(MS, vec![vec![START], vec![START, wait(300, 1)]]);
    let now = desk.scheduler.tenants(desk.now);
    assert_eq!((now.over, now.waiting), (desk.now, 1));
    assert!(now.left_out.is_nothing());
    let [a, b] = now.busiest.as_slice() else {
        panic!("{now:?}");
    };
    assert_eq!((a.tenant.as_str(), a.starts, a.running), ("a", 1, 1));
    assert_eq!((a.denials, a.waiting, a.line_ends_ms), (0, 0, 0));
    assert_eq!((b.starts, b.running, b.denials, b.waiting), (1, 1, 1, 1));
    assert_eq!(
        (b.line_ends_ms, b.waits_for.as_str()),
        (STORE_MS + 300, "default")
    );

    desk.now += 200 * MS;
    let reply = TenantReply {
        blocked_until_ms: STORE_MS + 5_000,
        ..reply(vec![wait(5_000, 1)])
    };
    desk.deliver(DeliverySource::Fresh, &["c"]);
    desk.answered(Ok(vec![Ok(reply)]));
    let now = desk.scheduler.tenants(desk.now);
    let [a, b, c] = now.busiest.as_slice() else {
        panic!("{now:?}");
    };
    assert_eq!((a.starts, a.running), (0, 1), "its call goes on");
    assert_eq!((b.starts, b.denials, b.waiting), (0, 0, 1));
    assert_eq!(b.line_ends_ms, STORE_MS + 300);
    assert_eq!((c.denials, c.closed_until_ms), (1, STORE_MS + 5_000));
}

#[test]
fn a_publishers_timestamp_tells_how_long_a_new_job_was_queued() {
    let mut desk = Desk::new(4);
    let stamped = || {
        let mut job = message(&[("x-tenant", HeaderValue::Text("a".into()))]);
        job.properties = (job.properties).with_timestamp(STORE_MS / 1000 - 40);
        job
    };
    let queued = |desk: &mut Desk| -> Vec<Duration> {
        let facts = desk.facts().into_iter();
        let queued = |fact| match fact {
            Fact::Job(JobFact::Queued(age)) => Some(age),
            _ => None,
        };
        facts.filter_map(queued).collect()
    };
    desk.deliver_messages(DeliverySource::Fresh, vec![stamped()]);
    assert_eq!(
        queued(&mut desk),
        [Duration::ZERO; 0],
        "the clock is not known yet"
    );
    desk.answer(MS, vec![vec![START]]);
    desk.deliver(DeliverySource::Fresh, &["a"]);
    desk.deliver_messages(DeliverySource::Recheck, vec![stamped()]);
    assert_eq!(
        queued(&mut desk),
        [Duration::ZERO; 0],
        "without a timestamp, and not new"
    );
    desk.deliver_messages(DeliverySource::Fresh, vec![stamped()]);
    // A timestamp has whole seconds: the job was published at the end of its second at the latest.
    let age = queued(&mut desk);
    assert!(
        age.len() == 1 && (39 * SECOND..40 * SECOND).contains(&age[0]),
        "{age:?}"
    );
}

#[test]
fn slow_calls_take_no_slot_of_a_tenant_with_short_calls_even_while_it_has_no_job() {
    assert_eq!(slow_calls_beside_short_ones(&["slow"; 20]), 7);
    assert_eq!(
        slow_calls_beside_short_ones(&["slow", "slow-2"].repeat(10)),
        7
    );
}

/// Plays a tenant with a short call at a time beside `jobs` of tenants whose calls do not end, with
/// 8 slots. Returns the number of slow calls.
fn slow_calls_beside_short_ones(jobs: &[&str]) -> usize {
    let mut desk = Desk::new(8);
    let (mut slow, mut short) = (0, 0);
    for round in 0..300 {
        let mut done = match round {
            3 => desk.deliver(DeliverySource::Fresh, jobs),
            _ => desk.deliver(DeliverySource::Fresh, &["a"]),
        };
        while !done.asked.is_empty() {
            let admitted = done.asked.iter().map(|it| vec![START; it.asks.len()]);
            let called = desk.answer(MS, admitted.collect()).dispatched;
            for (key, job, _) in called {
                // The slow calls do not end here.
                if job.tenant.as_str().starts_with("slow") {
                    slow += 1;
                } else {
                    short += 1;
                    desk.scheduler.finished(desk.now, key, MS, Outcome::Done);
                }
            }
            desk.actions();
            done = desk.step(10 * MS);
        }
        assert_eq!(short, round + usize::from(round < 3), "{slow} slow calls");
        desk.now += 80 * MS;
    }
    slow
}
