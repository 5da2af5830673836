//! The audit: the newest actions of operators, stored in Redis.

use ::redis::{Value as Reply, from_redis_value_ref};
use serde_json::{Map, Value, json};

use super::NotDone;
use super::answer::{AlwaysTrue, Omittable, answers};
use super::text::plain;
use gate::GateError;
use gate::redis::RedisGate;

/// Maximum number of entries that are kept.
pub const MAX_ENTRIES: usize = 1_000;
/// Maximum size of an entry in bytes.
const MAX_ENTRY_BYTES: usize = 4_096;
/// Maximum length of an operator's name in characters.
const MAX_NAME_CHARS: usize = 64;
/// Time after the last entry at which all entries expire: 400 days.
const MAX_ENTRY_AGE_MS: u64 = 400 * 86_400_000;

/// Returns the operator's name as stated in `given`, without characters that are not plain and at
/// most 64 characters long. Returns `None` if nothing is left.
pub fn name_of(given: &str) -> Option<String> {
    let is_allowed = |c: &char| c.is_alphanumeric() || " .-_@+".contains(*c);
    let name: String = given
        .chars()
        .filter(is_allowed)
        .take(MAX_NAME_CHARS)
        .collect();
    let name = name.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// An action, to be recorded by [`add`].
#[derive(Debug, Clone)]
pub struct AuditEntry {
    /// Name of the operator.
    pub operator: String,
    /// Address of the operator.
    pub peer: String,
    /// The action, in a word or two.
    pub action: &'static str,
    /// Its object: a tenant or a job.
    pub of: Map<String, Value>,
    /// Other parameters of the request.
    pub request: Value,
    /// Reason why the action failed, or `None` if it is about to be done.
    pub failed: Option<String>,
}

impl AuditEntry {
    fn text(&self) -> String {
        let mut json = json!({
            "operator": self.operator,
            "peer": self.peer,
            "action": self.action,
            "of": self.of,
            "request": self.request,
        });
        if let Some(why) = &self.failed {
            json["failed"] = plain(why, 300).into();
        }
        let text = json.to_string();
        if text.len() <= MAX_ENTRY_BYTES {
            return text;
        }
        // All other fields have bounds of their own.
        json["request"] = Value::Null;
        json["too_long"] = true.into();
        json.to_string()
    }
}

/// Records an action and returns the number of its entry.
///
/// # Errors
/// [`NotDone::Redis`]: the entry was not written.
pub async fn add(gate: &RedisGate, entry: &AuditEntry) -> Result<u64, NotDone> {
    let words = [
        "add".to_owned(),
        entry.text(),
        MAX_ENTRIES.to_string(),
        MAX_ENTRY_AGE_MS.to_string(),
    ];
    let (last, _) = run(gate, words.to_vec()).await?;
    Ok(last)
}

answers! {
    /// A page of entries, newest first.
    pub struct AuditPage {
        pub entries: Vec<RecordedEntry>,
        /// Number to pass as `before` for the next page, or `None` if this is the last page.
        pub next: Option<u64>,
    }

    /// An entry with its number and its time by Redis's clock.
    pub struct RecordedEntry {
        pub number: u64,
        pub at_ms: u64,
        pub operator: String,
        pub peer: String,
        pub action: String,
        pub of: Map<String, Value>,
        pub request: Option<Map<String, Value>>,
        pub failed: Omittable<String>,
        /// Whether the request was too long to be recorded.
        pub too_long: Omittable<AlwaysTrue>,
    }
}

/// Returns the newest `limit` entries with a number below `before`.
///
/// # Errors
/// [`NotDone::Redis`]
pub async fn read(
    gate: &RedisGate,
    before: Option<u64>,
    limit: usize,
) -> Result<AuditPage, NotDone> {
    let words = [
        "read".to_owned(),
        before.map_or_else(String::new, |number| number.to_string()),
        // One more entry shows whether there is another page.
        (limit.min(MAX_ENTRIES) + 1).to_string(),
    ];
    let (_, mut texts) = run(gate, words.to_vec()).await?;
    let is_more = texts.len() > limit;
    texts.truncate(limit);
    let entries = texts.iter().filter_map(|text| entry(text)).collect();
    let last = texts.last().filter(|_| is_more);
    let next = last.and_then(|text| text.split(':').next()?.parse().ok());
    Ok(AuditPage { entries, next })
}

/// Parses `NUMBER:AT:TEXT`. Returns `None` for an entry in another version's format.
fn entry(text: &str) -> Option<RecordedEntry> {
    let mut parts = text.splitn(3, ':');
    let number: u64 = parts.next()?.parse().ok()?;
    let at_ms: u64 = parts.next()?.parse().ok()?;
    let mut entry: Map<String, Value> = serde_json::from_str(parts.next()?).ok()?;
    entry.insert("number".to_owned(), number.into());
    entry.insert("at_ms".to_owned(), at_ms.into());
    serde_json::from_value(entry.into()).ok()
}

async fn run(gate: &RedisGate, words: Vec<String>) -> Result<(u64, Vec<String>), NotDone> {
    let reply = gate.run_audit(words).await?;
    let broken = || GateError::Refused("the audit: its reply has an unknown form".to_owned());
    let Reply::Array(values) = &reply else {
        return Err(broken().into());
    };
    let (first, rest) = values.split_first().ok_or_else(broken)?;
    let last = from_redis_value_ref(first).map_err(|_| broken())?;
    let texts: Result<Vec<String>, _> = rest.iter().map(from_redis_value_ref).collect();
    Ok((last, texts.map_err(|_| broken())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actor_has_a_plain_and_bounded_name() {
        for (given, name) in [
            ("anna", Some("anna")),
            (
                "  Anna B. <a@example.com>\u{1b}[2J",
                Some("Anna B. a@example.com2J"),
            ),
            ("\"};:\n", None),
            ("", None),
        ] {
            assert_eq!(name_of(given).as_deref(), name, "{given:?}");
        }
        let long = name_of(&"ü".repeat(1_000)).expect("letters");
        assert_eq!(long.chars().count(), MAX_NAME_CHARS);
    }

    #[test]
    fn an_entry_is_bounded_and_survives_a_round_trip() {
        let of = |request: Value, failed: Option<&str>| AuditEntry {
            operator: "ü".repeat(MAX_NAME_CHARS),
            peer: "[::1]:1".to_owned(),
            action: "pause",
            of: json!({"tenant": "\u{ffff}".repeat(85), "job": "\"".repeat(255)})
                .as_object()
                .expect("an object")
                .clone(),
            request,
            failed: failed.map(str::to_owned),
        };
        let small = of(json!({"for": "1h"}), None).text();
        let read = entry(&format!("7:1700:{small}")).expect("an entry");
        assert_eq!((read.number, read.at_ms), (7, 1700));
        assert_eq!(json!(read.request), json!({"for": "1h"}));
        assert!(read.failed.0.is_none() && read.too_long.0.is_none());

        let why = "\u{7}".repeat(1_000);
        let large = of(json!({"reason": "x".repeat(5_000)}), Some(&why)).text();
        assert!(large.len() <= MAX_ENTRY_BYTES, "{}", large.len());
        let read = entry(&format!("7:1700:{large}")).expect("an entry");
        assert!(read.too_long.0.is_some_and(|it| it.0));
        for other in ["", "7", "7:x:{}", "x:1:{}", "7:1:[]", "7:1:{"] {
            assert!(entry(other).is_none(), "{other}");
        }
    }
}
