//! The reports of a cluster about its nodes: the answer to `CLUSTER SLOTS`, and redirections.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::sync::LazyLock;

use ::redis::cluster_routing::Slot;
use ::redis::{ConnectionAddr, ConnectionInfo, Value};

use crate::{GateError, refusal};
use rules::slots::{SLOTS, Slots};

/// The address of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    pub host: String,
    pub port: u16,
}

impl Display for Address {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// A range of slots and the primary that has them.
#[derive(Debug, PartialEq, Eq)]
pub struct Range {
    pub first: u16,
    pub last: u16,
    pub primary: Address,
    /// The primary's own ID.
    pub id: String,
}

/// Returns the host in `info`.
pub fn host(info: &ConnectionInfo) -> String {
    match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
        other => other.to_string(),
    }
}

/// Parses the address in the `details` of a `MOVED` or `ASK`, such as `3999 10.0.0.1:6381`. Without
/// a host it is another port of `own`, the host that answered.
pub fn redirect(details: &str, own: &str) -> Option<Address> {
    let (host, port) = details.split_whitespace().nth(1)?.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some(Address {
        host: if host.is_empty() { own } else { host }.to_owned(),
        port: port.parse().ok()?,
    })
}

/// Returns the slot of `key`.
pub fn slot_of(key: &str) -> u16 {
    // The client library computes slots but does not expose their numbers.
    static NUMBERS: LazyLock<HashMap<Slot, u16>> = LazyLock::new(|| {
        let all = (0..SLOTS).filter_map(|number| Some((Slot::new(number)?, number)));
        all.collect()
    });
    // The map has every slot.
    NUMBERS.get(&Slot::for_key(key)).copied().unwrap_or(0)
}

/// Parses the answer to `CLUSTER SLOTS` of the node `name` at the host `own`.
pub fn parse(answers: &[Value], own: &str, name: &str) -> Result<Vec<Range>, GateError> {
    let ranges = match answers {
        [Value::ServerError(error)] => return Err(refusal::refused(error, "CLUSTER SLOTS")),
        [Value::Array(ranges)] => ranges,
        _ => &Vec::new(),
    };
    let ranges: Vec<Range> = ranges
        .iter()
        .filter_map(|value| range(value, own))
        .collect();
    if ranges.is_empty() {
        return Err(GateError::Unreachable(format!(
            "{name}: no node of its cluster has slots yet"
        )));
    }
    Ok(ranges)
}

fn range(value: &Value, own: &str) -> Option<Range> {
    let Value::Array(parts) = value else {
        return None;
    };
    let [first, last, Value::Array(primary), ..] = parts.as_slice() else {
        return None;
    };
    let [host, port, id, ..] = primary.as_slice() else {
        return None;
    };
    let number = |value: &Value| match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    };
    // An empty host stands for the node that was asked. `?` means that the node does not know its
    // own name yet.
    let host = ::redis::from_redis_value_ref::<Option<String>>(host).ok()?;
    let host = host.filter(|host| !host.is_empty() && host != "?");
    Some(Range {
        first: number(first)?,
        last: number(last)?,
        primary: Address {
            host: host.unwrap_or_else(|| own.to_owned()),
            port: number(port)?,
        },
        id: ::redis::from_redis_value_ref(id).ok()?,
    })
}

/// Returns the slots that a node claims for itself, given its answers to `CLUSTER MYID` and
/// `CLUSTER SLOTS`.
pub fn owned(id: &Value, slots: &Value) -> Result<Slots, GateError> {
    let own: String = ::redis::from_redis_value_ref(id).unwrap_or_default();
    let mut owned = Slots::default();
    for range in parse(std::slice::from_ref(slots), "", "it")? {
        if range.id == own {
            owned.add(range.first, range.last);
        }
    }
    Ok(owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: &str, port: u16) -> Address {
        Address {
            host: host.to_owned(),
            port,
        }
    }

    fn node(host: Value, port: i64) -> Value {
        Value::Array(vec![
            host,
            Value::Int(port),
            Value::SimpleString("id".into()),
        ])
    }

    #[test]
    fn a_key_has_the_slot_of_its_tag() {
        // These are the answers of `CLUSTER KEYSLOT`.
        for (key, slot) in [("somekey", 11_058), ("foo{hash_tag}", 2_515), ("", 0)] {
            assert_eq!(slot_of(key), slot, "{key}");
        }
    }

    #[test]
    fn redirections_are_read() {
        for (details, found) in [
            ("3999 10.0.0.1:6381", Some(address("10.0.0.1", 6381))),
            ("3999 :6381", Some(address("own", 6381))),
            ("3999 ::1:6381", Some(address("::1", 6381))),
            ("3999 [::1]:6381", Some(address("::1", 6381))),
            (
                "3999 redis-1.example:6381",
                Some(address("redis-1.example", 6381)),
            ),
            ("3999", None),
            ("3999 host", None),
            ("3999 host:70000", None),
            ("", None),
        ] {
            assert_eq!(redirect(details, "own"), found, "{details}");
        }
    }

    #[test]
    fn slots_without_a_host_belong_to_the_asked_node() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let range = |first, last, primary| {
            let replica = node(text("10.0.0.9"), 1);
            Value::Array(vec![Value::Int(first), Value::Int(last), primary, replica])
        };
        let answer = Value::Array(vec![
            range(0, 5460, node(text("10.0.0.1"), 6379)),
            range(5461, 10922, node(Value::Nil, 6380)),
            range(10923, 16383, node(text(""), 6381)),
            Value::Nil,
        ]);
        let ranges = parse(std::slice::from_ref(&answer), "own", "n").expect("slots");
        let primaries: Vec<&Address> = ranges.iter().map(|range| &range.primary).collect();
        assert_eq!(
            primaries,
            [
                &address("10.0.0.1", 6379),
                &address("own", 6380),
                &address("own", 6381)
            ]
        );
        assert_eq!((ranges[1].first, ranges[1].last), (5461, 10922));
        let name = |name: &str| Value::SimpleString(name.into());
        let slots = owned(&name("id"), &answer).expect("slots");
        assert_eq!(slots, Slots::range(0, 16_383));
        assert!(owned(&name("other"), &answer).expect("slots").is_empty());
        let none = parse(&[Value::Array(Vec::new())], "own", "n");
        assert!(matches!(none, Err(GateError::Unreachable(_))));
    }
}
