use std::time::UNIX_EPOCH;

use proptest::prelude::*;
use strum::VariantArray;

use super::*;
use crate::answers::{
    self, AnswerPattern, Answers, BodyPointer, ExpectedValue, Interpretation, StatusPattern,
    TimeForm, ValueTest, verdict,
};
use crate::kit::SECOND;
use crate::limit::MAX_REQUESTS;

fn place(pointer: &str) -> BodyPointer {
    BodyPointer::parse(pointer).expect(pointer)
}

fn text(text: &str) -> ValueTest {
    ValueTest::OneOf(vec![ExpectedValue::Text(text.to_owned())])
}

fn number(number: i64) -> ValueTest {
    ValueTest::OneOf(vec![ExpectedValue::Number(number)])
}

/// Returns a rule for one status that needs these values.
fn rule(
    status: &str,
    headers: &[(&str, ValueTest)],
    body: &[(&str, ValueTest)],
    means: Consequence,
) -> AnswerRule {
    let headers = headers.iter();
    let body = body.iter();
    AnswerRule {
        when: Conditions {
            status: StatusPattern::parse(status).into_iter().collect(),
            headers: headers
                .map(|(name, test)| ((*name).to_owned(), test.clone()))
                .collect(),
            body: body
                .map(|(pointer, test)| (place(pointer), test.clone()))
                .collect(),
        },
        means,
        stops_all: None,
        wait: Vec::new(),
        why: String::new(),
    }
}

fn with(rules: Vec<AnswerRule>) -> Answers {
    let rules = AnswerRules {
        rules,
        cost: Vec::new(),
    };
    Answers::default().with_rules(rules)
}

fn read<'r>(
    answers: &'r Answers,
    status: u16,
    headers: &[(&str, &str)],
    body: &str,
) -> Interpretation<'r> {
    let answer = ReceivedAnswer {
        status,
        headers: &answers::headers(headers.iter().copied()),
        body: Some(body.as_bytes()),
    };
    verdict(answers, &answer, UNIX_EPOCH + 1_795_694_400 * SECOND)
}

#[test]
fn a_value_passes_each_kind_of_condition_or_not() {
    let one_of = |values: &[&str]| {
        let values = values
            .iter()
            .map(|value| ExpectedValue::Text((*value).to_owned()));
        ValueTest::OneOf(values.collect())
    };
    for (test, good, bad) in [
        (
            text("THROTTLED"),
            &[r#""throttled""#, r#""Throttled""#][..],
            &[r#""throttle""#, "1"][..],
        ),
        (
            text("20429"),
            &["20429", r#""20429""#],
            &["2042", "[20429]"],
        ),
        (
            number(20_429),
            &["20429", r#""20429""#, "20429.0"],
            &["20428", "true", r#""x""#],
        ),
        (
            ValueTest::OneOf(vec![ExpectedValue::Truth(true)]),
            &["true", r#""true""#],
            &["false", "1"],
        ),
        (one_of(&["a", "b"]), &[r#""A""#, r#""b""#], &[r#""c""#]),
        (
            ValueTest::Contains("Rate limit".to_owned()),
            &[r#""the RATE LIMIT""#],
            &[r#""rate""#],
        ),
        (
            ValueTest::StartsWith("you".to_owned()),
            &[r#""You have""#],
            &[r#""have you""#],
        ),
        (
            ValueTest::AtMost(0),
            &["0", "-1", r#""0""#, "0.0"],
            &["1", "0.1", r#""""#, "null"],
        ),
        (ValueTest::AtLeast(3), &["3", "3.5"], &["2.9", r#""three""#]),
        (
            ValueTest::Present(true),
            &["0", r#""""#, "{}", "[]", "false"],
            &["null"],
        ),
        (ValueTest::Present(false), &["null"], &["0", "{}"]),
    ] {
        let answers = with(vec![rule(
            "200",
            &[],
            &[("/a/*/b", test.clone())],
            Consequence::Retry,
        )]);
        for (values, expected) in [(good, Consequence::Retry), (bad, Consequence::Done)] {
            for value in values {
                let body = format!(r#"{{"a": [{{"b": {value}}}]}}"#);
                let meaning = read(&answers, 200, &[], &body).meaning;
                assert_eq!(meaning, expected, "{test:?} {value}");
            }
        }
        let headers = [("x-b", test.clone())];
        let answers = with(vec![rule("200", &headers, &[], Consequence::Retry)]);
        for value in good.iter().filter(|value| value.starts_with('"')) {
            let value = value.trim_matches('"');
            let meaning = read(&answers, 200, &[("X-B", "other"), ("X-B", value)], "").meaning;
            assert_eq!(meaning, Consequence::Retry, "{test:?} {value}");
        }
    }
    let absent = with(vec![rule(
        "403",
        &[("x-a", ValueTest::Present(false))],
        &[],
        Consequence::Retry,
    )]);
    assert_eq!(read(&absent, 403, &[], "").meaning, Consequence::Retry);
    assert_eq!(
        read(&absent, 403, &[("x-a", "")], "").meaning,
        Consequence::Reject
    );
}

#[test]
fn all_conditions_must_hold_and_the_first_rule_decides() {
    let both = [("x-a", text("1"))];
    let rules = vec![
        rule(
            "403",
            &both,
            &[("/code", text("limit"))],
            Consequence::Throttle,
        ),
        rule("4xx", &[], &[("/code", text("limit"))], Consequence::Retry),
        rule("", &[("x-all", text("1"))], &[], Consequence::Done),
    ];
    let answers = with(rules);
    let limit = r#"{"code": "limit"}"#;
    for (status, headers, body, expected) in [
        (403, &[("x-a", "1")][..], limit, Consequence::Throttle),
        (403, &[("x-a", "2")], limit, Consequence::Retry),
        (400, &[("x-a", "1")], limit, Consequence::Retry),
        (500, &[("x-all", "1")], limit, Consequence::Done),
        (
            403,
            &[("x-a", "1")],
            r#"{"code": "no"}"#,
            Consequence::Reject,
        ),
        (403, &[("x-a", "1")], "limit", Consequence::Reject),
        (403, &[("retry-after", "1")], "", Consequence::Throttle),
    ] {
        assert_eq!(
            read(&answers, status, headers, body).meaning,
            expected,
            "{status} {headers:?}"
        );
    }
    let unread = ReceivedAnswer {
        status: 403,
        headers: &answers::headers([("x-a", "1")]),
        body: None,
    };
    assert_eq!(
        verdict(&answers, &unread, UNIX_EPOCH).meaning,
        Consequence::Reject
    );
    // The body is needed only if the first rule that fits the head needs it.
    for (status, headers, expected) in [
        (403, &[("x-a", "1")][..], true),
        (404, &[], true),
        (200, &[], false),
        (500, &[("x-all", "1")], false),
    ] {
        let headers = answers::headers(headers.iter().copied());
        assert_eq!(answers.need_body(status, &headers), expected, "{status}");
    }
    assert!(!Answers::default().need_body(403, unread.headers));
}

#[test]
fn own_rules_and_lines_for_one_status_come_before_the_profile() {
    let profile = AnswerRules {
        rules: vec![
            rule("409", &[], &[], Consequence::Throttle),
            rule("4xx", &[], &[], Consequence::Done),
        ],
        cost: Vec::new(),
    };
    let mut answers = with(vec![rule("410", &[], &[], Consequence::Retry)]).with_profile(profile);
    let meanings = |answers: &Answers| {
        [404, 409, 410, 500].map(|status| read(answers, status, &[], "").meaning)
    };
    use Consequence::{Done, Reject, Retry, Throttle};
    assert_eq!(meanings(&answers), [Done, Throttle, Retry, Retry]);
    for (line, meaning) in [("409", Reject), ("4xx", Reject), ("410", Done)] {
        answers.set(AnswerPattern::parse(line).expect(line), meaning);
    }
    assert_eq!(meanings(&answers), [Done, Reject, Retry, Retry]);
}

#[test]
fn the_first_readable_source_says_how_long() {
    let header = |name: &str| ValueSource::Header(name.to_owned());
    let refill = WaitSource::Refill {
        needed: place("/cost/needed"),
        left: place("/cost/left"),
        per_second: place("/cost/rate"),
    };
    let mut throttles = rule("429", &[], &[], Consequence::Throttle);
    throttles.wait = vec![
        WaitSource::At(header("retry-after-ms"), None),
        WaitSource::At(header("x-reset"), Some(TimeForm::Epoch)),
        WaitSource::At(ValueSource::Body(place("/details/*/retryDelay")), None),
        refill,
    ];
    let answers = with(vec![throttles.clone()]);
    let after = |answers: &Answers, headers: &[(&str, &str)], body: &str| {
        let refused = read(answers, 429, headers, body)
            .seen
            .refused
            .expect("it throttles");
        refused.after.map(|after| after.as_millis())
    };
    for (headers, body, expected) in [
        (
            &[("Retry-After-Ms", "250"), ("x-reset", "1795694410")][..],
            "",
            Some(250),
        ),
        (
            &[("retry-after-ms", "x"), ("x-reset", "1795694410")],
            "",
            Some(10_000),
        ),
        (
            &[("x-reset", "1795694410"), ("x-reset", "1795694420")],
            "",
            Some(20_000),
        ),
        (
            &[],
            r#"{"details": [{"a": 1}, {"retryDelay": "34.5s"}, {"retryDelay": "2s"}]}"#,
            Some(34_500),
        ),
        (
            &[],
            r#"{"cost": {"needed": 101, "left": 1, "rate": 40}}"#,
            Some(2_500),
        ),
        (
            &[],
            r#"{"cost": {"needed": 1, "left": 10, "rate": 40}}"#,
            Some(1_000),
        ),
        (
            &[],
            r#"{"cost": {"needed": 1e308, "left": -1e308, "rate": 1e-308}}"#,
            None,
        ),
        (
            &[],
            r#"{"cost": {"needed": 1, "left": 0, "rate": 0}}"#,
            None,
        ),
        // Its sources count, not the usual headers.
        (&[("retry-after", "7")], "", None),
        (&[("x-reset", "1795694000")], "", Some(1_000)),
        (
            &[("x-reset", "99999999999999")],
            "",
            Some(1 << 31).map(|seconds: u128| seconds * 1_000),
        ),
    ] {
        assert_eq!(
            after(&answers, headers, body),
            expected,
            "{headers:?} {body}"
        );
    }
    throttles.wait.clear();
    assert_eq!(
        after(&with(vec![throttles.clone()]), &[("retry-after", "7")], ""),
        Some(7_000)
    );
    throttles.wait = vec![WaitSource::Time(60 * SECOND)];
    assert_eq!(
        after(&with(vec![throttles]), &[("retry-after", "7")], ""),
        Some(60_000)
    );
}

#[test]
fn a_done_job_may_stop_its_tenant_and_a_retry_may_have_a_delay() {
    let wait = vec![WaitSource::At(
        ValueSource::Header("retry-after".to_owned()),
        None,
    )];
    for means in [Consequence::Done, Consequence::Retry] {
        let mut brake = rule("2xx", &[], &[], means);
        brake.wait.clone_from(&wait);
        brake.stops_all = Some(true);
        let answers = with(vec![brake]);
        assert!(answers.may_stop_all());
        let ten = Some(10 * SECOND);
        let found = read(&answers, 200, &[("retry-after", "10")], "");
        let brakes = means == Consequence::Done;
        assert_eq!(found.seen.used_up, ten.filter(|_| brakes));
        assert_eq!(found.retry_after, ten.filter(|_| !brakes));
        assert_eq!(
            (found.seen.refused, found.seen.stops_all),
            (None, Some(true))
        );
        let found = read(&answers, 200, &[("retry-after", "0")], "");
        assert_eq!(found.seen.used_up, None);
    }
    let usual = Answers::default();
    assert_eq!(
        read(&usual, 200, &[("retry-after", "10")], "").seen.used_up,
        None
    );
}

#[test]
fn the_first_readable_source_says_what_a_call_cost() {
    let costs = |cost: Vec<ValueSource>| {
        let rules = Vec::new();
        Answers::default().with_profile(AnswerRules { rules, cost })
    };
    let body = || ValueSource::Body(place("/cost"));
    let answers = costs(vec![body(), ValueSource::Header("x-units".to_owned())]);
    let cost =
        |headers: &[(&str, &str)], body: &str| read(&answers, 200, headers, body).seen.actual_cost;
    assert_eq!(cost(&[("x-units", "3")], r#"{"cost": 12.2}"#), Some(13));
    assert_eq!(
        cost(&[("x-units", "3"), ("x-actual-cost", "4")], "{}"),
        Some(3)
    );
    assert_eq!(cost(&[("x-actual-cost", "4")], r#"{"cost": -1}"#), Some(4));
    assert_eq!(cost(&[], r#"{"cost": 1e300}"#), Some(MAX_REQUESTS));
    let none = HeaderMap::new();
    assert!(answers.need_body(200, &none));
    assert!(!costs(vec![ValueSource::Header("x".to_owned())]).need_body(200, &none));
}

/// Returns a rule with each kind of condition and source.
fn everything() -> Answers {
    let tests = [
        text("a"),
        number(1),
        ValueTest::Contains("a".to_owned()),
        ValueTest::StartsWith("a".to_owned()),
        ValueTest::AtMost(3),
        ValueTest::AtLeast(1),
        ValueTest::Present(true),
    ];
    let forms = [None]
        .into_iter()
        .chain(TimeForm::VARIANTS.iter().copied().map(Some));
    let forms: Vec<Option<TimeForm>> = forms.collect();
    let rules = tests.into_iter().flat_map(|test| {
        let rule = |means| {
            let conditions = ([("x-a", test.clone())], [("/a/*/b", test.clone())]);
            let mut rule = rule("", &conditions.0, &conditions.1, means);
            let sources = forms.iter().flat_map(|form| {
                [
                    ValueSource::Header("x-t".to_owned()),
                    ValueSource::Body(place("/t")),
                ]
                .map(|source| WaitSource::At(source, *form))
            });
            rule.wait = sources.collect();
            rule.wait.push(WaitSource::Refill {
                needed: place("/t"),
                left: place("/a/0/b"),
                per_second: place("/a/1/b"),
            });
            rule
        };
        let rules: Vec<AnswerRule> = Consequence::VARIANTS.iter().copied().map(rule).collect();
        rules
    });
    let rules = rules.collect();
    let cost = vec![
        ValueSource::Body(place("/t")),
        ValueSource::Header("x-t".to_owned()),
    ];
    Answers::default().with_rules(AnswerRules { rules, cost })
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        "[0-9.eE+-]{0,12}",
        "[0-9]{1,4}(ns|us|ms|s|m|h|d){1,2}",
        "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2})?(\\.[0-9]{1,9})?(Z|[+-][0-9:]{0,5})?",
        "\\PC{0,12}",
        any::<i64>().prop_map(|number| number.to_string()),
    ]
}

proptest! {
    #[test]
    fn any_answer_is_read(
        status in 100..=599_u16,
        headers in prop::collection::vec(("x-[at]|date|age", value().prop_map(String::into_bytes)), 0..6),
        values in prop::collection::vec(value(), 3),
        quoted in any::<bool>(),
        garbage in prop::option::of(prop::collection::vec(any::<u8>(), 0..64)),
        now in any::<u32>(),
    ) {
        let json = |text: &str| match quoted {
            true => serde_json::Value::from(text).to_string(),
            false => text.to_owned(),
        };
        let body = format!(
            r#"{{"a": [{{"b": {}}}, {{"b": {}}}], "t": {}}}"#,
            json(&values[0]), json(&values[1]), json(&values[2]),
        );
        let answer = ReceivedAnswer {
            status,
            headers: &answers::headers(headers),
            body: Some(garbage.as_deref().unwrap_or(body.as_bytes())),
        };
        let answers = everything();
        let found = verdict(&answers, &answer, UNIX_EPOCH + SECOND * now);
        let most = SECOND * (1 << 31);
        let waits = [found.seen.refused.and_then(|refused| refused.after), found.seen.used_up, found.retry_after];
        for wait in waits.into_iter().flatten() {
            prop_assert!(!wait.is_zero() && wait <= most, "{wait:?}");
        }
        prop_assert!(found.seen.refused.is_none() || found.seen.used_up.is_none());
        prop_assert_eq!(found.seen.refused.is_some(), found.meaning == Consequence::Throttle);
    }
}
