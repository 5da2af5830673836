//! A message as it travels: lossless, whatever headers its publisher set.

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::AMQPValue;

use crate::rules::job::Field;

/// An AMQP message's body and properties. `lapin`'s plain data types keep every header a publisher set.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// The routing key it was delivered with.
    pub routing_key: String,
    /// Properties and headers.
    pub properties: BasicProperties,
    /// The body; cheap to clone.
    pub body: Bytes,
}

impl Message {
    /// The `message_id`, when there is one that is not empty.
    pub fn id(&self) -> Option<&str> {
        let id = self.properties.message_id().as_ref()?.as_str();
        (!id.is_empty()).then_some(id)
    }

    /// The header `name` as the rules see it.
    pub fn header(&self, name: &str) -> Field<'_> {
        let value = self
            .properties
            .headers()
            .as_ref()
            .and_then(|headers| headers.inner().get(name));
        match value {
            None | Some(AMQPValue::Void) => Field::Missing,
            Some(AMQPValue::LongString(text)) => match std::str::from_utf8(text.as_bytes()) {
                Ok(text) => Field::Text(text),
                Err(_) => Field::Other("bytes that are not UTF-8"),
            },
            Some(AMQPValue::ShortString(text)) => Field::Text(text.as_str()),
            Some(AMQPValue::ShortShortInt(n)) => Field::Int(i64::from(*n)),
            Some(AMQPValue::ShortShortUInt(n)) => Field::Int(i64::from(*n)),
            Some(AMQPValue::ShortInt(n)) => Field::Int(i64::from(*n)),
            Some(AMQPValue::ShortUInt(n)) => Field::Int(i64::from(*n)),
            Some(AMQPValue::LongInt(n)) => Field::Int(i64::from(*n)),
            Some(AMQPValue::LongUInt(n)) => Field::Int(i64::from(*n)),
            Some(AMQPValue::LongLongInt(n)) => Field::Int(*n),
            Some(AMQPValue::Boolean(_)) => Field::Other("a boolean"),
            Some(AMQPValue::Float(_) | AMQPValue::Double(_) | AMQPValue::DecimalValue(_)) => {
                Field::Other("a fraction")
            }
            Some(AMQPValue::Timestamp(_)) => Field::Other("a timestamp"),
            Some(AMQPValue::FieldArray(_)) => Field::Other("a list"),
            Some(AMQPValue::FieldTable(_)) => Field::Other("a table"),
            Some(AMQPValue::ByteArray(_)) => Field::Other("a byte array"),
        }
    }
}
