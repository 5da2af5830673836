//! The configuration: which texts are accepted, which are refused, and that none of its output
//! contains a secret.

mod admin;
mod amqp;
mod answers;
mod calls;
mod differing_policies;
mod headers;
mod limits;
mod redis;
mod results;
mod schema;
mod ways;

use std::time::Duration;

use config::{Config, KEYS, QueueType, TenantField, ValueField, env_name};
use rules::limit::{Algorithm, Unit};
use rules::tenant::Tenant;

fn env(vars: &[(&str, &str)]) -> impl Iterator<Item = (String, String)> {
    let vars: Vec<_> = vars
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    vars.into_iter()
}

fn parse(yaml: &str) -> Result<Config, String> {
    Config::parse("c.yaml", yaml, env(&[])).map_err(|errors| errors.to_string())
}

/// Checks that `yaml` is refused with exactly these lines.
#[track_caller]
fn check(yaml: &str, expected: &str) {
    assert_eq!(parse(yaml).expect_err(yaml), expected, "{yaml}");
}

/// Checks that a variable is refused with exactly this line.
#[track_caller]
fn check_env(name: &str, value: &str, expected: &str) {
    let errors = Config::parse("c.yaml", "", env(&[(name, value)])).expect_err(name);
    assert_eq!(
        errors.to_string(),
        format!("environment variable {name}: {expected}")
    );
}

#[test]
fn an_empty_file_means_the_defaults() {
    let config = Config::default();
    for empty in [
        "",
        "\n",
        "# only a comment\n",
        "---\n",
        "amqp:\nredis:\n",
        "{}",
    ] {
        assert_eq!(parse(empty).as_ref(), Ok(&config), "{empty:?}");
    }
    let limit = &config.rate_limiter.policy.default_limits()[0];
    assert_eq!(limit.algorithm(), Algorithm::SlidingWindow);
    assert_eq!(
        (limit.max(), limit.window_ms(), limit.guard_ms()),
        (5, 60_000, 50)
    );
    assert_eq!(config.amqp.queue_type, QueueType::Quorum);
    assert_eq!(
        config.job.tenant,
        TenantField::Header("x-tenant".to_owned())
    );
    assert_eq!(config.job.cost, ValueField::Header("x-cost".to_owned()));
    assert_eq!((limit.name(), limit.unit()), ("default", Unit::Cost));
    assert_eq!(config.rate_limiter.policy.plan_header(), None);
    assert_eq!(config.warnings(), [""; 0]);
    assert_eq!(config.delay.max_in_memory, Duration::from_millis(500));
    assert_eq!(config.rate_limiter.max_throttle, Duration::from_secs(3600));
    assert_eq!(config.dispatch.http, None);
}

#[test]
fn the_sample_is_the_defaults_and_a_url() {
    let text = include_str!("../../../docs/sluicegate.yaml");
    let sample = parse(text).expect("the sample");
    let http = sample.dispatch.http.as_ref().expect("the sample has a url");
    assert_eq!(http.url.expose(), "http://127.0.0.1:8080/");
    assert_eq!(http.timeout, Duration::from_secs(10));
    let without = parse(&text.replace("url: http://", "# url: http://"));
    assert_eq!(without.expect("the rest"), Config::default());
}

#[test]
fn the_sample_names_every_key_and_its_default() {
    let sample = include_str!("../../../docs/sluicegate.yaml");
    for key in KEYS.iter() {
        let leaf = key.path.rsplit('.').next().expect("never empty");
        let lines = match key.default {
            // Defaults of rarely set keys are commented out.
            Some(default) => [
                format!("  {leaf}: {default}"),
                format!("# {leaf}: {default}"),
            ],
            None if leaf.ends_with("-file") => [format!("# {leaf}: /"), format!("# {leaf}: /")],
            None => [format!("  {leaf}: "), format!("# {leaf}:")],
        };
        let named = lines.iter().any(|line| sample.contains(line));
        assert!(named, "{}: {lines:?}", key.path);
    }
}

#[test]
fn the_shown_configuration_is_equivalent() {
    let yaml = "
amqp: {url: 'amqps://h/v', queue: 'a \"b\" \\ ü\u{200b}', queue-type: classic, prefetch: 7}
redis: {prefix: p}
job: {tenant: 'json:/a/b~1c', cost: 'json:/n'}
rate-limiter: {use-algo: fixed-window-algo, window-size: 1500ms, max-requests: 20, guard: 0, guard-budget: 7%, max-throttle: 5}
dispatch: {concurrency: 3, shutdown-timeout: 0, http: {url: 'https://h/x', timeout: 2m}}
delay: {max-in-memory: 0, max-delay: 90s}
retry: {max-attempts: 1, initial-interval: 10ms, max-interval: 1d}
admin: {listen: '[::1]:0'}
log: {format: json, level: 'warn,sluicegate=debug'}
";
    let config = parse(yaml).expect("valid");
    assert_eq!(parse(&config.to_string()).as_ref(), Ok(&config));
    for line in [
        "  queue-type: classic",
        "  window-size: 1500ms",
        "  max-delay: 90s",
        "  guard-budget: 7%",
    ] {
        assert!(config.to_string().contains(line), "{line}");
    }
}

#[test]
fn values_out_of_range_are_reported_with_the_range_and_the_place() {
    let number = "a whole number";
    let [others @ .., last] = Algorithm::ALL.map(Algorithm::name);
    let algorithms = format!("{} or {last}", others.join(", "));
    let duration =
        "a number of seconds, or a whole number with a unit, such as 500ms, 10s, 5m, 1h or 7d";
    let window = "a duration, such as 500ms, 10s, 5m, 1h or 7d; day, week or month";
    for (section, line, expected) in [
        ("rate-limiter", "window-size: 0", "is 0; it must be from 100ms to 31d".to_owned()),
        ("rate-limiter", "window-size: 32d", "is \"32d\"; it must be from 100ms to 31d".to_owned()),
        ("rate-limiter", "window-size: -1", format!("is -1; it must be {duration}")),
        ("rate-limiter", "window-size: soon", format!("is \"soon\"; it must be {window}")),
        ("rate-limiter", "window-size: 0.5", format!("is a number with a fraction; it must be {window}")),
        ("rate-limiter", "window-size:", format!("is empty; it must be {window}")),
        ("rate-limiter", "max-requests: 0", format!("is 0; it must be {number} from 1 to 1000000000000")),
        ("rate-limiter", "max-requests: 10000000000000", format!("is 10000000000000; it must be {number} from 1 to 1000000000000")),
        ("rate-limiter", "max-requests: 5 per minute", format!("is \"5 per minute\"; it must be {number} from 1 to 1000000000000")),
        ("rate-limiter", "guard: 30s", "the guard is 30s and the window is 1m; the guard must be \
            shorter than half the window".to_owned()),
        ("rate-limiter", "guard: atuo", "is \"atuo\"; it must be auto, strict, or a whole number with a unit, such as 50ms or 1s".to_owned()),
        ("rate-limiter", "guard-budget: 101%", "is \"101%\"; it must be a percentage from 0% to 100%, such as 1% or 0.5%".to_owned()),
        ("rate-limiter", "guard-budget: 1", "is 1; it must be a percentage from 0% to 100%, such as 1% or 0.5%".to_owned()),
        ("rate-limiter", "guard: 18446744073709551615s", "is \"18446744073709551615s\"; it must be from 0ms to 31d".to_owned()),
        ("rate-limiter", "max-throttle: 0", "is 0; it must be from 1s to 7d".to_owned()),
        ("rate-limiter", "use-algo: sliding-windw-algo", format!("is \"sliding-windw-algo\"; it must be {algorithms}; did you mean sliding-window-algo?")),
        ("rate-limiter", "use-algo: leaky", format!("is \"leaky\"; it must be {algorithms}")),
        ("rate-limiter", "burst: 0", format!("is 0; it must be {number} from 1 to 1000000000000")),
        ("rate-limiter", "burst: 5", "burst has no meaning for sliding-window-algo; use it with \
            token-bucket-algo or leaky-bucket-algo".to_owned()),
        ("rate-limiter", "unit: tokens", "is \"tokens\"; it must be calls or cost".to_owned()),
        ("rate-limiter", "scope: [tenant]", "is a list; it must be tenant, global, header:NAME or routing-key".to_owned()),
        ("rate-limiter", "scope: 'header:'", "must name a header of 1 to 255 bytes after `header:`, without control characters and spaces at its ends".to_owned()),
        ("rate-limiter", "scope: 'header: x-endpoint'", "must name a header of 1 to 255 bytes after `header:`, without control characters and spaces at its ends".to_owned()),
        ("rate-limiter", "scope: 'header:x-sluicegate-ticket'", "names the header \
            \"x-sluicegate-ticket\", which Sluicegate or RabbitMQ sets; use a header that \
            publishers set".to_owned()),
        ("rate-limiter", "scope: 'header:x-sluicegate-later'", "names the header \
            \"x-sluicegate-later\", which Sluicegate or RabbitMQ sets; use a header that \
            publishers set".to_owned()),
        ("rate-limiter", "scope: 'header:x-ratelimit-remaining'", "names the header \
            \"x-ratelimit-remaining\", which Sluicegate or RabbitMQ sets; use a header that \
            publishers set".to_owned()),
        ("rate-limiter", "scope: 'header:x-first-death-queue'", "names the header \
            \"x-first-death-queue\", which Sluicegate or RabbitMQ sets; use a header that \
            publishers set".to_owned()),
        ("rate-limiter", "plan-header: retry-after", "names the header \"retry-after\", which \
            Sluicegate or RabbitMQ sets; use a header that publishers set".to_owned()),
        ("rate-limiter", "plan-header: 'x-plan '", "is \"x-plan \"; it must be a header's name of 1 to 255 bytes, such as x-plan, without control characters and spaces at its ends".to_owned()),
        ("job", "cost: 'header:x-delivery-count'", "names the header \"x-delivery-count\", which \
            Sluicegate or RabbitMQ sets; use a header that publishers set".to_owned()),
        ("job", "tenant: 'header:x-sluicegate-reason'", "names the header \
            \"x-sluicegate-reason\", which Sluicegate or RabbitMQ sets; use a header that \
            publishers set".to_owned()),
        ("rate-limiter", "scope: tennant", "is \"tennant\", an unknown scope; use tenant, global, \
            header:NAME or routing-key; did you mean tenant?".to_owned()),
        ("rate-limiter", "max-concurrent: 5", "is a separate limit; put it into a list, such as \
            limits: [{name: minute}, {name: running, max-concurrent: 5}]".to_owned()),
        ("rate-limiter", "plan-header: ''", "is empty; it must be a header's name of 1 to 255 bytes, such as x-plan".to_owned()),
        ("job", "cost: routing-key", "is \"routing-key\"; it must be header:NAME or json:/pointer".to_owned()),
        ("job", "cost: 'header:'", "must name a header of 1 to 255 bytes after `header:`, without control characters and spaces at its ends".to_owned()),
        ("amqp", "prefetch: 0", format!("is 0; it must be {number} from 1 to 65535")),
        ("amqp", "prefetch: 65536", format!("is 65536; it must be {number} from 1 to 65535")),
        ("amqp", "queue: ''", "is empty; it must be a name of 1 to 200 bytes".to_owned()),
        ("amqp", "queue: amq.jobs", "is \"amq.jobs\"; RabbitMQ reserves names that begin with \
            `amq.`".to_owned()),
        ("amqp", "queue: \"a\\nb\"", "has a control character, which queue names must not contain".to_owned()),
        ("amqp", "queue: 0x10", "is read as 16 by YAML; put it in quotes".to_owned()),
        ("amqp", "queue: no", "is read as false by YAML; put it in quotes".to_owned()),
        ("amqp", "queue: [a, b]", "is a list; it must be a name of 1 to 200 bytes".to_owned()),
        ("amqp", "queue-type: quorun", "is \"quorun\"; it must be quorum or classic; did you mean quorum?".to_owned()),
        ("redis", "prefix: 'a{}b'", "is \"a{}b\"; it must be 1 to 128 bytes without spaces and control characters, with braces only as one hash tag that is not empty, such as {rlaas}:rate_limit".to_owned()),
        ("redis", "prefix: 'a{b}{c}'", "is \"a{b}{c}\"; it must be 1 to 128 bytes without spaces and control characters, with braces only as one hash tag that is not empty, such as {rlaas}:rate_limit".to_owned()),
        ("redis", "prefix: 'a}b{'", "is \"a}b{\"; it must be 1 to 128 bytes without spaces and control characters, with braces only as one hash tag that is not empty, such as {rlaas}:rate_limit".to_owned()),
        ("redis", "prefix: a b", "is \"a b\"; it must be 1 to 128 bytes without spaces and control characters, with braces only as one hash tag that is not empty, such as {rlaas}:rate_limit".to_owned()),
        ("job", "tenant: x-tenant", "is \"x-tenant\"; it must be header:NAME, routing-key, json:/pointer, or all".to_owned()),
        ("job", "tenant: 'header:'", "must name a header of 1 to 255 bytes after `header:`, without control characters and spaces at its ends".to_owned()),
        ("job", "tenant: json:tenant", "is \"json:tenant\"; a JSON pointer (RFC 6901) begins with `/`, and `~` is written `~0`".to_owned()),
        ("dispatch", "concurrency: 0", format!("is 0; it must be {number} from 1 to 10000")),
        ("dispatch", "concurrency: 10001", format!("is 10001; it must be {number} from 1 to 10000")),
        ("dispatch", "shutdown-timeout: 2h", "is \"2h\"; it must be from 0ms to 1h".to_owned()),
        ("delay", "max-in-memory: 61", "is 61; it must be from 0ms to 1m".to_owned()),
        ("delay", "max-delay: 25h", "is \"25h\"; it must be from 1s to 1d".to_owned()),
        ("delay", "max-delay: 999ms", "is \"999ms\"; it must be from 1s to 1d".to_owned()),
        ("retry", "max-attempts: 0", format!("is 0; it must be {number} from 1 to 1000000")),
        ("retry", "initial-interval: 6m", "is 6m; it must be at most retry.max-interval, which is 5m".to_owned()),
        ("admin", "listen: 9464", "is 9464; it must be an address and a port, such as 127.0.0.1:9464, 0.0.0.0:9464 or [::1]:0".to_owned()),
        ("admin", "listen: localhost:9464", "is \"localhost:9464\"; it must be an address and a port, such as 127.0.0.1:9464, 0.0.0.0:9464 or [::1]:0".to_owned()),
        ("log", "format: xml", "is \"xml\"; it must be text or json".to_owned()),
        ("log", "level: infoo", "is \"infoo\"; it must be off, error, warn, info, debug, trace, or a list such as info,sluicegate=debug; did you mean info?".to_owned()),
    ] {
        let key = line.split(':').next().expect("never empty");
        check(
            &format!("{section}:\n  {line}\n"),
            &format!("c.yaml:2:3: {section}.{key}: {expected}"),
        );
    }
    let long = "q".repeat(201);
    check(
        &format!("amqp:\n  queue: {long}\n"),
        "c.yaml:2:3: amqp.queue: has 201 bytes; it must be a name of 1 to 200 bytes",
    );
    check(
        "delay:\n  max-in-memory: 10s\n  max-delay: 5s\n",
        "c.yaml:3:3: delay.max-delay: is 5s; it must be at least delay.max-in-memory, which is 10s",
    );
}

#[test]
fn keys_that_do_not_exist_come_with_a_suggestion() {
    let list = "docs/CONFIGURATION.md lists all keys";
    check(
        "rate-limitter:\n  window-size: 1\n",
        "c.yaml:1:1: unknown key \"rate-limitter\"; did you mean rate-limiter?",
    );
    check(
        "rate-limiter:\n  window_size: 1\n",
        "c.yaml:2:3: unknown key \"window_size\" in rate-limiter; did you mean window-size?",
    );
    check(
        "dispatch:\n  http:\n    timout: 1\n",
        "c.yaml:3:5: unknown key \"timout\" in dispatch.http; did you mean timeout?",
    );
    check(
        "max-requests: 1\n",
        "c.yaml:1:1: unknown key \"max-requests\"; did you mean rate-limiter.max-requests?",
    );
    check(
        "amqp.url: x\n",
        "c.yaml:1:1: unknown key \"amqp.url\"; write it nested, each part on a line of its own",
    );
    check(
        "colour: 1\n",
        &format!("c.yaml:1:1: unknown key \"colour\"; {list}"),
    );
    check(
        "amqp:\n  7: 1\n",
        &format!("c.yaml:2:3: unknown key \"7\" in amqp; {list}"),
    );
}

#[test]
fn max_concurrent_outside_a_list_has_a_suggestion() {
    check_env(
        "SLUICEGATE_RATE_LIMITER__MAX_CONCURRENT",
        "5",
        "rate-limiter.max-concurrent: is a separate limit; put it into a list, such as limits: \
        [{name: minute}, {name: running, max-concurrent: 5}]",
    );
}

#[test]
fn a_malformed_file_is_reported_with_the_position() {
    check(
        "- a\n",
        "c.yaml:1:1: the file must contain keys, such as `amqp:` with `  url: …` below it",
    );
    check(
        "amqp: 5\n",
        "c.yaml:1:1: amqp: is a single value; it must contain keys, indented below it",
    );
    check(
        "amqp:\n  queue: {a: 1}\n",
        "c.yaml:2:3: amqp.queue: contains keys; it must be a single value",
    );
    for (yaml, place) in [
        (
            "log:\n  format: text\n  format: json\n",
            "c.yaml:3:3: is not valid YAML: ",
        ),
        ("log:\n\tformat: text\n", "c.yaml:2:"),
        ("log:\n  format: [\n", "c.yaml:"),
        ("log: \"open\n", "c.yaml:"),
        (
            "redis:\n  url: a\nredis:\n  url: b\n",
            "c.yaml:3:1: is not valid YAML: a key appears twice",
        ),
        (
            "redis:\n\turl: a\n",
            "c.yaml:2:2: is not valid YAML: indent with spaces instead of tabs",
        ),
        ("a: &a [*a]\n", "c.yaml:1:"),
        ("log: {}\n---\nlog: {}\n", "c.yaml:"),
    ] {
        let errors = parse(yaml).expect_err(yaml);
        assert!(errors.starts_with(place), "{yaml:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains("YAML"), "{yaml:?}: {errors}");
    }
    let deep = "[".repeat(5_000);
    assert!(parse(&deep).is_err());
}

#[test]
fn all_mistakes_are_reported_in_the_order_of_the_file() {
    let yaml = "
retry:
  max-attempts: 0
colour: blue
rate-limiter:
  window-size: 0
  max-requests: 0
";
    let vars = [
        ("SLUICEGATE_AMQP__PREFETCH", "0"),
        ("SLUICEGATE_RATE_LIMITER__MAX_THROTTLE", "0"),
        ("SLUICEGATE_RATE_LIMITER__SCOPE", "x"),
        ("SLUICEGATE_X", "1"),
        ("SLUICEGATE_Y\nc.yaml:1:1: fine", "1"),
        ("SLUICEGATE_Z:amqp://u:secret@h", "1"),
    ];
    let errors = Config::parse("c.yaml", yaml, env(&vars)).expect_err("wrong");
    let text = errors.to_string();
    let starts = [
        "c.yaml:3:3: retry.max-attempts: is 0;",
        "c.yaml:4:1: unknown key \"colour\";",
        "c.yaml:6:3: rate-limiter.window-size: is 0;",
        "c.yaml:7:3: rate-limiter.max-requests: is 0;",
        "environment variable SLUICEGATE_X: sets no key;",
        "environment variable SLUICEGATE_Y…: sets no key;",
        "environment variable SLUICEGATE_Z…: sets no key;",
        "environment variable SLUICEGATE_AMQP__PREFETCH: amqp.prefetch: is \"0\";",
        "environment variable SLUICEGATE_RATE_LIMITER__SCOPE: rate-limiter.scope: is \"x\", ",
        "environment variable SLUICEGATE_RATE_LIMITER__MAX_THROTTLE: rate-limiter.max-throttle: is",
    ];
    assert_eq!(errors.problems().len(), starts.len(), "{text}");
    for (line, start) in text.lines().zip(starts) {
        assert!(line.starts_with(start), "{line}");
    }
}

#[test]
fn the_environment_sets_every_key_and_wins_over_the_file() {
    for key in KEYS.iter() {
        let (name, value) = match key.default {
            Some(default) => (env_name(key.path), default),
            None => {
                let value = match key.path {
                    "dispatch.http.url" => "http://h/",
                    "rate-limiter.burst" => "5",
                    "rate-limiter.limits" => "[{name: a}, {name: b}]",
                    "rate-limiter.plans" | "rate-limiter.tenants" => "{a: {max-requests: 1}}",
                    "rate-limiter.plan-header" => "x-plan",
                    "dispatch.http.headers" => "{x-api-key: k}",
                    "dispatch.http.answers" => "{409: retry}",
                    _ => continue, // Files of secrets are in the next test.
                };
                (env_name(key.path), value)
            }
        };
        let yaml = match key.path {
            "rate-limiter.burst" => "rate-limiter: {use-algo: token-bucket-algo}",
            _ => "",
        };
        let set = Config::parse("c.yaml", yaml, env(&[(name.as_str(), value)]));
        assert!(set.is_ok(), "{name}: {set:?}");
    }
    let config = Config::parse(
        "c.yaml",
        "rate-limiter: {use-algo: sliding-window-algo, max-requests: 7, window-size: 1}",
        env(&[
            ("SLUICEGATE_RATE_LIMITER__USE_ALGO", "fixed-window-algo"),
            ("SLUICEGATE_RATE_LIMITER__WINDOW_SIZE", "1500ms"),
            ("SLUICEGATE_DISPATCH__HTTP__URL", "http://h:1/"),
            ("SLUICEGATE_CONFIG", "elsewhere.yaml"),
            ("SLUICEGATE_SERVICE_HOST", "10.0.0.1"),
            ("PATH", "/bin"),
        ]),
    )
    .expect("valid");
    let limit = &config.rate_limiter.policy.default_limits()[0];
    assert_eq!(limit.algorithm(), Algorithm::FixedWindow);
    assert_eq!((limit.max(), limit.window_ms()), (7, 1_500));
    assert_eq!(
        config.dispatch.http.expect("set").url.expose(),
        "http://h:1/"
    );
}

#[test]
fn variables_that_set_nothing_are_refused() {
    check_env(
        "SLUICEGATE_RATE_LIMITER_USE_ALGO",
        "fixed-window-algo",
        "sets no key; did you mean SLUICEGATE_RATE_LIMITER__USE_ALGO?",
    );
    check_env(
        "SLUICEGATE_RATE_LIMITER__USE_ALG",
        "x",
        "sets no key; did you mean SLUICEGATE_RATE_LIMITER__USE_ALGO?",
    );
    check_env(
        "SLUICEGATE_",
        "x",
        "sets no key; docs/CONFIGURATION.md lists all keys",
    );
    check_env(
        "SLUICEGATE_AMQP__URL",
        "",
        "amqp.url: is empty; set a value or unset the variable",
    );
}

#[test]
fn urls_can_come_from_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    write("amqp", "amqp://u:hunter2@h/v\n");
    let redis = write("redis", "redis://:hunter2@h/3\r\n");
    let path = write(
        "c.yaml",
        "amqp: {url-file: amqp}\nredis: {url: 'redis://overruled'}\n",
    );
    let redis = redis.to_str().expect("UTF-8");
    let config =
        Config::load(Some(&path), env(&[("SLUICEGATE_REDIS__URL_FILE", redis)])).expect("valid");
    assert_eq!(config.amqp.url.expose(), "amqp://u:hunter2@h/v");
    assert_eq!(config.redis.url.urls[0].expose(), "redis://:hunter2@h/3");

    let name = path.display();
    for (yaml, expected) in [
        (
            "amqp:\n  url: amqp://u:hunter2@h\n  url-file: amqp\n",
            "3:3: amqp.url-file: amqp.url is also set; keep one of them",
        ),
        (
            "amqp:\n  url-file: none\n",
            "2:3: amqp.url-file: \"none\" can't be read: No such file or directory (os error 2)",
        ),
        (
            "redis:\n  url-file: amqp\n",
            "2:3: redis.url-file: the file's text has the wrong scheme; it must begin with \
            redis:// or rediss://",
        ),
        (
            "amqp:\n  url-file: amqp://u:hunter2@h/\n",
            "2:3: amqp.url-file: a text that is not shown, since it may contain a password can't \
            be read: No such file or directory (os error 2)",
        ),
    ] {
        write("c.yaml", yaml);
        let errors = Config::load(Some(&path), env(&[])).expect_err(yaml);
        assert_eq!(errors.to_string(), format!("{name}:{expected}"));
    }
}

#[test]
fn a_named_file_must_exist() {
    let folder = tempfile::tempdir().expect("a folder");
    let none = folder.path().join("none.yaml");
    let errors = Config::load(Some(&none), env(&[])).expect_err("missing");
    let expected = format!(
        "{}: can't be read: No such file or directory (os error 2)",
        none.display()
    );
    assert_eq!(errors.to_string(), expected);
    assert!(
        Config::load(Some(folder.path()), env(&[])).is_err(),
        "a folder"
    );

    let file = folder.path().join("bytes.yaml");
    for (bytes, words) in [
        (&b"caf\xe9: 1"[..], "it is not UTF-8 text"),
        (b"\xff\xfea\0", "it is UTF-16 text; save it as UTF-8"),
        (b"\0a\0m", "it is UTF-16 text; save it as UTF-8"),
    ] {
        std::fs::write(&file, bytes).expect("written");
        let errors = Config::load(Some(&file), env(&[])).expect_err("not text");
        assert!(errors.to_string().ends_with(words), "{errors}");
    }
}

#[test]
fn files_of_any_editor_are_accepted() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, secret) = (folder.path().join("c.yaml"), folder.path().join("amqp"));
    std::fs::write(&secret, "\u{feff}amqp://u:hunter2@h/\r\n").expect("written");
    let yaml = "\u{feff}amqp:\r\n  url-file: amqp\r\nrate-limiter:\r\n  tenants:\r\n    42: {max-requests: 7}\r\n";
    std::fs::write(&file, yaml).expect("written");
    let config = Config::load(Some(&file), env(&[])).expect("valid");
    assert_eq!(config.amqp.url.to_string(), "amqp://u:***@h/");
    let tenant = Tenant::parse("42").expect("a tenant");
    let limits = config.rate_limiter.policy.limits(&tenant, None);
    assert_eq!(limits[0].max(), 7);
}

#[test]
fn no_error_and_no_form_of_the_config_shows_a_password() {
    let keys = [
        ("amqp", "url", ["amqp", "http"]),
        ("redis", "url", ["redis", "http"]),
        ("dispatch.http", "url", ["https", "ftp"]),
    ];
    let mut refused = 0;
    for (section, leaf, schemes) in keys {
        for scheme in schemes {
            for rest in [
                "://u:hunter2@h/",
                "://u:hunter2@h:99999/",
                "://u:1/hunter2@h/",
                "://u:1#hunter2@h/",
                "://u:hun/ter2hunter2@h/",
                "://:hunter2@/",
                "://h/a/hunter2@b/c",
                ":hunter2",
                "hunter2",
                "://u:hunter2@h/ {",
                "://u:hunter2 @h",
                "://h/?token=hunter2",
            ] {
                let url = format!("{scheme}{rest}");
                let (outer, inner) = section.split_once('.').unwrap_or((section, ""));
                let mut texts = Vec::new();
                for value in [
                    format!(" {url}"),
                    url.clone(),
                    format!(" \"{url}"),
                    format!(" [{url}"),
                    format!(" {{{url}: 1}}"),
                    format!(" *{url}"),
                    format!(" !{url}"),
                    format!(" {url}\n  {leaf}: {url}"),
                    format!(" |\n      {url}\n  {url}"),
                ] {
                    texts.push(match inner {
                        "" => format!("{outer}:\n  {leaf}:{value}\n"),
                        inner => format!("{outer}:\n  {inner}:\n    {leaf}:{value}\n"),
                    });
                }
                // The URL is in a place where no value belongs.
                texts.push(format!("{url}\n"));
                texts.push(format!("amqp: {url}\n"));
                texts.push(format!("'{url}': 1\n"));
                for tree in [
                    format!("tenants: {{'{url}': 1}}"),
                    format!("tenants: {{a: {{'{url}': 1, plan: '{url}'}}}}"),
                    format!("plans: {{'{url}': {{limits: '{url}'}}}}"),
                    format!("limits: ['{url}', {{name: '{url}'}}, {{'{url}': 1}}]"),
                ] {
                    texts.push(format!("rate-limiter:\n  {tree}\n"));
                }
                texts.push(format!("amqp:\n  queue: amq.{url}\n  prefetch: {url}\n"));
                texts.push(format!(
                    "rate-limiter:\n  use-algo: {url}\nlog:\n  level: {url}\n"
                ));
                for text in &texts {
                    let shown = match parse(text) {
                        Ok(config) => format!("{config} {config:?}"),
                        Err(errors) => {
                            refused += 1;
                            errors
                        }
                    };
                    // Bare words in the wrong key can't be told from a value, but URLs can.
                    let is_url = url.contains("://") || text.contains(&format!("{leaf}:"));
                    assert!(!is_url || !shown.contains("hunter2"), "{text}\n{shown}");
                }
                let name = env_name(&format!("{section}.{leaf}"));
                let shown = match Config::parse("c.yaml", "", env(&[(&name, &url)])) {
                    Ok(config) => format!("{config} {config:?}"),
                    Err(errors) => errors.to_string(),
                };
                assert!(!shown.contains("hunter2"), "{shown}");
            }
        }
    }
    assert!(
        refused > 500,
        "{refused}: the texts are there to be refused"
    );
}

#[test]
fn invalid_urls_are_reported_with_the_reason() {
    for (section, url, expected) in [
        (
            "amqp",
            "127.0.0.1",
            "is not a valid URL: it has no scheme; it must be a URL such as \
            amqp://user:password@host:5672/%2f",
        ),
        (
            "amqp",
            "http://h",
            "has the wrong scheme; it must begin with amqp:// or amqps://",
        ),
        (
            "amqp",
            "amqp:///v",
            "has no host; it must be a URL such as amqp://user:password@host:5672/%2f",
        ),
        (
            "amqp",
            "amqp://h/a/b",
            "has a virtual host with a bare /; write it percent-encoded, such as /%2f for the default one",
        ),
        (
            "amqp",
            "amqp://u:12/34@h",
            "has an @ after the host; in a user or a password, write : / @ and # percent-encoded (%3A %2F %40 %23)",
        ),
        (
            "amqp",
            "amqp:h",
            "has no :// after its scheme; it must be a URL such as \
            amqp://user:password@host:5672/%2f",
        ),
        (
            "amqp",
            "amqp://u:a b@h",
            "has a space or a control character; it must be a URL such as \
            amqp://user:password@host:5672/%2f",
        ),
        (
            "redis",
            "redis://h?db=1",
            "has a ? or # after the host, which has no meaning here; write the database number as \
            the path, such as /0",
        ),
        (
            "redis",
            "redis://h/zero",
            "has a path that is not a database number, such as /0",
        ),
        (
            "redis",
            "redis://h:port",
            "has an invalid port; it must be a URL such as redis://user:password@host:6379/0 (in \
            a password, write : / @ and # percent-encoded)",
        ),
    ] {
        check(
            &format!("{section}:\n  url: {url}\n"),
            &format!("c.yaml:2:3: {section}.url: {expected}"),
        );
    }
    for url in [
        "amqps://h:5671",
        "amqp://u:p%40@h/%2f?heartbeat=10",
        "amqp://[::1]/v",
    ] {
        assert!(parse(&format!("amqp: {{url: '{url}'}}")).is_ok(), "{url}");
    }
}

#[test]
fn a_prefix_may_have_a_hash_tag() {
    for prefix in ["{rlaas}:rate_limit", "a{b}c", "{a}"] {
        let config = parse(&format!("redis: {{prefix: '{prefix}'}}")).expect("usable");
        assert_eq!(config.redis.prefix, prefix);
    }
}

#[test]
fn files_of_certificates_are_checked_for_each_server() {
    let papers = kit::certificates::TestCertificates::new();
    papers.issue("mine", &["worker"]);
    papers.issue("another", &["worker"]);
    papers.write("text.pem", "nothing");
    let text = papers.read("mine.key");
    let middle = text.lines().nth(1).expect("base64").to_owned();
    papers.write("damaged.key", &text.replace(&middle, "M-I"));
    let name = papers.path("c.yaml").display().to_string();
    for (section, tls, plain, begin) in [
        ("amqp", "amqps://h/v", "amqp://h/v", "amqps://"),
        ("redis", "rediss://h", "redis://h", "rediss://"),
        ("dispatch.http", "https://h/", "http://h/", "https://"),
    ] {
        let load = |url: &str, keys: &str| {
            let inner = format!("{{url: '{url}', {keys}}}");
            let text = match section.split_once('.') {
                Some((outer, inner_name)) => format!("{outer}: {{{inner_name}: {inner}}}"),
                None => format!("{section}: {inner}"),
            };
            Config::parse(&name, &text, std::iter::empty())
        };
        let all = "ca-file: ca.pem, cert-file: mine.pem, key-file: mine.key";
        let config = load(tls, all).expect(section);
        let used = match section {
            "amqp" => &config.amqp.tls,
            "redis" => &config.redis.url.tls,
            _ => &config.dispatch.http.as_ref().expect("a url").tls,
        };
        assert_eq!(used, &papers.tls("mine"));
        assert_eq!(
            parse(&config.to_string()).map(|again| again.to_string()),
            Ok(config.to_string())
        );
        let twice = load(plain, "ca-file: no.pem").expect_err("no file");
        assert_eq!(twice.problems().len(), 1, "{twice}");
        let shown = format!("{config:#?}{:?}", used.read());
        assert!(!shown.contains(&middle), "{shown}");

        for (url, keys, key, words) in [
            (
                tls,
                "ca-file: no.pem",
                "ca-file",
                "/no.pem\" can't be read: No such file",
            ),
            (
                tls,
                "ca-file: text.pem",
                "ca-file",
                "/text.pem\" contains no readable certificate",
            ),
            (
                tls,
                "cert-file: mine.pem",
                "cert-file",
                "requires its private key: set ",
            ),
            (
                tls,
                "key-file: mine.key",
                "key-file",
                "requires its certificate: set ",
            ),
            (
                tls,
                "cert-file: mine.pem, key-file: damaged.key",
                "key-file",
                "/damaged.key\" contains no readable private key; it must be a PEM file without a \
                passphrase",
            ),
            (
                tls,
                "cert-file: mine.pem, key-file: another.key",
                "key-file",
                "/another.key\" is not the key of the certificate in cert-file ",
            ),
            (
                tls,
                "cert-file: mine.key, key-file: mine.key",
                "cert-file",
                "contains no readable certificate",
            ),
            (
                plain,
                "ca-file: ca.pem",
                "ca-file",
                "has no effect without TLS; let ",
            ),
            (plain, all, "ca-file", begin),
        ] {
            let why = load(url, keys).expect_err(keys).to_string();
            assert!(why.contains(&format!(": {section}.{key}: ")), "{why}");
            assert!(why.contains(words), "{keys}: {why}");
            assert!(!why.contains(&middle) && !why.contains("M-I"), "{why}");
        }
    }
}
