//! A client of the in-memory server: its session and its unacked messages.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::queue::StoredMessage;
use crate::{BrokerEvent, Delivery, DeliverySource, Tag};
use rules::delays::QueueNames;

/// Maximum number of deliveries in one event.
const MAX_DELIVERIES_PER_EVENT: usize = 128;
/// The recheck queue's prefetch is that of the main queues divided by this.
const RECHECK_SHARE: usize = 8;

pub(super) struct MemoryClient {
    pub session: u64,
    /// When the next session may begin, or `None` while a session is up.
    pub up_at: Option<Instant>,
    prefetch: usize,
    window: usize,
    /// Whether it wants no session.
    pub resting: bool,
    /// Whether it takes one message from each queue at a time.
    pub takes_few: bool,
    /// Whether it takes new jobs from the work queue.
    pub takes_new: bool,
    pub stopped: bool,
    /// Whether it was stopped without a session: no session begins, and no event comes anymore.
    pub ended: bool,
    pub closed: bool,
    pub unacked: HashMap<Tag, StoredMessage, RandomState>,
    /// Number of `unacked` messages from each source.
    pub held: Vec<usize>,
    /// Whether it stands in the line of each source.
    pub is_queued: Vec<bool>,
    last_tag: u64,
    pub news: VecDeque<BrokerEvent>,
    /// Tags of `unacked` that were not passed on as events yet, in order.
    pub arriving: VecDeque<Tag>,
    /// Notified when there may be an event.
    pub bell: Arc<Notify>,
}

impl MemoryClient {
    /// Creates a client that is about to have a session. `sources` is the number of sources.
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
            unacked: HashMap::default(),
            held: vec![0; sources],
            is_queued: vec![false; sources],
            last_tag: 0,
            news: VecDeque::new(),
            arriving: VecDeque::new(),
            bell: Arc::default(),
        }
    }

    /// Returns true if nothing can be published. A stopped client has no session to wait for,
    /// because publishes use a connection of their own.
    pub fn is_down(&self, now: Instant) -> bool {
        let away = |at: Instant| !self.ended || at > now;
        self.closed || self.up_at.is_some_and(away)
    }

    /// Returns when the next session begins, or `None` while one is up or the client rests.
    pub fn next_session(&self) -> Option<Instant> {
        self.up_at.filter(|_| !self.resting)
    }

    /// Ends a stopped client without a session. The real broker does not reconnect for a session
    /// that it would not use.
    pub fn end_if_idle(&mut self) {
        self.ended |= self.stopped && self.up_at.is_some();
    }

    /// Returns true if it takes deliveries.
    pub fn consumes(&self) -> bool {
        self.up_at.is_none() && !self.stopped && !self.closed
    }

    /// Returns how many more messages of `source`, which has this number, it may take.
    pub fn room(&self, source: DeliverySource, number: usize) -> usize {
        let prefetch = match source {
            _ if !self.consumes() => 0,
            DeliverySource::Fresh if !self.takes_new => 0,
            _ if self.takes_few => 1,
            DeliverySource::Fresh | DeliverySource::Due => self.prefetch,
            DeliverySource::Recheck => (self.prefetch / RECHECK_SHARE).max(1),
            DeliverySource::Delay(_) => self.window,
        };
        prefetch.saturating_sub(self.held[number])
    }

    /// Delivers `stored` to the client.
    pub fn deliver(&mut self, source: DeliverySource, number: usize, stored: StoredMessage) {
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

    /// Returns the next event: news first, then deliveries. `names` are the names of the queues.
    pub fn next_event(&mut self, names: &QueueNames) -> Option<BrokerEvent> {
        if let Some(event) = self.news.pop_front() {
            return Some(event);
        }
        let count = self.arriving.len().min(MAX_DELIVERIES_PER_EVENT);
        let unacked = &self.unacked;
        let deliver = |tag: Tag| {
            let stored = unacked.get(&tag)?;
            Some(Delivery {
                source: tag.source,
                tag,
                redelivered: stored.redelivered,
                message: stored.message(names.of(tag.source)).into(),
            })
        };
        let batch: Vec<Delivery> = self.arriving.drain(..count).filter_map(deliver).collect();
        (!batch.is_empty()).then_some(BrokerEvent::Deliveries(batch))
    }
}
