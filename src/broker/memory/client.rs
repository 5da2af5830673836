//! A client of the server in memory: its session, and what it has taken.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::queue::Stored;
use crate::broker::{Delivery, Event, Source, Tag};
use crate::rules::delays::QueueNames;

/// Deliveries in one event.
const GATHER: usize = 128;
/// The recheck queue's share of the prefetch: 1 / this.
const RECHECK_SHARE: usize = 8;

pub(super) struct Client {
    pub session: u64,
    /// When the next session may begin; `None`: it is up.
    pub up_at: Option<Instant>,
    prefetch: usize,
    window: usize,
    /// It wants no session.
    pub resting: bool,
    /// It takes one message from each queue at a time.
    pub takes_few: bool,
    /// It wants jobs of the work queue.
    pub takes_new: bool,
    pub stopped: bool,
    /// Stopped without a session: no other one begins, and no event comes any more.
    pub ended: bool,
    pub closed: bool,
    pub unacked: BTreeMap<Tag, Stored>,
    /// How many of them each source gave.
    pub held: Vec<usize>,
    /// Whether it is in the line of each source.
    pub in_line: Vec<bool>,
    last_tag: u64,
    pub news: VecDeque<Event>,
    /// Those of `unacked` that it was not told of yet, in their order.
    pub arriving: VecDeque<Tag>,
    /// There may be something for it.
    pub bell: Arc<Notify>,
}

impl Client {
    /// One that is about to have a session. There are so many `sources`.
    pub fn new(prefetch: u16, window: usize, sources: usize) -> Self {
        Self {
            session: 0,
            up_at: Some(Instant::now()),
            prefetch: usize::from(prefetch),
            window,
            resting: false,
            takes_few: false,
            takes_new: true,
            stopped: false,
            ended: false,
            closed: false,
            unacked: BTreeMap::new(),
            held: vec![0; sources],
            in_line: vec![false; sources],
            last_tag: 0,
            news: VecDeque::new(),
            arriving: VecDeque::new(),
            bell: Arc::default(),
        }
    }

    /// Nothing can be published. A stopped client has no session to wait for: its publishes have a connection of their own.
    pub fn is_down(&self, now: Instant) -> bool {
        let away = |at: Instant| !self.ended || at > now;
        self.closed || self.up_at.is_some_and(away)
    }

    /// When its next session begins: not while it is up, or rests.
    pub fn next_session(&self) -> Option<Instant> {
        self.up_at.filter(|_| !self.resting)
    }

    /// As with the real one, which does not look for a session that it would not use.
    pub fn end_if_idle(&mut self) {
        self.ended |= self.stopped && self.up_at.is_some();
    }

    /// It takes deliveries.
    pub fn consumes(&self) -> bool {
        self.up_at.is_none() && !self.stopped && !self.closed
    }

    /// How many messages of the source with this number it may take.
    pub fn room(&self, source: Source, number: usize) -> usize {
        let prefetch = match source {
            _ if !self.consumes() => 0,
            Source::Fresh if !self.takes_new => 0,
            _ if self.takes_few => 1,
            Source::Fresh | Source::Due => self.prefetch,
            Source::Recheck => (self.prefetch / RECHECK_SHARE).max(1),
            Source::Delay(_) => self.window,
        };
        prefetch.saturating_sub(self.held[number])
    }

    /// It has `stored` from now on.
    pub fn deliver(&mut self, source: Source, number: usize, stored: Stored) {
        self.last_tag += 1;
        let tag = Tag {
            session: self.session,
            source,
            tag: self.last_tag,
        };
        self.unacked.insert(tag, stored);
        self.held[number] += 1;
        self.arriving.push_back(tag);
        self.bell.notify_one();
    }

    /// The next event: news first, then what has arrived. `names` are those of the queues.
    pub fn next_event(&mut self, names: &QueueNames) -> Option<Event> {
        if let Some(event) = self.news.pop_front() {
            return Some(event);
        }
        let count = self.arriving.len().min(GATHER);
        let unacked = &self.unacked;
        let deliver = |tag: Tag| {
            let stored = unacked.get(&tag)?;
            Some(Delivery {
                source: tag.source,
                tag,
                redelivered: stored.redelivered,
                message: stored.message(names.of(tag.source)),
            })
        };
        let batch: Vec<Delivery> = self.arriving.drain(..count).filter_map(deliver).collect();
        (!batch.is_empty()).then_some(Event::Deliveries(batch))
    }
}
