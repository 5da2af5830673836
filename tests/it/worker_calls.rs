//! A worker whose calls carry what their jobs say.

use std::time::Duration;

use kit::api::{Api, Manner};
use kit::papers::Papers;
use kit::servers::{shared_rabbit, shared_redis, unique};
use serde_json::Value;

use crate::PROGRAM;
use crate::cli::sluicegate;

/// What `calls`' path, query and one header say.
fn said(api: &Api) -> Vec<(String, String)> {
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
async fn calls_go_where_their_jobs_say_and_a_job_that_does_not_say_is_a_dead_letter() {
    let papers = Papers::new();
    for version in ["http/1.1", "h2"] {
        let api = Api::with(Manner::https(&papers, &[version])).await;
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
        // A publisher of its own is told at once, one who does not know the worker's configuration is not.
        let refused = publish(&yaml, "o3", r#"{"customer": "c"}"#).exited(2);
        let why = "json:/order is missing; dispatch.http.url needs it";
        assert!(refused.err.contains(why), "{}", refused.err);
        publish(&servers, "o3", r#"{"customer": "c"}"#).exited(0);

        let worker = PROGRAM.start(&yaml);
        let dead = || {
            let list = sluicegate(&yaml, &["dead", "list", "--json"]).exited(0);
            let lines = list.out.lines().map(serde_json::from_str::<Value>);
            lines.map(|line| line.expect("JSON")).collect::<Vec<_>>()
        };
        let all_there = async {
            while api.count() < 2 || dead().is_empty() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), all_there).await;
        waited.unwrap_or_else(|_| panic!("{:?}\n{}", said(&api), worker.log().join("\n")));
        let pair = |call: &str, with: &str| (call.to_owned(), with.to_owned());
        assert_eq!(
            said(&api),
            [
                pair("PUT /v1/a%2Fb/orders/7?by=o%201", "c-a/b 7-1"),
                pair("PUT /v1/c%20d/orders/x%26y?by=o2", "c-c d x&y-1"),
            ],
            "{version}"
        );
        let dead = dead();
        assert_eq!(dead.len(), 1);
        assert_eq!(dead[0]["id"], "o3");
        let reason = dead[0]["reason"].as_str().expect("a reason");
        assert!(reason.contains(why), "{reason}");
        worker.stop();
    }
}
