//! Tests the data on limits that is read regardless of an answer's status: a used-up limit, the
//! API's own limits, the cost.

use super::*;

fn see(status: u16, headers: &[(&str, &str)]) -> LimitInfo {
    interpret(status, headers).2
}

/// Returns the meaning of an answer, whether it is a failure of the API, and its data on limits.
fn interpret(status: u16, headers: &[(&str, &str)]) -> (Consequence, bool, LimitInfo) {
    let mut all = vec![("Date", DATE)];
    all.extend_from_slice(headers);
    let answer = ReceivedAnswer {
        status,
        headers: &answers::headers(all),
        body: None,
    };
    let now = UNIX_EPOCH + Duration::from_secs(DATE_S + 3_600);
    let answers = Answers::default();
    let verdict = verdict(&answers, &answer, now);
    (verdict.meaning, verdict.is_failure, verdict.seen)
}

/// Returns for how many seconds an answer with these headers throttles the tenant.
fn closes(status: u16, headers: &[(&str, &str)]) -> Option<u64> {
    let seen = see(status, headers);
    assert!(seen.refused.is_none() || seen.used_up.is_none());
    let wait = match seen.refused {
        Some(refused) => refused.after,
        None => seen.used_up,
    };
    wait.map(|wait| wait.as_secs())
}

/// Checks the limits in these headers, in the form in which the store keeps them; empty if there
/// are none.
#[track_caller]
fn quotas(headers: &[(&str, &str)], expected: &str) {
    assert_eq!(see(200, headers).quotas.text(), expected, "{headers:?}");
}

#[test]
fn no_remaining_quota_closes_for_any_status() {
    for status in [200, 201, 204, 302, 404, 500, 503, 429] {
        assert_eq!(
            closes(status, &[("RateLimit", r#""a";r=0;t=30"#)]),
            Some(30)
        );
        let counters = [("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "12")];
        assert_eq!(closes(status, &counters), Some(12), "{status}");
        let old = [("RateLimit", "limit=10, remaining=0, reset=9")];
        assert_eq!(closes(status, &old), Some(9), "{status}");
        let window = [
            ("X-RateLimit-Remaining-Hour", "0"),
            ("X-RateLimit-Reset-Hour", "1780318800"),
        ];
        assert_eq!(closes(status, &window), Some(3_600), "{status}");
    }
    assert_eq!(closes(429, &[("X-RateLimit-Reset-After", "7")]), Some(7));
    assert_eq!(closes(200, &[("X-RateLimit-Reset-After", "7")]), None);
    // Retry-After takes precedence, but alone it means something else, such as when to ask for the
    // result of a 202.
    let both = [("Retry-After", "5"), ("RateLimit", r#""a";r=0;t=30"#)];
    assert_eq!(closes(200, &both), Some(5));
    assert_eq!(closes(202, &[("Retry-After", "5")]), None);
    assert_eq!(closes(503, &[("Retry-After", "5")]), Some(5));
    // A refusal throttles as before.
    assert_eq!(see(429, &[]).refused, Some(Pushback { after: None }));
}

#[test]
fn rounded_resets_may_end_sooner() {
    let zero = ("X-RateLimit-Remaining", "0");
    for (headers, used_up_ms, rounding_ms) in [
        // Whole seconds. Times since the epoch are compared with the answer's own date, which is
        // rounded as well.
        (vec![("RateLimit", r#""a";r=0;t=3"#)], 3_000, 1_000),
        (
            vec![("RateLimit", "limit=20, remaining=0, reset=3")],
            3_000,
            1_000,
        ),
        (vec![zero, ("X-RateLimit-Reset", "3")], 3_000, 1_000),
        (
            vec![zero, ("X-RateLimit-Reset", "1780315203")],
            3_000,
            2_000,
        ),
        (
            vec![zero, ("X-RateLimit-Reset", "Mon, 01 Jun 2026 12:00:03 GMT")],
            3_000,
            2_000,
        ),
        (
            vec![zero, ("X-RateLimit-Reset", "3"), ("Retry-After", "2")],
            2_000,
            1_000,
        ),
        (vec![zero, ("X-RateLimit-Reset-After", "3")], 3_000, 1_000),
        // Milliseconds.
        (vec![zero, ("X-RateLimit-Reset-After", "3.25")], 3_250, 0),
        (vec![zero, ("X-RateLimit-Reset", "3.5")], 3_500, 0),
        (
            vec![zero, ("X-RateLimit-Reset", "1780315203123")],
            3_123,
            1_000,
        ),
        // No pause is shorter than a second.
        (vec![zero, ("X-RateLimit-Reset", "0.25")], 1_000, 750),
        (vec![zero, ("X-RateLimit-Reset", "1")], 1_000, 1_000),
    ] {
        let seen = see(200, &headers);
        let ms = |time: Duration| u64::try_from(time.as_millis()).expect("short");
        let found = (seen.used_up.map(ms), ms(seen.rounding));
        assert_eq!(found, (Some(used_up_ms), rounding_ms), "{headers:?}");
    }
    assert_eq!(
        see(429, &[zero, ("X-RateLimit-Reset", "3")]).rounding,
        Duration::ZERO
    );
}

#[test]
fn remaining_quota_closes_nothing() {
    for header in [
        ("RateLimit", r#""a";r=1;t=30"#),
        ("RateLimit", r#""a";r=0"#),
        ("RateLimit", r#""a";r=0;t=0"#),
        ("RateLimit", r#""a";r=0;t=30, !"#),
        ("RateLimit-Policy", r#""a";q=0;w=30"#),
        ("X-RateLimit-Reset", "30"),
        ("X-RateLimit-Remaining", "0"),
    ] {
        assert_eq!(closes(200, &[header]), None, "{header:?}");
    }
    for (remaining, reset) in [
        ("1", "30"),
        ("0.5", "30"),
        ("-1", "30"),
        ("0", "1780315100"),
    ] {
        let headers = [
            ("RateLimit-Remaining", remaining),
            ("RateLimit-Reset", reset),
        ];
        assert_eq!(closes(200, &headers), None, "{headers:?}");
    }
}

/// Tyk sends them for keys without a quota.
#[test]
fn a_limit_of_zero_or_less_is_no_limit() {
    let means = |status, headers: &[(&str, &str)]| {
        let (meaning, is_failure, _) = interpret(status, headers);
        (meaning, is_failure)
    };
    for limit in ["0", "-1", " -1 "] {
        let counters = [
            ("X-RateLimit-Limit", limit),
            ("X-RateLimit-Remaining", "0"),
            ("X-RateLimit-Reset", "30"),
        ];
        let dictionary = format!("limit={}, remaining=0, reset=30", limit.trim());
        for headers in [&counters[..], &[("RateLimit", &*dictionary)]] {
            assert_eq!(closes(200, headers), None, "{headers:?}");
            assert_eq!(means(400, headers), (Consequence::Reject, false));
            assert_eq!(means(502, headers), (Consequence::Retry, true));
            assert_eq!(closes(429, headers), Some(30), "{headers:?}");
            quotas(headers, "");
        }
        // Another limit has its own headers.
        let hour = [
            ("X-RateLimit-Remaining-Hour", "0"),
            ("X-RateLimit-Reset-Hour", "7"),
        ];
        let both = [&counters[..], &hour].concat();
        assert_eq!(closes(200, &both), Some(7), "{limit}");
    }
    for limit in ["-", "none", "-x", ""] {
        let headers = [
            ("X-RateLimit-Limit", limit),
            ("X-RateLimit-Remaining", "0"),
            ("X-RateLimit-Reset", "30"),
        ];
        assert_eq!(closes(200, &headers), Some(30), "{limit}");
    }
}

#[test]
fn cached_answers_do_not_count() {
    let limit = ("RateLimit", r#""a";r=0;t=30"#);
    let reset = ("X-RateLimit-Reset", "30");
    assert_eq!(see(200, &[limit, ("Age", "7")]), LimitInfo::default());
    assert_eq!(
        see(429, &[limit, reset, ("Age", "7")]).refused,
        Some(Pushback { after: None })
    );
    assert_eq!(closes(429, &[("Retry-After", "5"), ("Age", "7")]), Some(5));
    // Caches send 0 for an answer that they only passed on.
    for age in ["0", "?", "-1", ""] {
        assert_eq!(closes(200, &[limit, ("Age", age)]), Some(30), "{age:?}");
    }
}

#[test]
fn structured_fields_report_limits() {
    let default = ("RateLimit-Policy", r#""default";q=100;w=10"#);
    quotas(&[default], "100/10");
    let policy = (
        "RateLimit-Policy",
        r#""daily";q=1000;w=86400;pk=:dHJpYWw=:,"burst";q=100;w=60"#,
    );
    quotas(&[policy], "100/60,1000/86400");
    // The remaining quota does not show the limit.
    let left = ("RateLimit", r#""daily";r=5;t=70"#);
    quotas(&[policy, left], "100/60,1000/86400");
    quotas(&[left], "");
    quotas(&[("RateLimit-Policy", r#""a";q=5"#)], "5/0");
    // Lines may repeat. Of two limits with the same window the lower one counts.
    quotas(&[default, policy], "100/10,100/60,1000/86400");
    let lower = ("RateLimit-Policy", r#""user";q=7;w=10"#);
    quotas(&[default, lower], "7/10");
    // Structured fields take precedence over the older ones.
    quotas(&[default, ("X-RateLimit-Limit-Minute", "20")], "100/10");
    quotas(&[default, ("Age", "5")], "");
}

#[test]
fn limits_of_other_things_than_calls_are_not_shown() {
    for unit in [
        r#""content-bytes""#,
        "content-bytes",
        r#""concurrent-requests""#,
        "1",
    ] {
        let policy = format!(r#""a";q=65535;w=10;qu={unit}"#);
        let headers = [
            ("RateLimit-Policy", policy.as_str()),
            ("RateLimit", r#""a";r=0;t=4"#),
        ];
        quotas(&headers, "");
        // A used-up limit throttles nonetheless.
        assert_eq!(closes(200, &headers), Some(4), "{unit}");
    }
    let calls = [("RateLimit-Policy", r#""a";q=5;w=10;qu="requests""#)];
    quotas(&calls, "5/10");
}

#[test]
fn older_header_forms_report_limits() {
    let dictionary = ("RateLimit", "limit=100, remaining=50, reset=5");
    quotas(&[dictionary], "100/0");
    let policy = ("RateLimit-Policy", "10;w=1, 100;w=60");
    quotas(&[dictionary, policy], "10/1,100/60");
    for (name, value, expected) in [
        ("RateLimit-Limit", "100", "100/0"),
        ("RateLimit-Limit", "100, 100;w=60", "100/60"),
        (
            "RateLimit-Limit",
            "100, 10;w=1, 100;w=60;burst=1000",
            "10/1,100/60",
        ),
        ("X-RateLimit-Limit", "100", "100/0"),
        ("X-Rate-Limit-Limit", "100", "100/0"),
        ("X-RateLimit-Limit-Minute", "100", "100/60"),
    ] {
        quotas(&[(name, value)], expected);
    }
    let kong = [
        ("X-RateLimit-Limit-Minute", "20"),
        ("X-RateLimit-Remaining-Minute", "19"),
        ("X-RateLimit-Limit-Hour", "500"),
        ("X-RateLimit-Limit-Fortnight", "8"),
    ];
    quotas(&kong, "20/60,500/3600,8/0");
    quotas(&[kong[0], dictionary], "100/0");
}

#[test]
fn headers_without_a_usable_limit_are_ignored() {
    for header in [
        ("X-RateLimit-Reset", "30"),
        ("X-RateLimit-Limit", "many"),
        ("X-RateLimit-Limit", "-1"),
        ("X-RateLimit-Limit", ""),
        ("RateLimit", r#""a";t=30"#),
        ("RateLimit", "1, 2"),
        ("RateLimit-Policy", r#""a";w=30"#),
        ("RateLimit-Policy", r#""a";q=-1;w=30"#),
        ("RateLimit-Policy", r#""a";q=5;w=30,"#),
        ("X-Shopify-Shop-Api-Call-Limit", "40/40"),
    ] {
        quotas(&[header], "");
    }
}

#[test]
fn the_actual_cost() {
    for (value, expected) in [
        ("0", Some(0)),
        ("007", Some(7)),
        (" 12 ", Some(12)),
        ("150000000", Some(150_000_000)),
        ("18446744073709551615", Some(u64::MAX)),
        ("18446744073709551616", None),
        ("99999999999999999999999", None),
        ("-1", None),
        ("+1", None),
        ("1.0", None),
        ("1e3", None),
        ("1, 2", None),
        ("\u{661}", None),
        ("", None),
    ] {
        let seen = see(200, &[("X-Actual-Cost", value)]);
        assert_eq!(seen.actual_cost, expected, "{value:?}");
    }
    let (five, six, none) = (
        ("x-actual-cost", "5"),
        ("x-actual-cost", "6"),
        ("x-actual-cost", "?"),
    );
    assert_eq!(see(200, &[five, five]).actual_cost, Some(5));
    assert_eq!(see(200, &[five, six]).actual_cost, None);
    assert_eq!(see(200, &[five, none]).actual_cost, None);
    assert_eq!(see(200, &[none, five]).actual_cost, None);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic_or_leave_the_bounds(
        status in prop::sample::select(vec![200_u16, 302, 429, 500, 503, 999]),
        headers in prop::collection::vec((
            prop::sample::select(vec![
                "Date", "Age", "Retry-After", "RateLimit", "RateLimit-Policy", "RateLimit-Limit", "RateLimit-Remaining",
                "RateLimit-Reset", "X-RateLimit-Limit-Hour", "X-RateLimit-Remaining-Hour", "X-RateLimit-Reset-Hour",
                "x-ratelimit-", "x-actual-cost", "?",
            ]),
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..48),
                "[0-9]{0,30}(\\.[0-9]{0,30})?".prop_map(String::into_bytes),
                "[\"a-z=;:,() ]{0,12}\"a\";r=0;t=[0-9]{1,16}".prop_map(String::into_bytes),
                "\"a\";[rq]=-?[0-9]{1,16};[tw]=[0-9]{1,16}(, \"b\";[rq]=[0-9]{1,3};[tw]=[0-9]{1,3})?".prop_map(String::into_bytes),
                "(limit|remaining)=[0-9]{1,15}, remaining=0, reset=[0-9]{1,15}".prop_map(String::into_bytes),
                "[0-9]{1,15}(, [0-9]{1,15};w=[0-9]{1,15}){0,3}".prop_map(String::into_bytes),
                "Mon, 01 Jun [0-9]{4} [0-9]{2}:00:00 GMT".prop_map(String::into_bytes),
            ],
        ), 0..8),
        now in any::<u32>(),
    ) {
        let now = UNIX_EPOCH + Duration::from_secs(now.into());
        let headers = answers::headers(headers);
        let answer = ReceivedAnswer { status, headers: &headers, body: None };
        let answers = Answers::default();
        let Interpretation { meaning, seen, .. } = verdict(&answers, &answer, now);
        for wait in [seen.refused.and_then(|refused| refused.after), seen.used_up] {
            prop_assert!(wait.is_none_or(|wait| (MIN_THROTTLE..=MAX_THROTTLE).contains(&wait)));
        }
        prop_assert!(seen.refused.is_none() || seen.used_up.is_none());
        prop_assert_eq!(seen.refused.is_some(), meaning == Consequence::Throttle);
        for quota in seen.quotas.iter() {
            prop_assert!(quota.limit > 0);
            prop_assert!(quota.window.is_none_or(|window| !window.is_zero() && window <= MAX_THROTTLE));
        }
    }
}
