//! What commands change is written to the audit, as what is asked by HTTP is; a command goes on where that can't be.

use std::time::Duration;

use serde_json::{Map, Value};
use sluicegate::config::Config;
use sluicegate::gate::GateError;
use sluicegate::gate::redis::RedisGate;
use sluicegate::operator::NotDone;
use sluicegate::operator::audit::{self, Entry, name_of};
use tokio::time::timeout;

use super::Failure;

/// A Redis that does not answer keeps nobody from acting on RabbitMQ for longer.
const WITHIN: Duration = Duration::from_secs(2);

/// Writes down that `action` is about to be done: to what, and what was asked for beside that; both are objects. Of a Redis that can't be
/// reached the command itself tells, which asks it next.
pub async fn note(gate: &RedisGate, action: &'static str, of: Value, request: Value) {
    match written(gate, action, of, request).await {
        Err(NotDone::Redis(GateError::Unreachable(_) | GateError::Unusable(_))) | Ok(()) => {}
        Err(why) => tell(&why),
    }
}

/// The same of a command that asks RabbitMQ alone.
pub async fn note_by(
    config: &Config,
    action: &'static str,
    of: Value,
    request: Value,
) -> Result<(), Failure> {
    let gate = RedisGate::connect(&config.redis.url, &config.redis.prefix)?;
    if let Err(why) = written(&gate, action, of, request).await {
        tell(&why);
    }
    Ok(())
}

fn tell(why: &NotDone) {
    eprintln!("note: this is not written to the audit: {why}");
}

/// The same for whoever tells of it in another place: it gives up after 2 s.
///
/// # Errors
/// [`NotDone::Redis`]: it is not written.
pub async fn written(
    gate: &RedisGate,
    action: &'static str,
    of: Value,
    request: Value,
) -> Result<(), NotDone> {
    let entry = Entry {
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
    match timeout(WITHIN, audit::add(gate, &entry)).await {
        Ok(written) => written.map(drop),
        Err(_) => {
            let words = format!("no answer within {WITHIN:?}");
            Err(GateError::Unreachable(words).into())
        }
    }
}

/// Who runs this, as the system says.
fn user() -> String {
    let said = ["SUDO_USER", "USER", "LOGNAME"].into_iter();
    let name = said
        .filter_map(|name| std::env::var(name).ok())
        .find_map(|name| name_of(&name));
    name.unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()))
}
