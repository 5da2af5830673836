//! The commands with real servers.

use std::time::Duration;

use broker::Message;
use broker::amqp::Client;
use config::Config;
use gate::Gate;
use gate::redis::RedisGate;
use kit::api::{Api, Call, Reply};
use kit::gate::{FRESH, asking};
use kit::servers::{Rabbit, shared_rabbit, shared_redis, unique};
use kit::{Bed, Says, client, drain, job, until};
use lapin::BasicProperties;
use rules::headers::{self, HeaderValue};
use rules::job::Field;
use rules::tenant::Tenant;
use serde_json::{Value, json};

use crate::PROGRAM;
use crate::cli::{json_of, sluicegate, sluicegate_with};

/// Returns a configuration with its own queue and prefix on the shared servers, and with few delay
/// queues.
pub fn yaml() -> String {
    let name = unique("cli");
    format!(
        "
amqp: {{url: '{}', queue: '{name}'}}
redis: {{url: '{}', prefix: '{name}'}}
rate-limiter: {{max-requests: 5, window-size: 1h}}
delay: {{max-delay: 1s}}
",
        shared_rabbit().url(),
        shared_redis().url()
    )
}

pub fn config(yaml: &str) -> Config {
    Config::parse("test.yaml", yaml, std::iter::empty()).expect("valid")
}

/// Waits until `number` messages are ready in the dead-letter queue.
pub async fn buried(client: &Client, number: u32) {
    kit::holds(client, &client.names().dead, number).await;
}

/// When the first of them died, in milliseconds since the Unix epoch. The others died as many
/// minutes later as their IDs say.
const DIED: u64 = 1_700_000_000_000;

fn letter(id: &str, tenant: &str, reason: &str) -> Message {
    let text = |text: &str| HeaderValue::Text(text.to_owned());
    let message = Message {
        routing_key: String::new(),
        properties: BasicProperties::default()
            .with_message_id(id.into())
            .with_content_type("application/json".into()),
        body: json!({"for": tenant}).to_string().into(),
    };
    let died = id.bytes().map(u64::from).sum::<u64>() * 60_000 + DIED;
    let mut set = headers::dead(5, reason, Some(died));
    if !tenant.is_empty() {
        set.push(("x-tenant", text(tenant)));
    }
    set.push(("x-of-the-publisher", text("kept")));
    message.with_headers(&set, &[])
}

/// Puts dead letters into the dead-letter queue.
pub async fn bury(client: &Client, letters: &[(&str, &str, &str)]) {
    let letters = letters
        .iter()
        .map(|(id, tenant, reason)| letter(id, tenant, reason));
    kit::publish(client, &client.names().dead, letters).await;
}

/// Puts this number of dead letters of one tenant into the dead-letter queue.
async fn bury_many(client: &Client, number: u32) {
    let letters = (1..=number).map(|id| letter(&id.to_string(), "a", "HTTP 500"));
    kit::publish(client, &client.names().dead, letters).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn publish_puts_confirmed_jobs_into_the_queue() {
    let yaml = yaml();
    let body = r#"{"order": 7}"#;
    let mut args = vec![
        "publish", "--tenant", "acme", "--id", "o-7", "--cost", "2", body,
    ];
    args.extend(["--header", "x-path=/a=b", "--header", "x-of-mine=7"]);
    let done = sluicegate(&yaml, &args).exited(0);
    let queue = config(&yaml).amqp.queue;
    assert_eq!(done.out, format!("confirmed 1 job in {queue}: o-7\n"));
    assert_eq!(done.err, "");

    let xml = ["publish", "--tenant", "b", "--content-type", "text/xml"];
    let done = sluicegate(&yaml, &[&xml[..], &["--json"]].concat()).exited(0);
    let made_up = done.json()["id"].as_str().map(str::to_owned);

    let client = client(&yaml).await;
    let messages = drain(&client, &client.names().fresh).await;
    let [first, second] = messages.as_slice() else {
        panic!("two jobs: {messages:?}");
    };
    assert_eq!(first.id(), Some("o-7"));
    assert_eq!(first.header("x-tenant"), Field::Text("acme"));
    assert_eq!(first.header("x-cost"), Field::Int(2));
    assert_eq!(first.header("x-path"), Field::Text("/a=b"));
    assert_eq!(first.header("x-of-mine"), Field::Text("7"));
    assert_eq!(first.body, body);
    assert_eq!(*first.properties.delivery_mode(), Some(2));
    assert_eq!(first.content_type(), Some("application/json"));
    assert_eq!(second.content_type(), Some("text/xml"));
    assert_eq!(second.id(), made_up.as_deref());
    assert_eq!(second.body, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn publish_reads_lines_and_reports_bad_ones() {
    let yaml = yaml();
    let mut input = String::new();
    // More than one batch.
    for number in 1..=1200 {
        input.push_str(&format!(
            "{{\"tenant\":\"t\",\"id\":\"{number}\",\"body\":{number}}}\n"
        ));
    }
    input.push_str("\n{\"tenant\":\"\"}\nnonsense\n{\"tenant\":\"t\",\"id\":\"last\"}");
    let done = sluicegate_with(Some(&yaml), &["publish", "--json"], input.as_bytes()).exited(1);
    let queue = config(&yaml).amqp.queue;
    assert_eq!(
        done.json(),
        json!({"queue": queue, "confirmed": 1201, "bad": 2, "refused": 0})
    );
    let errors: Vec<&str> = done.err.lines().collect();
    assert_eq!(errors.len(), 3, "{}", done.err);
    assert!(
        errors[0].starts_with("error: line 1202: the tenant is empty"),
        "{}",
        done.err
    );
    assert!(
        errors[1].starts_with("error: line 1203: is not a job"),
        "{}",
        done.err
    );
    assert_eq!(
        errors[2],
        "error: not published: 2 bad lines, and 0 jobs refused by RabbitMQ"
    );

    let client = client(&yaml).await;
    let messages = drain(&client, &client.names().fresh).await;
    let ids: Vec<_> = messages.iter().filter_map(Message::id).collect();
    let mut expected: Vec<String> = (1..=1200).map(|n| n.to_string()).collect();
    expected.push("last".to_owned());
    assert_eq!(ids, expected, "each once, in the order of the lines");

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("jobs.jsonl");
    std::fs::write(&file, "{\"tenant\":\"t\"}\n").expect("written");
    let file = file.to_str().expect("UTF-8");
    let done = sluicegate(&yaml, &["publish", "--file", file]).exited(0);
    assert_eq!(done.out, format!("confirmed 1 job in {queue}\n"));
    let lines = b"{\"tenant\":\"t\",\"id\":\"piped\"}\n";
    let done = sluicegate_with(Some(&yaml), &["publish", "--file", "-"], lines).exited(0);
    assert_eq!(done.out, format!("confirmed 1 job in {queue}\n"));
    let ids: Vec<_> = drain(&client, &client.names().fresh).await;
    let ids: Vec<_> = ids.iter().filter_map(Message::id).collect();
    assert_eq!((ids.len(), ids.last()), (2, Some(&"piped")));

    // The format of Windows editors.
    std::fs::write(
        file,
        "\u{feff}{\"tenant\":42,\"id\":1}\r\n\r\n{\"tenant\":7.5}\r\n",
    )
    .expect("written");
    let done = sluicegate(&yaml, &["publish", "--file", file]).exited(1);
    assert_eq!(done.out, format!("confirmed 1 job in {queue}\n"));
    let why = "floating point `7.5`, expected a string or a 64-bit integer";
    done.err.says("error: line 3: is not a job");
    done.err.says(why);
    let jobs = drain(&client, &client.names().fresh).await;
    assert_eq!(jobs[0].header("x-tenant"), Field::Text("42"));
    assert_eq!(jobs[0].id(), Some("1"));
    let utf16 = "\u{feff}{\"tenant\":42}\n".repeat(3);
    let utf16: Vec<u8> = utf16.encode_utf16().flat_map(u16::to_le_bytes).collect();
    std::fs::write(file, utf16).expect("written");
    let done = sluicegate(&yaml, &["publish", "--file", file]).exited(2);
    assert_eq!(
        done.err,
        "error: the input can't be read: it is UTF-16 text; save it as UTF-8\n"
    );
    assert_eq!(drain(&client, &client.names().fresh).await.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_changes_nothing() {
    let yaml = yaml();
    let queue = config(&yaml).amqp.queue;
    let done = sluicegate(&yaml, &["check"]).exited(0);
    let has = |out: &str, line: &str| out.lines().any(|known| known.starts_with(line));
    for line in [
        "ok    config    is valid",
        "ok    rabbitmq  amqp://guest:***@127.0.0.1:",
        &format!("ok    rabbitmq  queue {queue} does not exist yet"),
        "ok    redis     redis://127.0.0.1:",
        "ok    redis     maxmemory-policy is noeviction",
    ] {
        assert!(has(&done.out, line), "{line}: {}", done.out);
    }
    assert!(
        done.out.contains("answers: RabbitMQ 3.") || done.out.contains("answers: RabbitMQ 4."),
        "{}",
        done.out
    );
    assert!(!done.out.contains("warn  rabbitmq"), "{}", done.out);
    let again = sluicegate(&yaml, &["check"]).exited(0);
    assert!(
        again.out.contains("does not exist yet"),
        "the first check created it: {}",
        again.out
    );

    let client = client(&yaml).await;
    bury(&client, &[("1", "a", "HTTP 422")]).await;
    let done = sluicegate(&yaml, &["check"]).exited(0);
    assert!(
        has(
            &done.out,
            &format!("ok    rabbitmq  queue {queue}.dead: 1 message ready")
        ),
        "{}",
        done.out
    );
    assert!(!done.out.contains("warn  rabbitmq"), "{}", done.out);

    // Another type than the existing queues have.
    let classic = yaml.replace("amqp: {", "amqp: {queue-type: classic, ");
    let done = sluicegate(&classic, &["check"]).exited(1);
    assert!(
        has(
            &done.out,
            &format!("error rabbitmq  the queue '{queue}' exists with")
        ),
        "{}",
        done.out
    );
    let done = sluicegate(&classic, &["publish", "--tenant", "a"]).exited(1);
    done.err.says("set amqp.queue-type: quorum");
    assert_eq!(done.err.lines().count(), 1, "{}", done.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_one_line_without_it() {
    let yaml = yaml();
    let amqp = yaml.replace("guest:guest@", "guest:hunter2@");
    assert_ne!(amqp, yaml);
    for args in [
        &["publish", "--tenant", "a"][..],
        &["dead", "list"],
        &["check"],
    ] {
        let done = sluicegate(&amqp, args).exited(1);
        let text = format!("{}{}", done.out, done.err);
        assert!(text.contains("refused the login"), "{args:?}: {text}");
        assert!(!text.contains("hunter2"), "{args:?}: {text}");
        assert_eq!(done.err.lines().count(), 1, "{args:?}: {text}");
    }
    let redis = yaml.replace("redis://", "redis://:hunter2@");
    for args in [&["inspect", "a"][..], &["check"]] {
        let done = sluicegate(&redis, args).exited(1);
        let text = format!("{}{}", done.out, done.err);
        assert!(!text.contains("hunter2"), "{args:?}: {text}");
        assert!(
            text.to_lowercase().contains("password") || text.contains("AUTH"),
            "{args:?}: {text}"
        );
        assert_eq!(done.err.lines().count(), 1, "{args:?}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn inspect_shows_usage_and_waiting_jobs() {
    let yaml = yaml();
    let config = config(&yaml);
    let gate = RedisGate::new(&config.redis.url, &config.redis.prefix).expect("a gate");
    let tenant = Tenant::parse("acme").expect("a tenant");
    let limits = config.rate_limiter.policy.default_limits();
    let ask = asking("acme", limits, &[FRESH; 7]);
    gate.ask(&[ask]).await.expect("answers");
    gate.block(
        &tenant.clone().into(),
        Duration::from_secs(1800),
        "429 from the downstream",
    )
    .await
    .expect("blocked");

    let json = json_of(&yaml, &["inspect", "acme"]);
    assert_eq!(json["source"], "rate-limiter");
    assert_eq!(json["waiting"], 2);
    assert_eq!(json["waits_for"], "suspended");
    let limit = &json["limits"][0];
    for (key, value) in [
        ("used", 5),
        ("free", 0),
        ("max_requests", 5),
        ("configured_max_requests", 5),
        ("override_until_ms", 0),
    ] {
        assert_eq!(limit[key], value, "{key}: {json}");
    }
    assert_eq!(limit["name"], "default");
    let number = |key: &str| {
        json[key]
            .as_u64()
            .unwrap_or_else(|| panic!("{key}: {json}"))
    };
    assert!(limit["next_in_ms"].as_u64() > Some(3_000_000), "{json}");
    assert!(number("waitlist_end_in_ms") > 3_000_000, "{json}");
    assert!(number("suspended_until_ms") > number("now_ms"), "{json}");
    assert_eq!(json["suspended_by"], "429 from the downstream");

    let text = sluicegate(&yaml, &["inspect", "acme"]).exited(0).out;
    for line in [
        "used    5 of 5, 0 free",
        "why       no job is admitted before the suspension ends, in 29m ",
        "limit     default: at most 5 calls in any 1h: ",
        "waitlist  2 jobs waiting, the last is admitted in ",
        "suspended ends in 29m ",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let text = sluicegate(&yaml, &["inspect", "nobody"]).exited(0).out;
    for line in [
        "used    0 of 5, 5 free",
        "next    now",
        "recovery  unknown: Redis is new or was emptied",
        "why       a job of cost 1 is admitted once a worker has checked Redis",
        "waitlist  no job waits",
        "suspended no",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn looking_at_dead_letters_leaves_them_there() {
    let yaml = yaml();
    let queue = config(&yaml).amqp.queue;
    // A misspelled name must not look like an empty queue, and looking must not create it.
    for _ in 0..2 {
        let none = sluicegate(&yaml, &["dead", "list"]).exited(1);
        let no_queue = format!(" has no queue '{queue}.dead'; check amqp.queue");
        none.err.says(&no_queue);
        assert_eq!(none.out, "");
    }
    let client = client(&yaml).await;
    let none = sluicegate(&yaml, &["dead", "list"]).exited(0);
    assert_eq!(none.out, format!("no dead letter in {queue}.dead\n"));

    bury(
        &client,
        &[
            ("1", "a", "HTTP 422: no such order"),
            ("2", "b", "HTTP 503"),
            ("3", "a\u{1b}[2J", "HTTP 422: again"),
        ],
    )
    .await;
    for _ in 0..3 {
        buried(&client, 3).await;
        let done = sluicegate(&yaml, &["dead", "list"]).exited(0);
        // The newest comes first, regardless of RabbitMQ's order.
        let lines = [
            "3  a\\u{1b}[2J  Tue, 14 Nov 2023 23:04:20 GMT  attempt 5  HTTP 422: again",
            "2  b           Tue, 14 Nov 2023 23:03:20 GMT  attempt 5  HTTP 503",
            "1  a           Tue, 14 Nov 2023 23:02:20 GMT  attempt 5  HTTP 422: no such order",
        ];
        assert_eq!(done.out.lines().collect::<Vec<_>>(), lines);
    }
    buried(&client, 3).await;
    let done = sluicegate(&yaml, &["dead", "list", "--limit", "2"]).exited(0);
    assert_eq!(done.out.lines().count(), 2);
    done.err.says("1 more");
    for (args, lines) in [
        (&["--reason", "422", "--json"][..], 2),
        (&["--tenant", "b", "--json"], 1),
        (&["--tenant", "a", "--reason", "503", "--json"], 0),
        (&["--id", "3", "--json"], 1),
    ] {
        buried(&client, 3).await;
        let done = sluicegate(&yaml, &[&["dead", "list"], args].concat()).exited(0);
        assert_eq!(done.out.lines().count(), lines, "{args:?}: {}", done.out);
        for line in done.out.lines() {
            let json: Value = serde_json::from_str(line).expect("JSON");
            let found = json[args[0].trim_start_matches('-')].as_str();
            assert!(
                found.is_some_and(|found| found.contains(args[1])),
                "{args:?}: {line}"
            );
        }
    }
    buried(&client, 3).await;
    let json = json_of(&yaml, &["dead", "show", "2"]);
    assert_eq!(json["reason"], "HTTP 503");
    assert_eq!(json["tenant"], "b");
    assert_eq!(json["body"], r#"{"for":"b"}"#);
    assert_eq!(json["headers"]["x-of-the-publisher"], "kept");
    buried(&client, 3).await;
    let text = sluicegate(&yaml, &["dead", "show", "2"]).exited(0).out;
    text.begins("id: 2\ncontent-type: application/json\n");
    text.ends("\n\n{\"for\":\"b\"}\n");
    buried(&client, 3).await;
    let done = sluicegate(&yaml, &["dead", "show", "2", "--tenant", "a"]).exited(1);
    let none = format!("{queue}.dead has no dead letter of \"a\" with the id \"2\"");
    done.err.says(&none);
    buried(&client, 3).await;
    sluicegate(&yaml, &["dead", "show", "2", "--tenant", "b"]).exited(0);
    buried(&client, 3).await;
    let done = sluicegate(&yaml, &["dead", "show", "9"]).exited(1);
    assert_eq!(
        done.err,
        format!("error: {queue}.dead has no dead letter with the id \"9\"\n")
    );
    buried(&client, 3).await;

    // An empty tenant selects the dead letters without one.
    let done = sluicegate(&yaml, &["dead", "show", "2", "--tenant", ""]).exited(1);
    let none = format!("{queue}.dead has no dead letter without a tenant with the id \"2\"");
    done.err.says(&none);
    buried(&client, 3).await;
    bury(&client, &[("2", "", "no tenant")]).await;
    buried(&client, 4).await;
    let args = ["dead", "drop", "--id", "2", "--tenant", "", "--json"];
    let json = sluicegate(&yaml, &args).exited(0).json();
    assert_eq!(json["dropped"], 1);
    buried(&client, 3).await;
    sluicegate(&yaml, &["dead", "show", "2", "--tenant", "b"]).exited(0);
    buried(&client, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_shows_how_often_its_job_waited() {
    let api = Api::start().await;
    api.answers(|call: &Call| match call.job.as_str() {
        "good" => Reply::ok(),
        _ => Reply::status(422),
    });
    let bed = Bed::shared();
    let yaml = bed.yaml("max-requests: 1, window-size: 1h", &api.url(), "");
    let yaml = yaml + "delay: {max-in-memory: 100ms}\n";
    let worker = PROGRAM.start(&yaml);
    bed.publish(&yaml, [job("other", "never-waits")]).await;
    bed.publish(&yaml, [job("acme", "good")]).await;
    until("both calls", || api.count() == 2).await;
    bed.publish(&yaml, [job("acme", "waits")]).await;
    let is_away = || {
        ["delay-queue", "longest-delay-queue"].iter().any(|place| {
            let series = format!("sluicegate_delays_total{{where=\"{place}\"}}");
            worker.metric(&series) >= Some(1.0)
        })
    };
    until("it waits", is_away).await;
    sluicegate(&yaml, &["tenant", "limit", "acme", "9"]).exited(0);
    until("the call after its wait", || api.count() == 3).await;
    worker.stop();
    let list = |id: &str| {
        let args = ["dead", "list", "--json", "--id", id];
        sluicegate(&yaml, &args).exited(0).json()["waits"].as_u64()
    };
    assert_eq!(list("never-waits"), Some(0));
    assert!(list("waits") >= Some(1));
    let text = sluicegate(&yaml, &["dead", "list", "--id", "waits"])
        .exited(0)
        .out;
    assert!(
        text.contains("  attempt 1, ") && text.contains(" wait"),
        "{text}"
    );
    let shown = sluicegate(&yaml, &["dead", "show", "waits"]).exited(0).out;
    shown.says("x-sluicegate-waits: ");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_text_or_json_has_characters_that_control_a_terminal() {
    const HOSTILE: &str = "\u{202e}evil\u{200b}";
    let yaml = yaml();
    let client = client(&yaml).await;
    bury(&client, &[("1", HOSTILE, "HTTP 422: \u{9b}2J\u{feff}")]).await;
    for command in [
        &["inspect", HOSTILE][..],
        &["dead", "list"],
        &["dead", "show", "1"],
    ] {
        for json in [&[][..], &["--json"]] {
            buried(&client, 1).await;
            let done = sluicegate(&yaml, &[command, json].concat()).exited(0);
            let is_raw = |c| {
                let is_control = char::is_control(c) && c != '\n';
                is_control || ['\u{202e}', '\u{200b}', '\u{feff}'].contains(&c)
            };
            assert!(!done.out.contains(is_raw), "{command:?}: {:?}", done.out);
            if !json.is_empty() {
                assert_eq!(done.json()["tenant"], HOSTILE, "{command:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_starts_jobs_afresh_and_drop_deletes_them() {
    let yaml = yaml();
    let client = client(&yaml).await;
    bury(
        &client,
        &[
            ("1", "a", "HTTP 422"),
            ("2", "b", "HTTP 503"),
            ("3", "a", "HTTP 503"),
            ("4", "b", "HTTP 503"),
            ("5", "c", "HTTP 500"),
        ],
    )
    .await;
    let done = sluicegate(
        &yaml,
        &["dead", "replay", "--reason", "503", "--limit", "2"],
    )
    .exited(0);
    assert_eq!(done.out, "replayed 2 dead letters\n");
    let fresh = drain(&client, &client.names().fresh).await;
    let ids: Vec<_> = fresh.iter().filter_map(Message::id).collect();
    assert_eq!(ids, ["2", "3"]);
    for message in &fresh {
        for name in headers::OURS {
            assert_eq!(message.header(name), Field::Missing, "{name}");
        }
        assert_eq!(message.header("x-of-the-publisher"), Field::Text("kept"));
    }
    assert_eq!(fresh[0].header("x-tenant"), Field::Text("b"));

    buried(&client, 3).await;
    let done = sluicegate(&yaml, &["dead", "drop", "--tenant", "b", "--json"]).exited(0);
    assert_eq!(
        done.json(),
        json!({"dropped": 1, "refused": 0, "interrupted": false})
    );
    buried(&client, 2).await;
    let done = sluicegate(&yaml, &["dead", "drop", "--id", "9"]).exited(0);
    assert_eq!(done.out, "dropped 0 dead letters\n");
    buried(&client, 2).await;
    let done = sluicegate(&yaml, &["dead", "replay", "--all", "--json"]).exited(0);
    assert_eq!(
        done.json(),
        json!({"replayed": 2, "refused": 0, "interrupted": false})
    );
    assert_eq!(drain(&client, &client.names().fresh).await.len(), 2);
    assert_eq!(drain(&client, &client.names().dead).await, []);
}

/// RabbitMQ's channel keeps the acks that follow 32 others until the queue has applied these.
#[tokio::test(flavor = "multi_thread")]
async fn replay_removes_each_letter_from_a_slow_queue() {
    let rabbit = Rabbit::start();
    let yaml = format!(
        "amqp: {{url: '{}', queue: slow}}\ndelay: {{max-delay: 1s}}\n",
        rabbit.url()
    );
    let client = client(&yaml).await;
    bury_many(&client, 40).await;
    // Each write to the log of quorum queues now takes longer than the end of the command.
    let slow = "sys:install(ra_log_wal, {fun(_, _, _) -> timer:sleep(50) end, slow}).";
    rabbit.ctl(&["eval", slow]);
    let done = sluicegate(&yaml, &["dead", "replay", "--all"]).exited(0);
    assert_eq!(done.out, "replayed 40 dead letters\n");
    rabbit.ctl(&["eval", "sys:no_debug(ra_log_wal)."]);
    assert_eq!(drain(&client, &client.names().dead).await, []);
    assert_eq!(drain(&client, &client.names().fresh).await.len(), 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_acks_only_what_rabbitmq_confirmed() {
    // A private server: a policy lets the work queue take only one message.
    let rabbit = Rabbit::start();
    let yaml = format!(
        "amqp: {{url: '{}', queue: full, queue-type: classic}}\ndelay: {{max-delay: 1s}}\n",
        rabbit.url()
    );
    rabbit.ctl(&[
        "set_policy",
        "--apply-to",
        "queues",
        "full",
        "^full$",
        r#"{"max-length":1,"overflow":"reject-publish"}"#,
    ]);
    let client = client(&yaml).await;
    bury_many(&client, 20).await;
    let done = sluicegate(&yaml, &["dead", "replay", "--all", "--json"]).exited(1);
    let json = done.json();
    let number = |key: &str| {
        json[key]
            .as_u64()
            .unwrap_or_else(|| panic!("{key}: {json}"))
    };
    assert_eq!(number("replayed") + number("refused"), 20, "{json}");
    assert!(number("refused") > 0, "{json}");
    buried(
        &client,
        u32::try_from(number("refused")).expect("20 at most"),
    )
    .await;
    let fresh = drain(&client, &client.names().fresh).await;
    let dead = drain(&client, &client.names().dead).await;
    assert_eq!(fresh.len() as u64, number("replayed"));
    assert_eq!(dead.len() as u64, number("refused"));
}
