//! What a message says about itself, once it has been checked.

mod labels;

use bytes::Bytes;

use self::labels::label;
pub use self::labels::labels;
use crate::rules::decision::Ticket;
use crate::rules::headers;
use crate::rules::policy::Policy;
use crate::rules::tenant::Tenant;

/// A header or another field of a message, as the rules see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field<'a> {
    /// There is none.
    Missing,
    /// A text.
    Text(&'a str),
    /// A whole number.
    Int(i64),
    /// Something else; the text names its kind, such as `a table`.
    Other(&'static str),
}

/// A message as the rules see it, whoever carried it.
pub trait Envelope {
    /// The message's id, when it has one.
    fn id(&self) -> Option<&str>;
    /// The header `name`.
    fn header(&self, name: &str) -> Field<'_>;
    /// The routing key it was first published with.
    fn routing_key(&self) -> &str;
    /// The body.
    fn body(&self) -> &[u8];
}

/// Where a job's tenant stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantField {
    /// `header:NAME`
    Header(String),
    /// `routing-key`
    RoutingKey,
    /// `json:/pointer` (RFC 6901)
    Json(String),
}

/// Where a job's cost stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CostField {
    /// `header:NAME`
    Header(String),
    /// `json:/pointer` (RFC 6901)
    Json(String),
}

/// Where a message says what a job needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields {
    /// Its tenant.
    pub tenant: TenantField,
    /// Its cost; 1 where there is none.
    pub cost: CostField,
}

/// A job as a handler sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The message's id; one without got one.
    pub id: String,
    /// Whose quota it uses.
    pub tenant: Tenant,
    /// Units of the limit that it uses.
    pub cost: u32,
    /// Which attempt this is, from 1. A crash of the worker counts as none.
    pub attempt: u32,
    /// The body's type, as the publisher said.
    pub content_type: Option<String>,
    /// The body.
    pub body: Bytes,
}

/// What a usable message says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// Whose quota it uses.
    pub tenant: Tenant,
    /// The plan that its publisher names, where a header for it is configured.
    pub plan: Option<String>,
    /// Its cost, at most what the limits in force allow.
    pub cost: u32,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// Its place in the line, from an earlier answer of the gate.
    pub ticket: Option<Ticket>,
    /// It may not be asked for before this.
    pub not_before: Option<NotBefore>,
}

/// Until when a job was delayed, by the store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotBefore {
    /// In milliseconds since the epoch.
    pub at_ms: u64,
    /// How far away that was then, rounded up, in milliseconds.
    pub within_ms: u64,
}

impl NotBefore {
    /// What is left of it at this time of the store's clock, in milliseconds. Where that is more than it was, the clock was
    /// stepped back: the job waits once more for as long as it did, and not for the step.
    pub fn left_ms(self, store_now_ms: u64) -> u64 {
        self.at_ms.saturating_sub(store_now_ms).min(self.within_ms)
    }
}

/// Why a message is no usable job; the text goes to `x-sluicegate-reason`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadMessage(String);

/// Reads what `message` says about itself. `returned` says that it came from one of our own delay
/// queues: only then do our own headers count, so a publisher can't jump the line.
///
/// # Errors
/// [`BadMessage`] says what is wrong with it, and with which field.
pub fn read(
    message: &impl Envelope,
    returned: bool,
    fields: &Fields,
    policy: &Policy,
) -> Result<Claims, BadMessage> {
    if let Field::Text(why) = message.header(headers::UNREADABLE) {
        let kept = headers::PROPERTIES;
        return Err(BadMessage(format!(
            "its properties can't be used: {why}; they are kept in {kept}"
        )));
    }
    let tenant = read_tenant(message, &fields.tenant)?;
    let plan = read_plan(message, policy)?;
    let limits = policy.limits(&tenant, plan.as_deref());
    for limit in limits.iter() {
        label(message, limit.scope()).map_err(|why| {
            let name = limit.name();
            BadMessage(format!("{why}; the limit {name} tells jobs apart by it"))
        })?;
    }
    let cost = read_cost(message, &fields.cost, limits.max_cost())?;
    let mut claims = Claims {
        tenant,
        plan,
        cost,
        attempt: 1,
        ticket: None,
        not_before: None,
    };
    if returned {
        claims.attempt = match message.header(headers::ATTEMPT) {
            Field::Int(n) => u32::try_from(n).unwrap_or(1).max(1),
            _ => 1,
        };
        claims.ticket = match message.header(headers::TICKET) {
            Field::Text(text) => headers::read_ticket(text),
            _ => None,
        };
        let number = |name| match message.header(name) {
            Field::Int(n) => u64::try_from(n).ok(),
            _ => None,
        };
        let within = number(headers::RETRY_AFTER).map(|seconds| seconds.saturating_mul(1000));
        claims.not_before = number(headers::NOT_BEFORE).map(|at_ms| NotBefore {
            at_ms,
            within_ms: within.unwrap_or(u64::MAX),
        });
    }
    Ok(claims)
}

/// The routing key that a message from one of our own delay queues was first published with; `work` is the name of the
/// work queue, where jobs are usually published to.
pub fn first_routing_key<'a>(message: &'a impl Envelope, work: &'a str) -> &'a str {
    match message.header(headers::ROUTING_KEY) {
        Field::Text(key) => key,
        _ => work,
    }
}

/// Whose quota `message` uses, whatever else is wrong with it.
///
/// # Errors
/// [`BadMessage`] says why it names nobody.
pub fn read_tenant(message: &impl Envelope, field: &TenantField) -> Result<Tenant, BadMessage> {
    let parse = |place: &str, id: &str| {
        Tenant::parse(id).map_err(|why| BadMessage(format!("{why} ({place})")))
    };
    match field {
        TenantField::Header(name) => match message.header(name) {
            Field::Text(id) => parse(&format!("header {name}"), id),
            Field::Missing => Err(BadMessage(format!("no tenant: header {name} is missing"))),
            Field::Int(_) => Err(BadMessage(format!(
                "header {name} is a number; a tenant is a string"
            ))),
            Field::Other(kind) => Err(BadMessage(format!(
                "header {name} is {kind}; a tenant is a string"
            ))),
        },
        TenantField::RoutingKey => parse("routing key", message.routing_key()),
        TenantField::Json(pointer) => {
            let body: serde_json::Value = serde_json::from_slice(message.body())
                .map_err(|why| BadMessage(format!("no tenant: the body is not JSON: {why}")))?;
            match body.pointer(pointer) {
                Some(serde_json::Value::String(id)) => parse(&format!("json:{pointer}"), id),
                Some(_) => Err(BadMessage(format!("json:{pointer} is not a string"))),
                None => Err(BadMessage(format!(
                    "no tenant: the body has no json:{pointer}"
                ))),
            }
        }
    }
}

/// The plan that the publisher names; it must be one of ours.
fn read_plan(message: &impl Envelope, policy: &Policy) -> Result<Option<String>, BadMessage> {
    let Some(name) = policy.plan_header() else {
        return Ok(None);
    };
    match message.header(name) {
        Field::Missing => Ok(None),
        Field::Text(plan) if policy.plan(plan).is_some() => Ok(Some(plan.to_owned())),
        Field::Text(plan) => {
            let shown: String = plan.chars().take(32).collect();
            Err(BadMessage(format!(
                "header {name} is {shown:?}, and rate-limiter.plans has no such plan"
            )))
        }
        Field::Int(_) | Field::Other(_) => Err(BadMessage(format!(
            "header {name} is no text; it names a plan of rate-limiter.plans"
        ))),
    }
}

fn read_cost(message: &impl Envelope, field: &CostField, max: u32) -> Result<u32, BadMessage> {
    match field {
        CostField::Header(name) => check_cost(message.header(name), &format!("header {name}"), max),
        CostField::Json(pointer) => {
            let body: serde_json::Value = serde_json::from_slice(message.body())
                .map_err(|why| BadMessage(format!("no cost: the body is not JSON: {why}")))?;
            let found = match body.pointer(pointer) {
                None | Some(serde_json::Value::Null) => Field::Missing,
                Some(serde_json::Value::String(text)) => Field::Text(text),
                Some(serde_json::Value::Number(n)) if n.is_f64() => Field::Other("a fraction"),
                Some(serde_json::Value::Number(n)) => Field::Int(n.as_i64().unwrap_or(i64::MAX)),
                Some(_) => Field::Other("neither a number nor a text"),
            };
            check_cost(found, &format!("json:{pointer}"), max)
        }
    }
}

fn check_cost(found: Field<'_>, place: &str, max: u32) -> Result<u32, BadMessage> {
    let bad = |what: String| {
        Err(BadMessage(format!(
            "{place} is {what}; a cost is a whole number from 1 to {max}"
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
        Field::Other(kind) => return bad(kind.to_owned()),
    };
    match u32::try_from(cost) {
        Ok(n) if (1..=max).contains(&n) => Ok(n),
        _ if cost > i64::from(max) => Err(BadMessage(format!(
            "{place} is {cost}, above the limit of {max}: it can never start"
        ))),
        _ => bad(cost.to_string()),
    }
}

#[cfg(test)]
mod tests;
