//! A span as OpenTelemetry has it.

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    Event, Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use crate::rules::trace::{About, Context, Span, Told};

fn named(context: Context, is_remote: bool) -> SpanContext {
    SpanContext::new(
        TraceId::from_bytes(context.trace.to_be_bytes()),
        SpanId::from_bytes(context.span.to_be_bytes()),
        TraceFlags::new(u8::from(context.sampled)),
        is_remote,
        TraceState::NONE,
    )
}

fn number(of: u64) -> i64 {
    i64::try_from(of).unwrap_or(i64::MAX)
}

/// What `span` is at `now`, by the scheduler's clock and this machine's.
pub(super) fn data(
    span: Span,
    (now, wall): (Duration, SystemTime),
    scope: InstrumentationScope,
) -> SpanData {
    let at = |time: Duration| wall.checked_sub(now.saturating_sub(time)).unwrap_or(wall);
    let mut attributes = vec![
        KeyValue::new("messaging.system", "rabbitmq"),
        KeyValue::new("messaging.destination.name", span.queue),
        KeyValue::new("messaging.message.id", span.id),
        KeyValue::new("sluicegate.tenant", span.tenant.as_str().to_owned()),
        KeyValue::new("sluicegate.attempt", i64::from(span.attempt)),
    ];
    let (mut events, mut links) = (SpanEvents::default(), SpanLinks::default());
    let (name, span_kind, status) = match span.about {
        About::Wait { told, more } => {
            events.dropped_count = more;
            events.events = told
                .into_iter()
                .map(
                    |Told {
                         at: told,
                         limits,
                         limit,
                         ttl_ms,
                     }| {
                        let limit = limits[limit].name().to_owned();
                        let attributes = vec![
                            KeyValue::new("sluicegate.limit", limit),
                            KeyValue::new("sluicegate.ttl_ms", number(ttl_ms)),
                        ];
                        Event::new("must wait", at(told), attributes, 0)
                    },
                )
                .collect();
            ("sluicegate wait", SpanKind::Consumer, Status::Unset)
        }
        About::Call { outcome, reason } => {
            attributes.push(KeyValue::new("sluicegate.outcome", outcome));
            let status = match outcome {
                "done" => Status::Ok,
                _ => Status::error(reason.unwrap_or_else(|| outcome.to_owned())),
            };
            ("sluicegate call", SpanKind::Client, status)
        }
        About::Result => ("sluicegate result", SpanKind::Producer, Status::Unset),
    };
    if let Some(first) = span.first_call {
        let first = named(span.context.beside(first), true);
        links.links.push(Link::with_context(first));
    }
    SpanData {
        span_context: named(span.context, false),
        parent_span_id: span.parent.map_or(SpanId::INVALID, |parent| {
            SpanId::from_bytes(parent.span.to_be_bytes())
        }),
        parent_span_is_remote: span.parent.is_some(),
        span_kind,
        name: name.into(),
        start_time: at(span.began).checked_sub(span.before).unwrap_or(wall),
        end_time: at(span.ended),
        attributes,
        dropped_attributes_count: 0,
        events,
        links,
        status,
        instrumentation_scope: scope,
    }
}
