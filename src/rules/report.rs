//! What a worker says of itself to whoever looks at the fleet: its load, and its busiest tenants. It has a bound, and says what it leaves
//! out. [`view`] joins what several say.

pub mod view;

use std::cmp::Reverse;
use std::collections::HashSet;
use std::hash::Hash;

use serde::{Deserialize, Serialize};

use crate::rules::tenant::Tenant;

/// So often a worker speaks, in milliseconds.
pub const EVERY_MS: u64 = 2_000;
/// What it said is kept for so long, in milliseconds: one that says nothing more is gone.
pub const KEPT_MS: u64 = 10_000;
/// So many tenants are named at most.
pub const MOST_TENANTS: usize = 100;
/// A report has so many bytes at most.
pub const MAX_BYTES: usize = 32 << 10;
/// So many reasons for not being ready are told.
const MOST_LINES: usize = 8;
/// And so many characters of each, and of a name.
const MOST_CHARS: usize = 200;

/// The format that is written. Whatever changes what a report means gets the next number; what is added does not.
const FORMAT: u32 = 1;

/// What a worker says of itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The format of its text, as [`Report::write`] sets it.
    pub format: u32,
    /// When, by Redis's clock in milliseconds; 0: it does not know the time.
    pub at_ms: u64,
    /// Where it runs.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Its pipeline's name; empty: it has none.
    #[serde(default)]
    pub pipeline: String,
    /// It ended in order: this is its last word.
    #[serde(default)]
    pub stopped: bool,
    /// For so long it has run, in milliseconds.
    #[serde(default)]
    pub up_ms: u64,
    /// It takes jobs.
    #[serde(default)]
    pub ready: bool,
    /// Why it takes none, or where it calls nobody all the same.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What it does.
    #[serde(default)]
    pub load: Load,
    /// Jobs in its memory that wait.
    #[serde(default)]
    pub waiting: u64,
    /// Starts and denials are those of so many milliseconds.
    #[serde(default)]
    pub over_ms: u64,
    /// Its busiest tenants.
    #[serde(default)]
    pub tenants: Vec<OfTenant>,
    /// What is not among them.
    #[serde(default)]
    pub left_out: LeftOut,
}

/// What a worker does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// Calls in flight.
    pub running: u64,
    /// Calls that it can make at once.
    pub slots: u64,
    /// The share of them that was taken in the last seconds, from 0 to 1.
    pub saturation: f64,
    /// Jobs in its memory, those of its calls among them.
    pub in_memory: u64,
    /// Those of them that wait in memory for a time.
    pub delayed: u64,
    /// Those of them that wait although their time came over a second ago: 0 is right.
    pub idle: u64,
}

/// How a tenant stands at one worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfTenant {
    /// Whose numbers these are.
    #[serde(with = "name")]
    pub tenant: Tenant,
    /// Jobs in the worker's memory that wait.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waiting: u64,
    /// Its calls in flight.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub running: u64,
    /// Its calls that began lately.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub starts: u64,
    /// How often its jobs were denied lately.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub denials: u64,
    /// Until when it is suspended, by Redis's clock in milliseconds; 0: it is not.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub closed_until_ms: u64,
    /// When the last of its jobs has its turn that the gate told of, by Redis's clock in milliseconds; 0: none waits for one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub line_ends_ms: u64,
    /// The limit that made one of its jobs wait last; empty: none did.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub waits_for: String,
}

/// What a report does not name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeftOut {
    /// So many tenants, of which it is known what follows.
    pub tenants: u64,
    /// Their jobs that wait.
    pub waiting: u64,
    /// Their calls in flight.
    pub running: u64,
    /// Their calls that began lately, and those of tenants that were too many to be told apart.
    pub starts: u64,
    /// Their denials, and those of the same tenants.
    pub denials: u64,
    /// There were more tenants than can be told apart.
    pub uncounted: bool,
}

/// Why a text is no report.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// A newer version wrote it.
    #[error("it has format {0}, and this version of sluicegate reads {FORMAT}")]
    Format(u32),
    /// Somebody else wrote it, or it is damaged.
    #[error("it is no report: {0}")]
    Broken(String),
}

// What serde passes is a reference.
#[expect(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A tenant as its name.
mod name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    use crate::rules::tenant::Tenant;

    pub(super) fn serialize<S: Serializer>(tenant: &Tenant, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(tenant.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Tenant, D::Error> {
        let name = String::deserialize(from)?;
        Tenant::parse(&name).map_err(D::Error::custom)
    }
}

impl OfTenant {
    /// Nothing is known of it.
    pub fn new(tenant: Tenant) -> Self {
        Self {
            tenant,
            waiting: 0,
            running: 0,
            starts: 0,
            denials: 0,
            closed_until_ms: 0,
            line_ends_ms: 0,
            waits_for: String::new(),
        }
    }
}

impl LeftOut {
    /// So does this tenant.
    pub fn add(&mut self, tenant: &OfTenant) {
        self.tenants = self.tenants.saturating_add(1);
        self.waiting = self.waiting.saturating_add(tenant.waiting);
        self.running = self.running.saturating_add(tenant.running);
        self.starts = self.starts.saturating_add(tenant.starts);
        self.denials = self.denials.saturating_add(tenant.denials);
    }

    /// All that there is was named.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// The busiest of `all`, [`MOST_TENANTS`] at most: of each order in which somebody may look at them the first ones, in turns. The others
/// are added to `left_out`.
pub fn busiest(mut all: Vec<OfTenant>, left_out: &mut LeftOut) -> Vec<OfTenant> {
    if all.len() <= MOST_TENANTS {
        all.sort_unstable_by(|one, two| one.tenant.cmp(&two.tenant));
        return all;
    }
    type By = fn(&OfTenant) -> u64;
    let orders: [By; 5] = [
        |it| it.waiting,
        |it| it.line_ends_ms,
        |it| it.denials,
        |it| it.closed_until_ms,
        |it| it.starts,
    ];
    // Equal ones stand in an order that all workers have, so that they name the same ones: of numbers, for they are many.
    let marks: Vec<u64> = all.iter().map(|it| mark(it.tenant.as_str())).collect();
    let firsts = orders.map(|by| first_by(&marks, |at| by(&all[at])));
    let places =
        (0..MOST_TENANTS).flat_map(|place| firsts.iter().map(move |first| first.get(place)));
    let named = each_once(places.flatten().copied(), MOST_TENANTS);
    let is_named: HashSet<usize> = named.iter().copied().collect();
    let others = all
        .iter()
        .enumerate()
        .filter(|(at, _)| !is_named.contains(at));
    others.for_each(|(_, other)| left_out.add(other));
    let mut all: Vec<Option<OfTenant>> = all.into_iter().map(Some).collect();
    named.into_iter().filter_map(|at| all[at].take()).collect()
}

/// The places of the largest values, the largest first; of equal ones that with the smaller of `marks`.
fn first_by(marks: &[u64], value: impl Fn(usize) -> u64) -> Vec<usize> {
    let mut places: Vec<usize> = (0..marks.len()).filter(|at| value(*at) > 0).collect();
    let order = |at: &usize| (Reverse(value(*at)), marks[*at]);
    if places.len() > MOST_TENANTS {
        places.select_nth_unstable_by_key(MOST_TENANTS - 1, order);
        places.truncate(MOST_TENANTS);
    }
    places.sort_unstable_by_key(order);
    places
}

/// A number for a name, the same everywhere (FNV-1a).
fn mark(name: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The first so many different ones.
fn each_once<T: Copy + Eq + Hash>(all: impl Iterator<Item = T>, most: usize) -> Vec<T> {
    let mut known = HashSet::new();
    all.filter(|it| known.insert(*it)).take(most).collect()
}

impl Report {
    /// Its text, [`MAX_BYTES`] long at most: the tenants at the end are left out where they do not fit, which it says.
    pub fn write(mut self) -> String {
        self.format = FORMAT;
        self.notes.truncate(MOST_LINES);
        let texts = [&mut self.host, &mut self.version, &mut self.pipeline];
        texts.into_iter().chain(&mut self.notes).for_each(cut);
        loop {
            let text = serde_json::to_string(&self).expect("texts and numbers are always JSON");
            let named = self.tenants.len();
            if text.len() <= MAX_BYTES || named == 0 {
                return text;
            }
            // At least one goes, so this ends.
            let fit = (named * MAX_BYTES / text.len()).min(named - 1);
            for tenant in self.tenants.drain(fit..) {
                self.left_out.add(&tenant);
            }
        }
    }

    /// The report that `text` is.
    ///
    /// # Errors
    /// [`ReportError`] when it is none.
    pub fn read(text: &str) -> Result<Self, ReportError> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let broken = |why: serde_json::Error| ReportError::Broken(why.to_string());
        if text.len() > MAX_BYTES {
            let why = format!("it has {} bytes", text.len());
            return Err(ReportError::Broken(why));
        }
        let head: Head = serde_json::from_str(text).map_err(broken)?;
        match head.format {
            FORMAT => serde_json::from_str(text).map_err(broken),
            other => Err(ReportError::Format(other)),
        }
    }
}

/// No more than so many characters.
fn cut(text: &mut String) {
    if let Some((at, _)) = text.char_indices().nth(MOST_CHARS) {
        text.truncate(at);
    }
}

#[cfg(test)]
mod tests;
