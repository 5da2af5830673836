//! A collector of traces: receives spans by OTLP (protobuf over HTTP) and keeps them for a test.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use prost::Message;
use trial::api::ApiServer;
use trial::door::ANY_PORT;

use crate::api::{ApiBehavior, Reply, serve};
use crate::certificates::TestCertificates;

/// A span as text.
#[derive(Debug, Clone)]
pub struct Span {
    pub name: String,
    /// In hexadecimal digits, as in `traceparent`.
    pub trace: String,
    pub id: String,
    /// Empty if it has no parent.
    pub parent: String,
    pub attributes: BTreeMap<String, String>,
    /// The names of its events, and their attributes.
    pub events: Vec<(String, BTreeMap<String, String>)>,
    /// The spans that it links to.
    pub links: Vec<String>,
    pub has_failed: bool,
    pub start_ns: u64,
    pub end_ns: u64,
    /// `service.name`.
    pub service: String,
}

struct CollectorState {
    /// The status of its answers, or 0 for none.
    status: AtomicU16,
    received: Mutex<Received>,
}

#[derive(Default)]
struct Received {
    spans: Vec<Span>,
    /// The path and headers of each request.
    requests: Vec<(String, hyper::HeaderMap)>,
}

/// A running collector. Dropping it ends it.
pub struct Collector {
    pub address: SocketAddr,
    _server: ApiServer,
    state: Arc<CollectorState>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn word(value: Option<AnyValue>) -> String {
    match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

fn words(pairs: Vec<KeyValue>) -> BTreeMap<String, String> {
    let pairs = pairs.into_iter();
    pairs.map(|pair| (pair.key, word(pair.value))).collect()
}

fn spans(body: Bytes) -> Vec<Span> {
    let request = ExportTraceServiceRequest::decode(body).expect("protobuf");
    let mut all = Vec::new();
    for of_resource in request.resource_spans {
        let resource = words(of_resource.resource.expect("a resource").attributes);
        let spans = of_resource
            .scope_spans
            .into_iter()
            .flat_map(|scope| scope.spans);
        all.extend(spans.map(|span| {
            Span {
                name: span.name,
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                attributes: words(span.attributes),
                events: (span.events.into_iter())
                    .map(|event| (event.name, words(event.attributes)))
                    .collect(),
                links: span.links.iter().map(|link| hex(&link.span_id)).collect(),
                has_failed: span.status.is_some_and(|status| status.code == 2),
                start_ns: span.start_time_unix_nano,
                end_ns: span.end_time_unix_nano,
                service: resource.get("service.name").cloned().unwrap_or_default(),
            }
        }));
    }
    all
}

impl Collector {
    pub async fn start() -> Self {
        Self::with(ApiBehavior::default())
    }

    /// Starts it over TLS, with a certificate of `papers`.
    pub async fn over_tls(papers: &TestCertificates) -> Self {
        papers.issue("collector", &["127.0.0.1"]);
        Self::with(ApiBehavior {
            tls: Some(papers.acceptor("collector", None)),
            idle: None,
        })
    }

    fn with(manner: ApiBehavior) -> Self {
        let state = Arc::new(CollectorState {
            status: AtomicU16::new(200),
            received: Mutex::default(),
        });
        let shared = Arc::new((manner, Arc::clone(&state)));
        let server = ApiServer::serving(ANY_PORT, move |stream, _| {
            let shared = Arc::clone(&shared);
            async move {
                let (manner, state) = &*shared;
                let resets = Arc::clone(&stream.resets);
                let answer = |request| receive(Arc::clone(state), request);
                serve((stream, resets), manner, answer).await;
            }
        });
        let server = server.expect("a free port");
        Self {
            address: server.door.address,
            _server: server,
            state,
        }
    }

    /// Makes it answer with `status` from now on, or not at all if 0.
    pub fn answers(&self, status: u16) {
        self.state.status.store(status, Ordering::Relaxed);
    }

    /// Returns the received spans.
    pub fn spans(&self) -> Vec<Span> {
        self.state.received.lock().expect("no panic").spans.clone()
    }

    /// Returns the paths and headers of all requests.
    pub fn requests(&self) -> Vec<(String, hyper::HeaderMap)> {
        self.state
            .received
            .lock()
            .expect("no panic")
            .requests
            .clone()
    }
}

async fn receive(state: Arc<CollectorState>, request: Request<Incoming>) -> Reply {
    let (head, body) = request.into_parts();
    let body = body.collect().await.expect("a whole request").to_bytes();
    let status = state.status.load(Ordering::Relaxed);
    if status == 0 {
        std::future::pending::<()>().await;
    }
    let mut received = state.received.lock().expect("no panic");
    let path = head.uri.path().to_owned();
    received.requests.push((path, head.headers));
    if status == 200 {
        received.spans.extend(spans(body));
    }
    Reply::status(status)
}
