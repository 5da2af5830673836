//! Reads and validates the data of a job in a message.

use std::fmt::Arguments;

use super::call::PlaceholderValues;
use super::labels::label;
use super::start;
use super::{
    ALL_TENANTS, BadMessage, Claims, Envelope, Field, Fields, InBody, NotBefore, TenantField,
    ValueField, dedupe,
};
use crate::headers;
use crate::job::expiry::{self, Expiry};
use crate::policy::Policy;
use crate::tenant::Tenant;
use crate::timing::promise::Promise;

/// Reads a job like [`read_with`], including the values in its body.
///
/// # Errors
/// Returns the errors of [`read_with`].
pub fn read(
    message: &impl Envelope,
    returned: bool,
    fields: &Fields,
    policy: &Policy,
) -> Result<Claims, BadMessage> {
    let inside = InBody::read(message.body(), fields);
    read_with(message, &inside, returned, fields, policy)
}

/// Reads the data of a job in `message`. `inside` has the values from its body. `returned` means
/// that the message came from one of our own delay queues: only then do our own headers count, so a
/// publisher can't jump the waitlist.
///
/// # Errors
/// Returns a [`BadMessage`] that names the invalid field and the problem.
pub fn read_with(
    message: &impl Envelope,
    inside: &InBody,
    returned: bool,
    fields: &Fields,
    policy: &Policy,
) -> Result<Claims, BadMessage> {
    check_properties(message)?;
    let tenant = tenant_of(message, inside, &fields.tenant)?;
    let plan = read_plan(message, policy)?;
    let limits = policy.limits(&tenant, plan.as_deref());
    for limit in limits.iter() {
        label(message, limit.scope()).map_err(|why| {
            let name = limit.name();
            BadMessage(format!("{why}; the limit {name} separates jobs by it"))
        })?;
    }
    fields.priorities.label(message).map_err(BadMessage)?;
    let cost = read_cost(message, inside, &fields.cost, limits.max_cost())?;
    let deadline_ms = match &fields.deadline {
        Some(field) => read_deadline(message, inside, field)?,
        None => None,
    };
    let values = read_values(message, inside, fields, &tenant)?;
    let expiry = read_expiry(message, returned);
    let start = match returned && start::is_counted(message) {
        true => None,
        false => start::read(message, fields.max_delayed_start_ms).map_err(BadMessage)?,
    };
    let is_first = returned && dedupe::is_first(message);
    let dedupe = match is_first {
        true => None,
        false => dedupe::read(message, returned, fields.dedupe_for_ms).map_err(BadMessage)?,
    };
    let mut claims = Claims {
        tenant,
        plan,
        cost,
        attempt: 1,
        ticket: None,
        not_before: None,
        start,
        dedupe,
        is_first,
        expiry: expiry.with_deadline(deadline_ms),
        first_failure_ms: None,
        trip: None,
        suspect: None,
        promise: None,
        woken: 0,
        waits: 0,
        values,
    };
    if returned {
        read_own_headers(message, &mut claims);
    }
    Ok(claims)
}

/// Refuses a message whose properties were invalid when it was first read.
fn check_properties(message: &impl Envelope) -> Result<(), BadMessage> {
    let Field::Text(why) = message.header(headers::UNREADABLE) else {
        return Ok(());
    };
    let kept_in = headers::PROPERTIES;
    Err(BadMessage(format!(
        "its properties are invalid: {why}; they are kept in {kept_in}"
    )))
}

/// Reads the values for the placeholders of calls.
fn read_values(
    message: &impl Envelope,
    inside: &InBody,
    fields: &Fields,
    tenant: &Tenant,
) -> Result<PlaceholderValues, BadMessage> {
    if fields.call.is_nothing() {
        return Ok(PlaceholderValues::default());
    }
    let id = message.id().unwrap_or_default();
    let header = |name: &str| message.header(name);
    let json = |number| inside.carried(number);
    (fields.call.read((tenant.as_str(), id), header, json)).map_err(BadMessage)
}

/// Reads the time until which the job may be called. `returned`: see [`read_with`].
fn read_expiry(message: &impl Envelope, returned: bool) -> Expiry {
    let ours = |name| match returned {
        true => message.header(name),
        false => Field::Missing,
    };
    let ends_ms = match ours(headers::EXPIRES) {
        Field::Int(n) => u64::try_from(n).ok(),
        _ => None,
    };
    match ends_ms {
        Some(ends_ms) => Expiry::ends(ends_ms),
        None => {
            // A message that moves has its `expiration` in our header.
            let lasts_ms = match ours(headers::EXPIRATION) {
                Field::Text(text) => text.parse().ok(),
                _ => message.expiration_ms(),
            };
            Expiry::lasts(lasts_ms, lasts_ms.and_then(|_| message.published_ms()))
        }
    }
}

/// Reads the headers that a message from one of our own delay queues has.
fn read_own_headers(message: &impl Envelope, claims: &mut Claims) {
    let number = |name| match message.header(name) {
        Field::Int(n) => u64::try_from(n).ok(),
        _ => None,
    };
    claims.attempt = match message.header(headers::ATTEMPT) {
        Field::Int(n) => u32::try_from(n).unwrap_or(1).max(1),
        _ => 1,
    };
    claims.ticket = match message.header(headers::TICKET) {
        Field::Text(text) => headers::read_ticket(text),
        _ => None,
    };
    let within = number(headers::RETRY_AFTER).map(|seconds| seconds.saturating_mul(1000));
    claims.not_before = number(headers::NOT_BEFORE).map(|at_ms| NotBefore {
        at_ms,
        within_ms: within.unwrap_or(u64::MAX),
    });
    claims.first_failure_ms = number(headers::FIRST_CALL);
    claims.trip = match message.header(headers::TRIP) {
        Field::Text(text) => headers::read_trip(text),
        _ => None,
    };
    claims.promise = match message.header(headers::PROMISE) {
        Field::Text(text) => Promise::read(text),
        _ => None,
    };
    let max = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    claims.suspect = number(headers::SUSPECT).map(max);
    claims.woken = number(headers::WOKEN).unwrap_or(0);
    claims.waits = number(headers::WAITS).map_or(0, max);
}

/// Returns the routing key that a message from one of our own delay queues was first published
/// with. Defaults to `work`, the name of the work queue, which jobs are usually published to.
pub fn first_routing_key<'a>(message: &'a impl Envelope, work: &'a str) -> &'a str {
    match message.header(headers::ROUTING_KEY) {
        Field::Text(key) => key,
        _ => work,
    }
}

/// Reads the tenant of `message`, regardless of its other fields.
///
/// # Errors
/// Returns a [`BadMessage`] with the reason why there is no tenant.
pub fn read_tenant(message: &impl Envelope, field: &TenantField) -> Result<Tenant, BadMessage> {
    let inside = InBody::tenant(message.body(), field);
    tenant_of(message, &inside, field)
}

fn tenant_of(
    message: &impl Envelope,
    inside: &InBody,
    field: &TenantField,
) -> Result<Tenant, BadMessage> {
    let parse = |location: Arguments<'_>, id: &str| {
        Tenant::parse(id).map_err(|why| BadMessage(format!("{why} ({location})")))
    };
    match field {
        TenantField::Header(name) => match message.header(name) {
            Field::Text(id) => parse(format_args!("header {name}"), id),
            Field::Int(id) => parse(format_args!("header {name}"), &id.to_string()),
            Field::Missing => Err(BadMessage(format!("no tenant: header {name} is missing"))),
            other => Err(no_tenant(format_args!("header {name}"), other)),
        },
        TenantField::RoutingKey => parse(format_args!("routing key"), message.routing_key()),
        TenantField::All => parse(format_args!("job.tenant"), ALL_TENANTS),
        TenantField::Json(pointer) => match inside.found(0, "tenant")? {
            Field::Text(id) => parse(format_args!("json:{pointer}"), id),
            Field::Int(id) => parse(format_args!("json:{pointer}"), &id.to_string()),
            Field::Missing => Err(BadMessage(format!(
                "no tenant: the body has no json:{pointer}"
            ))),
            other => Err(no_tenant(format_args!("json:{pointer}"), other)),
        },
    }
}

fn no_tenant(location: Arguments<'_>, found: Field<'_>) -> BadMessage {
    let kind = found.kind();
    BadMessage(format!(
        "{location} is {kind}; a tenant must be a string or a 64-bit integer"
    ))
}

/// Reads the plan that the publisher names, which must be configured.
fn read_plan(message: &impl Envelope, policy: &Policy) -> Result<Option<String>, BadMessage> {
    let Some(name) = policy.plan_header() else {
        return Ok(None);
    };
    let plan = match message.header(name) {
        Field::Missing => return Ok(None),
        Field::Text(plan) => plan.to_owned(),
        Field::Int(plan) => plan.to_string(),
        other @ (Field::Time(_) | Field::Other(_)) => {
            let kind = other.kind();
            return Err(BadMessage(format!(
                "header {name} is {kind}; it must be a string or a 64-bit integer that names a plan \
                of rate-limiter.plans"
            )));
        }
    };
    if policy.plan(&plan).is_some() {
        return Ok(Some(plan));
    }
    let shown: String = plan.chars().take(32).collect();
    Err(BadMessage(format!(
        "header {name} is {shown:?}, but rate-limiter.plans has no such plan"
    )))
}

fn read_cost(
    message: &impl Envelope,
    inside: &InBody,
    field: &ValueField,
    max: u64,
) -> Result<u64, BadMessage> {
    match field {
        ValueField::Header(name) => {
            check_cost(message.header(name), format_args!("header {name}"), max)
        }
        ValueField::Json(pointer) => {
            let found = inside.found(1, "cost")?;
            check_cost(found, format_args!("json:{pointer}"), max)
        }
    }
}

/// Reads the time until which the job may be called, in milliseconds since the epoch, or `None` if
/// the field is missing.
fn read_deadline(
    message: &impl Envelope,
    inside: &InBody,
    field: &ValueField,
) -> Result<Option<u64>, BadMessage> {
    let location;
    let field = match field {
        ValueField::Header(name) => {
            location = format!("header {name}");
            message.header(name)
        }
        ValueField::Json(pointer) => {
            location = format!("json:{pointer}");
            inside.found(2, "deadline")?
        }
    };
    let deadline = match field {
        Field::Missing => return Ok(None),
        Field::Text(text) => expiry::deadline_ms(text),
        Field::Int(n) => u64::try_from(n).ok().map(expiry::epoch_ms),
        Field::Time(seconds) => Some(seconds.saturating_mul(1000)),
        Field::Other(_) => None,
    };
    if deadline.is_some() {
        return Ok(deadline);
    }
    let shown = start::shown(field);
    Err(BadMessage(format!(
        "{location} is {shown}; a deadline must be a time of RFC 3339, such as 2026-01-31T12:00:00Z, \
        or seconds or milliseconds since 1970"
    )))
}

fn check_cost(found: Field<'_>, location: Arguments<'_>, max: u64) -> Result<u64, BadMessage> {
    let bad = |what: String| {
        Err(BadMessage(format!(
            "{location} is {what}; a cost must be a whole number from 1 to {max}"
        )))
    };
    let cost = match found {
        Field::Missing => return Ok(1),
        Field::Int(n) => n,
        // Digits only: no sign, no space, no fraction.
        Field::Text(text) if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) => {
            text.parse().unwrap_or(i64::MAX)
        }
        Field::Text(text) => {
            let shown: String = text.chars().take(32).collect();
            return bad(format!("{shown:?}"));
        }
        other => return bad(other.kind().to_owned()),
    };
    match u64::try_from(cost) {
        Ok(n) if (1..=max).contains(&n) => Ok(n),
        Ok(n) if n > max => Err(BadMessage(format!(
            "{location} is {cost}, above the limit of {max}: the job can never be admitted"
        ))),
        _ => bad(cost.to_string()),
    }
}

#[cfg(test)]
pub(super) mod tests;
