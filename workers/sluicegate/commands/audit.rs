//! Writes the changes that commands make to the audit log, as the HTTP API does. A command
//! continues if that fails.

use std::time::Duration;

use config::Config;
use gate::GateError;
use gate::redis::RedisGate;
use operator::NotDone;
use operator::audit::{self, AuditEntry, name_of};
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::Failure;

/// Maximum time that an unresponsive Redis delays actions on RabbitMQ.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// Audits an `action` that is about to be done: its object and the rest of the request, both as
/// JSON objects. An unreachable Redis is not reported here, since the command's next question to
/// Redis reports it.
pub async fn note(gate: &RedisGate, action: &'static str, of: Value, request: Value) {
    match written(gate, action, of, request).await {
        Err(NotDone::Redis(GateError::Unreachable(_) | GateError::Unusable(_))) | Ok(()) => {}
        Err(why) => report_failure(&why),
    }
}

/// Does the same for a command that only uses RabbitMQ.
pub async fn note_by(
    config: &Config,
    action: &'static str,
    of: Value,
    request: Value,
) -> Result<(), Failure> {
    let gate = RedisGate::new(&config.redis.url, &config.redis.prefix)?;
    if let Err(why) = written(&gate, action, of, request).await {
        report_failure(&why);
    }
    Ok(())
}

fn report_failure(why: &NotDone) {
    eprintln!("note: the audit log was not written: {why}");
}

/// Does the same for callers that report failures themselves. It gives up after 2 s.
///
/// # Errors
/// [`NotDone::Redis`] if the entry was not written.
pub async fn written(
    gate: &RedisGate,
    action: &'static str,
    of: Value,
    request: Value,
) -> Result<(), NotDone> {
    let entry = AuditEntry {
        operator: user(),
        peer: "command".to_owned(),
        action,
        of: match of {
            Value::Object(of) => of,
            _ => Map::new(),
        },
        request,
        failed: None,
    };
    match timeout(WRITE_TIMEOUT, audit::add(gate, &entry)).await {
        Ok(written) => written.map(drop),
        Err(_) => {
            let words = format!("no answer within {WRITE_TIMEOUT:?}");
            Err(GateError::Unreachable(words).into())
        }
    }
}

/// Returns the name of the current user.
fn user() -> String {
    let names = ["SUDO_USER", "USER", "LOGNAME"].into_iter();
    let name = names
        .filter_map(|name| std::env::var(name).ok())
        .find_map(|name| name_of(&name));
    name.unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()))
}
