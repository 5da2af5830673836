//! A collector of traces: receives spans by OTLP (protobuf over HTTP) and keeps them for a test.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use prost::Message;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

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

#[derive(Default)]
struct CollectorState {
    spans: Vec<Span>,
    /// The path and headers of each request.
    requests: Vec<(String, hyper::HeaderMap)>,
}

/// A collector. It lives as long as the test's runtime.
pub struct Collector {
    pub address: SocketAddr,
    state: Arc<Mutex<CollectorState>>,
    /// The status of its answers, or 0 for none.
    status: Arc<AtomicU16>,
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
        Self::with(None).await
    }

    /// Starts it over TLS, with a certificate of `papers`.
    pub async fn over_tls(papers: &TestCertificates) -> Self {
        papers.issue("collector", &["127.0.0.1"]);
        Self::with(Some(papers.acceptor("collector", None))).await
    }

    async fn with(tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (state, status) = (
            Arc::<Mutex<CollectorState>>::default(),
            Arc::new(AtomicU16::new(200)),
        );
        let shared = (Arc::clone(&state), Arc::clone(&status));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (state, status) = shared.clone();
                let serve = service_fn(move |request: Request<Incoming>| {
                    let (state, status) = (Arc::clone(&state), Arc::clone(&status));
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await.expect("a whole request").to_bytes();
                        let code = status.load(Ordering::Relaxed);
                        if code == 0 {
                            std::future::pending::<()>().await;
                        }
                        {
                            let mut state = state.lock().expect("no panic");
                            state
                                .requests
                                .push((head.uri.path().to_owned(), head.headers));
                            if code == 200 {
                                state.spans.extend(spans(body));
                            }
                        }
                        let mut response = Response::new(Full::new(Bytes::new()));
                        *response.status_mut() = code.try_into().expect("a status");
                        Ok::<_, Infallible>(response)
                    }
                });
                let http = hyper::server::conn::http1::Builder::new();
                let tls = tls.clone();
                tokio::spawn(async move {
                    match tls {
                        None => _ = http.serve_connection(TokioIo::new(stream), serve).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                _ = http.serve_connection(TokioIo::new(stream), serve).await;
                            }
                        }
                    }
                });
            }
        });
        Self {
            address,
            state,
            status,
        }
    }

    /// Makes it answer with `status` from now on, or not at all if 0.
    pub fn answers(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    /// Returns the received spans.
    pub fn spans(&self) -> Vec<Span> {
        self.state.lock().expect("no panic").spans.clone()
    }

    /// Returns the paths and headers of all requests.
    pub fn requests(&self) -> Vec<(String, hyper::HeaderMap)> {
        self.state.lock().expect("no panic").requests.clone()
    }
}
