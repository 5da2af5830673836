//! One conformance suite for all brokers.

mod amqp;
pub mod bed;
mod cluster;
mod existing;
mod faults;
mod hostile;
mod memory;
mod raw;
mod stop;
pub mod tls;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use broker::{
    Broker, BrokerEvent, DeliverySource, ExternalMessage, Message, Outgoing, PublishError,
};
use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable, ShortString};

use crate::broker::bed::{
    Bed, PREFETCH, WINDOW, classic, ids, levels, memory, message, quorum, tags, to,
};

macro_rules! conformance {
    (everywhere: $($test:ident),*; not_on_classic_queues: $($other:ident),*;) => {
        mod in_memory {
            $(#[tokio::test(start_paused = true)]
            async fn $test() {
                super::$test(super::memory().await).await;
            })*
            $(#[tokio::test(start_paused = true)]
            async fn $other() {
                super::$other(super::memory().await).await;
            })*
        }
        mod on_quorum_queues {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                super::$test(super::quorum().await).await;
            })*
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $other() {
                super::$other(super::quorum().await).await;
            })*
        }
        mod on_classic_queues {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                super::$test(super::classic().await).await;
            })*
        }
    };
}

// Delay queues are always quorum queues, so tests of delay queues alone need no run with classic
// work queues.
conformance!(
    everywhere:
    acked_messages_are_not_redelivered,
    unacked_messages_are_redelivered_and_stale_tags_are_ignored,
    acks_out_of_order_and_repeated_leave_the_rest,
    returned_deliveries_come_again_and_others_stay,
    no_more_than_the_prefetch_is_unacked,
    answers_are_in_the_order_of_the_batch,
    a_stopped_client_takes_no_messages_but_acks_and_publishes,
    a_stopped_client_opens_no_new_session,
    messages_left_by_one_client_go_to_another,
    clients_with_room_take_turns,
    a_resting_client_takes_no_messages_despite_lost_sessions,
    results_reach_their_targets_and_an_unroutable_one_harms_no_other;
    not_on_classic_queues:
    a_delay_queue_delivers_a_window_of_messages_in_order,
    a_delay_queue_redelivers_messages_of_a_lost_session_in_order,
    headers_survive_a_delay_queue_and_are_stripped,
    short_texts_in_headers_arrive_as_texts,
    big_and_empty_bodies_arrive,
    a_missing_queue_returns_the_message,
    closed_it_answers;
);

async fn acked_messages_are_not_redelivered<B: Broker>(mut bed: Bed<B>) {
    let names: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    bed.publish_fresh(&all).await;
    let taken = bed.take(50).await;
    let mut found = ids(&taken);
    // Two channels publish, so a batch may overtake another.
    found.sort_by_key(|id| id.parse::<u32>().expect("a number"));
    assert_eq!(found, names);
    for delivery in &taken {
        assert_eq!(delivery.source, DeliverySource::Fresh);
        assert!(!delivery.redelivered);
        let id = delivery.message.id().expect("an id");
        assert_eq!(delivery.message.body, format!("body of {id}"));
        assert_eq!(delivery.message.routing_key, *bed.names.fresh);
        assert_eq!(*delivery.message.properties.delivery_mode(), Some(2));
    }
    bed.broker.ack(tags(&taken)).await;
    bed.reopen().await;
    for _ in 0..bed.lost_acks {
        let again = bed.before_a_marker().await;
        assert!(again.iter().all(|delivery| delivery.redelivered));
        bed.broker.ack(tags(&again)).await;
        bed.reopen().await;
    }
    bed.nothing_but_a_marker().await;
    bed.broker.close().await;
}

async fn unacked_messages_are_redelivered_and_stale_tags_are_ignored<B: Broker>(mut bed: Bed<B>) {
    bed.publish_fresh(&["a", "b", "c"]).await;
    let first = bed.take(3).await;
    bed.cut().await;
    bed.broker.ack(tags(&first)).await;
    let again = bed.take(3).await;
    let mut found = ids(&again);
    found.sort();
    assert_eq!(found, ["a", "b", "c"]);
    assert!(again.iter().all(|delivery| delivery.redelivered));
    assert!(again.iter().all(|d| d.tag.session == bed.session));
    // Tags of the previous session have the same numbers at the broker. They must ack nothing.
    bed.broker.ack(tags(&first)).await;
    // A session that ends in order sends its acks first.
    bed.reopen().await;
    let third = bed.take(3).await;
    bed.broker.ack(tags(&third)).await;
    bed.reopen().await;
    bed.nothing_but_a_marker().await;
    bed.broker.close().await;
}

async fn acks_out_of_order_and_repeated_leave_the_rest<B: Broker>(mut bed: Bed<B>) {
    bed.publish_fresh(&["0", "1", "2", "3", "4", "5"]).await;
    let taken = bed.take(6).await;
    let tags = tags(&taken);
    bed.broker.ack(vec![tags[4], tags[1], tags[4]]).await;
    bed.broker.ack(vec![tags[0], tags[1]]).await;
    bed.broker.ack(vec![tags[3], tags[4]]).await;
    // The session still works. The broker would have closed it because of a tag that was acked
    // twice.
    bed.nothing_but_a_marker().await;
    bed.reopen().await;
    let mut left = ids(&bed.take(2).await);
    let mut expected = [ids(&taken[2..3]), ids(&taken[5..])].concat();
    left.sort();
    expected.sort();
    assert_eq!(left, expected);
    bed.broker.close().await;
}

async fn returned_deliveries_come_again_and_others_stay<B: Broker>(mut bed: Bed<B>) {
    bed.publish_fresh(&["0", "1", "2", "3"]).await;
    let taken = bed.take(4).await;
    let first = tags(&taken);
    bed.broker.ack(vec![first[0]]).await;
    bed.broker
        .give_back(vec![first[3], first[0], first[1], first[3]])
        .await;
    let again = bed.take(2).await;
    let sorted = |mut ids: Vec<String>| {
        ids.sort();
        ids
    };
    let expected = [ids(&taken[1..2]), ids(&taken[3..])].concat();
    assert_eq!(sorted(ids(&again)), sorted(expected));
    assert!(again.iter().all(|delivery| delivery.redelivered));
    bed.broker.give_back(first).await;
    let last = bed.take(1).await;
    assert_eq!(ids(&last), ids(&taken[2..3]), "it was not returned before");
    bed.broker.ack([tags(&again), tags(&last)].concat()).await;
    bed.nothing_but_a_marker().await;
    bed.broker.close().await;
}

async fn no_more_than_the_prefetch_is_unacked<B: Broker>(mut bed: Bed<B>) {
    let count = usize::from(PREFETCH) * 3;
    let names = bed.names.clone();
    for queue in [&names.fresh, &names.due, &names.recheck] {
        let batch = (0..count).map(|n| to(queue, &n.to_string())).collect();
        let answers = bed.publish(batch).await;
        assert!(answers.iter().all(Result::is_ok));
    }
    let window = usize::from(PREFETCH) * 2 + usize::from(PREFETCH) / 8;
    let first = bed.take(window).await;
    let of = |source| first.iter().filter(|d| d.source == source).count();
    assert_eq!(of(DeliverySource::Fresh), usize::from(PREFETCH));
    assert_eq!(of(DeliverySource::Due), usize::from(PREFETCH));
    assert_eq!(of(DeliverySource::Recheck), usize::from(PREFETCH) / 8);
    let more = tokio::time::timeout(Duration::from_millis(300), bed.events.recv()).await;
    assert!(more.is_err(), "{more:?}");
    bed.broker.ack(tags(&first[..10])).await;
    bed.take(10).await;
    bed.broker.close().await;
}

async fn a_missing_queue_returns_the_message<B: Broker>(mut bed: Bed<B>) {
    let missing = "no such queue".into();
    let batch = vec![to(&missing, "x")];
    assert_eq!(bed.publish(batch).await, [Err(PublishError::Returned)]);
    // The connection survives.
    bed.nothing_but_a_marker().await;
    let long = "q".repeat(300).into();
    assert_eq!(
        bed.publish(vec![to(&long, "x")]).await,
        [Err(PublishError::Returned)]
    );
    assert_eq!(bed.publish(Vec::new()).await, []);
    bed.broker.close().await;
}

async fn results_reach_their_targets_and_an_unroutable_one_harms_no_other<B: Broker>(
    mut bed: Bed<B>,
) {
    let result = |exchange: &str, key: &str, id: &str| ExternalMessage {
        exchange: exchange.into(),
        routing_key: key.into(),
        message: message(id),
    };
    bed.nothing_but_a_marker().await;
    let work = bed.names.fresh.clone();
    let batch = vec![
        result("", "no such queue", "a"),
        result("", &work, "b"),
        result("", &"q".repeat(300), "c"),
        result("", &work, "a"),
    ];
    let returned = Err(PublishError::Returned);
    let expected = [returned.clone(), Ok(()), returned.clone(), Ok(())];
    assert_eq!(bed.broker.publish_results(batch).await, expected);
    let taken = bed.take(2).await;
    assert_eq!(ids(&taken), ["b", "a"]);
    for delivery in &taken {
        assert_eq!(*delivery.message.properties.delivery_mode(), Some(2));
    }
    bed.broker.ack(tags(&taken)).await;
    // An exchange without bindings, and one that does not exist, which closes a channel of
    // RabbitMQ.
    for exchange in ["amq.direct", "no such exchange", "no such exchange"] {
        let key = kit::servers::unique("key");
        let batch = vec![result(exchange, &key, "a"), result(exchange, &key, "b")];
        let answers = bed.broker.publish_results(batch).await;
        assert_eq!(answers, [returned.clone(), returned.clone()], "{exchange}");
    }
    assert_eq!(
        bed.broker
            .publish_results(vec![result("", &work, "d")])
            .await,
        [Ok(())]
    );
    let taken = bed.take(1).await;
    assert_eq!(taken[0].tag.session, bed.session, "no session was lost");
    bed.broker.ack(tags(&taken)).await;
    bed.nothing_but_a_marker().await;
    assert_eq!(bed.broker.publish_results(Vec::new()).await, []);
    bed.broker.close().await;
    let answers = bed
        .broker
        .publish_results(vec![result("", &work, "e")])
        .await;
    assert!(matches!(answers[..], [Err(PublishError::Down(_))]));
}

async fn answers_are_in_the_order_of_the_batch<B: Broker>(mut bed: Bed<B>) {
    let missing = "no such queue".into();
    let is_missing = |n: usize| n.is_multiple_of(7) || n > 900;
    // IDs repeat: the same ID goes to a queue and to none, and twice to one queue.
    let batch: Vec<Outgoing> = (0..1000)
        .map(|n| {
            let queue = if is_missing(n) {
                &missing
            } else {
                &bed.names.dead
            };
            to(queue, &(n / 2).to_string())
        })
        .collect();
    let answers = bed.publish(batch).await;
    assert_eq!(answers.len(), 1000);
    for (n, answer) in answers.into_iter().enumerate() {
        let expected = if is_missing(n) {
            Err(PublishError::Returned)
        } else {
            Ok(())
        };
        assert_eq!(answer, expected, "{n}");
    }
    bed.broker.close().await;
}

async fn a_delay_queue_delivers_a_window_of_messages_in_order<B: Broker>(mut bed: Bed<B>) {
    let levels = levels();
    for wait in [10, 250, 10_000] {
        let route = levels.choose(wait);
        let source = DeliverySource::Delay(u8::try_from(route.level).expect("a delay queue"));
        let delay_queue = bed.names.delay(route).clone();
        let names: Vec<String> = (0..3 * WINDOW).map(|n| n.to_string()).collect();
        for name in &names {
            // One at a time, since two channels publish and a batch may overtake another.
            assert_eq!(bed.publish(vec![to(&delay_queue, name)]).await, [Ok(())]);
        }
        let first = bed.take(WINDOW).await;
        assert!(first.iter().all(|delivery| delivery.source == source));
        assert_eq!(ids(&first), names[..WINDOW]);
        let more = tokio::time::timeout(Duration::from_millis(300), bed.events.recv()).await;
        assert!(more.is_err(), "{more:?}");
        // Other delay queues are not blocked.
        let other = &bed.names.delays()[30].clone();
        assert_eq!(bed.publish(vec![to(other, "other")]).await, [Ok(())]);
        let beside = bed.take(1).await;
        assert_eq!(ids(&beside), ["other"]);
        // Acks in one delay queue don't affect the others, though they share a channel.
        bed.broker.ack(tags(&first)).await;
        for _ in 0..2 {
            let next = bed.take(WINDOW).await;
            bed.broker.ack(tags(&next)).await;
        }
        bed.broker.ack(tags(&beside)).await;
    }
    bed.reopen().await;
    bed.nothing_but_a_marker().await;
    bed.broker.close().await;
}

async fn a_delay_queue_redelivers_messages_of_a_lost_session_in_order<B: Broker>(mut bed: Bed<B>) {
    let delay_queue = bed.names.delay(levels().choose(200)).clone();
    let names: Vec<String> = (0..2 * WINDOW).map(|n| n.to_string()).collect();
    for name in &names {
        assert_eq!(bed.publish(vec![to(&delay_queue, name)]).await, [Ok(())]);
    }
    let first = bed.take(WINDOW).await;
    assert!(first.iter().all(|delivery| !delivery.redelivered));
    bed.cut().await;
    let again = bed.take(WINDOW).await;
    assert!(again.iter().all(|delivery| delivery.redelivered));
    assert_eq!(ids(&again), names[..WINDOW]);
    bed.broker.ack(tags(&again)).await;
    let rest = bed.take(WINDOW).await;
    assert_eq!(ids(&rest), names[WINDOW..]);
    bed.broker.close().await;
}

/// Returns a header of every type that RabbitMQ keeps.
fn all_headers() -> FieldTable {
    let list = vec![AMQPValue::Boolean(true), AMQPValue::LongLongInt(1)];
    let inner: BTreeMap<ShortString, AMQPValue> =
        [("k".into(), AMQPValue::LongString("v".into()))].into();
    let headers: BTreeMap<ShortString, AMQPValue> = [
        ("x-tenant", AMQPValue::LongString("ä".into())),
        ("bytes", AMQPValue::LongString(vec![0xff, 0].into())),
        ("bool", AMQPValue::Boolean(false)),
        ("i8", AMQPValue::ShortShortInt(-8)),
        ("u8", AMQPValue::ShortShortUInt(200)),
        ("i16", AMQPValue::ShortInt(-16)),
        ("u16", AMQPValue::ShortUInt(60_000)),
        ("i32", AMQPValue::LongInt(-32)),
        ("u32", AMQPValue::LongUInt(4_000_000_000)),
        ("i64", AMQPValue::LongLongInt(i64::MIN)),
        ("f32", AMQPValue::Float(1.5)),
        ("f64", AMQPValue::Double(-2.5)),
        (
            "decimal",
            AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 7 }),
        ),
        ("time", AMQPValue::Timestamp(1_700_000_000)),
        ("list", AMQPValue::FieldArray(FieldArray::from(list))),
        ("table", AMQPValue::FieldTable(inner.into())),
        (
            "raw",
            AMQPValue::ByteArray(vec![1_u8, 2, 3].as_slice().into()),
        ),
        ("void", AMQPValue::Void),
    ]
    .map(|(name, value)| (name.into(), value))
    .into();
    headers.into()
}

async fn headers_survive_a_delay_queue_and_are_stripped<B: Broker>(mut bed: Bed<B>) {
    let delay_queue = bed.names.delay(levels().choose(50)).clone();
    let mut sent = message("x");
    sent.properties = BasicProperties::default()
        .with_message_id("x".into())
        .with_content_type("application/json".into())
        .with_content_encoding("identity".into())
        .with_correlation_id("c".into())
        .with_reply_to("r".into())
        .with_priority(1)
        .with_timestamp(1_700_000_000)
        .with_type("t".into())
        .with_app_id("a".into())
        .with_headers(all_headers())
        .with_delivery_mode(2);
    let properties = sent.properties.clone();
    for _ in 0..3 {
        let batch = vec![Outgoing {
            queue: delay_queue.clone(),
            message: sent,
        }];
        assert_eq!(bed.publish(batch).await, [Ok(())]);
        let mut taken = bed.take(1).await;
        bed.broker.ack(tags(&taken)).await;
        let back = taken.remove(0).message;
        let headers = back.properties.headers().clone().expect("headers");
        assert!(!headers.contains_key("x-death"));
        sent = Arc::unwrap_or_clone(back).for_republish();
        assert_eq!(sent.properties, properties);
    }
    bed.broker.close().await;
}

/// AMQP has short texts, but RabbitMQ's tables have only one text type. A handler's message may
/// still contain them.
async fn short_texts_in_headers_arrive_as_texts<B: Broker>(mut bed: Bed<B>) {
    let headers = |text: fn(&str) -> AMQPValue| -> FieldTable {
        let table: BTreeMap<ShortString, AMQPValue> = [("k".into(), text("deep"))].into();
        let list = vec![AMQPValue::Boolean(true), text("in a list")];
        let headers: BTreeMap<ShortString, AMQPValue> = [
            ("x-tenant".into(), text("ä")),
            ("empty".into(), text("")),
            ("list".into(), AMQPValue::FieldArray(list.into())),
            ("table".into(), AMQPValue::FieldTable(table.into())),
        ]
        .into();
        headers.into()
    };
    let mut short = message("short");
    let properties = short.properties.clone();
    short.properties = properties.with_headers(headers(|text| AMQPValue::ShortString(text.into())));
    let delay_queue = bed.names.delay(levels().choose(50)).clone();
    let batch = [short, message("other")].map(|message| Outgoing {
        queue: delay_queue.clone(),
        message,
    });
    assert_eq!(bed.publish(batch.to_vec()).await, [Ok(()), Ok(())]);
    let taken = bed.take(2).await;
    // Two channels publish, so one may overtake the other.
    let short = taken.iter().find(|it| it.message.id() == Some("short"));
    let long = headers(|text| AMQPValue::LongString(text.into()));
    let first = Message::clone(&short.expect("it came").message).for_republish();
    assert_eq!(first.properties.headers().as_ref(), Some(&long));
    bed.broker.ack(tags(&taken)).await;
    bed.broker.close().await;
}

async fn big_and_empty_bodies_arrive<B: Broker>(mut bed: Bed<B>) {
    let delay_queue = bed.names.delay(levels().choose(50)).clone();
    for size in [0, 1, 131_063, 131_064, 131_065, 10 << 20] {
        let body: Bytes = (0..size).map(|n| (n % 251) as u8).collect();
        let mut message = message("x");
        message.body = body.clone();
        let queue = delay_queue.clone();
        let batch = vec![Outgoing { queue, message }];
        assert_eq!(bed.publish(batch).await, [Ok(())]);
        let taken = bed.take(1).await;
        assert!(taken[0].message.body == body, "{size} bytes");
        bed.broker.ack(tags(&taken)).await;
    }
    bed.broker.close().await;
}

async fn a_stopped_client_takes_no_messages_but_acks_and_publishes<B: Broker>(mut bed: Bed<B>) {
    bed.publish_fresh(&["a", "b"]).await;
    let taken = bed.take(2).await;
    bed.broker.stop_consuming().await;
    bed.broker.stop_consuming().await;
    bed.publish_fresh(&["c"]).await;
    bed.broker.ack(tags(&taken[..1])).await;
    let more = tokio::time::timeout(Duration::from_millis(300), bed.events.recv()).await;
    assert!(more.is_err(), "{more:?}");
    bed.broker.close().await;
    let end = tokio::time::timeout(kit::PATIENCE, bed.events.recv()).await;
    assert_eq!(end, Ok(None));
}

async fn a_stopped_client_opens_no_new_session<B: Broker>(mut bed: Bed<B>) {
    bed.publish_fresh(&["a"]).await;
    let taken = bed.take(1).await;
    bed.broker.stop_consuming().await;
    bed.cut_for_good().await;
    bed.broker.ack(tags(&taken)).await;
    bed.publish_fresh(&["b"]).await;
    bed.reopen().await;
    let mut found = ids(&bed.take(2).await);
    found.sort();
    assert_eq!(found, ["a", "b"]);
    bed.broker.close().await;
}

async fn messages_left_by_one_client_go_to_another<B: Broker>(mut bed: Bed<B>) {
    let mut other = bed.join().await;
    other.broker.stop_consuming().await;
    bed.publish_fresh(&["a", "b"]).await;
    let taken = bed.take(2).await;
    bed.broker.ack(tags(&taken[..1])).await;
    let mut third = bed.join().await;
    bed.broker.close().await;
    let left = third.take(1).await;
    assert_eq!((ids(&left), left[0].redelivered), (ids(&taken[1..]), true));
    // Neither knows the other's tags.
    third.broker.ack(tags(&left)).await;
    other.publish_fresh(&["c"]).await;
    assert_eq!(ids(&third.take(1).await), ["c"]);
    third.broker.close().await;
    other.broker.close().await;
}

async fn clients_with_room_take_turns<B: Broker>(mut bed: Bed<B>) {
    let mut other = bed.join().await;
    let prefetch = usize::from(PREFETCH);
    let names = |from: usize, to: usize| (from..to).map(|n| n.to_string()).collect::<Vec<_>>();
    let all = names(0, 40);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    bed.publish_fresh(&all).await;
    let (mine, theirs) = (bed.take(20).await, other.take(20).await);
    // As many as both have room for, and 40 more, which go to the first that has room.
    let more = names(40, 2 * prefetch + 40);
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    bed.publish_fresh(&more).await;
    let (mine_too, theirs_too) = (
        bed.take(prefetch - 20).await,
        other.take(prefetch - 20).await,
    );
    other.broker.ack(tags(&theirs_too[..40])).await;
    let last = other.take(40).await;
    let mut found: Vec<_> = [mine, theirs, mine_too, theirs_too, last]
        .iter()
        .flat_map(|some| ids(some))
        .collect();
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 2 * prefetch + 40, "each came to one of them");
    bed.broker.close().await;
    other.broker.close().await;
}

async fn a_resting_client_takes_no_messages_despite_lost_sessions<B: Broker>(mut bed: Bed<B>) {
    bed.publish_fresh(&["a"]).await;
    bed.take(1).await;
    let mut other = bed.join().await;
    bed.broker.rest().await;
    assert!(matches!(bed.event().await, BrokerEvent::Resting));
    assert_eq!(ids(&other.take(1).await), ["a"]);
    bed.lose_connections();
    other.broker.close().await;
    let event = tokio::time::timeout(Duration::from_millis(300), bed.events.recv()).await;
    assert!(event.is_err(), "{event:?}");
    bed.broker.take().await;
    bed.wait_up().await;
    assert_eq!(ids(&bed.take(1).await), ["a"]);
    bed.broker.close().await;
}

async fn closed_it_answers<B: Broker>(bed: Bed<B>) {
    bed.broker.close().await;
    let answers = bed.broker.publish(vec![to(&bed.names.fresh, "x")]).await;
    assert!(
        matches!(answers[..], [Err(PublishError::Down(_))]),
        "{answers:?}"
    );
    bed.broker.ack(Vec::new()).await;
    bed.broker.stop_consuming().await;
    bed.broker.close().await;
}
