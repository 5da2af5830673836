//! What a job is: what a message may say of one (`Fields`), what it says (`Claims`), and what a handler sees (`Job`).

mod body;
pub mod call;
mod carried;
pub mod dedupe;
mod labels;
mod line;
pub mod priority;
mod published;
mod read;
pub mod start;
mod traced;

use bytes::Bytes;

pub use self::body::InBody;
use self::call::{Carried, Values};
pub use self::carried::{lasting, postponed};
use self::dedupe::Dedupe;
pub use self::labels::labels;
use self::priority::Priorities;
pub use self::published::{Carrier, Properties, Published, Value};
pub use self::read::{first_routing_key, read, read_tenant, read_with};
use self::start::DelayedStart;
pub use self::traced::traced;
use crate::rules::decision::Ticket;
use crate::rules::delays::Trip;
use crate::rules::expiry::Expiry;
use crate::rules::promise::Promise;
use crate::rules::tenant::Tenant;
use crate::rules::trace::Context;

/// A header or another field of a message, as the rules see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field<'a> {
    /// There is none.
    Missing,
    /// A text.
    Text(&'a str),
    /// A whole number.
    Int(i64),
    /// A time, in seconds since the epoch.
    Time(u64),
    /// Something else; the text names its kind, such as `a table`.
    Other(&'static str),
}

impl Field<'_> {
    /// What it is in words, where neither a text nor a whole number is meant.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Text(_) => "a text",
            Self::Int(_) => "a number",
            Self::Time(_) => "a timestamp",
            Self::Other(kind) => kind,
        }
    }
}

/// A message as the rules see it, whoever carried it.
pub trait Envelope {
    /// The message's id, when it has one.
    fn id(&self) -> Option<&str>;
    /// The header `name`.
    fn header(&self, name: &str) -> Field<'_>;
    /// The routing key it was first published with.
    fn routing_key(&self) -> &str;
    /// For how long after it was published it may be called, in milliseconds: AMQP's `expiration`.
    fn expiration_ms(&self) -> Option<u64>;
    /// When it was published at the latest, in milliseconds since the epoch, where the message says so.
    fn published_ms(&self) -> Option<u64>;
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
    /// `all`: no job has one, and all are those of the tenant `all`.
    All,
}

/// Whose jobs all are where [`TenantField::All`] says so.
pub const ALL_TENANTS: &str = "all";

/// Where a job's cost, its deadline, or a value for its call stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueField {
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
    pub cost: ValueField,
    /// Until when it may be called; `None`: no job says so there.
    pub deadline: Option<ValueField>,
    /// Its publisher may delay its start by so much, in milliseconds; 0: not at all.
    pub max_delayed_start_ms: u64,
    /// For so long, in milliseconds, one job of a tenant with one dedupe key is called, where its publisher does not say for how long; 0: keys
    /// mean nothing.
    pub dedupe_for_ms: u64,
    /// The levels of a tenant's jobs.
    pub priorities: Priorities,
    /// What its call carries of it.
    pub call: Carried,
}

/// A job as a handler sees it. [`Job::new`] makes one for a handler's tests.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
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
    /// How the body is packed (`gzip`, say), as the publisher said.
    pub content_encoding: Option<String>,
    /// The body.
    pub body: Bytes,
    /// For the HTTP handler: what its url and headers name by placeholders.
    #[doc(hidden)]
    pub values: Values,
    /// The message that it came as.
    #[doc(hidden)]
    pub published: Published,
    /// The span of this call, where the worker makes spans.
    #[doc(hidden)]
    pub trace: Option<Context>,
}

impl Job {
    /// The first attempt of a job that costs 1, whose publisher said nothing of its body.
    pub fn new(id: impl Into<String>, tenant: Tenant, body: impl Into<Bytes>) -> Self {
        Self {
            id: id.into(),
            tenant,
            cost: 1,
            attempt: 1,
            content_type: None,
            content_encoding: None,
            body: body.into(),
            values: Values::default(),
            published: Published::default(),
            trace: None,
        }
    }

    /// The span of this call (W3C Trace Context), for what the call makes others do; none where the worker makes no spans.
    pub fn traceparent(&self) -> Option<String> {
        self.trace.map(|context| context.to_string())
    }
}

/// What a usable message says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// Whose quota it uses.
    pub tenant: Tenant,
    /// The plan that its publisher names, where a header for it is configured.
    pub plan: Option<String>,
    /// Its cost, at most what the effective limits allow.
    pub cost: u32,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// Its ticket in the waitlist, from an earlier answer of the gate.
    pub ticket: Option<Ticket>,
    /// It may not be asked for before this.
    pub not_before: Option<NotBefore>,
    /// What its publisher says of its start, as long as that is not counted.
    pub start: Option<DelayedStart>,
    /// Its dedupe key, as long as it is not known to be the first with it.
    pub dedupe: Option<Dedupe>,
    /// It was found to be that.
    pub is_first: bool,
    /// Until when it may be called.
    pub expiry: Expiry,
    /// When it was first called without an end, by the store's clock (milliseconds since the epoch).
    pub first_call_ms: Option<u64>,
    /// Its way through the delay queue that it came from.
    pub trip: Option<Trip>,
    /// It was delivered again, so its calls may end their workers (`rules::crash`), and so many are known to have done so.
    pub suspect: Option<u32>,
    /// The first turn that it was told since it last started.
    pub promise: Option<Promise>,
    /// The newest call of an operator to ask anew that it has followed; 0: none (`Steering::wakes`).
    pub woken: u64,
    /// How often it was put into a delay queue.
    pub waits: u32,
    /// What its call carries of it.
    pub values: Values,
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
