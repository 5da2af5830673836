//! Messages on their way to another queue: published, confirmed, and only then acked.
//!
//! A target is one of our queues or the target of a result. A target that does not take a message
//! is stuck: the worker tries one message at a time until the target takes it, and the others wait.
//! Waiting messages hold a part of the prefetch, so they are bounded in number and time: see
//! [`Moves::due`].

mod due;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;

use self::due::RECHECK_DELAY;
use crate::action::JobKey;
use broker::{ExternalMessage, Message, Outgoing, PublishError, Tag};
use rules::failures::retry::pause;
use rules::headers::Headers;
use rules::tenant::Tenant;

/// Wait before the first retry of a publish; it doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest wait between two retries of a publish.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// Maximum wait of a message whose target has failed [`MIN_FAILURES`] times. After that, a result
/// whose publisher named the target is given up, and a job takes another route. A job over which
/// RabbitMQ closes the channel returns to its queue.
const STUCK_PATIENCE: Duration = Duration::from_secs(30);
/// [`STUCK_PATIENCE`] for a result for the configured exchange, for the only message that waits for
/// one of our queues, and for a dead letter over which RabbitMQ closes the channel. If RabbitMQ
/// takes back unacked deliveries sooner, `leaving/hold_limit.rs` ends the move.
const MAX_STUCK_PATIENCE: Duration = Duration::from_secs(600);
/// Minimum number of failures before a message stops waiting for its target.
const MIN_FAILURES: u32 = 3;
/// The longest wait between two tries of a message over which RabbitMQ closes the channel.
const MAX_REFUSED_PAUSE: Duration = Duration::from_secs(60);

/// Exchange and routing key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct MoveTarget(Arc<str>, Arc<str>);

/// A message's next queue, and the headers that it gets for its way.
pub struct Destination {
    pub queue: Arc<str>,
    pub headers: Headers,
}

/// A message and the delivery that it replaces.
#[derive(Debug)]
pub struct Move {
    /// The delivery, which is acked in the end.
    pub tag: Tag,
    /// When the delivery arrived.
    pub delivered: Duration,
    /// The job's tenant, or `None` if the message is not a usable job.
    pub tenant: Option<Tenant>,
    /// The result, until it is sent.
    pub result: Option<Box<ExternalMessage>>,
    /// The message, or `None` if the job is done.
    pub outgoing: Option<Outgoing>,
    /// Earliest time at which the result, or after it the message, could be sent.
    pub since: Duration,
}

impl Move {
    /// Creates a move that begins now and replaces a delivery, which has a tag and a time of
    /// arrival, with `result` if there is a result.
    pub fn new(
        now: Duration,
        (tag, delivered): (Tag, Duration),
        tenant: Option<Tenant>,
        result: Option<ExternalMessage>,
    ) -> Self {
        Self {
            tag,
            delivered,
            tenant,
            result: result.map(Box::new),
            outgoing: None,
            since: now,
        }
    }

    /// Adds a message that follows the result.
    pub fn to(self, queue: Arc<str>, message: Message) -> Self {
        let outgoing = Some(Outgoing { queue, message });
        Self { outgoing, ..self }
    }
}

#[derive(Debug)]
struct MoveEntry {
    of: Move,
    failures: u32,
    /// RabbitMQ's reason for closing the channel over the message, if it did.
    refusal: Option<String>,
    /// When to look for another route again.
    retry_route_at: Duration,
}

impl MoveEntry {
    fn target(&self) -> Option<MoveTarget> {
        match (&self.of.result, &self.of.outgoing) {
            (Some(result), _) => Some(target_of(result)),
            (None, Some(it)) => Some(MoveTarget(Arc::from(""), Arc::clone(&it.queue))),
            (None, None) => None,
        }
    }

    fn next(&self, key: JobKey) -> MoveStep {
        match (&self.of.result, &self.of.outgoing) {
            (Some(result), _) => MoveStep::PublishResult((key, (**result).clone())),
            (None, Some(outgoing)) => MoveStep::Publish((key, outgoing.clone())),
            (None, None) => MoveStep::Ack(self.of.tag),
        }
    }
}

fn target_of(result: &ExternalMessage) -> MoveTarget {
    MoveTarget(
        Arc::clone(&result.exchange),
        Arc::clone(&result.routing_key),
    )
}

/// A target that did not take a message.
#[derive(Debug)]
struct StuckTarget {
    since: Duration,
    failures: u32,
    /// Whether the target refused a message or did not confirm it, so that the connection is not at
    /// fault.
    is_to_blame: bool,
    failed_at: Duration,
    /// Earliest time of the next try.
    try_at: Duration,
    /// The message that tries the target now.
    trying: Option<JobKey>,
    waiting: VecDeque<JobKey>,
}

impl StuckTarget {
    /// Returns true if the next message may try the target.
    fn is_due(&self, now: Duration) -> bool {
        self.trying.is_none() && self.try_at <= now
    }
}

/// A move that was given up: the delivery goes back to its queue.
#[derive(Debug)]
pub struct ReturnedMove {
    pub key: JobKey,
    pub of: Move,
    /// RabbitMQ's reason for closing the channel over the message, if it did.
    pub refusal: Option<String>,
}

/// The next step of a move.
#[derive(Debug)]
pub enum MoveStep {
    /// Publish the job's result.
    PublishResult((JobKey, ExternalMessage)),
    /// Publish the message.
    Publish((JobKey, Outgoing)),
    /// Ack the delivery.
    Ack(Tag),
}

/// All moves that are not acked yet.
#[derive(Debug)]
pub struct Moves {
    all: HashMap<JobKey, MoveEntry, RandomState>,
    stuck: BTreeMap<MoveTarget, StuckTarget>,
    /// Moves scheduled for a later time.
    later: BTreeSet<(Duration, JobKey)>,
    /// Unanswered results for direct reply-to targets that publishers named, the oldest first.
    direct: BTreeSet<(Duration, JobKey)>,
    /// When [`Moves::due`] next has something to do, apart from `direct`.
    next_at: Option<Duration>,
    /// When [`Moves::due`] last had something to do.
    checked_at: Duration,
    prefetch: usize,
    dead: Arc<str>,
    /// Whether publishers name the targets of results.
    are_targets_named: bool,
    /// Whether the worker is about to end.
    ends: bool,
}

impl Moves {
    /// Creates the moves of a worker with this prefetch, whose dead letters go to the queue `dead`.
    /// `are_targets_named`: publishers name the targets of results.
    pub fn new(prefetch: usize, dead: Arc<str>, are_targets_named: bool) -> Self {
        Self {
            all: HashMap::default(),
            stuck: BTreeMap::new(),
            later: BTreeSet::new(),
            direct: BTreeSet::new(),
            next_at: None,
            checked_at: Duration::ZERO,
            prefetch,
            dead,
            are_targets_named,
            ends: false,
        }
    }

    /// Returns the number of moves.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the number of moves that wait for RabbitMQ, not for a later time.
    pub fn busy(&self) -> usize {
        self.all.len() - self.later.len()
    }

    /// Returns true if a move waits for a stuck target.
    pub fn are_stuck(&self) -> bool {
        let waits = |stuck: &StuckTarget| !stuck.waiting.is_empty() || stuck.trying.is_some();
        self.stuck.values().any(waits)
    }

    /// Begins a move. Returns `None` if it waits for a stuck target.
    pub fn begin(&mut self, now: Duration, key: JobKey, of: Move) -> Option<MoveStep> {
        self.insert(key, of);
        self.send(now, key)
    }

    /// Begins a move that is sent later, at the time `at`.
    pub fn begin_later(&mut self, key: JobKey, at: Duration, of: Move) {
        self.insert(key, of);
        self.send_later(at, key);
    }

    fn insert(&mut self, key: JobKey, of: Move) {
        if self.are_targets_named && of.result.as_ref().is_some_and(|it| it.is_direct()) {
            self.direct.insert((of.since, key));
        }
        let entry = MoveEntry {
            of,
            failures: 0,
            refusal: None,
            retry_route_at: Duration::ZERO,
        };
        self.all.insert(key, entry);
    }

    fn send_later(&mut self, at: Duration, key: JobKey) {
        self.later.insert((at, key));
        self.wake_at(at);
    }

    fn wake_at(&mut self, at: Duration) {
        self.next_at = Some(self.next_at.map_or(at, |next| next.min(at)));
    }

    /// Returns the next step of a move, or `None` if its target is stuck and it waits.
    fn send(&mut self, now: Duration, key: JobKey) -> Option<MoveStep> {
        let entry = self.all.get_mut(&key)?;
        if let Some(stuck) = entry.target().and_then(|it| self.stuck.get_mut(&it)) {
            if !(stuck.is_due(now) && stuck.waiting.is_empty()) {
                stuck.waiting.push_back(key);
                self.wake_at(now);
                return None;
            }
            stuck.trying = Some(key);
        }
        Some(entry.next(key))
    }

    /// Ends the wait for a result that was published or given up. Returns the result and the next
    /// steps, or `None` if its session is gone. `is_open`: the target has answered, so other
    /// messages may go there.
    pub fn result_ended(
        &mut self,
        now: Duration,
        key: JobKey,
        is_open: bool,
    ) -> Option<(ExternalMessage, Vec<MoveStep>)> {
        let entry = self.all.get_mut(&key)?;
        let result = *entry.of.result.take()?;
        self.direct.remove(&(entry.of.since, key));
        (entry.failures, entry.refusal, entry.of.since) = (0, None, now);
        let tag = entry.of.outgoing.is_none().then_some(entry.of.tag);
        let freed = self.leave(now, &target_of(&result), key, is_open);
        let next = match tag {
            Some(tag) => {
                self.all.remove(&key);
                Some(MoveStep::Ack(tag))
            }
            None => self.send(now, key),
        };
        Some((result, next.into_iter().chain(freed).collect()))
    }

    /// Ends a move whose message was confirmed. Returns the tag to ack and the next steps of other
    /// moves, or `None` if its session is gone.
    pub fn confirmed(&mut self, now: Duration, key: JobKey) -> Option<(Tag, Vec<MoveStep>)> {
        let entry = self.all.remove(&key)?;
        let target = entry.target()?;
        Some((entry.of.tag, self.leave(now, &target, key, true)))
    }

    /// Ends a message's wait for its target. If the target is open, the messages waiting behind it
    /// come next.
    fn leave(
        &mut self,
        now: Duration,
        target: &MoveTarget,
        key: JobKey,
        is_open: bool,
    ) -> Vec<MoveStep> {
        if is_open {
            let stuck = self.stuck.remove(target);
            let waiting = stuck.into_iter().flat_map(|stuck| stuck.waiting);
            return waiting.filter_map(|key| self.send(now, key)).collect();
        }
        if let Some(stuck) = self.stuck.get_mut(target) {
            stuck.waiting.retain(|other| *other != key);
            if stuck.trying == Some(key) {
                stuck.trying = None;
                self.wake_at(now);
            }
        }
        Vec::new()
    }

    /// Schedules another try after a failed publish. Returns true if it is the first failure of the
    /// target, or of a refused message; `None` if its session is gone.
    pub fn failed(&mut self, now: Duration, key: JobKey, why: &PublishError) -> Option<bool> {
        let entry = self.all.get_mut(&key)?;
        entry.failures += 1;
        let failures = entry.failures;
        let target = entry.target()?;
        // The message is to blame, not its target.
        if let PublishError::Refused(reason) | PublishError::Forbidden(reason) = why {
            entry.refusal = Some(reason.clone());
            self.leave(now, &target, key, false);
            self.send_later(now + pause(FIRST_PAUSE, MAX_REFUSED_PAUSE, failures), key);
            return Some(failures == 1);
        }
        let is_news = !self.stuck.contains_key(&target);
        let stuck = self.stuck.entry(target).or_insert_with(|| StuckTarget {
            since: now,
            failures: 0,
            is_to_blame: false,
            failed_at: now,
            try_at: now,
            trying: None,
            waiting: VecDeque::new(),
        });
        stuck.is_to_blame |= !matches!(why, PublishError::Down(_));
        // Failures of messages sent before the target was known to be stuck do not count.
        if is_news || stuck.trying == Some(key) {
            stuck.trying = None;
            stuck.failures += 1;
            stuck.try_at = now + pause(FIRST_PAUSE, MAX_PAUSE, stuck.failures);
            stuck.failed_at = now;
        }
        stuck.waiting.push_back(key);
        self.wake_at(now);
        Some(is_news)
    }

    /// Returns true if a refused result is given up: at once if its publisher named the target, else
    /// after [`MAX_STUCK_PATIENCE`], in which the operator may fix the configured exchange.
    pub fn gives_up_refused_result(&self, now: Duration, key: JobKey) -> bool {
        let is_old = |entry: &MoveEntry| {
            entry.failures >= MIN_FAILURES && entry.of.since + MAX_STUCK_PATIENCE <= now
        };
        self.are_targets_named || self.all.get(&key).is_some_and(is_old)
    }

    /// Returns the message to publish, or `None` while its result comes first.
    pub fn outgoing(&self, key: JobKey) -> Option<&Outgoing> {
        let of = &self.all.get(&key)?.of;
        of.outgoing.as_ref().filter(|_| of.result.is_none())
    }

    /// Returns true if the job's result is not sent yet.
    pub fn has_result(&self, key: JobKey) -> bool {
        self.all.get(&key).is_some_and(|it| it.of.result.is_some())
    }

    /// Returns true if `queue` is stuck.
    pub fn is_stuck(&self, queue: &Arc<str>) -> bool {
        let target = MoveTarget(Arc::from(""), Arc::clone(queue));
        self.stuck.contains_key(&target)
    }

    /// Sends `outgoing` to another queue in place of the message for the stuck queue.
    pub fn reroute(&mut self, now: Duration, key: JobKey, outgoing: Outgoing) -> Option<MoveStep> {
        let target = self.all.get(&key)?.target()?;
        self.leave(now, &target, key, false);
        let entry = self.all.get_mut(&key)?;
        (entry.of.outgoing, entry.of.since) = (Some(outgoing), now);
        self.send(now, key)
    }

    /// Lets a message that has no other route wait for its target again.
    pub fn keep(&mut self, now: Duration, key: JobKey) {
        if let Some(entry) = self.all.get_mut(&key) {
            entry.retry_route_at = now + RECHECK_DELAY;
            self.wake_at(now + RECHECK_DELAY);
        }
    }

    /// Removes a message over which RabbitMQ closes the channel, once its time for retries is over.
    fn take_refused(&mut self, now: Duration, key: JobKey) -> Option<ReturnedMove> {
        let entry = self.all.get_mut(&key)?;
        let outgoing = entry
            .of
            .outgoing
            .as_ref()
            .filter(|_| entry.of.result.is_none())?;
        let patience = match outgoing.queue == self.dead {
            true => MAX_STUCK_PATIENCE,
            false => STUCK_PATIENCE,
        };
        if entry.failures < MIN_FAILURES || now < entry.of.since + patience {
            return None;
        }
        let refusal = Some(entry.refusal.take()?);
        let of = self.all.remove(&key)?.of;
        Some(ReturnedMove { key, of, refusal })
    }

    /// Removes the moves whose deliveries arrived at or before `until`, because RabbitMQ is about
    /// to take those deliveries back.
    pub fn take_held(&mut self, now: Duration, until: Duration) -> Vec<ReturnedMove> {
        let held = self.all.iter().filter(|(_, it)| it.of.delivered <= until);
        let mut held: Vec<JobKey> = held.map(|(key, _)| *key).collect();
        // Sorted by arrival, because the map has no stable order.
        held.sort_unstable();
        let mut returned = Vec::with_capacity(held.len());
        for key in held {
            let target = self.all.get(&key).and_then(MoveEntry::target);
            if let Some(target) = target {
                self.leave(now, &target, key, false);
            }
            if let Some(MoveEntry { of, refusal, .. }) = self.all.remove(&key) {
                self.direct.remove(&(of.since, key));
                returned.push(ReturnedMove { key, of, refusal });
            }
        }
        self.later.retain(|(_, key)| self.all.contains_key(key));
        returned
    }

    /// Prepares for the end of the worker: a job whose result waits for a stuck target that its
    /// publisher named ends without it, so that it is not called again. Results for the configured
    /// exchange still wait, and their jobs run again if the worker ends first.
    pub fn stop(&mut self) {
        self.ends = true;
        if !self.stuck.is_empty() {
            self.wake_at(Duration::ZERO);
        }
    }

    /// Forgets all moves: the broker delivers the originals again.
    pub fn clear(&mut self) {
        self.all.clear();
        self.stuck.clear();
        self.later.clear();
        self.direct.clear();
        self.next_at = None;
    }
}

#[cfg(test)]
mod tests;
