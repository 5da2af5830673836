//! A publisher's headers as a user writes them.

use std::collections::BTreeMap;

use rules::headers::{HeaderValue, is_name, is_reserved};
use serde_json::Value;

/// Maximum size of a job's headers in bytes. AMQP sends all headers in one frame (128 KiB with
/// RabbitMQ), and workers add more.
const MAX_BYTES: usize = 64 << 10;

/// Parses an option `NAME=VALUE`.
pub fn pair(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("it must be NAME=VALUE, such as x-endpoint=/v1"),
    }
}

/// Collects the headers in `pairs`.
///
/// # Errors
/// A name occurs twice.
pub fn of_pairs(pairs: Vec<(String, String)>) -> Result<BTreeMap<String, Value>, String> {
    let mut headers = BTreeMap::new();
    for (name, value) in pairs {
        if headers.contains_key(&name) {
            return Err(format!("--header {name}=… is given twice"));
        }
        headers.insert(name, Value::String(value));
    }
    Ok(headers)
}

/// Checks `headers` for a message. `taken` are the names already used for other properties of the
/// job, each with the property.
///
/// # Errors
/// The problem, as a text for the user.
pub fn checked<'a>(
    headers: &'a BTreeMap<String, Value>,
    taken: &[(&str, &str)],
) -> Result<Vec<(&'a str, HeaderValue)>, String> {
    let mut checked = Vec::with_capacity(headers.len());
    let mut bytes = 0;
    for (name, value) in headers {
        if !is_name(name) {
            return Err(format!(
                "{name:?} is not a valid header name: it must have 1 to 255 bytes, no control \
                characters, and no spaces at its ends"
            ));
        }
        if is_reserved(name) {
            return Err(format!(
                "the header {name} is reserved: Sluicegate or RabbitMQ sets it; use another name"
            ));
        }
        if let Some((_, what)) = taken.iter().find(|(known, _)| known == name) {
            return Err(format!(
                "the header {name} is the job's {what}; set it there"
            ));
        }
        let value = match (value, value.as_i64()) {
            (Value::String(text), _) => HeaderValue::Text(text.clone()),
            (_, Some(number)) => HeaderValue::Int(number),
            _ => {
                return Err(format!(
                    "the header {name} must be a string or a 64-bit integer"
                ));
            }
        };
        // The size in AMQP: a length, the name, a type, and the value.
        bytes += 2 + name.len();
        bytes += match &value {
            HeaderValue::Text(text) => 4 + text.len(),
            HeaderValue::Int(_) => 8,
        };
        checked.push((name.as_str(), value));
    }
    if bytes > MAX_BYTES {
        return Err(format!(
            "the headers have {bytes} bytes; the maximum is {MAX_BYTES}"
        ));
    }
    Ok(checked)
}
