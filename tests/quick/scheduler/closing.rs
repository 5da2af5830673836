//! The scope of a 429, and a worker's behavior if all tenants are throttled, with the scheduler
//! alone.

use broker::DeliverySource;
use engine::action::{EngineSettings, JobKey};
use gate::{BreakerScope, GateError, Standing};
use handler::{Attempt, Fate, Outcome};
use kit::SECOND;
use rules::answers::{LimitInfo, ThrottleScope};
use rules::limit::{Algorithm, Limit, Limits};
use rules::policy::Policy;
use rules::scope::Scope;
use rules::tenant::Tenant;

use crate::scheduler::breaker::{closed, open, words};
use crate::scheduler::{Desk, MS, START, STORE_MS, by_header, settings, throttled};

fn refused() -> Outcome {
    throttled(Some(SECOND * 20))
}

/// Returns a standing in which all tenants are throttled for this long.
fn named(left_ms: u64) -> Standing {
    Standing {
        closed_until_ms: STORE_MS + left_ms,
        named_until_ms: STORE_MS + left_ms,
        ..closed(0)
    }
}

/// Returns a policy whose limits have these scopes.
fn scoped_policy(scopes: &[Scope]) -> Policy {
    let limit = |(number, scope): (usize, &Scope)| {
        let (name, guard) = (format!("limit-{number}"), MS * 50);
        let limit = Limit::new(&name, Algorithm::SlidingWindow, 20, SECOND, guard);
        limit.expect("a limit").with_scope(scope.clone())
    };
    let limits = scopes.iter().enumerate().map(limit).collect();
    Policy::common(Limits::new(limits).expect("limits"))
}

/// Returns a desk whose limits have these scopes.
fn scoped(throttle_scope: ThrottleScope, scopes: &[Scope]) -> Desk {
    Desk::of(EngineSettings {
        throttle_scope,
        ..settings(8, scoped_policy(scopes), by_header())
    })
}

/// Starts a job. A watching scheduler looks at the API's breaker first.
fn start(desk: &mut Desk, watches: bool) -> JobKey {
    let done = desk.deliver(DeliverySource::Fresh, &["a"]);
    assert_eq!(done.asked.is_empty(), watches);
    if watches {
        assert_eq!(words(&done), ["api: look"]);
        assert_eq!(desk.answer_reports(vec![closed(0)]).asked.len(), 1);
    }
    desk.answer(MS, vec![vec![START]]).dispatched[0].0
}

/// Makes the API refuse a job, which throttles all tenants, and stores that.
fn close(desk: &mut Desk) {
    let key = start(desk, true);
    let block = desk.ended_within(MS, key, refused()).blocked.remove(0).0;
    desk.scheduler.blocked(desk.now, block, Ok(()));
}

#[test]
fn the_scope_of_a_429_follows_the_limits_or_the_configuration() {
    use ThrottleScope as Set;
    let mine = BreakerScope::Tenant(Tenant::parse("a").expect("a tenant"));
    for (scope, scopes, expected) in [
        (Set::Auto, &[Scope::Global][..], &BreakerScope::Api),
        (Set::Auto, &[Scope::Tenant], &mine),
        // Either scope may be meant, so the narrower one is throttled.
        (Set::Auto, &[Scope::Global, Scope::Tenant], &mine),
        (Set::Tenant, &[Scope::Global], &mine),
        (Set::Global, &[Scope::Tenant], &BreakerScope::Api),
    ] {
        let mut desk = scoped(scope, scopes);
        let key = start(&mut desk, *expected == BreakerScope::Api);
        let blocked = desk.ended_within(MS, key, refused()).blocked;
        assert_eq!(blocked.len(), 1);
        let (block, lasts) = &blocked[0];
        assert_eq!((&block.scope, lasts.as_secs()), (expected, 20));
    }
}

#[test]
fn a_throttle_follows_the_scope_in_its_answer() {
    let mine = BreakerScope::Tenant(Tenant::parse("a").expect("a tenant"));
    for (scope, stops_all, expected) in [
        (ThrottleScope::Tenant, Some(true), &BreakerScope::Api),
        (ThrottleScope::Tenant, None, &mine),
        (ThrottleScope::Global, Some(false), &mine),
    ] {
        for is_done in [false, true] {
            let mut desk = scoped(scope, &[Scope::Tenant]);
            let key = start(&mut desk, scope == ThrottleScope::Global);
            let seen = LimitInfo {
                used_up: is_done.then_some(SECOND * 20),
                stops_all,
                ..LimitInfo::default()
            };
            let outcome = if is_done { Outcome::Done } else { refused() };
            let attempt = Attempt {
                seen,
                fate: Fate::Answered,
                ..outcome.into()
            };
            let blocked = desk.ended_within(MS, key, attempt).blocked;
            let (block, lasts) = &blocked[0];
            assert_eq!((&block.scope, lasts.as_secs()), (expected, 20));
        }
    }
    let mut desk = Desk::of(EngineSettings {
        answers_stop_all: true,
        ..settings(8, scoped_policy(&[Scope::Tenant]), by_header())
    });
    start(&mut desk, true);
}

#[test]
fn no_job_asks_while_the_api_is_closed_to_all() {
    let mut desk = scoped(ThrottleScope::Auto, &[Scope::Global]);
    close(&mut desk);
    assert!(desk.deliver(DeliverySource::Fresh, &["b"]).asked.is_empty());
    for second in 1..20 {
        let over = desk.scheduler.next_tick(desk.now).expect("a tick");
        assert!(over <= desk.now + SECOND, "it looks each second");
        let done = desk.step(SECOND);
        assert!(done.asked.is_empty() && done.published.is_empty());
        assert_eq!(words(&done), ["api: look"]);
        desk.answer_reports(vec![named(20_000 - second * 1_005)]);
    }
    let done = desk.step(SECOND);
    assert_eq!(
        (done.asked.len(), words(&done)),
        (2, vec!["api: look".to_owned()])
    );
}

#[test]
fn an_operator_opens_an_api_closed_to_all() {
    let mut desk = scoped(ThrottleScope::Auto, &[Scope::Global]);
    close(&mut desk);
    assert_eq!(words(&desk.step(SECOND)), ["api: look"]);
    assert_eq!(desk.answer_reports(vec![closed(0)]).asked.len(), 1);
}

#[test]
fn another_worker_s_429_is_found_within_a_second_and_its_failures_are_not() {
    let mut desk = scoped(ThrottleScope::Auto, &[Scope::Global]);
    assert_eq!(
        words(&desk.deliver(DeliverySource::Fresh, &["a"])),
        ["api: look"]
    );
    desk.answer_reports(vec![open(9_000)]);
    let done = desk.answer(MS, vec![vec![START]]);
    assert_eq!(done.dispatched.len(), 1, "its own calls have not failed");
    let done = desk.deliver(DeliverySource::Fresh, &["a"]);
    assert_eq!(
        (done.asked.len(), words(&done)),
        (1, vec![]),
        "once a second"
    );
    desk.answer(MS, vec![vec![START]]);
    desk.now += SECOND;
    let done = desk.deliver(DeliverySource::Fresh, &["a"]);
    assert_eq!(words(&done), ["api: look"]);
    assert_eq!(done.asked.len(), 1, "it looked lately");
    desk.answer_reports(vec![named(5_000)]);
    desk.answer(MS, vec![vec![START]]);
    assert!(desk.deliver(DeliverySource::Fresh, &["b"]).asked.is_empty());
}

#[test]
fn an_idle_worker_checks_the_throttle_before_it_asks() {
    let mut desk = scoped(ThrottleScope::Auto, &[Scope::Global]);
    start(&mut desk, true);
    desk.now += SECOND * 60;
    let done = desk.deliver(DeliverySource::Fresh, &["b"]);
    assert!(done.asked.is_empty());
    assert_eq!(words(&done), ["api: look"]);
    assert!(desk.answer_reports(vec![named(5_000)]).asked.is_empty());
}

/// The API's state is on one primary of a cluster, and the tenants' state is on all of them.
#[test]
fn a_lost_primary_hides_another_worker_s_429_and_stops_no_tenant_of_other_primaries() {
    let mut desk = scoped(ThrottleScope::Auto, &[Scope::Global]);
    let lost = |desk: &mut Desk| {
        let why = GateError::Unreachable("a test".to_owned());
        desk.scheduler.reported(desk.now, Ok(vec![Err(why)]));
        desk.step(MS * 5)
    };
    let done = desk.deliver(DeliverySource::Fresh, &["a"]);
    assert_eq!(
        (done.asked.len(), words(&done)),
        (0, vec!["api: look".to_owned()])
    );
    assert_eq!(lost(&mut desk).asked.len(), 1);
    let key = desk.answer(MS, vec![vec![START]]).dispatched[0].0;
    desk.now += SECOND * 60;
    let done = desk.deliver(DeliverySource::Fresh, &["b"]);
    assert_eq!(
        (done.asked.len(), words(&done)),
        (0, vec!["api: look".to_owned()])
    );
    assert_eq!(lost(&mut desk).asked.len(), 1);
    // The worker's own 429 counts although it could not be stored.
    desk.ended_within(MS, key, refused());
    desk.step(SECOND);
    assert!(lost(&mut desk).asked.is_empty());
    assert!(desk.deliver(DeliverySource::Fresh, &["c"]).asked.is_empty());
}

#[test]
fn an_admission_that_arrives_after_a_throttle_of_all_tenants_is_returned() {
    let mut desk = scoped(ThrottleScope::Auto, &[Scope::Global]);
    let key = start(&mut desk, true);
    assert_eq!(desk.deliver(DeliverySource::Fresh, &["b"]).asked.len(), 1);
    let (block, _) = desk.ended(key, refused()).blocked.remove(0);
    assert_eq!(block.scope, BreakerScope::Api);
    assert!(desk.answer(MS, vec![vec![START]]).dispatched.is_empty());
    assert_eq!(desk.step(MS).settled.len(), 1, "the permit is returned");
}

#[test]
fn jobs_stay_in_memory_while_all_tenants_are_throttled() {
    let mut desk = scoped(ThrottleScope::Auto, &[Scope::Global]);
    close(&mut desk);
    let until = desk.now + SECOND * 600;
    let mut done = desk.deliver(DeliverySource::Fresh, &["b"]);
    while desk.now < until {
        assert!(done.asked.is_empty() && done.published.is_empty());
        for _ in &done.reported {
            let left = (until - desk.now).as_millis();
            let standing = named(u64::try_from(left).expect("a short time"));
            desk.scheduler.reported(desk.now, Ok(vec![Ok(standing)]));
        }
        done = desk.step(SECOND);
    }
}
