use proptest::prelude::*;

use super::*;

/// Wed, 21 Oct 2015 07:28:00 GMT
const THEN: u64 = 1_445_412_480;
const THEN_DATE: (&str, &str) = ("Date", "Wed, 21 Oct 2015 07:28:00 GMT");

fn read(status: u16, headers: &[(&str, &str)]) -> Option<Pushback> {
    let headers = headers
        .iter()
        .map(|(name, value)| (*name, value.as_bytes()));
    // A clock that is far off, where the response says what time it is.
    pushback(
        status,
        headers,
        UNIX_EPOCH + Duration::from_secs(THEN + 777_777),
    )
}

/// The milliseconds that a 429 with these headers, sent at `THEN`, closes a tenant for.
#[track_caller]
fn check(headers: &[(&str, &str)], expected_ms: impl Into<Option<u64>>) {
    let mut headers = headers.to_vec();
    headers.push(THEN_DATE);
    let after = expected_ms.into().map(Duration::from_millis);
    assert_eq!(read(429, &headers), Some(Pushback { after }), "{headers:?}");
}

#[test]
fn only_a_429_or_a_503_with_a_date_or_delay_asks_for_a_pause() {
    let delay = ("Retry-After", "7");
    let seven = Some(Pushback {
        after: Some(Duration::from_secs(7)),
    });
    assert_eq!(read(429, &[delay]), seven);
    assert_eq!(read(503, &[delay]), seven);
    assert_eq!(read(429, &[]), Some(Pushback { after: None }));
    assert_eq!(read(503, &[]), None);
    assert_eq!(read(503, &[("Retry-After", "soon")]), None);
    assert_eq!(read(503, &[("X-RateLimit-Reset", "7")]), None);
    for status in [200, 301, 400, 403, 500, 502] {
        assert_eq!(read(status, &[delay]), None);
    }
}

#[test]
fn retry_after_is_seconds_or_a_date() {
    check(&[("Retry-After", "120")], 120_000);
    check(&[("RETRY-AFTER", " 3 ")], 3_000);
    check(&[("retry-after", "0")], 1_000);
    check(&[("Retry-After", "1.5")], 1_500);
    check(&[("Retry-After", "0.0001")], 1_000);
    check(&[("Retry-After", "2.0001")], 2_001);
    check(&[("Retry-After", "Wed, 21 Oct 2015 07:28:30 GMT")], 30_000);
    // The obsolete forms that RFC 9110 wants understood.
    check(
        &[("Retry-After", "Wednesday, 21-Oct-15 07:29:00 GMT")],
        60_000,
    );
    check(&[("Retry-After", "Wed Oct 21 07:29:00 2015")], 60_000);
    check(&[("Retry-After", "Wed, 21 Oct 2015 07:00:00 GMT")], 1_000);
    // Not by the standard, but by their size there is no other reading.
    check(&[("Retry-After", "1445412490")], 10_000);
    check(&[("Retry-After", "2"), ("Retry-After", "9")], 9_000);
    check(&[("Retry-After", "x"), ("Retry-After", "9")], 9_000);
}

#[test]
fn what_is_malformed_counts_as_absent() {
    for bad in [
        "", " ", "-1", "+5", "5s", "1e3", "0x10", ".5", "5.", "1.2.3", "1,2", "NaN", "ä",
    ] {
        check(&[("Retry-After", bad)], None);
        check(&[("Retry-After", bad), ("X-RateLimit-Reset", "4")], 4_000);
        check(&[("X-RateLimit-Reset", bad)], None);
        check(&[("RateLimit", bad)], None);
    }
    check(&[("Retry-After", "Wed, 41 Oct 2015 07:28:30 GMT")], None);
}

#[test]
fn without_a_date_our_clock_counts() {
    let after = |value| {
        let headers = [("retry-after", value)];
        let now = UNIX_EPOCH + Duration::from_secs(THEN);
        pushback(429, headers, now).and_then(|p| p.after)
    };
    let half_a_minute = Some(Duration::from_secs(30));
    assert_eq!(after(&b"Wed, 21 Oct 2015 07:28:30 GMT"[..]), half_a_minute);
    let headers = [
        ("date", &b"yesterday"[..]),
        ("retry-after", &b"Wed, 21 Oct 2015 07:28:30 GMT"[..]),
    ];
    let now = UNIX_EPOCH + Duration::from_secs(THEN);
    let pause = pushback(429, headers, now);
    assert_eq!(pause.and_then(|p| p.after), half_a_minute);
}

#[test]
fn no_wait_is_endless() {
    let longest = u64::try_from(LONGEST.as_millis()).ok();
    check(&[("Retry-After", "99999999999999999999999999")], longest);
    check(&[("Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT")], longest);
    check(&[("RateLimit", "\"a\";r=0;t=999999999999999")], longest);
}

#[test]
fn rate_limit_counts_where_nothing_remains() {
    check(&[("RateLimit", r#""default";r=0;t=30"#)], 30_000);
    check(&[("RateLimit", r#""default";r=50;t=30"#)], None);
    check(&[("RateLimit", r#""default";r=0"#)], None);
    check(&[("RateLimit", r#""default";t=30"#)], None);
    check(&[("RateLimit", r#""default";r=0;t=-3"#)], None);
    check(&[("RateLimit", r#""default";r=0;t=soon"#)], None);
    check(
        &[(
            "RateLimit",
            r#""problemPolicy";r=0;t=10;pk=:dHJpYWwxMjEzMjM=:;x"#,
        )],
        10_000,
    );
    let two = r#""burst";r=0;t=5, "daily";r=0;t=600, "hour";r=3;t=3000"#;
    check(&[("RateLimit", two)], 600_000);
    check(
        &[
            ("RateLimit", r#""burst";r=0;t=5"#),
            ("RateLimit", r#""daily";r=0;t=600"#),
        ],
        600_000,
    );
    // -08 and -09 named policies by tokens.
    check(&[("RateLimit", "default;r=0;t=8")], 8_000);
    // One bad item spoils the field, as structured fields have it.
    check(&[("RateLimit", r#""a";r=0;t=5, "b"#)], None);
}

#[test]
fn rate_limit_was_a_dictionary() {
    check(&[("RateLimit", "limit=100, remaining=0, reset=5")], 5_000);
    check(&[("RateLimit", "limit=100, remaining=9, reset=5")], None);
    check(&[("RateLimit", "limit=100, remaining=0")], None);
    check(&[("RateLimit", "remaining=(0), reset=5")], None);
    check(
        &[
            ("RateLimit", "limit=10, remaining=0"),
            ("RateLimit", "reset=6"),
        ],
        6_000,
    );
}

#[test]
fn a_reset_is_told_apart_by_its_size() {
    for name in [
        "RateLimit-Reset",
        "X-RateLimit-Reset",
        "x-ratelimit-reset",
        "X-Rate-Limit-Reset",
    ] {
        check(&[(name, "30")], 30_000);
        check(&[(name, &(THEN + 30).to_string())], 30_000);
        check(&[(name, &((THEN + 30) * 1_000 + 250).to_string())], 30_250);
        check(&[(name, &format!("{}.470", THEN + 30))], 30_470);
        check(&[(name, "Wed, 21 Oct 2015 07:28:30 GMT")], 30_000);
        check(&[(name, &(THEN - 30).to_string())], 1_000);
    }
}

#[test]
fn the_resets_of_windows_count_where_nothing_of_theirs_remains() {
    let kong = [
        ("X-RateLimit-Limit-Minute", "5"),
        ("X-RateLimit-Remaining-Minute", "0"),
        ("X-RateLimit-Reset-Minute", "42"),
        ("X-RateLimit-Remaining-Hour", "17"),
        ("X-RateLimit-Reset-Hour", "3000"),
    ];
    check(&kong, 42_000);
    check(&[("X-RateLimit-Reset-Hour", "3000")], None);
}

#[test]
fn the_first_form_that_says_something_wins() {
    let retry_after = ("Retry-After", "1");
    let rate_limit = ("RateLimit", r#""default";r=0;t=2"#);
    let reset = ("X-RateLimit-Reset", "3");
    check(&[reset, rate_limit, retry_after], 1_000);
    check(&[reset, rate_limit], 2_000);
    check(&[reset, ("RateLimit", r#""default";r=1;t=2"#)], 3_000);
}

#[test]
fn real_answers_are_understood() {
    // GitHub, secondary limit: quota remains, and only the reset says when.
    check(
        &[
            ("X-RateLimit-Limit", "5000"),
            ("X-RateLimit-Remaining", "4987"),
            ("X-RateLimit-Reset", "1445412540"),
            ("X-RateLimit-Resource", "core"),
        ],
        60_000,
    );
    // Discord: everything at once.
    check(
        &[
            ("Retry-After", "65"),
            ("X-RateLimit-Limit", "10"),
            ("X-RateLimit-Remaining", "0"),
            ("X-RateLimit-Reset", "1445412545.123"),
            ("X-RateLimit-Reset-After", "64.57"),
            ("X-RateLimit-Scope", "user"),
        ],
        65_000,
    );
    // Zalando's guidelines: seconds.
    check(
        &[
            ("X-RateLimit-Limit", "60"),
            ("X-RateLimit-Remaining", "0"),
            ("X-RateLimit-Reset", "17"),
        ],
        17_000,
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic_and_stay_in_bounds(
        status in prop_oneof![Just(429u16), Just(503), any::<u16>()],
        headers in prop::collection::vec(
            (
                prop::sample::select(vec![
                    "date", "retry-after", "RateLimit", "ratelimit-reset", "x-rate-limit-reset",
                    "X-RateLimit-Remaining", "x-ratelimit-", "",
                ]),
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..40),
                    "[0-9.]{0,40}".prop_map(String::into_bytes),
                    "\"a\";r=[0-9]{1,20};t=-?[0-9]{1,20}".prop_map(String::into_bytes),
                    "[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9:]{8} GMT"
                        .prop_map(String::into_bytes),
                ],
            ),
            0..6,
        ),
        now in any::<u32>(),
    ) {
        let headers = headers.iter().map(|(name, value)| (*name, value.as_slice()));
        let now = UNIX_EPOCH + Duration::from_secs(now.into());
        let after = pushback(status, headers, now).and_then(|p| p.after);
        prop_assert!(after.is_none_or(|after| (SHORTEST..=LONGEST).contains(&after)));
    }

    #[test]
    fn every_delay_is_kept(seconds in 1u64..EPOCH_S) {
        check(&[("Retry-After", &seconds.to_string())], seconds * 1_000);
        check(&[("X-RateLimit-Reset", &seconds.to_string())], seconds * 1_000);
        check(&[("RateLimit", &format!("\"a\";r=0;t={seconds}"))], seconds * 1_000);
    }
}
