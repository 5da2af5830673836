//! The slots that the epoch of one primary of a Redis Cluster covers.
//!
//! Each primary has its own epoch, since each loses data on its own. Slots move between primaries,
//! so an epoch lists the slots it *claims*: those for which it knows all usage. A new slot is
//! claimed one span after it arrived, since starts made at its former primary no longer count then.
//! It is claimed at once if the former primary *hands it over*: it gives up its claim, and its own
//! data is complete. Handed-over data may still be lost if the new primary lost data in between.
//! Its uptime, or the time when its data was last confirmed, rules that out.

use super::Gap;
use rules::slots::{SlotOwnership, Slots};

/// A primary of a Redis Cluster as a worker sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shard {
    /// The slots that it owns.
    pub owned: Slots,
    /// The claims that other epochs gave up for it.
    pub handed: Vec<HandedClaims>,
    /// Whether it appeared after the worker began, so that the worker's start proves nothing about
    /// it.
    pub later: bool,
    /// Time, in milliseconds, for which its process has certainly lost nothing.
    pub whole_ms: u64,
}

/// Claims that another epoch gave up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandedClaims {
    /// The handed-over slots.
    pub slots: Slots,
    /// How long the other epoch could not have admitted jobs there, in milliseconds.
    pub wait_ms: u64,
    /// Since when nothing was lost, if the other epoch was on the same server.
    pub sure: Option<u64>,
}

impl HandedClaims {
    /// Returns the claims on `slots` that an epoch gives up. Usage that the epoch lacks (`gap`) is
    /// missing at the new primary as well, where it is not recorded, so the slots wait there until
    /// the gap no longer counts for any question.
    pub fn of(
        claims: &SlotOwnership,
        slots: &Slots,
        gap: Gap,
        now: u64,
        sure: Option<u64>,
    ) -> Vec<Self> {
        let handed = claims.iter().map(|(from, known)| Self {
            slots: known.both(slots),
            wait_ms: from.max(gap.until).saturating_sub(now),
            sure,
        });
        handed.filter(|handed| !handed.slots.is_empty()).collect()
    }
}

impl Shard {
    /// Returns since when nothing was lost, for an epoch that does not record it.
    pub fn sure(&self, now: u64) -> u64 {
        let inherited = self.handed.iter().filter_map(|handed| handed.sure).min();
        inherited.unwrap_or_else(|| now.saturating_sub(self.whole_ms))
    }

    /// Returns true if the primary's own epoch, sound until now, was at another key.
    pub fn moves(&self) -> bool {
        self.later && self.handed.iter().any(|handed| handed.sure.is_some())
    }

    /// Returns the slots to claim, given the claims `stored`, on a server that has lost nothing
    /// since `sure`.
    pub fn claims(&self, stored: &SlotOwnership, sure: u64, now: u64, span: u64) -> SlotOwnership {
        // Slots that are gone stay claimed until they are handed over.
        let mut claims = stored.clone();
        let new = self.owned.without(&claims.slots());
        if !new.is_empty() {
            claims.set(&new, now + span);
        }
        for handed in &self.handed {
            let lasts = if handed.sure.is_some() {
                0
            } else {
                sure + span
            };
            let from = lasts.max(now + handed.wait_ms);
            let from = if from <= now { 0 } else { from };
            let late = claims.iter().filter(|(known, _)| *known > from);
            let late = late.fold(Slots::default(), |all, (_, slots)| all.either(slots));
            let sooner = late.both(&handed.slots).both(&self.owned);
            if !sooner.is_empty() {
                claims.set(&sooner, from);
            }
        }
        claims
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;
    const SPAN: u64 = 60_000;

    fn shard(owned: &str) -> Shard {
        Shard {
            owned: SlotOwnership::parse(owned).slots(),
            later: true,
            ..Shard::default()
        }
    }

    fn handed(slots: &str, wait_ms: u64, sure: Option<u64>) -> HandedClaims {
        HandedClaims {
            slots: SlotOwnership::parse(slots).slots(),
            wait_ms,
            sure,
        }
    }

    fn claims(shard: &Shard, stored: &str, sure: u64) -> String {
        let stored = SlotOwnership::parse(stored);
        let next = shard.claims(&stored, sure, NOW, SPAN);
        // Writing them again changes nothing.
        assert_eq!(shard.claims(&next, sure, NOW + 1, SPAN), next);
        next.text()
    }

    #[test]
    fn slots_that_arrive_without_a_claim_count_after_a_span() {
        let shard = shard("0-100");
        assert_eq!(claims(&shard, "0-99", 0), "0-99 100@1060000");
        assert_eq!(claims(&shard, "0-99 100@7", 0), "0-99 100@7");
    }

    #[test]
    fn handed_over_slots_count_at_once_if_nothing_was_lost_since() {
        let mut shard = shard("0-100");
        shard.handed = vec![handed("100", 0, None)];
        assert_eq!(claims(&shard, "0-99", NOW - SPAN), "0-100");
        assert_eq!(claims(&shard, "0-99", NOW - 1_000), "0-99 100@1059000");
        // Another worker did not know of the handover.
        assert_eq!(claims(&shard, "0-99 100@1050000", 0), "0-100");
        // The other epoch itself was not sure.
        shard.handed = vec![handed("100", 5_000, None)];
        assert_eq!(claims(&shard, "0-99", 0), "0-99 100@1005000");
        // The slot is not here any more.
        shard.handed = vec![handed("200", 0, None)];
        assert_eq!(claims(&shard, "0-100", 0), "0-100");
        // The epoch's key moved, but its slots did not.
        shard.handed = vec![handed("0-100", 0, Some(NOW - 3))];
        assert_eq!(claims(&shard, "", shard.sure(NOW)), "0-100");
        assert_eq!(shard.sure(NOW), NOW - 3);
    }

    #[test]
    fn a_gap_of_an_epoch_follows_its_slots() {
        let given = SlotOwnership::parse("0-9 10-20@1002000");
        let waits = |until| {
            let gap = Gap {
                since: Some(NOW - 1),
                until,
            };
            let all = HandedClaims::of(&given, &Slots::range(5, 12), gap, NOW, None);
            let waits_by_slots = all.iter().map(|it| (it.slots.runs(), it.wait_ms));
            waits_by_slots.collect::<Vec<_>>()
        };
        assert_eq!(waits(0), [(vec![(5, 9)], 0), (vec![(10, 12)], 2_000)]);
        assert_eq!(waits(NOW), waits(0));
        assert_eq!(
            waits(NOW + SPAN),
            [(vec![(5, 9)], SPAN), (vec![(10, 12)], SPAN)]
        );
    }

    #[test]
    fn lost_slots_are_kept_until_they_are_handed_over() {
        assert_eq!(claims(&shard("0-50"), "0-100", 0), "0-100");
    }
}
