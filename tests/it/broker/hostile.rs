//! Properties that a client library refuses to send or to read. They never cost the session.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use broker::amqp::{AmqpBroker, Client};
use broker::{Broker, Message, Outgoing, PublishError};
use config::QueueType;
use kit::PATIENCE;
use kit::servers::{Rabbit, shared_rabbit, unique};
use lapin::types::AMQPValue;
use rules::headers::{PROPERTIES, UNREADABLE};
use rules::job::Field;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use crate::broker::bed::{amqp, levels, quorum, rabbit, tags, to};
use crate::broker::raw::{Raw, long, short};

/// Returns the flags and values of a message with `table` as its headers.
fn headers(table: &[u8]) -> Vec<u8> {
    [&[0x20, 0][..], &long(table)].concat()
}

fn entry(name: &[u8], kind: u8, value: &[u8]) -> Vec<u8> {
    [&short(name)[..], &[kind], value].concat()
}

/// Returns a list nested `depth` times.
fn nested(depth: usize) -> Vec<u8> {
    // From the outside in: each level has 5 bytes, the innermost a void.
    let mut value: Vec<u8> = (0..depth)
        .flat_map(|level| {
            let inside = u32::try_from((depth - level - 1) * 5 + 1).expect("small");
            [&b"A"[..], &inside.to_be_bytes()].concat()
        })
        .collect();
    value.push(b'V');
    [&short(b"nested")[..], &value].concat()
}

/// Returns unusable properties with the reported problems.
fn unusable() -> Vec<(&'static str, Vec<u8>)> {
    let table = entry(b"t", b'F', &long(&entry(b"\xfe", b't', &[1])));
    vec![
        (
            "a header's name is not UTF-8",
            headers(&entry(b"x-\xff", b't', &[1])),
        ),
        ("a key in a header's table is not UTF-8", headers(&table)),
        (
            "message-id is not UTF-8",
            [&[0, 0x80][..], &short(b"\xc3\x28")].concat(),
        ),
        (
            "content-type is not UTF-8",
            [&[0x80, 0][..], &short(b"\xff")].concat(),
        ),
        ("tables deep", headers(&nested(20_000))),
        (
            "above",
            headers(&entry(b"long", b'S', &long(&[b'v'; 125_000]))),
        ),
    ]
}

/// Returns unusual but usable properties.
fn usable() -> Vec<Vec<u8>> {
    let types = [
        entry(b"t", b't', &[1]),
        entry(b"b", b'b', &[0x80]),
        entry(b"B", b'B', &[0xff]),
        entry(b"s", b's', &[0x80, 0]),
        entry(b"u", b'u', &[0xff, 0xff]),
        entry(b"I", b'I', &[0x80, 0, 0, 0]),
        entry(b"i", b'i', &[0xff; 4]),
        entry(b"l", b'l', &[0x80, 0, 0, 0, 0, 0, 0, 0]),
        entry(b"f", b'f', &1.5_f32.to_be_bytes()),
        entry(b"d", b'd', &(-1.5e300_f64).to_be_bytes()),
        entry(b"D", b'D', &[2, 0, 0, 1, 0]),
        entry(b"T", b'T', &u64::MAX.to_be_bytes()),
        entry(b"V", b'V', b""),
        entry(b"x", b'x', &long(&[0xff, 0])),
        entry(b"S", b'S', &long(b"\xff\xfe\0")),
        entry(b"F", b'F', &long(&entry(b"A", b'A', &long(b"t\x01V")))),
        entry(b"", b't', &[1]),
    ];
    vec![
        headers(&types.concat()),
        headers(&nested(32)),
        headers(&entry(b"long", b'S', &long(&[b'v'; 100_000]))),
        headers(b""),
    ]
}

/// Unusable messages report the reason and keep their content. Everything else continues in the
/// same session.
async fn each_becomes_a_message(queue_type: QueueType) {
    let mut bed = rabbit(queue_type).await;
    let mut raw = Raw::connect(shared_rabbit().url());
    let fresh = bed.names.fresh.clone();
    let (mut expected, mut reasons) = (HashMap::new(), HashMap::new());
    for (why, properties) in unusable() {
        raw.publish("", fresh.as_bytes(), &properties, why.as_bytes());
        expected.insert(why.as_bytes().to_vec(), properties);
    }
    bed.publish_fresh(&["fine"]).await;
    for delivery in bed.take(expected.len() + 1).await {
        let message = Arc::unwrap_or_clone(delivery.message);
        let Some(came) = expected.remove(&*message.body) else {
            assert_eq!(message.id(), Some("fine"));
            assert_eq!(message.header(UNREADABLE), Field::Missing);
            continue;
        };
        let part = String::from_utf8_lossy(&message.body).into_owned();
        let Field::Text(why) = message.header(UNREADABLE) else {
            panic!("{part}: it says nothing: {message:?}");
        };
        assert!(why.contains(&part), "{why:?} should say {part:?}");
        reasons.insert(part.clone(), why.to_owned());
        let headers = message.properties.headers().as_ref().expect("has headers");
        let Some(AMQPValue::ByteArray(stored)) = headers.inner().get(PROPERTIES) else {
            panic!("{part}: {PROPERTIES} is missing");
        };
        let stored = stored.as_slice();
        assert!(stored.len() > 100_000 || stored == came, "{part}");
        assert!(came.starts_with(stored), "{part}");
        // It can be moved like any other message.
        let moved = Outgoing {
            queue: bed.names.dead.clone(),
            message: message.for_republish().with_id_if_missing(&part),
        };
        assert_eq!(bed.publish(vec![moved]).await, [Ok(())]);
        bed.broker.ack(vec![delivery.tag]).await;
    }
    assert_eq!(expected, HashMap::new());
    // Readers of dead letters see the same reason, not a problem of the wrapping.
    let config = amqp(shared_rabbit().url(), &fresh, queue_type);
    let client = Client::connect_existing(&config, &levels())
        .await
        .expect("queues");
    for _ in 0..reasons.len() {
        let letter = client
            .get(&bed.names.dead)
            .await
            .expect("an answer")
            .expect("a letter");
        let why = match letter.message.header(UNREADABLE) {
            Field::Text(why) => why,
            other => panic!("{other:?}"),
        };
        let part = letter.message.id().expect("an id");
        assert_eq!(reasons.get(part).map(String::as_str), Some(why));
    }
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_properties_do_not_end_the_session() {
    each_becomes_a_message(QueueType::Quorum).await;
    each_becomes_a_message(QueueType::Classic).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strange_properties_survive_a_delay_queue() {
    let mut bed = quorum().await;
    let mut raw = Raw::connect(shared_rabbit().url());
    let count = usable().len();
    for (number, properties) in usable().iter().enumerate() {
        let body = number.to_string();
        raw.publish("", bed.names.fresh.as_bytes(), properties, body.as_bytes());
    }
    let taken = bed.take(count).await;
    let delay_queue = bed.names.delays()[0].clone();
    let before: HashMap<_, _> = (taken.iter())
        .map(|delivery| (delivery.message.body.clone(), shown(&delivery.message)))
        .collect();
    let moved = (taken.iter())
        .map(|delivery| Outgoing {
            queue: delay_queue.clone(),
            message: Message::clone(&delivery.message)
                .for_republish()
                .with_id_if_missing(&unique("id")),
        })
        .collect();
    assert_eq!(bed.publish(moved).await, vec![Ok(()); count]);
    bed.broker.ack(tags(&taken)).await;
    for delivery in bed.take(count).await {
        let message = Arc::unwrap_or_clone(delivery.message).for_republish();
        assert_eq!(message.header(UNREADABLE), Field::Missing);
        assert_eq!(Some(&shown(&message)), before.get(&message.body));
    }
}

/// Returns the publisher's headers.
fn shown(message: &Message) -> String {
    format!("{:?}", message.clone().for_republish().properties.headers())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_routing_key_that_is_not_utf8_does_not_end_the_session() {
    let mut bed = quorum().await;
    let mut raw = Raw::connect(shared_rabbit().url());
    raw.bind(&bed.names.fresh, "amq.topic");
    // Queues that other tests bind there would get it, too, but no other test binds any.
    raw.publish("amq.topic", b"k.\xff", &[0, 0], b"body");
    let taken = bed.take(1).await;
    assert_eq!(taken[0].message.routing_key, "");
    assert_eq!(taken[0].message.body, "body");
}

/// RabbitMQ closes the channel over a message above `max_message_size`. It may have stored other
/// messages of the batch, and not confirmed them.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_rabbitmq_refuses_duplicates_no_other() {
    let rabbit = block_in_place(Rabbit::start);
    let limit = "application:set_env(rabbit, max_message_size, 100000).";
    block_in_place(|| rabbit.ctl(&["eval", limit]));
    let config = amqp(rabbit.url(), "jobs", QueueType::Quorum);
    let (broker, _events) = AmqpBroker::start(&config, &levels(), 1).expect("a good url");
    let dead = broker.names().dead.clone();
    let started = Instant::now();
    while broker.publish(vec![to(&dead, "first")]).await != [Ok(())] {
        assert!(started.elapsed() < PATIENCE, "it can't publish");
        sleep(Duration::from_millis(50)).await;
    }
    let mut large = to(&dead, "large");
    large.message.body = vec![0; 500_000].into();
    let is_refused = |answer| matches!(answer, &Err(PublishError::Refused(_)));
    let alone = broker.publish(vec![large.clone()]).await;
    assert!(alone.iter().all(is_refused), "{alone:?}");
    // The broker now sends bodies of this size alone.
    let small = (0..50).map(|n| to(&dead, &format!("small-{n}")));
    let answers = broker.publish(small.chain([large]).collect()).await;
    let (last, others) = answers.split_last().expect("51");
    assert!(is_refused(last), "{last:?}");
    assert_eq!(others, [const { Ok(()) }; 50]);
    let client = Client::connect_existing(&config, &levels()).await;
    let client = client.expect("queues");
    let mut stored = Vec::new();
    while let Some(got) = client.get(&dead).await.expect("an answer") {
        stored.push(got.message.id().expect("an id").to_owned());
    }
    let unique: BTreeSet<_> = stored.iter().collect();
    assert_eq!((stored.len(), unique.len()), (51, 51), "{stored:?}");
    client.close().await;
    broker.close().await;
}
