//! Learned limits: how far a limit sinks if the API gives less than it advertises, and how it rises
//! again.
//!
//! A refusal (429) while a limit has quota left is an event: the limit sinks to the number of units
//! that the API gave. Refusals of calls that had started by then belong to the same event, and each
//! lowers the estimate further. Then the limit rises by steps as time passes. The first step has
//! the longest wait; if it is soon refused again, the next first step waits twice as long. So the
//! rise needs no write, and no worker keeps a timer for it. The reasons are in
//! docs/decisions/adaptive-limits.md. `lua/learned.lua` and `lua/learn.lua` are the same functions
//! over Redis.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::value::{Error, SeqDeserializer};

use crate::limit::{Limit, UNLIMITED};
use crate::scope::Labels;
use crate::tenant::Tenant;

/// A step is the limit divided by this, at least one unit.
pub const STEPS: u64 = 100;
/// Minimum number of calls between two steps, at the limit's rate and per unit of a step. So at
/// most 1 % of calls are refused (`rude` in tests/simulation).
pub const CALLS: u64 = 200;
/// Maximum wait before the first step, as a multiple of the wait before later steps.
pub const PATIENCE: u64 = 3;
/// The limit sinks by its value divided by this if usage does not show how much the API gives.
pub const SINKS: u64 = 16;
/// Steps by which a bucket sinks if it was already refused within the two windows before; otherwise
/// it sinks by one.
pub const FAR: u64 = 4;
/// How long advertised limits apply after the API last sent them, in milliseconds.
pub const ADVERTISED_MS: u64 = 3_600_000;
/// Replaces [`Limit::floor`] for a limit that does not learn.
pub const NEVER: u64 = UNLIMITED;
/// A wait up to this long fits any window, in milliseconds, because the API's headers count whole
/// seconds.
pub const EXPLAINED_MS: u64 = 1_000;
/// Everything learned is forgotten after this time, in milliseconds: 31 days.
pub const LEARNED_MS: u64 = 31 * 86_400_000;
/// Number of earlier reductions that are remembered.
pub const PAST: usize = 4;

/// Number of fields that are a single number.
const FIELDS: usize = 12;

/// The learned state of one limit. The fields have the order of the record in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct LearnedState {
    /// When a refusal last lowered the limit, in milliseconds since the epoch; 0 if none did.
    pub at_ms: u64,
    /// The `max` to which that refusal lowered it.
    pub to: u64,
    /// The wait before the first step, in milliseconds.
    first_ms: u64,
    /// The minimum wait before each later step, in milliseconds.
    min_ms: u64,
    /// The step, in units.
    step: u64,
    /// When the record is forgotten, in milliseconds since the epoch.
    pub ends_ms: u64,
    /// The highest `max` that keeps the API's advertised limits; 0 if the limit itself keeps them.
    pub advertised_max: u64,
    /// The time until which the advertised limits apply, in milliseconds since the epoch.
    pub advertised_until_ms: u64,
    /// The highest number of units that counted during the last event. `refused` of them were
    /// refused.
    pub seen: u64,
    /// The number of units that were refused during the last event.
    pub refused: u64,
    /// Number of calls refused since the limit last had its full value.
    pub times: u64,
    /// When the limit last had its full value, in milliseconds since the epoch.
    pub since_ms: u64,
    /// The times of earlier reductions and the numbers they reduced the limit to, latest first; 0
    /// for unused entries.
    #[serde(skip)]
    pub past: [(u64, u64); PAST],
}

/// Evidence about limits in an answer of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evidence {
    /// The API refused a call.
    Refused {
        /// The store's clock when the call started, in milliseconds.
        started_ms: u64,
        /// The cost that the call was charged.
        cost: u64,
        /// How long the API says that it will refuse calls, in milliseconds; 0 if it does not say.
        after_ms: u64,
        /// How long no job starts from now on that counts against a learning limit, in
        /// milliseconds.
        closed_ms: u64,
    },
    /// The `max` for each limit that keeps the API's advertised limits; 0 for a limit that already
    /// keeps them, `None` for one of which the answer says nothing.
    Advertised(Vec<Option<u64>>),
}

/// A report to the gate about an answer to one tenant's job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitEvidence {
    /// The tenant.
    pub tenant: Tenant,
    /// The labels of the job that was answered.
    pub labels: Labels,
    /// The limits that were enforced for the job.
    pub limits: crate::limit::Limits,
    /// The evidence in the answer.
    pub evidence: Evidence,
}

/// The effect of a [`LimitEvidence`] on one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxChange {
    /// The index of the limit.
    pub limit: usize,
    /// The effective `max` before.
    pub from: u64,
    /// The effective `max` now.
    pub to: u64,
    /// The `max` that is set, by the configuration or by an operator.
    pub set: u64,
    /// When the limit has its full value again if nothing more happens, in milliseconds since the
    /// epoch.
    pub ends_ms: u64,
    /// Whether this is a new event, and not another refusal of the last one.
    pub is_new: bool,
}

impl LearnedState {
    /// Returns the highest effective `max` at `now`.
    pub fn highest_max(&self, now: u64) -> u64 {
        let risen = match self.at_ms {
            0 => UNLIMITED,
            _ => self.risen(now),
        };
        match self.advertised_until_ms > now {
            true => risen.min(self.advertised_max),
            false => risen,
        }
    }

    /// Returns true if the record no longer applies.
    pub fn is_over(&self, now: u64) -> bool {
        self.ends_ms <= now
    }

    fn risen(&self, now: u64) -> u64 {
        let mut left = now.saturating_sub(self.at_ms);
        let (mut wait, mut steps) = (self.first_ms, 0);
        while wait > self.min_ms && left >= wait {
            left -= wait;
            steps += 1;
            wait = (wait / 2).max(self.min_ms);
        }
        if wait <= self.min_ms {
            steps += left / self.min_ms.max(1);
        }
        steps.saturating_mul(self.step).saturating_add(self.to)
    }

    /// Returns when the record no longer applies to a limit of `max`.
    fn end(&self, max: u64) -> u64 {
        if self.at_ms == 0 {
            return self.advertised_until_ms;
        }
        let mut steps = max.saturating_sub(self.to).div_ceil(self.step.max(1));
        let (mut at, mut wait) = (self.at_ms, self.first_ms);
        while steps > 0 && wait > self.min_ms {
            at += wait;
            steps -= 1;
            wait = (wait / 2).max(self.min_ms);
        }
        let whole = (at + steps * self.min_ms).min(self.at_ms + LEARNED_MS);
        whole.max(self.advertised_until_ms)
    }

    /// Records that a call of `units` that started at `started_ms` was refused when `count` units
    /// counted against `limit`.
    fn refused(
        known: Option<Self>,
        now: u64,
        limit: &Limit,
        (started_ms, units, count): (u64, u64, u64),
    ) -> Self {
        let (max, floor) = (limit.max(), limit.floor().unwrap_or(limit.max()));
        let is_bucket = limit.algorithm().has_burst();
        let mut it = known.unwrap_or_default();
        it.times += 1;
        if it.at_ms > 0 && started_ms <= it.at_ms {
            it.refused += units;
            it.seen = it.seen.max(count);
            let given = it.seen.saturating_sub(it.refused);
            if !is_bucket && (floor..it.to).contains(&given) {
                it.to = given;
                it.ends_ms = it.end(max);
            }
            return it;
        }
        let current = it.highest_max(now).min(max).max(floor);
        let given = count.saturating_sub(units);
        let step = max.div_ceil(STEPS);
        let to = if is_bucket {
            // The API does not count a window, so its usage does not show a number.
            let far = it.at_ms > 0 && now < it.at_ms + 2 * limit.window_ms();
            current.saturating_sub(if far { FAR * step } else { step })
        } else if given < floor {
            // Below the band the cause is another one, or the event repeats.
            current - (current / SINKS).max(1)
        } else {
            given.min(current - 1)
        };
        let min_ms = limit.window_ms() * (CALLS * step).div_ceil(max);
        let soon = it.at_ms > 0 && current <= it.to + 2 * step;
        if it.at_ms > 0 {
            it.past.rotate_right(1);
            it.past[0] = (it.at_ms, it.to);
        } else {
            it.since_ms = now;
        }
        it.first_ms = match soon {
            true => (2 * it.first_ms).clamp(min_ms, PATIENCE * min_ms),
            false => min_ms,
        };
        (it.at_ms, it.min_ms) = (now, min_ms);
        (it.to, it.step) = (to.max(floor), step);
        (it.seen, it.refused) = (count, units);
        it.ends_ms = it.end(max);
        it
    }

    /// Records the `max` that keeps the API's advertised limits; 0 if the limit keeps them. Returns
    /// `None` if nothing is left to remember.
    fn with_advertised(known: Option<Self>, now: u64, limit: &Limit, max: u64) -> Option<Self> {
        let mut it = known.unwrap_or_default();
        (it.advertised_max, it.advertised_until_ms) = match max {
            0 => (0, 0),
            max => (max.max(limit.floor()?), now + ADVERTISED_MS),
        };
        if it.since_ms == 0 {
            it.since_ms = now;
        }
        it.ends_ms = it.end(limit.max());
        (it.ends_ms > now).then_some(it)
    }

    /// Returns the record as the store keeps it.
    #[cfg(test)]
    pub fn text(&self) -> String {
        let Self {
            at_ms,
            to,
            first_ms,
            min_ms,
            step,
            ends_ms,
            advertised_max,
            advertised_until_ms,
            seen,
            refused,
            times,
            since_ms,
            past,
        } = self;
        let mut text = format!(
            "{at_ms},{to},{first_ms},{min_ms},{step},{ends_ms},{advertised_max},{advertised_until_ms},{seen},{refused},{times},{since_ms}"
        );
        for (at, to) in past.iter().filter(|(at, _)| *at > 0) {
            text += &format!(",{at},{to}");
        }
        text
    }

    /// Parses a record as the store keeps it.
    pub fn read(text: &str) -> Option<Self> {
        let numbers: Option<Vec<u64>> = text.split(',').map(|number| number.parse().ok()).collect();
        let numbers = numbers?;
        let (fields, earlier) = numbers.split_at_checked(FIELDS)?;
        let (pairs, []) = earlier.as_chunks::<2>() else {
            return None;
        };
        let fields = SeqDeserializer::<_, Error>::new(fields.iter().copied());
        let mut learned = Self::deserialize(fields).ok()?;
        for (place, [at, to]) in learned.past.iter_mut().zip(pairs) {
            *place = (*at, *to);
        }
        Some(learned)
    }
}

/// The learned states of the limits of one partition, by the limits' names and windows: a number of
/// units says nothing of another window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LearnedStates(BTreeMap<(String, u64), LearnedState>);

/// Returns the key of the record of `limit`.
fn key(limit: &Limit) -> (String, u64) {
    (limit.name().to_owned(), limit.window_ms())
}

impl LearnedStates {
    /// Returns true if there is no record.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the record of `limit`, if it still applies.
    pub(crate) fn of(&self, limit: &Limit, now: u64) -> Option<&LearnedState> {
        limit.floor()?;
        let known = self.0.get(&key(limit));
        known.filter(|known| !known.is_over(now))
    }

    /// Returns `limit` with its effective `max`. `set` is the limit with an operator's `max`.
    pub(crate) fn lowered(&self, limit: &Limit, set: Limit, now: u64) -> Limit {
        let max = self.of(limit, now).zip(limit.floor());
        match max.map(|(learned, floor)| learned.highest_max(now).max(floor)) {
            Some(max) if max < set.max() => set.with_max(max),
            _ => set,
        }
    }

    /// Records that the API refused a call, as [`LearnedState::refused`] does. Returns when the
    /// record is forgotten, and whether this is a new event.
    pub(crate) fn refuse(&mut self, now: u64, limit: &Limit, call: (u64, u64, u64)) -> (u64, bool) {
        let known = self.of(limit, now).copied();
        let learned = LearnedState::refused(known, now, limit, call);
        let is_new = known.is_none_or(|known| known.at_ms != learned.at_ms);
        self.put(limit, now, Some(learned));
        (learned.ends_ms, is_new)
    }

    /// Records the `max` that keeps the API's advertised limits; 0 if the limit keeps them. Returns
    /// when the record is forgotten, or `None` if nothing has changed.
    pub(crate) fn advertise(&mut self, now: u64, limit: &Limit, max: u64) -> Option<u64> {
        let known = self.of(limit, now).copied();
        if max == 0 && known.is_none_or(|known| known.advertised_until_ms == 0) {
            return None;
        }
        let learned = LearnedState::with_advertised(known, now, limit, max);
        self.put(limit, now, learned);
        Some(learned.map_or(now, |learned| learned.ends_ms))
    }

    /// Stores `learned` for `limit`, and removes expired records.
    fn put(&mut self, limit: &Limit, now: u64, learned: Option<LearnedState>) {
        self.0.retain(|_, known| !known.is_over(now));
        self.0.remove(&key(limit));
        (self.0).extend(learned.map(|learned| (key(limit), learned)));
    }

    /// Returns until when any record applies.
    pub(crate) fn needed_until(&self) -> u64 {
        self.0
            .values()
            .map(|known| known.ends_ms)
            .max()
            .unwrap_or(0)
    }
}

/// Returns the longest wait that the limit's window explains, in milliseconds.
pub(crate) fn explained_ms(limit: &Limit) -> u64 {
    EXPLAINED_MS.max(2 * limit.window_ms())
}

/// Returns true if a refusal of a call that started at `started_ms` shows how much of `limit` the
/// API gives: the usage that the call was counted with still counts, and the API does not refuse
/// for longer than the limit's window explains.
pub(crate) fn explains_refusal(limit: &Limit, now: u64, started_ms: u64, after_ms: u64) -> bool {
    let span = limit.span();
    if limit.floor().is_none() || limit.window_ms() == 0 || after_ms > explained_ms(limit) {
        return false;
    }
    if limit.algorithm().has_burst() {
        true
    } else if limit.algorithm().facts().is_aligned {
        limit.window_start(started_ms) == limit.window_start(now)
    } else {
        now.saturating_sub(started_ms) < span
    }
}
