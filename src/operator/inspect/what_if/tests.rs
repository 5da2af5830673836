use super::*;

fn limit(name: &str, algorithm: Algorithm) -> Limit {
    let (minute, guard) = (Duration::from_secs(60), Duration::from_millis(50));
    Limit::new(name, algorithm, 100, minute, guard).expect("in range")
}

fn limits(names: &[&str]) -> Limits {
    let all = names
        .iter()
        .map(|name| limit(name, Algorithm::SlidingWindow));
    Limits::new(all.collect()).expect("these are limits")
}

fn no_plan(name: &str) -> Result<Limits, NotDone> {
    Err(NotDone::Wrong(format!("no plan {name}")))
}

fn ask(texts: &[&str], limits: &Limits) -> Result<ForecastRequest, String> {
    let changes = texts.iter().map(|text| WhatIf::parse(text));
    let changes: Vec<WhatIf> = changes.collect::<Result<_, _>>()?;
    hypothetical(&changes, limits, no_plan).map_err(|why| why.to_string())
}

#[test]
fn a_hypothesis_shows_the_limits_it_would_enforce() {
    let one = limits(&["default"]);
    let asked = ask(&["max-requests=200", "window-size=2m", "resume"], &one).expect("fine");
    assert_eq!(
        (asked.limits[0].max(), asked.limits[0].window_ms()),
        (200, 120_000)
    );
    assert_eq!(
        (asked.ignores_override[0], asked.opens),
        (true, OpeningTime::Now)
    );
    let two = limits(&["day", "second"]);
    let asked = ask(&["second.max-requests=1", "pause=10m"], &two).expect("fine");
    let max: Vec<u64> = asked.limits.iter().map(|limit| limit.max()).collect();
    assert_eq!(
        (max, asked.ignores_override),
        (vec![100, 1], vec![false, true])
    );
    assert_eq!(asked.opens, OpeningTime::In(600_000));
}

#[test]
fn an_impossible_hypothesis_is_refused_with_a_suggestion() {
    let one = limits(&["default"]);
    let two = limits(&["per-day", "per-second"]);
    for (texts, limits, expected) in [
        (
            &["max-request=2"][..],
            &one,
            "there is no \"max-request\"; did you mean max-requests?",
        ),
        (
            &["max-requests"],
            &one,
            "must be KEY=VALUE, such as max-requests=200, or resume; did you mean max-requests?",
        ),
        (
            &["max-requests=0"],
            &one,
            "max-requests is \"0\"; it must be a whole number from 1 to 1000000000000",
        ),
        (
            &["max-requests=1e3"],
            &one,
            "max-requests is \"1e3\"; it must be a whole number from 1 to 1000000000000",
        ),
        (
            &["pause=0s"],
            &one,
            "pause is \"0s\": it must be from 1s to 365d",
        ),
        (
            &["resume=1"],
            &one,
            "resume has no value: it ends a pause or a throttle now",
        ),
        (
            &["a.plan=x"],
            &one,
            "plan belongs to the tenant, not to one limit: write plan without a name",
        ),
        (
            &["window-size=soon"],
            &one,
            "window-size is \"soon\"; it must be a whole number with a unit, such as 90s or 1h",
        ),
        (
            &["window-size=50ms"],
            &one,
            "what-if window-size=50ms: window-size is 50ms; it must be from 100ms to 31 days",
        ),
        (&["plan=gold"], &one, "no plan gold"),
        (
            &["max-requests=2"],
            &two,
            "what-if max-requests=2: there are several limits; name one before a dot, such as per-day.max-requests=200: per-day, per-second",
        ),
        (
            &["per-dya.max-requests=2"],
            &two,
            "what-if per-dya.max-requests=2: there is no limit \"per-dya\"; did you mean per-day?",
        ),
        (
            &["resume", "pause=1m"],
            &two,
            "what-if pause=1m: its pause is given twice",
        ),
        (
            &["max-requests=2", "default.max-requests=3"],
            &one,
            "what-if default.max-requests=3: default.max-requests is given twice",
        ),
    ] {
        assert_eq!(ask(texts, limits).map(drop), Err(expected.to_owned()));
    }
    let calls = Limit::concurrent("calls", 5).expect("in range");
    let calls = Limits::new(vec![calls]).expect("these are limits");
    let why = "what-if window-size=1m: calls counts calls in flight and has no window";
    assert_eq!(
        ask(&["window-size=1m"], &calls).map(drop),
        Err(why.to_owned())
    );
}

#[test]
fn a_plan_with_other_waitlists_cannot_be_compared() {
    let path =
        limit("path", Algorithm::SlidingWindow).with_scope(Scope::Header("x-path".to_owned()));
    let gold = Limits::new(vec![path]).expect("these are limits");
    let change = [WhatIf::parse("plan=gold").expect("fine")];
    let why = hypothetical(&change, &limits(&["default"]), |_| Ok(gold.clone()));
    assert_eq!(
        why.map(drop).map_err(|why| why.to_string()),
        Err(
            "what-if plan=gold: its limits separate a tenant's jobs by header:x-path, the current \
            limits by nothing: there is no backlog to compare"
                .to_owned()
        )
    );
    let more = [
        WhatIf::parse("max-requests=7").expect("fine"),
        change[0].clone(),
    ];
    let gold = limits(&["gold"]);
    let asked = hypothetical(&more, &limits(&["a", "b"]), |_| Ok(gold.clone())).expect("fine");
    assert_eq!((asked.limits[0].name(), asked.limits[0].max()), ("gold", 7));
}

#[test]
fn a_shadow_is_refused_because_it_never_delays_a_job() {
    let trial = limit("trial", Algorithm::SlidingWindow);
    let trial = trial.in_shadow().expect("it may be one");
    let all = vec![limit("real", Algorithm::SlidingWindow), trial];
    let all = Limits::new(all).expect("these are limits");
    let why = "what-if trial.max-requests=2: trial is a shadow limit: it never delays a job";
    assert_eq!(
        ask(&["trial.max-requests=2"], &all).map(drop),
        Err(why.to_owned())
    );
}
