//! What a store does with the hash of an epoch when workers ask it to: `lua/pulse.lua` and `lua/epoch.lua` must equal it.

use std::collections::BTreeMap;

use super::ServerIdentity;

/// The hash as the store has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EpochHash(BTreeMap<String, String>);

/// What a worker's pulse is sent with: the epoch as the worker knows it.
#[derive(Debug, Clone, Copy)]
pub struct Beat<'a> {
    /// The epoch's id.
    pub id: &'a str,
    /// The memory that it was confirmed for.
    pub run: &'a str,
    /// That memory's history.
    pub history: &'a str,
    /// The worker's field.
    pub field: &'a str,
    /// With this, workers that are silent for longer are dropped, in milliseconds. The script looks at some of them at a time.
    pub silent_ms: Option<u64>,
    /// The slots that it speaks for; empty without a cluster.
    pub slots: &'a str,
    /// How many keys the server has thrown away; empty: it does not matter.
    pub evicted: &'a str,
    /// Until when it is closed for the longest spans.
    pub cold: &'a str,
}

impl<'a> FromIterator<(&'a str, &'a str)> for EpochHash {
    fn from_iter<T: IntoIterator<Item = (&'a str, &'a str)>>(fields: T) -> Self {
        let fields = fields.into_iter();
        Self(fields.map(|(n, v)| (n.to_owned(), v.to_owned())).collect())
    }
}

impl EpochHash {
    /// Its fields and their values.
    pub fn fields(&self) -> impl Iterator<Item = (&String, &String)> {
        self.0.iter()
    }

    /// One field is taken out.
    pub fn remove(&mut self, field: &str) {
        self.0.remove(field);
    }

    fn is(&self, field: &str, value: &str) -> bool {
        self.0.get(field).map_or("", String::as_str) == value
    }

    /// The worker's next pulse at `now_ms`; `None`: something is not as the worker knows it, and nothing was changed.
    pub fn beat(&mut self, beat: &Beat<'_>, memory: &ServerIdentity, now_ms: u64) -> Option<u64> {
        let same = self.is("id", beat.id)
            && self.is("run", beat.run)
            && self.is("cold", beat.cold)
            && (beat.slots.is_empty() || self.is("slots", beat.slots))
            && memory.history == beat.history
            && (beat.evicted.is_empty() || beat.evicted == memory.evicted.to_string());
        if !same {
            return None;
        }
        let before = self.0.get(beat.field).and_then(|text| pulse(text));
        let number = before.map_or(0, |(number, _)| number) + 1;
        self.0
            .insert(beat.field.to_owned(), format!("{number}:{now_ms}"));
        if let Some(silent_ms) = beat.silent_ms {
            let since = now_ms.saturating_sub(silent_ms);
            let gone = |name: &str, text: &str| {
                name.starts_with("w:") && pulse(text).is_some_and(|(_, at)| at < since)
            };
            self.0.retain(|name, text| !gone(name, text));
        }
        Some(number)
    }

    /// Writes `changed`, where an empty value deletes, if the fields of `read` are still as they were read.
    pub fn change<'a>(
        &mut self,
        mut read: impl Iterator<Item = (&'a str, &'a str)>,
        changed: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> bool {
        let same = read.all(|(name, value)| self.is(name, value));
        if same {
            for (name, value) in changed {
                match value {
                    "" => self.0.remove(name),
                    _ => self.0.insert(name.to_owned(), value.to_owned()),
                };
            }
        }
        same
    }
}

/// `NUMBER:AT…`
fn pulse(text: &str) -> Option<(u64, u64)> {
    let mut parts = text.splitn(3, ':');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
