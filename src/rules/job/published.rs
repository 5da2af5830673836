//! What a handler may see of the message that its job came as: what its publisher said, and nothing that we or the broker put there.
//!
//! The message is shared and not copied: a handler that asks nothing of it pays nothing for it.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::RefUnwindSafe;
use std::sync::Arc;

use super::Job;
use crate::rules::headers::is_reserved;

/// A header's value, as its publisher set it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value<'a> {
    /// A text.
    Text(&'a str),
    /// Bytes that are no UTF-8 text.
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
    /// A table, by its names.
    Table(Vec<(&'a str, Value<'a>)>),
}

/// The properties of a job's message that say nothing of its body; `None`: its publisher did not set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Properties<'a> {
    /// `correlation_id`
    pub correlation_id: Option<&'a str>,
    /// `reply_to`
    pub reply_to: Option<&'a str>,
    /// `type`
    pub kind: Option<&'a str>,
    /// `app_id`
    pub app_id: Option<&'a str>,
    /// `timestamp`, in seconds since 1970.
    pub timestamp: Option<u64>,
    /// `priority`
    pub priority: Option<u8>,
    /// `expiration`, as it is written: milliseconds.
    pub expiration: Option<&'a str>,
}

/// A message as its broker has it.
pub trait Carrier: Any + Send + Sync + RefUnwindSafe {
    /// The routing key that it was first published with.
    fn routing_key(&self) -> &str;
    /// The header `name`.
    fn header(&self, name: &str) -> Option<Value<'_>>;
    /// All headers.
    fn headers(&self) -> Vec<(&str, Value<'_>)>;
    /// The properties.
    fn properties(&self) -> Properties<'_>;
}

/// The message that a job came as. One that was made for a test may have none.
#[derive(Clone, Default)]
pub struct Published(Option<Arc<dyn Carrier>>);

impl Published {
    /// It came as `message`.
    pub fn new(message: Arc<dyn Carrier>) -> Self {
        Self(Some(message))
    }

    /// The message itself, if it is a `T`.
    pub fn message<T: Carrier>(&self) -> Option<&T> {
        let message: &dyn Any = self.0.as_deref()?;
        message.downcast_ref()
    }
}

/// Who prints a job does not expect kilobytes of headers, some of which may be secrets.
impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Published")
    }
}

impl PartialEq for Published {
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

/// Each equals itself: it is the same message.
impl Eq for Published {}

/// What a handler's test says of a job's message.
#[derive(Debug, Clone, Default)]
struct Made {
    routing_key: String,
    headers: BTreeMap<String, String>,
}

impl Carrier for Made {
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
    /// The header `name` of its message, as its publisher set it; `None`: there is none, or it is Sluicegate's or the broker's.
    pub fn header(&self, name: &str) -> Option<Value<'_>> {
        let message = self.published.0.as_ref()?;
        message.header(name).filter(|_| !is_reserved(name))
    }

    /// All headers that its publisher set, in the order of their names.
    pub fn headers(&self) -> Vec<(&str, Value<'_>)> {
        let message = self.published.0.as_ref();
        let mut all = message.map_or_else(Vec::new, |message| message.headers());
        all.retain(|(name, _)| !is_reserved(name));
        all
    }

    /// The routing key that it was first published with, however many delay queues it has been in since.
    pub fn routing_key(&self) -> &str {
        (self.published.0.as_ref()).map_or("", |message| message.routing_key())
    }

    /// The properties of its message; [`Job::id`], [`Job::content_type`] and [`Job::content_encoding`] are properties, too.
    pub fn properties(&self) -> Properties<'_> {
        let message = self.published.0.as_ref();
        message.map_or_else(Properties::default, |message| message.properties())
    }

    /// A job for a handler's tests that was published with this routing key and these headers.
    #[must_use]
    pub fn published_with<N: Into<String>, V: Into<String>>(
        mut self,
        routing_key: impl Into<String>,
        headers: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let headers = headers.into_iter();
        let made = Made {
            routing_key: routing_key.into(),
            headers: headers.map(|(n, v)| (n.into(), v.into())).collect(),
        };
        self.published = Published::new(Arc::new(made));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::headers::{BROKER_HEADERS, OURS};
    use crate::rules::tenant::Tenant;

    fn job() -> Job {
        Job::new("7", Tenant::parse("acme").expect("a name"), "")
    }

    #[test]
    fn a_handler_sees_what_the_publisher_said_and_nothing_of_ours_or_the_brokers() {
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
