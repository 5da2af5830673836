//! The scheduler reports to the gate how calls have ended, also while some tenants' primary is
//! unavailable.

use std::time::Duration;

use broker::DeliverySource;
use gate::{BreakerScope, End, GateError, SettleReplies, TenantSettlements};
use handler::{Attempt, Fate, LateEnd, Outcome};
use rules::answers::{LimitInfo, Quotas};
use rules::job::TenantField;
use rules::limit::{Algorithm, Limit, Limits, Unit};
use rules::policy::Policy;
use rules::tenant::Tenant;

use crate::scheduler::{Desk, MS, START, by_header, retry, throttled, wait};

/// Returns a desk where each tenant may have one running call.
fn of_places() -> Desk {
    let running = Limit::concurrent("running", 1).expect("in range");
    let tenant = TenantField::Header("x-tenant".into());
    Desk::with(8, running.into(), tenant)
}

fn away() -> GateError {
    GateError::Unreachable("refused".into())
}

/// Answers settlements while the primary of `a` is unavailable and that of `b` works.
fn settled_except_a(settled: &[TenantSettlements]) -> SettleReplies {
    let reply = |batch: &TenantSettlements| match batch.tenant.as_str() {
        "a" => Err(away()),
        _ => Ok(()),
    };
    settled.iter().map(reply).collect()
}

fn ends_of(settled: &[TenantSettlements]) -> Vec<(&str, End)> {
    let of =
        |batch: &'_ TenantSettlements| batch.settled.iter().map(|one| one.end).collect::<Vec<_>>();
    let ends = (settled.iter()).flat_map(|batch| {
        of(batch)
            .into_iter()
            .map(|end| (batch.tenant.as_str(), end))
    });
    ends.collect()
}

#[test]
fn a_failed_settlement_of_one_tenant_delays_no_other() {
    let mut desk = of_places();
    desk.deliver(DeliverySource::Fresh, &["a", "b", "b", "b"]);
    let answers = vec![vec![START], vec![START, wait(400, 1), wait(400, 2)]];
    let started = desk.answer(MS, answers).dispatched;
    let (of_a, mut of_b) = (started[0].0, started[1].0);
    desk.scheduler.finished(desk.now, of_a, MS, Outcome::Done);
    let mut first_call = None;
    for number in 0..2 {
        let settled = desk.ended_within(MS, of_b, Outcome::Done).settled;
        assert!(
            ends_of(&settled).contains(&("b", End::Cost(1))),
            "{settled:?}"
        );
        if number == 0 {
            first_call = Some(settled[0].clone());
        }
        desk.settled(Ok(settled_except_a(&settled)));
        let asked = desk.step(MS * 5).asked;
        assert_eq!(asked[0].tenant.as_str(), "b", "its next one is woken");
        of_b = desk.answer(MS, vec![vec![START]]).dispatched[0].0;
    }
    // A repeated settlement has the same name: if only the answer was lost, it counts once.
    let again = desk.step(MS * 150).settled;
    assert_eq!(again, first_call.into_iter().collect::<Vec<_>>());
    desk.settled_all(1);
    let settled = desk.ended_within(MS, of_b, Outcome::Done).settled;
    assert_eq!(ends_of(&settled), [("b", End::Cost(1))]);
    desk.settled_all(1);
    assert!(desk.scheduler.is_idle());
}

#[test]
fn a_failing_tenants_settlements_are_given_up_while_others_continue() {
    let mut desk = of_places();
    desk.deliver(DeliverySource::Fresh, &["a", "b"]);
    let started = desk.answer(MS, vec![vec![START], vec![START]]).dispatched;
    desk.scheduler
        .finished(desk.now, started[0].0, MS, Outcome::Done);
    let (mut tries, mut renewals) = (0, Vec::new());
    let begun = desk.now;
    while desk.now < begun + Duration::from_secs(70) {
        let settled = desk.step(MS * 50).settled;
        tries += settled
            .iter()
            .filter(|batch| batch.tenant.as_str() == "a")
            .count();
        let renewed = ends_of(&settled).contains(&("b", End::Running));
        renewals.extend(renewed.then_some(desk.now.as_secs()));
        if !settled.is_empty() {
            desk.settled(Ok(settled_except_a(&settled)));
        }
    }
    assert!((10..20).contains(&tries), "{tries}");
    let gaps: Vec<_> = renewals.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps, [15; 3], "{renewals:?}");
    let settled = desk.ended_within(MS, started[1].0, Outcome::Done).settled;
    assert_eq!(ends_of(&settled), [("b", End::Cost(1))], "a is given up");
    desk.settled_all(1);
    assert!(desk.scheduler.is_idle());
}

/// A renewal that arrives after its call's end would take the lease again, for a whole lease.
#[test]
fn a_failed_renewal_is_not_repeated_but_the_next_is_sooner() {
    let mut desk = of_places();
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let key = desk.answer(MS, vec![vec![START]]).dispatched[0].0;
    let mut renewals = Vec::new();
    for _ in 0..400 {
        let settled = desk.step(MS * 100).settled;
        renewals.extend((!settled.is_empty()).then_some(desk.now));
        if !settled.is_empty() {
            assert_eq!(ends_of(&settled), [("a", End::Running)]);
            desk.settled(Ok(vec![Err(away())]));
        }
    }
    let gaps = renewals
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_secs());
    assert!(
        renewals.len() >= 4 && gaps.clone().all(|gap| gap == 5),
        "{renewals:?}"
    );
    desk.step(Duration::from_secs(6));
    // The end comes while a renewal is in flight, which is then lost.
    assert!(desk.ended_within(MS, key, Outcome::Done).settled.is_empty());
    desk.settled(Ok(vec![Err(away())]));
    assert_eq!(ends_of(&desk.step(MS).settled), [("a", End::Cost(1))]);
    desk.settled_all(1);
    assert_eq!(desk.step(Duration::from_secs(60)).settled, []);
    assert!(desk.scheduler.is_idle());
}

/// A call that timed out may be read later, so its lease is held, however its job continues.
#[test]
fn the_lease_of_an_abandoned_call_is_held_until_it_ends() {
    let second = Duration::from_secs(1);
    let lease = 40 * second;
    let given_up = || {
        let mut desk = of_places();
        desk.deliver(DeliverySource::Fresh, &["a", "a"]);
        let started = desk.answer(MS, vec![vec![START, wait(400, 1)]]).dispatched;
        let attempt = Attempt {
            fate: Fate::Abandoned {
                lease,
                ended: LateEnd::never(),
            },
            ..retry("no answer in time").into()
        };
        let done = desk.ended_within(MS, started[0].0, attempt);
        assert_eq!(done.published.len(), 1, "its job is tried again");
        let confirmed = vec![(done.published[0].0, Ok(()))];
        desk.scheduler.moved(desk.now, confirmed);
        let held = End::Abandoned { for_ms: 40_000 };
        assert_eq!(ends_of(&done.settled), [("a", held)]);
        let permit = done.settled[0].settled[0].receipt.permit.clone();
        assert_eq!(done.awaited, [(permit.clone(), lease)]);
        desk.settled_all(1);
        assert!(
            desk.scheduler.is_idle(),
            "a worker that stops does not wait for it"
        );
        assert!(desk.actions().asked.is_empty(), "no job asks");
        (desk, permit)
    };
    let until_told = |desk: &mut Desk, at: Duration| loop {
        let settled = desk.step(100 * MS).settled;
        if !settled.is_empty() {
            return settled;
        }
        assert!(desk.now < at, "nothing is told");
    };

    // Its end becomes known, which is reported until the gate knows.
    let (mut desk, permit) = given_up();
    desk.scheduler.abandoned_is_over(&permit, true);
    let over = [("a", End::Abandoned { for_ms: 0 })];
    assert_eq!(ends_of(&desk.step(MS).settled), over);
    desk.settled(Ok(vec![Err(away())]));
    assert_eq!(ends_of(&desk.step(MS * 150).settled), over);
    desk.settled_all(1);
    assert_eq!(desk.step(MS * 5).asked.len(), 1, "the next one is woken");
    desk.scheduler.abandoned_is_over(&permit, true);
    assert_eq!(desk.step(60 * second).settled, [], "once");

    // Its end does not become known. What the gate may have lost is reported again, for the
    // remaining time.
    let (mut desk, permit) = given_up();
    let begun = desk.now;
    for failed in [true, false, false] {
        let settled = until_told(&mut desk, begun + lease);
        let left = lease - (desk.now - begun);
        let ends = ends_of(&settled);
        let [("a", End::Abandoned { for_ms })] = ends[..] else {
            panic!("{ends:?}");
        };
        assert!(
            Duration::from_millis(for_ms).abs_diff(left) < second,
            "{for_ms}"
        );
        let reply = if failed { Err(away()) } else { Ok(()) };
        desk.settled(Ok(vec![reply]));
    }
    desk.scheduler.abandoned_is_over(&permit, false);
    assert_eq!(
        desk.step(60 * second).settled,
        [],
        "the lease is over by itself"
    );
}

/// The API reported that no quota is left, or refused. Without the block, the tenant's other jobs
/// would still be called.
#[test]
fn a_failed_throttle_is_resent_for_the_rest_of_its_time() {
    let minute = Duration::from_secs(60);
    let done = Attempt {
        seen: LimitInfo {
            used_up: Some(minute),
            ..LimitInfo::default()
        },
        fate: Fate::Answered,
        ..Outcome::Done.into()
    };
    let refused = Attempt::from(throttled(Some(minute)));
    for (attempt, waits) in [(done, false), (refused, true)] {
        let mut desk = Desk::new(4);
        let key = desk.start_one();
        let started = desk.now;
        let mut blocks = desk.ended(key, attempt).blocked;
        assert_eq!((blocks.len(), blocks[0].1), (1, minute));
        assert_eq!(blocks[0].0.key.is_some(), waits);
        let a = BreakerScope::Tenant(Tenant::parse("a").expect("a tenant"));
        for pause_ms in [100, 200] {
            let (block, _) = blocks.remove(0);
            assert!(!desk.scheduler.is_idle());
            desk.scheduler.blocked(desk.now, block, Err(away()));
            let published = desk.actions().published.len();
            assert_eq!(published, usize::from(waits && pause_ms == 100));
            let next = desk.now + pause_ms * MS;
            assert_eq!(desk.scheduler.next_tick(desk.now), Some(next));
            blocks = desk.step(pause_ms * MS).blocked;
            assert_eq!(blocks.len(), 1, "again, before the next question");
            assert_eq!(blocks[0].1, minute - (desk.now - started));
        }
        let (block, _) = blocks.remove(0);
        assert_eq!((block.key, &block.scope), (None, &a));
        desk.scheduler.blocked(desk.now, block, Ok(()));
        assert!(desk.step(minute).blocked.is_empty(), "once");
    }
}

/// No quota is left until a time in whole seconds, which may be over two seconds sooner.
#[test]
fn configured_limits_decide_where_they_satisfy_the_api_and_headers_are_rounded() {
    let second = Duration::from_secs(1);
    for (quotas, used_up, expected_pause) in [
        // The desk's limit is 20 per second.
        ("20/0", 3, Some(1)),
        ("20/1", 3, Some(1)),
        ("20/0", 2, None),
        ("20/1,3600/60", 60, Some(58)),
        ("19/0", 2, Some(2)),
        ("20/1,100/60", 2, Some(2)),
        ("20/60", 2, Some(2)),
        ("20/0", 4, Some(4)),
        ("", 2, Some(2)),
    ] {
        let mut desk = Desk::new(4);
        let key = desk.start_one();
        let done = Attempt {
            seen: LimitInfo {
                used_up: Some(used_up * second),
                rounding: 2 * second,
                quotas: Quotas::read(quotas),
                ..LimitInfo::default()
            },
            fate: Fate::Answered,
            ..Outcome::Done.into()
        };
        let blocked = desk.ended(key, done).blocked;
        let times: Vec<_> = blocked.iter().map(|(_, time)| *time).collect();
        let expected: Vec<_> = expected_pause
            .into_iter()
            .map(|seconds| seconds * second)
            .collect();
        assert_eq!(times, expected, "{quotas} {used_up}");
    }
}

#[test]
fn an_actual_cost_corrects_a_limit_that_is_only_tried() {
    let limit = |name, unit| {
        let limit = Limit::new(name, Algorithm::SlidingWindow, 20, 1_000 * MS, 50 * MS);
        limit.expect("a limit").with_unit(unit)
    };
    let tried = limit("tried", Unit::Cost).in_shadow();
    let tried = tried.expect("it holds no leases");
    let limits = Limits::new(vec![limit("calls", Unit::Calls), tried]);
    let policy = Policy::common(limits.expect("two names"));
    let mut desk = Desk::with(4, policy, by_header());
    for (actual_cost, expected) in [(Some(7), &[("a", End::Cost(7))][..]), (None, &[])] {
        let key = desk.start_one();
        let done = Attempt {
            seen: LimitInfo {
                actual_cost,
                ..LimitInfo::default()
            },
            fate: Fate::Answered,
            ..Outcome::Done.into()
        };
        let settled = desk.ended_within(MS, key, done).settled;
        assert_eq!(ends_of(&settled), expected);
        desk.settled_all(settled.len());
    }
}
