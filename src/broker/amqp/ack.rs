//! Acks or returns deliveries: coalesced, pipelined, and never in a different session.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use tokio::time::{Instant, sleep_until};

use crate::{DeliverySource, Tag};

/// One `basic.ack` or `basic.nack`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AckFrame {
    tag: u64,
    /// Settles all outstanding tags up to and including `tag`.
    multiple: bool,
}

/// The tags of one channel that were delivered and not acked.
#[derive(Debug, Default)]
struct UnackedTags {
    tags: BTreeSet<u64>,
    /// All tags up to this one were delivered. A channel's tags begin at 1.
    all_to: u64,
    /// Delivered tags above `all_to`. A tag before them is still held by its consumer.
    ahead: BTreeSet<u64>,
}

impl UnackedTags {
    fn delivered(&mut self, tag: u64) {
        self.tags.insert(tag);
        if tag != self.all_to + 1 {
            self.ahead.insert(tag);
            return;
        }
        self.all_to = tag;
        while self.ahead.remove(&(self.all_to + 1)) {
            self.all_to += 1;
        }
    }

    /// Settles `tags` and returns the acks to send, in order: one for all tags below every
    /// outstanding tag, then one for each remaining tag. Unknown and repeated tags are ignored. A
    /// tag that another consumer of the channel holds and has not handed over yet counts as
    /// outstanding.
    ///
    /// A tag is acked once, and a multiple ack names a tag that was not acked before, because the
    /// broker closes the channel over an unknown tag.
    fn settle(&mut self, tags: impl IntoIterator<Item = u64>) -> Vec<AckFrame> {
        let mut settled: Vec<u64> = (tags.into_iter())
            .filter(|tag| self.tags.remove(tag))
            .collect();
        settled.sort_unstable();
        let first = self.tags.first().copied().unwrap_or(u64::MAX);
        let below = settled.partition_point(|tag| *tag < first && *tag <= self.all_to);
        let (front, others) = settled.split_at(below);
        let mut frames = Vec::with_capacity(others.len() + 1);
        frames.extend(front.last().map(|&tag| AckFrame {
            tag,
            multiple: front.len() > 1,
        }));
        frames.extend(others.iter().map(|&tag| AckFrame {
            tag,
            multiple: false,
        }));
        frames
    }
}

/// Time for RabbitMQ to pass the last acks to its queues.
const ACK_TIME: Duration = Duration::from_millis(200);

/// A channel and its outstanding tags.
#[derive(Debug)]
struct ChannelAcks {
    /// The source of the first consumer on this channel; see [`channel_of`].
    source: DeliverySource,
    channel: Channel,
    outstanding: UnackedTags,
}

#[derive(Debug)]
struct AckSession {
    number: u64,
    channels: Vec<ChannelAcks>,
    /// When the last ack was sent.
    acked_at: Option<Instant>,
}

/// The acks of the current session, if there is one.
#[derive(Debug, Default)]
pub(super) struct Acks(Mutex<Option<AckSession>>);

impl Acks {
    fn lock(&self) -> MutexGuard<'_, Option<AckSession>> {
        // A panic can't leave a session half changed, because each change is one call of a
        // collection.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn begin(
        &self,
        number: u64,
        channels: impl IntoIterator<Item = (DeliverySource, Channel)>,
    ) {
        let mut known: Vec<ChannelAcks> = Vec::new();
        for (source, channel) in channels {
            // Several consumers share a channel.
            let is_known = known.iter().any(|acks| acks.source == source);
            if source == channel_of(source) && !is_known {
                known.push(ChannelAcks {
                    source,
                    channel,
                    outstanding: UnackedTags::default(),
                });
            }
        }
        let channels = known;
        *self.lock() = Some(AckSession {
            number,
            channels,
            acked_at: None,
        });
    }

    pub fn end(&self) {
        *self.lock() = None;
    }

    /// Closes the channels and waits for RabbitMQ's answers, which follow all acks. Otherwise acks
    /// right before the connection's close can be lost, and their messages are delivered again. A
    /// channel of RabbitMQ also loses acks that it still holds when it is closed: it passes 32 at a
    /// time to a quorum queue. So the close waits for [`ACK_TIME`] after the last ack.
    pub async fn close_channels(&self) {
        let acked_at = self.lock().as_ref().and_then(|session| session.acked_at);
        if let Some(at) = acked_at {
            sleep_until(at + ACK_TIME).await;
        }
        let channels: Vec<Channel> = (self.lock().iter().flat_map(|session| &session.channels))
            .map(|acks| acks.channel.clone())
            .collect();
        let closing = (channels.iter()).map(|channel| channel.close(200, "closed".into()));
        for error in join_all(closing).await.into_iter().filter_map(Result::err) {
            tracing::debug!(%error, "closing a channel failed");
        }
    }

    pub fn is_up(&self) -> bool {
        self.lock().is_some()
    }

    /// Records deliveries. Must be called before the engine sees them.
    pub fn delivered(&self, tags: impl IntoIterator<Item = Tag>) {
        if let Some(session) = self.lock().as_mut() {
            for tag in tags {
                if let Some(acks) = session.acks_of(tag) {
                    acks.outstanding.delivered(tag.tag);
                }
            }
        }
    }

    /// Acks deliveries.
    pub fn ack(&self, tags: &[Tag]) {
        self.settle(tags, |channel, AckFrame { tag, multiple }| {
            let options = BasicAckOptions { multiple };
            channel.basic_ack(tag, options).now_or_never()
        });
    }

    /// Returns deliveries to their queues.
    pub fn give_back(&self, tags: &[Tag]) {
        self.settle(tags, |channel, AckFrame { tag, multiple }| {
            let options = BasicNackOptions {
                multiple,
                requeue: true,
            };
            channel.basic_nack(tag, options).now_or_never()
        });
    }

    /// Hands frames to the connection without waiting: their first poll queues them, and further
    /// polls only report that they were written. A frame has no answer. If it is not sent, the
    /// session is lost and the broker delivers again. The lock is held meanwhile, because a frame
    /// that overtook another one could name a tag that is settled already.
    fn settle(
        &self,
        tags: &[Tag],
        mut send: impl FnMut(&Channel, AckFrame) -> Option<lapin::Result<()>>,
    ) {
        let mut held = self.lock();
        let Some(session) = held.as_mut() else { return };
        let number = session.number;
        for acks in &mut session.channels {
            let ours = |tag: &&Tag| tag.session == number && channel_of(tag.source) == acks.source;
            let frames = acks
                .outstanding
                .settle(tags.iter().filter(ours).map(|tag| tag.tag));
            if !frames.is_empty() {
                session.acked_at = Some(Instant::now());
            }
            for frame in frames {
                if let Some(Err(error)) = send(&acks.channel, frame) {
                    tracing::debug!(%error, "an ack was not sent: the message will be redelivered");
                }
            }
        }
    }
}

impl AckSession {
    fn acks_of(&mut self, tag: Tag) -> Option<&mut ChannelAcks> {
        let number = self.number;
        let source = channel_of(tag.source);
        (self.channels.iter_mut()).find(|acks| tag.session == number && acks.source == source)
    }
}

/// Maps a source to the source that represents its channel. All delay queues share the first one's
/// channel, and all queues of new jobs have one source.
fn channel_of(source: DeliverySource) -> DeliverySource {
    match source {
        DeliverySource::Delay(_) => DeliverySource::Delay(0),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A broker's view of acks. It closes the channel over an unknown tag.
    #[derive(Default)]
    struct Channel(BTreeSet<u64>);

    impl Channel {
        fn receive(&mut self, frame: AckFrame) {
            assert!(self.0.contains(&frame.tag), "{frame:?} is unknown");
            if frame.multiple {
                self.0 = self.0.split_off(&(frame.tag + 1));
            } else {
                self.0.remove(&frame.tag);
            }
        }
    }

    #[test]
    fn deliveries_settled_in_order_take_one_ack() {
        let mut outstanding = UnackedTags::default();
        (1..=5).for_each(|tag| outstanding.delivered(tag));
        let one = |tag, multiple| AckFrame { tag, multiple };
        assert_eq!(outstanding.settle([2]), [one(2, false)]);
        assert_eq!(outstanding.settle([3, 1, 5]), [one(3, true), one(5, false)]);
        assert_eq!(outstanding.settle([4, 4, 9]), [one(4, false)]);
        assert_eq!(outstanding.settle([4]), []);
    }

    #[test]
    fn deliveries_of_another_consumer_are_not_acked_along() {
        let mut outstanding = UnackedTags::default();
        let one = |tag, multiple| AckFrame { tag, multiple };
        for tag in [1, 2, 4, 5] {
            outstanding.delivered(tag);
        }
        assert_eq!(
            outstanding.settle([1, 2, 4, 5]),
            [one(2, true), one(4, false), one(5, false)]
        );
        for tag in [3, 6, 7] {
            outstanding.delivered(tag);
        }
        assert_eq!(outstanding.settle([3, 6, 7]), [one(7, true)]);
        assert!(outstanding.ahead.is_empty());
    }

    proptest! {
        /// Each step delivers a number of messages, then settles tags, given by their position,
        /// known or not.
        #[test]
        fn unsettled_deliveries_stay_with_the_broker(
            steps in prop::collection::vec((0_u64..20, prop::collection::vec(0_u64..120, 0..40)), 1..20),
        ) {
            let (mut outstanding, mut channel) = (UnackedTags::default(), Channel::default());
            let (mut next, mut expected) = (1, BTreeSet::new());
            for (deliver, settle) in steps {
                for tag in next..next + deliver {
                    outstanding.delivered(tag);
                    channel.0.insert(tag);
                    expected.insert(tag);
                }
                next += deliver;
                let settled = settle.iter().filter(|tag| expected.remove(tag)).count();
                let frames = outstanding.settle(settle);
                prop_assert!(frames.len() <= settled);
                frames.into_iter().for_each(|frame| channel.receive(frame));
                prop_assert_eq!(&channel.0, &expected);
                prop_assert_eq!(&outstanding.tags, &expected);
            }
        }
    }
}
