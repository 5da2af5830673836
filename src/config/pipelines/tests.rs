use super::*;

fn read(text: &str, env: &[(&str, &str)]) -> Result<Pipelines, String> {
    let env = env
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Pipelines::parse("c.yaml", text, env).map_err(|errors| errors.to_string())
}

fn config<'a>(pipelines: &'a Pipelines, name: &str) -> &'a Config {
    pipelines.select(Some(name)).expect("it is there").1
}

const TWO: &str = "amqp: {url: 'amqp://h/v', prefetch: 7}
redis: {prefix: p}
rate-limiter: {max-requests: 5, window-size: 7s}
dispatch: {concurrency: 3, http: {url: 'http://top/', timeout: 3s}}
pipelines:
  orders:
    rate-limiter: {max-requests: 9}
    dispatch: {http: {url: 'http://orders/'}}
  mail-bulk:
    amqp: {queue: post}
    redis: {prefix: m}
    dispatch: {concurrency: 4}
log: {level: warn}
";

#[test]
fn a_pipeline_inherits_omitted_keys_from_the_top_level() {
    let pipelines = read(TWO, &[]).expect("valid");
    assert!(pipelines.are_named());
    assert_eq!(pipelines.names(), "mail-bulk, orders");
    let (orders, mail) = (
        config(&pipelines, "orders"),
        config(&pipelines, "mail-bulk"),
    );
    assert_eq!(orders.amqp.url, mail.amqp.url);
    assert_eq!((orders.amqp.prefetch, mail.amqp.prefetch), (7, 7));
    assert_eq!((&*orders.amqp.queue, &*mail.amqp.queue), ("orders", "post"));
    assert_eq!(orders.redis.prefix, "p:%pipeline:orders");
    assert_eq!(mail.redis.prefix, "m");
    assert_eq!(
        (orders.dispatch.concurrency, mail.dispatch.concurrency),
        (3, 4)
    );
    let limit = |config: &Config| {
        let limits = config.rate_limiter.policy.default_limits();
        limits
            .iter()
            .next()
            .map(|limit| (limit.max(), limit.window_ms()))
    };
    // Limits and calls of an API are taken as a whole or not at all.
    assert_eq!(limit(mail), Some((5, 7_000)));
    assert_eq!(limit(orders).map(|(max, _)| max), Some(9));
    assert_ne!(limit(orders).map(|(_, window)| window), Some(7_000));
    let http = |config: &Config| {
        let http = config.dispatch.http.as_ref().expect("a url");
        (http.url.to_string(), http.timeout.as_secs())
    };
    assert_eq!(http(mail), ("http://top/".to_owned(), 3));
    assert_eq!(http(orders).0, "http://orders/");
    assert_ne!(http(orders).1, 3);
    for each in pipelines.each().values() {
        assert_eq!((&each.log, &each.admin), (&pipelines.log, &pipelines.admin));
        assert_eq!(each.log.level, "warn");
    }
}

#[test]
fn a_file_without_pipelines_is_the_one_called_default() {
    let pipelines = read("amqp: {queue: q}", &[]).expect("valid");
    assert!(!pipelines.are_named());
    assert_eq!(pipelines.select(None), pipelines.select(Some("default")));
    assert_eq!(config(&pipelines, "default").amqp.queue, "q");
    let unknown = pipelines.select(Some("orders")).expect_err("there is none");
    assert!(unknown.contains("has one, called default"), "{unknown}");

    // A pipeline called `default` keeps its queue and keys among other pipelines.
    let text = "amqp: {queue: q}\nredis: {prefix: p}\npipelines: {default: , mail: }";
    let pipelines = read(text, &[]).expect("valid");
    let default = config(&pipelines, "default");
    assert_eq!((&*default.amqp.queue, &*default.redis.prefix), ("q", "p"));
    assert_eq!(config(&pipelines, "mail").amqp.queue, "mail");
    assert_eq!(pipelines.warnings(), []);
    let several = pipelines.select(None).expect_err("there are two");
    assert_eq!(
        several,
        "there are 2 pipelines: default, mail; select one with --pipeline NAME"
    );
    let close = pipelines.select(Some("mial")).expect_err("there is none");
    assert!(
        close.ends_with("there are: default, mail; did you mean mail?"),
        "{close}"
    );
}

#[test]
fn variables_set_the_top_level_or_a_key_of_one() {
    let set = [
        ("SLUICEGATE_AMQP__PREFETCH", "9"),
        ("SLUICEGATE_DISPATCH__CONCURRENCY", "11"),
        ("SLUICEGATE_PIPELINES__MAIL_BULK__AMQP__QUEUE", "letters"),
        ("SLUICEGATE_PIPELINES__ORDERS__DISPATCH__CONCURRENCY", "12"),
        ("SLUICEGATE_PIPELINE", "orders"),
    ];
    let pipelines = read(TWO, &set).expect("valid");
    let (orders, mail) = (
        config(&pipelines, "orders"),
        config(&pipelines, "mail-bulk"),
    );
    assert_eq!((orders.amqp.prefetch, mail.amqp.prefetch), (9, 9));
    assert_eq!(mail.amqp.queue, "letters");
    // A pipeline's key overrides a variable for the top level.
    assert_eq!(
        (orders.dispatch.concurrency, mail.dispatch.concurrency),
        (12, 4)
    );

    for (text, name, why) in [
        (
            TWO,
            "SLUICEGATE_PIPELINES__MAIL__AMQP__QUEUE",
            "sets a key of an unknown pipeline; variables of the file's pipelines begin with \
            SLUICEGATE_PIPELINES__ORDERS__…, SLUICEGATE_PIPELINES__MAIL_BULK__…",
        ),
        (
            "",
            "SLUICEGATE_PIPELINES__MAIL__AMQP__QUEUE",
            "the file has no `pipelines`",
        ),
        (
            TWO,
            "SLUICEGATE_PIPELINES__ORDERS__AMQP__QUEU",
            "did you mean SLUICEGATE_PIPELINES__ORDERS__AMQP__QUEUE?",
        ),
        (
            TWO,
            "SLUICEGATE_PIPELINES__ORDERS__LOG__LEVEL",
            "applies to all pipelines",
        ),
    ] {
        let errors = read(text, &[(name, "x")]).expect_err(name);
        let begin = format!("environment variable {name}: ");
        assert!(
            errors.starts_with(&begin) && errors.contains(why),
            "{errors}"
        );
    }
}

#[test]
fn an_error_names_the_pipeline_and_its_line() {
    let orders = |sections: &str| format!("pipelines:\n  orders:\n    {sections}\n");
    for (text, expected) in [
        (
            orders("dispatch: {http: {url: 'ftp://h/'}}"),
            "c.yaml:3:23: pipelines.orders.dispatch.http.url: has the wrong scheme; it must begin with http:// or https://",
        ),
        (
            orders("amqp: {quue: x}"),
            "c.yaml:3:12: unknown key \"quue\" in pipelines.orders.amqp; did you mean queue?",
        ),
        (
            orders("amq: {queue: x}"),
            "c.yaml:3:5: unknown key \"amq\" in pipelines.orders; did you mean amqp?",
        ),
        (
            orders("pipelines: {mail: }"),
            "c.yaml:3:5: pipelines.orders.pipelines: is inside another pipeline; list all \
            pipelines side by side at the top level",
        ),
        (
            orders("log: {level: warn}"),
            "c.yaml:3:5: pipelines.orders.log: applies to all pipelines; write it at the top level",
        ),
        (
            orders("rate-limiter: {limits: [{name: a, max-requests: 0}]}"),
            "c.yaml:3:39: pipelines.orders.rate-limiter.limits[0].max-requests: is 0",
        ),
        (
            "pipelines: {Orders: }".to_owned(),
            "c.yaml:1:13: pipelines: \"Orders\" is not a valid pipeline name",
        ),
        (
            "pipelines: {}".to_owned(),
            "c.yaml:1:1: pipelines: must contain at least one pipeline",
        ),
        (
            "pipelines: {orders: 3}".to_owned(),
            "c.yaml:1:13: pipelines.orders: is a single value",
        ),
        (
            "pipeline: {orders: }".to_owned(),
            "c.yaml:1:1: unknown key \"pipeline\"; did you mean pipelines?",
        ),
        // Keys derived from the pipeline's name are checked like all others.
        (
            format!(
                "redis: {{prefix: {}}}\npipelines: {{orders: }}",
                "p".repeat(120)
            ),
            "c.yaml:2:13: pipelines.orders.redis.prefix: has 137 bytes",
        ),
        (
            orders("amqp: {queues: [orders.dead]}"),
            "c.yaml:3:12: pipelines.orders.amqp.queues: has \"orders.dead\"",
        ),
        // A problem at the top level is reported once.
        (
            "delay: {max-delay: x}\npipelines: {a: , b: }".to_owned(),
            "c.yaml:1:9: delay.max-delay: is \"x\"",
        ),
    ] {
        let errors = read(&text, &[]).expect_err(&text);
        assert!(errors.starts_with(expected), "{errors}\nis not\n{expected}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    let many: String = (0..65).map(|n| format!("  p{n}:\n")).collect();
    let errors = read(&format!("pipelines:\n{many}"), &[]).expect_err("too many");
    assert!(
        errors.contains("has 65 pipelines; the maximum per process is 64"),
        "{errors}"
    );
}

#[test]
fn pipelines_that_share_exclusive_resources_are_refused() {
    let two =
        |top: &str, a: &str, b: &str| format!("{top}\npipelines:\n  a: {{{a}}}\n  b: {{{b}}}");
    let queues = |a: &str, b: &str| two("", &format!("amqp: {{{a}}}"), &format!("amqp: {{{b}}}"));
    let keys = |a: &str, b: &str| two("", &format!("redis: {{{a}}}"), &format!("redis: {{{b}}}"));
    for (text, expected) in [
        (queues("queue: q", "queue: q"), Some("has the queue \"q\"")),
        (
            queues("queue: q", "queue: q.dead"),
            Some("has the queue \"q.dead\""),
        ),
        (
            queues("queue: q.delay.from-0", "queue: q"),
            Some("has the queue"),
        ),
        (
            queues(
                "queue: q, url: 'amqp://h'",
                "queue: q, url: 'amqp://u:p@H:5672/%2F'",
            ),
            Some("has the queue"),
        ),
        (
            queues("queue: q, url: 'amqp://h'", "queue: q, url: 'amqp://h/v'"),
            None,
        ),
        (
            queues("queue: q, url: 'amqp://h'", "queue: q, url: 'amqp://i'"),
            None,
        ),
        (
            queues("queues: [x]", "queues: {x: 3}"),
            Some("has the queue \"x\""),
        ),
        (
            queues("queues: [x, b.dead]", "prefetch: 3"),
            Some("has the queue \"b.dead\""),
        ),
        (queues("queues: [x]", "queues: [z]"), None),
        (queues("queue: q", "queue: qq"), None),
        (keys("prefix: p", "prefix: p"), Some("has the prefix \"p\"")),
        (
            keys("prefix: p", "prefix: 'p:x'"),
            Some("neither begins with the other"),
        ),
        (keys("prefix: p", "prefix: px"), None),
        (
            keys(
                "prefix: p, url: 'redis://h/1'",
                "prefix: p, url: 'redis://h/2'",
            ),
            None,
        ),
        (
            keys(
                "prefix: p, url: 'redis://h/0'",
                "prefix: p, url: 'redis://h:6379'",
            ),
            Some("has the prefix"),
        ),
        (two("", "", ""), None),
        ("pipelines: {default: , a: }".to_owned(), None),
    ] {
        let read = read(&text, &[]);
        match (expected, read) {
            (None, read) => assert!(read.is_ok(), "{text}: {read:?}"),
            (Some(expected), Ok(_)) => panic!("{text}: not {expected}"),
            (Some(expected), Err(errors)) => {
                assert!(errors.contains(expected), "{errors}");
                assert!(errors.starts_with("c.yaml:4:3: pipelines.b: "), "{errors}");
            }
        }
    }
}

#[test]
fn the_shown_configuration_is_an_equivalent_file() {
    let pipelines = read(TWO, &[]).expect("valid");
    let shown = pipelines.to_string();
    let again = read(&shown, &[]).unwrap_or_else(|why| panic!("{why}\n{shown}"));
    assert_eq!(again.each(), pipelines.each());
    assert_eq!(again.to_string(), shown);
    let flat = read("amqp: {queue: q}", &[]).expect("valid");
    assert_eq!(flat.to_string(), config(&flat, "default").to_string());
}

#[test]
fn a_program_with_a_handler_of_its_own_works_on_one() {
    let errors = Config::parse("c.yaml", TWO, std::iter::empty()).expect_err("two");
    let text = errors.to_string();
    assert!(
        text.starts_with("c.yaml:5:1: pipelines: this program supports one pipeline"),
        "{text}"
    );
}

#[test]
fn a_warning_about_all_pipelines_appears_once() {
    let text = "amqp: {queue: q}\nadmin: {listen: '0.0.0.0:1'}\npipelines: {a: , b: {rate-limiter: {plan-header: x-plan}}}";
    let pipelines = read(text, &[]).expect("valid");
    let warnings = pipelines.warnings();
    let names: Vec<_> = warnings
        .iter()
        .map(|(name, _)| name.map(|name| name.as_str()))
        .collect();
    assert_eq!(names, [None, None, Some("b")], "{warnings:?}");
    assert!(warnings[0].1.contains("amqp.queue: no pipeline uses it"));
}
