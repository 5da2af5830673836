//! The cause for which a new job would wait, as a keyword and as a sentence.

use gate::Inspection;
use rules::limit::Unit;

use super::description::amount;
use super::{InspectionAnswer, LimitUsage};
use crate::labels::GivenLabels;
use crate::recovery::Recovery;
use crate::times::when;

/// The keyword of [`InspectionAnswer::waits_for`] if Redis refuses writes.
pub(super) const REFUSED: &str = "redis";

impl InspectionAnswer {
    /// Returns true if no job is admitted because Redis refuses writes.
    pub fn is_refused(&self) -> bool {
        self.waits_for.as_deref() == Some(REFUSED)
    }
}

/// The cause for which a new job would wait.
pub(super) enum WaitReason<'a> {
    /// Something outside the tenant's own state stops its jobs: a keyword and a sentence.
    Stop(&'static str, String),
    /// The recovery wait.
    Recovery(String),
    Suspension,
    Waitlist,
    Limit(&'a str, u64),
    /// Its own waitlist is empty, but other waitlists have this amount waiting for the shared limit
    /// named here. Its turn comes after the given number of milliseconds.
    Others(&'a str, String, u64),
    Nothing,
    /// Redis shows nothing to wait for, but no worker has confirmed that Redis has all usage. The
    /// text says why.
    Unconfirmed(&'static str),
    /// Unknown because labels are missing.
    Unknown,
}

impl<'a> WaitReason<'a> {
    pub(super) fn of(
        rows: &[LimitUsage<'a>],
        given: &GivenLabels,
        found: &Inspection,
        recovery: &Recovery,
    ) -> Self {
        let known = rows.iter().filter(|(limit, _)| !given.lacks(limit));
        let latest = known.max_by_key(|(_, usage)| usage.next_ms);
        let suspended_ms = found.blocked_until_ms.saturating_sub(found.now_ms);
        if let Some(end) = recovery.end().filter(|_| recovery.in_ms() >= suspended_ms) {
            return Self::Recovery(end);
        }
        if found.blocked_until_ms > found.now_ms {
            return Self::Suspension;
        }
        match latest {
            Some((limit, usage)) if usage.next_ms > 0 => Self::Limit(limit.name(), usage.next_ms),
            _ if !given.missing.is_empty() => Self::Unknown,
            _ if found.waiting > 0 => Self::Waitlist,
            _ => match rows.iter().max_by_key(|(_, usage)| usage.waiting) {
                // If there is quota for the others, too, the job is admitted at once.
                Some((limit, usage)) if usage.waiting > 0 && found.turn_ms > 0 => {
                    let of_cost = limit.unit() == Unit::Cost && usage.widest > 1;
                    let waiting = amount(usage.waiting, of_cost);
                    Self::Others(limit.name(), waiting, found.turn_ms)
                }
                _ => match recovery {
                    Recovery::NoWorker => Self::Unconfirmed("a worker has checked Redis"),
                    Recovery::Unread(_) => Self::Unconfirmed("Redis has lost nothing"),
                    Recovery::Over | Recovery::Waits { .. } | Recovery::Refused(_) => Self::Nothing,
                },
            },
        }
    }

    pub(super) fn short(&self) -> Option<String> {
        match self {
            Self::Stop(word, _) => Some((*word).to_owned()),
            Self::Recovery(_) => Some("recovery".to_owned()),
            Self::Suspension => Some("suspended".to_owned()),
            Self::Waitlist => Some("waitlist".to_owned()),
            Self::Limit(name, _) | Self::Others(name, ..) => Some(format!("limit {name}")),
            Self::Nothing | Self::Unconfirmed(_) | Self::Unknown => None,
        }
    }

    pub(super) fn describe(
        &self,
        given: &GivenLabels,
        found: &Inspection,
        of_cost: bool,
    ) -> String {
        let first = match self {
            // The end of its waitlist is unknown until the stop ends.
            Self::Stop(_, words) => return words.clone(),
            Self::Recovery(end) => {
                format!("no job is admitted before the recovery wait ends, {end}")
            }
            Self::Suspension => format!(
                "no job is admitted before the suspension ends, {}",
                when(
                    found.now_ms,
                    found.blocked_until_ms.saturating_sub(found.now_ms)
                )
            ),
            Self::Limit(name, next_ms) => {
                format!(
                    "the limit {name} is exhausted: the next unit becomes available {}",
                    when(found.now_ms, *next_ms)
                )
            }
            Self::Waitlist => {
                return format!(
                    "quota is available, but the waitlist has {} ahead and ends {}",
                    amount(found.waiting, of_cost),
                    when(found.now_ms, found.waitlist_end_ms)
                );
            }
            Self::Others(name, waiting, turn_ms) => format!(
                "other jobs share the limit {name}, with {waiting} waiting: a new job takes \
                turns with them and is admitted {}",
                when(found.now_ms, *turn_ms)
            ),
            Self::Nothing => return "a job of cost 1 is admitted now".to_owned(),
            Self::Unconfirmed(once) => return format!("a job of cost 1 is admitted once {once}"),
            Self::Unknown => {
                return format!(
                    "no limit that all jobs of the tenant share; its other limits are per {}",
                    given.lacking()
                );
            }
        };
        match found.waiting {
            0 => first,
            // It is unknown which waitlist is meant.
            _ if !given.missing.is_empty() => first,
            waiting => format!(
                "{first}; the waitlist has {} ahead and ends {}",
                amount(waiting, of_cost),
                when(found.now_ms, found.waitlist_end_ms)
            ),
        }
    }
}
