//! The server's state: what is in which queue, and who has taken what.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Fault, Plan};
use crate::broker::{Delivery, Event, Message, Outgoing, PublishError, Reply, Source, Tag};
use crate::rules::delays::{DelayLevels, QueueNames};

/// Deliveries in one event.
const GATHER: usize = 128;
/// The recheck queue's share of the prefetch: 1 / this.
const RECHECK_SHARE: usize = 8;

/// A message in a queue. It keeps its number, so that a redelivered one stands where it stood.
struct Stored {
    number: u64,
    message: Message,
    redelivered: bool,
}

struct Client {
    session: u64,
    /// When the next session may begin; `None`: it is up.
    up_at: Option<Instant>,
    prefetch: usize,
    window: usize,
    /// It wants no session.
    resting: bool,
    /// It wants jobs of the work queue.
    takes_new: bool,
    stopped: bool,
    /// Stopped without a session: no other one begins, and no event comes any more.
    ended: bool,
    closed: bool,
    unacked: BTreeMap<Tag, Stored>,
    /// How many of them each source gave.
    held: Vec<usize>,
    last_tag: u64,
    news: VecDeque<Event>,
}

impl Client {
    /// Nothing can be published. A stopped client has no session to wait for: its publishes have a connection of their own.
    fn is_down(&self, now: Instant) -> bool {
        let away = |at: Instant| !self.ended || at > now;
        self.closed || self.up_at.is_some_and(away)
    }

    /// When its next session begins: not while it is up, or rests.
    fn next_session(&self) -> Option<Instant> {
        self.up_at.filter(|_| !self.resting)
    }

    /// As with the real one, which does not look for a session that it would not use.
    fn end_if_idle(&mut self) {
        self.ended |= self.stopped && self.up_at.is_some();
    }
}

/// What [`State::step`] found for one client.
pub(super) struct Step {
    /// The session came up: look again.
    pub moved: bool,
    /// There is an event to take.
    pub ready: bool,
    /// When something happens next by itself.
    pub wake: Option<Instant>,
    /// No event will come any more.
    pub closed: bool,
}

pub(super) struct State {
    pub names: QueueNames,
    pub deliveries: HashMap<String, u64>,
    pub publishes: u64,
    pub plan: Plan,
    /// Those of `sources`, and the dead letters.
    queues: Vec<BTreeMap<u64, Stored>>,
    numbers: HashMap<Arc<str>, usize>,
    /// In the order of their delivery.
    sources: Vec<Source>,
    missing: HashSet<Arc<str>>,
    /// The queue of each exchange and key that others made.
    bound: HashMap<(String, String), String>,
    /// What is in these.
    pub replies: HashMap<String, Vec<Message>>,
    clients: Vec<Client>,
    last_number: u64,
}

impl State {
    pub fn new(work: &str, levels: &DelayLevels) -> Self {
        let names = QueueNames::new(work, levels);
        let sources: Vec<Source> = (names.delay_sources())
            .chain([Source::Due, Source::Fresh, Source::Recheck])
            .collect();
        let of_sources = sources.iter().map(|source| names.of(*source));
        let all = of_sources.chain([&names.dead]).cloned();
        let numbers: HashMap<_, _> = all.zip(0..).collect();
        Self {
            names,
            deliveries: HashMap::new(),
            publishes: 0,
            plan: Box::new(|_, _| None),
            queues: numbers.iter().map(|_| BTreeMap::new()).collect(),
            numbers,
            sources,
            missing: HashSet::new(),
            bound: HashMap::new(),
            replies: HashMap::new(),
            clients: Vec::new(),
            last_number: 0,
        }
    }

    pub fn connect(&mut self, prefetch: u16, window: usize) -> usize {
        self.clients.push(Client {
            session: 0,
            up_at: Some(Instant::now()),
            prefetch: usize::from(prefetch),
            window,
            resting: false,
            takes_new: true,
            stopped: false,
            ended: false,
            closed: false,
            unacked: BTreeMap::new(),
            held: vec![0; self.sources.len()],
            last_tag: 0,
            news: VecDeque::new(),
        });
        self.clients.len() - 1
    }

    pub fn publish(&mut self, client: usize, outgoing: Outgoing) -> Result<(), PublishError> {
        self.publishes += 1;
        if self.clients[client].is_down(Instant::now()) {
            return Err(PublishError::Down("no session".to_owned()));
        }
        let lost = || PublishError::Down("injected".to_owned());
        match (self.plan)(self.publishes, &outgoing) {
            None => self.store(outgoing),
            Some(Fault::LoseConfirm) => self.store(outgoing).and_then(|()| Err(lost())),
            Some(Fault::LosePublish) => Err(lost()),
            Some(Fault::Nack) => Err(PublishError::Nacked),
            Some(Fault::Return) => Err(PublishError::Returned),
            Some(Fault::Disconnect) => {
                let stored = self.store(outgoing);
                self.disconnect(client, Duration::ZERO);
                stored.and_then(|()| Err(lost()))
            }
        }
    }

    /// As [`State::publish`]; the plan sees it as a message to the queue that its key names.
    pub fn reply(&mut self, client: usize, reply: Reply) -> Result<(), PublishError> {
        self.publishes += 1;
        if self.clients[client].is_down(Instant::now()) {
            return Err(PublishError::Down("no session".to_owned()));
        }
        let lost = || PublishError::Down("injected".to_owned());
        let shown = Outgoing {
            queue: Arc::clone(&reply.routing_key),
            message: reply.message.clone(),
        };
        match (self.plan)(self.publishes, &shown) {
            None => self.route(reply),
            Some(Fault::LoseConfirm) => self.route(reply).and_then(|()| Err(lost())),
            Some(Fault::LosePublish) => Err(lost()),
            Some(Fault::Nack) => Err(PublishError::Nacked),
            Some(Fault::Return) => Err(PublishError::Returned),
            Some(Fault::Disconnect) => {
                let routed = self.route(reply);
                self.disconnect(client, Duration::ZERO);
                routed.and_then(|()| Err(lost()))
            }
        }
    }

    /// Stores it where it belongs: in queues of ours, and of others.
    fn route(&mut self, reply: Reply) -> Result<(), PublishError> {
        let (exchange, key) = (&reply.exchange, &reply.routing_key);
        if exchange.is_empty() && self.numbers.contains_key(key) {
            return self.store(Outgoing {
                queue: Arc::clone(key),
                message: reply.message,
            });
        }
        let bound = self.bound.get(&(exchange.to_string(), key.to_string()));
        let queue = bound.ok_or(PublishError::Returned)?;
        let mut message = reply.message;
        message.routing_key = key.to_string();
        message.properties = message.properties.with_delivery_mode(2);
        self.replies.entry(queue.clone()).or_default().push(message);
        Ok(())
    }

    /// A queue that is not ours, bound to an exchange.
    pub fn bind(&mut self, exchange: &str, key: &str, queue: &str) {
        let bound = (exchange.to_owned(), key.to_owned());
        self.bound.insert(bound, queue.to_owned());
    }

    fn store(&mut self, outgoing: Outgoing) -> Result<(), PublishError> {
        let Outgoing { queue, mut message } = outgoing;
        if self.missing.remove(&queue) {
            return Err(PublishError::Returned);
        }
        message.routing_key = queue.to_string();
        message.properties = message.properties.with_delivery_mode(2);
        self.last_number += 1;
        let stored = Stored {
            number: self.last_number,
            message,
            redelivered: false,
        };
        let Some(ready) = self.queue_mut(&queue) else {
            return Err(PublishError::Returned);
        };
        ready.insert(stored.number, stored);
        Ok(())
    }

    pub fn ack(&mut self, client: usize, tags: &[Tag]) {
        let client = &mut self.clients[client];
        // A session's tags are forgotten at its end, so a stale one is not found.
        for tag in tags {
            if client.unacked.remove(tag).is_some() {
                client.held[number(&self.sources, tag.source)] -= 1;
            }
        }
    }

    pub fn stop(&mut self, client: usize) {
        self.clients[client].stopped = true;
        self.clients[client].end_if_idle();
    }

    pub fn close(&mut self, client: usize) {
        self.requeue(client);
        self.clients[client].closed = true;
    }

    pub fn disconnect(&mut self, client: usize, outage: Duration) {
        self.requeue(client);
        let client = &mut self.clients[client];
        if client.up_at.is_none() {
            client.news.push_back(Event::Down {
                reason: "the session was killed".to_owned(),
            });
        }
        client.up_at = Some(Instant::now() + outage);
        client.end_if_idle();
    }

    pub fn rest(&mut self, client: usize) {
        self.requeue(client);
        let client = &mut self.clients[client];
        if client.up_at.is_none() {
            client.news.push_back(Event::Resting);
        }
        client.up_at.get_or_insert(Instant::now());
        client.resting = true;
        client.end_if_idle();
    }

    pub fn take(&mut self, client: usize) {
        self.clients[client].resting = false;
    }

    pub fn take_new(&mut self, client: usize, wanted: bool) {
        self.clients[client].takes_new = wanted;
    }

    fn requeue(&mut self, client: usize) {
        self.clients[client].held.fill(0);
        for (tag, mut stored) in std::mem::take(&mut self.clients[client].unacked) {
            stored.redelivered = true;
            self.queues[number(&self.sources, tag.source)].insert(stored.number, stored);
        }
    }

    pub fn delete(&mut self, queue: &str) {
        if let Some(ready) = self.queue_mut(queue) {
            ready.clear();
        }
        self.missing.insert(queue.into());
    }

    pub fn messages(&self, queue: &str) -> Vec<Message> {
        let ready = self.queue(queue).into_iter();
        let ready = ready.flat_map(BTreeMap::values);
        ready.map(|stored| stored.message.clone()).collect()
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
        ready.map(BTreeMap::len).sum()
    }

    /// Begins the session of `client` if it is time, and says what there is for it.
    pub fn step(&mut self, client: usize, now: Instant) -> Step {
        let Client { closed, ended, .. } = self.clients[client];
        let came_up = !closed && !ended && self.come_up(client, now);
        let client = &self.clients[client];
        let closed = closed || (ended && client.news.is_empty());
        let up_at = client.next_session().filter(|_| !ended);
        Step {
            moved: came_up,
            ready: !client.news.is_empty() || self.deliverable(client),
            wake: up_at,
            closed,
        }
    }

    fn come_up(&mut self, client: usize, now: Instant) -> bool {
        let client = &mut self.clients[client];
        if client.next_session().is_none_or(|at| at > now) {
            return false;
        }
        client.up_at = None;
        client.session += 1;
        let session = client.session;
        client.news.push_back(Event::Up { session });
        true
    }

    fn queue(&self, name: &str) -> Option<&BTreeMap<u64, Stored>> {
        self.queues.get(*self.numbers.get(name)?)
    }

    fn queue_mut(&mut self, name: &str) -> Option<&mut BTreeMap<u64, Stored>> {
        self.queues.get_mut(*self.numbers.get(name)?)
    }

    /// How many messages of the source with this number the client may take.
    fn room(&self, client: &Client, number: usize) -> usize {
        let prefetch = match self.sources[number] {
            Source::Fresh if !client.takes_new => 0,
            Source::Fresh | Source::Due => client.prefetch,
            Source::Recheck => (client.prefetch / RECHECK_SHARE).max(1),
            Source::Delay(_) => client.window,
        };
        prefetch.saturating_sub(client.held[number])
    }

    fn deliverable(&self, client: &Client) -> bool {
        let up = client.up_at.is_none() && !client.stopped && !client.closed;
        let may_take =
            |number: usize| !self.queues[number].is_empty() && self.room(client, number) > 0;
        up && (0..self.sources.len()).any(may_take)
    }

    /// The next event of `client`: news first, then what it may take.
    pub fn next_event(&mut self, index: usize) -> Option<Event> {
        if let Some(event) = self.clients[index].news.pop_front() {
            return Some(event);
        }
        if !self.deliverable(&self.clients[index]) {
            return None;
        }
        let mut batch = Vec::new();
        for number in 0..self.sources.len() {
            for _ in 0..self.room(&self.clients[index], number).min(GATHER) {
                let Some((_, stored)) = self.queues[number].pop_first() else {
                    break;
                };
                batch.push(self.deliver(index, number, stored));
            }
        }
        Some(Event::Deliveries(batch))
    }

    fn deliver(&mut self, index: usize, number: usize, stored: Stored) -> Delivery {
        let source = self.sources[number];
        if let Some(id) = stored.message.id() {
            *self.deliveries.entry(id.to_owned()).or_default() += 1;
        }
        let client = &mut self.clients[index];
        client.last_tag += 1;
        let tag = Tag {
            session: client.session,
            source,
            tag: client.last_tag,
        };
        let delivery = Delivery {
            source,
            tag,
            redelivered: stored.redelivered,
            message: stored.message.clone(),
        };
        client.unacked.insert(tag, stored);
        client.held[number] += 1;
        delivery
    }
}

/// The position of `source` in `sources`.
fn number(sources: &[Source], source: Source) -> usize {
    let found = sources.iter().position(|known| *known == source);
    found.expect("a tag is of a source that delivered it")
}
