//! Converts a span to OpenTelemetry's data type.

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    Event, Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use rules::trace::{Context, Span, SpanSubject, TracedDenial};

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

/// Converts `span`. `now` and `wall` are the current time by the scheduler's clock and by the
/// machine's clock; they map the span's times to wall-clock times.
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
        SpanSubject::Wait { denials, more } => {
            events.dropped_count = more;
            events.events = denials
                .into_iter()
                .map(
                    |TracedDenial {
                         at: denied_at,
                         limits,
                         limit,
                         ttl_ms,
                     }| {
                        let limit = limits[limit].name().to_owned();
                        let attributes = vec![
                            KeyValue::new("sluicegate.limit", limit),
                            KeyValue::new("sluicegate.ttl_ms", number(ttl_ms)),
                        ];
                        Event::new("must wait", at(denied_at), attributes, 0)
                    },
                )
                .collect();
            ("sluicegate wait", SpanKind::Consumer, Status::Unset)
        }
        SpanSubject::Call { outcome, reason } => {
            attributes.push(KeyValue::new("sluicegate.outcome", outcome));
            let status = match outcome {
                "done" => Status::Ok,
                _ => Status::error(reason.unwrap_or_else(|| outcome.to_owned())),
            };
            ("sluicegate call", SpanKind::Client, status)
        }
        SpanSubject::Result => ("sluicegate result", SpanKind::Producer, Status::Unset),
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use kit::SECOND;
    use rules::limit::{Algorithm, Limit, Limits};
    use rules::tenant::Tenant;

    fn span(about: SpanSubject) -> Span {
        let context = Context {
            trace: 0xa,
            span: 0xb,
            sampled: true,
        };
        Span {
            about,
            context,
            parent: Some(context.beside(0xc)),
            first_call: Some(0xd),
            began: 7 * SECOND,
            before: 100 * SECOND,
            ended: 9 * SECOND,
            id: "7".to_owned(),
            tenant: Tenant::parse("a").expect("a tenant"),
            queue: Arc::from("jobs"),
            attempt: 2,
        }
    }

    fn of(about: SpanSubject) -> SpanData {
        let wall = SystemTime::UNIX_EPOCH + 1_000 * SECOND;
        let scope = InstrumentationScope::builder("test").build();
        data(span(about), (10 * SECOND, wall), scope)
    }

    #[test]
    fn times_are_this_machines_and_a_wait_begins_in_its_delay_queue() {
        let limit = Limit::new("hourly", Algorithm::SlidingWindow, 5, SECOND, SECOND / 20);
        let denial = TracedDenial {
            at: 8 * SECOND,
            limits: Limits::from(limit.expect("a limit")),
            limit: 0,
            ttl_ms: 1_500,
        };
        let data = of(SpanSubject::Wait {
            denials: vec![denial],
            more: 3,
        });
        let at = |seconds: u32| SystemTime::UNIX_EPOCH + seconds * SECOND;
        assert_eq!((data.start_time, data.end_time), (at(897), at(999)));
        assert_eq!((data.events.len(), data.events.dropped_count), (1, 3));
        let event = &data.events[0];
        let says = |key: &str| {
            event
                .attributes
                .iter()
                .find(|pair| pair.key.as_str() == key)
        };
        assert_eq!(event.timestamp, at(998));
        assert_eq!(
            says("sluicegate.limit").expect("it").value.as_str(),
            "hourly"
        );
        assert_eq!(
            says("sluicegate.ttl_ms").expect("it").value.as_str(),
            "1500"
        );
        let of = &data.span_context;
        assert_eq!(
            format!("{}{}", of.trace_id(), of.span_id()),
            format!("{:032x}{:016x}", 0xa, 0xb)
        );
        assert_eq!(format!("{}", data.parent_span_id), format!("{:016x}", 0xc));
        assert!(data.parent_span_is_remote && !of.is_remote());
    }

    #[test]
    fn a_failed_call_has_a_reason_and_links_to_the_first() {
        let call = |outcome, reason: Option<&str>| {
            of(SpanSubject::Call {
                outcome,
                reason: reason.map(str::to_owned),
            })
        };
        let data = call("retry", Some("503"));
        assert_eq!(data.status, Status::error("503"));
        assert_eq!(call("snooze", None).status, Status::error("snooze"));
        assert_eq!(call("done", None).status, Status::Ok);
        assert_eq!(data.links.len(), 1);
        let first = data.links[0].span_context.span_id();
        assert_eq!(format!("{first}"), format!("{:016x}", 0xd));
    }
}
