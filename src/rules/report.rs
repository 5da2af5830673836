//! The report that a worker publishes for operators: its load, and its busiest tenants. A report
//! has a maximum size, and counts what it leaves out. [`view`] combines the reports of several
//! workers.

pub mod load;
pub mod view;

use std::cmp::Reverse;
use std::collections::HashSet;
use std::hash::Hash;

use serde::{Deserialize, Serialize};

use crate::tenant::Tenant;
use crate::text::stable_hash;

/// Interval between two reports of a worker, in milliseconds.
pub const REPORT_INTERVAL_MS: u64 = 2_000;
/// How long a report is kept, in milliseconds. A worker without a report is considered gone.
pub const KEPT_MS: u64 = 10_000;
/// Maximum number of tenants in a report.
pub const MAX_TENANTS: usize = 100;
/// Maximum size of a report in bytes.
pub const MAX_BYTES: usize = 32 << 10;
/// Maximum number of notes in a report.
const MAX_NOTES: usize = 8;
/// Maximum number of characters of a note or a name.
const MAX_CHARS: usize = 200;

/// The format that is written. A change of the meaning increments it; an addition does not.
const FORMAT: u32 = 1;

/// A worker's report on itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The format of the text, set by [`Report::write`].
    pub format: u32,
    /// When the report was written, by Redis's clock in milliseconds; 0 if the worker does not know
    /// the time.
    pub at_ms: u64,
    /// The host that the worker runs on.
    pub host: String,
    /// The worker's process ID.
    pub pid: u32,
    /// The worker's version.
    pub version: String,
    /// The name of its pipeline; empty if it has none.
    #[serde(default)]
    pub pipeline: String,
    /// Whether the worker has stopped in an orderly way: this is its last report.
    #[serde(default)]
    pub stopped: bool,
    /// How long the worker has been running, in milliseconds.
    #[serde(default)]
    pub up_ms: u64,
    /// Whether the worker takes jobs.
    #[serde(default)]
    pub ready: bool,
    /// Why the worker takes no jobs, or why it takes jobs but makes no calls.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The worker's load.
    #[serde(default)]
    pub load: Load,
    /// Waiting jobs in its memory.
    #[serde(default)]
    pub waiting: u64,
    /// The period that starts and denials are counted over, in milliseconds.
    #[serde(default)]
    pub over_ms: u64,
    /// The worker's busiest tenants.
    #[serde(default)]
    pub tenants: Vec<ReportedTenant>,
    /// The sums over all other tenants.
    #[serde(default)]
    pub left_out: UnnamedTenants,
    /// How the API seems to count, if it refuses calls within the limits; else empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub advice: String,
}

/// The load of a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// Calls in flight.
    pub running: u64,
    /// Worker slots: calls that the worker can make at once.
    pub slots: u64,
    /// The share of the slots in use over the last seconds, from 0 to 1.
    pub saturation: f64,
    /// Jobs in the worker's memory, including jobs being called.
    pub in_memory: u64,
    /// Jobs in memory that wait for a time.
    pub delayed: u64,
    /// Jobs in memory that still wait although their time came more than a second ago: 0 in a
    /// healthy worker.
    pub idle: u64,
}

/// The state of a tenant at one worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedTenant {
    /// The tenant.
    #[serde(with = "name")]
    pub tenant: Tenant,
    /// Waiting jobs in the worker's memory.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waiting: u64,
    /// Calls in flight.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub running: u64,
    /// Calls that started recently.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub starts: u64,
    /// Denials of the tenant's jobs recently.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub denials: u64,
    /// The end of the tenant's suspension, by Redis's clock in milliseconds; 0 if it is not
    /// suspended.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub closed_until_ms: u64,
    /// The last turn of its waiting jobs that the gate announced, by Redis's clock in milliseconds;
    /// 0 if none waits for a turn.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub line_ends_ms: u64,
    /// The limit that denied one of its jobs last; empty if none did.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub waits_for: String,
}

/// The sums over tenants that a report does not name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnnamedTenants {
    /// Number of tenants in the sums below.
    pub tenants: u64,
    /// Their waiting jobs.
    pub waiting: u64,
    /// Their calls in flight.
    pub running: u64,
    /// Their calls that started recently, and the calls of tenants that were too many to be counted
    /// separately.
    pub starts: u64,
    /// Their denials recently, including those same tenants.
    pub denials: u64,
    /// Whether there were more tenants than can be counted separately.
    pub uncounted: bool,
}

/// Why a text could not be read as a report.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// A newer version wrote the report.
    #[error("it has format {0}, and this version of sluicegate reads {FORMAT}")]
    Format(u32),
    /// Another program wrote the text, or it is damaged.
    #[error("it is not a report: {0}")]
    Broken(String),
}

// Serde passes a reference.
#[expect(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Serializes a tenant as its name.
mod name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    use crate::tenant::Tenant;

    pub(super) fn serialize<S: Serializer>(tenant: &Tenant, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(tenant.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Tenant, D::Error> {
        let name = String::deserialize(from)?;
        Tenant::parse(&name).map_err(D::Error::custom)
    }
}

impl ReportedTenant {
    /// Returns an entry for `tenant` without any counts.
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

impl UnnamedTenants {
    /// Adds the counts of `tenant` to the sums.
    pub fn add(&mut self, tenant: &ReportedTenant) {
        self.tenants = self.tenants.saturating_add(1);
        self.waiting = self.waiting.saturating_add(tenant.waiting);
        self.running = self.running.saturating_add(tenant.running);
        self.starts = self.starts.saturating_add(tenant.starts);
        self.denials = self.denials.saturating_add(tenant.denials);
    }

    /// Returns true if the report names all tenants.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns the busiest of `all`, at most [`MAX_TENANTS`], by picking in turn the first of each
/// order that operators can sort by. Adds the others to `left_out`.
pub fn busiest(mut all: Vec<ReportedTenant>, left_out: &mut UnnamedTenants) -> Vec<ReportedTenant> {
    if all.len() <= MAX_TENANTS {
        all.sort_unstable_by(|one, two| one.tenant.cmp(&two.tenant));
        return all;
    }
    type SortKey = fn(&ReportedTenant) -> u64;
    let orders: [SortKey; 5] = [
        |it| it.waiting,
        |it| it.line_ends_ms,
        |it| it.denials,
        |it| it.closed_until_ms,
        |it| it.starts,
    ];
    // Ties are broken in the same order on all workers, so that they name the same tenants. Hashes
    // are compared because tenants are many.
    let marks = all.iter().map(|it| stable_hash(it.tenant.as_str()));
    let marks: Vec<u64> = marks.collect();
    let firsts = orders.map(|by| first_by(&marks, |at| by(&all[at])));
    let places =
        (0..MAX_TENANTS).flat_map(|index| firsts.iter().map(move |first| first.get(index)));
    let named = each_once(places.flatten().copied(), MAX_TENANTS);
    let is_named: HashSet<usize> = named.iter().copied().collect();
    let others = all
        .iter()
        .enumerate()
        .filter(|(at, _)| !is_named.contains(at));
    others.for_each(|(_, other)| left_out.add(other));
    let mut all: Vec<Option<ReportedTenant>> = all.into_iter().map(Some).collect();
    named.into_iter().filter_map(|at| all[at].take()).collect()
}

/// Returns the indexes of the largest values, largest first. Equal values are sorted by `marks`.
fn first_by(marks: &[u64], value: impl Fn(usize) -> u64) -> Vec<usize> {
    let mut places: Vec<usize> = (0..marks.len()).filter(|at| value(*at) > 0).collect();
    let order = |at: &usize| (Reverse(value(*at)), marks[*at]);
    if places.len() > MAX_TENANTS {
        places.select_nth_unstable_by_key(MAX_TENANTS - 1, order);
        places.truncate(MAX_TENANTS);
    }
    places.sort_unstable_by_key(order);
    places
}

/// Returns the first `max` distinct items.
fn each_once<T: Copy + Eq + Hash>(all: impl Iterator<Item = T>, max: usize) -> Vec<T> {
    let mut known = HashSet::new();
    all.filter(|it| known.insert(*it)).take(max).collect()
}

impl Report {
    /// Returns the text of the report, at most [`MAX_BYTES`] long. Tenants at the end that do not
    /// fit are added to `left_out`.
    pub fn write(mut self) -> String {
        self.format = FORMAT;
        self.notes.truncate(MAX_NOTES);
        let texts = [
            &mut self.host,
            &mut self.version,
            &mut self.pipeline,
            &mut self.advice,
        ];
        texts.into_iter().chain(&mut self.notes).for_each(cut);
        loop {
            let text = serde_json::to_string(&self).expect("texts and numbers are always JSON");
            let named = self.tenants.len();
            if text.len() <= MAX_BYTES || named == 0 {
                return text;
            }
            // At least one tenant is removed, so the loop ends.
            let fit = (named * MAX_BYTES / text.len()).min(named - 1);
            for tenant in self.tenants.drain(fit..) {
                self.left_out.add(&tenant);
            }
        }
    }

    /// Parses a report.
    ///
    /// # Errors
    /// Returns a [`ReportError`] if `text` is not a report that this version reads.
    pub fn read(text: &str) -> Result<Self, ReportError> {
        #[derive(Deserialize)]
        struct ReportHead {
            format: u32,
        }
        let broken = |why: serde_json::Error| ReportError::Broken(why.to_string());
        if text.len() > MAX_BYTES {
            let why = format!("it has {} bytes", text.len());
            return Err(ReportError::Broken(why));
        }
        let head: ReportHead = serde_json::from_str(text).map_err(broken)?;
        match head.format {
            FORMAT => serde_json::from_str(text).map_err(broken),
            other => Err(ReportError::Format(other)),
        }
    }
}

/// Truncates `text` to [`MAX_CHARS`] characters.
fn cut(text: &mut String) {
    if let Some((at, _)) = text.char_indices().nth(MAX_CHARS) {
        text.truncate(at);
    }
}

#[cfg(test)]
mod tests;
