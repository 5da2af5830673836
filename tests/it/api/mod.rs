//! `/api/v1` of a worker as users start it, on real servers: access, views and actions.

mod document;
pub mod servers;

use std::net::SocketAddr;
use std::sync::Arc;

use kit::api::Api;
use kit::process::Process;
use kit::servers::shared_redis;
use kit::{Bed, job, until, until_async};
use operator::audit::{self, AuditEntry};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::PROGRAM;
use crate::api::document::Document;

pub const READER: &str = "reader-0123456789";
pub const OPERATOR: &str = "operator-0123456789";
pub const JSON: &str = "content-type: application/json\r\n";

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|why| panic!("{why}: {self:?}"))
    }

    #[track_caller]
    pub fn is(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        self.json()
    }
}

/// Returns the answer to `method path` with these header lines, each with its line end.
pub async fn send(
    listen: SocketAddr,
    method: &str,
    path: &str,
    (headers, body): (&str, &str),
) -> Answer {
    let mut stream = TcpStream::connect(listen).await.expect("it listens");
    let length = match headers.contains("content-length") {
        true => String::new(),
        false => format!("content-length: {}\r\n", body.len()),
    };
    let request =
        format!("{method} {path} HTTP/1.1\r\n{headers}{length}connection: close\r\n\r\n{body}");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("it reads");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .await
        .expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a whole head");
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    Answer {
        status: status.expect("a status"),
        head: head.to_lowercase(),
        body: body.to_owned(),
    }
}

/// A worker's admin port.
#[derive(Clone, Copy)]
pub struct Port(pub SocketAddr);

impl Port {
    pub async fn of(worker: &Process) -> Self {
        worker.logs(&["RabbitMQ: consuming"]).await;
        let address = worker.listen().expect("it is said");
        Self(address.parse().expect("an address"))
    }

    pub async fn get(self, path: &str) -> Answer {
        let headers = format!("host: localhost\r\nauthorization: Bearer {READER}\r\n");
        send(self.0, "GET", &format!("/api/v1{path}"), (&headers, "")).await
    }

    pub async fn post(self, path: &str, body: &Value) -> Answer {
        let headers = format!(
            "host: localhost\r\nauthorization: Bearer {OPERATOR}\r\nx-sluicegate-operator: anna\r\n{JSON}"
        );
        let body = body.to_string();
        send(self.0, "POST", &format!("/api/v1{path}"), (&headers, &body)).await
    }
}

/// A worker with both tokens and a low limit.
pub struct Run {
    pub bed: Bed,
    pub yaml: String,
    pub api: Api,
    pub worker: Process,
    pub port: Port,
}

impl Run {
    pub async fn start(limits: &str) -> Self {
        let bed = Bed::shared();
        let api = Api::start().await;
        let tokens = format!("admin: {{token: {READER}, operator-token: {OPERATOR}, listen");
        let yaml = bed
            .yaml(limits, &api.url(), "")
            .replace("admin: {listen", &tokens);
        let yaml = format!("{yaml}delay: {{max-delay: 1s}}\n");
        let worker = PROGRAM.start(&yaml);
        let port = Port::of(&worker).await;
        Self {
            bed,
            yaml,
            api,
            worker,
            port,
        }
    }

    async fn calls(&self, number: usize) {
        until(&format!("{number} calls"), || self.api.count() >= number).await;
    }

    /// Waits until this many messages are in the queues of this kind.
    async fn holds(&self, kind: &str, number: u64) {
        until_async(&format!("{number} in {kind}"), async || {
            let queues = self.port.get("/queues").await.is(200);
            let queues = queues["queues"].as_array().expect("a list");
            let of_it = queues.iter().find(|queue| queue["holds"] == kind);
            of_it.expect("one")["jobs"] == number
        })
        .await;
    }
}

const MANY: &str = "max-requests: 1000, window-size: 1s";

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_required_to_read_and_operator_tokens_to_act() {
    let run = Run::start(MANY).await;
    let listen = run.port.0;
    let ask = async |method: &str, path: &str, headers: &str| {
        let headers = format!("host: {listen}\r\n{headers}");
        send(listen, method, &format!("/api/v1{path}"), (&headers, "")).await
    };
    let bearer = |token: &str| format!("authorization: Bearer {token}\r\n");
    let (read, act) = (bearer(READER), bearer(OPERATOR));
    for (method, path, headers, status) in [
        ("GET", "/pipelines", String::new(), 401),
        ("GET", "/pipelines", bearer("another-0123456789"), 401),
        ("GET", "/pipelines", format!("{read}{read}"), 401),
        ("GET", "/nothing", String::new(), 401),
        ("OPTIONS", "/pause", String::new(), 401),
        ("GET", "/pipelines", read.clone(), 200),
        ("GET", "/pipelines", act.clone(), 200),
        ("GET", "/nothing", read.clone(), 404),
        ("GET", "", read.clone(), 404),
        ("HEAD", "/pipelines", read.clone(), 200),
        ("OPTIONS", "/pipelines", read.clone(), 204),
        ("POST", "/pipelines", format!("{act}{JSON}"), 405),
        ("DELETE", "/pause", act.clone(), 405),
        ("GET", "/pause", act.clone(), 405),
        ("POST", "/tenants/a/resume", JSON.to_owned(), 401),
        ("POST", "/tenants/a/resume", format!("{read}{JSON}"), 403),
        ("POST", "/tenants/a/resume", act.clone(), 415),
        (
            "POST",
            "/tenants/a/resume",
            format!("{act}content-type: text/plain\r\n"),
            415,
        ),
        (
            "POST",
            "/tenants/a/resume",
            format!("{act}{JSON}origin: https://example.com\r\n"),
            403,
        ),
        (
            "POST",
            "/tenants/a/resume",
            format!("{act}{JSON}origin: null\r\n"),
            403,
        ),
        (
            "POST",
            "/tenants/a/resume",
            format!("{act}{JSON}sec-fetch-site: cross-site\r\n"),
            403,
        ),
        (
            "POST",
            "/tenants/a/resume",
            format!("{act}{JSON}origin: http://{listen}\r\nsec-fetch-site: same-origin\r\n"),
            200,
        ),
        (
            "POST",
            "/tenants/a/resume",
            format!("{act}content-type: application/json; charset=utf-8\r\n"),
            200,
        ),
    ] {
        let answer = ask(method, path, &headers).await;
        assert_eq!(
            answer.status, status,
            "{method} {path} {headers}: {answer:?}"
        );
        assert!(
            answer.head.contains("cache-control: no-store"),
            "{answer:?}"
        );
        assert!(!answer.head.contains("access-control-"), "{answer:?}");
        let shown = answer.body.clone() + &answer.head;
        assert!(
            !shown.contains(READER) && !shown.contains(OPERATOR),
            "{shown}"
        );
        match status {
            200 if method == "HEAD" => assert_eq!(answer.body, ""),
            204 => assert!(answer.head.contains("allow: get, head, options")),
            200 => assert!(answer.head.contains("content-type: application/json")),
            _ => {
                assert!(
                    answer
                        .head
                        .contains("content-type: application/problem+json")
                );
                assert_eq!(answer.json()["status"], status);
            }
        }
        if status == 405 {
            assert!(answer.head.contains("\nallow: "), "{answer:?}");
        }
        if status == 401 {
            assert!(
                answer.head.contains("www-authenticate: bearer"),
                "{answer:?}"
            );
        }
    }
    // An operator may see the metrics, too.
    let metrics = send(listen, "GET", "/metrics", (&act, "")).await;
    assert_eq!(metrics.status, 200);
    // Only the two permitted actions are audited.
    let done = run.port.get("/audit").await.is(200);
    assert_eq!(done["entries"].as_array().map(Vec::len), Some(2), "{done}");
    run.worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tokens_local_clients_read_and_none_act() {
    let bed = Bed::shared();
    let api = Api::start().await;
    let worker = PROGRAM.start(&bed.yaml(MANY, &api.url(), ""));
    let listen = Port::of(&worker).await.0;
    let ask = async |method: &str, headers: &str| {
        let path = match method {
            "POST" => "/api/v1/pause",
            _ => "/api/v1/instructions",
        };
        send(listen, method, path, (headers, "")).await
    };
    for local in ["localhost", "127.0.0.1", &listen.to_string(), "LOCALHOST:1"] {
        assert_eq!(ask("GET", &format!("host: {local}\r\n")).await.status, 200);
    }
    // A page of another site whose name resolves to this address, and requests for other hosts.
    for other in [
        "host: example.com\r\n",
        "host: localhost.example.com:9464\r\n",
        "host: localhost\r\nx-forwarded-for: 192.0.2.1\r\n",
        "host: localhost\r\norigin: https://example.com\r\n",
        "host: localhost\r\nsec-fetch-site: cross-site\r\n",
    ] {
        let problem = ask("GET", other).await.is(403);
        assert_eq!(problem["title"], "Forbidden", "{other}");
    }
    let problem = ask("POST", &format!("host: localhost\r\n{JSON}"))
        .await
        .is(403);
    let words = problem["detail"].as_str().expect("a text");
    assert!(words.contains("set admin.operator-token"), "{words}");
    worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn actions_match_the_commands_and_are_audited() {
    let run = Run::start(MANY).await;
    let port = run.port;
    // Hostile names work, too. This one has slashes around it.
    let (tenant, name) = ("a%2Fb%3Fc%23%25%20%7B%7D%2A%3A", "a/b?c#% {}*:");
    let paused = port
        .post(&format!("/tenants/{tenant}/pause"), &json!({"for": "1h"}))
        .await
        .is(200);
    assert_eq!(
        (&paused["tenant"], &paused["change"]),
        (&json!(name), &json!("pause"))
    );
    let inspect = async || port.get(&format!("/tenants/{tenant}")).await.is(200);
    let found = inspect().await;
    assert_eq!(found["suspended_until_ms"], paused["until_ms"]);
    assert_eq!(found["tenant"], name);
    assert_eq!(port.get("/tenants/%C3%BC").await.is(200)["tenant"], "ü");
    run.bed
        .publish(&run.yaml, [job(name, "one"), job("other", "two")])
        .await;
    run.calls(1).await;
    // The call is the other job's.
    assert_eq!(run.api.calls()[0].job, "two");
    let job_path = format!("/tenants/{tenant}/jobs/one");
    let document = Document::of(port).await;
    loop {
        let shown = port.get(&format!("{job_path}?wait=5s")).await;
        document.check_of("get", "/tenants/{tenant}/jobs/{id}", &shown);
        let shown = shown.is(200);
        assert_eq!(shown["workers"], 1, "{shown}");
        if shown["seen"].is_object() {
            assert_eq!(shown["seen"]["attempt"], 1, "{shown}");
            break;
        }
    }
    port.post(&format!("/tenants/{tenant}/resume"), &json!({}))
        .await
        .is(200);
    run.calls(2).await;

    let limited = port
        .post(
            &format!("/tenants/{tenant}/limit"),
            &json!({"max": 7, "for": "1h"}),
        )
        .await
        .is(200);
    assert_eq!(limited["max_requests"], 7);
    assert_eq!(inspect().await["limits"][0]["max_requests"], 7);
    port.post(&format!("/tenants/{tenant}/limit"), &json!({"clear": true}))
        .await
        .is(200);
    assert_eq!(inspect().await["limits"][0]["max_requests"], 1000);
    port.post(&format!("/tenants/{tenant}/reset"), &json!({}))
        .await
        .is(200);
    port.post("/calls/resume", &json!({})).await.is(200);

    let diverted = port
        .post(&format!("/tenants/{tenant}/divert"), &json!({"for": "1h"}))
        .await
        .is(200);
    assert_eq!(
        (&diverted["workers"], &diverted["workers_following"]),
        (&json!(1), &json!(1))
    );
    let asked = port.get("/instructions").await;
    document.check_of("get", "/instructions", &asked);
    let asked = asked.is(200);
    assert_eq!(asked["diverted"][0]["tenant"], name);
    run.bed.publish(&run.yaml, [job(name, "three")]).await;
    let client = kit::client(&run.yaml).await;
    let away: Arc<str> = format!("{}.diverted", run.bed.name).into();
    kit::holds(&client, &away, 1).await;
    client.close().await;
    let back = port
        .post(
            &format!("/tenants/{tenant}/undivert"),
            &json!({"back": true}),
        )
        .await
        .is(200);
    assert_eq!(back["back"]["replayed"], 1, "{back}");
    assert_eq!(back["from"], *away, "{back}");
    run.calls(3).await;
    // The jobs stay in a queue of this name, and no later answer would name it.
    let failed = port
        .post(
            &format!("/tenants/{tenant}/undivert"),
            &json!({"back": true, "from": "missing"}),
        )
        .await;
    let failed = failed.is(503);
    let detail = failed["detail"].as_str().unwrap_or_default();
    assert!(
        detail.starts_with("missing still has diverted jobs: "),
        "{failed}"
    );

    port.post("/pause", &json!({"for": "1h"})).await.is(200);
    assert_eq!(port.get("/instructions").await.is(200)["held"], "pause");
    run.bed.publish(&run.yaml, [job("acme", "four")]).await;
    let canceled = port
        .post("/tenants/acme/jobs/four/cancel", &json!({"wait": "0s"}))
        .await
        .is(200);
    assert_eq!(canceled["state"], "requested");
    let drained = port.post("/drain", &json!({})).await.is(200);
    assert_eq!(drained["all"], "draining");
    // Both last, and a resume ends both.
    assert_eq!(port.get("/instructions").await.is(200)["held"], "pause");
    let resumed = port.post("/resume", &json!({})).await.is(200);
    assert_eq!(resumed["was"], "pause");
    // It was canceled before any call.
    run.holds("dead", 1).await;
    let letters = port.get("/dead/letters?tenant=acme").await;
    document.check_of("get", "/dead/letters", &letters);
    let letters = letters.is(200);
    assert_eq!(letters["letters"][0]["id"], "four");
    port.get("/dead/letters/four?tenant=another").await.is(404);
    port.get("/dead/letters/four?no-tenant=true").await.is(404);
    let letter = port.get("/dead/letters/four?tenant=acme").await.is(200);
    assert_eq!(
        (&letter["body"], &letter["reason"]),
        (&json!("{}"), &json!("canceled by an operator"))
    );
    run.holds("dead", 1).await;
    let none = port
        .post("/dead/replay", &json!({"tenant": "nobody", "rate": "10/s"}))
        .await;
    assert_eq!(none.is(200)["replayed"], 0);
    run.holds("dead", 1).await;
    let none = port
        .post("/dead/replay", &json!({"id": "four", "no-tenant": true}))
        .await;
    assert_eq!(none.is(200)["replayed"], 0);
    run.holds("dead", 1).await;
    let replayed = port
        .post("/dead/replay", &json!({"id": "four"}))
        .await
        .is(200);
    assert_eq!(replayed["replayed"], 1);
    run.calls(4).await;
    let dropped = port.post("/dead/drop", &json!({"all": true})).await.is(200);
    assert_eq!(dropped["dropped"], 0);
    assert_eq!(run.api.count(), 4);

    // Invalid requests are refused and not audited.
    for (path, body, words) in [
        ("/tenants/acme/limit", json!({}), "give either max"),
        (
            "/tenants/acme/limit",
            json!({"max": 0}),
            "from 1 to 1000000000000",
        ),
        (
            "/tenants/acme/limit",
            json!({"max": 1, "limit": "defualt"}),
            "did you mean default?",
        ),
        (
            "/tenants/acme/pause",
            json!({"fro": "1h"}),
            "did you mean for?",
        ),
        (
            "/tenants/acme/pause",
            json!({"for": "366d"}),
            "from 1s to 365d",
        ),
        ("/tenants/acme/pause", json!([]), "not a JSON object"),
        ("/tenants/%00/pause", json!({}), "control character"),
        ("/tenants/%ff/pause", json!({}), "percent-encoded"),
        (
            "/tenants/acme/divert",
            json!({"to": run.bed.name}),
            "own queues",
        ),
        (
            "/tenants/acme/undivert",
            json!({"from": "there"}),
            "from requires back",
        ),
        (
            "/tenants/acme/undivert",
            json!({"back": true, "from": run.bed.name}),
            "own queues",
        ),
        (
            "/dead/replay",
            json!({"all": true, "rate": "29/m"}),
            "at least 30/m",
        ),
        (
            "/tenants/acme/jobs/1/cancel",
            json!({"wait": "6s"}),
            "at most 5s",
        ),
        ("/dead/replay", json!({}), "no dead letters selected"),
        (
            "/dead/drop",
            json!({"all": true, "tenant": "a"}),
            "not both",
        ),
    ] {
        let problem = port.post(path, &body).await.is(400);
        let detail = problem["detail"].as_str().expect("a text");
        assert!(detail.contains(words), "{path} {body}: {detail}");
    }
    let done = port.get("/audit").await;
    document.check_of("get", "/audit", &done);
    let done = done.is(200);
    let entries = done["entries"].as_array().expect("a list");
    let actions: Vec<&str> = (entries.iter().rev())
        .filter_map(|entry| entry["action"].as_str())
        .collect();
    assert_eq!(
        actions,
        [
            "tenant pause",
            "tenant resume",
            "tenant limit",
            "tenant limit",
            "tenant reset",
            "tenant resume --all",
            "tenant divert",
            "tenant undivert",
            "tenant undivert",
            "tenant undivert",
            "pause --all",
            "job cancel",
            "drain",
            "resume --all",
            "dead replay",
            "dead replay",
            "dead replay",
            "dead drop",
            // This action was begun, since the queues' names are known only then.
            "tenant divert",
            "tenant divert",
        ]
    );
    let first = entries.last().expect("one");
    assert_eq!(first["of"], json!({"tenant": name}));
    assert_eq!(first["request"], json!({"for": "1h"}));
    assert_eq!(
        (&first["operator"], &first["number"]),
        (&json!("anna"), &json!(1))
    );
    assert!(
        first["peer"]
            .as_str()
            .is_some_and(|peer| peer.starts_with("127.0.0.1:"))
    );
    let failed = entries[0]["failed"].as_str().expect("why");
    assert!(failed.contains("own queues"), "{failed}");
    assert_eq!(
        run.worker.count(&["operator action over HTTP"]),
        entries.len() - 2
    );
    run.worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_keeps_a_thousand_entries_and_its_pages_are_stable() {
    let run = Run::start(MANY).await;
    let gate = kit::gate::gate_at(shared_redis().url(), &run.bed.name);
    let entry = |number: usize| AuditEntry {
        operator: "anna".to_owned(),
        peer: "here".to_owned(),
        action: "tenant pause",
        of: serde_json::Map::new(),
        // A long entry is shortened.
        request: json!({"reason": "x".repeat(10 * number)}),
        failed: None,
    };
    for number in 1..=1_005 {
        let at = audit::add(&gate, &entry(number)).await.expect("written");
        assert_eq!(at, number as u64);
    }
    let mut numbers = Vec::new();
    let mut path = "/audit?limit=300".to_owned();
    loop {
        let page = run.port.get(&path).await.is(200);
        let entries = page["entries"].as_array().expect("a list");
        for entry in entries {
            assert!(entry.to_string().len() < 5_000);
            numbers.push(entry["number"].as_u64().expect("a number"));
        }
        // New entries don't move the pages.
        if numbers.len() == 300 {
            run.port
                .post("/tenants/acme/reset", &json!({}))
                .await
                .is(200);
        }
        match page["next"].as_u64() {
            Some(next) => path = format!("/audit?limit=300&before={next}"),
            None => break,
        }
    }
    let all: Vec<u64> = (7..=1_005).rev().collect();
    assert_eq!(
        numbers, all,
        "the reset is the 1,006th, and the sixth is gone"
    );
    let newest = run.port.get("/audit?limit=1").await.is(200);
    assert_eq!(newest["entries"][0]["action"], "tenant reset");
    run.worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_shown_in_pages_with_bodies_that_are_bounded() {
    let run = Run::start(MANY).await;
    let mut large = job("acme", "large");
    large.body = "ü".repeat(600_000).into();
    let mut bytes = job("acme", "bytes");
    bytes.body = vec![0xff, 0x00].into();
    let none = broker::Message {
        routing_key: String::new(),
        properties: lapin::BasicProperties::default().with_message_id("none".into()),
        body: "{}".into(),
    };
    run.api.answers(|_| kit::api::Reply::status(422));
    run.bed.publish(&run.yaml, [none, large, bytes]).await;
    run.holds("dead", 3).await;
    let mut ids = Vec::new();
    for offset in 0..3 {
        // Messages that were read return to the queue a moment later.
        run.holds("dead", 3).await;
        let path = format!("/dead/letters?limit=1&offset={offset}");
        let page = run.port.get(&path).await.is(200);
        assert_eq!(
            (&page["found"], &page["not_looked_at"]),
            (&json!(3), &json!(0))
        );
        let next = (offset < 2).then_some(offset + 1);
        assert_eq!(page["next_offset"], json!(next));
        ids.push(page["letters"][0]["id"].as_str().expect("an id").to_owned());
    }
    ids.sort_unstable();
    assert_eq!(ids, ["bytes", "large", "none"]);
    run.holds("dead", 3).await;
    let letter = run.port.get("/dead/letters/large").await.is(200);
    let body = letter["body"].as_str().expect("a text");
    assert_eq!((body.len(), &letter["truncated"]), (1 << 20, &json!(true)));
    assert_eq!(letter["bytes"], 1_200_000);
    run.holds("dead", 3).await;
    let letter = run.port.get("/dead/letters/bytes").await.is(200);
    assert_eq!(
        (&letter["body"], &letter["encoding"]),
        (&json!("ff00"), &json!("hex"))
    );
    run.worker.stop();
}
