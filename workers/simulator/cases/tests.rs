use super::*;

const CASES: &str = r#"
cases:
  - name: three a second
    config:
      rate-limiter: {use-algo: sliding-window-algo, max-requests: 3, window-size: 1s, guard: 0ms}
    api: {latency: 10ms}
    jobs:
      - {name: burst, at: 0, count: 4, tenant: acme}
      - {name: last, at: 500ms, tenant: acme, cost: 2}
    expect:
      starts: [0, 0, 0, 1s, 1]
      start: {last: 1s}
      order: [burst-1, burst-2, burst-3, burst-4, last]
      waits-at-most: {max: 1s}
      fullest-window: {default: 3}
      dead-letters: 0
      throttled: 0
      makespan-at-most: 1100ms
      deliveries-at-most: 4
"#;

fn first(text: &str) -> Case {
    let cases = read("a.yaml", text).expect("it can be read");
    cases.into_iter().next().expect("one")
}

#[test]
fn a_case_that_holds_has_no_differences() {
    assert_eq!(first(CASES).differences(), [""; 0]);
}

#[test]
fn each_expectation_can_fail() {
    for (right, wrong, words) in [
        (
            "starts: [0, 0, 0, 1s, 1]",
            "starts: [0, 0, 0, 2s, 1]",
            "the 4th differs",
        ),
        (
            "starts: [0, 0, 0, 1s, 1]",
            "starts: [0]",
            "5 jobs, and 1 are expected",
        ),
        ("start: {last: 1s}", "start: {last: 500ms}", "start of last"),
        ("burst-4, last]", "last, burst-4]", "order"),
        ("{max: 1s}", "{max: 100ms}", "longest wait"),
        ("{max: 1s}", "{p50: 0, p99: 0}", "wait p99"),
        ("{default: 3}", "{default: 4}", "fullest window of default"),
        ("{default: 3}", "{other: 3}", "no such limit"),
        ("dead-letters: 0", "dead-letters: 1", "dead letters"),
        ("throttled: 0", "throttled: 2", "429s"),
        (
            "makespan-at-most: 1100ms",
            "makespan-at-most: 500ms",
            "makespan",
        ),
        (
            "deliveries-at-most: 4",
            "deliveries-at-most: 0.5",
            "deliveries a job",
        ),
    ] {
        let text = CASES.replace(right, wrong);
        assert_ne!(text, CASES, "{right}");
        let found = first(&text).differences();
        assert!(
            found.iter().any(|found| found.contains(words)),
            "{wrong}: {found:?}"
        );
    }
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_line() {
    for (right, wrong, line, words) in [
        (
            "tenant: acme, cost",
            "tennant: acme, cost",
            9,
            "did you mean tenant?",
        ),
        ("at: 500ms", "at: -1", 9, "no time"),
        ("at: 500ms", "at: .nan", 9, "not a finite number"),
        ("cost: 2", "cost: 0", 9, "cost is 0"),
        ("count: 4", "count: 1000000", 8, "100000 jobs"),
        (
            "latency: 10ms",
            "latency: fast",
            3,
            "api.latency is \"fast\"",
        ),
        ("max-requests: 3", "max-requests: 0", 3, "max-requests"),
        (
            "max-requests: 3",
            "max-request: 3",
            3,
            "did you mean max-requests?",
        ),
        ("{last: 1s}", "{lost: 1s}", 11, "no job is called \"lost\""),
        ("{max: 1s}", "{max: soon}", 11, "no time"),
        ("cases:", "case:", 2, "did you mean cases?"),
    ] {
        let text = CASES.replace(right, wrong);
        assert_ne!(text, CASES, "{right}");
        let why = read("a.yaml", &text).expect_err(wrong).to_string();
        assert!(why.starts_with(&format!("a.yaml:{line}: ")), "{why}");
        assert!(why.contains(words), "{why}");
    }
    for text in ["", "cases: []", "\u{0}\u{1}", "cases: [[[[", "- 1"] {
        assert!(read("a.yaml", text).is_err(), "{text:?}");
    }
    let nothing = "cases: [{name: a, config: {}, jobs: [{at: 0, tenant: a}], expect: {}}]";
    let why = read("a.yaml", nothing)
        .expect_err("nothing is expected")
        .to_string();
    assert!(why.contains("can't fail"), "{why}");
}
