//! `sluicegate queues remove-old` on a real RabbitMQ: no job is lost, and nothing changes while an
//! older worker may run.

use std::collections::BTreeSet;
use std::time::Duration;

use kit::servers::shared_rabbit;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use sluicegate::broker::amqp::Client;
use sluicegate::rules::delays::DelayLevels;
use sluicegate::rules::delays::earlier::delay_queues;

use crate::cli::sluicegate;
use crate::cli_servers::{config, yaml};

/// The earlier version's setting. No job expires within this test.
const MAX_DELAY: Duration = Duration::from_secs(3_600);
const REMOVE: [&str; 6] = [
    "queues",
    "remove-old",
    "--max-delay",
    "1h",
    "--quiet-for",
    "100ms",
];

async fn connect() -> (Connection, Channel) {
    let link = Connection::connect(shared_rabbit().url(), ConnectionProperties::default()).await;
    let link = link.expect("RabbitMQ answers");
    let channel = link.create_channel().await.expect("a channel");
    let confirms = channel.confirm_select(ConfirmSelectOptions::default());
    confirms.await.expect("confirms");
    (link, channel)
}

/// Declares a queue as the earlier version did.
async fn declare(channel: &Channel, name: &str, target: &str) {
    let text = |text: &str| AMQPValue::LongString(text.into());
    let ttl = name
        .rsplit(['.', '-'])
        .next()
        .and_then(|ms| ms.parse().ok());
    let mut arguments = FieldTable::default();
    for (name, value) in [
        ("x-queue-type", text("quorum")),
        (
            "x-message-ttl",
            AMQPValue::LongLongInt(ttl.expect("its time")),
        ),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(target)),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ] {
        arguments.insert(name.into(), value);
    }
    let options = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let declared = channel.queue_declare(name.into(), options, arguments);
    declared.await.expect("declared");
}

async fn publish(channel: &Channel, queue: &str, id: &str) {
    let mut headers = FieldTable::default();
    headers.insert("x-tenant".into(), AMQPValue::LongString("acme".into()));
    let properties = BasicProperties::default()
        .with_message_id(id.into())
        .with_delivery_mode(2)
        .with_headers(headers);
    let options = BasicPublishOptions::default();
    let publishing = channel.basic_publish("".into(), queue.into(), options, b"{}", properties);
    let confirm = publishing.await.expect("it is sent");
    assert!(confirm.await.expect("an answer").is_ack());
}

async fn exists(link: &Connection, queue: &str) -> bool {
    let channel = link.create_channel().await.expect("a channel");
    let passive = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let asking = channel.queue_declare(queue.into(), passive, FieldTable::default());
    asking.await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_of_an_earlier_version_are_emptied_and_deleted_and_no_job_is_lost() {
    let yaml = yaml();
    let config = config(&yaml);
    let work = &config.amqp.queue;
    let levels = DelayLevels::new(config.delay.max_delay);
    let none = sluicegate(&yaml, &REMOVE).exited(1);
    assert!(none.err.contains("has no queue"), "{none:?}");
    let client = Client::connect(&config.amqp, &levels).await;
    let client = client.expect("it makes the queues");
    let none = sluicegate(&yaml, &REMOVE).exited(0);
    assert_eq!(none.out, "no delay queues of earlier versions\n");

    let (link, channel) = connect().await;
    let all = delay_queues(work, MAX_DELAY);
    // The queues of the longest waits, so that no job expires by itself.
    let old = [
        &all[all.len() - 9],
        &all[all.len() - 8],
        &all[all.len() - 1],
    ];
    let due = format!("{work}.due");
    let mut ids = BTreeSet::new();
    for (at, queue) in old.iter().enumerate() {
        declare(&channel, queue, &due).await;
        // One queue has more jobs than are moved at once, and one has none.
        for job in 0..[130, 0, 3][at] {
            let id = format!("{at}-{job}");
            publish(&channel, queue, &id).await;
            ids.insert(id);
        }
    }

    // A worker of that version consumes from the work queue's own queues, but from no delay queue.
    let consuming = channel.basic_consume(
        due.as_str().into(),
        "older".into(),
        BasicConsumeOptions::default(),
        FieldTable::default(),
    );
    let consumer = consuming.await.expect("it consumes");
    let refused = sluicegate(&yaml, &REMOVE).exited(1);
    assert!(
        refused
            .err
            .contains("a worker of an earlier version may run"),
        "{refused:?}"
    );
    assert!(exists(&link, old[1]).await, "nothing was changed");
    drop(consumer);
    let cancelled = channel.basic_cancel("older".into(), Default::default());
    cancelled.await.expect("cancelled");

    let done = sluicegate(&yaml, &REMOVE).exited(0);
    assert!(
        done.out
            .starts_with("3 delay queues of earlier versions\n133 jobs moved\n"),
        "{done:?}"
    );
    assert!(done.out.ends_with("3 delay queues deleted\n"), "{done:?}");
    for queue in old {
        assert!(!exists(&link, queue).await, "{queue}");
    }
    let mut found = BTreeSet::new();
    while let Some(fetched) = client.get(&client.names().due).await.expect("a job") {
        found.insert(fetched.message.id().expect("an id").to_owned());
        client.ack(fetched.tag).await.expect("acked");
    }
    assert_eq!(found, ids);
    let again = sluicegate(&yaml, &REMOVE).exited(0);
    assert_eq!(again.out, none.out);
    client.close().await;
}
