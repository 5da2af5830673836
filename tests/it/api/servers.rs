//! `/api/v1` of several pipelines, after a change of the configuration, with servers that hang, and
//! in a Redis Cluster; and the page's examples.

use std::process::Command;
use std::sync::Arc;

use admin::{AdminServer, PipelineState, PipelineStates, serve};
use config::{Admin, Config, Secret};
use kit::api::Api;
use kit::gate::{LONG, limit};
use kit::redis_topologies::shared_cluster;
use kit::servers::{free_port, unique};
use kit::{PATIENCE, until_async};
use operator::audit;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::PROGRAM;
use crate::api::document::Document;
use crate::api::{JSON, OPERATOR, Port, READER, Run, send};
use crate::cli::sluicegate;
use crate::gate::topology::connect;
use crate::pipelines::{File, consume, to};

/// Returns the configuration with both tokens.
fn with_tokens(yaml: &str) -> String {
    let tokens = format!("admin: {{token: {READER}, operator-token: {OPERATOR}, listen");
    yaml.replace("admin: {listen", &tokens)
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelines_are_named_and_current_limits_are_shown_after_a_change() {
    let (file, api) = (File::new(), Api::start().await);
    let one = |max: u32| file.pipeline("one", &to(&api.url(), &format!("max-requests: {max}")));
    let two = file.pipeline("two", &to(&api.url(), "max-requests: 5"));
    let path = file.write(&with_tokens(&file.yaml(&[one(5), two])));
    let worker = PROGRAM.start_with(&path);
    consume(&worker, &["one", "two"]).await;
    let port = Port::of(&worker).await;

    let all = port.get("/pipelines").await.is(200);
    let names = |all: &Value| {
        let all = all["pipelines"].as_array().expect("a list").iter();
        all.map(|it| it["pipeline"].as_str().expect("a name").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&all), ["one", "two"]);
    assert_eq!(all["pipelines"][0]["queue"], file.queue("one"));
    let problem = port.get("/tenants/acme").await.is(400);
    let words = "there are 2 pipelines: one, two; select one with ?pipeline=NAME";
    assert_eq!(problem["detail"], words);
    let problem = port.get("/tenants/acme?pipeline=tow").await.is(404);
    let words = "there is no pipeline \"tow\"; there are: one, two; did you mean two?";
    assert_eq!(problem["detail"], words);

    // An action for all pipelines applies to each, and each has its own audit log.
    let paused = port.post("/pause", &json!({"for": "1h"})).await.is(200);
    for name in ["one", "two"] {
        assert_eq!(paused["pipelines"][name]["all"], "paused", "{paused}");
        let asked = port
            .get(&format!("/instructions?pipeline={name}"))
            .await
            .is(200);
        assert_eq!(asked["held"], "pause");
    }
    port.post("/resume?pipeline=one", &json!({})).await.is(200);
    let held = async |name: &str| {
        let asked = port
            .get(&format!("/instructions?pipeline={name}"))
            .await
            .is(200);
        asked["held"].clone()
    };
    assert_eq!(
        (held("one").await, held("two").await),
        (Value::Null, json!("pause"))
    );
    let audit = port.get("/audit?pipeline=one").await.is(200);
    assert_eq!(
        audit["entries"].as_array().map(Vec::len),
        Some(2),
        "{audit}"
    );
    let audit = port.get("/audit?pipeline=two").await.is(200);
    assert_eq!(
        audit["entries"].as_array().map(Vec::len),
        Some(1),
        "{audit}"
    );

    file.write(&with_tokens(&file.yaml(&[one(9)])));
    worker.logs(&["pipeline stopped"]).await;
    // It is the only one now.
    until_async("the new limit", async || {
        port.get("/limits").await.is(200)["limits"][0]["max_requests"] == 9
    })
    .await;
    assert_eq!(names(&port.get("/pipelines").await.is(200)), ["one"]);
    worker.stop();
}

/// The tokens for reading and for acting.
pub const BOTH: [Option<&str>; 2] = [Some(READER), Some(OPERATOR)];

/// Returns the port of a pipeline with these servers and these two tokens.
async fn port_of(yaml: &str, tokens: [Option<&str>; 2]) -> AdminServer {
    app::install_tls_provider();
    let config = Config::parse("servers.yaml", yaml, std::iter::empty()).expect("valid");
    let seen = PipelineState::default();
    seen.config.set(&config);
    let [token, operator_token] = tokens.map(|token| token.map(Secret::new));
    let admin = Admin {
        listen: ([127, 0, 0, 1], 0).into(),
        token,
        operator_token,
    };
    let server = serve(&admin, Arc::new(PipelineStates::only(seen))).await;
    server.expect("a free port")
}

/// Returns the port of a pipeline whose servers are unavailable.
pub async fn unavailable(tokens: [Option<&str>; 2]) -> AdminServer {
    let [rabbit, redis] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let yaml = format!("amqp: {{url: 'amqp://{rabbit}'}}\nredis: {{url: 'redis://{redis}'}}\n");
    port_of(&yaml, tokens).await
}

/// Returns the port of a pipeline whose servers accept connections but never answer, and these
/// servers.
async fn silent_servers() -> (AdminServer, TcpListener) {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = silent.local_addr().expect("it is bound");
    let yaml = format!("amqp: {{url: 'amqp://{address}'}}\nredis: {{url: 'redis://{address}'}}\n");
    (port_of(&yaml, BOTH).await, silent)
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_servers_delay_no_other_answer() {
    let (server, _silent) = silent_servers().await;
    let port = Port(server.listen);
    let asks = [
        "/tenants/acme",
        "/queues",
        "/dead/letters",
        "/audit",
        "/limits",
    ];
    let mut asked: Vec<_> = asks
        .into_iter()
        .map(|path| tokio::spawn(async move { port.get(path).await }))
        .collect();
    asked.push(tokio::spawn(async move {
        port.post("/pause", &json!({})).await
    }));
    // Those requests wait, but others don't.
    let lives = send(port.0, "GET", "/livez", ("host: x\r\n", "")).await;
    assert_eq!(lives.status, 200);
    assert_eq!(port.get("/pipelines").await.status, 200);
    for answer in asked {
        let answer = timeout(PATIENCE, answer).await.expect("it hangs");
        let answer = answer.expect("no panic");
        assert!(matches!(answer.status, 503 | 504), "{answer:?}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn surplus_requests_are_asked_to_retry() {
    let (server, _silent) = silent_servers().await;
    let port = Port(server.listen);
    // Up to two requests may have a connection to RabbitMQ, which does not answer. Of ten
    // simultaneous ones, the others fail at once.
    let asked: Vec<_> = (0..10)
        .map(|_| tokio::spawn(async move { port.get("/queues").await }))
        .collect();
    let mut busy = 0;
    for answer in asked {
        let answer = answer.await.expect("no panic");
        let is_busy = answer.head.contains("\nretry-after: 1");
        assert!(matches!(answer.status, 503 | 504), "{answer:?}");
        busy += usize::from(is_busy);
    }
    assert!(busy > 0, "all ten waited for a server that says nothing");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_do_not_keep_operators_from_acting() {
    let (server, _silent) = silent_servers().await;
    let port = Port(server.listen);
    let is_busy = |head: &str| head.contains("\nretry-after: 1");
    let mut reads = JoinSet::new();
    for _ in 0..20 {
        reads.spawn(async move { port.get("/audit").await });
    }
    // The others wait for Redis, which does not answer.
    let first = reads.join_next().await.expect("one of 20");
    assert!(is_busy(&first.expect("no panic").head), "20 are too many");
    let act = port.post("/pause", &json!({})).await;
    assert!(matches!(act.status, 503 | 504), "{act:?}");
    assert!(!is_busy(&act.head), "{act:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_has_one_audit() {
    let (cluster, prefix) = (shared_cluster(), unique("audit"));
    let limits = limit(rules::limit::Algorithm::SlidingWindow, 100, LONG);
    let gate = connect(cluster, &prefix, limits).gate;
    for number in 1..=3 {
        let entry = audit::AuditEntry {
            operator: "anna".to_owned(),
            peer: "here".to_owned(),
            action: "drain",
            of: serde_json::Map::new(),
            request: json!({}),
            failed: (number == 2).then(|| "no".to_owned()),
        };
        let at = audit::add(&gate, &entry).await.expect("written");
        assert_eq!(at, number);
    }
    let page = audit::read(&gate, None, 2).await.expect("read");
    let numbers: Vec<_> = page.entries.iter().map(|it| it.number).collect();
    assert_eq!((numbers, page.next), (vec![3, 2], Some(2)));
    assert_eq!(page.entries[1].failed.0.as_deref(), Some("no"));
    let page = audit::read(&gate, page.next, 2).await.expect("read");
    assert_eq!((page.entries.len(), page.next), (1, None));
}

/// Runs the page's examples as pasted.
#[tokio::test(flavor = "multi_thread")]
async fn the_examples_of_the_page_run_as_pasted() {
    let run = Run::start("max-requests: 5, window-size: 1h").await;
    let page = kit::sources::page("docs/INTERFACES.md");
    let (_, block) = page.split_once("```sh\n").expect("a shell block");
    let block = block.split_once("```").expect("its end").0;
    let folder = tempfile::tempdir().expect("a folder");
    let mut script = block.to_owned();
    for (pasted, here) in [
        ("localhost:9464", run.port.0.to_string()),
        ("-sS", "-sSf".to_owned()),
    ] {
        assert!(script.contains(pasted), "{pasted}");
        script = script.replace(pasted, &here);
    }
    for (name, token) in [("admin-token", READER), ("operator-token", OPERATOR)] {
        let path = folder.path().join(name);
        std::fs::write(&path, token).expect("written");
        let pasted = format!("/run/secrets/{name}");
        assert!(script.contains(&pasted), "{pasted}");
        script = script.replace(&pasted, path.to_str().expect("UTF-8"));
    }
    let lines = script
        .lines()
        .filter(|line| line.starts_with("api ") || line.starts_with("act "));
    let number = lines.count();
    let shell = move || Command::new("bash").args(["-euc", &script]).output();
    let done = tokio::task::spawn_blocking(shell).await.expect("no panic");
    let done = done.expect("bash and curl are there");
    let (out, err) = (
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr),
    );
    assert!(done.status.success(), "{out}{err}");
    // Each has one answer. A worker's report in it has no line breaks.
    let answers: Vec<Value> = serde_json::Deserializer::from_str(&out)
        .into_iter()
        .collect::<Result<_, _>>()
        .expect("JSON");
    assert_eq!(answers.len(), number, "{out}");
    let entries = answers.last().expect("the audit")["entries"].clone();
    let operators = entries.as_array().expect("a list").iter();
    assert!(
        operators.clone().all(|entry| entry["operator"] == "anna"),
        "{entries}"
    );
    assert_eq!(operators.count(), 4);
    run.worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn actions_complete_even_if_the_client_disconnects() {
    let run = Run::start("max-requests: 5, window-size: 1h").await;
    let headers = format!(
        "host: localhost\r\nauthorization: Bearer {OPERATOR}\r\n{JSON}content-length: 2\r\n"
    );
    let listen = run.port.0;
    let asking = tokio::spawn(async move {
        send(listen, "POST", "/api/v1/drain", (&headers, "{}")).await;
    });
    // The action is audited first. The rest begins with a connection to RabbitMQ.
    run.worker
        .logs(&["operator action over HTTP", "drain"])
        .await;
    asking.abort();
    run.worker
        .logs(&["an operator is draining all workers"])
        .await;
    run.worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_by_commands_are_audited() {
    let run = Run::start("max-requests: 5, window-size: 1h").await;
    let commands: [(&[&str], &str); 11] = [
        (&["tenant", "pause", "acme", "--for", "1h"], "tenant pause"),
        (&["tenant", "resume", "acme"], "tenant resume"),
        (&["tenant", "resume", "--all"], "tenant resume --all"),
        (&["tenant", "limit", "acme", "9"], "tenant limit"),
        (&["tenant", "reset", "acme"], "tenant reset"),
        (
            &["tenant", "divert", "acme", "--for", "1h"],
            "tenant divert",
        ),
        (&["tenant", "undivert", "acme"], "tenant undivert"),
        (&["pause", "--all"], "pause --all"),
        (&["resume", "--all"], "resume --all"),
        (
            &[
                "job", "cancel", "--tenant", "acme", "--id", "1", "--wait", "0s",
            ],
            "job cancel",
        ),
        (&["dead", "drop", "--all"], "dead drop"),
    ];
    for (args, action) in commands {
        let yaml = run.yaml.clone();
        let done = tokio::task::spawn_blocking(move || sluicegate(&yaml, args)).await;
        done.expect("no panic").exited(0);
        let newest = run.port.get("/audit?limit=1").await.is(200)["entries"][0].clone();
        assert_eq!(
            (&newest["action"], &newest["peer"]),
            (&json!(action), &json!("command"))
        );
        assert_ne!(newest["operator"], "");
        if action.starts_with("tenant") && action != "tenant resume --all" {
            assert_eq!(newest["of"]["tenant"], "acme", "{newest}");
        }
    }
    // If Redis is unavailable, actions on RabbitMQ alone still work.
    let redis = format!("127.0.0.1:{}", free_port());
    let yaml = run
        .yaml
        .replace(&run.bed.redis, &format!("redis://{redis}"));
    let drop = move || sluicegate(&yaml, &["dead", "drop", "--all"]);
    let done = tokio::task::spawn_blocking(drop).await.expect("no panic");
    let done = done.exited(0);
    let note = "note: the audit log was not written: Redis can't be reached: ";
    assert!(done.err.starts_with(note), "{done:?}");
    // Views do not.
    let yaml = run.yaml.clone();
    let look = move || sluicegate(&yaml, &["inspect", "acme"]);
    let done = tokio::task::spawn_blocking(look).await;
    done.expect("no panic").exited(0);
    let all = run.port.get("/audit").await;
    Document::of(run.port).await.check_of("get", "/audit", &all);
    let all = all.is(200);
    assert_eq!(all["entries"].as_array().map(Vec::len), Some(11), "{all}");
    run.worker.stop();
}
