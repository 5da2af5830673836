//! A message: from the bytes of its properties to the job's fields, and through a delay queue and
//! back.

use std::sync::Arc;
use std::time::Duration;

use broker::Message;
use broker::amqp::content::{unreadable, wrapped};
use bytes::Bytes;
use http::Uri;
use lapin::BasicProperties;
use lapin::protocol::basic::{gen_properties, parse_properties};
use rules::delays::Trip;
use rules::headers::{self, HeaderValue};
use rules::job::call::{CarriedFields, PlaceholderSource, Template, TemplatePart, ValuePlace};
use rules::job::dedupe::Dedupe;
use rules::job::priority::Priorities;
use rules::job::{self, Claims, Field, Fields, Job, JobMessage, TenantField, ValueField};
use rules::limit::{Algorithm, Limit, Limits, Unit};
use rules::policy::{EntryLimits, Pattern, Policy};
use rules::scope::{MAX_VALUE_BYTES, Scope};
use rules::tenant::Tenant;
use rules::trace::Context;
use url::Url;

/// Class, weight and body size, before the properties.
const PREFIX: [u8; 12] = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// Maximum size of a job's headers, in bytes.
const MAX_HEADERS: usize = 116 << 10;
/// Any time of the store's clock.
const NOW_MS: u64 = 1_700_000_000_000;

/// Checks a message. The first byte of `data` selects the worker's configuration, the next one is
/// the length of the routing key, and two bytes are the length of the properties. The key, the
/// properties and the body follow.
///
/// All fields must be within their bounds. A job that moves through a delay queue must stay the
/// same, and its message must be valid for RabbitMQ. The error of an invalid message must be a
/// single line of bounded length.
pub fn check(data: &[u8]) {
    let Some((&[how, key, size, more], rest)) = data.split_first_chunk() else {
        return;
    };
    let cut = |bytes: &'_ [u8], at: usize| bytes.len().min(at);
    let (key, rest) = rest.split_at(cut(rest, key.into()));
    let (properties, body) = rest.split_at(cut(rest, u16::from_be_bytes([size, more]).into()));
    let Some(properties) = readable(properties) else {
        return;
    };
    let message = Message {
        routing_key: String::from_utf8_lossy(key).into_owned(),
        properties,
        body: Bytes::copy_from_slice(body),
    };
    let (fields, policy) = (fields(how), policy(how));
    for returned in [false, true] {
        match job::read(&message, returned, &fields, &policy) {
            Ok(claims) => {
                bounded(&message, &claims, returned, &policy);
                starts(&claims, fields.max_delayed_start_ms);
                given(&message, &claims);
                moved(&message, &claims, &fields, &policy);
            }
            Err(why) => one_line(&why.to_string()),
        }
    }
    called(&message, &fields, &policy);
    let back = message.header(headers::ROUTING_KEY);
    assert!(job::first_routing_key(&message, "jobs") == "jobs" || matches!(back, Field::Text(_)));
    forwarded(&message);
    levels(&message, &fields.priorities);
    traced(&message);
    sent(&message.for_republish());
}

/// Asserts that a message for other workers has only the reserved headers that this worker sets,
/// whatever its publisher set.
fn forwarded(message: &Message) {
    let done = [headers::DONE, headers::DONE_TOKEN];
    let set = done.map(|name| (name, HeaderValue::Text("ours".to_owned())));
    let [plain, with_done] = [&[][..], &set].map(|set| message.for_workers(set));
    for (out, ours) in [(&plain, 0), (&with_done, done.len())] {
        sent(out);
        let headers = out.properties.headers().iter();
        let names = headers.flat_map(|all| all.inner().keys());
        let reserved = names.filter(|name| headers::is_reserved(name.as_str()));
        assert_eq!(reserved.count(), ours);
    }
    for name in done {
        assert_eq!(
            with_done.header(name),
            Field::Text("ours"),
            "a publisher's word counts"
        );
    }
}

/// Asserts that a trace context is written as it was read. Our own header must count only in our
/// own queues.
fn traced(message: &Message) {
    let [claim, returned] = [false, true].map(|returned| job::traced(message, returned));
    for claim in [claim, returned].into_iter().flatten() {
        assert!(claim.parent.trace != 0 && claim.parent.span != 0 && claim.first_call != Some(0));
        let again = Context::parse(&claim.parent.to_string());
        assert_eq!(again, Some(claim.parent));
    }
    assert!(claim.is_none_or(|claim| claim.first_call.is_none()));
    let publishers = match message.header(headers::TRACEPARENT) {
        Field::Text(text) => Context::parse(text),
        _ => None,
    };
    assert_eq!(claim.map(|claim| claim.parent), publishers);
}

/// Asserts that a job without a valid level gets an error of one line, and every other job one of
/// few waitlists.
fn levels(message: &Message, priorities: &Priorities) {
    match priorities.label(message) {
        Ok(None) => assert!(priorities.levels().is_empty()),
        Ok(Some(label)) => {
            let (name, place) = label.rsplit_once('/').expect("a level and a place");
            let mut levels = priorities.levels().iter();
            let level = levels.find(|(level, _)| level == name).expect("a level");
            assert!(place.parse::<u32>().expect("a number") < level.1);
        }
        Err(why) => one_line(&why),
    }
}

/// Asserts that a program gets the job as one line of JSON, without our headers.
fn given(message: &Message, claims: &Claims) {
    let mut job = Job::new(message.id().unwrap_or_default(), claims.tenant.clone(), "");
    job.body = message.body.clone();
    job.published = JobMessage::new(Arc::new(message.clone()));
    let line = job.line(1);
    let (end, text) = line.split_last().expect("a newline");
    assert!(*end == b'\n' && !text.contains(&b'\n'));
    let read: serde_json::Value = serde_json::from_slice(text).expect("it is JSON");
    assert_eq!(read["id"].as_str(), Some(&*job.id));
    assert_eq!(read["tenant"].as_str(), Some(claims.tenant.as_str()));
    let names = read["headers"].as_object().expect("headers").keys();
    assert_eq!(names.filter(|name| headers::is_reserved(name)).count(), 0);
}

/// Returns the properties as the worker sees them; `None` for properties that can't come from
/// RabbitMQ, since lapin's limits are RabbitMQ's.
fn readable(properties: &[u8]) -> Option<BasicProperties> {
    let payload = [&PREFIX, properties].concat();
    let payload = match unreadable(&payload, MAX_HEADERS) {
        Some(why) => wrapped(&payload, &why, MAX_HEADERS),
        None => payload,
    };
    let (rest, properties) = parse_properties(&payload[PREFIX.len()..]).expect("lapin reads it");
    rest.is_empty().then_some(properties)
}

fn fields(how: u8) -> Fields {
    Fields {
        tenant: match how % 3 {
            0 => TenantField::Header("x-tenant".to_owned()),
            1 => TenantField::RoutingKey,
            _ => TenantField::Json("/t".to_owned()),
        },
        cost: match how & 4 {
            0 => ValueField::Header("x-cost".to_owned()),
            _ => ValueField::Json("/c".to_owned()),
        },
        deadline: match how & 0xc0 {
            0x40 => Some(ValueField::Header("x-deadline".to_owned())),
            0x80 => Some(ValueField::Json("/d".to_owned())),
            _ => None,
        },
        priorities: match how & 0x20 {
            0 => Priorities::default(),
            _ => Priorities::new(vec![("high".to_owned(), 4), ("7".to_owned(), 1)]),
        },
        dedupe_for_ms: [0, 600_000][usize::from(how >> 5 & 1)],
        max_delayed_start_ms: [0, 1, 30 * 86_400_000, u64::MAX][usize::from(how >> 2 & 3)],
        call: CarriedFields::default(),
    }
}

/// Returns templates for each place that contain a value of each kind, and the fields that they
/// carry.
fn carried() -> (CarriedFields, [(ValuePlace, Template); 3]) {
    let mut carried = CarriedFields::default();
    let values = [
        PlaceholderSource::Tenant,
        PlaceholderSource::Id,
        carried.field(ValueField::Header("x-path".to_owned())),
        carried.field(ValueField::Json("/d".to_owned())),
    ];
    let templates = [ValuePlace::Path, ValuePlace::Query, ValuePlace::Header].map(|place| {
        let begin = TemplatePart::Literal(
            if place == ValuePlace::Query {
                "/?q="
            } else {
                "/v1/"
            }
            .to_owned(),
        );
        let parts = values.map(|source| {
            carried.used(source, place, "dispatch.http.url");
            [
                TemplatePart::Value(source, place),
                TemplatePart::Literal("/".to_owned()),
            ]
        });
        let parts = std::iter::once(begin).chain(parts.into_iter().flatten());
        (place, Template(parts.collect()))
    });
    carried.forward = vec!["x-deadline".to_owned()];
    (carried, templates)
}

/// Asserts that the job's values are valid in a call and can't change where it goes.
fn called(message: &Message, fields: &Fields, policy: &Policy) {
    let (call, templates) = carried();
    let fields = Fields {
        call,
        ..fields.clone()
    };
    let claims = match job::read(message, true, &fields, policy) {
        Ok(claims) => claims,
        Err(why) => return one_line(&why.to_string()),
    };
    let mut job = Job::new(message.id().unwrap_or_default(), claims.tenant, "");
    job.values = claims.values;
    for (place, template) in templates {
        let text = template.render(&job, "");
        if place == ValuePlace::Header {
            http::HeaderValue::from_bytes(text.as_bytes()).expect("a header's value");
            continue;
        }
        let uri: Uri = text.parse().expect("a path and a query");
        assert_eq!(uri.to_string(), text);
        let url = Url::parse("http://api/").expect("a url");
        let joined = url.join(&text).expect("on it");
        assert_eq!(
            joined.as_str(),
            format!("http://api{text}"),
            "it leads where it should"
        );
        let parts = text.split('/').count();
        assert_eq!(parts, 7 - usize::from(place == ValuePlace::Query), "{text}");
    }
    if let Some(text) = job.values.forwarded(0) {
        http::HeaderValue::from_bytes(text.as_bytes()).expect("a header's value");
    }
}

fn policy(how: u8) -> Policy {
    let limit = |name: &str, scope: Scope| {
        let (window, guard) = (Duration::from_secs(60), Duration::from_millis(50));
        let limit = Limit::new(name, Algorithm::SlidingWindow, 20, window, guard);
        limit.expect("in range").with_scope(scope)
    };
    let path = Scope::Header("x-path".to_owned());
    let all = match how & 0x18 {
        0 => vec![limit("a", Scope::Tenant).with_unit(Unit::Calls)],
        8 => vec![limit("a", path)],
        0x10 => vec![limit("a", Scope::RoutingKey), limit("b", Scope::Global)],
        _ => vec![limit("a", Scope::RoutingKey), limit("b", path)],
    };
    let common = Policy::common(Limits::new(all).expect("two names"));
    if how & 0x20 == 0 {
        return common;
    }
    let free = Limits::from(limit("free", Scope::Tenant));
    (common.with_plans([("free".to_owned(), free)].into()))
        .with_tenants(vec![(
            Pattern::parse("t*"),
            EntryLimits::Plan("free".to_owned()),
        )])
        .with_plan_header("x-plan".to_owned())
}

fn bounded(message: &Message, claims: &Claims, returned: bool, policy: &Policy) {
    let limits = policy.limits(&claims.tenant, claims.plan.as_deref());
    assert!((1..=limits.max_cost()).contains(&claims.cost));
    assert!(claims.attempt > 0);
    assert!(claims.ticket.is_none_or(|ticket| ticket.number > 0));
    if !returned {
        let ours = (claims.attempt, claims.ticket, claims.not_before);
        assert_eq!(ours, (1, None, None), "a publisher's word counts");
        assert_eq!(claims.trip, None, "a publisher's word counts");
        assert!(!claims.is_first, "a publisher's word counts");
        let crashes = (claims.first_failure_ms, claims.suspect);
        assert_eq!(crashes, (None, None), "a publisher's word counts");
    }
    if let Some(dedupe) = &claims.dedupe {
        assert!((1..=255).contains(&dedupe.key.len()) && !dedupe.key.contains(char::is_control));
        assert!((1..=600_000).contains(&dedupe.lasts_ms));
    }
    let again = Tenant::parse(claims.tenant.as_str());
    assert_eq!(again.as_ref(), Ok(&claims.tenant));
    for (_, value) in job::labels(message, limits).iter() {
        assert!(value.len() <= MAX_VALUE_BYTES && !value.contains(char::is_control));
    }
}

/// Asserts that a delayed start is within the operator's maximum or is rejected with a reason.
fn starts(claims: &Claims, max_ms: u64) {
    let Some(start) = claims.start else { return };
    assert!(max_ms > 0, "it is read, and means nothing");
    match start.too_far(NOW_MS, max_ms) {
        Some(why) => one_line(&why),
        None => assert!(start.at_ms(NOW_MS) <= NOW_MS.saturating_add(max_ms)),
    }
}

/// Moves a job through a delay queue and back, and asserts that it is the same.
fn moved(message: &Message, claims: &Claims, fields: &Fields, policy: &Policy) {
    let not_before = NOW_MS + claims.cost;
    let mut claims = claims.clone();
    claims.expiry.count_from(NOW_MS);
    let mut set = job::postponed(&claims, Some(not_before), 5);
    set.extend(job::lasting(&claims));
    let trip = Trip {
        until_ms: not_before,
        wait_ms: 5,
    };
    set.push(headers::trip(trip));
    let key = HeaderValue::Text(message.routing_key.clone());
    set.push((headers::ROUTING_KEY, key));
    set.extend(claims.first_failure_ms.map(headers::first_failure));
    let mut back = (message.clone())
        .for_republish()
        .with_headers(&set, &headers::OURS)
        .with_id_if_missing("an-id");
    assert!(back.id().is_some());
    sent(&back);
    back.routing_key = job::first_routing_key(&back, "jobs").to_owned();
    let expected = Claims {
        dedupe: claims.dedupe.as_ref().map(|dedupe| Dedupe {
            seen_before: true,
            ..dedupe.clone()
        }),
        promise: None,
        trip: Some(trip),
        not_before: Some(job::NotBefore {
            at_ms: not_before,
            within_ms: 1000,
        }),
        ..claims.clone()
    };
    assert_eq!(job::read(&back, true, fields, policy), Ok(expected));
    let limits = policy.limits(&claims.tenant, claims.plan.as_deref());
    assert_eq!(job::labels(&back, limits), job::labels(message, limits));
}

/// Asserts that `lapin` can write the message, the screen passes it, and it is read as written.
fn sent(message: &Message) {
    let bytes = gen_properties(&message.properties)(Vec::<u8>::new().into());
    let (bytes, _) = bytes.expect("it is written").into_inner();
    let why = unreadable(&[&PREFIX, &bytes[..]].concat(), usize::MAX);
    assert_eq!(why, None);
    let (rest, read) = parse_properties(&bytes[..]).expect("it is read");
    assert!(rest.is_empty());
    // Compared as text, since NaN differs from itself.
    let [read, written] = [&read, &message.properties].map(|all| format!("{all:?}"));
    assert_eq!(read, written);
}

/// Asserts that a dead letter would carry the reason on one line of bounded length.
fn one_line(why: &str) {
    for (_, value) in headers::dead(1, why, Some(u64::MAX)) {
        if let HeaderValue::Text(text) = value {
            assert!(text.chars().count() <= 500 && !text.contains(char::is_control));
        }
    }
    assert!(why.len() < 4096, "{} bytes of a reason", why.len());
}
