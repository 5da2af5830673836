//! Traces: the spans of jobs, sent to a collector by OTLP where the variables of OpenTelemetry (`OTEL_*`) say so. They belong to the process,
//! as its log does, whatever it runs.

#[cfg(feature = "otlp")]
mod client;
#[cfg(feature = "otlp")]
mod data;
#[cfg(not(feature = "otlp"))]
mod none;
#[cfg(feature = "otlp")]
mod otlp;
#[cfg(feature = "otlp")]
mod variables;

#[cfg(not(feature = "otlp"))]
pub(crate) use self::none::{begin, record, sampler};
#[cfg(feature = "otlp")]
pub(crate) use self::otlp::{begin, record, sampler};
