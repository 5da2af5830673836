use config::Config;
use gate::UsageOfLimit;
use rules::answers::Quotas;
use rules::learned::LearnedState;
use rules::scope::{Labels, Scope};

use super::*;
use crate::advertised as api;

const NOW: u64 = 1_700_000_000_000;

fn usage(count: u64, free: u64, next_ms: u64) -> UsageOfLimit {
    UsageOfLimit {
        max: 5,
        set: 5,
        override_until_ms: 0,
        count,
        free,
        next_ms,
        waiting: 0,
        // Some jobs cost more than one unit, and the algorithm keeps no log of calls.
        widest: 2,
        calls: None,
        learned: None,
    }
}

fn given(missing: &[Scope]) -> GivenLabels {
    GivenLabels {
        given: Labels::default(),
        labels: Labels::default(),
        missing: missing.to_vec(),
    }
}

fn shown(usage: UsageOfLimit, change: impl FnOnce(&mut Inspection)) -> String {
    shown_after(&Recovery::Over, usage, change)
}

fn shown_after(
    recovery: &Recovery,
    usage: UsageOfLimit,
    change: impl FnOnce(&mut Inspection),
) -> String {
    let mut found = Inspection {
        now_ms: NOW,
        limits: vec![usage],
        shadows: Vec::new(),
        waiting: 0,
        widest: 2,
        waitlist_end_ms: 0,
        turn_ms: 0,
        blocked_until_ms: 0,
        blocked_by: String::new(),
        quotas: Quotas::default(),
        quotas_at_ms: 0,
    };
    change(&mut found);
    let tenant = Tenant::parse("acme").expect("a tenant");
    let policy = Config::default().rate_limiter.policy;
    let rows: Vec<LimitUsage> = policy.default_limits().iter().zip(&found.limits).collect();
    let ours: Vec<Limit> = rows.iter().map(|(limit, _)| (*limit).clone()).collect();
    let text = api::describe(&found, &api::compare(&found, &ours));
    let given = given(&[]);
    describe(
        &tenant,
        "rate-limiter",
        &rows,
        &given,
        (&found, &Levels::new()),
        (recovery, &WaitReason::of(&rows, &given, &found, recovery)),
    ) + &text
}

#[test]
fn times_are_relative_and_absolute() {
    let text = shown(usage(5, 0, 350), |found| {
        found.waiting = 12;
        found.waitlist_end_ms = 125_000;
        found.blocked_until_ms = NOW + 12_300;
        found.blocked_by = "429 from\nthe API".to_owned();
    });
    assert_eq!(
        text,
        "tenant    acme
source    rate-limiter
limit     default: at most 5 units of cost in any 1m: sliding-window-algo, guard 50ms; worst case in any window: 5
  used    5 of 5, 0 free
  next    in 350ms (Tue, 14 Nov 2023 22:13:20 GMT)
waitlist  12 units of cost waiting, the last is admitted in 2m 5s (Tue, 14 Nov 2023 22:15:25 GMT)
suspended ends in 12.3s (Tue, 14 Nov 2023 22:13:32 GMT): 429 from\\nthe API
why       no job is admitted before the suspension ends, in 12.3s (Tue, 14 Nov 2023 22:13:32 GMT); the waitlist has 12 units of cost ahead and ends in 2m 5s (Tue, 14 Nov 2023 22:15:25 GMT)
"
    );
}

#[test]
fn unit_costs_are_counted_as_calls_and_jobs() {
    let of_one = |count, calls, widest| UsageOfLimit {
        calls,
        widest,
        ..usage(count, 5 - count, 350)
    };
    let show = |usage: UsageOfLimit, widest| {
        shown(usage, |found| {
            found.waiting = 2;
            found.widest = widest;
        })
    };
    let text = show(of_one(5, Some(5), 1), 1);
    for line in [
        "limit     default: at most 5 calls in any 1m: sliding-window-algo, guard 50ms; worst case in any window: 5\n  used    5 of 5, 0 free\n",
        "waitlist  2 jobs waiting, ",
        "the waitlist has 2 jobs ahead",
    ] {
        assert!(text.contains(line), "{text}");
    }
    // A call of cost 3; a waiting job of cost 3; an unknown number of calls.
    for usage in [
        of_one(3, Some(1), 1),
        of_one(1, Some(1), 3),
        of_one(1, None, 1),
    ] {
        let text = show(usage, usage.widest);
        assert!(text.contains("at most 5 units of cost in any 1m"), "{text}");
        let waits = match usage.widest {
            1 => "waitlist  2 jobs waiting",
            _ => "waitlist  2 units of cost waiting",
        };
        assert!(text.contains(waits), "{text}");
    }
    let shared = UsageOfLimit {
        waiting: 9,
        ..of_one(3, Some(3), 1)
    };
    let text = show(shared, 1);
    assert!(
        text.contains("2 free, 9 jobs waiting in all waitlists"),
        "{text}"
    );
}

#[test]
fn missing_labels_are_not_guessed() {
    let path = Scope::Header("x-path".to_owned());
    let limit = |name: &str, scope: &Scope| {
        let limit = Limit::concurrent(name, 5).expect("in range");
        limit.with_scope(scope.clone())
    };
    let limits = [limit("all", &Scope::Global), limit("path", &path)];
    let (free, full) = (usage(0, 5, 0), usage(5, 0, 350));
    let show = |usages: [&UsageOfLimit; 2], missing: &[Scope]| {
        let found = Inspection {
            quotas: Quotas::default(),
            quotas_at_ms: 0,
            now_ms: NOW,
            limits: Vec::new(),
            shadows: Vec::new(),
            waiting: 7,
            widest: 1,
            waitlist_end_ms: 1,
            turn_ms: 1,
            blocked_until_ms: 0,
            blocked_by: String::new(),
        };
        let rows: Vec<LimitUsage> = limits.iter().zip(usages).collect();
        let tenant = Tenant::parse("acme").expect("a tenant");
        let used = used(&rows[1], &given(missing)).used;
        let given = given(missing);
        let text = describe(
            &tenant,
            "x",
            &rows,
            &given,
            (&found, &Levels::new()),
            (
                &Recovery::Over,
                &WaitReason::of(&rows, &given, &found, &Recovery::Over),
            ),
        );
        (text, used)
    };
    let (text, used) = show([&free, &full], std::slice::from_ref(&path));
    for line in [
        "limit     all: at most 5 calls in flight, for all tenants together\n  used    0 of 5, 5 free\n",
        "limit     path: at most 5 calls in flight, per value of the header x-path\n  used    see \
        --header x-path=…\n",
        "waitlist  one per header:x-path: see --header x-path=…\n",
        "why       no limit that all jobs of the tenant share; its other limits are per \
        header:x-path\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    assert_eq!(used, None);
    let (text, _) = show([&full, &free], &[path]);
    let why = "why       the limit all is exhausted: the next unit becomes available in 350ms \
        (Tue, 14 Nov 2023 22:13:20 GMT)\n";
    assert!(text.contains(why), "{text}");
    let (text, used) = show([&free, &full], &[]);
    assert!(text.contains("waitlist  7 jobs waiting"), "{text}");
    assert_eq!(used, Some(5));
}

#[test]
fn other_tenants_waiting_for_a_shared_limit_are_counted() {
    let shared = |waiting| UsageOfLimit {
        waiting,
        ..usage(3, 2, 0)
    };
    let text = shown(shared(9), |found| found.turn_ms = 2_000);
    assert!(
        text.contains("2 free, 9 units of cost waiting in all waitlists that share the limit\n"),
        "{text}"
    );
    assert!(
        text.contains("why       other jobs share the limit default, with 9 units of cost waiting"),
        "{text}"
    );
    let until = "takes turns with them and is admitted in 2.0s (Tue, 14 Nov 2023 22:13:22 GMT)\n";
    assert!(text.contains(until), "{text}");
    // Quota is available for all waiting units.
    let text = shown(shared(9), |_| ());
    assert!(
        text.contains("why       a job of cost 1 is admitted now\n"),
        "{text}"
    );
    // All waiting units are in the tenant's own waitlist.
    let text = shown(shared(9), |found| found.waiting = 9);
    assert!(text.contains("2 free\n"), "{text}");
}

#[test]
fn past_suspensions_are_not_shown() {
    let text = shown(usage(0, 5, 0), |found| {
        found.blocked_until_ms = 1_600_000_000_000;
        found.blocked_by = "429".to_owned();
    });
    for line in [
        "  next    now",
        "waitlist  no job waits",
        "suspended no",
        "why       a job of cost 1 is admitted now",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn the_description_names_the_cause_of_a_wait_and_overrides() {
    let operators = UsageOfLimit {
        max: 1,
        set: 1,
        override_until_ms: NOW + 1_000,
        ..usage(1, 0, 350)
    };
    let text = shown(operators, |_| {});
    for line in [
        ": at most 1 unit of cost in any 1m: ",
        "an operator set 1 instead of 5, until Tue, 14 Nov 2023 22:13:21 GMT\n",
        "  used    1 of 1, 0 free\n",
        "why       the limit default is exhausted: the next unit becomes available in 350ms",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let text = shown(usage(3, 2, 0), |found| found.waiting = 1);
    assert!(
        text.contains(
            "why       quota is available, but the waitlist has 1 unit of cost ahead and ends in "
        ),
        "{text}"
    );
}

#[test]
fn overrides_are_shown_beside_learned_limits() {
    let limit = Limit::new(
        "minute",
        rules::limit::Algorithm::SlidingWindow,
        20,
        std::time::Duration::from_secs(60),
        std::time::Duration::ZERO,
    );
    let limit = limit.expect("in range").with_band(50);
    // Lowered to 10 a minute ago, for a day.
    let learned = LearnedState::read(&format!(
        "{},10,72000000,72000000,1,{},0,0,11,1,1,{}",
        NOW - 60_000,
        NOW + 86_400_000,
        NOW - 60_000
    ));
    let show = |set: u64, max: u64| {
        let usage = UsageOfLimit {
            max,
            set,
            override_until_ms: NOW + 1_000,
            learned,
            ..usage(0, max, 0)
        };
        (
            describe_limit(&(&limit, &usage)),
            learned::describe(&limit, &usage, NOW),
        )
    };
    let (text, words) = show(40, 10);
    assert!(
        text.contains("at most 40 units") && text.contains("down to 10"),
        "{text}"
    );
    assert!(
        words.contains("learned: 10 of 40 in force since"),
        "{words}"
    );
    // An operator set less than was learned: that is in force, and learning can't lower it.
    let (text, words) = show(8, 8);
    assert!(
        text.contains("at most 8 units") && !text.contains("adaptive"),
        "{text}"
    );
    assert_eq!(words, "");
}

#[test]
fn a_job_above_an_operators_limit_starts_alone() {
    let operators = |widest| UsageOfLimit {
        max: 3,
        set: 3,
        override_until_ms: NOW + 1_000,
        waiting: widest,
        widest,
        ..usage(1, 2, 0)
    };
    let alone = "\n          a job of this backlog costs 4, but default lets only 3 start at \
        once: such a job starts alone, when the whole limit is free\n";
    for (widest, is_told) in [(3, false), (4, true)] {
        let text = shown(operators(widest), |_| {});
        assert_eq!(text.contains(alone), is_told, "{text}");
    }
}

#[test]
fn a_recovery_wait_is_shown_first_until_it_ends() {
    let waits = Recovery::Waits {
        now_ms: NOW,
        until_ms: NOW + 42_000,
        why: "it was emptied".to_owned(),
    };
    let text = shown_after(&waits, usage(0, 5, 0), |_| {});
    let end = "in 44.0s (Tue, 14 Nov 2023 22:14:04 GMT) at the latest";
    for line in [
        format!("recovery  ends {end}: Redis may have lost data: it was emptied\n"),
        format!("why       no job is admitted before the recovery wait ends, {end}\n"),
    ] {
        assert!(text.contains(&line), "{text}");
    }
    let block = |ms| move |found: &mut Inspection| found.blocked_until_ms = NOW + ms;
    let text = shown_after(&waits, usage(0, 5, 0), block(41_000));
    assert!(
        text.contains("why       no job is admitted before the recovery"),
        "{text}"
    );
    let text = shown_after(&waits, usage(0, 5, 0), block(43_000));
    assert!(
        text.contains("why       no job is admitted before the suspension"),
        "{text}"
    );
    // No worker has looked at Redis.
    let text = shown_after(&Recovery::NoWorker, usage(0, 5, 0), |_| {});
    for line in [
        "recovery  unknown: Redis is new or was emptied, and the next worker that checks it \
        decides\n",
        "why       a job of cost 1 is admitted once a worker has checked Redis\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn advertised_limits_are_shown_beside_configured_ones() {
    let text_of = |text: &str| {
        shown(usage(0, 5, 0), |found| {
            found.quotas = Quotas::read(text);
            found.quotas_at_ms = NOW;
        })
    };
    assert!(!text_of("").contains("api"));
    let text = text_of("4/60,2/0");
    for line in [
        "api       says that it takes 4 in 1m, 2 in a window that it does not name (noted Tue, 14 Nov 2023 22:13:20 GMT)\n",
        "warning   the API allows 4 calls in 1m, but the limit default admits 5: set its \
        max-requests to 4\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    for quotas in ["5/60", "2/0", "6/60"] {
        assert!(!text_of(quotas).contains("warning"), "{quotas}");
    }
}
