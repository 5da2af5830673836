//! A queue of the server in memory: its messages, and whose turn it is to take one.

use std::collections::VecDeque;

use super::wire;
use crate::broker::Message;
use bytes::{Bytes, BytesMut};

/// Below so many messages a queue keeps the memory that it has.
const SMALL: usize = 1024;
/// The properties of so many bytes of messages stand on one page.
const PAGE: usize = 32 * 1024;

/// A message in a queue. It keeps its number, so that a redelivered one stands where it stood.
///
/// Its properties are [bytes](wire), for a backlog may have a million of them. They are a piece of one of their queue's pages: pieces of all
/// sizes, each allocated and freed on its own, cost the system's allocator more time than all else took.
pub(super) struct Stored {
    number: u64,
    properties: Bytes,
    body: Bytes,
    pub redelivered: bool,
}

impl Stored {
    /// It again, as a client reads it.
    pub fn message(&self, queue: &str) -> Message {
        Message {
            routing_key: queue.to_owned(),
            properties: wire::read(&self.properties),
            body: self.body.clone(),
        }
    }
}

/// The messages that nobody has taken, in their order, and the clients that may take some.
#[derive(Default)]
pub(super) struct Queue {
    ready: VecDeque<Stored>,
    /// What is free of the newest page. A page is gone with the last message on it; they go mostly in the order in which they came.
    page: BytesMut,
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

    /// Puts a new message at the end. Its routing key is the queue's name. It is written onto `paper` first, which is used again and
    /// again.
    pub fn add(&mut self, number: u64, message: Message, paper: &mut Vec<u8>) {
        paper.clear();
        wire::write(&message.properties, paper);
        if self.page.capacity() < paper.len() {
            self.page = BytesMut::with_capacity(PAGE.max(paper.len()));
        }
        self.page.extend_from_slice(paper);
        let properties = self.page.split().freeze();
        self.put(Stored {
            number,
            properties,
            body: message.body,
            redelivered: false,
        });
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
