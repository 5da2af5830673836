//! The output of the keys' declarations: the JSON schema accepts what loading accepts, and the
//! pages are up to date. `RENEW_PAGES=1 cargo test --test quick config::schema::` rewrites the
//! pages.

use std::fs;

use boon::{Compiler, SchemaIndex, Schemas};
use config::{AppliesAt, Config, ConfigKey, KEYS, Pipelines, json_schema};
use kit::root;
use kit::sources::{File, files, page};
use serde_json::{Value as Json, json};

/// The compiled schema.
struct Schema(Schemas, SchemaIndex);

impl Schema {
    fn new() -> Self {
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler
            .add_resource("schema.json", json_schema())
            .expect("a schema");
        let index = compiler.compile("schema.json", &mut schemas);
        Self(schemas, index.expect("a valid schema"))
    }

    fn accepts(&self, file: &Json) -> bool {
        self.0.validate(file, self.1).is_ok()
    }

    /// Returns why `file` is not valid.
    fn check(&self, file: &Json) -> Result<(), String> {
        let valid = self.0.validate(file, self.1);
        valid.map_err(|error| format!("{error:#}"))
    }
}

/// Parses `text` as other programs do.
fn yaml(text: &str) -> Json {
    serde_saphyr::from_str(text).unwrap_or_else(|why| panic!("{why}: {text}"))
}

fn load(file: &Json) -> Result<Config, String> {
    // JSON is YAML.
    let text = file.to_string();
    Config::parse("c.yaml", &text, std::iter::empty()).map_err(|errors| errors.to_string())
}

/// Returns a file with this value of the key at `path`.
fn file_with(path: &str, value: Json) -> Json {
    let mut parts = path.rsplit('.');
    parts
        .by_ref()
        .fold(value, |inner, part| json!({part: inner}))
}

/// Merges `other` into `file`.
fn merge(file: &mut Json, other: Json) {
    match (file, other) {
        (Json::Object(file), Json::Object(other)) => {
            for (key, value) in other {
                merge(file.entry(key).or_insert(Json::Null), value);
            }
        }
        (file, other) => *file = other,
    }
}

#[test]
fn documented_configurations_are_valid() {
    let schema = Schema::new();
    let sample = include_str!("../../../docs/sluicegate.yaml");
    assert_eq!(schema.check(&yaml(sample)), Ok(()));
    assert_eq!(schema.check(&json!(null)), Ok(()));
    assert_eq!(schema.check(&json!({"amqp": null})), Ok(()));
    let mut pages = files(&["docs"], ".md");
    pages.push(File {
        path: "README.md".to_owned(),
        text: page("README.md"),
    });
    let mut examples = 0;
    for File { path, text } in pages {
        for block in text.split("```yaml\n").skip(1) {
            let (block, _) = block.split_once("```").expect("it ends");
            let block = yaml(block);
            // A file for `sluicegate test` has a configuration in each case.
            let configs = match block.get("cases").and_then(Json::as_array) {
                Some(cases) => cases.iter().map(|case| case["config"].clone()).collect(),
                None => vec![block],
            };
            for config in configs {
                assert_eq!(schema.check(&config), Ok(()), "{path}: {config:#}");
                examples += 1;
            }
        }
    }
    assert!(examples > 5, "{examples}");
    let refused = schema.check(&json!({"amqp": {"quue": "jobs"}}));
    assert!(refused.is_err_and(|why| why.contains("quue")));
}

#[test]
fn each_default_and_each_example_is_valid() {
    let schema = Schema::new();
    for key in KEYS.iter() {
        let lines = include_str!("../../../src/config/examples.txt").lines();
        let mut examples = lines.filter_map(|line| line.split_once(": "));
        let example = examples.find(|(path, _)| *path == key.path);
        for text in key.default.into_iter().chain(example.map(|(_, text)| text)) {
            // A text that begins with `{` is quoted in a file.
            let value = match key.is_tree() || !text.contains(['{', '[']) {
                true => yaml(text),
                false => text.into(),
            };
            let file = file_with(key.path, value);
            assert_eq!(schema.check(&file), Ok(()), "{}: {text}", key.path);
        }
    }
}

/// Returns the first length of time in each unit, and all others.
fn lengths() -> (Vec<Json>, Vec<Json>) {
    let others = [
        1, 7, 8, 9, 10, 25, 26, 31, 32, 60, 61, 99, 100, 365, 366, 60_000, 60_001,
    ];
    let units = ["ms", "s", "", "m", "h", "d"];
    let in_unit = |unit| others.map(|length| Json::from(format!("{length}{unit}")));
    let first = units.map(|unit| Json::from(format!("0{unit}")));
    (first.to_vec(), units.map(in_unit).concat())
}

/// Returns values of every type but lengths of time, many of them at the bounds of some key.
fn values() -> Vec<Json> {
    let numbers = [
        0,
        1,
        2,
        9,
        10,
        60,
        61,
        100,
        1_000,
        1_001,
        1_501,
        3_601,
        10_000,
        10_001,
        65_535,
        65_536,
        86_401,
        604_801,
        1_000_000,
        1_000_001,
        2_678_401,
        31_536_001,
        1_000_000_000_000,
        1_000_000_000_001_u64,
    ];
    let mut values: Vec<Json> = numbers.map(Json::from).to_vec();
    values.extend([
        json!(null),
        json!(true),
        json!(false),
        json!(-1),
        json!(1.5),
    ]);
    values.extend([json!([]), json!({}), json!([1]), json!({"a": 1})]);
    let texts = [
        "",
        "soon",
        "auto",
        "strict",
        "calls",
        "cost",
        "tenant",
        "global",
        "routing-key",
        "header:x",
        "header:",
        "json:/a",
        "json:a",
        "0%",
        "0.5%",
        "100%",
        "100.5%",
        "101%",
        "%",
        "quorum",
        "classic",
        "text",
        "json",
        "amq.x",
        "a{b}c",
        "a{}c",
        "a{id}{json:/c}",
        "{\"a\": {attempt}",
        "{a}{b}",
        "{",
        "a{id",
        "{id}{",
        "{}{id}",
        "{{id}",
        "{a{id}",
        "{{foo}",
        "{a b}{A}{id}{:}",
        "{id:}",
        "{header:x",
        "{id}{json:/a~2}",
        "{json:/a~1}",
        "a b",
        "info",
        "infoo",
        "warn,sluicegate=debug",
        "127.0.0.1:1",
        "[::1]:0",
        "localhost:1",
        "sliding-window-algo",
        "leaky-bucket-algo",
        "leaky",
        "max-concurrent",
        "0123456789abcdef",
        "0123456789abcde",
        "amqp://h",
        "amqps://h",
        "redis://h",
        "http://h",
        "https://h/",
        "http:h",
        "x-plan",
        " x-plan",
        "0007d",
        "1 ms",
        "1w",
    ];
    values.extend(texts.map(Json::from));
    values
}

/// Returns the other keys that must be set if the key at `path` is at one of its bounds.
fn beside(path: &str) -> Json {
    yaml(match path {
        "rate-limiter.guard" => "rate-limiter: {window-size: 31d}",
        "rate-limiter.time-zone" | "rate-limiter.starts" => {
            "rate-limiter: {use-algo: fixed-window-algo, window-size: month}"
        }
        "rate-limiter.burst" => "rate-limiter: {use-algo: token-bucket-algo}",
        "delay.max-in-memory" => "delay: {max-delay: 1d}",
        "delay.max-delay" => "delay: {max-in-memory: 0}",
        "retry.initial-interval" => "retry: {max-interval: 1d}",
        "retry.max-interval" => "retry: {initial-interval: 1ms}",
        "dispatch.breaker.initial-interval" => "dispatch: {breaker: {max-interval: 1h}}",
        "dispatch.breaker.max-interval" => "dispatch: {breaker: {initial-interval: 10ms}}",
        "dispatch.exec.timeout" | "dispatch.exec.start-timeout" => {
            "dispatch: {exec: {command: [cat]}}"
        }
        path if path.starts_with("dispatch.forward.") => "dispatch: {forward: {exchange: x}}",
        path if path.starts_with("dispatch.http.oauth2.") => {
            "dispatch: {http: {url: 'http://h/', oauth2: {token-url: 'http://h/', client-id: a, client-secret: b}}}"
        }
        _ => "{}",
    })
}

#[test]
fn the_schema_accepts_what_loading_accepts() {
    let (schema, values, (first, others)) = (Schema::new(), values(), lengths());
    // Files and folders in these keys must exist.
    let is_path = |path: &str| path.ends_with("-file") || path.ends_with("-folder");
    let keys = KEYS.iter().filter(|key| !is_path(key.path));
    let (mut accepted, mut refused) = (0, 0);
    for key in keys {
        let beside_others = |value: Json| {
            let mut file = beside(key.path);
            merge(&mut file, file_with(key.path, value));
            file
        };
        let takes = |text: &str| schema.accepts(&beside_others(text.into()));
        // Other keys take no length, or every text.
        let more = if takes("60s") && !takes("soon") {
            &others[..]
        } else {
            &[]
        };
        for value in values.iter().chain(&first).chain(more) {
            let file = beside_others(value.clone());
            let (valid, loaded) = (schema.accepts(&file), load(&file));
            // A quoted number is accepted as a number, but editors should not propose it.
            let quoted = (value.as_str()).is_some_and(|text| text.parse::<u64>().is_ok());
            if quoted && !valid && loaded.is_ok() {
                continue;
            }
            // A schema can't compare keys.
            let alone = match &loaded {
                Ok(_) => true,
                Err(why) => {
                    why.contains("must be shorter than half the window")
                        || why.contains("each limit is a shadow")
                        || why.contains("which only fixed-window-algo supports")
                        || why.contains("for window-size: month it must be")
                        || why.contains("an unknown time zone")
                }
            };
            assert_eq!(valid, alone, "{file}: {loaded:?}");
            match alone {
                true => accepted += 1,
                false => refused += 1,
            }
        }
    }
    assert!(accepted > 500 && refused > 4_000, "{accepted} {refused}");
}

#[test]
fn the_schema_knows_the_forms_of_limits_headers_and_answers() {
    let schema = Schema::new();
    let many = |count: usize| {
        let limits: Vec<String> = (0..count).map(|n| format!("{{name: l{n}}}")).collect();
        format!("rate-limiter: {{limits: [{}]}}", limits.join(", "))
    };
    let header = |value: &str| format!("dispatch: {{http: {{headers: {{{value}}}}}}}");
    for (text, valid) in [
        ("delay: {max-in-memory: 1s}", true),
        ("delay: {max-in-memory: 1h}", false),
        (many(16).as_str(), true),
        (&many(17), false),
        ("rate-limiter: {limits: []}", false),
        ("rate-limiter: {limits: [{windw-size: 1}]}", false),
        ("rate-limiter: {limits: [{window-size: 0}]}", false),
        ("rate-limiter: {limits: [{name: B}]}", false),
        (
            "rate-limiter: {limits: [{name: a, max-concurrent: 2, scope: global}]}",
            true,
        ),
        (
            "rate-limiter: {limits: [{max-concurrent: 2, window-size: 1}]}",
            false,
        ),
        ("rate-limiter: {limits: [{max-concurrent: 0}]}", false),
        ("rate-limiter: {max-concurrent: 2}", false),
        (
            "rate-limiter: {plans: {a: {limits: [{name: a}], guard: 0}}}",
            true,
        ),
        ("rate-limiter: {plans: {a: {}}}", false),
        ("rate-limiter: {plans: {a: {plan: a}}}", false),
        ("rate-limiter: {plans: {a: {unit: tokens}}}", false),
        (
            "rate-limiter: {plans: {a: {max-requests: 1}}, tenants: {b*: {plan: a}}}",
            true,
        ),
        (
            "rate-limiter: {plans: {a: {max-requests: 1}}, tenants: {b: {plan: a, unit: cost}}}",
            false,
        ),
        ("rate-limiter: {tenants: {'': {max-requests: 1}}}", false),
        (&header("x-api-key: k, User-Agent: a b"), true),
        (&header("x-api-key: 5"), false),
        (&header("x-api-key: ''"), false),
        (&header("x-api-key: ' k'"), false),
        (&header("content-type: k"), false),
        (&header("host: k"), false),
        (&header("'a b': k"), false),
        (
            "dispatch: {http: {answers: {409: retry, 4xx+retry-after: throttle}}}",
            true,
        ),
        ("dispatch: {http: {answers: {600: retry}}}", false),
        ("dispatch: {http: {answers: {409: again}}}", false),
        ("redis: {url: [redis://a, redis://b]}", true),
        ("redis: {url: [redis://a, http://b]}", false),
        ("redis: {url: []}", false),
        ("pipelines: {a: }", true),
        ("pipelines: {a: {amqp: {queue: q}}, b-1: {}}", true),
        ("pipelines: {}", false),
        ("pipelines: ", false),
        ("pipelines: {A: }", false),
        ("pipelines: {a--b: }", false),
        ("pipelines: {a: {log: {level: warn}}}", false),
        ("pipelines: {a: {amqp: {quue: q}}}", false),
        ("pipelines: {a: 3}", false),
    ] {
        let file = yaml(text);
        let env = std::iter::empty();
        let loaded = Pipelines::parse("c.yaml", &file.to_string(), env);
        let checked = schema.check(&file);
        assert_eq!(loaded.is_ok(), valid, "{text}: {loaded:?}");
        assert_eq!(checked.is_ok(), valid, "{text}: {checked:?}");
    }
}

/// Returns a row of the tables in docs/CONFIGURATION.md.
fn row(key: &ConfigKey) -> String {
    let live = match key.applies_at {
        AppliesAt::Live => "*Live.*",
        AppliesAt::Restart => "",
    };
    let meaning: Vec<&str> = [key.about, key.note, live]
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect();
    let default = key
        .default
        .map_or("none".to_owned(), |text| format!("`{text}`"));
    let (path, meaning, values) = (key.path, meaning.join(" "), key.values());
    format!("| `{path}` | {meaning} | {values} | {default} |\n")
}

const HEAD: &str = "| key | meaning | unit, values | default |\n|---|---|---|---|\n";
const END: &str = "<!-- end of the keys -->";

/// Returns `page` with each section's keys between their marks.
fn with_tables(page: &str) -> String {
    let mut parts = page.split("<!-- keys of ");
    let mut renewed = parts.next().unwrap_or_default().to_owned();
    let mut keys = 0;
    for part in parts {
        let (section, rest) = part.split_once(" -->\n").expect("the end of a mark");
        let (_, after) = rest.split_once(END).expect("the end of the keys");
        let begin = format!("{section}.");
        let of = KEYS.iter().filter(|key| key.path.starts_with(&begin));
        let rows: Vec<String> = of.map(|key| row(key)).collect();
        keys += rows.len();
        let rows = rows.concat();
        renewed.push_str(&format!(
            "<!-- keys of {section} -->\n{HEAD}{rows}{END}{after}"
        ));
    }
    assert_eq!(keys, KEYS.len(), "each section has its marks");
    renewed
}

/// Checks that the file at `path` is `text`, or writes it.
fn is_up_to_date(path: &str, text: &str) {
    let path = root().join(path);
    if std::env::var_os("RENEW_PAGES").is_some() {
        fs::write(&path, text).expect("written");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    let renew = "RENEW_PAGES=1 cargo test --test quick config::schema:: writes it anew";
    assert!(
        found == text,
        "{} is not up to date; {renew}",
        path.display()
    );
}

#[test]
fn the_page_matches_the_declaration_of_each_key() {
    let configuration = page("docs/CONFIGURATION.md");
    is_up_to_date("docs/CONFIGURATION.md", &with_tables(&configuration));
    let configuration = page("docs/CONFIGURATION.md");
    let rows: Vec<&str> = (configuration.lines())
        .filter(|line| line.starts_with("| `"))
        .collect();
    let known: Vec<String> = KEYS.iter().map(|key| row(key)).collect();
    assert_eq!(rows, known.concat().lines().collect::<Vec<_>>());
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert!(cells.len() == 4 && !cells.contains(&""), "{row}");
    }
}

/// tests/it/cli/pages.rs checks that the command prints it.
#[test]
fn the_documented_schema_matches_the_declarations() {
    is_up_to_date(
        "docs/sluicegate.schema.json",
        &format!("{:#}\n", json_schema()),
    );
    let sample = include_str!("../../../docs/sluicegate.yaml");
    let first = "# yaml-language-server: $schema=sluicegate.schema.json\n";
    assert!(sample.starts_with(first), "editors find the schema");
}
