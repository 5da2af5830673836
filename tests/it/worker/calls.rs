//! A worker whose calls include values of their jobs.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kit::api::{Api, ApiBehavior};
use kit::certificates::TestCertificates;
use kit::connect::ConnectProxy;
use kit::process::Process;
use kit::servers::{shared_rabbit, shared_redis, unique};
use kit::{Bed, Says, until};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use serde_json::Value;

use crate::PROGRAM;
use crate::cli::sluicegate;
use crate::http::downstream::{AfterAnswer, Downstream};

/// Returns the path, the query and one header of each call.
fn called_urls(api: &Api) -> Vec<(String, String)> {
    let calls = api.calls().into_iter().map(|call| {
        let path = call.uri.path_and_query().expect("a path").to_string();
        let header = |name| String::from_utf8_lossy(call.headers[name].as_bytes()).into_owned();
        let with = format!("{} {}", header("x-of"), header("idempotency-key"));
        (format!("{} {path}", call.method), with)
    });
    let mut calls: Vec<_> = calls.collect();
    calls.sort();
    calls
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_follow_their_jobs_values_and_a_missing_value_makes_a_dead_letter() {
    let papers = TestCertificates::new();
    for version in ["http/1.1", "h2"] {
        let api = Api::with(ApiBehavior::https(&papers, &[version])).await;
        let name = unique("calls");
        let servers = format!(
            "amqp: {{url: '{}', queue: '{name}'}}\nredis: {{url: '{}', prefix: '{name}'}}\nadmin: {{listen: '127.0.0.1:0'}}\njob: {{tenant: 'json:/customer'}}\n",
            shared_rabbit().url(),
            shared_redis().url(),
        );
        let ca = papers.path("ca.pem");
        let yaml = format!(
            "{servers}dispatch: {{http: {{url: '{}v1/{{tenant}}/orders/{{json:/order}}?by={{id}}', method: PUT, ca-file: '{}', headers: {{x-of: 'c-{{tenant}}'}}, idempotency-key: '{{json:/order}}-{{attempt}}'}}}}\n",
            api.url(),
            ca.display(),
        );
        let publish =
            |yaml: &str, id: &str, body: &str| sluicegate(yaml, &["publish", "--id", id, body]);
        publish(&yaml, "o 1", r#"{"customer": "a/b", "order": 7}"#).exited(0);
        publish(&yaml, "o2", r#"{"customer": "c d", "order": "x&y"}"#).exited(0);
        // Our own publisher refuses it at once. A publisher that does not know the worker's
        // configuration does not.
        let refused = publish(&yaml, "o3", r#"{"customer": "c"}"#).exited(2);
        let why = "json:/order is missing; dispatch.http.url needs it";
        refused.err.says(why);
        publish(&servers, "o3", r#"{"customer": "c"}"#).exited(0);

        let worker = PROGRAM.start(&yaml);
        let dead = || {
            let list = sluicegate(&yaml, &["dead", "list", "--json"]).exited(0);
            let lines = list.out.lines().map(serde_json::from_str::<Value>);
            lines.map(|line| line.expect("JSON")).collect::<Vec<_>>()
        };
        let all_there = async {
            loop {
                // Listed letters return to the queue a moment later.
                let dead = dead();
                if api.count() >= 2 && !dead.is_empty() {
                    return dead;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(120), all_there).await;
        let dead = waited
            .unwrap_or_else(|_| panic!("{:?}\n{}", called_urls(&api), worker.log().join("\n")));
        let pair = |call: &str, with: &str| (call.to_owned(), with.to_owned());
        assert_eq!(
            called_urls(&api),
            [
                pair("PUT /v1/a%2Fb/orders/7?by=o%201", "c-a/b 7-1"),
                pair("PUT /v1/c%20d/orders/x%26y?by=o2", "c-c d x&y-1"),
            ],
            "{version}"
        );
        assert_eq!(dead.len(), 1);
        assert_eq!(dead[0]["id"], "o3");
        let reason = dead[0]["reason"].as_str().expect("a reason");
        reason.says(why);
        worker.stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_numbers_are_tenants_in_headers_and_in_bodies() {
    for (tenant, place) in [
        ("header:x-tenant", "a header"),
        ("json:/customer_id", "a body"),
    ] {
        let api = Api::start().await;
        let bed = Bed::shared();
        let limits = bed.yaml("max-requests: 3, window-size: 1h", &api.url(), "");
        let yaml = format!("{limits}job: {{tenant: '{tenant}'}}\n");
        let message = |number: usize, (header, body): (AMQPValue, &str)| {
            let mut headers = FieldTable::default();
            headers.insert("x-tenant".into(), header);
            broker::Message {
                routing_key: String::new(),
                properties: BasicProperties::default()
                    .with_message_id(format!("{number}").into())
                    .with_headers(headers),
                body: format!("{{\"customer_id\": {body}}}").into(),
            }
        };
        // All these integers name one tenant, regardless of their size. Three of its five jobs are
        // called.
        let jobs = [
            (AMQPValue::LongInt(42), "42"),
            (AMQPValue::ShortShortInt(42), "42"),
            (AMQPValue::LongLongInt(42), "42"),
            (AMQPValue::LongString("42".into()), "\"42\""),
            (AMQPValue::ShortUInt(42), "42"),
            (AMQPValue::LongLongInt(-7), "-7"),
            (AMQPValue::Double(42.5), "42.5"),
            (AMQPValue::Boolean(true), "true"),
        ];
        let jobs = jobs.into_iter().enumerate();
        bed.publish(&yaml, jobs.map(|(number, job)| message(number, job)))
            .await;
        let worker = PROGRAM.start(&yaml);
        until("the calls", || api.count() == 4).await;
        let letters = bed.all_dead(&yaml, 2).await;
        worker.stop();
        let mut tenants: Vec<_> = api.calls().into_iter().map(|call| call.tenant).collect();
        tenants.sort();
        assert_eq!(tenants, ["-7", "42", "42", "42"], "{place}");
        for letter in letters {
            let reason = format!("{:?}", letter.header("x-sluicegate-reason"));
            reason.says("a tenant must be a string or a 64-bit integer");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_wait_until_an_access_token_is_available() {
    let api = Api::start().await;
    let refuses = Arc::new(AtomicBool::new(true));
    let refuses_now = Arc::clone(&refuses);
    let tokens = Downstream::start(move |_| {
        let (status, body) = match refuses_now.load(Ordering::Relaxed) {
            true => ("503 Service Unavailable", ""),
            false => (
                "200 OK",
                r#"{"access_token": "token-1", "expires_in": 3600}"#,
            ),
        };
        let length = body.len();
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}");
        (answer.into_bytes(), AfterAnswer::Keep)
    })
    .await;
    let name = unique("calls");
    let yaml = format!(
        "amqp: {{url: '{}', queue: '{name}'}}\nredis: {{url: '{}', prefix: '{name}'}}\nadmin: {{listen: '127.0.0.1:0'}}\nrate-limiter: {{max-requests: 5, window-size: 1h}}\ndispatch: {{http: {{url: '{}', timeout: 200ms, oauth2: {{token-url: 'http://{}/', client-id: shop, client-secret: hunter2}}}}}}\nretry: {{initial-interval: 10ms, max-interval: 100ms}}\n",
        shared_rabbit().url(),
        shared_redis().url(),
        api.url(),
        tokens.addr,
    );
    let worker = PROGRAM.start(&yaml);
    for id in ["1", "2", "3", "4", "5"] {
        sluicegate(&yaml, &["publish", "--tenant", "acme", "--id", id, "{}"]).exited(0);
    }
    // Long enough for each job to use up all its attempts.
    let stops = "breaker of the API open: only one probe at a time is called";
    let wait_for = async |what: &dyn Fn() -> bool| {
        let seen = async {
            while !what() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(120), seen).await;
        waited.unwrap_or_else(|_| panic!("{} calls\n{}", api.count(), worker.log().join("\n")));
    };
    wait_for(&|| worker.log().iter().any(|line| line.contains(stops))).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(api.count(), 0);
    refuses.store(false, Ordering::Relaxed);
    // Attempts without a token have used no permit, so no call is missing.
    wait_for(&|| api.count() == 5).await;
    for call in api.calls() {
        assert_eq!(call.headers["authorization"], "Bearer token-1");
    }
    let dead = sluicegate(&yaml, &["dead", "list", "--json"]).exited(0);
    assert_eq!(dead.out, "");
    worker.stop();
}

/// The log names the proxy, and nothing shows its password.
#[tokio::test(flavor = "multi_thread")]
async fn the_environments_proxy_applies_except_to_no_proxy_hosts() {
    for (variables, is_used) in [
        (vec!["HTTP_PROXY"], true),
        (vec!["http_proxy"], true),
        (vec!["HTTPS_PROXY"], false),
        (vec!["HTTP_PROXY", "NO_PROXY"], false),
    ] {
        let (api, proxy) = (Api::start().await, ConnectProxy::start(None).await);
        let name = unique("calls");
        let yaml = format!(
            "amqp: {{url: '{}', queue: '{name}'}}\nredis: {{url: '{}', prefix: '{name}'}}\nadmin: {{listen: '127.0.0.1:0'}}\ndispatch: {{http: {{url: '{}'}}}}\n",
            shared_rabbit().url(),
            shared_redis().url(),
            api.url(),
        );
        sluicegate(&yaml, &["publish", "--tenant", "acme", "{}"]).exited(0);
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(yaml.as_bytes()).expect("written");
        let mut command = Command::new(PROGRAM.0);
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"] {
            command.env_remove(name).env_remove(name.to_lowercase());
        }
        let url = format!("http://us:hunter2@{}", proxy.door.address);
        for variable in &variables {
            let value = match *variable {
                "NO_PROXY" => "127.0.0.1",
                _ => &url,
            };
            command.env(variable, value);
        }
        command.args(["run", "--config"]).arg(file.path());
        command.stdin(Stdio::null());
        let worker = Process::start(command);
        let called = async {
            while api.count() == 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(120), called).await;
        waited.unwrap_or_else(|_| panic!("{variables:?}\n{}", worker.log().join("\n")));
        let log = worker.log().join("\n");
        assert_eq!(proxy.asked().len(), usize::from(is_used), "{variables:?}");
        assert_eq!(log.contains("calls go through a proxy"), is_used, "{log}");
        assert!(!log.contains("hunter2"), "{log}");
        worker.stop();
    }
}
