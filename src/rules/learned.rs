//! Learned limits: how far a limit sinks where the API gives less than it says, and how it rises again.
//!
//! A refusal (429) while a limit has room is an event: the limit sinks to what the API gave. All refusals of calls that had started
//! by then are of the same event, and each lowers the estimate by itself. From then on it rises by steps as time passes, the
//! first of them after the longest wait; one that is refused soon makes the next first wait twice as long. So the rise needs no
//! write, and no worker keeps a clock for it. The reasons are in docs/decisions/adaptive-limits.md; `lua/learned.lua` and
//! `lua/learn.lua` are the same functions over Redis.

use std::collections::BTreeMap;

use crate::rules::limit::Limit;
use crate::rules::scope::Labels;
use crate::rules::tenant::Tenant;

/// A step is this part of the limit, at least one unit.
pub(crate) const STEPS: u64 = 100;
/// The calls of so many limits, for each unit of a step, are between two steps at least: half a percent of them can be refused.
pub(crate) const CALLS: u64 = 200;
/// The first step waits for so many times what the others wait, at most.
pub(crate) const PATIENCE: u64 = 3;
/// Where what was seen says nothing of the number, it sinks by this part.
pub(crate) const SINKS: u64 = 16;
/// A bucket sinks by a step, and by so many where it was refused within two windows before.
pub(crate) const FAR: u64 = 4;
/// What the API advertises counts for so long after it was told last, in milliseconds.
pub(crate) const TOLD_MS: u64 = 3_600_000;
/// In place of [`Limit::floor`] of a limit that does not learn.
pub(crate) const NEVER: u64 = u32::MAX as u64;
/// A shorter wait any window explains, in milliseconds: the forms of it count whole seconds.
pub(crate) const EXPLAINED_MS: u64 = 1_000;
/// All is forgotten after so long, in milliseconds: 31 days.
pub(crate) const LEARNED_MS: u64 = 31 * 86_400_000;
/// So many sinkings before the last are remembered.
pub(crate) const PAST: usize = 4;

/// What has been learned of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Learned {
    /// When a refusal lowered it last, in milliseconds since the epoch; 0: none did.
    pub at_ms: u64,
    /// To how much.
    pub to: u32,
    /// The wait before the first step, that before the later ones at least, in milliseconds, and the step.
    first_ms: u64,
    least_ms: u64,
    step: u32,
    /// When it is forgotten, in milliseconds since the epoch.
    pub ends_ms: u64,
    /// The most that the API advertises; 0: it does not say less.
    pub told: u32,
    /// Until when that counts, in milliseconds since the epoch.
    pub told_until_ms: u64,
    /// In the last event: the most units that counted, and how many of them were refused.
    pub seen: u64,
    /// See [`Learned::seen`].
    pub refused: u64,
    /// How many calls were refused since it was whole.
    pub times: u64,
    /// When it was whole last, in milliseconds since the epoch.
    pub since_ms: u64,
    /// When it sank before, and to how much, the latest first; 0: no more.
    pub past: [(u64, u32); PAST],
}

/// What an answer of the API says of limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evidence {
    /// It refused a call.
    Refused {
        /// The store's clock when that started, in milliseconds.
        started_ms: u64,
        /// What it was charged.
        cost: u32,
        /// For how long the API says that it refuses, in milliseconds; 0: it does not say.
        after_ms: u64,
        /// For how long nothing starts now that a limit which learns counts, in milliseconds.
        closed_ms: u64,
    },
    /// For each limit the `max` that keeps what the API says of its own; 0: the limit keeps it as it is.
    Advertised(Vec<u32>),
}

/// What the gate is told of the limits of one tenant's jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lesson {
    /// Whose.
    pub tenant: Tenant,
    /// The labels of the job that was answered.
    pub labels: Labels,
    /// What was enforced for it.
    pub limits: crate::rules::limit::Limits,
    /// What its answer says.
    pub evidence: Evidence,
}

/// What came of a [`Lesson`] for one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sunk {
    /// Which of the limits.
    pub limit: usize,
    /// What was in force before.
    pub from: u32,
    /// What is in force now.
    pub to: u32,
    /// What is set: the configuration's number, or an operator's.
    pub set: u32,
    /// When it is whole again if nothing more happens, in milliseconds since the epoch.
    pub ends_ms: u64,
    /// It is an event of its own, not one more refusal of the last.
    pub is_new: bool,
}

impl Learned {
    /// What is in force at most.
    pub fn most(&self, now: u64) -> u32 {
        let risen = match self.at_ms {
            0 => u32::MAX,
            _ => self.risen(now),
        };
        match self.told_until_ms > now {
            true => risen.min(self.told),
            false => risen,
        }
    }

    /// It says something yet.
    pub fn is_over(&self, now: u64) -> bool {
        self.ends_ms <= now
    }

    fn risen(&self, now: u64) -> u32 {
        let mut left = now.saturating_sub(self.at_ms);
        let (mut wait, mut steps) = (self.first_ms, 0);
        while wait > self.least_ms && left >= wait {
            left -= wait;
            steps += 1;
            wait = (wait / 2).max(self.least_ms);
        }
        if wait <= self.least_ms {
            steps += left / self.least_ms.max(1);
        }
        let risen = u64::from(self.to) + steps * u64::from(self.step);
        u32::try_from(risen).unwrap_or(u32::MAX)
    }

    /// When all that is said here is over, for a limit of `max`.
    fn end(&self, max: u32) -> u64 {
        if self.at_ms == 0 {
            return self.told_until_ms;
        }
        let mut steps = u64::from(max.saturating_sub(self.to)).div_ceil(self.step.max(1).into());
        let (mut at, mut wait) = (self.at_ms, self.first_ms);
        while steps > 0 && wait > self.least_ms {
            at += wait;
            steps -= 1;
            wait = (wait / 2).max(self.least_ms);
        }
        let whole = (at + steps * self.least_ms).min(self.at_ms + LEARNED_MS);
        whole.max(self.told_until_ms)
    }

    /// A call of so many `units` that started at `started_ms` was refused when `count` units counted against `limit`.
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
            if !is_bucket && (u64::from(floor)..u64::from(it.to)).contains(&given) {
                it.to = u32::try_from(given).unwrap_or(it.to);
                it.ends_ms = it.end(max);
            }
            return it;
        }
        let current = it.most(now).min(max).max(floor);
        let given = count.saturating_sub(units);
        let step = u64::from(max).div_ceil(STEPS);
        let current_units = u64::from(current);
        let to = if is_bucket {
            // It does not count a window: what it has says nothing of the number.
            let far = it.at_ms > 0 && now < it.at_ms + 2 * limit.window_ms();
            current_units.saturating_sub(if far { FAR * step } else { step })
        } else if given < u64::from(floor) {
            // Below the band it is another matter, or comes again.
            current_units - (current_units / SINKS).max(1)
        } else {
            given.min(current_units - 1)
        };
        let least_ms = limit.window_ms() * (CALLS * step).div_ceil(u64::from(max));
        let soon = it.at_ms > 0 && current_units <= u64::from(it.to) + 2 * step;
        if it.at_ms > 0 {
            it.past.rotate_right(1);
            it.past[0] = (it.at_ms, it.to);
        } else {
            it.since_ms = now;
        }
        it.first_ms = match soon {
            true => (2 * it.first_ms).clamp(least_ms, PATIENCE * least_ms),
            false => least_ms,
        };
        (it.at_ms, it.least_ms) = (now, least_ms);
        it.to = u32::try_from(to).unwrap_or(max).max(floor);
        it.step = u32::try_from(step).unwrap_or(u32::MAX);
        (it.seen, it.refused) = (count, units);
        it.ends_ms = it.end(max);
        it
    }

    /// The API says of its own limits that this `max` keeps them; 0: the limit does. `None`: nothing is left to say.
    fn told(known: Option<Self>, now: u64, limit: &Limit, max: u32) -> Option<Self> {
        let mut it = known.unwrap_or_default();
        (it.told, it.told_until_ms) = match max {
            0 => (0, 0),
            max => (max.max(limit.floor()?), now + TOLD_MS),
        };
        if it.since_ms == 0 {
            it.since_ms = now;
        }
        it.ends_ms = it.end(limit.max());
        (it.ends_ms > now).then_some(it)
    }

    /// As the store keeps it.
    pub(crate) fn text(&self) -> String {
        let Self {
            at_ms,
            to,
            first_ms,
            least_ms,
            step,
            ends_ms,
            told,
            told_until_ms,
            seen,
            refused,
            times,
            since_ms,
            past,
        } = self;
        let mut text = format!(
            "{at_ms},{to},{first_ms},{least_ms},{step},{ends_ms},{told},{told_until_ms},{seen},{refused},{times},{since_ms}"
        );
        for (at, to) in past.iter().filter(|(at, _)| *at > 0) {
            text += &format!(",{at},{to}");
        }
        text
    }

    /// What [`Learned::text`] wrote.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let numbers: Option<Vec<u64>> = text.split(',').map(|number| number.parse().ok()).collect();
        let numbers = numbers?;
        let &[
            at_ms,
            to,
            first_ms,
            least_ms,
            step,
            ends_ms,
            told,
            told_until_ms,
            seen,
            refused,
            times,
            since_ms,
            ref earlier @ ..,
        ] = numbers.as_slice()
        else {
            return None;
        };
        let mut past = [(0, 0); PAST];
        let (pairs, []) = earlier.as_chunks::<2>() else {
            return None;
        };
        for (place, [at, to]) in past.iter_mut().zip(pairs) {
            *place = (*at, u32::try_from(*to).ok()?);
        }
        Some(Self {
            at_ms,
            to: u32::try_from(to).ok()?,
            first_ms,
            least_ms,
            step: u32::try_from(step).ok()?,
            ends_ms,
            told: u32::try_from(told).ok()?,
            told_until_ms,
            seen,
            refused,
            times,
            since_ms,
            past,
        })
    }
}

/// What has been learned of the limits of one partition, by their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::rules) struct AllLearned(BTreeMap<String, Learned>);

impl AllLearned {
    /// Of this limit, as far as it counts yet.
    pub(in crate::rules) fn of(&self, limit: &Limit, now: u64) -> Option<&Learned> {
        limit.floor()?;
        let known = self.0.get(limit.name());
        known.filter(|known| !known.is_over(now))
    }

    /// `limit` as it is in force; `set` is the same with what an operator set.
    pub(in crate::rules) fn lowered(&self, limit: &Limit, set: Limit, now: u64) -> Limit {
        let most = self.of(limit, now).zip(limit.floor());
        match most.map(|(learned, floor)| learned.most(now).max(floor)) {
            Some(most) if most < set.max() => set.with_max(most),
            _ => set,
        }
    }

    /// The API refused a call, as [`Learned::refused`] has it.
    pub(in crate::rules) fn refuse(
        &mut self,
        now: u64,
        limit: &Limit,
        call: (u64, u64, u64),
    ) -> (u64, bool) {
        let known = self.of(limit, now).copied();
        let learned = Learned::refused(known, now, limit, call);
        let is_new = known.is_none_or(|known| known.at_ms != learned.at_ms);
        self.put(limit, now, Some(learned));
        (learned.ends_ms, is_new)
    }

    /// The API advertises what this `max` keeps; 0: the limit does. Returns when that is forgotten; `None`: nothing has changed.
    pub(in crate::rules) fn tell(&mut self, now: u64, limit: &Limit, max: u32) -> Option<u64> {
        let known = self.of(limit, now).copied();
        if max == 0 && known.is_none_or(|known| known.told_until_ms == 0) {
            return None;
        }
        let learned = Learned::told(known, now, limit, max);
        self.put(limit, now, learned);
        Some(learned.map_or(now, |learned| learned.ends_ms))
    }

    /// The same clears what is over.
    fn put(&mut self, limit: &Limit, now: u64, learned: Option<Learned>) {
        self.0.retain(|_, known| !known.is_over(now));
        self.0.remove(limit.name());
        (self.0).extend(learned.map(|learned| (limit.name().to_owned(), learned)));
    }

    /// Until when any of it counts.
    pub(in crate::rules) fn kept_until(&self) -> u64 {
        self.0
            .values()
            .map(|known| known.ends_ms)
            .max()
            .unwrap_or(0)
    }
}

/// The longest wait that the limit's window explains, in milliseconds.
pub(in crate::rules) fn explained_ms(limit: &Limit) -> u64 {
    EXPLAINED_MS.max(2 * limit.window_ms())
}

/// Whether a refusal of a call that started at `started_ms` says how much of `limit` the API gives: what it counted with is counted
/// yet, and the API does not refuse for longer than the limit's window explains.
pub(in crate::rules) fn is_heard(limit: &Limit, now: u64, started_ms: u64, after_ms: u64) -> bool {
    let span = limit.span();
    if limit.floor().is_none() || limit.window_ms() == 0 || after_ms > explained_ms(limit) {
        return false;
    }
    if limit.algorithm().has_burst() {
        true
    } else if limit.algorithm().rules().is_aligned() {
        started_ms / span == now / span
    } else {
        now.saturating_sub(started_ms) < span
    }
}
