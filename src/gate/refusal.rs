//! Redis's errors in words: what was meant, what is wrong, and what to do. Never a password.

use ::redis::{RedisError, ServerError, Value};

use crate::config::SecretUrl;
use crate::gate::GateError;

/// The connection failed before there was an answer.
pub fn broken(error: &RedisError, url: &SecretUrl) -> GateError {
    match error.code() {
        Some(code @ ("WRONGPASS" | "NOAUTH" | "NOPERM")) => GateError::Refused(format!(
            "{url}: {code}: the user or the password is not accepted; check redis.url"
        )),
        _ if error.kind() == ::redis::ErrorKind::AuthenticationFailed => GateError::Refused(
            format!("{url}: the user or the password is not accepted; check redis.url"),
        ),
        _ => GateError::Unreachable(format!("{url}: {error}")),
    }
}

/// Redis answered `what` with an error.
pub fn refused(error: &ServerError, what: &str) -> GateError {
    let code = error.code();
    let todo = match code {
        // Passing states of a server that starts, fails over or is busy.
        "LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" => {
            return GateError::Unreachable(format!("{code} on {what}"));
        }
        "OOM" => "Redis has no memory left; raise maxmemory or remove other data",
        "READONLY" => "this is a replica; point redis.url at the primary",
        "NOPERM" | "NOAUTH" => {
            "the user may not run it; allow EVALSHA, SCRIPT|LOAD, INFO, TIME and the commands of lua/ on these keys"
        }
        "MISCONF" => "Redis can't save its data and stops writing; look at its log",
        "MOVED" | "ASK" | "CROSSSLOT" => {
            "this is a node of a Redis Cluster, which this gate does not follow; use a single primary"
        }
        _ => "look at the log of Redis",
    };
    let details = error.details().unwrap_or_default();
    GateError::Refused(format!("{what}: {code} {details}: {todo}"))
}

/// A key holds something of another type.
pub fn is_wrong_type(error: &ServerError) -> bool {
    let wrong = "WRONGTYPE";
    error.code() == wrong || error.details().is_some_and(|text| text.contains(wrong))
}

/// Which of `names` (the line, then what the limits need, with the log of the `sliding` windows) is in the way,
/// after `TYPE` of each.
pub fn wrong_type(names: &[String], types: &[Value], sliding: Option<&str>) -> GateError {
    let found = names
        .iter()
        .zip(types)
        .enumerate()
        .find_map(|(index, (name, kind))| {
            let kind: String = ::redis::from_redis_value_ref(kind).ok()?;
            let wanted = match index {
                0 => "hash",
                _ if sliding == Some(name) => "zset",
                _ => "string",
            };
            (kind != wanted && kind != "none")
                .then(|| format!("the key {name} holds a {kind}, not a {wanted}"))
        });
    let what =
        found.unwrap_or_else(|| format!("one of the keys {} holds no number", names.join(", ")));
    GateError::Refused(format!(
        "WRONGTYPE: {what}; another program wrote it: delete the key, or set another redis.prefix"
    ))
}
