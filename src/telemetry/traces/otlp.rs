//! Sends spans to a collector in batches, by protobuf over HTTP. The queue of unsent spans is
//! bounded, and no job ever waits for the collector.

use std::env;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use opentelemetry::InstrumentationScope;
use opentelemetry_otlp::{Protocol, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanExporter, SpanProcessor as _,
};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::{info, warn};

use super::client::{CollectorClient, LastError};
use super::data::data;
use super::variables::OtelVariables;
use rules::trace::{Sampler, Span};

/// Time limit for sending the remaining spans when the worker ends. The SDK gives up after 5 s; this
/// one keeps a busy runtime from waiting longer.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum interval between log lines that report lost spans.
const LOST_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The exporter of this process.
static EXPORTER: OnceLock<Exporter> = OnceLock::new();

/// Number of spans that wait to be sent, and number of spans lost since the last query.
#[derive(Debug, Default)]
struct SpanCounts {
    waiting: AtomicUsize,
    lost: AtomicU64,
}

struct Exporter {
    processor: BatchSpanProcessor,
    sampler: Sampler,
    scope: InstrumentationScope,
    counts: Arc<SpanCounts>,
    max: usize,
}

/// Wraps the OTLP exporter: counts spans and logs failures.
#[derive(Debug)]
struct CountingExporter {
    exporter: opentelemetry_otlp::SpanExporter,
    counts: Arc<SpanCounts>,
    last: LastError,
    /// Time of the last log line about lost spans, and the number of spans lost since then.
    last_log: Mutex<Option<(Instant, usize)>>,
}

impl CountingExporter {
    fn failed(&self, spans: usize) {
        let mut last_log = self.last_log.lock().unwrap_or_else(PoisonError::into_inner);
        let more = last_log.map_or(0, |(_, more)| more) + spans;
        if let Some((at, _)) = *last_log
            && at.elapsed() < LOST_LOG_INTERVAL
        {
            *last_log = Some((at, more));
            return;
        }
        *last_log = Some((Instant::now(), 0));
        let reason = self
            .last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        warn!(
            spans = more,
            reason, "traces can't be sent: these spans are lost"
        );
    }

    fn sent(&self) {
        let mut last_log = self.last_log.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, more)) = last_log.take() {
            info!(lost = more, "traces are sent again");
        }
    }
}

impl SpanExporter for CountingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let sent = self.exporter.export(batch).await;
        self.counts.waiting.fetch_sub(spans, Ordering::Relaxed);
        match &sent {
            Ok(()) => self.sent(),
            Err(_) => {
                self.counts.lost.fetch_add(spans as u64, Ordering::Relaxed);
                self.failed(spans);
            }
        }
        sent
    }

    fn shutdown_with_timeout(&self, within: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(within)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl Exporter {
    fn new(variables: &OtelVariables) -> Result<Self, String> {
        let (last, counts) = (LastError::default(), Arc::<SpanCounts>::default());
        let client = CollectorClient::new(variables, Arc::clone(&last))?;
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(variables.endpoint.as_str())
            .with_timeout(variables.timeout)
            .with_http_client(client)
            .build();
        // The error's text may contain the endpoint with a password.
        let exporter =
            exporter.map_err(|_| "a variable OTEL_EXPORTER_OTLP_… is invalid".to_owned())?;
        let exporter = CountingExporter {
            exporter,
            counts: Arc::clone(&counts),
            last,
            last_log: Mutex::default(),
        };
        let config = BatchConfigBuilder::default().with_max_queue_size(variables.queue);
        let mut processor = BatchSpanProcessor::new(exporter, config.build());
        let mut resource = Resource::builder();
        if variables.has_no_name {
            resource = resource.with_service_name("sluicegate");
        }
        processor.set_resource(&resource.build());
        let scope = InstrumentationScope::builder("sluicegate");
        Ok(Self {
            processor,
            sampler: variables.sampler,
            scope: scope.with_version(env!("CARGO_PKG_VERSION")).build(),
            counts,
            max: variables.queue,
        })
    }
}

/// Starts to send spans if the variables ask for it, unless this process does so already. They are
/// sent on the current runtime, which must outlive all workers of the process that send traces.
pub fn begin() {
    match OtelVariables::read(|name| env::var(name).ok()) {
        Ok(None) => {}
        Ok(Some(_)) if EXPORTER.get().is_some() => {}
        Ok(Some(variables)) => match Exporter::new(&variables) {
            Ok(exporter) => {
                if EXPORTER.set(exporter).is_ok() {
                    info!(endpoint = variables.shown(), "traces are sent");
                }
            }
            Err(why) => warn!(reason = why, "no traces are sent"),
        },
        Err(why) => warn!(reason = why, "no traces are sent"),
    }
}

/// Sends the remaining spans, for a bounded time. Another worker of this process may send more.
pub async fn flush() {
    if let Some(exporter) = EXPORTER.get() {
        let sent = spawn_blocking(|| exporter.processor.force_flush());
        let _ = timeout(FLUSH_TIMEOUT, sent).await;
    }
}

/// Returns the sampler that decides which traces are recorded, or `None` if no spans are made.
pub fn sampler() -> Option<Sampler> {
    EXPORTER.get().map(|exporter| exporter.sampler)
}

/// Queues `span` for sending; `now` is the current time by the scheduler's clock. Never waits: if
/// the queue is full, the span is lost. Returns the number of spans lost since the last call.
pub fn record(now: Duration, span: Span) -> u64 {
    let Some(exporter) = EXPORTER.get() else {
        return 0;
    };
    let SpanCounts { waiting, lost } = &*exporter.counts;
    let place = |many: usize| (many < exporter.max).then_some(many + 1);
    match waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, place) {
        Ok(_) => {
            let times = (now, SystemTime::now());
            let data = data(span, times, exporter.scope.clone());
            exporter.processor.on_end(data);
        }
        Err(_) => _ = lost.fetch_add(1, Ordering::Relaxed),
    }
    lost.swap(0, Ordering::Relaxed)
}
