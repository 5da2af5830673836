//! Which messages are usable jobs, and what is read from them.

use super::*;
use crate::rules::limit::{Algorithm, Limit, Limits};
use crate::rules::scope::{MAX_VALUE_BYTES, Scope};

struct Fake {
    headers: Vec<(&'static str, Field<'static>)>,
    body: &'static [u8],
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
    fn body(&self) -> &[u8] {
        self.body
    }
}

fn fields(tenant: TenantField) -> Fields {
    Fields {
        tenant,
        cost: CostField::Header("x-cost".to_owned()),
    }
}

fn x_tenant() -> Fields {
    fields(TenantField::Header("x-tenant".into()))
}

/// 20 a minute.
fn policy() -> Policy {
    let minute = std::time::Duration::from_secs(60);
    let guard = std::time::Duration::ZERO;
    Limit::new("default", Algorithm::SlidingWindow, 20, minute, guard)
        .expect("in range")
        .into()
}

fn check(headers: &[(&'static str, Field<'static>)], expected: Result<(&str, u32), &str>) {
    let fake = Fake {
        headers: headers.to_vec(),
        body: b"",
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
fn a_message_is_usable_or_says_why_not() {
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
    check(&[("x-tenant", Field::Int(5))], Err("a tenant is a string"));
    check(&[("x-tenant", Field::Other("a table"))], Err("is a table"));
    check(
        &[("x-tenant", Field::Text("a\u{1}"))],
        Err("control character at byte 1"),
    );
    check(&[tenant, ("x-cost", Field::Int(0))], Err("is 0; a cost is"));
    check(
        &[tenant, ("x-cost", Field::Int(-1))],
        Err("is -1; a cost is"),
    );
    check(
        &[tenant, ("x-cost", Field::Int(21))],
        Err("it can never start"),
    );
    check(&[tenant, ("x-cost", Field::Text("abc"))], Err("\"abc\""));
    check(&[tenant, ("x-cost", Field::Text("1.5"))], Err("\"1.5\""));
    check(&[tenant, ("x-cost", Field::Text(""))], Err("\"\""));
    check(
        &[tenant, ("x-cost", Field::Text("9223372036854775808"))],
        Err("it can never start"),
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
fn what_tells_jobs_apart_is_a_text_or_a_number_or_missing() {
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
            Err("header x-path is a boolean; it must be a text or a whole number"),
        ),
        (
            Field::Text(long),
            Err("header x-path has 256 bytes; 255 at most can be"),
        ),
        (
            Field::Text("a\n"),
            Err("header x-path has a control character at byte 1"),
        ),
    ] {
        let fake = Fake {
            headers: vec![("x-tenant", Field::Text("acme")), ("x-path", field)],
            body: b"",
        };
        let read = read(&fake, false, &x_tenant(), &policy).map_err(|why| why.to_string());
        let expected_error = expected
            .err()
            .map(|why| format!("{why}; the limit l1 tells jobs apart by it"));
        assert_eq!(read.err(), expected_error);
        // Limits of other workers: it is told apart from nobody.
        let value = expected.unwrap_or_default();
        let labels = labels(&fake, &limits);
        let found: Vec<_> = labels.iter().collect();
        assert_eq!(found, [(&path(), value)]);
    }
}

#[test]
fn a_job_that_comes_back_has_the_routing_key_of_its_publisher() {
    let fake = |headers| Fake { headers, body: b"" };
    let limits = scoped(&[Scope::RoutingKey]);
    let found = labels(&fake(vec![]), &limits);
    assert_eq!(
        found.iter().collect::<Vec<_>>(),
        [(&Scope::RoutingKey, "jobs.acme")]
    );
    let kept = fake(vec![("x-sluicegate-routing-key", Field::Text("a.b"))]);
    assert_eq!(first_routing_key(&kept, "jobs"), "a.b");
    assert_eq!(first_routing_key(&fake(vec![]), "jobs"), "jobs");
}

#[test]
fn our_own_headers_count_only_on_what_we_delayed_ourselves() {
    let fake = Fake {
        headers: vec![
            ("x-tenant", Field::Text("acme")),
            ("x-sluicegate-attempt", Field::Int(3)),
            ("x-sluicegate-ticket", Field::Text("17:4")),
            ("x-sluicegate-not-before", Field::Int(9_000)),
            ("retry-after", Field::Int(2)),
        ],
        body: b"",
    };
    let fresh = read(&fake, false, &x_tenant(), &policy()).expect("usable");
    assert_eq!(
        (fresh.attempt, fresh.ticket, fresh.not_before),
        (1, None, None)
    );
    let back = read(&fake, true, &x_tenant(), &policy()).expect("usable");
    let ticket = Ticket {
        generation: 17,
        place: 4,
    };
    assert_eq!((back.attempt, back.ticket), (3, Some(ticket)));
    let not_before = back.not_before.expect("it was delayed");
    // The last of these clocks was stepped back.
    for (now_ms, left_ms) in [(9_000, 0), (8_990, 10), (7_000, 2_000), (0, 2_000)] {
        assert_eq!(not_before.left_ms(now_ms), left_ms, "{now_ms}");
    }
}

#[test]
fn the_tenant_may_stand_elsewhere() {
    let fake = Fake {
        headers: vec![],
        body: br#"{"user":{"id":"u1"},"n":1}"#,
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
    assert_eq!(
        tenant(&TenantField::Json("/n".into())),
        Err("json:/n is not a string".into())
    );
    assert_eq!(
        tenant(&TenantField::Json("/x".into())),
        Err("no tenant: the body has no json:/x".into())
    );
}
