//! The server's state: what is in which queue, and who has taken what.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lapin::types::{AMQPValue, FieldArray, FieldTable, ShortString};
use tokio::time::Instant;

use super::{Fault, Plan};
use crate::broker::{Delivery, Event, Message, Outgoing, PublishError, Source, Tag};
use crate::rules::lanes::{Ladder, QueueNames};

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

/// A message in a lane.
struct Waiting {
    lane: Arc<str>,
    target: Arc<str>,
    stored: Stored,
}

struct Client {
    session: u64,
    /// When the next session may begin; `None`: it is up.
    up_at: Option<Instant>,
    prefetch: usize,
    /// It wants no session.
    resting: bool,
    stopped: bool,
    /// Stopped without a session: no other one begins, and no event comes any more.
    ended: bool,
    closed: bool,
    unacked: BTreeMap<Tag, Stored>,
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
    /// Messages left their lanes, or the session came up: look again.
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
    queues: HashMap<Arc<str>, BTreeMap<u64, Stored>>,
    lanes: HashMap<Arc<str>, (Duration, Arc<str>)>,
    waiting: BTreeMap<(Instant, u64), Waiting>,
    missing: HashSet<Arc<str>>,
    clients: Vec<Client>,
    last_number: u64,
}

impl State {
    pub fn new(work: &str, ladder: &Ladder) -> Self {
        let names = QueueNames::new(work, ladder);
        let due = (names.due_lanes().iter().zip(ladder.due_ms())).map(|lane| (lane, &names.due));
        let recheck = (names.recheck_lanes().iter().zip(ladder.recheck_ms()))
            .map(|lane| (lane, &names.recheck));
        let lanes = due
            .chain(recheck)
            .map(|((name, ms), target)| {
                (name.clone(), (Duration::from_millis(*ms), target.clone()))
            })
            .collect();
        let queues = [&names.fresh, &names.due, &names.recheck, &names.dead]
            .map(|name| (name.clone(), BTreeMap::new()))
            .into();
        Self {
            names,
            deliveries: HashMap::new(),
            publishes: 0,
            plan: Box::new(|_, _| None),
            queues,
            lanes,
            waiting: BTreeMap::new(),
            missing: HashSet::new(),
            clients: Vec::new(),
            last_number: 0,
        }
    }

    pub fn connect(&mut self, prefetch: u16) -> usize {
        self.clients.push(Client {
            session: 0,
            up_at: Some(Instant::now()),
            prefetch: usize::from(prefetch),
            resting: false,
            stopped: false,
            ended: false,
            closed: false,
            unacked: BTreeMap::new(),
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
        if let Some(ready) = self.queues.get_mut(&queue) {
            ready.insert(stored.number, stored);
        } else if let Some((ttl, target)) = self.lanes.get(&queue) {
            let key = (Instant::now() + *ttl, stored.number);
            let target = target.clone();
            let waiting = Waiting {
                lane: queue,
                target,
                stored,
            };
            self.waiting.insert(key, waiting);
        } else {
            return Err(PublishError::Returned);
        }
        Ok(())
    }

    pub fn ack(&mut self, client: usize, tags: &[Tag]) {
        let client = &mut self.clients[client];
        // A session's tags are forgotten at its end, so a stale one is not found.
        for tag in tags {
            client.unacked.remove(tag);
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

    fn requeue(&mut self, client: usize) {
        for (tag, mut stored) in std::mem::take(&mut self.clients[client].unacked) {
            stored.redelivered = true;
            if let Some(ready) = self.queues.get_mut(self.names.of(tag.source)) {
                ready.insert(stored.number, stored);
            }
        }
    }

    pub fn delete(&mut self, queue: &str) {
        if let Some(ready) = self.queues.get_mut(queue) {
            ready.clear();
        }
        self.waiting.retain(|_, waiting| &*waiting.lane != queue);
        self.missing.insert(queue.into());
    }

    pub fn messages(&self, queue: &str) -> Vec<Message> {
        let ready = self
            .queues
            .get(queue)
            .into_iter()
            .flat_map(BTreeMap::values);
        let waiting = (self.waiting.values())
            .filter(|waiting| &*waiting.lane == queue)
            .map(|waiting| &waiting.stored);
        ready
            .chain(waiting)
            .map(|stored| stored.message.clone())
            .collect()
    }

    pub fn unacked(&self) -> usize {
        self.clients.iter().map(|client| client.unacked.len()).sum()
    }

    pub fn ready(&self) -> usize {
        let queues = SOURCES.map(|source| self.names.of(source));
        let ready = queues.iter().filter_map(|name| self.queues.get(*name));
        ready.map(BTreeMap::len).sum()
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Lets happen what is due by `now`, and says what there is for `client`.
    pub fn step(&mut self, client: usize, now: Instant) -> Step {
        let moved = self.expire(now);
        let Client { closed, ended, .. } = self.clients[client];
        let came_up = !closed && !ended && self.come_up(client, now);
        let client = &self.clients[client];
        let closed = closed || (ended && client.news.is_empty());
        let up_at = client.next_session().filter(|_| !ended);
        let next_lane = self.waiting.keys().next().map(|(at, _)| *at);
        Step {
            moved: moved || came_up,
            ready: !client.news.is_empty() || self.deliverable(client),
            wake: next_lane.into_iter().chain(up_at).min(),
            closed,
        }
    }

    fn expire(&mut self, now: Instant) -> bool {
        // As a rule nothing is due, and splitting costs allocations.
        let first = self.waiting.first_key_value();
        if first.is_none_or(|((at, _), _)| *at > now) {
            return false;
        }
        let later = self.waiting.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut self.waiting, later);
        for Waiting {
            lane,
            target,
            mut stored,
        } in due.into_values()
        {
            mark_death(&mut stored.message, &lane);
            stored.message.routing_key = target.to_string();
            self.last_number += 1;
            stored.number = self.last_number;
            if let Some(ready) = self.queues.get_mut(&target) {
                ready.insert(stored.number, stored);
            }
        }
        true
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

    fn room(&self, client: &Client, source: Source) -> usize {
        let prefetch = match source {
            Source::Fresh | Source::Due => client.prefetch,
            Source::Recheck => (client.prefetch / RECHECK_SHARE).max(1),
        };
        let held = client.unacked.keys().filter(|tag| tag.source == source);
        prefetch.saturating_sub(held.count())
    }

    fn deliverable(&self, client: &Client) -> bool {
        let up = client.up_at.is_none() && !client.stopped && !client.closed;
        up && SOURCES.into_iter().any(|source| {
            let ready = self.queues.get(self.names.of(source));
            ready.is_some_and(|ready| !ready.is_empty()) && self.room(client, source) > 0
        })
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
        for source in SOURCES {
            for _ in 0..self.room(&self.clients[index], source).min(GATHER) {
                let ready = self.queues.get_mut(self.names.of(source));
                let Some((_, stored)) = ready.and_then(BTreeMap::pop_first) else {
                    break;
                };
                batch.push(self.deliver(index, source, stored));
            }
        }
        Some(Event::Deliveries(batch))
    }

    fn deliver(&mut self, index: usize, source: Source, stored: Stored) -> Delivery {
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
        delivery
    }
}

/// In the order of their delivery.
const SOURCES: [Source; 3] = [Source::Due, Source::Fresh, Source::Recheck];

/// What a real broker notes on a dead letter.
fn mark_death(message: &mut Message, lane: &str) {
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut headers = (message.properties.headers().as_ref())
        .map(|headers| headers.inner().clone())
        .unwrap_or_default();
    let death: BTreeMap<ShortString, AMQPValue> = [
        ("queue", text(lane)),
        ("reason", text("expired")),
        ("exchange", text("")),
        ("count", AMQPValue::LongLongInt(1)),
    ]
    .map(|(name, value)| (name.into(), value))
    .into();
    let deaths = FieldArray::from(vec![AMQPValue::FieldTable(death.into())]);
    headers.insert("x-death".into(), AMQPValue::FieldArray(deaths));
    for (name, value) in [
        ("x-first-death-queue", lane),
        ("x-first-death-reason", "expired"),
        ("x-first-death-exchange", ""),
    ] {
        headers.entry(name.into()).or_insert_with(|| text(value));
    }
    message.properties =
        std::mem::take(&mut message.properties).with_headers(FieldTable::from(headers));
}
