//! Messages on their way to another queue: published, confirmed, and only then acked.

use std::collections::HashMap;
use std::time::Duration;

use crate::broker::{Outgoing, Tag};
use crate::engine::action::Key;

/// After a failed publish the first retry waits this long, and then twice as long each time.
const FIRST: Duration = Duration::from_millis(100);
/// The longest wait between two retries of a publish.
const MOST: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Move {
    tag: Tag,
    outgoing: Outgoing,
    failures: u32,
    /// `None`: the publish is under way.
    again_at: Option<Duration>,
}

/// All moves that are not acked yet.
#[derive(Debug, Default)]
pub struct Moves(HashMap<Key, Move>);

impl Moves {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Begins a move; returns what is to be published.
    pub fn begin(&mut self, key: Key, tag: Tag, outgoing: Outgoing) -> (Key, Outgoing) {
        let copy = outgoing.clone();
        self.0.insert(
            key,
            Move {
                tag,
                outgoing,
                failures: 0,
                again_at: None,
            },
        );
        (key, copy)
    }

    /// Its publish was confirmed: the tag to ack; `None`: its session is gone.
    pub fn confirmed(&mut self, key: Key) -> Option<Tag> {
        self.0.remove(&key).map(|moving| moving.tag)
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
    pub fn again(&mut self, at: Duration, key: Key) -> Option<(Key, Outgoing)> {
        let moving = self.0.get_mut(&key)?;
        if moving.again_at != Some(at) {
            return None;
        }
        moving.again_at = None;
        Some((key, moving.outgoing.clone()))
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
        let (named, _) = moves.begin(key, tag(), outgoing());
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
            let again = moves.again(at, key).map(|(_, outgoing)| outgoing.queue);
            assert_eq!(again.as_deref(), Some("jobs.dead"));
            assert!(moves.again(at, key).is_none(), "once");
            now = at;
        }
        assert_eq!(pauses[..3], [100, 200, 400]);
        assert_eq!(pauses[7..], [MOST.as_millis(); 2]);
        assert_eq!(moves.len(), 1, "the original stays unacked");
    }

    #[test]
    fn with_its_session_a_move_is_forgotten() {
        let (mut moves, key) = (Moves::default(), Key(1));
        moves.begin(key, tag(), outgoing());
        moves.clear();
        assert!(moves.confirmed(key).is_none() && moves.failed(Duration::ZERO, key).is_none());
    }
}
