use super::*;

const CASES: &str = r#"
cases:
  - name: three a second
    config:
      rate-limiter:
        limits:
          - {name: default, use-algo: sliding-window-algo, max-requests: 3, window-size: 1s, guard: 0ms}
          - {name: shadow, use-algo: sliding-window-algo, max-requests: 2, window-size: 1s, guard: 0ms, shadow: true}
    api: {latency: 10ms}
    redis-latency: 0
    within: 1m
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
      done-after-at-most: {max: 1100ms}
      would-have-waited: {shadow: 2}
"#;

fn first(text: &str) -> Case {
    let cases = read("a.yaml", text, None).expect("it can be read");
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
            "5 jobs started, not 1",
        ),
        ("start: {last: 1s}", "start: {last: 500ms}", "start of last"),
        ("burst-4, last]", "last, burst-4]", "order"),
        ("{max: 1s}", "{max: 100ms}", "longest wait"),
        ("{max: 1s}", "{p50: 0, p99: 0}", "wait p99"),
        ("{default: 3}", "{default: 4}", "fullest window of default"),
        ("{default: 3}", "{other: 3}", "no such limit"),
        ("{default: 3}", "{shadow: 3}", "use would-have-waited"),
        (
            "{shadow: 2}",
            "{shadow: 0}",
            "would have waited for the shadow shadow",
        ),
        ("{shadow: 2}", "{default: 0}", "no such shadow limit"),
        ("{max: 1100ms}", "{max: 500ms}", "longest done after"),
        ("{max: 1100ms}", "{p50: 0, p99: 0}", "done after p99"),
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
            "deliveries per job",
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
fn a_limit_of_each_level_has_a_window_of_each() {
    let levels = "
cases:
  - name: two levels
    config:
      rate-limiter:
        limits:
          - {name: level, max-requests: 1, window-size: 1s, guard: 0ms, scope: 'header:x-priority'}
    jobs: [{at: 0, tenant: a, priority: high}, {at: 0, tenant: a, priority: 1}]
    expect: {starts: [0, 0], fullest-window: {level: 1}}
";
    assert_eq!(first(levels).differences(), [""; 0]);
}

/// Windows of limiters and of `fixed-window-algo` are aligned with the Unix epoch. Seven minutes do
/// not divide the day in which simulations begin.
#[test]
fn aligned_windows_of_the_api_are_those_of_the_workers() {
    let fixed = "
cases:
  - name: windows of seven minutes
    config: {rate-limiter: {use-algo: fixed-window-algo, max-requests: 2, window-size: 7m}}
    api: {limit: '2/7m:aligned'}
    jobs: [{at: 0, tenant: a, count: 4}]
    expect: {starts: [0, 0, 3m, 3m], throttled: 0}
";
    assert_eq!(first(fixed).differences(), [""; 0]);
}

#[test]
fn a_plan_in_a_header_has_the_figures_of_its_limits() {
    let plans = "
cases:
  - name: gold
    config:
      rate-limiter:
        plan-header: x-plan
        limits: [{name: default, max-requests: 1, window-size: 1s, guard: 0ms}]
        plans:
          gold: {limits: [{name: gold, max-requests: 3, window-size: 1s, guard: 0ms}]}
    jobs: [{at: 0, tenant: a, count: 4, header: {x-plan: gold}}]
    expect: {starts: [0, 0, 0, 1s], fullest-window: {gold: 3}}
";
    assert_eq!(first(plans).differences(), [""; 0]);
}

#[test]
fn a_call_ends_with_its_timeout_for_the_makespan() {
    let slow = "
cases:
  - name: an answer after its timeout
    config: {dispatch: {http: {url: 'http://h/', timeout: 10s}}, retry: {max-attempts: 1}}
    api: {latency: 50m}
    jobs: [{at: 0, tenant: a}]
    expect: {dead-letters: 1, makespan-at-most: 10s}
";
    assert_eq!(first(slow).differences(), [""; 0]);
}

#[test]
fn a_dropped_duplicate_does_not_wait_for_a_call() {
    let twice = "
cases:
  - name: one of two, and a job that does not fit in
    config:
      rate-limiter: {max-requests: 1, window-size: 1h}
      job: {dedupe-for: 1h}
    within: 10s
    jobs:
      - {at: 0, tenant: a, count: 2, header: {x-dedupe-key: k}}
      - {at: 1, tenant: a}
    expect: {waits-at-most: {p50: 0, max: 9s}, throttled: 0}
";
    let found = first(twice).differences();
    let [found] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert!(found.contains("1 of 3 jobs"), "{found}");
}

#[test]
fn an_unexpected_dead_letter_fails_a_case() {
    let all_die = "
cases:
  - name: all cost too much
    config: {rate-limiter: {max-requests: 5}}
    jobs: [{at: 0, tenant: a, cost: 9, count: 3}]
    expect: {waits-at-most: {max: 0}, makespan-at-most: 0}
";
    let found = first(all_die).differences();
    let [found] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert!(
        found.contains("dead letters") && found.contains("- 0"),
        "{found}"
    );
    let expected = all_die.replace("{waits", "{dead-letters: 3, waits");
    assert_eq!(first(&expected).differences(), [""; 0]);
}

#[test]
fn mistakes_in_a_case_file_are_reported_with_their_line() {
    for (right, wrong, line, words) in [
        (
            "tenant: acme, cost",
            "tennant: acme, cost",
            14,
            "did you mean tenant?",
        ),
        ("at: 500ms", "at: -1", 14, "-1.0 is not a time"),
        ("at: 500ms", "at: .nan", 14, "not a finite number"),
        ("at: 500ms", "at: 1e308", 14, "1e308 is not a time"),
        ("at: 500ms", "at: [1]", 14, "at: invalid"),
        ("cost: 2", "cost: -2", 14, "cost: "),
        ("cost: 2", "cost: [2]", 14, "cost: "),
        (
            "cost: 2",
            "header: {a: [1]}",
            14,
            "a string or a 64-bit integer",
        ),
        ("throttled: 0", "throttled: x", 22, "throttled: "),
        ("cost: 2", "cost: 0", 14, "cost is 0"),
        ("cost: 2", "header: {x-cost: 2}", 14, "set cost instead"),
        ("count: 4", "count: 1000000", 13, "100000 jobs"),
        (
            "latency: 10ms",
            "latency: fast",
            9,
            "api.latency is \"fast\"",
        ),
        (
            "max-requests: 3",
            "max-requests: 0",
            7,
            "config: rate-limiter",
        ),
        ("redis-latency: 0", "redis-latency: 11s", 3, "at most 1.9 s"),
        (
            "within: 1m",
            "within: 400ms",
            3,
            "the last job is published after 0.5 s",
        ),
        ("latency: 10ms", "latency: 2h", 9, "at most 1h"),
        ("throttled:", "throtled:", 22, "deliveries-at-most"),
        (
            "max-requests: 3",
            "max-request: 3",
            7,
            "did you mean max-requests?",
        ),
        ("name: last", "name: burst-1", 3, "two jobs have the name"),
        (
            "{last: 1s}",
            "{lost: 1s}",
            16,
            "no job has the name \"lost\"",
        ),
        ("{max: 1s}", "{max: soon}", 16, "not a time"),
        ("{last: 1s}", "5", 17, "expected keys with values"),
        ("cases:", "case:", 2, "did you mean cases?"),
    ] {
        let text = CASES.replace(right, wrong);
        assert_ne!(text, CASES, "{right}");
        let why = read("a.yaml", &text, None).expect_err(wrong).to_string();
        assert!(why.starts_with(&format!("a.yaml:{line}: ")), "{why}");
        assert!(why.contains(words), "{why}");
    }
    // Each problem in a section has a line. The first line is reported where errors carry theirs.
    let text = CASES
        .replace("max-requests: 3", "max-requests: 0")
        .replace("max-requests: 2", "max-request: 2");
    let why = read("a.yaml", &text, None)
        .expect_err("two are wrong")
        .to_string();
    assert!(
        why.starts_with("a.yaml:7: config: rate-limiter.limits")
            && why.contains("; line 8: config: unknown key \"max-request\""),
        "{why}"
    );
    for text in ["", "cases: []", "\u{0}\u{1}", "cases: [[[[", "- 1"] {
        assert!(read("a.yaml", text, None).is_err(), "{text:?}");
    }
    for expect in [
        "",
        "tolerance: 1s",
        "start: {}",
        "order: []",
        "waits-at-most: {}",
        "done-after-at-most: {}",
        "fullest-window: {}",
        "would-have-waited: {}",
    ] {
        let text = format!(
            "cases: [{{name: a, config: {{}}, jobs: [{{at: 0, tenant: a}}], expect: {{{expect}}}}}]"
        );
        let why = read("a.yaml", &text, None).expect_err(expect).to_string();
        assert!(why.contains("can't fail"), "{why}");
    }
}
