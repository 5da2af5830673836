//! Traces of a worker with real servers, sent to a collector.

use std::io::Write;
use std::process::{Command, Stdio};

use broker::Message;
use kit::api::{Api, Reply};
use kit::certificates::TestCertificates;
use kit::collector::{Collector, Span};
use kit::process::{DONE, Process};
use kit::{Bed, job, jobs, until};
use rules::headers::HeaderValue;
use rules::trace::Context;
use tempfile::{NamedTempFile, TempPath};

use crate::PROGRAM;
use crate::broker::bed::channel;
use crate::cli::sluicegate;
use crate::worker::forward;
use crate::worker::results::{queue, results};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// A value that must not be in our logs.
const SECRET: &str = "kept-from-logs";

/// Starts a worker with these variables in addition to those for `collector`.
fn start(yaml: &str, collector: &Collector, set: &[(&str, &str)]) -> (Process, TempPath) {
    let mut config = NamedTempFile::with_suffix(".yaml").expect("a file");
    config.write_all(yaml.as_bytes()).expect("written");
    let config = config.into_temp_path();
    let mut command = Command::new(PROGRAM.0);
    command.args(["run", "--config"]).arg(&config);
    command.stdin(Stdio::null());
    let endpoint = format!("http://user:{SECRET}@{}/", collector.address);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint);
    let header = format!("authorization=Bearer%20{SECRET}");
    command.env("OTEL_EXPORTER_OTLP_HEADERS", header);
    command.envs(set.iter().copied());
    (Process::start(command), config)
}

fn with(message: Message, headers: &[(&str, &str)]) -> Message {
    let text = |text: &str| HeaderValue::Text(text.to_owned());
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| (*name, text(value)))
        .collect();
    message.with_headers(&headers, &[])
}

fn of<'s>(spans: &'s [Span], id: &str, name: &str) -> Vec<&'s Span> {
    let is_it = |span: &&Span| span.name == name && span.attributes["messaging.message.id"] == id;
    spans.iter().filter(is_it).collect()
}

fn parse(text: &str) -> Context {
    Context::parse(text).unwrap_or_else(|| panic!("{text:?} is no context"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_jobs_spans_join_its_publishers_trace_and_its_context_is_forwarded() {
    let (api, collector) = (Api::start().await, Collector::start().await);
    api.answers(|call| match (call.job.as_str(), call.attempt) {
        ("again", 1) => Reply::status(503),
        _ => Reply::ok(),
    });
    let bed = Bed::shared();
    let limits = "max-requests: 1, window-size: 10m";
    let yaml = bed.yaml(limits, &api.url(), ", forward-headers: [traceparent]");
    let dispatch = ", results: {to: reply-to}}\nretry: {initial-interval: 100ms}\nlog: {format: json}\ndelay: {max-delay: 1s}\n";
    let yaml = yaml.replace("}}\nadmin", &format!("}}{dispatch}admin"));
    let channel = channel().await;
    let asker = format!("{}-asker", bed.name);
    queue(&channel, &asker).await;
    let mut second = with(job("acme", "second"), &[("traceparent", PARENT)]);
    second.properties = (second.properties)
        .with_reply_to(asker.as_str().into())
        .with_correlation_id("c".into());
    let other = PARENT.replace("4bf9", "beef");
    let claims = [
        ("traceparent", "00-nonsense"),
        ("x-sluicegate-trace", &other),
    ];
    // Nothing is sent before the worker ends.
    let variables = [
        ("OTEL_BSP_SCHEDULE_DELAY", "600000"),
        ("OTEL_SERVICE_NAME", "gate"),
    ];
    let (worker, _config) = start(&yaml, &collector, &variables);
    worker.logs(&["RabbitMQ: consuming"]).await;
    let endpoint = format!("\"endpoint\":\"http://{}/v1/traces\"", collector.address);
    worker.logs(&["traces are sent", &endpoint]).await;
    let limit = |tenant| {
        sluicegate(&yaml, &["tenant", "limit", tenant, "9", "--for", "1h"]).exited(0);
    };
    limit("b");
    bed.publish(&yaml, [job("acme", "first")]).await;
    until("the first call", || api.count() == 1).await;
    let all = [
        second,
        job("b", "again"),
        with(job("c", "hostile"), &claims),
    ];
    bed.publish(&yaml, all).await;
    let closed = "tenant closed: its jobs wait for a limit";
    worker.logs(&[closed, "\"tenant\":\"acme\""]).await;
    limit("acme");
    let results = results(&channel, &asker, 1).await;
    until("all calls", || api.count() == 5).await;
    worker
        .logs(&[
            "job failed: it will be retried",
            "\"trace_id\":\"",
            "\"span_id\":\"",
        ])
        .await;
    let log = worker.log();
    worker.stop();
    let spans = collector.spans();

    // The second job waited for the first one's window, until an operator raised the limit.
    let parent = parse(PARENT);
    let of_second = spans
        .iter()
        .filter(|span| span.attributes["messaging.message.id"] == "second");
    for span in of_second {
        assert_eq!(span.trace, "4bf92f3577b34da6a3ce929d0e0e4736", "{span:?}");
        assert_eq!(
            (span.parent.as_str(), span.service.as_str()),
            ("00f067aa0ba902b7", "gate")
        );
        assert!(span.start_ns <= span.end_ns && span.attributes["sluicegate.tenant"] == "acme");
    }
    let waits = of(&spans, "second", "sluicegate wait");
    let denials: Vec<_> = waits.iter().flat_map(|span| &span.events).collect();
    assert!(!denials.is_empty(), "{spans:#?}");
    for (name, says) in denials {
        assert_eq!(
            (name.as_str(), says["sluicegate.limit"].as_str()),
            ("must wait", "default")
        );
        let ttl_ms: u64 = says["sluicegate.ttl_ms"].parse().expect("a number");
        assert!((1..=700_000).contains(&ttl_ms), "{says:?}");
    }
    let calls = api.calls();
    let called = |id: &str, attempt: u32| {
        let call = calls
            .iter()
            .find(|call| call.job == id && call.attempt == attempt);
        let all = call.expect("it was called").headers.get_all("traceparent");
        let all: Vec<_> = all
            .iter()
            .map(|text| text.to_str().expect("text"))
            .collect();
        assert_eq!(all.len(), 1, "{all:?}");
        parse(all[0])
    };
    let [call] = of(&spans, "second", "sluicegate call")[..] else {
        panic!("one call: {spans:#?}");
    };
    assert_eq!(
        called("second", 1),
        parent.beside(u64::from_str_radix(&call.id, 16).expect("an id"))
    );
    let [result] = of(&spans, "second", "sluicegate result")[..] else {
        panic!("one result: {spans:#?}");
    };
    let context = parse(&results["c"].1["traceparent"]);
    assert_eq!(
        context.to_string(),
        format!("00-{}-{}-01", result.trace, result.id)
    );

    // A retry.
    let [one, two] = of(&spans, "again", "sluicegate call")[..] else {
        panic!("two calls: {spans:#?}");
    };
    assert!(one.has_failed && one.links.is_empty() && !two.has_failed);
    assert_eq!(
        (&two.links, &two.trace),
        (&vec![one.id.clone()], &one.trace)
    );
    let root = of(&spans, "again", "sluicegate wait")[0];
    assert_eq!(
        (root.parent.as_str(), &one.parent, &two.parent),
        ("", &root.id, &root.id)
    );

    // Invalid trace contexts, and headers that only a worker may set.
    let hostile = called("hostile", 1);
    assert!(![parent.trace, parse(&other).trace].contains(&hostile.trace));

    let requests = collector.requests();
    assert!(requests.iter().all(|(path, headers)| {
        path == "/v1/traces" && headers["authorization"] == format!("Bearer {SECRET}")
    }));
    assert!(!log.join("\n").contains(SECRET));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_hangs_or_refuses_costs_spans_and_no_job() {
    let (api, collector) = (Api::start().await, Collector::start().await);
    let bed = Bed::shared();
    let yaml = bed.yaml("max-requests: 10000, window-size: 1s", &api.url(), "");
    collector.answers(0);
    let variables = [
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "8"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "500"),
    ];
    let (worker, _config) = start(&yaml, &collector, &variables);
    worker.logs(&["RabbitMQ: consuming"]).await;
    bed.publish(&yaml, jobs("acme", 100)).await;
    until("all calls", || worker.metric(DONE) == Some(100.0)).await;
    let lost = "sluicegate_spans_lost_total";
    // Two spans per job, and room for 8.
    until("spans are lost", || worker.metric(lost) >= Some(100.0)).await;
    let reason = "reason=\"no answer within 500ms\"";
    worker.logs(&["WARN", "traces can't be sent", reason]).await;
    collector.answers(503);
    bed.publish(&yaml, jobs("other", 10)).await;
    until("all calls", || worker.metric(DONE) == Some(110.0)).await;
    collector.answers(200);
    bed.publish(&yaml, jobs("third", 1)).await;
    worker.logs(&["traces are sent again"]).await;
    let log = worker.log().join("\n");
    collector.answers(0);
    bed.publish(&yaml, jobs("last", 1)).await;
    until("the last call", || worker.metric(DONE) == Some(112.0)).await;
    // The worker ends although the remaining spans are not accepted.
    worker.stop();
    assert!(!log.contains(SECRET), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forwarded_job_has_the_context_and_a_collector_may_require_tls() {
    let papers = TestCertificates::new();
    let collector = Collector::over_tls(&papers).await;
    let bed = Bed::shared();
    let work = format!("{}-work", bed.name);
    let limits = "max-requests: 100, window-size: 1s";
    let yaml = forward::yaml(&bed, limits, &format!("routing-key: {work}"));
    let channel = channel().await;
    forward::queue(&channel, &work).await;
    let (endpoint, ca) = (
        format!("https://{}", collector.address),
        papers.path("ca.pem"),
    );
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        (
            "OTEL_EXPORTER_OTLP_CERTIFICATE",
            ca.to_str().expect("a path"),
        ),
        ("OTEL_TRACES_SAMPLER", "parentbased_always_off"),
    ];
    let (worker, _config) = start(&yaml, &collector, &variables);
    worker.logs(&["RabbitMQ: consuming"]).await;
    for (id, headers) in [("kept", &[("traceparent", PARENT)][..]), ("dropped", &[])] {
        bed.publish(&yaml, [with(job("acme", id), headers)]).await;
        let got = forward::next(&channel, &work).await;
        let context = forward::header(&got, "traceparent").expect("a context");
        let is_kept = id == "kept";
        assert_eq!(parse(&context).sampled, is_kept, "{context}");
        assert_eq!(parse(&context).trace == parse(PARENT).trace, is_kept);
    }
    worker.stop();
    let spans = collector.spans();
    assert!(!spans.is_empty(), "what waits is sent at the end");
    for span in spans {
        assert_eq!(span.attributes["messaging.message.id"], "kept", "{span:?}");
        assert_eq!(span.service, "sluicegate");
    }
}
