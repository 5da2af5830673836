//! A tenant at a glance: figures and times for a screen, and the full inspection in words.

use super::TenantInspection;
use super::description::counts_cost;
use crate::fullness::Fullness;

/// Figures of a tenant. Times are by Redis's clock, in milliseconds since 1970.
#[derive(Debug, Clone, Default)]
pub struct Glance {
    /// Time of the look.
    pub now_ms: u64,
    /// How full its limits are, followed by its shadow limits.
    pub limits: Vec<Fullness>,
    /// Units in its waitlist, or `None` if it has a waitlist for each value of a header or routing
    /// key.
    pub waiting: Option<u64>,
    /// When the last waiting job has its turn; 0 if none waits or there are several waitlists.
    pub line_ends_ms: u64,
    /// End of the suspension; 0 if the tenant is not suspended.
    pub suspended_until_ms: u64,
    /// Cause of the suspension.
    pub suspended_by: String,
    /// Queue to which its jobs are diverted.
    pub diverted_to: Option<String>,
    /// When workers have noticed the end of the recovery wait; 0 if it is over or unknown.
    pub recovery_until_ms: u64,
    /// The cause for which a new job would wait, in a sentence.
    pub why: String,
    /// The full inspection in words.
    pub description: String,
}

impl TenantInspection {
    /// Returns the tenant at a glance.
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
            diverted_to: self.diverted_to(),
            recovery_until_ms: later(self.recovery.noticed_in_ms()),
            why: waits.describe(&self.given, found, counts_cost(&rows, found)),
            description: self.describe(),
        }
    }
}
