//! Texts for Redis's errors: the operation, the cause and the remedy. They never contain a
//! password.

use ::redis::{RedisError, ServerError, Value};

use crate::GateError;
use crate::fault::{self, Fault};
use crate::keys::CallKeys;
use runtime::{shortage, tls};

/// A node of a Redis Cluster was configured as a single server.
pub const NODE_OF_A_CLUSTER: &str = "this is a node of a Redis Cluster; set redis.cluster: true";

/// The commands that load and call scripts by their hash.
const SCRIPT_COMMANDS: &[&str] = &["script", "evalsha"];

/// Returns the error for a connection that failed before Redis answered. `key` is the configuration
/// key with the login.
pub fn broken(error: &RedisError, server: &str, key: &str) -> GateError {
    match error.code() {
        Some(code @ ("WRONGPASS" | "NOAUTH" | "NOPERM")) => GateError::Refused(format!(
            "{server}: {code}: wrong user or password; check {key}"
        )),
        _ if error.kind() == ::redis::ErrorKind::AuthenticationFailed => {
            GateError::Refused(format!("{server}: wrong user or password; check {key}"))
        }
        _ if error
            .to_string()
            .contains("permissions to run the 'select' command") =>
        {
            GateError::Refused(format!(
                "{server}: {error}: the user of redis.url needs +select for a database other than 0"
            ))
        }
        _ => GateError::Unreachable(match advice(error) {
            Some(advice) => format!("{server}: {error} ({advice})"),
            None => format!("{server}: {error}"),
        }),
    }
}

/// Returns advice if this side can help: the machine lacks something, or TLS is set up wrong.
fn advice(error: &RedisError) -> Option<String> {
    let missing = shortage::of(error).map(str::to_owned);
    missing.or_else(|| tls::advice(error, "redis"))
}

/// Returns the error for an error answer of Redis to `what`.
pub fn refused(error: &ServerError, what: &str) -> GateError {
    let (code, fault) = (fault::code(error), Fault::of(error));
    let todo = match code {
        "READONLY" => {
            "this is a replica; unless it is promoted, point redis.url at the primary, or set \
            redis.sentinels"
        }
        "LOADING" => "it is starting or copying data from another server",
        "BUSY" | "UNKILLABLE" => "it is stuck in a script",
        "NOAUTH" => "it requires a password: put the user and the password into redis.url",
        "NOREPLICAS" => "too few replicas follow this primary (min-replicas-to-write)",
        "OOM" => "Redis has no memory left; raise maxmemory or remove other data",
        _ if refuses(error, SCRIPT_COMMANDS) && is_forbidden(error) => {
            "the user of redis.url needs +evalsha and +script|load; docs/DEPLOYMENT.md has the \
            required ACL rule. Without these, set redis.scripts: eval, which needs +eval"
        }
        _ if refuses(error, SCRIPT_COMMANDS) => {
            "Redis, or a proxy in front of it, refuses SCRIPT or EVALSHA: set redis.scripts: eval, \
            or allow both (docs/DEPLOYMENT.md)"
        }
        _ if is_forbidden(error) => {
            "the user of redis.url lacks a permission; docs/DEPLOYMENT.md has the required ACL rule"
        }
        _ if refuses(error, &["info", "time", "hgetall"]) => {
            "a proxy in front of Redis refuses this command: set redis.scripts: eval"
        }
        "MISCONF" => "Redis can't save its data and refuses writes; see its log",
        "MOVED" | "ASK" | "CROSSSLOT" => NODE_OF_A_CLUSTER,
        _ => "see the log of Redis",
    };
    let details = error.details().unwrap_or_default();
    let words = format!("{what}: {} {details}: {todo}", error.code());
    // An error that time or a new connection cures is no refusal.
    match fault.wants_connection() || code == "TRYAGAIN" {
        true => GateError::Unusable(words),
        false => GateError::Refused(words),
    }
}

/// Returns true if the error refuses one of `commands` itself. Redis, its rights and proxies quote
/// the command's name.
fn refuses(error: &ServerError, commands: &[&str]) -> bool {
    let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
    let text = text.to_ascii_lowercase();
    // Redis 6 uses backticks.
    let text = text.replace('`', "'");
    let named = |command: &&str| text.contains(&format!("'{command}"));
    let is_script = text.contains("script:") || text.contains("from script");
    !is_script && commands.iter().any(named)
}

/// Returns true if the user lacks a permission. For commands inside a script, only the details show
/// it.
fn is_forbidden(error: &ServerError) -> bool {
    let inside = ["The user executing the script", "ACL failure", "NOPERM"];
    let details = error.details().unwrap_or_default();
    error.code() == "NOPERM" || inside.iter().any(|word| details.contains(word))
}

/// Returns true if the server accepts no writes of any user.
pub fn is_read_only(error: &ServerError) -> bool {
    ["READONLY", "OOM", "MISCONF", "NOREPLICAS"].contains(&error.code())
}

/// Returns true if a key has another type than expected.
pub fn is_wrong_type(error: &ServerError) -> bool {
    let wrong = "WRONGTYPE";
    error.code() == wrong || error.details().is_some_and(|text| text.contains(wrong))
}

/// Returns true if a script failed on a value it can't compute with. Lua reports this in its own
/// words; another program wrote the value.
pub fn is_unreadable(error: &ServerError) -> bool {
    let lua = ["attempt to ", "bad argument "];
    let is_from_lua = |text: &str| lua.iter().any(|words| text.contains(words));
    error.code() == "ERR" && error.details().is_some_and(is_from_lua)
}

/// Returns the error for data that `what` can't interpret.
pub fn unreadable(error: &ServerError, what: &str) -> GateError {
    let details = error.details().unwrap_or_default();
    GateError::Refused(format!(
        "{what}: keys have values that this version does not write ({details}): delete them, or \
        set another redis.prefix"
    ))
}

/// Names the key with the wrong type, given the answers of `TYPE` for each of `keys`.
pub fn wrong_type(keys: &CallKeys, types: &[Value], error: &ServerError) -> GateError {
    let expected = keys.names.iter().zip(&keys.types);
    let found = expected.zip(types).find_map(|((name, expected), kind)| {
        let kind: String = ::redis::from_redis_value_ref(kind).ok()?;
        (kind != *expected && kind != "none")
            .then(|| format!("the key {name} contains a {kind}, not a {expected}"))
    });
    let details = error.details().unwrap_or_default();
    let what = found
        .or_else(|| wrong_value(keys, details))
        .unwrap_or_else(|| format!("one of the keys {}: {details}", keys.names.join(", ")));
    GateError::Refused(format!(
        "WRONGTYPE: {what}; another program wrote it: delete the key, or set another redis.prefix"
    ))
}

/// Returns the key that a script reports as unreadable, in the format of `lua/limits.lua`.
fn wrong_value(keys: &CallKeys, details: &str) -> Option<String> {
    let (_, report) = details.split_once("WRONGTYPE KEYS[")?;
    let (number, what) = report.split_once("] holds not ")?;
    let (what, _) = what.split_once(';')?;
    let index = number.parse::<usize>().ok()?.checked_sub(1)?;
    let name = keys.names.get(index)?;
    Some(format!(
        "the key {name} contains something other than {what}"
    ))
}
