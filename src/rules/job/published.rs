//! The message of a job as handlers see it: what its publisher set, and nothing that Sluicegate or
//! the broker added.
//!
//! The message is shared, not copied: a handler that does not use it pays nothing for it.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::RefUnwindSafe;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Serialize, Serializer};

use super::Job;
use crate::headers::is_reserved;

/// A header's value, as its publisher set it. As JSON, bytes are `{"base64": "…"}`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Value<'a> {
    /// A text.
    Text(&'a str),
    /// Bytes that are not UTF-8 text.
    #[serde(serialize_with = "bytes")]
    Bytes(&'a [u8]),
    /// A whole number.
    Int(i64),
    /// A number with a fraction.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// A time, in seconds since 1970.
    Time(u64),
    /// AMQP's `void`.
    Nothing,
    /// A list.
    List(Vec<Value<'a>>),
    /// A table, as pairs of names and values.
    #[serde(serialize_with = "table")]
    Table(Vec<(&'a str, Value<'a>)>),
}

fn bytes<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map([("base64", BASE64_STANDARD.encode(bytes))])
}

fn table<S: Serializer>(table: &[(&str, Value<'_>)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(table.iter().map(|(name, value)| (name, value)))
}

/// The properties of a job's message that do not describe its body. A property that the publisher
/// did not set is `None`, and missing in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Properties<'a> {
    /// `correlation_id`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<&'a str>,
    /// `reply_to`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<&'a str>,
    /// `type`
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'a str>,
    /// `app_id`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_id: Option<&'a str>,
    /// `timestamp`, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<u64>,
    /// `priority`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// `expiration` as the publisher wrote it: milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration: Option<&'a str>,
}

/// A message in the form of its broker.
pub trait Carrier: Any + Send + Sync + RefUnwindSafe {
    /// Returns the routing key that the message was first published with.
    fn routing_key(&self) -> &str;
    /// Returns the header `name`.
    fn header(&self, name: &str) -> Option<Value<'_>>;
    /// Returns all headers.
    fn headers(&self) -> Vec<(&str, Value<'_>)>;
    /// Returns the properties.
    fn properties(&self) -> Properties<'_>;
}

/// The message of a job. A job made for a test may have none.
#[derive(Clone, Default)]
pub struct JobMessage(Option<Arc<dyn Carrier>>);

impl JobMessage {
    /// Wraps `message`.
    pub fn new(message: Arc<dyn Carrier>) -> Self {
        Self(Some(message))
    }

    /// Returns the message itself, if it is a `T`.
    pub fn message<T: Carrier>(&self) -> Option<&T> {
        let message: &dyn Any = self.0.as_deref()?;
        message.downcast_ref()
    }
}

/// Omits the headers: they may be kilobytes long, and some may be secrets.
impl fmt::Debug for JobMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobMessage")
    }
}

impl PartialEq for JobMessage {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(other)) => {
                let all = |it: &Arc<dyn Carrier>| it.headers() == other.headers();
                Arc::ptr_eq(one, other)
                    || (one.routing_key() == other.routing_key()
                        && one.properties() == other.properties()
                        && all(one))
            }
            _ => false,
        }
    }
}

/// Reflexive, although floats are not: a message equals itself because it is the same one.
impl Eq for JobMessage {}

/// A message that a handler's test makes.
#[derive(Debug, Clone, Default)]
struct TestMessage {
    routing_key: String,
    headers: BTreeMap<String, String>,
}

impl Carrier for TestMessage {
    fn routing_key(&self) -> &str {
        &self.routing_key
    }
    fn header(&self, name: &str) -> Option<Value<'_>> {
        self.headers.get(name).map(|text| Value::Text(text))
    }
    fn headers(&self) -> Vec<(&str, Value<'_>)> {
        let all = self.headers.iter();
        all.map(|(name, text)| (name.as_str(), Value::Text(text)))
            .collect()
    }
    fn properties(&self) -> Properties<'_> {
        Properties::default()
    }
}

impl Job {
    /// Returns the header `name` that the publisher set, or `None` if there is none or it belongs
    /// to Sluicegate or the broker.
    pub fn header(&self, name: &str) -> Option<Value<'_>> {
        let message = self.published.0.as_ref()?;
        message.header(name).filter(|_| !is_reserved(name))
    }

    /// Returns all headers that the publisher set, sorted by name.
    pub fn headers(&self) -> Vec<(&str, Value<'_>)> {
        let message = self.published.0.as_ref();
        let mut all = message.map_or_else(Vec::new, |message| message.headers());
        all.retain(|(name, _)| !is_reserved(name));
        all
    }

    /// Returns the routing key that the job was first published with, regardless of the delay
    /// queues it has been in since.
    pub fn routing_key(&self) -> &str {
        (self.published.0.as_ref()).map_or("", |message| message.routing_key())
    }

    /// Returns the properties of its message. [`Job::id`], [`Job::content_type`] and
    /// [`Job::content_encoding`] are properties as well.
    pub fn properties(&self) -> Properties<'_> {
        let message = self.published.0.as_ref();
        message.map_or_else(Properties::default, |message| message.properties())
    }

    /// Sets the routing key and the headers of a job for a handler's tests.
    #[must_use]
    pub fn published_with<N: Into<String>, V: Into<String>>(
        mut self,
        routing_key: impl Into<String>,
        headers: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let headers = headers.into_iter();
        let made = TestMessage {
            routing_key: routing_key.into(),
            headers: headers.map(|(n, v)| (n.into(), v.into())).collect(),
        };
        self.published = JobMessage::new(Arc::new(made));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::{BROKER_HEADERS, OURS};
    use crate::tenant::Tenant;

    fn job() -> Job {
        Job::new("7", Tenant::parse("acme").expect("a name"), "")
    }

    #[test]
    fn a_handler_sees_only_the_publishers_headers() {
        let theirs = [("x-tenant", "acme"), ("traceparent", "00-1")];
        let reserved = OURS.into_iter().chain(BROKER_HEADERS);
        let all = theirs
            .into_iter()
            .chain(reserved.clone().map(|name| (name, "1")));
        let job = job().published_with("orders.new", all);
        assert_eq!(job.routing_key(), "orders.new");
        assert_eq!(job.header("traceparent"), Some(Value::Text("00-1")));
        for name in reserved {
            assert_eq!(job.header(name), None, "{name}");
        }
        let text = |(name, value)| (name, Value::Text(value));
        assert_eq!(job.headers(), [theirs[1], theirs[0]].map(text));
    }

    #[test]
    fn a_job_without_a_message_has_none_of_its_parts() {
        let job = job();
        assert_eq!((job.routing_key(), job.headers()), ("", Vec::new()));
        assert_eq!(job.properties(), Properties::default());
        assert_eq!(job, job.clone());
        assert_ne!(
            job,
            job.clone().published_with("k", [] as [(&str, &str); 0])
        );
    }
}
