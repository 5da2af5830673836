//! Operators' policies on all queues, and their effects on delay queues.

use std::time::Duration;

use broker::{Broker, BrokerEvent, Delivery, DeliverySource, Outgoing, PublishError};
use kit::servers::{shared_rabbit, unique};
use lapin::BasicProperties;
use tokio::task::block_in_place;
use tokio::time::timeout;

use crate::broker::bed::{Bed, WINDOW, ids, levels, message, quorum, tags, to};

/// A policy on the delay queues of the bed's queue. Dropping it removes the policy.
struct Policy(String);

impl Policy {
    fn set<B: Broker>(bed: &Bed<B>, definition: &str) -> Self {
        let name = unique("policy");
        let delay_queues = format!("^{}\\.delay\\.", bed.names.fresh);
        let set = [
            "set_policy",
            "--apply-to",
            "queues",
            &name,
            &delay_queues,
            definition,
        ];
        block_in_place(|| shared_rabbit().ctl(&set));
        Self(name)
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        block_in_place(|| shared_rabbit().ctl(&["clear_policy", &self.0]));
    }
}

/// Returns the next delivery and skips other events and copies.
async fn next<B: Broker>(bed: &mut Bed<B>) -> Delivery {
    loop {
        if let BrokerEvent::Deliveries(mut batch) = bed.event().await {
            let first = batch.remove(0);
            let is_copy = |other: &Delivery| other.message.id() == first.message.id();
            assert!(batch.iter().all(is_copy), "{batch:?}");
            bed.broker.ack(tags(&batch)).await;
            return first;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_expired_by_a_policy_in_a_delay_queue_are_not_lost() {
    let mut bed = quorum().await;
    let delay_queue = bed.names.delay(levels().choose(200)).clone();
    // Jobs in a worker's window don't expire, so the window is filled first.
    let batch = (0..WINDOW)
        .map(|n| to(&delay_queue, &n.to_string()))
        .collect();
    assert!(bed.broker.publish(batch).await.iter().all(Result::is_ok));
    let held = bed.take(WINDOW).await;
    let _policy = Policy::set(&bed, r#"{"message-ttl": 100}"#);
    // A message that arrives before the queue knows the policy has no time to live.
    let back = loop {
        let published = bed.broker.publish(vec![to(&delay_queue, "x")]).await;
        assert_eq!(published, [Ok(())]);
        if let Ok(back) = timeout(Duration::from_secs(15), next(&mut bed)).await {
            break back;
        }
    };
    assert_eq!(
        (back.source, back.message.id()),
        (DeliverySource::Due, Some("x"))
    );
    bed.broker.ack(vec![back.tag]).await;
    bed.broker.ack(tags(&held)).await;
    bed.broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_queue_with_a_length_limit_refuses_and_drops_nothing() {
    let mut bed = quorum().await;
    let delay_queue = bed.names.delay(levels().choose(200)).clone();
    let _policy = Policy::set(&bed, r#"{"max-length": 5, "overflow": "drop-head"}"#);
    let (mut stored, mut refused) = (Vec::new(), 0);
    for n in 0..200 {
        let id = n.to_string();
        match bed.broker.publish(vec![to(&delay_queue, &id)]).await[0] {
            Ok(()) => stored.push(id),
            Err(PublishError::Nacked) => refused += 1,
            ref other => panic!("{other:?}"),
        }
    }
    println!("{refused} of 200 refused");
    let mut found = Vec::new();
    while found.len() < stored.len() {
        let BrokerEvent::Deliveries(batch) = bed.event().await else {
            continue;
        };
        found.extend(ids(&batch));
        bed.broker.ack(tags(&batch)).await;
    }
    found.sort_unstable();
    stored.sort_unstable();
    assert_eq!(found, stored);
    bed.broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_beyond_a_delivery_limit_policy_are_not_lost() {
    let mut bed = quorum().await;
    let delay_queue = bed.names.delay(levels().choose(200)).clone();
    let _policy = Policy::set(&bed, r#"{"delivery-limit": 1}"#);
    assert_eq!(
        bed.broker.publish(vec![to(&delay_queue, "x")]).await,
        [Ok(())]
    );
    for _ in 0..4 {
        let taken = next(&mut bed).await;
        assert_eq!(taken.message.id(), Some("x"));
        if taken.source == DeliverySource::Due {
            break;
        }
        bed.cut().await;
    }
    bed.broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_job_overtakes_another_in_a_delay_queue() {
    let mut bed = quorum().await;
    // There is no consumer yet, so all of them are queued before the first is taken.
    bed.broker.stop_consuming().await;
    let delay_queue = bed.names.delay(levels().choose(200)).clone();
    for (id, priority) in [("first", 0), ("urgent", 9), ("third", 5)] {
        let mut message = message(id);
        message.properties = BasicProperties::default()
            .with_message_id(id.into())
            .with_priority(priority);
        assert_eq!(message.take_priority(), Some(priority));
        let queue = delay_queue.clone();
        let answers = bed.broker.publish(vec![Outgoing { queue, message }]).await;
        assert_eq!(answers, [Ok(())]);
    }
    bed.reopen().await;
    let taken = bed.take(3).await;
    assert_eq!(ids(&taken), ["first", "urgent", "third"]);
    let no_priority = |d: &Delivery| d.message.properties.priority().is_none();
    assert!(taken.iter().all(no_priority));
    bed.broker.close().await;
}
