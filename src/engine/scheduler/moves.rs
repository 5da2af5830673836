//! Messages on their way to another queue: published, confirmed, and only then acked.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::broker::{Outgoing, Reply, Tag};
use crate::engine::action::Key;

/// After a failed publish the first retry waits this long, and then twice as long each time.
const FIRST: Duration = Duration::from_millis(100);
/// The longest wait between two retries of a publish.
const MOST: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Move {
    tag: Tag,
    /// Not sent yet.
    reply: Option<Box<Reply>>,
    /// `None`: the job is done.
    outgoing: Option<Outgoing>,
    failures: u32,
    /// `None`: the publish is under way.
    again_at: Option<Duration>,
}

impl Move {
    fn new(tag: Tag, reply: Option<Box<Reply>>, outgoing: Option<Outgoing>) -> Self {
        Self {
            tag,
            reply,
            outgoing,
            failures: 0,
            again_at: None,
        }
    }
}

/// What comes next in a move.
#[derive(Debug)]
pub enum Next {
    /// Its job's result is to be published.
    Reply((Key, Reply)),
    /// Its message is to be published.
    Publish((Key, Outgoing)),
    /// Nothing more: the delivery is to be acked.
    Ack(Tag),
}

/// All moves that are not acked yet.
#[derive(Debug, Default)]
pub struct Moves(HashMap<Key, Move, RandomState>);

impl Moves {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Begins a move; returns what is to be published.
    pub fn begin(&mut self, key: Key, tag: Tag, outgoing: Outgoing) -> Next {
        let copy = outgoing.clone();
        self.0.insert(key, Move::new(tag, None, Some(outgoing)));
        Next::Publish((key, copy))
    }

    /// Begins a move whose result goes first; then `outgoing`, if there is one; then the ack.
    pub fn begin_with_reply(
        &mut self,
        key: Key,
        tag: Tag,
        reply: Reply,
        outgoing: Option<Outgoing>,
    ) -> Next {
        let copy = Box::new(reply.clone());
        self.0.insert(key, Move::new(tag, Some(copy), outgoing));
        Next::Reply((key, reply))
    }

    /// Its result was published, or never will be: what that was, and what comes next; `None`: its session is gone.
    pub fn replied(&mut self, key: Key) -> Option<(Reply, Next)> {
        let moving = self.0.get_mut(&key)?;
        let reply = *moving.reply.take()?;
        moving.failures = 0;
        let next = match &moving.outgoing {
            Some(outgoing) => Next::Publish((key, outgoing.clone())),
            None => {
                let tag = moving.tag;
                self.0.remove(&key);
                Next::Ack(tag)
            }
        };
        Some((reply, next))
    }

    /// Its publish was confirmed: the tag to ack; `None`: its session is gone.
    pub fn confirmed(&mut self, key: Key) -> Option<Tag> {
        self.0.remove(&key).map(|moving| moving.tag)
    }

    /// How often what comes next has failed.
    pub fn failures(&self, key: Key) -> u32 {
        self.0.get(&key).map_or(0, |moving| moving.failures)
    }

    /// Its publish failed: when to try again, and how often it has failed; `None`: its session is gone.
    pub fn failed(&mut self, now: Duration, key: Key) -> Option<(Duration, u32)> {
        let moving = self.0.get_mut(&key)?;
        let pause = (FIRST * 2_u32.pow(moving.failures.min(10))).min(MOST);
        moving.failures += 1;
        moving.again_at = Some(now + pause);
        Some((now + pause, moving.failures))
    }

    /// What is to be published again at `at`; `None`: nothing of that name waits for that time.
    pub fn again(&mut self, at: Duration, key: Key) -> Option<Next> {
        let moving = self.0.get_mut(&key)?;
        if moving.again_at != Some(at) {
            return None;
        }
        moving.again_at = None;
        if let Some(reply) = &moving.reply {
            return Some(Next::Reply((key, (**reply).clone())));
        }
        let outgoing = moving.outgoing.clone()?;
        Some(Next::Publish((key, outgoing)))
    }

    /// Forgets all: the broker delivers the originals again.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{Message, Source};

    fn tag() -> Tag {
        let source = Source::Fresh;
        Tag {
            session: 1,
            source,
            tag: 3,
        }
    }

    fn outgoing() -> Outgoing {
        Outgoing {
            queue: "jobs.dead".into(),
            message: Message {
                routing_key: "jobs".to_owned(),
                properties: Default::default(),
                body: Default::default(),
            },
        }
    }

    #[test]
    fn a_delivery_is_acked_once_its_message_is_confirmed() {
        let (mut moves, key) = (Moves::default(), Key(1));
        let Next::Publish((named, _)) = moves.begin(key, tag(), outgoing()) else {
            panic!("there is no result");
        };
        assert_eq!(named, key);
        assert_eq!((moves.len(), moves.confirmed(key)), (1, Some(tag())));
        assert_eq!((moves.len(), moves.confirmed(key)), (0, None));
    }

    #[test]
    fn what_is_not_confirmed_is_published_again_after_longer_and_longer_pauses() {
        let (mut moves, key) = (Moves::default(), Key(1));
        moves.begin(key, tag(), outgoing());
        let mut now = Duration::ZERO;
        let mut pauses = Vec::new();
        for failures in 1..=9 {
            let (at, failed) = moves.failed(now, key).expect("it is under way");
            assert_eq!(failed, failures);
            pauses.push((at - now).as_millis());
            assert!(moves.again(now, key).is_none(), "not yet");
            let Some(Next::Publish((_, again))) = moves.again(at, key) else {
                panic!("it is time");
            };
            assert_eq!(&*again.queue, "jobs.dead");
            assert!(moves.again(at, key).is_none(), "once");
            now = at;
        }
        assert_eq!(pauses[..3], [100, 200, 400]);
        assert_eq!(pauses[7..], [MOST.as_millis(); 2]);
        assert_eq!(moves.len(), 1, "the original stays unacked");
    }

    fn reply() -> Reply {
        Reply {
            exchange: "".into(),
            routing_key: "asker".into(),
            message: outgoing().message,
        }
    }

    #[test]
    fn a_result_goes_before_the_message_and_the_ack() {
        let mut moves = Moves::default();
        let (done, dead) = (Key(1), Key(2));
        moves.begin_with_reply(done, tag(), reply(), None);
        moves.begin_with_reply(dead, tag(), reply(), Some(outgoing()));
        let (at, _) = moves.failed(Duration::ZERO, dead).expect("it is under way");
        let again = moves.again(at, dead);
        assert!(matches!(again, Some(Next::Reply(_))), "{again:?}");
        let next = moves.replied(dead);
        assert!(matches!(next, Some((_, Next::Publish(_)))), "{next:?}");
        assert!(moves.replied(dead).is_none(), "once");
        assert_eq!((moves.failures(dead), moves.len()), (0, 2));
        assert_eq!(moves.confirmed(dead), Some(tag()));
        let next = moves.replied(done);
        assert!(matches!(next, Some((_, Next::Ack(_)))), "{next:?}");
        assert_eq!(moves.len(), 0);
    }

    #[test]
    fn with_its_session_a_move_is_forgotten() {
        let (mut moves, key) = (Moves::default(), Key(1));
        moves.begin(key, tag(), outgoing());
        moves.clear();
        assert!(moves.confirmed(key).is_none() && moves.failed(Duration::ZERO, key).is_none());
    }
}
