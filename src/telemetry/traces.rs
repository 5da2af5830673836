//! Traces: sends the spans of jobs to a collector by OTLP if the OpenTelemetry variables (`OTEL_*`)
//! ask for it. Traces belong to the process, like its log, and not to a single worker or pipeline.

#[cfg(feature = "otlp")]
mod client;
#[cfg(feature = "otlp")]
mod data;
#[cfg(not(feature = "otlp"))]
mod disabled;
#[cfg(feature = "otlp")]
mod otlp;
#[cfg(feature = "otlp")]
mod variables;

#[cfg(not(feature = "otlp"))]
pub use self::disabled::{begin, flush, record, sampler};
#[cfg(feature = "otlp")]
pub use self::otlp::{begin, flush, record, sampler};
