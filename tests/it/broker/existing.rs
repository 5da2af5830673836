//! Queues that Sluicegate does not declare (`amqp.declare: false`): they keep their arguments, and
//! nothing is lost.

use broker::amqp::{AmqpBroker, Client, QueueState, inventory};
use broker::{Broker, BrokerError, BrokerEvent};
use config::{Amqp, QueueType};
use kit::api::{Api, Reply};
use kit::process::DONE;
use kit::servers::{shared_rabbit, unique};
use kit::{Bed, PATIENCE, ids, jobs, until};
use lapin::Channel;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use rules::broker::existing_queue::QueueProperties;
use rustix::process::Signal;
use tokio::time::timeout;

use crate::PROGRAM;
use crate::broker::bed::{amqp, channel, levels, to};
use crate::cli::sluicegate;

const DURABLE: QueueDeclareOptions = QueueDeclareOptions {
    passive: false,
    durable: true,
    exclusive: false,
    auto_delete: false,
    nowait: false,
};

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

/// Declares `queue` as a publisher does.
async fn declare(
    channel: &Channel,
    queue: &str,
    options: QueueDeclareOptions,
    arguments: &[(&str, AMQPValue)],
) {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert((*name).into(), value.clone());
    }
    let declaring = channel.queue_declare(queue.into(), options, table);
    declaring.await.expect("the name is new");
}

/// Returns a configuration that declares no queue of new jobs.
fn left_alone(url: &str, queue: &str) -> Amqp {
    Amqp {
        declare: false,
        ..amqp(url, queue, QueueType::Quorum)
    }
}

/// Returns the state of the queue of new jobs.
async fn state(config: &Amqp) -> QueueState {
    let found = inventory(config, &levels()).await.expect("it answers");
    let mut queues = found.queues.into_iter();
    let (_, state) = queues
        .find(|(name, _)| *name == config.queue)
        .expect("it is listed");
    state
}

#[tokio::test(flavor = "multi_thread")]
async fn all_arguments_of_an_existing_queue_are_read_and_stay() {
    let channel = channel().await;
    let limits = [
        ("x-message-ttl", AMQPValue::LongInt(86_400_000)),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text("123")),
        ("x-max-length", AMQPValue::LongInt(1_000)),
        ("x-overflow", text("reject-publish")),
    ];
    let classic = [
        ("x-max-priority", AMQPValue::ShortInt(10)),
        ("x-queue-mode", text("lazy")),
        ("x-expires", AMQPValue::LongInt(86_400_000)),
    ];
    let quorum = [
        ("x-queue-type", text("quorum")),
        ("x-delivery-limit", AMQPValue::LongInt(7)),
    ];
    for more in [&classic[..], &quorum, &[]] {
        let arguments = [&limits[..], more].concat();
        let queue = unique("jobs");
        declare(&channel, &queue, DURABLE, &arguments).await;
        let config = left_alone(shared_rabbit().url(), &queue);
        let client = Client::connect(&config, &levels())
            .await
            .expect("it is left alone");
        let batch = [to(&client.names().fresh, "1")];
        assert_eq!(client.publish(&batch).await, Ok(vec![Ok(())]));
        client.close().await;
        let plain = |value: &AMQPValue| match value {
            AMQPValue::LongString(text) => text.to_string(),
            AMQPValue::LongInt(number) => number.to_string(),
            AMQPValue::ShortInt(number) => number.to_string(),
            other => panic!("{other:?}"),
        };
        let expected = arguments
            .iter()
            .map(|(name, value)| ((*name).to_owned(), plain(value)));
        let properties = QueueProperties {
            arguments: expected.collect(),
            ..QueueProperties::default()
        };
        let messages = 1;
        assert_eq!(
            state(&config).await,
            QueueState::Existing {
                messages,
                properties
            }
        );
        // The publisher declares it again.
        declare(&channel, &queue, DURABLE, &arguments).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_can_not_be_used_is_refused_with_the_reason() {
    let stream = [("x-queue-type", text("stream"))];
    let single = [("x-single-active-consumer", AMQPValue::Boolean(true))];
    let temporary = QueueDeclareOptions {
        auto_delete: true,
        ..DURABLE
    };
    let exclusive = QueueDeclareOptions {
        exclusive: true,
        ..DURABLE
    };
    for (options, arguments, words) in [
        (Some(DURABLE), &stream[..], "x-queue-type = stream"),
        (Some(DURABLE), &single, "only one worker would get its jobs"),
        (Some(temporary), &[], "auto-delete"),
        (Some(exclusive), &[], "exclusive to another connection"),
        (None, &[], "create it, correct amqp.queue"),
    ] {
        let (channel, queue) = (channel().await, unique("jobs"));
        if let Some(options) = options {
            declare(&channel, &queue, options, arguments).await;
        }
        let config = left_alone(shared_rabbit().url(), &queue);
        let (broker, mut events) = AmqpBroker::start(&config, &levels(), 1).expect("readable");
        match timeout(PATIENCE, events.recv()).await {
            Ok(Some(BrokerEvent::Down { reason })) => assert!(reason.contains(words), "{reason}"),
            other => panic!("{words}: {other:?}"),
        }
        broker.close().await;
        let text = match state(&config).await {
            QueueState::Unusable(error) => error.to_string(),
            QueueState::Existing { properties, .. } => {
                format!("{:?}", properties.effects(config.consumer_timeout))
            }
            other => panic!("{words}: {other:?}"),
        };
        assert!(text.contains(words), "{text}");
    }
    // Nothing was created.
    let missing = left_alone(shared_rabbit().url(), &unique("jobs"));
    let refused = Client::connect(&missing, &levels()).await.err();
    assert!(
        matches!(refused, Some(BrokerError::QueueMissing { .. })),
        "{refused:?}"
    );
}

/// A worker takes jobs of a queue that it may not configure, and whose publisher set limits. Each
/// job ends as done or as a dead letter, and the queue does not change.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_permission_to_declare_takes_the_jobs_of_an_existing_queue() {
    let bed = Bed::shared();
    let queue = &bed.name;
    let user = unique("reader");
    shared_rabbit().ctl(&["add_user", &user, "sesame"]);
    let own = format!(r"{queue}\.(due|recheck|dead|delay\..+)");
    let all = format!("^({queue}|{own})$");
    let own = format!("^{own}$");
    shared_rabbit().ctl(&["set_permissions", &user, &own, r"^amq\.default$", &all]);
    let (channel, arguments) = (
        channel().await,
        [
            ("x-max-priority", AMQPValue::ShortInt(5)),
            ("x-message-ttl", AMQPValue::LongInt(3_600_000)),
        ],
    );
    declare(&channel, queue, DURABLE, &arguments).await;
    let api = Api::start().await;
    api.answers(|call| match (call.job.as_str(), call.attempt) {
        ("acme-7", 1) => Reply::status(500),
        ("acme-8", _) => Reply::status(400),
        _ => Reply::ok(),
    });
    let url = shared_rabbit()
        .url()
        .replace("guest:guest", &format!("{user}:sesame"));
    let yaml = bed.yaml("max-requests: 5, window-size: 1s", &api.url(), "")
        + "retry: {initial-interval: 100ms}\n";
    let yaml = yaml.replace("queue: ", "declare: false, queue: ");
    bed.publish(&yaml, jobs("acme", 20)).await;
    let of_user = yaml.replace(shared_rabbit().url(), &url);
    let mut worker = PROGRAM.start(&of_user);
    until("all jobs", || worker.metric(DONE) == Some(19.0)).await;
    let risk = [
        "does not declare endangers jobs",
        queue,
        "configure permission",
    ];
    assert_eq!(worker.count(&risk), 1);
    worker.signal(Signal::TERM);
    assert!(worker.ended().success());
    assert_eq!(ids(&bed.dead(&yaml).await), ["acme-8"]);
    declare(&channel, queue, DURABLE, &arguments).await;

    let out = sluicegate(&yaml, &["check"]).exited(0).out;
    for line in [
        format!("ok    rabbitmq  queue {queue} exists and is left as it is: 0 messages ready"),
        format!(
            "warn  rabbitmq  queue {queue}: x-message-ttl: jobs that wait longer than 1h in it are lost (P1)"
        ),
        format!("warn  rabbitmq  queue {queue}: a classic queue"),
        format!("ok    rabbitmq  queue {queue}: x-max-priority = 5"),
    ] {
        assert!(
            out.lines().any(|known| known.starts_with(&line)),
            "{line}: {out}"
        );
    }
    let unread = sluicegate(&of_user, &["check"]).exited(0).out;
    assert!(unread.contains("not all arguments were read"), "{unread}");

    // A queue whose jobs each worker would skip.
    let stream = unique("jobs");
    declare(
        &channel,
        &stream,
        DURABLE,
        &[("x-queue-type", text("stream"))],
    )
    .await;
    let [ours, theirs] = [queue, &stream].map(|queue| format!("queue: '{queue}'"));
    let yaml = yaml.replace(&ours, &theirs);
    let out = sluicegate(&yaml, &["check"]).exited(1).out;
    assert!(out.contains("error rabbitmq  queue"), "{out}");
}
