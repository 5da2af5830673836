//! Which way jobs go: `dispatch.http`, `dispatch.exec` or `dispatch.forward`.

use std::time::Duration;

use sluicegate::config::Config;

fn parse(dispatch: &str) -> Result<Config, String> {
    let yaml = format!("dispatch: {dispatch}\n");
    Config::parse("c.yaml", &yaml, std::iter::empty()).map_err(|errors| errors.to_string())
}

#[test]
fn a_program_and_a_queue_are_read_and_shown() {
    let text = "{exec: {command: [sh, -c, 'a b', 7], timeout: 1m}}";
    let exec = parse(text).expect("valid").dispatch.exec.expect("there");
    assert_eq!(exec.command, ["sh", "-c", "a b", "7"]);
    assert_eq!(
        (exec.timeout, exec.start_timeout),
        (Duration::from_secs(60), Duration::from_secs(30))
    );
    let text = "{forward: {routing-key: 'work.{tenant}', done: true}}";
    let config = parse(text).expect("valid");
    let forward = config.dispatch.forward.as_ref().expect("there");
    assert_eq!((&*forward.exchange, forward.done), ("", true));
    assert!(
        forward
            .routing_key
            .as_ref()
            .is_some_and(|key| key.of_jobs.is_some())
    );
    assert!(
        !config.job.call.is_nothing(),
        "a job without its value is no job"
    );
    let own = parse("{forward: {exchange: work}}")
        .expect("valid")
        .dispatch
        .forward;
    assert_eq!(own.expect("there").routing_key, None);
}

#[test]
fn jobs_go_one_way_and_what_can_not_be_run_is_refused() {
    for (dispatch, expected) in [
        (
            "{http: {url: 'http://h/'}, exec: {command: [cat]}}",
            "dispatch.exec.command: is set, and so is dispatch.http.url",
        ),
        (
            "{http: {url: 'http://h/'}, forward: {exchange: x}}",
            "dispatch.forward.exchange: is set, and so is dispatch.http.url",
        ),
        (
            "{exec: {command: [cat]}, forward: {routing-key: x}}",
            "dispatch.forward.routing-key: is set, and so is dispatch.exec.command",
        ),
        ("{exec: {command: cat}}", "it must be a list of a program"),
        ("{exec: {command: []}}", "has 0 texts"),
        ("{exec: {command: ['']}}", "names no program"),
        (
            "{exec: {command: [cat, [x]]}}",
            "has an entry that is no text",
        ),
        (
            "{exec: {timeout: 26m}}",
            "dispatch.exec.timeout: is \"26m\"",
        ),
        (
            "{forward: {routing-key: '{secret:tenant}'}}",
            "no place for a secret",
        ),
        (
            "{forward: {routing-key: '{tenat}'}}",
            "has the placeholder \"{tenat}\"",
        ),
        (
            "{forward: {queue: x}}",
            "unknown key \"queue\" in dispatch.forward",
        ),
    ] {
        let errors = parse(dispatch).expect_err(dispatch);
        assert!(errors.contains(expected), "{dispatch}: {errors}");
    }
    let long = format!("{{forward: {{exchange: {}}}}}", "e".repeat(256));
    assert!(parse(&long).expect_err("long").contains("has 256 bytes"));
}

#[test]
fn max_concurrent_means_little_where_jobs_are_only_handed_over() {
    let of = |done: bool| {
        let yaml = format!(
            "rate-limiter: {{limits: [{{name: r, max-concurrent: 1}}]}}\ndispatch: {{forward: {{exchange: x, done: {done}}}}}\n"
        );
        Config::parse("c.yaml", &yaml, std::iter::empty())
            .expect("valid")
            .warnings()
    };
    assert_eq!(of(true), [""; 0]);
    assert!(of(false)[0].starts_with("max-concurrent: "));
}
