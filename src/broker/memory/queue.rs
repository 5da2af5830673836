//! A queue of the in-memory server: its messages, and the clients that take turns.

use std::collections::VecDeque;

use super::wire;
use crate::Message;
use bytes::{Bytes, BytesMut};

/// Number of messages below which a queue keeps its memory.
const MIN_SHRINK_LEN: usize = 1024;
/// Bytes of properties on one page.
const PAGE_BYTES: usize = 32 * 1024;

/// A message in a queue. It keeps its number, so that a redelivered message returns to its
/// position.
///
/// Its properties are [bytes](wire), because a backlog may have a million messages. They are a
/// piece of one of the queue's pages: separate allocations of all sizes took the allocator more
/// time than everything else together.
pub(super) struct StoredMessage {
    number: u64,
    properties: Bytes,
    body: Bytes,
    pub redelivered: bool,
}

impl StoredMessage {
    /// Returns the message as a client reads it.
    pub fn message(&self, queue: &str) -> Message {
        Message {
            routing_key: queue.to_owned(),
            properties: wire::read(&self.properties),
            body: self.body.clone(),
        }
    }
}

/// The ready messages in order, and the clients that may take some.
#[derive(Default)]
pub(super) struct MemoryQueue {
    ready: VecDeque<StoredMessage>,
    /// The free part of the newest page. A page is freed with the last message on it. Messages
    /// mostly leave in the order in which they came.
    page: BytesMut,
    /// The clients in line, each once, the next one first. As in RabbitMQ, a client that got a
    /// message, or may take some again, goes to the end.
    turns: VecDeque<usize>,
}

impl MemoryQueue {
    pub fn len(&self) -> usize {
        self.ready.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &StoredMessage> {
        self.ready.iter()
    }

    /// Appends a new message. Its routing key is the queue's name. `paper` is a reused buffer to
    /// which its properties are written first.
    pub fn add(&mut self, number: u64, message: Message, paper: &mut Vec<u8>) {
        paper.clear();
        wire::write(&message.properties, paper);
        if self.page.capacity() < paper.len() {
            self.page = BytesMut::with_capacity(PAGE_BYTES.max(paper.len()));
        }
        self.page.extend_from_slice(paper);
        let properties = self.page.split().freeze();
        self.put(StoredMessage {
            number,
            properties,
            body: message.body,
            redelivered: false,
        });
    }

    /// Inserts a message at the position of its number: a new one at the end, a returned one mostly
    /// near the front.
    pub fn put(&mut self, stored: StoredMessage) {
        match self.ready.back() {
            Some(last) if last.number > stored.number => {
                let index = |other: &StoredMessage| other.number < stored.number;
                let index = self.ready.partition_point(index);
                self.ready.insert(index, stored);
            }
            _ => self.ready.push_back(stored),
        }
    }

    /// Takes the first message.
    pub fn pop(&mut self) -> Option<StoredMessage> {
        let first = self.ready.pop_front();
        // A drained backlog releases its memory.
        if self.ready.len() > MIN_SHRINK_LEN && self.ready.len() < self.ready.capacity() / 4 {
            self.ready.shrink_to(self.ready.capacity() / 2);
        }
        first
    }

    /// Removes all messages.
    pub fn clear(&mut self) {
        self.ready.clear();
    }

    /// Puts `client`, which must not be in the line, at its end.
    pub fn line_up(&mut self, client: usize) {
        self.turns.push_back(client);
    }

    /// Takes the next client out of the line.
    pub fn next(&mut self) -> Option<usize> {
        self.turns.pop_front()
    }
}
