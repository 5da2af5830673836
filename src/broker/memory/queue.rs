//! A queue of the server in memory: its messages, and whose turn it is to take one.

use std::collections::VecDeque;

use bytes::Bytes;
use lapin::protocol::basic::{gen_properties, parse_properties};

use crate::broker::Message;

/// Below so many messages a queue keeps the memory that it has.
const SMALL: usize = 1024;

/// A message in a queue. It keeps its number, so that a redelivered one stands where it stood.
///
/// Its properties are as they are on the wire: a fifth of what they take as values, and a backlog may have a million of them.
pub(super) struct Stored {
    number: u64,
    properties: Box<[u8]>,
    body: Bytes,
    pub redelivered: bool,
}

impl Stored {
    /// `message`, whose routing key is the queue's name. It is written into `paper` first, which is used again and again.
    pub fn new(number: u64, message: Message, paper: &mut Vec<u8>) -> Self {
        paper.clear();
        let written = gen_properties(&message.properties)(std::mem::take(paper).into());
        *paper = written.expect("a vector takes whatever is written").write;
        Self {
            number,
            properties: paper.as_slice().into(),
            body: message.body,
            redelivered: false,
        }
    }

    /// It again, as a client reads it.
    pub fn message(&self, queue: &str) -> Message {
        let read = parse_properties(&self.properties[..]);
        let (_, properties) = read.expect("what lapin writes it reads");
        Message {
            routing_key: queue.to_owned(),
            properties,
            body: self.body.clone(),
        }
    }
}

/// The messages that nobody has taken, in their order, and the clients that may take some.
#[derive(Default)]
pub(super) struct Queue {
    ready: VecDeque<Stored>,
    /// Each once, the next one first. RabbitMQ does the same: whoever got a message, or may take some again, goes to the end.
    turns: VecDeque<usize>,
}

impl Queue {
    pub fn len(&self) -> usize {
        self.ready.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Stored> {
        self.ready.iter()
    }

    /// Puts a message where its number stands: a new one at the end, one that was given back mostly in front.
    pub fn put(&mut self, stored: Stored) {
        match self.ready.back() {
            Some(last) if last.number > stored.number => {
                let place = |other: &Stored| other.number < stored.number;
                let place = self.ready.partition_point(place);
                self.ready.insert(place, stored);
            }
            _ => self.ready.push_back(stored),
        }
    }

    /// Takes the first message.
    pub fn pop(&mut self) -> Option<Stored> {
        let first = self.ready.pop_front();
        // A backlog that is over leaves its memory to the next queue.
        if self.ready.len() > SMALL && self.ready.len() < self.ready.capacity() / 4 {
            self.ready.shrink_to(self.ready.capacity() / 2);
        }
        first
    }

    /// Takes all messages away.
    pub fn clear(&mut self) {
        self.ready.clear();
    }

    /// `client` may take some, and stands in no line of it.
    pub fn line_up(&mut self, client: usize) {
        self.turns.push_back(client);
    }

    /// Whose turn it is, who is in the line no more.
    pub fn next(&mut self) -> Option<usize> {
        self.turns.pop_front()
    }
}
