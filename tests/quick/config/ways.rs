//! The destination of jobs: `dispatch.http`, `dispatch.exec` or `dispatch.forward`.

use std::time::Duration;

use config::{Config, Pipelines};

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
fn one_dispatch_kind_is_allowed_and_unusable_programs_are_refused() {
    for (dispatch, expected) in [
        (
            "{http: {url: 'http://h/'}, exec: {command: [cat]}}",
            "dispatch.exec.command: is set together with dispatch.http.url",
        ),
        (
            "{http: {url: 'http://h/'}, forward: {exchange: x}}",
            "dispatch.forward.exchange: is set together with dispatch.http.url",
        ),
        (
            "{exec: {command: [cat]}, forward: {routing-key: x}}",
            "dispatch.forward.routing-key: is set together with dispatch.exec.command",
        ),
        ("{exec: {command: cat}}", "it must be a list of a program"),
        ("{exec: {command: []}}", "has 0 entries"),
        ("{exec: {command: ['']}}", "names no program"),
        (
            "{exec: {command: [cat, [x]]}}",
            "has an entry that is not text",
        ),
        (
            "{exec: {timeout: 26m}}",
            "dispatch.exec.timeout: is \"26m\"",
        ),
        (
            "{forward: {routing-key: '{secret:tenant}'}}",
            "a routing key must not contain a secret",
        ),
        (
            "{forward: {routing-key: '{tenat}'}}",
            "has the unknown placeholder \"{tenat}\"",
        ),
        (
            "{exec: {command: [python3, 3.12]}}",
            "an entry that YAML does not read as text; put it in quotes",
        ),
        (
            "{exec: {start-timeout: 5s}}",
            "c.yaml:1:19: dispatch.exec.start-timeout: has no effect without \
            dispatch.exec.command; set that or remove this key",
        ),
        (
            "{forward: {done: true}}",
            "c.yaml:1:22: dispatch.forward.done: has no effect without dispatch.forward.exchange \
            or",
        ),
        (
            "{forward: {exchange: '', routing-key: ''}}",
            "dispatch.forward.routing-key: is empty, and so is the exchange, but no queue has an \
            empty name",
        ),
        (
            "{forward: {exchange: \"a\\nb\"}}",
            "dispatch.forward.exchange: has a control character",
        ),
        (
            "{forward: {routing-key: jobs.dead}}",
            "dispatch.forward.routing-key: is \"jobs.dead\", a queue of Sluicegate, so jobs would \
            come back",
        ),
        (
            "{forward: {exchange: x}, http: {timeout: 5s, method: PUT}}",
            "c.yaml:1:43: dispatch.http.timeout: has no effect with dispatch.forward.exchange; \
            remove one",
        ),
        (
            "{exec: {command: [cat]}, http: {idempotency-key: true}}",
            "dispatch.http.idempotency-key: has no effect with dispatch.exec.command; remove one",
        ),
        (
            "{forward: {queue: x}}",
            "unknown key \"queue\" in dispatch.forward",
        ),
    ] {
        let errors = parse(dispatch).expect_err(dispatch);
        assert!(errors.contains(expected), "{dispatch}: {errors}");
    }
    let twice = parse("{exec: {command: [cat]}, http: {timeout: 99h}}").expect_err("too long");
    assert!(
        twice.ends_with("is \"99h\"; it must be from 1ms to 25m"),
        "{twice}"
    );
    let long = format!("{{forward: {{exchange: {}}}}}", "e".repeat(256));
    assert!(parse(&long).expect_err("long").contains("has 256 bytes"));
}

#[test]
fn jobs_are_forwarded_away_from_all_queues_of_their_own_pipeline() {
    let of = |queues: &str| {
        let yaml = format!(
            "dispatch: {{forward: {{routing-key: bulk}}}}\namqp: {{queue: orders{queues}}}\n"
        );
        Config::parse("c.yaml", &yaml, std::iter::empty()).map_err(|errors| errors.to_string())
    };
    assert_eq!(of("").expect("valid").warnings(), [""; 0]);
    let errors = of(", queues: [bulk]").expect_err("they would come back");
    assert!(errors.contains("is \"bulk\", a queue of Sluicegate"));
    let each = |of_b: &str| {
        let yaml = format!(
            "dispatch: {{forward: {{routing-key: jobs}}}}\npipelines: {{a: {{}}, b: {of_b}}}\n"
        );
        Pipelines::parse("c.yaml", &yaml, std::iter::empty()).map_err(|errors| errors.to_string())
    };
    // No pipeline uses the queue of the top level.
    each("{}").expect("valid");
    let errors = each("{amqp: {queue: jobs}}").expect_err("they would come back");
    assert!(errors.contains("is \"jobs\", a queue of Sluicegate"));
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
fn keys_without_effect_for_a_dispatch_kind_have_warnings() {
    let of = |dispatch: &str| parse(dispatch).expect(dispatch).warnings();
    for (dispatch, words) in [
        (
            "{forward: {exchange: ''}}",
            "dispatch.forward.exchange: is the default exchange",
        ),
        (
            "{forward: {exchange: x, timeout: 5s}}",
            "dispatch.forward.timeout: has no effect",
        ),
        (
            "{forward: {exchange: x}, results: {to: reply-to}}",
            "dispatch.results: a result means that its job was forwarded",
        ),
        (
            "{exec: {command: [cat]}, results: {to: reply-to, headers: [location]}}",
            "dispatch.results.headers: has no effect",
        ),
    ] {
        let found = of(dispatch);
        assert!(found.len() == 1 && found[0].starts_with(words), "{found:?}");
    }
    for fine in [
        "{forward: {exchange: x}}",
        "{forward: {exchange: x, done: true, timeout: 5s}, results: {to: reply-to}}",
        "{forward: {exchange: x}, results: {headers: [location]}}",
        "{http: {url: 'http://h/'}, results: {to: reply-to, headers: [location]}}",
    ] {
        assert_eq!(of(fine), [""; 0], "{fine}");
    }
}

#[test]
fn max_concurrent_with_forwarding_has_a_warning() {
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
