//! The queues of jobs: whose turn it is, which jobs are held, and which are surplus.

use super::*;
use kit::gate::tenant;

/// Takes a round trip to all shards, with no other in flight.
fn take_round(queues: &mut Queues, max: usize) -> Vec<TenantShare> {
    let turns = queues.take_round(max, |_| true, |_, _| usize::MAX);
    turns.into_iter().map(|(_, turn)| turn).collect()
}

fn may_ask(queues: &Queues) -> bool {
    queues.may_ask(|_| true)
}

fn ready(queues: &Queues) -> usize {
    queues.ready(|_| true)
}

fn fill(queues: &mut Queues, name: &str, keys: std::ops::Range<u64>) {
    for key in keys {
        queues.join(&tenant(name), JobKey(key), QueuePosition::Fresh);
    }
}

/// Does the same for a tenant whose last answer was a wait.
fn fill_limited(queues: &mut Queues, name: &str, keys: std::ops::Range<u64>) {
    fill(queues, name, keys);
    queues.set_limited(&tenant(name), true);
}

#[test]
fn jobs_that_came_back_ask_before_fresh_ones() {
    let mut queues = Queues::new(4, 80);
    fill(&mut queues, "a", 0..2);
    queues.join(&tenant("a"), JobKey(2), QueuePosition::Due);
    queues.join(&tenant("a"), JobKey(3), QueuePosition::Front);
    let turns = take_round(&mut queues, 3);
    assert_eq!(
        turns,
        [TenantShare {
            tenant: tenant("a"),
            slots: 4,
            keys: vec![JobKey(3), JobKey(2), JobKey(0)]
        }]
    );
    assert_eq!(ready(&queues), 1);
    assert_eq!(take_round(&mut queues, 3)[0].keys, [JobKey(1)]);
    assert!(!may_ask(&queues));
}

#[test]
fn a_round_is_shared_and_no_tenant_is_left_out_twice() {
    let mut queues = Queues::new(4, 80);
    fill_limited(&mut queues, "big", 0..100);
    fill_limited(&mut queues, "b", 100..110);
    fill_limited(&mut queues, "c", 110..111);
    let counts = |turns: &[TenantShare]| {
        let count = |turn: &TenantShare| format!("{} {}", turn.tenant, turn.keys.len());
        turns.iter().map(count).collect::<Vec<_>>()
    };
    assert_eq!(counts(&take_round(&mut queues, 9)), ["big 4", "b 4", "c 1"]);
    fill(&mut queues, "c", 111..112);
    // With room for two, one of three is left out and comes first in the next round.
    assert_eq!(counts(&take_round(&mut queues, 2)), ["big 1", "b 1"]);
    assert_eq!(counts(&take_round(&mut queues, 2)), ["c 1", "big 1"]);
    assert_eq!(counts(&take_round(&mut queues, 1)), ["b 1"]);
    assert_eq!(ready(&queues), 112 - 9 - 2 - 2 - 1);
}

#[test]
fn one_tenant_has_at_most_half_of_the_slots_while_others_wait() {
    let mut queues = Queues::new(10, 80);
    fill(&mut queues, "noisy", 0..100);
    fill(&mut queues, "calm", 100..101);
    let budgets = |turns: &[TenantShare]| turns.iter().map(|t| t.slots).collect::<Vec<_>>();
    assert_eq!(budgets(&take_round(&mut queues, 1000)), [5, 1]);
    fill(&mut queues, "noisy", 0..100);
    assert_eq!(budgets(&take_round(&mut queues, 1000)), [10]);
}

#[test]
fn a_tenant_leaves_slots_free_for_others_that_had_some_lately() {
    let mut queues = Queues::new(8, 80);
    let budget = |queues: &mut Queues| {
        fill(queues, "noisy", 0..100);
        take_round(queues, 1000)[0].slots
    };
    assert_eq!(budget(&mut queues), 8);
    queues.take_slot(&tenant("calm"));
    queues.free_slot(&tenant("calm"));
    assert_eq!(budget(&mut queues), 7);
    (0..7).for_each(|_| assert!(queues.try_slot(&tenant("noisy"))));
    assert!(!may_ask(&queues) && !queues.try_slot(&tenant("noisy")));
    fill(&mut queues, "calm", 100..101);
    assert!(may_ask(&queues) && queues.try_slot(&tenant("calm")));
    queues.free_slot(&tenant("calm"));
    let second = Duration::from_secs(1);
    queues.forget_callers(5 * second);
    assert_eq!(queues.callers_end_at(), Some(10 * second));
    take_round(&mut queues, 1000);
    queues.forget_callers(10 * second);
    assert_eq!(budget(&mut queues), 1, "all others are in use");
}

#[test]
fn short_calls_take_turns_in_runs_and_the_tenants_left_out_come_first() {
    let budgets = |turns: Vec<TenantShare>| {
        let budget = |turn: &TenantShare| format!("{} {}", turn.tenant, turn.slots);
        turns.iter().map(budget).collect::<Vec<_>>()
    };
    let filled = |concurrency, call: Duration| {
        let mut queues = Queues::new(concurrency, 80);
        (0..99).for_each(|_| queues.record_call_duration(call));
        for (name, keys) in [("a", 0..40), ("b", 40..80), ("c", 80..120)] {
            fill(&mut queues, name, keys);
        }
        queues
    };
    let millisecond = Duration::from_millis(1);
    let mut queues = filled(24, millisecond);
    // The third tenant gets the rest of its run first. No slot is taken between the rounds.
    let expected = ["a 10", "b 10", "c 4"];
    assert_eq!(budgets(take_round(&mut queues, 99)), expected);
    let expected = ["c 6", "a 10", "b 8"];
    assert_eq!(budgets(take_round(&mut queues, 99)), expected);
    queues.set_concurrency(3);
    // At most half of the slots are one tenant's.
    for expected in [["b 2", "c 1"], ["c 2", "a 1"], ["a 2", "b 1"]] {
        assert_eq!(budgets(take_round(&mut queues, 99)), expected);
    }

    // With longer calls turns are shorter.
    let mut queues = filled(20, 10 * millisecond);
    let expected = ["a 7", "b 7", "c 6"];
    assert_eq!(budgets(take_round(&mut queues, 99)), expected);
    queues.set_concurrency(4);
    assert_eq!(budgets(take_round(&mut queues, 99)), ["a 2", "b 2"]);
    let mut queues = filled(4, 1_000 * millisecond);
    let expected = ["a 2", "b 1", "c 1"];
    assert_eq!(budgets(take_round(&mut queues, 99)), expected);
}

#[test]
fn a_limited_tenant_that_asks_without_a_slot_keeps_its_turn() {
    let mut queues = Queues::new(2, 80);
    for (name, keys) in [("a", 0..9), ("b", 10..19), ("c", 20..29)] {
        fill_limited(&mut queues, name, keys);
    }
    let slots = |turns: Vec<TenantShare>| {
        let has_slot = turns.into_iter().filter(|turn| turn.slots > 0);
        has_slot
            .map(|turn| turn.tenant.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(slots(take_round(&mut queues, 6)), ["a", "b"]);
    assert_eq!(slots(take_round(&mut queues, 6)), ["c", "a"]);
    assert_eq!(slots(take_round(&mut queues, 6)), ["b", "c"]);
}

#[test]
fn only_jobs_with_a_slot_ask_unless_the_tenant_is_limited() {
    let mut queues = Queues::new(2, 80);
    let a = tenant("a");
    fill(&mut queues, "a", 0..4);
    assert_eq!(queues.could_ask(|_| true), 2);
    let turns = take_round(&mut queues, 10);
    assert_eq!((turns[0].slots, turns[0].keys.len()), (2, 2));
    for _ in 0..2 {
        queues.take_slot(&a);
        queues.start(&a);
    }
    assert!(!may_ask(&queues));
    assert_eq!(take_round(&mut queues, 10), []);
    queues.end(&a);
    assert!(may_ask(&queues) && queues.could_ask(|_| true) == 1);
    let turns = take_round(&mut queues, 10);
    assert_eq!((turns[0].slots, turns[0].keys.len()), (1, 1));
    queues.take_slot(&a);
    fill_limited(&mut queues, "a", 4..9);
    assert!(may_ask(&queues) && queues.could_ask(|_| true) == 6);
    let turns = take_round(&mut queues, 10);
    assert_eq!((turns[0].slots, turns[0].keys.len()), (0, 6));
}

#[test]
fn jobs_without_a_slot_ask_too_if_they_can_only_be_denied() {
    let mut queues = Queues::new(4, 80);
    fill(&mut queues, "a", 0..3);
    fill(&mut queues, "b", 10..13);
    let max_starts = |of: &Tenant, first: JobKey| match of.as_str() {
        "a" if first == JobKey(0) => 2,
        _ => 3,
    };
    let turns = queues.take_round(10, |_| true, max_starts);
    let asks = |(_, turn): &(ShardId, TenantShare)| (turn.slots, turn.keys.len());
    assert_eq!(turns.iter().map(asks).collect::<Vec<_>>(), [(2, 3), (2, 2)]);
}

#[test]
fn a_preparing_job_has_a_slot_and_asks_first() {
    let mut queues = Queues::new(2, 80);
    let a = tenant("a");
    assert!(queues.try_slot(&a) && queues.try_slot(&a) && !queues.try_slot(&a));
    fill(&mut queues, "a", 0..2);
    assert!(!may_ask(&queues), "both are taken");
    queues.join(&a, JobKey(2), QueuePosition::Prepared);
    assert!(may_ask(&queues));
    let turns = take_round(&mut queues, 10);
    assert_eq!((turns[0].slots, &turns[0].keys[..]), (0, &[JobKey(2)][..]));
    queues.set_limited(&a, true);
    queues.join(&a, JobKey(2), QueuePosition::Prepared);
    let turns = take_round(&mut queues, 10);
    assert_eq!(turns[0].keys, [JobKey(2), JobKey(0), JobKey(1)]);
    assert_eq!(turns[0].slots, 0);
    queues.start(&a);
    queues.end(&a);
    queues.free_slot(&a);
    assert!(queues.tenants.is_empty());
}

#[test]
fn jobs_that_wait_for_a_hanging_server_take_no_slots_of_others() {
    let mut queues = Queues::new(4, 80);
    let shard = |tenant: &Tenant| ShardId::named(tenant.as_str());
    queues.shard_by(Shards::from_grouping(shard));
    let [a, b] = ["a", "b"].map(tenant);
    fill_limited(&mut queues, "a", 0..9);
    fill_limited(&mut queues, "b", 10..12);
    let turns = queues.take_round(3, |it| it == shard(&a), |_, _| usize::MAX);
    assert_eq!(turns.len(), 1);
    assert_eq!((turns[0].0, turns[0].1.keys.len()), (shard(&a), 3));
    let is_open = |it| it != shard(&a);
    assert_eq!((queues.ready(is_open), queues.ready(|_| true)), (2, 8));
    assert!(queues.may_ask(is_open) && !queues.may_ask(|_| false));
    let turns = queues.take_round(100, is_open, |_, _| usize::MAX);
    assert_eq!((turns[0].1.tenant.clone(), turns[0].1.keys.len()), (b, 2));
    assert!(!queues.may_ask(is_open));
}

#[test]
fn held_jobs_are_bounded_for_one_tenant_and_for_all() {
    let mut queues = Queues::new(1, 16);
    let held = |queues: &mut Queues, name: &str| {
        (0..99)
            .take_while(|_| queues.try_hold(&tenant(name)))
            .count()
    };
    let each: Vec<usize> = ["a", "b", "c", "d", "e"]
        .map(|t| held(&mut queues, t))
        .into();
    assert_eq!(each, [2, 2, 2, 2, 0]);
    queues.release(&tenant("a"));
    assert_eq!(held(&mut queues, "e"), 1);
}

#[test]
fn jobs_that_wait_too_long_for_a_slot_make_room_in_order() {
    let mut queues = Queues::new(4, 16);
    let a = tenant("a");
    fill(&mut queues, "a", 0..6);
    let second = Duration::from_secs(1);
    // One second, on average.
    queues.record_call_duration(16 * second);
    queues.set_limited(&a, true);
    assert_eq!(
        queues.take_surplus(second, second * 9, |_| true),
        [],
        "they ask without a slot"
    );
    queues.set_limited(&a, false);
    assert_eq!(
        queues.take_surplus(second, second * 9, |_| false),
        [],
        "nobody waited for long"
    );
    let surplus = queues.take_surplus(second, second * 3 / 2, |_| true);
    let at = |halves: u32| second + second / 2 * halves;
    assert_eq!(
        surplus,
        [
            (JobKey(2), at(1)),
            (JobKey(3), at(2)),
            (JobKey(4), at(3)),
            (JobKey(5), at(3)),
        ]
    );
    assert_eq!(ready(&queues), 2);
}

#[test]
fn only_running_jobs_outlive_a_session() {
    let mut queues = Queues::new(4, 80);
    fill(&mut queues, "a", 0..2);
    queues.take_slot(&tenant("b"));
    queues.start(&tenant("b"));
    queues.take_slot(&tenant("a"));
    assert!(queues.try_hold(&tenant("a")));
    queues.forget_waiting();
    assert_eq!((ready(&queues), queues.held(), queues.running()), (0, 0, 1));
    assert!(!may_ask(&queues));
    queues.end(&tenant("b"));
    assert!(queues.tenants.is_empty());
}

#[test]
fn jobs_without_a_slot_are_checked_from_time_to_time() {
    let mut queues = Queues::new(4, 16);
    fill(&mut queues, "a", 0..6);
    let second = Duration::from_secs(1);
    queues.set_limited(&tenant("a"), true);
    assert_eq!(queues.surplus_at(), None, "they ask without one");
    queues.set_limited(&tenant("a"), false);
    assert_eq!(queues.surplus_at(), Some(Duration::ZERO));
    assert!(queues.should_check_surplus(second, second));
    assert!(!queues.should_check_surplus(second * 2 - second / 9, second));
    assert_eq!(queues.surplus_at(), Some(second * 2));
    assert!(queues.should_check_surplus(second * 2, Duration::ZERO));
    assert!(
        !queues.should_check_surplus(second * 2, Duration::ZERO),
        "a pause at least"
    );
}

#[test]
fn a_suspended_tenant_asks_once_all_its_suspensions_have_ended() {
    let mut queues = Queues::new(4, 80);
    let a = tenant("a");
    queues.suspend(&a);
    fill(&mut queues, "a", 0..2);
    queues.suspend(&a);
    assert!(!may_ask(&queues));
    fill(&mut queues, "b", 10..11);
    let turns = take_round(&mut queues, 10);
    assert_eq!((turns.len(), turns[0].tenant.as_str()), (1, "b"));
    queues.end_suspension(&a);
    assert!(!may_ask(&queues), "one suspension is left");
    queues.end_suspension(&a);
    assert_eq!(take_round(&mut queues, 10)[0].keys, [JobKey(0), JobKey(1)]);
}

#[test]
fn with_few_slots_tenants_take_turns_and_one_with_half_of_them_waits_in_front() {
    let mut queues = Queues::new(2, 80);
    for (at, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
        let first = 10 * at as u64;
        fill(&mut queues, name, first..first + 2);
    }
    // It has one of two slots, the maximum while other tenants wait.
    queues.take_slot(&tenant("a"));
    let mut served = Vec::new();
    for _ in 0..6 {
        for turn in take_round(&mut queues, 10) {
            served.push(format!("{} {}", turn.tenant, turn.keys.len()));
        }
    }
    assert_eq!(served, ["b 1", "c 1", "d 1", "b 1", "c 1", "d 1"]);
    queues.free_slot(&tenant("a"));
    let turns = take_round(&mut queues, 10);
    assert_eq!((turns[0].tenant.as_str(), turns[0].keys.len()), ("a", 2));
    assert!(!may_ask(&queues));
}

mod random {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum QueueStep {
        Join(usize, usize),
        Round(usize),
        Limited(usize, bool),
        Suspend(usize),
        Slot(usize),
        Surplus,
        Stale(u64),
        Forget,
    }

    fn step() -> impl Strategy<Value = QueueStep> {
        prop_oneof![
            6 => (0..5_usize, 0..5_usize).prop_map(|(who, end)| QueueStep::Join(who, end)),
            3 => (1..9_usize).prop_map(QueueStep::Round),
            2 => (0..5_usize, any::<bool>()).prop_map(|(who, limited)| QueueStep::Limited(who, limited)),
            1 => (0..5_usize).prop_map(QueueStep::Suspend),
            1 => (0..5_usize).prop_map(QueueStep::Slot),
            1 => Just(QueueStep::Surplus),
            1 => (1..5_u64).prop_map(QueueStep::Stale),
            1 => Just(QueueStep::Forget),
        ]
    }

    proptest! {
        #[test]
        fn the_sums_are_those_of_the_tenants(steps in prop::collection::vec(step(), 1..80)) {
            let tenants = ["a", "b", "c", "d", "e"].map(tenant);
            let mut queues = Queues::new(4, 16);
            let mut suspended = std::collections::BTreeSet::new();
            queues.shard_by(Shards::from_grouping(|tenant| ShardId::named(match tenant.as_str() {
                "a" | "b" => "one",
                _ => "other",
            })));
            for (key, step) in steps.into_iter().enumerate() {
                match step {
                    QueueStep::Join(who, end) => {
                        let ends = [
                            QueuePosition::FrontPrepared,
                            QueuePosition::Prepared,
                            QueuePosition::Front,
                            QueuePosition::Due,
                            QueuePosition::Fresh,
                        ];
                        queues.join(&tenants[who], JobKey(key as u64), ends[end]);
                    }
                    QueueStep::Round(max) => {
                        let turns = take_round(&mut queues, max);
                        prop_assert!(turns.iter().all(|turn| !suspended.contains(&turn.tenant)));
                    }
                    QueueStep::Suspend(who) => match suspended.remove(&tenants[who]) {
                        true => queues.end_suspension(&tenants[who]),
                        false => {
                            queues.suspend(&tenants[who]);
                            suspended.insert(tenants[who].clone());
                        }
                    },
                    QueueStep::Limited(who, limited) => queues.set_limited(&tenants[who], limited),
                    QueueStep::Slot(who) => {
                        if queues.try_slot(&tenants[who]) && key % 2 == 0 {
                            queues.free_slot(&tenants[who]);
                        }
                    }
                    QueueStep::Surplus => {
                        let second = Duration::from_secs(1);
                        queues.take_surplus(second, second, |_| true);
                    }
                    QueueStep::Stale(part) => drop(queues.take_stale(|key| key.0 % part == 0)),
                    QueueStep::Forget => queues.forget_waiting(),
                }
                let mut expected = BTreeMap::<ShardId, ShardSum>::new();
                let asks = |state: &&TenantState| state.ready() > 0 && state.suspensions == 0;
                for state in queues.tenants.values().filter(asks) {
                    let sum = expected.entry(state.shard).or_default();
                    sum.ready += state.ready();
                    sum.at_once += state.asking(0);
                }
                prop_assert_eq!(queues.sums.each().collect::<BTreeMap<_, _>>(), expected);
                let queued = queues.tenants.values().filter(|state| state.queued).count();
                prop_assert_eq!(queues.rotation.len(), queued, "each once");
            }
        }
    }
}
