//! Jobs in delay queues: which ones wait in the worker's memory, for how long, and which make room.

use std::time::Duration;

use broker::{DeliverySource, Message, Outgoing};
use engine::facts::{Fact, JobFact};
use handler::{Attempt, Fate, Outcome, Trouble};
use rules::answers::LimitInfo;
use rules::delays::{DelayLevels, QueueNames, Trip};
use rules::headers::{self, HeaderValue};
use rules::job::Field;
use rules::limit::Limit;
use rules::timing::promise::Promise;

use crate::scheduler::breaker::{self, open};
use crate::scheduler::{CAPACITY, Desk, Done, MS, START, by_header, message, retry, trip, wait};

const STORE_MS: u64 = 1_700_000_000_000;

fn tenant() -> (&'static str, HeaderValue) {
    ("x-tenant", HeaderValue::Text("a".to_owned()))
}

/// Returns a job in the delay queue for `wait_ms`, until `until_ms`.
fn in_delay_queue(wait_ms: u64, until_ms: u64) -> Outgoing {
    let levels = DelayLevels::new(Duration::from_secs(300));
    let names = QueueNames::new("jobs", &levels);
    let trip = headers::trip(Trip { until_ms, wait_ms });
    Outgoing {
        queue: names.delay(levels.choose(wait_ms)).clone(),
        message: message(&[tenant(), trip]),
    }
}

/// Returns a desk that knows the store's clock, which shows [`STORE_MS`] at the returned time.
fn desk() -> (Desk, Duration) {
    let mut desk = Desk::new(4);
    desk.start_one();
    let at = desk.now;
    (desk, at)
}

/// The job was to wait for 10 s, and Redis's clock went back by an hour in the meantime.
#[test]
fn a_clock_step_back_delays_no_retry_beyond_its_wait() {
    let (mut desk, _) = desk();
    let at_ms = STORE_MS + 3_600_000;
    let mut retry = in_delay_queue(10_000, at_ms);
    let waits = [
        headers::not_before(at_ms),
        (headers::RETRY_AFTER, HeaderValue::Int(10)),
    ];
    retry.message = retry.message.with_headers(&waits, &[]);
    assert!(desk.arrives(retry).asked.is_empty());
    let done = desk.step(MS * 10_000);
    let moved = desk.leaves(done);
    assert_eq!(trip(&moved.message).wait_ms, 10_000);
    let not_before = moved.message.header(headers::NOT_BEFORE);
    assert!(
        matches!(not_before, Field::Int(ms) if ms <= STORE_MS as i64 + 20_100),
        "{not_before:?}"
    );
    assert!(desk.arrives(moved).asked.is_empty());
    assert_eq!(desk.step(MS * 10_100).asked.len(), 1);
}

#[test]
fn a_job_asks_slightly_early_and_keeps_its_position() {
    let (mut desk, _) = desk();
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let done = desk.answer(MS, vec![vec![wait(10_000, 4)]]);
    let sent = desk.now;
    let outgoing = desk.leaves(done);
    assert_eq!(&*outgoing.queue, "jobs.delay.from-8000");
    let whole = Trip {
        until_ms: STORE_MS + 10_000,
        wait_ms: 10_000,
    };
    assert_eq!(trip(&outgoing.message), whole);
    assert!(desk.arrives(outgoing).asked.is_empty());
    // 100 ms early, and up to a twelfth of the wait.
    let at = desk.scheduler.next_tick(desk.now).expect("it waits");
    assert!((sent + MS * 9_070..=sent + MS * 9_900).contains(&at));
    assert!(desk.step(at - desk.now - MS).asked.is_empty());
    let asked = desk.step(MS).asked;
    assert_eq!(asked[0].asks[0].ticket.map(|ticket| ticket.number), Some(4));
    // Its turn has not changed: it stays out of delay queues and asks at its turn.
    let turn = sent + MS * 10_000;
    let left = u64::try_from((turn - desk.now - MS).as_millis()).expect("a second");
    let done = desk.answer(MS, vec![vec![wait(left, 4)]]);
    assert!(done.published.is_empty());
    while desk.scheduler.next_tick(desk.now) < Some(turn) {
        let next = desk.scheduler.next_tick(desk.now).expect("it waits");
        let asked = desk.step(next - desk.now).asked;
        assert_eq!(asked.len(), 1, "once more, since that was a long wait");
        let left = u64::try_from((turn - desk.now - MS).as_millis()).expect("a second");
        assert!(left <= 500);
        desk.answer(MS, vec![vec![wait(left, 4)]]);
    }
    assert_eq!(desk.step(turn - desk.now).asked.len(), 1);
    // A turn much later than promised is waited for in a delay queue.
    let done = desk.answer(MS, vec![vec![wait(5_000, 4)]]);
    assert_eq!(&*done.published[0].1.queue, "jobs.delay.from-4000");
}

/// The gate computes turns from reserved costs.
#[test]
fn jobs_ask_early_if_calls_use_less_than_they_reserve() {
    let (mut desk, _) = desk();
    let cost = ("x-cost", HeaderValue::Int(8));
    let jobs = vec![message(&[tenant(), cost]); 2];
    let done = desk.deliver_messages(DeliverySource::Fresh, jobs.clone());
    assert_eq!(done.asked[0].asks.len(), 2);
    let done = desk.answer(MS, vec![vec![START, wait(60_000, 4)]]);
    let key = done.dispatched[0].0;
    // No call has ended yet.
    assert_eq!(trip(&desk.leaves(done).message).wait_ms, 5_000);
    let attempt = Attempt {
        seen: LimitInfo {
            actual_cost: Some(2),
            ..LimitInfo::default()
        },
        fate: Fate::Answered,
        ..Outcome::Done.into()
    };
    let settled = desk.ended_within(MS, key, attempt).settled;
    desk.settled_all(settled.len());
    desk.deliver_messages(DeliverySource::Fresh, jobs);
    let done = desk.answer(MS, vec![vec![wait(60_000, 5), wait(80_000, 6)]]);
    let waits = done
        .published
        .iter()
        .map(|(_, outgoing)| trip(&outgoing.message).wait_ms);
    assert_eq!(waits.collect::<Vec<_>>(), [15_000, 20_000]);
}

#[test]
fn the_first_job_of_a_waitlist_asks_at_its_turn_because_no_job_ahead_can_vanish() {
    let (mut desk, _) = desk();
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let done = desk.answer(MS, vec![vec![wait(10_000, 1)]]);
    let turn = desk.now + MS * 10_000;
    let outgoing = desk.leaves(done);
    assert!(desk.arrives(outgoing).asked.is_empty());
    while desk.now < turn - MS * 2 {
        assert!(desk.step(MS).asked.is_empty());
    }
    assert_eq!(desk.step(MS * 2).asked.len(), 1);
}

#[test]
fn a_postponed_job_does_not_ask_early() {
    let (mut desk, at) = desk();
    let mut job = in_delay_queue(10_000, STORE_MS + 10_000);
    let not_before = headers::not_before(STORE_MS + 10_000);
    job.message = job.message.with_headers(&[not_before], &[]);
    assert!(desk.arrives(job).asked.is_empty());
    assert_eq!(desk.scheduler.next_tick(desk.now), Some(at + MS * 10_000));
}

/// Makes a desk know the store's clock and prepare calls 260 ms early, and gives it a job whose trip
/// ends in 1 s and whose delayed start is in `start_ms`.
fn slow(mut desk: Desk, start_ms: u64) -> Desk {
    desk.ready = 0;
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let key = desk.answer(MS, vec![vec![CAPACITY]]).prepared[0];
    let now = desk.now;
    desk.scheduler.prepared(now, key, Some(MS * 240), Ok(()));
    desk.step(MS);
    desk.answer(MS, vec![vec![wait(100_000, 1)]]);
    let mut job = in_delay_queue(1_000, STORE_MS + 1_000);
    let waits = [
        headers::not_before(STORE_MS + start_ms),
        (headers::RETRY_AFTER, HeaderValue::Int(60)),
    ];
    job.message = job.message.with_headers(&waits, &[]);
    assert!(desk.arrives(job).published.is_empty());
    desk
}

/// Asserts that the job waits for its start in a delay queue.
#[track_caller]
fn assert_starts_in(start_ms: u64, done: &Done) {
    let at = done.published[0].1.message.header(headers::NOT_BEFORE);
    assert_eq!(at, Field::Int((STORE_MS + start_ms) as i64));
}

#[test]
fn a_job_that_is_being_prepared_at_the_end_of_its_trip_waits_for_its_start() {
    let mut desk = slow(Desk::new(4), 1_200);
    let [key] = desk.step(MS * 750).prepared[..] else {
        panic!("one call is prepared");
    };
    desk.step(MS * 300);
    desk.prepared(key, Ok(()));
    desk.ready = 1;
    assert!(desk.step(MS).asked.is_empty());
    assert_eq!(desk.step(MS * 150).asked.len(), 1);
}

#[test]
fn a_job_whose_preparation_fails_early_waits_for_its_start() {
    let mut desk = slow(Desk::new(4), 1_200);
    let key = desk.step(MS * 750).prepared[0];
    let (after, reason) = (Some(MS * 10), "no connection".to_owned());
    desk.prepared(key, Err(Outcome::Retry { after, reason }.into()));
    assert_starts_in(1_200, &desk.actions());
}

#[test]
fn no_call_is_prepared_long_before_a_delayed_start() {
    let mut desk = slow(Desk::new(4), 60_000);
    assert!(desk.step(MS * 990).prepared.is_empty());
    assert_starts_in(60_000, &desk.step(MS * 10));
}

#[test]
fn a_job_whose_preparation_meets_an_open_breaker_waits_for_its_start() {
    let mut desk = slow(breaker::desk(), 1_200);
    let key = desk.step(MS * 750).prepared[0];
    let no_token = Attempt {
        trouble: Some(Trouble::Tenant),
        ..retry("no token").into()
    };
    desk.prepared(key, Err(no_token));
    desk.step(MS);
    desk.ready = usize::MAX;
    assert!(desk.answer_reports(vec![open(100)]).asked.is_empty());
    let done = desk.step(MS * 400);
    assert!(done.asked.is_empty());
    desk.prepared(done.prepared[0], Ok(()));
    assert_eq!(desk.step(MS * 60).asked.len(), 1);
}

/// A lease seemed to be free, so the job asked, and its turn is now a little later.
#[test]
fn the_timer_of_an_earlier_wait_takes_no_slot() {
    let running = Limit::concurrent("running", 1).expect("in range");
    let mut desk = Desk::with(1, running.into(), by_header());
    let runs = desk.start_one();
    desk.deliver(DeliverySource::Fresh, &["a"]);
    desk.ended(runs, Outcome::Done);
    desk.step(MS);
    desk.settled_all(1);
    assert_eq!(desk.step(MS * 5).asked.len(), 1);
    let done = desk.answer(MS, vec![vec![wait(60_000, 2)]]);
    let turn = desk.now + Duration::from_secs(64);
    let outgoing = desk.leaves(done);
    assert_eq!(desk.arrives(outgoing).asked.len(), 1);
    let left = u64::try_from((turn - desk.now).as_millis()).expect("a short time");
    let done = desk.answer(MS, vec![vec![wait(left, 2)]]);
    assert!(done.published.is_empty(), "it stays in the window");
    while desk.now < turn {
        let next = desk.scheduler.next_tick(desk.now).expect("it waits");
        let done = desk.step(next - desk.now);
        assert!(done.prepared.is_empty(), "{:?} early", turn - desk.now);
        if !done.asked.is_empty() {
            return;
        }
    }
    panic!("it does not ask");
}

/// Each delivery of the job gets another ID, so it takes a trip before it can be recognized.
#[test]
fn a_job_without_an_id_is_delayed_in_spite_of_its_dedupe_key() {
    let (mut desk, _) = desk();
    let headers = [
        ("x-dedupe-key", HeaderValue::Text("k".to_owned())),
        ("x-not-before", HeaderValue::Int((STORE_MS + 60_000) as i64)),
    ];
    let job = message(&[tenant()]).with_headers(&headers, &[]);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![job]);
    assert_starts_in(60_000, &done);
}

#[test]
fn jobs_due_at_the_same_time_ask_in_waitlist_order() {
    let (mut desk, _) = desk();
    desk.deliver(DeliverySource::Fresh, &["a", "a", "a"]);
    let places = vec![wait(300, 6), wait(300, 4), wait(300, 5)];
    desk.answer(MS, vec![places]);
    let asked = desk.step(MS * 300).asked;
    let places: Vec<_> = (asked[0].asks.iter())
        .map(|ask| ask.ticket.map(|ticket| ticket.number))
        .collect();
    assert_eq!(places, [Some(4), Some(5), Some(6)]);
}

#[test]
fn a_late_job_asks_at_once_even_after_a_clock_step_back() {
    let (mut desk, at) = desk();
    let late = desk.arrives(in_delay_queue(10_000, STORE_MS - 5_000));
    assert_eq!(late.asked.len(), 1);
    desk.answer(MS, vec![vec![START]]);
    // If the clock lost an hour, the job waits as long as promised.
    assert!(
        desk.arrives(in_delay_queue(10_000, STORE_MS + 3_600_000))
            .asked
            .is_empty()
    );
    let next = desk.scheduler.next_tick(desk.now).expect("it waits");
    assert!(next <= desk.now + MS * 10_000, "{:?}", next - at);
    assert_eq!(desk.step(MS * 10_000).asked.len(), 1);
}

#[test]
fn without_a_clock_a_wait_counts_from_the_arrival() {
    let mut desk = Desk::new(4);
    // It only asks for the clock.
    let asked = desk.arrives(in_delay_queue(10_000, 0)).asked;
    assert!(asked[0].asks.is_empty());
    assert!(desk.answer(MS, vec![vec![]]).dispatched.is_empty());
    assert!(desk.step(MS * 9_060).asked.is_empty());
    assert_eq!(desk.step(MS * 950).asked.len(), 1);
}

#[test]
fn a_priority_is_removed_in_delay_queues_and_restored_after_them() {
    let mut desk = Desk::new(4);
    let mut urgent = message(&[tenant()]);
    urgent.properties = urgent.properties.with_priority(9);
    desk.deliver_messages(DeliverySource::Fresh, vec![urgent]);
    let done = desk.answer(MS, vec![vec![wait(10_000, 4)]]);
    let outgoing = desk.leaves(done);
    let priority = |message: &Message| *message.properties.priority();
    assert_eq!(priority(&outgoing.message), None);
    desk.back(outgoing);
    let done = desk.answer(MS, vec![vec![START]]);
    let reason = "no".to_owned();
    let reject = handler::Outcome::Reject { reason };
    let (_, dead) = desk.ended(done.dispatched[0].0, reject).published.remove(0);
    assert_eq!(priority(&dead.message), Some(9));
    assert_eq!(dead.message.header("x-sluicegate-priority"), Field::Missing);
}

#[test]
fn in_a_full_window_in_disorder_the_last_make_room() {
    let (mut desk, at) = desk();
    // A prefetch of 80 and 4 possible calls make windows of 14. All of them enter the delay queue
    // now, and the last is due first.
    for n in 0..14 {
        let wait_ms = 10_000 - 130 * n;
        let done = desk.arrives(in_delay_queue(wait_ms, STORE_MS + wait_ms));
        assert!(done.published.is_empty());
    }
    // From 8 s on, jobs behind them may be due.
    let moved = desk.step(at + MS * 8_100 - desk.now).published;
    assert_eq!(moved.len(), 1);
    let (_, outgoing) = &moved[0];
    assert_eq!(trip(&outgoing.message).until_ms, STORE_MS + 10_000);
    assert!(trip(&outgoing.message).wait_ms <= 2_000);
    assert!(desk.step(MS * 50).published.is_empty(), "there is room");
}

#[test]
fn a_lost_session_forgets_jobs_in_delay_queues() {
    let (mut desk, _) = desk();
    desk.arrives(in_delay_queue(10_000, STORE_MS + 10_000));
    desk.scheduler.session_up(2);
    assert!(desk.step(MS * 20_000).asked.is_empty());
}

#[test]
fn the_number_of_delays_travels_with_a_job_to_its_dead_letter() {
    let (mut desk, _) = desk();
    let waits = |message: &Message| match message.header(headers::WAITS) {
        Field::Int(number) => Some(number),
        _ => None,
    };
    // A publisher's header has no effect.
    let claimed = message(&[tenant(), (headers::WAITS, HeaderValue::Int(7))]);
    desk.deliver_messages(DeliverySource::Fresh, vec![claimed]);
    for (number, wait_ms) in [(1, 1_000), (2, 10_000), (3, 200_000)] {
        let done = desk.answer(MS, vec![vec![wait(wait_ms, 4)]]);
        let outgoing = desk.leaves(done);
        assert_eq!(waits(&outgoing.message), Some(number));
        assert_eq!(desk.back(outgoing).asked.len(), 1);
    }
    let done = desk.answer(MS, vec![vec![START]]);
    let reason = "no such order".to_owned();
    let outcome = Outcome::Reject { reason };
    let done = desk.ended_within(MS, done.dispatched[0].0, outcome);
    let (_, dead) = done.published.into_iter().next().expect("a dead letter");
    assert_eq!(waits(&dead.message), Some(3));
}

#[test]
fn invalid_delay_counts_are_zero_and_large_ones_saturate() {
    for (value, expected) in [
        (HeaderValue::Int(-1), 1),
        (HeaderValue::Text("3".to_owned()), 1),
        (HeaderValue::Int(4), 5),
        (HeaderValue::Int(i64::MAX), i64::from(u32::MAX)),
    ] {
        let (mut desk, _) = desk();
        let mut late = in_delay_queue(1_000, STORE_MS - 1);
        late.message = late.message.with_headers(&[(headers::WAITS, value)], &[]);
        desk.arrives(late);
        let done = desk.answer(MS, vec![vec![wait(200_000, 4)]]);
        let (_, outgoing) = done.published.into_iter().next().expect("a delay queue");
        let waits = outgoing.message.header(headers::WAITS);
        assert_eq!(waits, Field::Int(expected));
    }
}

#[test]
fn the_first_promise_travels_with_a_job_and_is_compared_with_its_start() {
    let (mut desk, _) = desk();
    let promise = |message: &Message| match message.header(headers::PROMISE) {
        Field::Text(text) => Promise::read(text),
        _ => None,
    };
    // A publisher's header has no effect.
    let claim = HeaderValue::Text("1:1".to_owned());
    let claimed = message(&[tenant(), (headers::PROMISE, claim)]);
    desk.deliver_messages(DeliverySource::Fresh, vec![claimed]);
    let mut first = None;
    for wait_ms in [10_000, 5_000, 70_000] {
        let done = desk.answer(MS, vec![vec![wait(wait_ms, 4)]]);
        let outgoing = desk.leaves(done);
        let promised = promise(&outgoing.message).expect("it was told its turn");
        assert_eq!(
            *first.get_or_insert(promised),
            promised,
            "later ones correct it"
        );
        assert_eq!(promised.wait_ms, 10_000);
        assert_eq!(desk.back(outgoing).asked.len(), 1);
    }
    desk.facts();
    desk.answer(MS, vec![vec![START]]);
    let facts = desk.facts();
    let off = facts.iter().find_map(|fact| match fact {
        Fact::Job(JobFact::Promised(off)) => Some(*off),
        _ => None,
    });
    // Measured by the store's clock, which stands still here.
    let off = off.expect("it was held against it");
    assert_eq!((off.ms, off.is_late, off.is_met), (10_000, false, false));
}

#[test]
fn a_dead_letter_that_a_policy_moves_out_of_its_delay_queue_is_not_called() {
    let (mut desk, _) = desk();
    let parked = HeaderValue::Text("jobs.dead".to_owned());
    let letter = in_delay_queue(60_000, STORE_MS + 60_000).message;
    let letter = letter.with_headers(&[(headers::PARKED, parked)], &[]);
    let done = desk.deliver_messages(DeliverySource::Due, vec![letter]);
    assert!(done.asked.is_empty());
    let done = desk.step(Duration::from_secs(61));
    assert!(done.asked.is_empty(), "{:?}", done.asked);
    let (_, moved) = &done.published[0];
    assert_eq!(&*moved.queue, "jobs.dead");
    assert_eq!(moved.message.header(headers::PARKED), Field::Missing);
}
