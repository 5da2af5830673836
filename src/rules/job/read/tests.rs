//! Tests which messages are usable jobs, and which data is read from them.

use super::*;
use crate::decision::Ticket;
use crate::job::labels;
use crate::limit::{Algorithm, Limit, Limits};
use crate::scope::{MAX_VALUE_BYTES, Scope};

pub(in crate::job) struct Fake {
    headers: Vec<(&'static str, Field<'static>)>,
    body: &'static [u8],
    expiration_ms: Option<u64>,
    published_ms: Option<u64>,
}

impl Default for Fake {
    fn default() -> Self {
        Self {
            headers: vec![("x-tenant", Field::Text("acme"))],
            body: b"",
            expiration_ms: None,
            published_ms: Some(1_000),
        }
    }
}

impl Fake {
    pub(in crate::job) fn of(headers: &[(&'static str, Field<'static>)]) -> Self {
        Self {
            headers: headers.to_vec(),
            ..Self::default()
        }
    }

    pub(in crate::job) fn published(
        headers: &[(&'static str, Field<'static>)],
        published_ms: Option<u64>,
    ) -> Self {
        Self {
            published_ms,
            ..Self::of(headers)
        }
    }
}

impl Envelope for Fake {
    fn id(&self) -> Option<&str> {
        None
    }
    fn header(&self, name: &str) -> Field<'_> {
        self.headers
            .iter()
            .find(|(n, _)| *n == name)
            .map_or(Field::Missing, |(_, f)| *f)
    }
    fn routing_key(&self) -> &str {
        "jobs.acme"
    }
    fn expiration_ms(&self) -> Option<u64> {
        self.expiration_ms
    }
    fn published_ms(&self) -> Option<u64> {
        self.published_ms
    }
    fn body(&self) -> &[u8] {
        self.body
    }
}

fn fields(tenant: TenantField) -> Fields {
    Fields {
        tenant,
        cost: ValueField::Header("x-cost".to_owned()),
        deadline: None,
        max_delayed_start_ms: 30 * 86_400_000,
        dedupe_for_ms: 600_000,
        priorities: Default::default(),
        call: Default::default(),
    }
}

fn x_tenant() -> Fields {
    fields(TenantField::Header("x-tenant".into()))
}

/// 20 jobs per minute.
fn policy() -> Policy {
    let minute = std::time::Duration::from_secs(60);
    let guard = std::time::Duration::ZERO;
    Limit::new("default", Algorithm::SlidingWindow, 20, minute, guard)
        .expect("in range")
        .into()
}

fn check(headers: &[(&'static str, Field<'static>)], expected: Result<(&str, u64), &str>) {
    let fake = Fake {
        headers: headers.to_vec(),
        ..Fake::default()
    };
    let read = read(&fake, false, &x_tenant(), &policy());
    match expected {
        Ok((tenant, cost)) => {
            let claims = read.expect("usable");
            assert_eq!((claims.tenant.as_str(), claims.cost), (tenant, cost));
        }
        Err(part) => {
            let why = read.expect_err("unusable").to_string();
            assert!(why.contains(part), "{why:?} should say {part:?}");
        }
    }
}

#[test]
fn a_message_is_usable_or_has_a_reason() {
    let tenant = ("x-tenant", Field::Text("acme"));
    check(&[tenant], Ok(("acme", 1)));
    check(&[tenant, ("x-cost", Field::Int(20))], Ok(("acme", 20)));
    check(&[tenant, ("x-cost", Field::Text("7"))], Ok(("acme", 7)));
    check(&[], Err("header x-tenant is missing"));
    let unreadable = ("x-sluicegate-unreadable", Field::Text("type is not UTF-8"));
    check(
        &[tenant, unreadable],
        Err("type is not UTF-8; they are kept in"),
    );
    check(&[("x-tenant", Field::Int(42))], Ok(("42", 1)));
    check(
        &[("x-tenant", Field::Int(i64::MIN))],
        Ok(("-9223372036854775808", 1)),
    );
    for (field, kind) in [
        (Field::Other("a table"), "a table"),
        (Field::Other("a boolean"), "a boolean"),
        (Field::Other("a fraction"), "a fraction"),
        (Field::Time(7), "a timestamp"),
    ] {
        let why =
            format!("header x-tenant is {kind}; a tenant must be a string or a 64-bit integer");
        check(&[("x-tenant", field)], Err(&why));
    }
    check(
        &[("x-tenant", Field::Text("a\u{1}"))],
        Err("control character at byte 1"),
    );
    check(
        &[tenant, ("x-cost", Field::Int(0))],
        Err("is 0; a cost must be"),
    );
    check(
        &[tenant, ("x-cost", Field::Int(-1))],
        Err("is -1; a cost must be"),
    );
    check(
        &[tenant, ("x-cost", Field::Int(21))],
        Err("the job can never be admitted"),
    );
    check(&[tenant, ("x-cost", Field::Text("abc"))], Err("\"abc\""));
    check(&[tenant, ("x-cost", Field::Text("1.5"))], Err("\"1.5\""));
    check(&[tenant, ("x-cost", Field::Text(""))], Err("\"\""));
    check(
        &[tenant, ("x-cost", Field::Text("9223372036854775808"))],
        Err("the job can never be admitted"),
    );
    check(
        &[tenant, ("x-cost", Field::Other("a fraction"))],
        Err("a fraction"),
    );
}

fn scoped(scopes: &[Scope]) -> Limits {
    let limit = |(at, scope): (usize, &Scope)| {
        let limit = Limit::concurrent(&format!("l{at}"), 9).expect("in range");
        limit.with_scope(scope.clone())
    };
    Limits::new(scopes.iter().enumerate().map(limit).collect()).expect("names differ")
}

#[test]
fn a_partition_value_is_a_text_or_a_number_or_missing() {
    let path = || Scope::Header("x-path".to_owned());
    let limits = scoped(&[Scope::Tenant, path()]);
    let policy = Policy::common(limits.clone());
    let long = "v".repeat(MAX_VALUE_BYTES + 1).leak();
    for (field, expected) in [
        (Field::Missing, Ok("")),
        (Field::Text(""), Ok("")),
        (Field::Text("/v1 ä"), Ok("/v1 ä")),
        (Field::Text(&long[1..]), Ok(&long[1..])),
        (Field::Int(-7), Ok("-7")),
        (
            Field::Other("a boolean"),
            Err("header x-path is a boolean; it must be a string or a 64-bit integer"),
        ),
        (
            Field::Text(long),
            Err("header x-path has 256 bytes; the maximum is 255"),
        ),
        (
            Field::Text("a\n"),
            Err("header x-path has a control character at byte 1"),
        ),
    ] {
        let fake = Fake {
            headers: vec![("x-tenant", Field::Text("acme")), ("x-path", field)],
            ..Fake::default()
        };
        let read = read(&fake, false, &x_tenant(), &policy).map_err(|why| why.to_string());
        let expected_error = expected
            .err()
            .map(|why| format!("{why}; the limit l1 separates jobs by it"));
        assert_eq!(read.err(), expected_error);
        // With the limits of other workers, an invalid value counts as the empty one.
        let value = expected.unwrap_or_default();
        let labels = labels(&fake, &limits);
        let found: Vec<_> = labels.iter().collect();
        assert_eq!(found, [(&path(), value)]);
    }
}

#[test]
fn a_returned_job_keeps_its_publishers_routing_key() {
    let fake = |headers| Fake {
        headers,
        ..Fake::default()
    };
    let limits = scoped(&[Scope::RoutingKey]);
    let found = labels(&fake(vec![]), &limits);
    assert_eq!(
        found.iter().collect::<Vec<_>>(),
        [(&Scope::RoutingKey, "jobs.acme")]
    );
    let returned = fake(vec![("x-sluicegate-routing-key", Field::Text("a.b"))]);
    assert_eq!(first_routing_key(&returned, "jobs"), "a.b");
    assert_eq!(first_routing_key(&fake(vec![]), "jobs"), "jobs");
}

#[test]
fn internal_headers_count_only_on_jobs_from_delay_queues() {
    let fake = Fake {
        headers: vec![
            ("x-tenant", Field::Text("acme")),
            ("x-sluicegate-attempt", Field::Int(3)),
            ("x-sluicegate-ticket", Field::Text("17:4")),
            ("x-sluicegate-not-before", Field::Int(9_000)),
            ("x-sluicegate-expires", Field::Int(4_000)),
            ("x-sluicegate-expiration", Field::Text("7000")),
            ("x-sluicegate-first", Field::Int(1)),
            ("x-dedupe-key", Field::Text("order-7")),
            ("retry-after", Field::Int(2)),
        ],
        expiration_ms: Some(5_000),
        ..Fake::default()
    };
    let fresh = read(&fake, false, &x_tenant(), &policy()).expect("usable");
    assert_eq!(
        (fresh.attempt, fresh.ticket, fresh.not_before),
        (1, None, None)
    );
    assert_eq!(fresh.expiry, Expiry::lasts(Some(5_000), Some(1_000)));
    assert!(fresh.dedupe.is_some() && !fresh.is_first);
    let back = read(&fake, true, &x_tenant(), &policy()).expect("usable");
    let ticket = Ticket {
        generation: 17,
        number: 4,
    };
    assert_eq!((back.attempt, back.ticket), (3, Some(ticket)));
    let not_before = back.not_before.expect("it was delayed");
    // Before the last of these times, the clock was stepped back.
    for (now_ms, left_ms) in [(9_000, 0), (8_990, 10), (7_000, 2_000), (0, 2_000)] {
        assert_eq!(not_before.left_ms(now_ms), left_ms, "{now_ms}");
    }
    assert_eq!(back.expiry, Expiry::ends(4_000));
    assert!(back.dedupe.is_none() && back.is_first);
}

#[test]
fn a_returned_job_may_lack_internal_headers() {
    let read = |headers: &[(&'static str, Field<'static>)]| {
        let tenant = [("x-tenant", Field::Text("acme"))];
        let fake = Fake::of(&[&tenant, headers].concat());
        read(&fake, true, &x_tenant(), &policy()).expect("usable")
    };
    let lasts = [("x-sluicegate-expiration", Field::Text("7000"))];
    let expiry = Expiry::lasts(Some(7_000), Some(1_000));
    assert_eq!(read(&lasts).expiry, expiry);
    let delay = ("x-delay", Field::Int(500));
    let moved = |attempt| ("x-sluicegate-attempt", Field::Int(attempt));
    assert!(read(&[delay]).start.is_some(), "no worker has moved it");
    let second = read(&[delay, moved(2)]);
    assert_eq!((second.attempt, second.start), (2, None));
    assert_eq!(read(&[moved(0)]).attempt, 1);
}

#[test]
fn the_tenant_may_come_from_other_fields() {
    let fake = Fake {
        headers: vec![],
        body: br#"{"user":{"id":"u1"},"n":1}"#,
        ..Fake::default()
    };
    let tenant = |field: &TenantField| {
        read(&fake, false, &fields(field.clone()), &policy())
            .map(|c| c.tenant.as_str().to_owned())
            .map_err(|e| e.to_string())
    };
    assert_eq!(tenant(&TenantField::RoutingKey), Ok("jobs.acme".into()));
    assert_eq!(
        tenant(&TenantField::Json("/user/id".into())),
        Ok("u1".into())
    );
    let json = |body: &'static [u8]| {
        let fake = Fake {
            body,
            ..Fake::default()
        };
        read(
            &fake,
            false,
            &fields(TenantField::Json("/n".into())),
            &policy(),
        )
        .map(|claims| claims.tenant.as_str().to_owned())
        .map_err(|why| why.to_string())
    };
    for (body, id) in [
        (&br#"{"n":42}"#[..], "42"),
        (br#"{"n":-7}"#, "-7"),
        (br#"{"n":0}"#, "0"),
        (br#"{"n":18446744073709551615}"#, "18446744073709551615"),
        (br#"{"n":9223372036854775808}"#, "9223372036854775808"),
    ] {
        assert_eq!(json(body), Ok(id.to_owned()));
    }
    for (body, kind) in [
        (&br#"{"n":42.0}"#[..], "a fraction, or beyond 64 bits"),
        (br#"{"n":4e1}"#, "a fraction, or beyond 64 bits"),
        (
            br#"{"n":18446744073709551616}"#,
            "a fraction, or beyond 64 bits",
        ),
        (br#"{"n":true}"#, "true or false"),
        (br#"{"n":[42]}"#, "a list"),
    ] {
        let why = format!("json:/n is {kind}; a tenant must be a string or a 64-bit integer");
        assert_eq!(json(body), Err(why));
    }
    assert_eq!(
        tenant(&TenantField::Json("/x".into())),
        Err("no tenant: the body has no json:/x".into())
    );
}

#[test]
fn a_deadline_is_a_time_or_missing_or_an_error() {
    let deadline = |fake: &Fake, field: ValueField| {
        let fields = Fields {
            deadline: Some(field),
            ..x_tenant()
        };
        let claims = read(fake, false, &fields, &policy()).map_err(|why| why.to_string())?;
        Ok::<_, String>(claims.expiry.at_ms())
    };
    let header = || ValueField::Header("x-deadline".to_owned());
    for (field, expected) in [
        (Field::Missing, Ok(None)),
        (Field::Text("1970-01-01T00:00:02Z"), Ok(Some(2_000))),
        (Field::Text("2"), Ok(Some(2_000))),
        (Field::Int(2), Ok(Some(2_000))),
        (Field::Int(1_769_860_800_500), Ok(Some(1_769_860_800_500))),
        (Field::Time(2), Ok(Some(2_000))),
        (
            Field::Int(-2),
            Err("header x-deadline is -2; a deadline must be a time"),
        ),
        (
            Field::Text("soon"),
            Err("header x-deadline is \"soon\"; a deadline must be"),
        ),
        (
            Field::Other("a table"),
            Err("header x-deadline is a table; a deadline must be"),
        ),
    ] {
        let fake = Fake {
            headers: vec![("x-tenant", Field::Text("acme")), ("x-deadline", field)],
            ..Fake::default()
        };
        match (deadline(&fake, header()), expected) {
            (Err(why), Err(part)) => assert!(why.contains(part), "{why:?} should say {part:?}"),
            (read, expected) => assert_eq!(read, expected.map_err(str::to_owned), "{field:?}"),
        }
    }
    for (body, expected) in [
        (
            &br#"{"until":{"at":"1970-01-01T00:00:02Z"}}"#[..],
            Ok(Some(2_000)),
        ),
        (br#"{"until":{"at":2}}"#, Ok(Some(2_000))),
        (
            br#"{"until":{"at":"9999-12-31T23:59:59Z"}}"#,
            Ok(Some(253_402_207_200_999)),
        ),
        (br#"{"until":{"at":"1970-01-01T00:00:02,5Z"}}"#, Err(())),
        (br#"{"until":{"at":null}}"#, Ok(None)),
        (br#"{"until":7}"#, Ok(None)),
        (br#"{"until":{"at":2.5}}"#, Err(())),
        (br#"{"until":{"at":"x"}}"#, Err(())),
        // Forms of ISO 8601 that RFC 3339 does not have.
        (br#"{"until":{"at":"1970-01-01T00:00Z"}}"#, Err(())),
        (br#"{"until":{"at":"1970-01-01T00:00:02+01"}}"#, Err(())),
        (br#"{"until":{"at":"19700101T000002Z"}}"#, Err(())),
        (br#"{"until":{"at":"1970-01-01T00:00:02Z[UTC]"}}"#, Err(())),
        (b"no json", Err(())),
    ] {
        let fake = Fake {
            body,
            ..Fake::default()
        };
        let read = deadline(&fake, ValueField::Json("/until/at".to_owned()));
        assert_eq!(read.map_err(drop), expected);
    }
}
