//! How API responses change adaptive limits.

use super::State;
use super::scopes::Scopes;
use crate::gate::usage::Clock;
use crate::gate::waitlist::KEEP_MS;
use crate::learned::{Evidence, LearnedState, MaxChange, explained_ms, explains_refusal};
use crate::limit::Limit;

impl Scopes<'_> {
    /// Adjusts the adaptive limits among `limits` to `evidence` from an API response. Returns the
    /// limits that sank. Usage does not change, except that buckets and sliding counters accumulate
    /// nothing while the API is closed.
    pub fn learn(&mut self, limits: &[Limit], clock: Clock, evidence: &Evidence) -> Vec<MaxChange> {
        let now = clock.now_ms;
        match evidence {
            Evidence::Refused {
                started_ms,
                cost,
                after_ms,
                closed_ms,
            } => {
                let before = self.in_force(limits, now);
                let found = self.most_likely_cause(limits, clock, *started_ms, *after_ms);
                let change = found.map(|(which, count)| {
                    let units = limits[which].unit().of((*cost).max(1));
                    let call = (*started_ms, units, count);
                    self.sink(limits, now, which, |state, limit| {
                        Some(state.learned.refuse(now, limit, call))
                    })
                });
                if let Some(Some(change)) = change
                    && change.is_new
                {
                    let which = change.limit;
                    let closed_ms = (*closed_ms).min(explained_ms(&limits[which]));
                    self.hold(&before, limits, which, clock, now + closed_ms);
                }
                change.flatten().into_iter().collect()
            }
            Evidence::Advertised(all) => {
                let learn = |(which, max): (usize, &Option<u64>)| {
                    let max = (*max)?;
                    limits.get(which)?.floor()?;
                    self.sink(limits, now, which, |state, limit| {
                        let ends_ms = state.learned.advertise(now, limit, max)?;
                        Some((ends_ms, true))
                    })
                };
                all.iter().enumerate().filter_map(learn).collect()
            }
        }
    }

    /// Returns the limit that most likely caused a refusal, and its usage. Of the candidates this
    /// is the one with the highest used fraction, and the first of equals.
    fn most_likely_cause(
        &self,
        limits: &[Limit],
        clock: Clock,
        started_ms: u64,
        after_ms: u64,
    ) -> Option<(usize, u64)> {
        let in_force = self.in_force(limits, clock.now_ms);
        let states = self.loaded_copy(&in_force, clock);
        let mut max: Option<(usize, u64)> = None;
        for (which, limit) in in_force.iter().enumerate() {
            if !explains_refusal(limit, clock.now_ms, started_ms, after_ms) {
                continue;
            }
            let count = states.states[self.layout.partitions[which]]
                .usage
                .count(limit, clock);
            let is_more = |(other, more): (usize, u64)| {
                // The script's operations: the products may exceed an integer.
                let of = |which: usize| in_force[which].capacity() as f64;
                count as f64 * of(other) > more as f64 * of(which)
            };
            if max.is_none_or(is_more) {
                max = Some((which, count));
            }
        }
        max
    }

    /// Keeps the limit from admitting anything before `until_ms`. Otherwise the quota saved up
    /// until then would be used on top of an even flow.
    fn hold(
        &mut self,
        before: &[Limit],
        limits: &[Limit],
        which: usize,
        clock: Clock,
        until_ms: u64,
    ) {
        let usual = self.states[0].waitlist.usual;
        let in_force = self.in_force(limits, clock.now_ms);
        let usage = &mut self.states[self.layout.partitions[which]].usage;
        usage.hold((&before[which], &in_force[which]), clock, usual, until_ms);
    }

    fn sink(
        &mut self,
        limits: &[Limit],
        now: u64,
        which: usize,
        learn: impl FnOnce(&mut State, &Limit) -> Option<(u64, bool)>,
    ) -> Option<MaxChange> {
        let partition = self.layout.partitions[which];
        let before = self.in_force(limits, now)[which].max();
        let (configured, set) = (&limits[which], self.set(&limits[which], now));
        // A higher override counts instead of the configured value. A lower one does not: the
        // learned value would be discarded together with it.
        let highest = if set.max() > configured.max() {
            &set
        } else {
            configured
        };
        let state = &mut self.states[partition];
        let (ends_ms, is_new) = learn(state, highest)?;
        state.expires = state.expires.max(now.max(state.needed_until()) + KEEP_MS);
        Some(MaxChange {
            limit: which,
            from: before,
            to: self.in_force(limits, now)[which].max(),
            set: set.max(),
            ends_ms,
            is_new,
        })
    }

    /// Returns the learned value of each of `limits`, or `None` where it no longer counts.
    pub(super) fn learned_of(&self, limits: &[Limit], now: u64) -> Vec<Option<LearnedState>> {
        let partitions = &self.layout.partitions;
        let of = |(limit, partition): (&Limit, &usize)| {
            self.states[*partition].learned.of(limit, now).copied()
        };
        limits.iter().zip(partitions).map(of).collect()
    }
}

#[cfg(test)]
mod tests;
