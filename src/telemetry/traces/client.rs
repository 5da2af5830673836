//! The exporter's HTTP client. It runs on the worker's runtime. Only the exporter's own thread
//! waits for it; no job does.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::variables::OtelVariables;
use config::Tls;
use runtime::tls;

/// Maximum number of bytes read from an answer.
const MAX_BODY: usize = 64 * 1024;

/// The reason why the last request failed, for the log.
pub(super) type LastError = Arc<Mutex<String>>;

/// Sends requests to a collector.
pub(super) struct CollectorClient {
    runtime: Handle,
    client: legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    timeout: Duration,
    last: LastError,
}

impl fmt::Debug for CollectorClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

impl CollectorClient {
    /// Creates a client for the endpoint in `variables`, on the current runtime.
    ///
    /// # Errors
    /// A message for the operator: the trusted authorities can't be read.
    pub(super) fn new(variables: &OtelVariables, last: LastError) -> Result<Self, String> {
        let config = match variables.endpoint.scheme() {
            "https" => tls::client(&Tls {
                ca_file: variables.ca_file.as_ref().map(PathBuf::from),
                ..Tls::default()
            }),
            _ => tls::untrusting(),
        };
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config?)
            .https_or_http()
            .enable_http1()
            .build();
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        builder.pool_max_idle_per_host(1);
        Ok(Self {
            runtime: Handle::current(),
            client: builder.build(connector),
            timeout: variables.timeout,
            last,
        })
    }
}

/// Returns the message of `why` with all its causes.
fn words(why: &dyn std::error::Error) -> String {
    let mut words = why.to_string();
    let mut cause = why.source();
    while let Some(why) = cause {
        words = format!("{words}: {why}");
        cause = why.source();
    }
    words
}

type Sending<'f> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'f>>;

impl HttpClient for CollectorClient {
    fn send_bytes<'c, 'f>(&'c self, request: Request<Bytes>) -> Sending<'f>
    where
        'c: 'f,
        Self: 'f,
    {
        let sent = self.client.request(request.map(Full::new));
        let exchange = async move {
            let (head, body) = sent.await.map_err(|why| words(&why))?.into_parts();
            let body = Limited::new(body, MAX_BODY).collect().await;
            let body = body.map_err(|why| words(&*why))?.to_bytes();
            Ok::<_, String>(Response::from_parts(head, body))
        };
        let limit = self.timeout;
        // Spawned on the runtime, since the exporter's thread has none.
        let task = self.runtime.spawn(async move {
            let ended = timeout(limit, exchange).await;
            ended.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
        });
        Box::pin(async move {
            let answer = task.await.unwrap_or_else(|why| Err(why.to_string()));
            let failed = match &answer {
                Ok(response) if response.status().is_success() => None,
                Ok(response) => Some(format!("the collector answered {}", response.status())),
                Err(why) => Some(why.clone()),
            };
            if let Some(failed) = failed {
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = failed;
            }
            answer.map_err(HttpError::from)
        })
    }
}
