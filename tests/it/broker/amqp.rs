//! RabbitMQ alone: its refusals, and how the client recovers.

use std::sync::Arc;

use broker::amqp::{AmqpBroker, Client};
use broker::{Broker, BrokerError, BrokerEvent, PublishError, QueueDifference};
use config::QueueType;
use kit::servers::{shared_rabbit, unique};
use kit::{PATIENCE, Says};
use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use tokio::time::timeout;

use crate::broker::bed::{amqp, ids, levels, message, quorum, to};

async fn bare() -> (Connection, Channel) {
    let properties = ConnectionProperties::default();
    let connection = Connection::connect(shared_rabbit().url(), properties).await;
    let connection = connection.expect("RabbitMQ runs");
    let channel = connection.create_channel().await.expect("a channel");
    (connection, channel)
}

async fn declare_plain(queue: &str, durable: bool) {
    let (_connection, channel) = bare().await;
    let options = QueueDeclareOptions {
        durable,
        ..QueueDeclareOptions::default()
    };
    (channel
        .queue_declare(queue.into(), options, FieldTable::default())
        .await)
        .expect("the name is new");
}

async fn delete(queue: &str) {
    let (_connection, channel) = bare().await;
    let options = QueueDeleteOptions::default();
    (channel.queue_delete(queue.into(), options).await).expect("the queue is there");
}

async fn refusal(url: &str, queue: &str, queue_type: QueueType) -> BrokerError {
    let connected = Client::connect(&amqp(url, queue, queue_type), &levels()).await;
    connected.err().expect("it is refused")
}

/// Returns the shared server's URL with another user, password or virtual host.
fn url(user: &str, password: &str, vhost: &str) -> String {
    let mut url = url::Url::parse(shared_rabbit().url()).expect("a URL");
    url.set_username(user).expect("it has a host");
    url.set_password(Some(password)).expect("it has a host");
    url.set_path(vhost);
    url.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_with_other_arguments_is_named_with_the_differences() {
    let server = shared_rabbit().url();
    // A transient queue, a classic queue instead of a quorum queue, and the reverse.
    let transient = unique("transient");
    declare_plain(&transient, false).await;
    let error = refusal(server, &transient, QueueType::Classic).await;
    let BrokerError::QueueDiffers(differs) = &error else {
        panic!("{error}")
    };
    assert_eq!(
        (differs.queue.as_str(), differs.argument.as_str()),
        (transient.as_str(), "durable")
    );
    assert_eq!(
        (differs.found.as_str(), differs.wanted.as_str()),
        ("false", "true")
    );
    assert!(error.is_misconfiguration());

    let queue = unique("jobs");
    let config = amqp(server, &queue, QueueType::Classic);
    for _ in 0..2 {
        let client = Client::connect(&config, &levels()).await;
        client.expect("new, and the same again").close().await;
    }
    let error = refusal(server, &queue, QueueType::Quorum).await;
    let line = error.to_string();
    line.says("exists with x-queue-type = classic, but x-queue-type = quorum is required");
    line.says("set amqp.queue-type: classic");
    assert!(!line.contains('\n'));

    // A delay queue with other arguments.
    let queue = unique("jobs");
    let names = rules::delays::QueueNames::new(&queue, &levels());
    declare_plain(&names.delays()[3], true).await;
    let error = refusal(server, &queue, QueueType::Quorum).await;
    assert!(
        matches!(&error, BrokerError::QueueDiffers(QueueDifference { queue, .. }) if **queue == *names.delays()[3]),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_distinguished_and_hold_no_password() {
    let queue = unique("jobs");
    let reader = unique("reader");
    let rabbit = shared_rabbit();
    rabbit.ctl(&["add_user", &reader, "hunter2"]);
    let refused = async |user: &str, password: &str, vhost: &str| {
        let error = refusal(&url(user, password, vhost), &queue, QueueType::Quorum).await;
        let line = format!("{error} {error:?}");
        assert!(!line.contains("hunter2"), "{line}");
        error
    };
    let error = refused("guest", "hunter2", "/%2f").await;
    assert!(
        matches!(error, BrokerError::Credentials { .. }),
        "{error:?}"
    );
    let error = refused("guest", "guest", "/nowhere").await;
    assert!(matches!(error, BrokerError::Vhost { .. }), "{error:?}");
    let error = refused(&reader, "hunter2", "/%2f").await;
    assert!(matches!(error, BrokerError::Vhost { .. }), "{error:?}");
    rabbit.ctl(&["set_permissions", &reader, "^$", ".*", ".*"]);
    let error = refused(&reader, "hunter2", "/%2f").await;
    assert!(matches!(error, BrokerError::Forbidden { .. }), "{error:?}");

    let nobody = "amqp://guest:hunter2@127.0.0.1:1/%2f";
    let error = refusal(nobody, &queue, QueueType::Quorum).await;
    assert!(
        matches!(error, BrokerError::Unreachable { .. }),
        "{error:?}"
    );
    assert!(!error.is_misconfiguration());
    assert!(!format!("{error} {error:?}").contains("hunter2"));
    // A server without TLS.
    let tls = url("guest", "hunter2", "/%2f").replacen("amqp:", "amqps:", 1);
    let error = refusal(&tls, &queue, QueueType::Quorum).await;
    assert!(
        matches!(error, BrokerError::Unreachable { .. }),
        "{error:?}"
    );
    assert!(!format!("{error} {error:?}").contains("hunter2"));
    for wrong in [
        "hunter2",
        "http://a:hunter2@b",
        "amqp:hunter2",
        "amqp://a:hunter2@b?heartbeat=x",
    ] {
        let error = refusal(wrong, &queue, QueueType::Quorum).await;
        assert!(matches!(error, BrokerError::Url(_)), "{error:?}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_misconfiguration_is_reported_once_and_heals() {
    let queue = unique("jobs");
    declare_plain(&queue, true).await;
    let config = amqp(shared_rabbit().url(), &queue, QueueType::Quorum);
    let (broker, mut events) = AmqpBroker::start(&config, &levels(), 1).expect("readable");
    match timeout(PATIENCE, events.recv()).await {
        Ok(Some(BrokerEvent::Down { reason })) => {
            reason.says(&format!("the queue '{queue}' exists with"));
        }
        other => panic!("{other:?}"),
    }
    delete(&queue).await;
    let next = timeout(PATIENCE, events.recv()).await;
    assert_eq!(next, Ok(Some(BrokerEvent::Up { session: 1 })));
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_from_before_a_session_that_rested_is_reported_again() {
    let queue = unique("jobs");
    declare_plain(&queue, true).await;
    let config = amqp(shared_rabbit().url(), &queue, QueueType::Quorum);
    let (broker, mut events) = AmqpBroker::start(&config, &levels(), 1).expect("readable");
    let mut next = async || timeout(PATIENCE, events.recv()).await;
    let first = next().await;
    assert!(
        matches!(first, Ok(Some(BrokerEvent::Down { .. }))),
        "{first:?}"
    );
    delete(&queue).await;
    assert_eq!(next().await, Ok(Some(BrokerEvent::Up { session: 1 })));
    broker.rest().await;
    assert_eq!(next().await, Ok(Some(BrokerEvent::Resting)));
    delete(&queue).await;
    declare_plain(&queue, true).await;
    broker.take().await;
    assert_eq!(next().await, first);
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_queues_come_back() {
    let mut bed = quorum().await;
    // The session ends, and the next one declares the queue.
    for queue in [bed.names.due.clone(), bed.names.delays()[3].clone()] {
        delete(&queue).await;
        assert!(matches!(bed.event().await, BrokerEvent::Down { .. }));
        bed.wait_up().await;
    }
    let due = bed.names.due.clone();
    assert_eq!(bed.publish(vec![to(&due, "y")]).await, [Ok(())]);
    assert_eq!(ids(&bed.take(1).await), ["y"]);
    bed.broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_nacks_until_it_has_room() {
    let mut bed = quorum().await;
    let full = bed.names.dead.clone();
    let policy = unique("full");
    let rabbit = shared_rabbit();
    let definition = r#"{"max-length": 5, "overflow": "reject-publish"}"#;
    rabbit.ctl(&[
        "set_policy",
        "--apply-to",
        "queues",
        &policy,
        &format!("^{full}$"),
        definition,
    ]);
    let mut refused = false;
    // A quorum queue notices its length with a delay, so the first refusal may come after some
    // more.
    for n in 0..500 {
        match bed.publish(vec![to(&full, &n.to_string())]).await[0] {
            Ok(()) => {}
            Err(PublishError::Nacked) => {
                refused = true;
                break;
            }
            ref other => panic!("{other:?}"),
        }
    }
    assert!(refused);
    bed.nothing_but_a_marker().await;
    let config = amqp(rabbit.url(), &bed.names.fresh, QueueType::Quorum);
    let client = Client::connect(&config, &levels()).await.expect("up");
    while let Some(fetched) = client.get(&full).await.expect("up") {
        client.ack(fetched.tag).await.expect("up");
    }
    client.close().await;
    let until_taken = async {
        while bed.broker.publish(vec![to(&full, "x")]).await != [Ok(())] {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, until_taken).await.expect("there is room");
    bed.broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_closes_the_channel_is_isolated_from_the_others() {
    let mut bed = quorum().await;
    bed.nothing_but_a_marker().await;
    let dead = bed.names.dead.clone();
    let mut poison = to(&dead, "poison");
    // The broker closes the channel because of a foreign user ID.
    poison.message.properties = (message("poison").properties).with_user_id("somebody".into());
    let mut batch: Vec<_> = (0..20).map(|n| to(&dead, &n.to_string())).collect();
    batch.insert(7, poison.clone());
    batch.insert(13, poison);
    let answers = bed.broker.publish(batch).await;
    for (n, answer) in answers.iter().enumerate() {
        match n {
            7 | 13 => assert!(
                matches!(answer, Err(PublishError::Refused(_))),
                "{n}: {answers:?}"
            ),
            _ => assert_eq!(*answer, Ok(()), "{n}: {answers:?}"),
        }
    }
    bed.nothing_but_a_marker().await;
    bed.broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_callers_share_batches() {
    let mut bed = quorum().await;
    let broker = Arc::new(bed.broker);
    let missing: Arc<str> = "no such queue".into();
    let dead = bed.names.dead.clone();
    let callers: Vec<_> = (0..500)
        .map(|n| {
            let (broker, missing, dead) = (broker.clone(), missing.clone(), dead.clone());
            tokio::spawn(async move {
                let id = n.to_string();
                let batch = vec![to(&dead, &id), to(&missing, &id), to(&dead, "same")];
                let answers = broker.publish(batch).await;
                assert_eq!(answers, [Ok(()), Err(PublishError::Returned), Ok(())]);
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("the answers are right");
    }
    broker.close().await;
    bed.events.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_publishes_fetches_acks_and_counts() {
    let queue = unique("jobs");
    let config = amqp(shared_rabbit().url(), &queue, QueueType::Quorum);
    let client = Client::connect(&config, &levels()).await.expect("up");
    let dead = client.names().dead.clone();
    let batch = [to(&dead, "a"), to(&dead, "b"), to(&"nowhere".into(), "c")];
    let answers = client.publish(&batch).await.expect("confirmed");
    assert_eq!(answers, [Ok(()), Ok(()), Err(PublishError::Returned)]);
    let first = client.get(&dead).await.expect("up").expect("a message");
    assert_eq!((first.message.id(), first.left), (Some("a"), 1));
    client.ack(first.tag).await.expect("up");
    let second = client.get(&dead).await.expect("up").expect("a message");
    assert_eq!(second.message.id(), Some("b"));
    assert!(client.get(&dead).await.expect("up").is_none());
    // Messages without an ack are in the queue again.
    client.close().await;
    let client = Client::connect(&config, &levels()).await.expect("up");
    assert_eq!(client.depth(&dead).await.expect("up"), 1);
    client.close().await;
}
