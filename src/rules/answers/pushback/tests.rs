mod limit_info;

use std::time::UNIX_EPOCH;

use proptest::prelude::*;

use super::*;
use crate::answers::{self, AnswerRules, Conditions, StatusPattern};

/// The date of the answers in these tests.
const DATE: &str = "Mon, 01 Jun 2026 12:00:00 GMT";
const DATE_S: u64 = 1_780_315_200;

/// Returns the pause that the API asks for.
fn pushback<'a>(
    status: u16,
    headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    now: SystemTime,
) -> Option<Pushback> {
    let answer = ReceivedAnswer {
        status,
        headers: &answers::headers(headers),
        body: None,
    };
    verdict(&Answers::default(), &answer, now).seen.refused
}

fn read(status: u16, headers: &[(&str, &str)]) -> Option<Pushback> {
    let headers = headers
        .iter()
        .map(|(name, value)| (*name, value.as_bytes()));
    // Our clock is an hour off.
    pushback(
        status,
        headers,
        UNIX_EPOCH + Duration::from_secs(DATE_S + 3_600),
    )
}

/// Checks that a 429 of [`DATE`] with these headers throttles the tenant for `expected`
/// milliseconds.
#[track_caller]
fn check(headers: &[(&str, &str)], expected: Option<u64>) {
    let mut headers = headers.to_vec();
    headers.push(("Date", DATE));
    let after = expected.map(Duration::from_millis);
    assert_eq!(read(429, &headers), Some(Pushback { after }), "{headers:?}");
}

#[test]
fn the_status_says_whether_the_headers_count() {
    let headers = [("retry-after", "7")];
    let seven = Some(Pushback {
        after: Some(Duration::from_secs(7)),
    });
    assert_eq!(read(429, &headers), seven);
    assert_eq!(read(503, &headers), seven);
    assert_eq!(read(429, &[]), Some(Pushback { after: None }));
    for unusable in [
        ("retry-after", "soon"),
        ("x-ratelimit-reset", "7"),
        ("ratelimit", "\"a\";r=1;t=7"),
    ] {
        assert_eq!(read(503, &[unusable]), None);
    }
    assert_eq!(read(403, &headers), seven);
    assert_eq!(read(403, &[]), None);
    for status in [200, 302, 400, 408, 409, 500, 502] {
        assert_eq!(read(status, &headers), None);
    }
}

#[test]
fn a_failure_with_no_remaining_quota_is_a_refusal() {
    let after = |seconds| Pushback {
        after: Some(Duration::from_secs(seconds)),
    };
    let github = [
        ("x-ratelimit-limit", "60"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "1780318860"),
    ];
    for status in [400, 402, 403, 404, 420, 500, 503, 509] {
        assert_eq!(read(status, &github), Some(after(60)), "{status}");
        let structured = [("ratelimit", r#""a";r=0;t=9"#)];
        assert_eq!(read(status, &structured), Some(after(9)), "{status}");
        let kong = [
            ("x-ratelimit-remaining-minute", "0"),
            ("x-ratelimit-reset-minute", "7"),
        ];
        assert_eq!(read(status, &kong), Some(after(7)), "{status}");
        // The answer does not say until when.
        let bare = Some(Pushback { after: None });
        assert_eq!(read(status, &[("ratelimit-remaining", "0")]), bare);
        for left in ["1", "0.5", "none"] {
            let headers = [("x-ratelimit-remaining", left), github[2]];
            assert_eq!(read(status, &headers), None, "{status} {left}");
        }
        let one = ("x-ratelimit-limit", "1");
        for always_so in [
            &[one, github[1], github[2]][..],
            &[("ratelimit", "limit=1, remaining=0, reset=9")],
            &[
                ("ratelimit-policy", r#""a";q=1;w=1"#),
                ("ratelimit", r#""a";r=0;t=1"#),
            ],
        ] {
            assert_eq!(read(status, always_so), None, "{status} {always_so:?}");
        }
        assert_eq!(read(status, &[one, kong[0], kong[1]]), Some(after(7)));
        let cached = [github[1], github[2], ("age", "9")];
        assert_eq!(read(status, &cached), None, "{status}");
    }
    for status in [200, 304, 302] {
        assert_eq!(read(status, &github), None, "{status}");
    }
}

#[test]
fn retry_after() {
    for (value, expected) in [
        ("120", Some(120_000)),
        (" 3 ", Some(3_000)),
        ("2.0", Some(2_000)),
        ("1.2341", Some(1_235)),
        ("0", Some(1_000)),
        ("0.2", Some(1_000)),
        ("Mon, 01 Jun 2026 12:00:30 GMT", Some(30_000)),
        ("Monday, 01-Jun-26 12:00:30 GMT", Some(30_000)),
        ("Mon Jun  1 12:00:30 2026", Some(30_000)),
        ("Mon, 01 Jun 2026 11:00:00 GMT", Some(1_000)),
        // Against the standard, too.
        ("2026-06-01T12:00:30Z", Some(30_000)),
        // Against the standard, but a delay of 56 years can't be meant.
        ("1780315210", Some(10_000)),
        ("99999999999999999999999999", Some(2_147_483_648_000)),
        ("18446744073709551615.9999", Some(2_147_483_648_000)),
        ("Fri, 31 Dec 9999 23:59:59 GMT", Some(2_147_483_648_000)),
        ("Thu, 01 Jan 1600 00:00:00 GMT", None),
        ("Mon, 41 Jun 2026 12:00:30 GMT", None),
        ("", None),
        ("-1", None),
        ("+1", None),
        ("1s", None),
        ("1e3", None),
        ("1.", None),
        (".5", None),
        ("1, 2", None),
        ("1.2.3", None),
        ("\u{661}", None),
    ] {
        check(&[("Retry-After", value)], expected);
    }
    check(&[("retry-after", "?"), ("RETRY-AFTER", "4")], Some(4_000));
    check(&[("retry-after", "9"), ("retry-after", "4")], Some(9_000));
}

/// Returns answers with a rule for one status.
fn with_rule(status: u16, means: Consequence) -> Answers {
    let rule = AnswerRule {
        when: Conditions {
            status: vec![StatusPattern::One(status)],
            ..Conditions::default()
        },
        means,
        stops_all: None,
        wait: Vec::new(),
        why: String::new(),
    };
    let (rules, cost) = (vec![rule], Vec::new());
    Answers::default().with_rules(AnswerRules { rules, cost })
}

#[test]
fn a_server_error_is_no_lesson_and_a_failure_unless_the_job_is_done() {
    use Consequence::{Done, Reject, Retry, Throttle};
    for (status, means, is_lesson, is_failure) in [
        (403, Throttle, true, false),
        (403, Retry, false, false),
        (429, Throttle, true, false),
        (503, Throttle, false, true),
        (503, Retry, false, true),
        (503, Reject, false, true),
        (503, Done, false, false),
    ] {
        let answers = with_rule(status, means);
        let answer = ReceivedAnswer {
            status,
            headers: &HeaderMap::new(),
            body: None,
        };
        let found = verdict(&answers, &answer, UNIX_EPOCH);
        assert_eq!(found.seen.refused.is_some(), means == Throttle);
        let told = (found.lesson().refused.is_some(), found.is_failure);
        assert_eq!(told, (is_lesson, is_failure), "{status} {means:?}");
    }
}

#[test]
fn a_retry_by_a_rule_without_a_source_waits_as_retry_after_says() {
    let answers = with_rule(409, Consequence::Retry);
    for (status, header, seconds) in [
        (409, ("retry-after", "30"), Some(30)),
        (409, ("retry-after", "0"), Some(1)),
        (409, ("retry-after", "soon"), None),
        (409, ("x-ratelimit-reset", "5"), None),
        (409, ("retry-after", "999999999"), Some(31 * 86_400)),
        // No rule decides.
        (500, ("retry-after", "30"), None),
    ] {
        let answer = ReceivedAnswer {
            status,
            headers: &answers::headers([header]),
            body: None,
        };
        let found = verdict(&answers, &answer, UNIX_EPOCH);
        assert_eq!(found.meaning, Consequence::Retry);
        let expected = seconds.map(Duration::from_secs);
        assert_eq!(found.retry_after, expected, "{status} {header:?}");
    }
}

#[test]
fn rate_limit() {
    for (value, expected) in [
        (r#""default";r=0;t=30"#, Some(30_000)),
        (r#""default";t=30;r=0;x=?0"#, Some(30_000)),
        (r#""a,b;c";r=0;t=30;pk=:dHJpYWw=:"#, Some(30_000)),
        (r#""default";r=50;t=30"#, None),
        (r#""default";r=0"#, None),
        (r#""default";t=30"#, None),
        (r#""default";r=0;t=-30"#, None),
        (r#""default";r=0;t=3.5"#, None),
        (r#""default";r=0;t="30""#, None),
        (r#""default";r=0;t=0"#, Some(1_000)),
        (
            r#""default";r=0;t=999999999999999"#,
            Some(2_147_483_648_000),
        ),
        (
            r#""burst";r=0;t=5, "daily";r=0;t=600, "hour";r=9;t=3000"#,
            Some(600_000),
        ),
        // One broken member makes a structured field void (RFC 9651, 4.2).
        (r#""burst";r=0;t=5, "daily"#, None),
        ("default;r=0;t=30", Some(30_000)),
        ("(\"default\");r=0;t=30", None),
        ("limit=100, remaining=0, reset=5", Some(5_000)),
        ("limit=100, remaining=50, reset=5", None),
        ("limit=100, remaining=0", None),
        ("limit=100, remaining=(0), reset=5", None),
        ("", None),
        ("\u{0}", None),
    ] {
        check(&[("RateLimit", value)], expected);
    }
    let lines = [
        ("ratelimit", "\"a\";r=0;t=5"),
        ("ratelimit", "\"b\";r=0;t=9"),
    ];
    check(&lines, Some(9_000));
}

#[test]
fn resets() {
    for name in ["RateLimit-Reset", "X-RateLimit-Reset", "X-Rate-Limit-Reset"] {
        for (value, expected) in [
            ("30", Some(30_000)),
            ("1780315230", Some(30_000)),
            ("1780315230.123", Some(30_123)),
            ("1780315230123", Some(30_123)),
            ("1780315190", Some(1_000)),
            ("Mon, 01 Jun 2026 12:00:30 GMT", Some(30_000)),
            ("2026-06-01T14:00:30+02:00", Some(30_000)),
            ("1000000000", Some(1_000_000_000_000)),
            ("-5", None),
            ("soon", None),
        ] {
            check(&[(name, value)], expected);
        }
    }
}

#[test]
fn window_resets_count_where_no_quota_remains() {
    let kong = [
        ("X-RateLimit-Remaining-Minute", "0"),
        ("X-RateLimit-Reset-Minute", "42"),
        ("X-RateLimit-Remaining-Hour", "17"),
        ("X-RateLimit-Reset-Hour", "3000"),
    ];
    check(&kong, Some(42_000));
    check(&kong[2..], None);
    check(&[("X-RateLimit-Reset-Hour", "3000")], None);
    check(
        &[("X-RateLimit-Reset", "5"), kong[0], kong[1]],
        Some(42_000),
    );
}

#[test]
fn the_first_usable_form_counts() {
    let (retry_after, rate_limit) = (("Retry-After", "1"), ("RateLimit", "\"a\";r=0;t=2"));
    let reset = ("X-RateLimit-Reset", "3");
    check(&[reset, rate_limit, retry_after], Some(1_000));
    check(&[reset, rate_limit, ("Retry-After", "x")], Some(2_000));
    check(&[reset, ("RateLimit", "\"a\";r=1;t=2")], Some(3_000));
    check(&[reset, ("RateLimit-Reset", "4")], Some(4_000));
    // Neither the quota that is left nor Discord's own header changes that.
    check(&[reset, ("X-RateLimit-Remaining", "9")], Some(3_000));
    check(&[reset, ("X-RateLimit-Reset-After", "2.5")], Some(3_000));
}

#[test]
fn without_a_date_our_clock_counts() {
    let headers = [("x-ratelimit-reset", "1780318830"), ("date", "today")];
    let after = Some(Duration::from_secs(30));
    assert_eq!(read(429, &headers), Some(Pushback { after }));
    // Only one of the two dates is readable, and it counts: a minute before the reset.
    let date = "Mon, 01 Jun 2026 12:59:30 GMT";
    for dates in [["today", date], [date, "today"]] {
        let headers = [
            ("x-ratelimit-reset", "1780318830"),
            ("date", dates[0]),
            ("date", dates[1]),
        ];
        let after = Some(Duration::from_secs(60));
        assert_eq!(read(429, &headers), Some(Pushback { after }));
    }
    // A clock before the epoch must not cause a panic.
    let headers = [("retry-after", &b"5"[..])];
    let past = UNIX_EPOCH - Duration::from_secs(9);
    let after = Some(Duration::from_secs(5));
    assert_eq!(pushback(429, headers, past), Some(Pushback { after }));
}

proptest! {
    #[test]
    fn a_delay_survives_a_round_trip(seconds in 1..1_000_000_000_u64) {
        for (name, value) in [
            ("Retry-After", seconds.to_string()),
            ("RateLimit", format!("\"a\";r=0;t={seconds}")),
            ("X-RateLimit-Reset", seconds.to_string()),
            ("X-RateLimit-Reset", (DATE_S + seconds).to_string()),
        ] {
            check(&[(name, &value)], Some(seconds * 1_000));
        }
    }
}
