//! A message as the rules and the handlers see it.

use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::{Message, TIMESTAMP_MS};
use rules::job::{Carrier, Envelope, Field, Properties, Value};

impl Message {
    /// Returns the header `name` as the rules see it.
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
            Some(AMQPValue::Timestamp(seconds)) => Field::Time(*seconds),
            Some(AMQPValue::FieldArray(_)) => Field::Other("a list"),
            Some(AMQPValue::FieldTable(_)) => Field::Other("a table"),
            Some(AMQPValue::ByteArray(_)) => Field::Other("a byte array"),
        }
    }
}

impl Envelope for Message {
    fn id(&self) -> Option<&str> {
        self.id()
    }
    fn header(&self, name: &str) -> Field<'_> {
        self.header(name)
    }
    fn routing_key(&self) -> &str {
        &self.routing_key
    }
    fn expiration_ms(&self) -> Option<u64> {
        // RabbitMQ refuses an expiration that is not a number.
        self.properties.expiration().as_ref()?.as_str().parse().ok()
    }
    fn published_ms(&self) -> Option<u64> {
        // RabbitMQ itself sets this next to the timestamp in seconds if it is configured to
        // (`message_interceptors`).
        if let Field::Int(ms) = self.header(TIMESTAMP_MS) {
            return u64::try_from(ms).ok();
        }
        let seconds = self.properties.timestamp().as_ref()?;
        Some(seconds.saturating_mul(1000).saturating_add(999))
    }
    fn body(&self) -> &[u8] {
        &self.body
    }
}

impl Carrier for Message {
    fn routing_key(&self) -> &str {
        &self.routing_key
    }
    fn header(&self, name: &str) -> Option<Value<'_>> {
        let headers = self.properties.headers().as_ref()?;
        headers.inner().get(name).map(value)
    }
    fn headers(&self) -> Vec<(&str, Value<'_>)> {
        (self.properties.headers().as_ref()).map_or_else(Vec::new, table)
    }
    fn properties(&self) -> Properties<'_> {
        let of = &self.properties;
        fn text(field: &Option<ShortString>) -> Option<&str> {
            field.as_ref().map(ShortString::as_str)
        }
        let mut properties = Properties::default();
        properties.correlation_id = text(of.correlation_id());
        properties.reply_to = text(of.reply_to());
        properties.kind = text(of.kind());
        properties.app_id = text(of.app_id());
        properties.timestamp = *of.timestamp();
        properties.priority = *of.priority();
        properties.expiration = self.expiration();
        properties
    }
}

/// Converts a header for handlers. The screen has bounded the depth of its tables.
fn value(value: &AMQPValue) -> Value<'_> {
    match value {
        AMQPValue::Void => Value::Nothing,
        AMQPValue::LongString(text) => match std::str::from_utf8(text.as_bytes()) {
            Ok(text) => Value::Text(text),
            Err(_) => Value::Bytes(text.as_bytes()),
        },
        AMQPValue::ShortString(text) => Value::Text(text.as_str()),
        AMQPValue::ShortShortInt(n) => Value::Int(i64::from(*n)),
        AMQPValue::ShortShortUInt(n) => Value::Int(i64::from(*n)),
        AMQPValue::ShortInt(n) => Value::Int(i64::from(*n)),
        AMQPValue::ShortUInt(n) => Value::Int(i64::from(*n)),
        AMQPValue::LongInt(n) => Value::Int(i64::from(*n)),
        AMQPValue::LongUInt(n) => Value::Int(i64::from(*n)),
        AMQPValue::LongLongInt(n) => Value::Int(*n),
        AMQPValue::Boolean(value) => Value::Bool(*value),
        AMQPValue::Float(n) => Value::Float(f64::from(*n)),
        AMQPValue::Double(n) => Value::Float(*n),
        AMQPValue::DecimalValue(n) => {
            Value::Float(f64::from(n.value) / 10_f64.powi(i32::from(n.scale)))
        }
        AMQPValue::Timestamp(seconds) => Value::Time(*seconds),
        AMQPValue::ByteArray(bytes) => Value::Bytes(bytes.as_slice()),
        AMQPValue::FieldArray(list) => {
            Value::List(list.as_slice().iter().map(self::value).collect())
        }
        AMQPValue::FieldTable(of) => Value::Table(table(of)),
    }
}

fn table(table: &FieldTable) -> Vec<(&str, Value<'_>)> {
    let all = table.inner().iter();
    all.map(|(name, it)| (name.as_str(), value(it))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::message;
    use super::*;

    #[test]
    fn a_handler_sees_headers_of_each_kind_and_the_properties() {
        let list = vec![AMQPValue::ShortInt(1), AMQPValue::Boolean(true)];
        let mut carried = message(&[
            ("a", AMQPValue::LongString("x".into())),
            ("b", AMQPValue::LongString(vec![0xff].into())),
            ("c", AMQPValue::FieldArray(list.into())),
            ("d", AMQPValue::Void),
        ]);
        carried.properties = (carried.properties)
            .with_correlation_id("c".into())
            .with_priority(3)
            .with_expiration("100".into());
        let list = Value::List(vec![Value::Int(1), Value::Bool(true)]);
        let all = [
            ("a", Value::Text("x")),
            ("b", Value::Bytes(&[0xff])),
            ("c", list),
            ("d", Value::Nothing),
        ];
        assert_eq!(Carrier::headers(&carried), all);
        assert_eq!(Carrier::header(&carried, "a"), Some(Value::Text("x")));
        let properties = Carrier::properties(&carried);
        assert_eq!(properties.correlation_id, Some("c"));
        assert_eq!(properties.priority, Some(3));
        assert_eq!(properties.expiration, Some("100"));
        assert_eq!(properties.reply_to, None);
    }
}
