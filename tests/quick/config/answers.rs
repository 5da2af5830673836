//! `dispatch.http.answers`: the meaning of the API's answers, from the file or a variable.

use config::Config;
use rules::answers::{AnswerPattern, Answers, Consequence};

const KEY: &str = "dispatch.http.answers";

fn parse(answers: &str) -> Result<Config, String> {
    let yaml = format!("dispatch: {{http: {{url: 'https://h/', answers: {answers}}}}}\n");
    Config::parse("c.yaml", &yaml, std::iter::empty()).map_err(|errors| errors.to_string())
}

fn answers(config: &Config) -> &Answers {
    &config.dispatch.http.as_ref().expect("a url").answers
}

/// Returns answers with these configured lines.
fn lines(all: &[(&str, Consequence)]) -> Answers {
    let mut answers = Answers::default();
    for (which, meaning) in all {
        let which = AnswerPattern::parse(which).expect("a status or a class");
        assert!(answers.set(which, *meaning));
    }
    answers
}

#[test]
fn statuses_and_classes_have_meanings_and_are_shown() {
    let text = "{409: retry, 5xx+retry-after: throttle, '404': done, 403: reject}";
    let config = parse(text).expect("valid");
    let expected = lines(&[
        ("403", Consequence::Reject),
        ("404", Consequence::Done),
        ("409", Consequence::Retry),
        ("5xx+retry-after", Consequence::Throttle),
    ]);
    assert_eq!(*answers(&config), expected);
    let again = Config::parse("c.yaml", &config.to_string(), std::iter::empty());
    let again = again.expect("the shown configuration can be read");
    assert_eq!(*answers(&again), expected);

    let variable = (
        "SLUICEGATE_DISPATCH__HTTP__ANSWERS".to_owned(),
        "{4xx: done}".to_owned(),
    );
    let url = "dispatch: {http: {url: 'https://h/'}}";
    let config = Config::parse("c.yaml", url, std::iter::once(variable)).expect("valid");
    assert_eq!(*answers(&config), lines(&[("4xx", Consequence::Done)]));
}

/// Returns the problems of this value of the key, without the file's name.
fn problems(answers: &str) -> Vec<String> {
    let yaml = format!("dispatch:\n  http:\n    url: https://h/\n    answers:{answers}\n");
    let errors = Config::parse("c.yaml", &yaml, std::iter::empty()).expect_err(answers);
    let problems = errors.problems().iter().map(ToString::to_string);
    problems.collect()
}

#[test]
fn invalid_answers_are_named_with_the_allowed_values() {
    for (answers, expected) in [
        (
            "retry",
            "is \"retry\"; it must be a list of rules, or statuses with what they mean, such as \
            {409: retry, 403+retry-after: throttle}",
        ),
        (
            "{600: retry}",
            "\"600\" is not a status; it must be a status (409), a class (4xx), or either with \
            +retry-after",
        ),
        (
            "{409-retry-after: throttle}",
            "\"409-retry-after\" is not a status; it must be a status (409), a class (4xx), or \
            either with +retry-after",
        ),
        (
            "{409: retyr}",
            "\"409\" is \"retyr\"; it must be done, retry, throttle or reject; did you mean retry?",
        ),
        ("{409: 5}", "\"409\" is read as 5 by YAML; put it in quotes"),
        (
            "{409: }",
            "\"409\" is empty; it must be done, retry, throttle or reject",
        ),
        ("{409: retry, 0409: done}", "\"0409\" is set twice"),
    ] {
        let errors = parse(answers).expect_err(answers);
        let start = format!("{KEY}: ");
        let (_, words) = errors.split_once(&start).expect("the key");
        assert_eq!(words, expected, "{answers}");
    }
}

const RULES: &str = "
      - when:
          status: [403, 4xx]
          headers: {X-Remaining: {at-most: 0}, x-a: {present: false}, x-b: 7, x-c: true}
          body: {/errors/*/code: THROTTLED, /b: {one-of: [a, 1]}, /c: {contains: 'x: y'}, /d: {starts-with: a}, /e: {at-least: 2}, /f: {equals: nope}}
        means: throttle
        scope: global
        wait:
          - {header: Retry-After-Ms}
          - {body: /t, as: epoch-milliseconds}
          - {needed: /n, left: /l, per-second: /r}
          - {time: 60s}
        why: It is 'used up'.
      - {when: {status: 2xx, headers: {retry-after: {present: true}}}, means: done, wait: [{header: retry-after, as: seconds}]}";

#[test]
fn rules_are_read_and_shown() {
    let yaml = format!(
        "dispatch:\n  http:\n    url: https://h/\n    cost: [{{header: X-Cost}}, {{body: /cost}}]\n    answers:{RULES}\n"
    );
    let config = Config::parse("c.yaml", &yaml, std::iter::empty()).expect("valid");
    let again = Config::parse("c.yaml", &config.to_string(), std::iter::empty());
    assert_eq!(
        again.expect("what is shown can be read").dispatch,
        config.dispatch
    );
    let answers = config.dispatch.http.expect("a url").answers;
    let words: Vec<String> = answers
        .rules()
        .rules
        .iter()
        .map(ToString::to_string)
        .collect();
    let expected = [
        "403 or 4xx if header x-remaining is at most 0 and header x-a is absent and header x-b is \
        7 and header x-c is true and body /errors/*/code is THROTTLED and body /b is a or 1 and \
        body /c contains \"x: y\" and body /d begins with \"a\" and body /e is at least 2 and body \
        /f is nope: throttle all tenants, as header retry-after-ms says, or as body /t says \
        (epoch-milliseconds), or for (body /n - /l) / /r seconds, or for 1m (It is 'used up')",
        "2xx if header retry-after is present: done, as header retry-after says (seconds)",
    ];
    assert_eq!(words, expected);
}

#[test]
fn all_mistakes_in_rules_are_reported_with_their_lines() {
    let wrong = "
      - {when: {status: 600, header: {a: 1}}, means: retyr, scope: all}
      - {when: {}, means: reject, wait: [{time: 1s}]}
      - when: {headers: {'a b': {at-most: x}, c: {at-most: 0, at-least: 1}}, body: {code: 1}}
        maens: retry
      - {when: {status: 200}, means: done, wait: [{header: a, body: /b}, {time: 0}, {left: /a}, {header: a, as: days}]}
      - retry";
    let pointer = "a JSON pointer such as /errors/*/code, with up to 16 parts";
    let source = "must be a source, such as {header: retry-after} or {body: /retry_after}, {time: \
        60s}, or needed, left and per-second together";
    let expected = [
        "5:30: unknown key \"header\" in dispatch.http.answers[0].when; did you mean headers?",
        "5:47: dispatch.http.answers[0].means: is \"retyr\"; it must be done, retry, throttle or \
        reject; did you mean retry?",
        "5:61: dispatch.http.answers[0].scope: is \"all\"; it must be tenant or global",
        "6:10: dispatch.http.answers[1].when: is empty; it must have conditions, such as {status: \
        403, headers: {retry-after: {present: true}}}",
        "6:35: dispatch.http.answers[1].wait: has no effect, since a rejected job does not run again",
    ];
    let found = problems(wrong);
    for expected in expected {
        let line = format!("c.yaml:{expected}");
        assert!(found.contains(&line), "{line}\n{}", found.join("\n"));
    }
    for part in [
        "unknown key \"maens\" in dispatch.http.answers[2]; did you mean means?",
        "dispatch.http.answers[3].wait[0]: must be a source, such as {header: retry-after} or",
        "dispatch.http.answers[3].wait[1].time: is 0; it must be from 1ms to 31d",
        &format!("dispatch.http.answers[3].wait[2]: {source}"),
        "dispatch.http.answers[3].wait[3].as: is \"days\"; it must be seconds, milliseconds,",
        "dispatch.http.answers[4]: is \"retry\"; it must be a rule, such as {when:",
    ] {
        assert!(
            found.iter().any(|line| line.contains(part)),
            "{part}\n{}",
            found.join("\n")
        );
    }
    let values = "
      - when: {headers: {'a b': {at-most: x}, c: {at-most: 0, at-least: 1}}, body: {code: 1}}
        means: retry";
    let found = problems(values);
    for part in [
        "5:26: dispatch.http.answers[0].when.headers.a b: \"a b\" is not the name of a header",
        ".when.headers.a b.at-most: is \"x\"; it must be a whole number",
        ".when.headers.c: has 2 conditions; it must have one",
        &format!(".when.body.code: \"code\" must be {pointer}"),
    ] {
        assert!(
            found.iter().any(|line| line.contains(part)),
            "{part}\n{}",
            found.join("\n")
        );
    }
    assert_eq!(
        problems("\n      - {when: {status: []}, means: retry}"),
        [
            "c.yaml:5:17: dispatch.http.answers[0].when.status: is an empty list; it must have \
            statuses (409) or classes (4xx)"
        ]
    );
    let many = "\n      - {when: {status: 409}, means: retry}".repeat(65);
    assert_eq!(
        problems(&many),
        ["c.yaml:4:5: dispatch.http.answers: has 65 items; the maximum is 64"]
    );
}

#[test]
fn rules_that_an_earlier_rule_hides_have_warnings() {
    let warnings = |rules: &str| {
        let yaml = format!("dispatch: {{http: {{url: 'https://h/', answers: [{rules}]}}}}");
        let config = Config::parse("c.yaml", &yaml, std::iter::empty()).expect("valid");
        config.warnings()
    };
    for (rules, expected) in [
        (
            "{when: {status: 4xx}, means: reject}, {when: {status: 429}, means: throttle}",
            ["answers[1] never applies to 429: dispatch.http.answers[0] (4xx)"].as_slice(),
        ),
        (
            "{when: {status: 4xx}, means: reject}, {when: {status: [429, 500, 404]}, means: retry}",
            &[
                "answers[1] never applies to 429: dispatch.http.answers[0] (4xx)",
                "answers[1] never applies to 404: dispatch.http.answers[0] (4xx)",
            ],
        ),
        (
            "{when: {body: {/code: {present: true}}}, means: reject}, {when: {status: 200}, means: \
            done}, {when: {status: 429, body: {/code: busy}}, means: throttle}",
            &[
                "answers[2] never applies to 429 if body /code is busy: dispatch.http.answers[0] \
                (an answer if body /code is present)",
            ],
        ),
    ] {
        let expected: Vec<String> = (expected.iter())
            .map(|part| {
                format!(
                    "dispatch.http.{part} comes first and matches the same answers; move it \
                    behind, or remove one"
                )
            })
            .collect();
        assert_eq!(warnings(rules), expected, "{rules}");
    }
    assert_eq!(
        warnings(
            "{when: {status: 429}, means: throttle}, {when: {status: 403, headers: {x: 1}}, means: \
            retry}, {when: {status: 4xx}, means: reject}, {when: {headers: {x: 1}}, means: done}"
        ),
        [""; 0]
    );
}

#[test]
fn costs_and_waits_have_their_own_forms() {
    for (keys, expected) in [
        (
            "cost: {body: /x}",
            "c.yaml:1:38: dispatch.http.cost: is a mapping; it must be a list of places, such as \
            [{body: /extensions/cost}, {header: x-request-cost}]",
        ),
        (
            "cost: [/x]",
            "c.yaml:1:45: dispatch.http.cost[0]: is \"/x\"; it must be a place, such as {body: \
            /extensions/cost} or {header: x-request-cost}",
        ),
        (
            "answers: [{when: {status: 429}, means: throttle, wait: {header: a}}]",
            "c.yaml:1:87: dispatch.http.answers[0].wait: is a mapping; it must be a list of \
            sources, such as [{header: retry-after}, {time: 60s}]",
        ),
    ] {
        let yaml = format!("dispatch: {{http: {{url: 'https://h/', {keys}}}}}");
        let errors = Config::parse("c.yaml", &yaml, std::iter::empty()).expect_err(keys);
        assert_eq!(errors.to_string(), expected);
    }
}

#[test]
fn a_profile_is_chosen_by_its_name() {
    let with = |keys: &str| {
        let yaml = format!("dispatch: {{http: {{url: 'https://h/', {keys}}}}}");
        let config = Config::parse("c.yaml", &yaml, std::iter::empty());
        config.map_err(|errors| errors.to_string())
    };
    let config = with("api: github, answers: {409: retry}").expect("valid");
    let shown = config.to_string();
    assert!(
        shown.contains("api: github") && shown.contains("\"409\": \"retry\""),
        "{shown}"
    );
    assert!(
        !shown.contains("x-ratelimit-remaining"),
        "the profile's rules are not shown"
    );
    let errors = with("api: githup").expect_err("no such API");
    assert!(errors.contains("did you mean github?"), "{errors}");
    let discord = with("api: discord")
        .expect("valid")
        .dispatch
        .http
        .expect("a url");
    assert!(discord.answers.may_stop_all());
}
