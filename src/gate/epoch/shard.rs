//! What the epoch of one primary of a Redis Cluster speaks for.
//!
//! Each primary has an epoch of its own, since each loses its memory alone. Slots move between primaries, so an epoch
//! says which of them it *claims*: for these it knows all that has started. A slot that a primary got and does not claim yet
//! is claimed from one span later on: then nothing counts any more that was started in it elsewhere. It is claimed at once
//! where the primary that had it *hands it over*: it gives its claim up, and its own memory is whole. What was handed over
//! may still be gone where the new primary lost its memory in between: one that did not is known by how long it has run, or
//! when its memory was last found whole.

use super::Gap;
use crate::rules::slots::{Claims, Slots};

/// A primary of a Redis Cluster, as a worker sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shard {
    /// The slots that it has.
    pub owned: Slots,
    /// What others had and gave up for it.
    pub handed: Vec<Handed>,
    /// The worker has begun: what its start says is not about this primary, which came later.
    pub later: bool,
    /// For so long its process has surely lost nothing.
    pub whole_ms: u64,
}

/// Claims that another epoch gave up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handed {
    /// The slots.
    pub slots: Slots,
    /// For so long it could not speak for them.
    pub wait_ms: u64,
    /// It was of the same memory, which nothing was lost of since then.
    pub sure: Option<u64>,
}

impl Handed {
    /// What an epoch gives up of `claims`: those of `slots`. What it lacks (`gap`), its slots lack elsewhere, too, where nobody
    /// knows of it: there they wait until that counts for no question any more.
    pub fn of(claims: &Claims, slots: &Slots, gap: Gap, now: u64, sure: Option<u64>) -> Vec<Self> {
        let handed = claims.iter().map(|(from, known)| Self {
            slots: known.both(slots),
            wait_ms: from.max(gap.until).saturating_sub(now),
            sure,
        });
        handed.filter(|handed| !handed.slots.is_empty()).collect()
    }
}

impl Shard {
    /// Since when nothing was lost, if the epoch does not say it.
    pub fn sure(&self, now: u64) -> u64 {
        let inherited = self.handed.iter().filter_map(|handed| handed.sure).min();
        inherited.unwrap_or_else(|| now.saturating_sub(self.whole_ms))
    }

    /// Its own epoch, which was sound until now, was at another key.
    pub fn moves(&self) -> bool {
        self.later && self.handed.iter().any(|handed| handed.sure.is_some())
    }

    /// What is to be claimed where `stored` is, in a memory of which nothing was lost since `sure`.
    pub fn claims(&self, stored: &Claims, sure: u64, now: u64, span: u64) -> Claims {
        // What is gone is kept until it is handed over.
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
            owned: Claims::parse(owned).slots(),
            later: true,
            ..Shard::default()
        }
    }

    fn handed(slots: &str, wait_ms: u64, sure: Option<u64>) -> Handed {
        Handed {
            slots: Claims::parse(slots).slots(),
            wait_ms,
            sure,
        }
    }

    fn claims(shard: &Shard, stored: &str, sure: u64) -> String {
        let stored = Claims::parse(stored);
        let next = shard.claims(&stored, sure, NOW, SPAN);
        // Written once, it stays.
        assert_eq!(shard.claims(&next, sure, NOW + 1, SPAN), next);
        next.text()
    }

    #[test]
    fn what_came_without_a_word_counts_after_a_span() {
        let shard = shard("0-100");
        assert_eq!(claims(&shard, "0-99", 0), "0-99 100@1060000");
        assert_eq!(claims(&shard, "0-99 100@7", 0), "0-99 100@7");
    }

    #[test]
    fn what_was_handed_over_counts_at_once_where_nothing_can_have_been_lost_since() {
        let mut shard = shard("0-100");
        shard.handed = vec![handed("100", 0, None)];
        assert_eq!(claims(&shard, "0-99", NOW - SPAN), "0-100");
        assert_eq!(claims(&shard, "0-99", NOW - 1_000), "0-99 100@1059000");
        // Another worker did not know it.
        assert_eq!(claims(&shard, "0-99 100@1050000", 0), "0-100");
        // The other epoch was not sure of it itself.
        shard.handed = vec![handed("100", 5_000, None)];
        assert_eq!(claims(&shard, "0-99", 0), "0-99 100@1005000");
        // It is not here any more.
        shard.handed = vec![handed("200", 0, None)];
        assert_eq!(claims(&shard, "0-100", 0), "0-100");
        // The epoch's key moved, not its slots.
        shard.handed = vec![handed("0-100", 0, Some(NOW - 3))];
        assert_eq!(claims(&shard, "", shard.sure(NOW)), "0-100");
        assert_eq!(shard.sure(NOW), NOW - 3);
    }

    #[test]
    fn what_an_epoch_lacks_its_slots_lack_elsewhere() {
        let given = Claims::parse("0-9 10-20@1002000");
        let waits = |until| {
            let gap = Gap {
                since: Some(NOW - 1),
                until,
            };
            let all = Handed::of(&given, &Slots::range(5, 12), gap, NOW, None);
            let said = all.iter().map(|it| (it.slots.runs(), it.wait_ms));
            said.collect::<Vec<_>>()
        };
        assert_eq!(waits(0), [(vec![(5, 9)], 0), (vec![(10, 12)], 2_000)]);
        assert_eq!(waits(NOW), waits(0));
        assert_eq!(
            waits(NOW + SPAN),
            [(vec![(5, 9)], SPAN), (vec![(10, 12)], SPAN)]
        );
    }

    #[test]
    fn what_is_gone_is_kept_until_it_is_handed_over() {
        assert_eq!(claims(&shard("0-50"), "0-100", 0), "0-100");
    }
}
