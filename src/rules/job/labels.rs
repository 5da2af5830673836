//! Reads from messages the values by which limits distinguish a tenant's jobs.

use std::borrow::Cow;

use super::{BadMessage, Envelope, Field};
use crate::limit::Limit;
use crate::scope::{Labels, MAX_VALUE_BYTES, Scope};

/// Returns the labels by which `limits` distinguish `message` from its tenant's other jobs. An
/// invalid value counts as the empty one.
pub fn labels(message: &impl Envelope, limits: &[Limit]) -> Labels {
    Labels::of(limits, |scope| {
        label(message, scope).unwrap_or_default().into_owned()
    })
}

/// Returns the value of `message` for `scope`; empty if it has none.
pub(super) fn label<'a>(
    message: &'a impl Envelope,
    scope: &Scope,
) -> Result<Cow<'a, str>, BadMessage> {
    let found = match scope {
        Scope::Tenant | Scope::Global => return Ok(Cow::default()),
        Scope::Header(name) => message.header(name),
        Scope::RoutingKey => Field::Text(message.routing_key()),
    };
    let wrong = match found {
        Field::Missing => return Ok(Cow::default()),
        Field::Int(n) => return Ok(Cow::Owned(n.to_string())),
        Field::Time(_) | Field::Other(_) => {
            let kind = found.kind();
            format!("is {kind}; it must be a string or a 64-bit integer")
        }
        Field::Text(text) if text.len() > MAX_VALUE_BYTES => {
            format!("has {} bytes; the maximum is {MAX_VALUE_BYTES}", text.len())
        }
        Field::Text(text) => match text.char_indices().find(|(_, c)| c.is_control()) {
            Some((at, _)) => format!("has a control character at byte {at}"),
            None => return Ok(Cow::Borrowed(text)),
        },
    };
    Err(BadMessage(match scope {
        Scope::Header(name) => format!("header {name} {wrong}"),
        _ => format!("routing key {wrong}"),
    }))
}
