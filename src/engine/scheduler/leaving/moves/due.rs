//! Handles messages of stuck targets: picks the message that tries its target, finds messages that
//! have waited too long or are too many, and summarizes stuck targets for operators.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{
    MAX_STUCK_PATIENCE, MIN_FAILURES, Move, MoveEntry, MoveStep, MoveTarget, Moves, ReturnedMove,
    STUCK_PATIENCE, StuckTarget,
};
use crate::action::JobKey;
use broker::{DeliverySource, MessageKind};

/// Delay before a message without another route is checked again.
pub(super) const RECHECK_DELAY: Duration = Duration::from_secs(10);
/// The prefetch divided by this bounds the messages that wait for one target, and those for all
/// targets that one tenant's publishers name.
const SHARE_OF_ONE: usize = 8;
/// The prefetch divided by this bounds the messages that wait for all stuck targets together, as
/// long as further messages have another route.
const SHARE_OF_ALL: usize = 2;
/// Time after which an unanswered result for a direct reply-to target is late. Such a target is
/// not durable, so RabbitMQ answers at once unless the connection fails because of other targets.
const DIRECT_PATIENCE: Duration = Duration::from_secs(1);
/// Minimum interval between checks for late results of this kind.
const DIRECT_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How long a stuck target without waiting messages is remembered.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// Maximum number of such targets.
const MAX_REMEMBERED: usize = 1000;

/// The result of [`Moves::due`].
#[derive(Debug, Default)]
pub struct DueMoves {
    /// Steps to take now.
    pub next: Vec<MoveStep>,
    /// Messages that have waited long enough or are too many. Each needs another route.
    pub overdue: Vec<JobKey>,
    /// Messages over which RabbitMQ has closed the channel for too long.
    pub refused: Vec<ReturnedMove>,
}

/// Stuck targets of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standstill {
    /// Number of messages waiting for these targets.
    pub messages: usize,
    /// Routing key of the target that has been stuck the longest. It is a queue's name if there is
    /// no exchange.
    pub key: Arc<str>,
    /// When that target got stuck.
    pub since: Duration,
}

impl Moves {
    /// Returns the steps to take now. A result whose publisher named its target is over after about
    /// 30 s, or if more than an eighth of the prefetch waits for one target or for one tenant's
    /// targets, or more than half of it for all targets. The same goes for jobs and dead letters,
    /// except for one message per queue, which tries it. A result for a direct reply-to target counts
    /// as waiting after 1 s without an answer, even if no target is stuck. Results for an exchange
    /// that the operator named have 10 minutes. A job over which RabbitMQ closes the channel is over
    /// after 30 s, a dead letter after 10 minutes.
    pub fn due(&mut self, now: Duration) -> DueMoves {
        let mut due = DueMoves::default();
        if self.next().is_none_or(|at| now < at) {
            return due;
        }
        self.checked_at = now;
        while let Some(&(at, key)) = self.later.first()
            && at <= now
        {
            self.later.pop_first();
            match self.take_refused(now, key) {
                Some(returned) => due.refused.push(returned),
                None => due.next.extend(self.send(now, key)),
            }
        }
        for stuck in self.stuck.values_mut() {
            if stuck.is_due(now)
                && let Some(key) = stuck.waiting.pop_front()
                && let Some(entry) = self.all.get(&key)
            {
                stuck.trying = Some(key);
                due.next.push(entry.next(key));
            }
        }
        self.forget_old(now);
        let mut overdue = BTreeSet::new();
        self.find_old(now, &mut overdue);
        self.find_surplus(now, &mut overdue);
        // A late result may be trying its target.
        let is_over = |next: &MoveStep| matches!(next, MoveStep::PublishResult((key, _)) if overdue.contains(key));
        due.next.retain(|next| !is_over(next));
        due.overdue = overdue.into_iter().collect();
        self.next_at = self.find_next(now);
        due
    }

    /// Returns when [`Moves::due`] has something to do, if nothing happens before.
    pub fn next(&self) -> Option<Duration> {
        self.next_at.into_iter().chain(self.next_direct()).min()
    }

    fn forget_old(&mut self, now: Duration) {
        let mut left = MAX_REMEMBERED;
        self.stuck.retain(|_, stuck| {
            let is_used = stuck.trying.is_some() || !stuck.waiting.is_empty();
            let is_kept = is_used || left > 0 && now < stuck.failed_at + REMEMBERED_FOR;
            left = left.saturating_sub(usize::from(is_kept && !is_used));
            is_kept
        });
    }

    /// Returns the maximum wait of a message of `stuck`, or `None` while the target has failed
    /// fewer than [`MIN_FAILURES`] times.
    fn patience(&self, stuck: &StuckTarget, entry: &MoveEntry) -> Option<Duration> {
        let is_alone = stuck.waiting.len() == 1 && stuck.trying.is_none();
        let is_result = entry.of.result.is_some();
        let is_named = is_result && self.are_targets_named;
        if is_named && self.ends {
            return Some(Duration::ZERO);
        }
        if is_result && !is_named || !is_result && is_alone {
            return Some(MAX_STUCK_PATIENCE);
        }
        (stuck.failures >= MIN_FAILURES).then_some(STUCK_PATIENCE)
    }

    /// Returns the waiting messages that may have another route, with their entries. Jobs and dead
    /// letters have none without a connection.
    fn waiting<'a>(
        &'a self,
        now: Duration,
        stuck: &'a StuckTarget,
    ) -> impl Iterator<Item = (JobKey, &'a MoveEntry)> {
        let entries = stuck.waiting.iter();
        let entries = entries.filter_map(|key| Some((*key, self.all.get(key)?)));
        entries.filter(move |(_, entry)| {
            let may_leave = stuck.is_to_blame || entry.of.result.is_some();
            may_leave && entry.retry_route_at <= now
        })
    }

    fn find_old(&self, now: Duration, overdue: &mut BTreeSet<JobKey>) {
        for stuck in self.stuck.values() {
            // One message for each of our queues stays, to try it.
            let mut may_try = stuck.trying.is_none();
            for (key, entry) in self.waiting(now, stuck) {
                let waited = now.saturating_sub(entry.of.since);
                let may_stay = entry.of.result.is_none() && waited < MAX_STUCK_PATIENCE;
                if may_stay && std::mem::take(&mut may_try) {
                    continue;
                }
                if (self.patience(stuck, entry)).is_some_and(|patience| patience <= waited) {
                    overdue.insert(key);
                }
            }
        }
    }

    fn find_surplus(&self, now: Duration, overdue: &mut BTreeSet<JobKey>) {
        let (mut all, mut tenants) = (BTreeSet::new(), BTreeMap::<_, BTreeSet<_>>::new());
        let mut waiting = 0;
        for stuck in self.stuck.values() {
            if !stuck.is_to_blame && stuck.failures < MIN_FAILURES {
                continue;
            }
            waiting += stuck.waiting.len();
            let mut own = BTreeSet::new();
            let from_window = |of: &Move| matches!(of.tag.source, DeliverySource::Delay(_));
            let mut has_trier = stuck.trying.is_some()
                || (self.waiting(now, stuck)).any(|(_, entry)| !from_window(&entry.of));
            for (key, entry) in self.waiting(now, stuck) {
                let of = &entry.of;
                let named = of.result.as_ref().map(|_| self.are_targets_named);
                if named == Some(false) {
                    continue;
                }
                own.insert((of.since, key));
                if named.is_some() {
                    let of_tenant = tenants.entry(of.tenant.as_ref()).or_default();
                    of_tenant.insert((of.since, key));
                } else if from_window(of) && std::mem::replace(&mut has_trier, true) {
                    // It would hold up other jobs in the window of its delay queue.
                    overdue.insert(key);
                }
            }
            take_oldest(&own, stuck.waiting.len(), self.share(SHARE_OF_ONE), overdue);
            all.append(&mut own);
        }
        for (since, key) in self.late_direct(now) {
            if let Some(entry) = self.all.get(&key) {
                // It may be one of those above.
                waiting += usize::from(all.insert((since, key)));
                let of_tenant = tenants.entry(entry.of.tenant.as_ref()).or_default();
                of_tenant.insert((since, key));
            }
        }
        for of_tenant in tenants.into_values() {
            let max = self.share(SHARE_OF_ONE);
            take_oldest(&of_tenant, of_tenant.len(), max, overdue);
        }
        take_oldest(&all, waiting, self.share(SHARE_OF_ALL), overdue);
    }

    /// Returns a part of the prefetch.
    fn share(&self, part: usize) -> usize {
        (self.prefetch / part).max(1)
    }

    /// Returns the results for direct reply-to targets that are late, the oldest first.
    fn late_direct(&self, now: Duration) -> impl Iterator<Item = (Duration, JobKey)> {
        let all = self.direct.iter().copied();
        all.take_while(move |(since, _)| *since + DIRECT_PATIENCE <= now)
    }

    /// Returns when to check again whether too many results for direct reply-to targets are late.
    fn next_direct(&self) -> Option<Duration> {
        let (oldest, _) = self.direct.first()?;
        let at = (*oldest + DIRECT_PATIENCE).max(self.checked_at + DIRECT_CHECK_INTERVAL);
        (self.direct.len() > self.share(SHARE_OF_ONE)).then_some(at)
    }

    fn find_next(&self, now: Duration) -> Option<Duration> {
        let later = self.later.first().map(|(at, _)| *at);
        let of_stuck = self.stuck.values().filter_map(|stuck| {
            let keys = stuck.waiting.iter();
            let ends = keys.filter_map(|key| {
                let entry = self.all.get(key)?;
                let end = entry.of.since + self.patience(stuck, entry)?;
                let end = end.max(entry.retry_route_at);
                // A message whose time is over was checked just now.
                Some(if now < end { end } else { now + RECHECK_DELAY })
            });
            let tries = !stuck.waiting.is_empty() && stuck.trying.is_none();
            ends.chain(tries.then_some(stuck.try_at)).min()
        });
        of_stuck.chain(later).min()
    }

    /// Summarizes the targets that have been stuck for `long`, by kind, in the order of
    /// [`MessageKind::NAMES`].
    pub fn standstills(&self, now: Duration, long: Duration) -> [Option<Standstill>; 3] {
        let mut all = [const { None }; 3];
        for (target, stuck) in &self.stuck {
            let messages = stuck.waiting.len() + usize::from(stuck.trying.is_some());
            if messages == 0 || now < stuck.since + long {
                continue;
            }
            let new = || Standstill {
                messages: 0,
                key: Arc::clone(&target.1),
                since: stuck.since,
            };
            let of_kind: &mut Option<Standstill> = &mut all[self.kind(target, stuck) as usize];
            let known = of_kind.get_or_insert_with(new);
            if stuck.since < known.since {
                *known = Standstill {
                    messages: known.messages,
                    ..new()
                };
            }
            known.messages += messages;
        }
        all
    }

    fn kind(&self, target: &MoveTarget, stuck: &StuckTarget) -> MessageKind {
        let some = stuck.trying.as_ref().or_else(|| stuck.waiting.front());
        match some {
            Some(key) if self.has_result(*key) => MessageKind::Result,
            _ if target.1 == self.dead => MessageKind::DeadLetter,
            _ => MessageKind::Job,
        }
    }
}

/// Adds the oldest of `some` to `overdue` until `max` of `waiting` are left.
fn take_oldest(
    some: &BTreeSet<(Duration, JobKey)>,
    waiting: usize,
    max: usize,
    overdue: &mut BTreeSet<JobKey>,
) {
    let keys = some.iter().map(|(_, key)| *key);
    let left: Vec<JobKey> = keys.filter(|key| !overdue.contains(key)).collect();
    let waiting = waiting - (some.len() - left.len());
    overdue.extend(left.into_iter().take(waiting.saturating_sub(max)));
}
