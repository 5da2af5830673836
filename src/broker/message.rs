//! A message as it travels: lossless, with any headers that its publisher set.

mod fields;
mod outgoing;

use std::collections::BTreeMap;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};

pub(crate) use self::outgoing::as_sent;
use rules::headers::{self, BROKER_HEADERS, HeaderValue, Headers, OURS_AND_THE_BROKERS};
use rules::job::Field;

/// RabbitMQ's header for when it received a message, in milliseconds since the Unix epoch. It is
/// set if RabbitMQ is configured to.
const TIMESTAMP_MS: &str = "timestamp_in_ms";

/// AMQP's delivery mode of a message that survives a restart of the broker.
const PERSISTENT: u8 = 2;

/// An AMQP message's body and properties. `lapin`'s plain data types keep every header a publisher
/// set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message {
    /// The routing key it was delivered with; in a worker's memory, the one it was first published
    /// with.
    pub routing_key: String,
    /// Properties and headers.
    pub properties: BasicProperties,
    /// The body; cheap to clone.
    pub body: Bytes,
}

impl Message {
    /// Returns the `message_id`, or `None` if it is missing or empty.
    pub fn id(&self) -> Option<&str> {
        let id = self.properties.message_id().as_ref()?.as_str();
        (!id.is_empty()).then_some(id)
    }

    /// Returns the message with the priority that it had before it entered a delay queue.
    #[must_use]
    pub fn with_priority_back(mut self) -> Self {
        if let Field::Int(before) = self.header(headers::PRIORITY)
            && let Ok(priority) = u8::try_from(before)
        {
            self.properties = self.properties.with_priority(priority);
        }
        self
    }

    /// Converts `delivery`. The body is moved, not copied.
    pub(crate) fn from_lapin(delivery: lapin::message::Delivery) -> Self {
        Self {
            routing_key: delivery.routing_key.into(),
            properties: delivery.properties,
            body: Bytes::from(delivery.data),
        }
    }

    /// Returns the `expiration` that the publisher set, from the property or from our copy of it in
    /// a header.
    pub fn expiration(&self) -> Option<&str> {
        let set = (self.properties.expiration().as_ref()).map(|text| text.as_str());
        set.or(match self.header(headers::EXPIRATION) {
            Field::Text(text) => Some(text),
            _ => None,
        })
    }

    /// Returns the content type that the publisher set.
    pub fn content_type(&self) -> Option<&str> {
        self.properties.content_type().as_ref().map(|t| t.as_str())
    }

    /// Returns the content encoding that the publisher set.
    pub fn content_encoding(&self) -> Option<&str> {
        self.properties
            .content_encoding()
            .as_ref()
            .map(|t| t.as_str())
    }

    /// Returns the queue to which the publisher wants a reply.
    pub fn reply_to(&self) -> Option<&str> {
        let queue = self.properties.reply_to().as_ref()?.as_str();
        (!queue.is_empty()).then_some(queue)
    }

    /// Returns when it was published, in milliseconds since the Unix epoch, or `None` if the
    /// message does not say.
    pub fn published_at_ms(&self) -> Option<u64> {
        match self.header(TIMESTAMP_MS) {
            Field::Int(ms) => u64::try_from(ms).ok(),
            _ => Some(self.properties.timestamp().as_ref()?.saturating_mul(1000)),
        }
    }

    /// Creates a persistent message that replies to this one. It has this message's ID and
    /// correlation ID; the ID serves as a missing correlation ID. A content type or encoding that
    /// is too long for AMQP is left out.
    #[must_use]
    pub fn answered_by(&self, body: Bytes, content: [Option<&str>; 2]) -> Self {
        let id = self.properties.message_id().clone();
        let mut properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
        if let Some(correlation) = (self.properties.correlation_id().clone()).or(id.clone()) {
            properties = properties.with_correlation_id(correlation);
        }
        if let Some(id) = id {
            properties = properties.with_message_id(id);
        }
        let [kind, encoding] = content.map(|text| text.and_then(|t| ShortString::try_new(t).ok()));
        if let Some(kind) = kind {
            properties = properties.with_content_type(kind);
        }
        if let Some(encoding) = encoding {
            properties = properties.with_content_encoding(encoding);
        }
        Self {
            routing_key: String::new(),
            properties,
            body,
        }
    }

    /// Prepares the message to be published again: persistent, without the headers that the broker
    /// set and interprets, without `user_id` (the broker refuses a foreign one) and without
    /// `expiration` (in a delay queue it would end the wait early). Everything else stays as the
    /// publisher set it.
    #[must_use]
    pub fn for_republish(mut self) -> Self {
        let priority = *self.properties.priority();
        let headers = self.edited(|name| BROKER_HEADERS.contains(&name), []);
        self.properties = self.moved(priority, headers);
        self
    }

    /// Prepares the message for another one of our queues: like [`Message::for_republish`], with
    /// `headers` in place of all headers that we set before. A message that has its priority in a
    /// header has no priority property, because in a delay queue no message may overtake others.
    #[must_use]
    pub fn with_our_headers(mut self, headers: Headers) -> Self {
        let is_kept = headers.iter().any(|(name, _)| *name == headers::PRIORITY);
        let priority = self.properties.priority().filter(|_| !is_kept);
        let headers = self.edited(|name| OURS_AND_THE_BROKERS.contains(&name), headers);
        self.properties = self.moved(priority, headers);
        self
    }

    /// Returns the properties for [`Message::for_republish`] with this priority and these headers.
    /// Copies each property once, because every job that waits is moved.
    fn moved(&self, priority: Option<u8>, headers: Option<FieldTable>) -> BasicProperties {
        let old = &self.properties;
        let mut new = BasicProperties::default().with_delivery_mode(PERSISTENT);
        macro_rules! keep {
            ($($get:ident => $with:ident),*) => {$(
                if let Some(value) = old.$get() {
                    new = new.$with(value.clone());
                }
            )*};
        }
        keep!(
            content_type => with_content_type,
            content_encoding => with_content_encoding,
            correlation_id => with_correlation_id,
            reply_to => with_reply_to,
            message_id => with_message_id,
            timestamp => with_timestamp,
            kind => with_type,
            app_id => with_app_id,
            cluster_id => with_cluster_id
        );
        if let Some(priority) = priority {
            new = new.with_priority(priority);
        }
        if let Some(headers) = headers {
            new = new.with_headers(headers);
        }
        new
    }

    /// Returns the headers for which `is_removed` is false, and then `set`, or `None` if there are
    /// no headers before and after.
    fn edited<'a>(
        &self,
        is_removed: impl Fn(&str) -> bool,
        set: impl IntoIterator<Item = (&'a str, HeaderValue)>,
    ) -> Option<FieldTable> {
        let old = self.properties.headers().as_ref();
        let remaining = (old.into_iter().flat_map(FieldTable::inner))
            .filter(|(name, _)| !is_removed(name.as_str()))
            .map(|(name, value)| (name.clone(), value.clone()));
        // AMQP limits names to 255 bytes; ours are shorter.
        let ours = |(name, value)| Some((ShortString::try_new(name).ok()?, amqp_value(value)));
        // The last of two headers with the same name wins.
        let headers: BTreeMap<_, _> = remaining.chain(set.into_iter().filter_map(ours)).collect();
        (old.is_some() || !headers.is_empty()).then(|| headers.into())
    }

    /// Prepares the message for workers of another system: as its publisher made it, but persistent
    /// and without `user_id`, which the broker refuses from other users. Headers that are reserved
    /// for us and the broker are removed, even if the publisher set them; `set` is added.
    #[must_use]
    pub fn for_workers(&self, set: &[(&str, HeaderValue)]) -> Self {
        let expiration = self.expiration().filter(|text| text.parse::<u32>().is_ok());
        let expiration = expiration.and_then(|text| ShortString::try_new(text).ok());
        let headers = self.edited(headers::is_reserved, set.iter().cloned());
        let mut properties = self.moved(*self.properties.priority(), headers);
        if let Some(expiration) = expiration {
            properties = properties.with_expiration(expiration);
        }
        Self {
            properties,
            routing_key: self.routing_key.clone(),
            body: self.body.clone(),
        }
    }

    /// Takes the priority out of the message. Otherwise does the same as
    /// [`Message::for_republish`], but keeps all headers.
    pub fn take_priority(&mut self) -> Option<u8> {
        let priority = *self.properties.priority();
        self.properties = self.moved(None, self.properties.headers().clone());
        priority
    }

    /// Returns the message without the headers `remove`, and then with the headers `set`.
    #[must_use]
    pub fn with_headers(mut self, set: &[(&str, HeaderValue)], remove: &[&str]) -> Self {
        let set = set.iter().cloned();
        if let Some(headers) = self.edited(|name| remove.contains(&name), set) {
            self.properties = self.properties.with_headers(headers);
        }
        self
    }

    /// Returns the message with `id` as its message ID, unless it has one or `id` is longer than
    /// AMQP's 255 bytes.
    #[must_use]
    pub fn with_id_if_missing(mut self, id: &str) -> Self {
        if self.id().is_none()
            && let Ok(id) = ShortString::try_new(id)
        {
            self.properties = self.properties.with_message_id(id);
        }
        self
    }
}

/// Returns `value` as AMQP encodes it.
pub fn amqp_value(value: HeaderValue) -> AMQPValue {
    match value {
        HeaderValue::Text(text) => AMQPValue::LongString(text.into()),
        HeaderValue::Int(n) => AMQPValue::LongLongInt(n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn message(headers: &[(&str, AMQPValue)]) -> Message {
        let table: BTreeMap<ShortString, AMQPValue> = headers
            .iter()
            .map(|(name, value)| ((*name).into(), value.clone()))
            .collect();
        Message {
            routing_key: "jobs".into(),
            properties: BasicProperties::default().with_headers(table.into()),
            body: Bytes::from_static(b"body"),
        }
    }

    #[test]
    fn republishing_strips_properties_that_the_broker_interprets() {
        let mut before = message(&[
            ("x-tenant", AMQPValue::LongString("acme".into())),
            ("x-flag", AMQPValue::Boolean(true)),
            ("x-nothing", AMQPValue::Void),
        ]);
        let original = before.properties.headers().clone().expect("has headers");
        let mut dirty = original.inner().clone();
        for name in BROKER_HEADERS {
            dirty.insert(name.into(), AMQPValue::LongLongInt(1));
        }
        let clean = BasicProperties::default()
            .with_content_type("text/plain".into())
            .with_content_encoding("gzip".into())
            .with_priority(3)
            .with_correlation_id("c".into())
            .with_reply_to("r".into())
            .with_message_id("m".into())
            .with_timestamp(7)
            .with_type("t".into())
            .with_app_id("a".into())
            .with_cluster_id("k".into());
        before.properties = clean
            .clone()
            .with_headers(dirty.into())
            .with_expiration("100".into())
            .with_user_id("guest".into())
            .with_delivery_mode(1);
        let after = before.for_republish();
        assert_eq!(
            after.properties,
            clean.with_headers(original).with_delivery_mode(2)
        );
    }

    #[test]
    fn headers_are_set_and_removed() {
        let edited = message(&[
            ("a", AMQPValue::LongLongInt(1)),
            ("b", AMQPValue::LongLongInt(2)),
        ])
        .with_headers(
            &[
                ("b", HeaderValue::Int(3)),
                ("c", HeaderValue::Text("x".into())),
            ],
            &["a", "nothing"],
        );
        assert_eq!(edited.header("a"), Field::Missing);
        assert_eq!(edited.header("b"), Field::Int(3));
        assert_eq!(edited.header("c"), Field::Text("x"));
    }

    #[test]
    fn a_moved_job_has_its_new_headers_in_place_of_the_old_ones() {
        let mut job = message(&[
            ("x-tenant", AMQPValue::LongString("acme".into())),
            (headers::WAITS, AMQPValue::LongLongInt(1)),
            (headers::UNREADABLE, AMQPValue::LongString("kept".into())),
            ("x-death", AMQPValue::LongLongInt(1)),
        ]);
        job.properties = (job.properties.with_priority(3)).with_expiration("100".into());
        let waits = || (headers::WAITS, HeaderValue::Int(2));
        let expected = message(&[
            ("x-tenant", AMQPValue::LongString("acme".into())),
            (headers::UNREADABLE, AMQPValue::LongString("kept".into())),
            (headers::WAITS, AMQPValue::LongLongInt(2)),
        ]);
        let moved = job.clone().with_our_headers(vec![waits()]);
        let properties = expected.properties.with_delivery_mode(PERSISTENT);
        assert_eq!(moved.properties, properties.with_priority(3));
        let priority = (headers::PRIORITY, HeaderValue::Int(3));
        let moved = job.with_our_headers(vec![waits(), priority]);
        assert_eq!(*moved.properties.priority(), None);
        assert_eq!(moved.header(headers::PRIORITY), Field::Int(3));
        let bare = message(&[]).with_our_headers(Vec::new());
        assert_eq!(bare.header("x-tenant"), Field::Missing);
    }

    #[test]
    fn third_party_workers_get_the_publishers_message() {
        let theirs = message(&[("x-tenant", AMQPValue::Boolean(true))]);
        let clean = (theirs.properties.clone())
            .with_correlation_id("c".into())
            .with_priority(3)
            .with_reply_to("r".into());
        let mut dirty = theirs.properties.headers().clone().expect("some");
        for name in headers::OURS.into_iter().chain(BROKER_HEADERS) {
            dirty.insert(name.into(), AMQPValue::LongLongInt(1));
        }
        dirty.insert(
            headers::EXPIRATION.into(),
            AMQPValue::LongString("100".into()),
        );
        dirty.insert(headers::DONE.into(), AMQPValue::LongString("own".into()));
        let mut came = theirs.clone();
        came.properties = (clean.clone())
            .with_headers(dirty)
            .with_user_id("guest".into());
        let expected = clean.with_expiration("100".into()).with_delivery_mode(2);
        assert_eq!(came.for_workers(&[]).properties, expected);
        let set = came.for_workers(&[(headers::DONE, HeaderValue::Text("q".into()))]);
        assert_eq!(set.header(headers::DONE), Field::Text("q"));
    }

    #[test]
    fn an_id_is_assigned_once() {
        let first = message(&[]).with_id_if_missing("1");
        assert_eq!(first.id(), Some("1"));
        assert_eq!(first.with_id_if_missing("2").id(), Some("1"));
    }
}
