//! A private RabbitMQ that is killed, frozen or out of memory. No confirmed message is lost.

use std::collections::HashSet;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use broker::amqp::Client;
use broker::{Broker, BrokerError, BrokerEvent, DeliverySource, Message, Outgoing, PublishError};
use config::QueueType;
use kit::PATIENCE;
use kit::servers::{Rabbit, unique};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout};

use crate::broker::bed::{Bed, amqp, ids, levels, on, tags, to};

/// Publishes until everything is confirmed.
async fn publish_all<B: Broker>(bed: &Bed<B>, mut batch: Vec<Outgoing>) {
    while !batch.is_empty() {
        let answers = bed.broker.publish(batch.clone()).await;
        let mut failed = answers.iter().map(Result::is_err);
        batch.retain(|_| failed.next().expect("an answer for each"));
    }
}

/// Waits until no other test disturbs the RabbitMQ that these tests share, and returns it. Each
/// test leaves it as it was, because a start takes seconds; after a failure it may be frozen.
/// Under cargo-nextest each test is a process, and .config/nextest.toml runs one at a time.
async fn undisturbed() -> (MutexGuard<'static, ()>, &'static Rabbit) {
    // Sessions outlive a pause of the machine.
    static RABBIT: LazyLock<Rabbit> =
        LazyLock::new(|| Rabbit::shared("rabbitmq-faults", &["heartbeat = 5"]));
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    tokio::task::block_in_place(|| RABBIT.resume());
    (turn, &RABBIT)
}

/// Moves jobs through delay queues until all are done. The first that has done a fifth of its jobs
/// kills the server.
async fn moved_through_a_kill(rabbit: &Rabbit, queue_type: QueueType, killed: &AtomicBool) {
    const JOBS: usize = 5000;
    let mut bed = on(rabbit, &unique("killed"), queue_type).await;
    let names = bed.names.clone();
    let jobs = (0..JOBS)
        .map(|n| to(&names.fresh, &n.to_string()))
        .collect();
    publish_all(&bed, jobs).await;
    let levels = levels();
    let (mut done, mut downs) = (HashSet::new(), 0);
    let deadline = Instant::now() + PATIENCE;
    while done.len() < JOBS {
        let event = tokio::time::timeout_at(deadline, bed.events.recv()).await;
        let event = event.unwrap_or_else(|_| panic!("lost: {} of {JOBS} came", done.len()));
        match event.expect("events go on") {
            BrokerEvent::Up { .. } | BrokerEvent::Resting | BrokerEvent::AckTimeout(_) => {}
            BrokerEvent::Down { .. } => downs += 1,
            BrokerEvent::Deliveries(batch) => {
                let (fresh, due): (Vec<_>, Vec<_>) = batch
                    .into_iter()
                    .partition(|d| d.source == DeliverySource::Fresh);
                // Jobs from a delay queue are done once their acks are confirmed.
                done.extend(ids(&due));
                bed.broker.ack(tags(&due)).await;
                // consume -> delay queue -> confirm -> ack
                let moves = (fresh.iter().enumerate())
                    .map(|(n, delivery)| Outgoing {
                        queue: names.delay(levels.choose(50 + n as u64)).clone(),
                        message: Message::clone(&delivery.message).for_republish(),
                    })
                    .collect();
                let answers = bed.broker.publish(moves).await;
                let moved = fresh
                    .iter()
                    .zip(&answers)
                    .filter(|(_, answer)| answer.is_ok());
                bed.broker
                    .ack(moved.map(|(delivery, _)| delivery.tag).collect())
                    .await;
            }
        }
        if done.len() > JOBS / 5 && !killed.swap(true, Ordering::Relaxed) {
            tokio::task::block_in_place(|| {
                rabbit.kill();
                rabbit.restart();
            });
        }
    }
    assert!(downs > 0, "the kill was not noticed");
    bed.broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_broker_loses_no_job_of_quorum_and_classic_queues() {
    let (_turn, rabbit) = undisturbed().await;
    let killed = AtomicBool::new(false);
    tokio::join!(
        moved_through_a_kill(rabbit, QueueType::Quorum, &killed),
        moved_through_a_kill(rabbit, QueueType::Classic, &killed),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_alarm_stops_publishes_only_and_ends_without_a_new_session() {
    let (_turn, rabbit) = undisturbed().await;
    let mut bed = on(rabbit, &unique("alarm"), QueueType::Quorum).await;
    bed.publish_fresh(&["a", "b"]).await;
    tokio::task::block_in_place(|| rabbit.ctl(&["set_vm_memory_high_watermark", "0.0001"]));
    let fresh = bed.names.fresh.clone();
    let drained = format!("{fresh}\t0");
    let mut publishing = Box::pin(bed.broker.publish(vec![to(&fresh, "c")]));
    // Longer than any other wait for a confirm. A caller that got an error would publish the
    // message again.
    let result = timeout(Duration::from_secs(20), &mut publishing).await;
    assert!(result.is_err(), "{result:?}");
    // Deliveries and acks continue. The publish of c has not been delivered yet.
    let mut taken = Vec::new();
    while taken.len() < 2 {
        let event = timeout(PATIENCE, bed.events.recv()).await;
        match event.expect("an event in time") {
            Some(BrokerEvent::Deliveries(batch)) => taken.extend(batch),
            other => panic!("{other:?}"),
        }
    }
    bed.broker.ack(tags(&taken)).await;
    tokio::task::block_in_place(|| {
        let until = std::time::Instant::now() + PATIENCE;
        while !rabbit
            .ctl(&["list_queues", "--no-table-headers", "name", "messages"])
            .lines()
            .any(|line| line == drained)
        {
            assert!(std::time::Instant::now() < until, "the acks did not arrive");
        }
        rabbit.ctl(&["set_vm_memory_high_watermark", "0.6"]);
    });
    // It was queued when the alarm began, so it arrives in the same session.
    let result = timeout(PATIENCE, publishing).await;
    assert_eq!(result.expect("the alarm is over"), [Ok(())]);
    let late = bed.take(1).await;
    assert_eq!(ids(&late), ["c"]);
    assert_eq!(late[0].tag.session, bed.session);
    bed.publish_fresh(&["d"]).await;
    assert_eq!(ids(&bed.take(1).await), ["d"]);
    bed.broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_broker_is_abandoned_in_bounded_time_and_found_again() {
    let (_turn, rabbit) = undisturbed().await;
    let queue = unique("frozen");
    let mut bed = on(rabbit, &queue, QueueType::Quorum).await;
    let config = amqp(rabbit.url(), &queue, QueueType::Quorum);
    tokio::task::block_in_place(|| rabbit.pause());
    let levels = levels();
    let (answers, connected) = tokio::join!(
        bed.broker.publish(vec![to(&bed.names.fresh, "x")]),
        timeout(PATIENCE, Client::connect(&config, &levels)),
    );
    assert!(
        matches!(answers[..], [Err(PublishError::Down(_))]),
        "{answers:?}"
    );
    let refused = connected.expect("it gives up").err();
    assert!(
        matches!(refused, Some(BrokerError::Unreachable { .. })),
        "{refused:?}"
    );
    // Missing heartbeats end the session.
    assert!(matches!(bed.event().await, BrokerEvent::Down { .. }));
    tokio::task::block_in_place(|| rabbit.resume());
    bed.wait_up().await;
    bed.publish_fresh(&["y"]).await;
    loop {
        let taken = bed.take(1).await;
        bed.broker.ack(tags(&taken)).await;
        // The unconfirmed one may have arrived, too.
        if ids(&taken) == ["y"] {
            break;
        }
    }
    bed.broker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_a_broker_that_does_not_answer_takes_bounded_time() {
    let (_turn, rabbit) = undisturbed().await;
    let bed = on(rabbit, &unique("closing"), QueueType::Quorum).await;
    let hasty = on(rabbit, &unique("hasty"), QueueType::Quorum).await;
    tokio::task::block_in_place(|| rabbit.pause());
    let closing = async {
        bed.broker.stop_consuming().await;
        bed.broker.close().await;
    };
    // A second signal arrives soon after the first: the worker has just begun to stop.
    let closing_hastily = async {
        let started = Instant::now();
        let stopping = hasty.broker.stop_consuming();
        timeout(Duration::from_millis(200), stopping)
            .await
            .expect_err("it is frozen");
        hasty.broker.close().await;
        started.elapsed()
    };
    let both = async { tokio::join!(closing, closing_hastily) };
    let ((), took) = timeout(PATIENCE, both).await.expect("it ends");
    assert!(
        took < Duration::from_secs(9),
        "its requests end after 10 s: {took:?}"
    );
    tokio::task::block_in_place(|| rabbit.resume());
}
