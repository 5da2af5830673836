//! A tenant at a glance: what a screen shows in figures and clocks, and beside them all that is known, in words.

use super::Inspected;
use super::shown::counts_cost;
use crate::operator::fullness::Fullness;

/// What is known of a tenant. Times are Redis's, in milliseconds since 1970.
#[derive(Debug, Clone, Default)]
pub struct Glance {
    /// When it was looked.
    pub now_ms: u64,
    /// How full its limits are, and behind these its shadow limits.
    pub limits: Vec<Fullness>,
    /// What waits in its waitlist; `None`: it has one for each value of a header or routing key.
    pub waiting: Option<u64>,
    /// When the last of them has its turn; 0: none waits, or there are several waitlists.
    pub line_ends_ms: u64,
    /// Until when it is suspended; 0: it is not.
    pub suspended_until_ms: u64,
    /// By whom.
    pub suspended_by: String,
    /// Until when nothing is admitted after Redis may have lost data; 0: that is over, or not known.
    pub recovery_until_ms: u64,
    /// What a job that comes now waits for, in a sentence.
    pub why: String,
    /// All that is known.
    pub words: String,
}

impl Inspected {
    /// The tenant at a glance.
    pub fn glance(&self) -> Glance {
        let (rows, found) = (self.rows(), &self.found);
        let shadows = self.shadows().map(|row| row.fullness(&self.given));
        let full = rows.iter().map(|(limit, usage)| Fullness {
            used: (!self.given.lacks(limit)).then_some(usage.count),
            ..Fullness::of(limit, usage)
        });
        let is_one = self.given.missing.is_empty();
        let later = |in_ms: u64| match in_ms {
            0 => 0,
            in_ms => found.now_ms.saturating_add(in_ms),
        };
        let waits = self.waits(&rows);
        Glance {
            now_ms: found.now_ms,
            limits: full.chain(shadows).collect(),
            waiting: is_one.then_some(found.waiting),
            line_ends_ms: match is_one && found.waiting > 0 {
                true => later(found.waitlist_end_ms),
                false => 0,
            },
            suspended_until_ms: match found.blocked_until_ms > found.now_ms {
                true => found.blocked_until_ms,
                false => 0,
            },
            suspended_by: found.blocked_by.clone(),
            recovery_until_ms: later(self.recovery.in_ms()),
            why: waits.in_words(&self.given, found, counts_cost(&rows, found)),
            words: self.in_words(),
        }
    }
}
