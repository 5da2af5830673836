//! The server's state: the messages in the queues, and the messages that clients have taken.
//!
//! As in RabbitMQ, a message goes to a client as soon as the client has room for it. It is unacked
//! from then on, even before the client looks at it. Clients with room take turns.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::client::MemoryClient;
use super::queue::{MemoryQueue, StoredMessage};
use super::{FaultPlan, PublishFault};
use crate::message::as_sent;
use crate::{BrokerEvent, DeliverySource, ExternalMessage, Message, Outgoing, PublishError, Tag};
use rules::delays::{DelayLevels, QueueNames};

/// The result of [`MemoryServerState::step`] for one client.
pub(super) struct ClientStep {
    /// Whether there is an event to take.
    pub ready: bool,
    /// When the next session begins on its own, if one does.
    pub wake: Option<Instant>,
    /// Whether no event will come anymore.
    pub closed: bool,
}

pub(super) struct MemoryServerState {
    pub names: QueueNames,
    /// Deliveries of all messages to all clients.
    pub deliveries: u64,
    pub publishes: u64,
    pub plan: FaultPlan,
    /// The queues of `sources`, and the dead letters.
    queues: Vec<MemoryQueue>,
    numbers: HashMap<Arc<str>, usize, RandomState>,
    /// The sources in the order of their delivery.
    sources: Vec<DeliverySource>,
    missing: HashSet<Arc<str>>,
    /// The queue to which each exchange and key lead, for queues that are not the worker's own.
    bound: HashMap<(String, String), String>,
    /// The messages in queues that are not the worker's own.
    pub results: HashMap<String, Vec<Message>>,
    clients: Vec<MemoryClient>,
    last_number: u64,
    /// Buffer for [`MemoryQueue::add`].
    paper: Vec<u8>,
}

impl MemoryServerState {
    pub fn new(work: &str, levels: &DelayLevels) -> Self {
        let names = QueueNames::new(work, levels);
        let sources: Vec<DeliverySource> = (names.delay_sources())
            .chain([
                DeliverySource::Due,
                DeliverySource::Fresh,
                DeliverySource::Recheck,
            ])
            .collect();
        let of_sources = sources.iter().map(|source| names.of(*source));
        let all = of_sources.chain([&names.dead]).cloned();
        let numbers: HashMap<_, _, _> = all.zip(0..).collect();
        Self {
            names,
            deliveries: 0,
            publishes: 0,
            plan: Box::new(|_, _| None),
            queues: numbers.iter().map(|_| MemoryQueue::default()).collect(),
            numbers,
            sources,
            missing: HashSet::new(),
            bound: HashMap::new(),
            results: HashMap::new(),
            clients: Vec::new(),
            last_number: 0,
            paper: Vec::new(),
        }
    }

    pub fn connect(&mut self, prefetch: u16, window: usize) -> usize {
        let sources = self.sources.len();
        self.clients
            .push(MemoryClient::new(prefetch, window, sources));
        self.clients.len() - 1
    }

    /// Returns the notification after which [`MemoryServerState::step`] is to be called for this
    /// client.
    pub fn bell(&self, client: usize) -> Arc<Notify> {
        Arc::clone(&self.clients[client].bell)
    }

    pub fn publish(&mut self, client: usize, outgoing: Outgoing) -> Result<(), PublishError> {
        self.publishes += 1;
        if self.clients[client].is_down(Instant::now()) {
            return Err(PublishError::Down("no session".to_owned()));
        }
        let lost = || PublishError::Down("injected".to_owned());
        match (self.plan)(self.publishes, &outgoing) {
            None => self.store(outgoing),
            Some(PublishFault::LoseConfirm) => self.store(outgoing).and_then(|()| Err(lost())),
            Some(PublishFault::LosePublish) => Err(lost()),
            Some(PublishFault::Nack) => Err(PublishError::Nacked),
            Some(PublishFault::Return) => Err(PublishError::Returned),
            Some(PublishFault::Disconnect) => {
                let stored = self.store(outgoing);
                self.disconnect(client, Duration::ZERO);
                stored.and_then(|()| Err(lost()))
            }
        }
    }

    /// Publishes a result like [`MemoryServerState::publish`]. The plan sees it as a message to the
    /// queue that its key names.
    pub fn publish_external(
        &mut self,
        client: usize,
        outgoing: ExternalMessage,
    ) -> Result<(), PublishError> {
        self.publishes += 1;
        if self.clients[client].is_down(Instant::now()) {
            return Err(PublishError::Down("no session".to_owned()));
        }
        let lost = || PublishError::Down("injected".to_owned());
        let shown = Outgoing {
            queue: Arc::clone(&outgoing.routing_key),
            message: outgoing.message.clone(),
        };
        match (self.plan)(self.publishes, &shown) {
            None => self.route(outgoing),
            Some(PublishFault::LoseConfirm) => self.route(outgoing).and_then(|()| Err(lost())),
            Some(PublishFault::LosePublish) => Err(lost()),
            Some(PublishFault::Nack) => Err(PublishError::Nacked),
            Some(PublishFault::Return) => Err(PublishError::Returned),
            Some(PublishFault::Disconnect) => {
                let routed = self.route(outgoing);
                self.disconnect(client, Duration::ZERO);
                routed.and_then(|()| Err(lost()))
            }
        }
    }

    /// Stores a result in its queue, which may be one of the worker's own.
    fn route(&mut self, outgoing: ExternalMessage) -> Result<(), PublishError> {
        let (exchange, key) = (&outgoing.exchange, &outgoing.routing_key);
        if exchange.is_empty() && self.numbers.contains_key(key) {
            return self.store(Outgoing {
                queue: Arc::clone(key),
                message: outgoing.message,
            });
        }
        let bound = self.bound.get(&(exchange.to_string(), key.to_string()));
        let queue = bound.ok_or(PublishError::Returned)?;
        let mut message = outgoing.message;
        message.routing_key = key.to_string();
        message.properties = as_sent(message.properties);
        self.results.entry(queue.clone()).or_default().push(message);
        Ok(())
    }

    /// Binds a queue that is not ours to an exchange.
    pub fn bind(&mut self, exchange: &str, key: &str, queue: &str) {
        let bound = (exchange.to_owned(), key.to_owned());
        self.bound.insert(bound, queue.to_owned());
    }

    fn store(&mut self, outgoing: Outgoing) -> Result<(), PublishError> {
        let Outgoing { queue, mut message } = outgoing;
        if !self.missing.is_empty() && self.missing.remove(&queue) {
            return Err(PublishError::Returned);
        }
        let number = *self.numbers.get(&queue).ok_or(PublishError::Returned)?;
        message.properties = as_sent(message.properties);
        self.last_number += 1;
        self.queues[number].add(self.last_number, message, &mut self.paper);
        self.share_out(number);
        Ok(())
    }

    pub fn ack(&mut self, index: usize, tags: &[Tag]) {
        for tag in tags {
            if self.remove(index, tag).is_some() {
                self.refill(index, tag.source);
            }
        }
    }

    pub fn give_back(&mut self, index: usize, tags: &[Tag]) {
        for tag in tags {
            if let Some(mut stored) = self.remove(index, tag) {
                stored.redelivered = true;
                self.queues[number(&self.sources, tag.source)].put(stored);
                self.refill(index, tag.source);
            }
        }
    }

    /// Removes an unacked message of a client. A session's tags are forgotten at its end, so stale
    /// ones are not found.
    fn remove(&mut self, index: usize, tag: &Tag) -> Option<StoredMessage> {
        let client = &mut self.clients[index];
        let stored = client.unacked.remove(tag)?;
        client.held[number(&self.sources, tag.source)] -= 1;
        Some(stored)
    }

    /// Delivers messages of `source` after a client has got room for one.
    fn refill(&mut self, index: usize, source: DeliverySource) {
        let number = number(&self.sources, source);
        self.line_up(index, number);
        self.share_out(number);
    }

    pub fn stop(&mut self, client: usize) {
        let client = &mut self.clients[client];
        client.stopped = true;
        // The client keeps these messages until it is closed.
        client.arriving.clear();
        client.end_if_idle();
        client.bell.notify_one();
    }

    pub fn close(&mut self, client: usize) {
        self.clients[client].closed = true;
        self.requeue(client);
    }

    pub fn disconnect(&mut self, index: usize, outage: Duration) {
        let client = &mut self.clients[index];
        if client.up_at.is_none() {
            client.news.push_back(BrokerEvent::Down {
                reason: "the session was killed".to_owned(),
            });
        }
        client.up_at = Some(Instant::now() + outage);
        client.end_if_idle();
        self.requeue(index);
    }

    pub fn rest(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if client.up_at.is_none() {
            client.news.push_back(BrokerEvent::Resting);
        }
        client.up_at.get_or_insert(Instant::now());
        client.resting = true;
        client.end_if_idle();
        self.requeue(index);
    }

    pub fn take(&mut self, client: usize, few: bool) {
        self.clients[client].resting = false;
        self.clients[client].takes_few = few;
        self.clients[client].bell.notify_one();
    }

    pub fn take_new(&mut self, client: usize, enabled: bool) {
        self.clients[client].takes_new = enabled;
        let fresh = number(&self.sources, DeliverySource::Fresh);
        self.line_up(client, fresh);
        self.share_out(fresh);
    }

    /// Returns the unacked messages of a client that takes nothing now.
    fn requeue(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.held.fill(0);
        client.arriving.clear();
        client.bell.notify_one();
        for (tag, mut stored) in std::mem::take(&mut client.unacked) {
            stored.redelivered = true;
            self.queues[number(&self.sources, tag.source)].put(stored);
        }
        for number in 0..self.sources.len() {
            self.share_out(number);
        }
    }

    pub fn delete(&mut self, queue: &str) {
        if let Some(number) = self.numbers.get(queue) {
            self.queues[*number].clear();
        }
        self.missing.insert(queue.into());
    }

    pub fn messages(&self, queue: &str) -> Vec<Message> {
        let ready = self.queue(queue).into_iter().flat_map(MemoryQueue::iter);
        ready.map(|stored| stored.message(queue)).collect()
    }

    pub fn unacked(&self) -> usize {
        self.clients.iter().map(|client| client.unacked.len()).sum()
    }

    pub fn ready(&self) -> usize {
        let names = &self.names;
        self.ready_in([&names.fresh, &names.due, &names.recheck])
    }

    pub fn waiting(&self) -> usize {
        self.ready_in(self.names.delays())
    }

    fn ready_in<'a>(&self, names: impl IntoIterator<Item = &'a Arc<str>>) -> usize {
        let ready = names.into_iter().filter_map(|name| self.queue(name));
        ready.map(MemoryQueue::len).sum()
    }

    /// Begins the session of `client` if it is time, and returns the client's next step.
    pub fn step(&mut self, client: usize, now: Instant) -> ClientStep {
        let MemoryClient { closed, ended, .. } = self.clients[client];
        if !closed && !ended {
            self.open_session(client, now);
        }
        let client = &self.clients[client];
        ClientStep {
            ready: !client.news.is_empty() || !client.arriving.is_empty(),
            wake: client.next_session().filter(|_| !ended),
            closed: closed || (ended && client.news.is_empty()),
        }
    }

    fn open_session(&mut self, index: usize, now: Instant) {
        let client = &mut self.clients[index];
        if client.next_session().is_none_or(|at| at > now) {
            return;
        }
        client.up_at = None;
        client.session += 1;
        let session = client.session;
        client.news.push_back(BrokerEvent::Up { session });
        for number in 0..self.sources.len() {
            self.line_up(index, number);
            self.share_out(number);
        }
    }

    fn queue(&self, name: &str) -> Option<&MemoryQueue> {
        self.queues.get(*self.numbers.get(name)?)
    }

    /// Puts a client that has room for messages of a source in the source's line, unless it is in
    /// it.
    fn line_up(&mut self, index: usize, number: usize) {
        let client = &mut self.clients[index];
        if !client.is_queued[number] && client.room(self.sources[number], number) > 0 {
            client.is_queued[number] = true;
            self.queues[number].line_up(index);
        }
    }

    /// Gives messages of the queue with this number to the clients in its line, in turn. Dead
    /// letters have no consumers.
    fn share_out(&mut self, number: usize) {
        let Some(source) = self.sources.get(number).copied() else {
            return;
        };
        while !self.queues[number].is_empty()
            && let Some(index) = self.queues[number].next()
        {
            let client = &mut self.clients[index];
            client.is_queued[number] = false;
            // It may have lost its session since it lined up.
            if client.room(source, number) == 0 {
                continue;
            }
            if let Some(stored) = self.queues[number].pop() {
                client.deliver(source, number, stored);
            }
            self.line_up(index, number);
        }
    }

    /// Returns the next event of `client`.
    pub fn next_event(&mut self, client: usize) -> Option<BrokerEvent> {
        let event = self.clients[client].next_event(&self.names);
        if let Some(BrokerEvent::Deliveries(batch)) = &event {
            self.deliveries += batch.len() as u64;
        }
        event
    }
}

/// Returns the position of `source` in `sources`.
fn number(sources: &[DeliverySource], source: DeliverySource) -> usize {
    let found = sources.iter().position(|known| *known == source);
    found.expect("a tag is of a source that delivered it")
}
