//! Checks docs/openapi.json against the server: every path and status is tried, and every answer
//! has the documented form. `RENEW_PAGES=1 cargo test --test it api::document::` rewrites the file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;

use boon::{Compiler, Schemas};
use kit::root;
use serde_json::{Value, json};

use crate::api::servers::{BOTH, unavailable};
use crate::api::{Answer, JSON, OPERATOR, Port, READER, Run, send};

const FILE: &str = "docs/openapi.json";

/// The tried statuses, by method and path.
#[derive(Default)]
struct TriedStatuses(BTreeMap<String, BTreeSet<String>>);

/// The document and its schemas.
pub struct Document(Value);

impl Document {
    /// Returns each method and path with its description.
    fn operations(&self) -> Vec<(&str, &str, &Value)> {
        let paths = self.0["paths"].as_object().expect("paths");
        let mut all = Vec::new();
        for (path, methods) in paths {
            for (method, operation) in methods.as_object().expect("methods") {
                all.push((method.as_str(), path.as_str(), operation));
            }
        }
        all
    }

    /// Fetches the document from the server at `port`.
    pub async fn of(port: Port) -> Self {
        Self(port.get("/openapi.json").await.is(200))
    }

    /// Checks that `answer` to `method path` matches the description of its status.
    pub fn check_of(&self, method: &str, path: &str, answer: &Answer) {
        self.check(&self.0["paths"][path][method], answer);
    }

    /// Checks that `answer` matches the description in `operation` of its status.
    fn check(&self, operation: &Value, answer: &Answer) {
        let described = &operation["responses"][answer.status.to_string()];
        let (kind, content) = (described["content"].as_object())
            .and_then(|kinds| kinds.iter().next())
            .unwrap_or_else(|| panic!("it says nothing of {answer:?}"));
        assert!(
            answer.head.contains(&format!("content-type: {kind}")),
            "{answer:?}"
        );
        let name = content["schema"]["$ref"].as_str().expect("a name");
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler
            .add_resource("openapi.json", self.0.clone())
            .expect("a document");
        let index = compiler.compile(&format!("openapi.json{name}"), &mut schemas);
        let index = index.unwrap_or_else(|why| panic!("{name}: {why}"));
        if let Err(why) = schemas.validate(&answer.json(), index) {
            panic!("{name}: {why:#}\n{}", answer.body);
        }
    }
}

impl TriedStatuses {
    fn note(&mut self, method: &str, path: &str, answer: &Answer) {
        let of = self.0.entry(format!("{method} {path}")).or_default();
        of.insert(answer.status.to_string());
    }
}

/// Returns `path` with values.
fn filled(path: &str) -> String {
    path.replace("{tenant}", "acme").replace("{id}", "letter")
}

/// Returns a body that this path accepts.
fn body(path: &str) -> Value {
    match path {
        "/tenants/{tenant}/limit" => json!({"max": 9, "for": "1h"}),
        "/tenants/{tenant}/jobs/{id}/cancel" => json!({"wait": "0s", "for": "1h"}),
        "/dead/replay" | "/dead/drop" => json!({"tenant": "nobody"}),
        _ => json!({}),
    }
}

async fn ask(
    listen: SocketAddr,
    (method, path): (&str, &str),
    (headers, body): (&str, &str),
) -> Answer {
    let headers = format!("host: {listen}\r\n{headers}");
    let (method, path) = (method.to_uppercase(), format!("/api/v1{path}"));
    send(listen, &method, &path, (&headers, body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_lists_the_paths_and_statuses_of_the_server() {
    let run = Run::start("max-requests: 5, window-size: 1h, plans: {pro: {max-requests: 9}}, tenants: {big: {plan: pro}, own: {max-requests: 2}}").await;
    let listen = run.port.0;
    // A letter that can't be called.
    let letter = broker::Message {
        routing_key: String::new(),
        properties: lapin::BasicProperties::default().with_message_id("letter".into()),
        body: "{}".into(),
    };
    run.bed.publish(&run.yaml, [letter]).await;
    let document = Document::of(run.port).await;
    let text = serde_json::to_string_pretty(&document.0).expect("JSON") + "\n";
    if std::env::var_os("RENEW_PAGES").is_some() {
        fs::write(root().join(FILE), &text).expect("it can be written");
    }
    let renew = "RENEW_PAGES=1 cargo test --test it api::document:: writes it anew";
    assert_eq!(kit::sources::page(FILE), text, "{renew}");

    let mut tried = TriedStatuses::default();
    let (read, act) = (
        format!("authorization: Bearer {READER}\r\n"),
        format!("authorization: Bearer {OPERATOR}\r\n{JSON}"),
    );
    let away = unavailable(BOTH).await;
    for (method, path, operation) in document.operations() {
        let acts = method == "post";
        let (good, body) = match acts {
            true => (&act, body(path).to_string()),
            false => (&read, String::new()),
        };
        let asked = filled(path);
        let says = |status: &str| !operation["responses"][status].is_null();
        let mut answers = Vec::new();
        // A dead letter that another request reads is missing for a moment.
        let mut answer = ask(listen, (method, &asked), (good, &body)).await;
        while path == "/dead/letters/{id}" && answer.status == 404 {
            answer = ask(listen, (method, &asked), (good, &body)).await;
        }
        assert_eq!(answer.status, 200, "{method} {path}: {answer:?}");
        answers.push(answer);
        let query = format!("{asked}?no-such=1");
        answers.push(ask(listen, (method, &query), (good, &body)).await);
        answers.push(ask(listen, (method, &asked), (JSON, &body)).await);
        let not_allowed = match acts {
            true => format!("{read}{JSON}"),
            false => format!("{read}origin: https://example.com\r\n"),
        };
        answers.push(ask(listen, (method, &asked), (&not_allowed, &body)).await);
        if says("404") {
            let query = format!("{asked}?pipeline=none");
            answers.push(ask(listen, (method, &query), (good, &body)).await);
        }
        if acts {
            let kind = format!("authorization: Bearer {OPERATOR}\r\ncontent-type: text/plain\r\n");
            answers.push(ask(listen, (method, &asked), (&kind, &body)).await);
            let length = format!("{act}content-length: 20000\r\n");
            answers.push(ask(listen, (method, &asked), (&length, "")).await);
        }
        let without = ask(away.listen, (method, &asked), (good, &body)).await;
        match says("503") {
            true => {
                let detail = without.json()["detail"].to_string();
                let named = detail.contains("Redis") || detail.contains("RabbitMQ");
                assert!(named, "{method} {path}: {detail}");
                answers.push(without);
            }
            false => assert_eq!(without.status, 200, "{path}"),
        }
        for answer in &answers {
            document.check(operation, answer);
            tried.note(method, path, answer);
        }
    }
    for (method, path, operation) in document.operations() {
        let responses = operation["responses"].as_object().expect("responses");
        let described: BTreeSet<String> = responses.keys().cloned().collect();
        let mut found = tried.0[&format!("{method} {path}")].clone();
        found.insert("default".to_owned());
        assert_eq!(found, described, "{method} {path}");
    }
    // Liveness does not depend on the servers.
    let lives = send(away.listen, "GET", "/livez", ("host: x\r\n", "")).await;
    assert_eq!(lives.status, 200);
    run.worker.stop();
}
