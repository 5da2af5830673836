//! Jobs: where a message has their data ([`Fields`]), the data ([`Claims`]), and what a handler
//! gets ([`Job`]).

mod body;
pub mod call;
mod carried;
pub mod dedupe;
pub mod expiry;
mod labels;
mod line;
pub mod outcome;
pub mod priority;
mod published;
mod read;
pub mod start;
mod traced;
pub mod verdict;

use std::fmt;

use bytes::Bytes;

pub use self::body::InBody;
use self::call::{CarriedFields, PlaceholderValues};
pub use self::carried::{lasting, postponed};
use self::dedupe::Dedupe;
pub use self::labels::labels;
use self::priority::Priorities;
pub use self::published::{Carrier, JobMessage, Properties, Value};
pub use self::read::{first_routing_key, read, read_tenant, read_with};
use self::start::DelayedStart;
pub use self::traced::traced;
use crate::decision::Ticket;
use crate::delays::Trip;
use crate::job::expiry::Expiry;
use crate::tenant::Tenant;
use crate::timing::promise::Promise;
use crate::trace::Context;

/// A header or another field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field<'a> {
    /// The field is missing.
    Missing,
    /// A text.
    Text(&'a str),
    /// A whole number.
    Int(i64),
    /// A time, in seconds since the epoch.
    Time(u64),
    /// Another type; the text names it, such as `a table`.
    Other(&'static str),
}

impl Field<'_> {
    /// Describes the field's type, for errors about a field that is neither a text nor a whole
    /// number.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Text(_) => "a text",
            Self::Int(_) => "a number",
            Self::Time(_) => "a timestamp",
            Self::Other(kind) => kind,
        }
    }
}

/// A message, independent of the broker that carried it.
pub trait Envelope {
    /// Returns the message's ID, if it has one.
    fn id(&self) -> Option<&str>;
    /// Returns the header `name`.
    fn header(&self, name: &str) -> Field<'_>;
    /// Returns the routing key that the message was first published with.
    fn routing_key(&self) -> &str;
    /// Returns AMQP's `expiration`: how long after publishing the job may be called, in
    /// milliseconds.
    fn expiration_ms(&self) -> Option<u64>;
    /// Returns the latest possible time of publishing, in milliseconds since the epoch, or `None`
    /// if the message has none.
    fn published_ms(&self) -> Option<u64>;
    /// Returns the body.
    fn body(&self) -> &[u8];
}

/// The field that contains a job's tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantField {
    /// `header:NAME`
    Header(String),
    /// `routing-key`
    RoutingKey,
    /// `json:/pointer` (RFC 6901)
    Json(String),
    /// `all`: jobs have no tenant, and all belong to the tenant `all`.
    All,
}

impl fmt::Display for TenantField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::RoutingKey => f.write_str("routing-key"),
            Self::Json(pointer) => write!(f, "json:{pointer}"),
            Self::All => f.write_str("all"),
        }
    }
}

/// The tenant of all jobs with [`TenantField::All`].
pub const ALL_TENANTS: &str = "all";

/// The field that contains a job's cost, its deadline, or a value for its call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueField {
    /// `header:NAME`
    Header(String),
    /// `json:/pointer` (RFC 6901)
    Json(String),
}

impl fmt::Display for ValueField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Json(pointer) => write!(f, "json:{pointer}"),
        }
    }
}

/// The fields of a message that contain a job's data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields {
    /// The tenant.
    pub tenant: TenantField,
    /// The cost; 1 if the field is missing.
    pub cost: ValueField,
    /// The deadline, or `None` if jobs have none.
    pub deadline: Option<ValueField>,
    /// Maximum delay of a job's start by its publisher, in milliseconds; 0 disables delayed starts.
    pub max_delayed_start_ms: u64,
    /// How long only one job of a tenant is called per dedupe key, in milliseconds, unless its
    /// publisher sets a shorter time; 0 disables dedupe keys.
    pub dedupe_for_ms: u64,
    /// The levels of a tenant's jobs.
    pub priorities: Priorities,
    /// The values that a call takes from its job.
    pub call: CarriedFields,
}

/// A job as a handler gets it. [`Job::new`] makes one for a handler's tests.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Job {
    /// The message's ID; generated if it has none.
    pub id: String,
    /// The tenant whose quota the job uses.
    pub tenant: Tenant,
    /// The units of a limit that the job uses.
    pub cost: u64,
    /// The number of this attempt, from 1. An attempt during which the worker crashed does not
    /// count.
    pub attempt: u32,
    /// The content type that the publisher set.
    pub content_type: Option<String>,
    /// The encoding of the body that the publisher set, such as `gzip`.
    pub content_encoding: Option<String>,
    /// The body.
    pub body: Bytes,
    /// The values of the placeholders in the HTTP handler's URL and headers.
    #[doc(hidden)]
    pub values: PlaceholderValues,
    /// The message of the job.
    #[doc(hidden)]
    pub published: JobMessage,
    /// The span of this call, if the worker makes spans.
    #[doc(hidden)]
    pub trace: Option<Context>,
}

impl Job {
    /// Returns the first attempt of a job of cost 1, without a content type.
    pub fn new(id: impl Into<String>, tenant: Tenant, body: impl Into<Bytes>) -> Self {
        Self {
            id: id.into(),
            tenant,
            cost: 1,
            attempt: 1,
            content_type: None,
            content_encoding: None,
            body: body.into(),
            values: PlaceholderValues::default(),
            published: JobMessage::default(),
            trace: None,
        }
    }

    /// Returns the span of this call (W3C Trace Context) for requests that the call causes, or
    /// `None` if the worker makes no spans.
    pub fn traceparent(&self) -> Option<String> {
        self.trace.map(|context| context.to_string())
    }
}

/// The data of a job in a usable message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// The tenant whose quota the job uses.
    pub tenant: Tenant,
    /// The plan that the publisher named, if a header for it is configured.
    pub plan: Option<String>,
    /// The cost, at most the maximum of the effective limits.
    pub cost: u64,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The job's ticket in the waitlist, from an earlier answer of the gate.
    pub ticket: Option<Ticket>,
    /// The time before which the job does not ask.
    pub not_before: Option<NotBefore>,
    /// The delayed start that the publisher set, until it is converted to a time.
    pub start: Option<DelayedStart>,
    /// The dedupe key, unless the job is known to be the first with it.
    pub dedupe: Option<Dedupe>,
    /// Whether the job is known to be the first with its dedupe key.
    pub is_first: bool,
    /// The time until which the job may be called.
    pub expiry: Expiry,
    /// When the job first failed or was throttled, by the store's clock (milliseconds since the
    /// epoch).
    pub first_failure_ms: Option<u64>,
    /// The trip through the delay queue that the job came from.
    pub trip: Option<Trip>,
    /// The number of known crashes, if the job was redelivered, so that its calls may crash workers
    /// (`rules::failures::crash`).
    pub suspect: Option<u32>,
    /// The first turn that the job was promised since it last started.
    pub promise: Option<Promise>,
    /// The newest wake by an operator that the job followed, or 0 (`Steering::wakes`).
    pub woken: u64,
    /// How many times the job was put into a delay queue.
    pub waits: u32,
    /// The values that its call takes from it.
    pub values: PlaceholderValues,
}

/// The time until which a job was delayed, by the store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotBefore {
    /// The time in milliseconds since the epoch.
    pub at_ms: u64,
    /// The delay until then when it was set, rounded up, in milliseconds.
    pub within_ms: u64,
}

impl NotBefore {
    /// Returns the rest of the delay at this time of the store's clock, in milliseconds. If
    /// more is left than the original delay, the clock was stepped back: then the job waits for the
    /// original delay once more, and not for the step.
    pub fn left_ms(self, store_now_ms: u64) -> u64 {
        self.at_ms.saturating_sub(store_now_ms).min(self.within_ms)
    }

    /// Returns the rest of the delay, if it is ahead, at a time of the store's clock between two
    /// bounds. They are far apart if an answer took long to arrive, so the end is moved to an
    /// earlier time only if the clock was certainly stepped back.
    pub fn rest(self, at_least_ms: u64, at_most_ms: u64) -> Option<Self> {
        let within_ms = self.left_ms(at_least_ms);
        (within_ms > 0).then_some(Self {
            at_ms: self.at_ms.min(at_most_ms.saturating_add(within_ms)),
            within_ms,
        })
    }
}

/// Why a message is not a usable job. The text goes to `x-sluicegate-reason`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadMessage(String);
