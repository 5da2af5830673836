//! A RabbitMQ cluster of three nodes, one of which dies.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use broker::amqp::{AmqpBroker, Forwarder, inventory};
use broker::forwarding::Forwarding;
use broker::{
    Broker, BrokerError, BrokerEvent, DeliverySource, ExternalMessage, Message, Outgoing,
};
use config::{Amqp, QueueType};
use kit::PATIENCE;
use kit::rabbit_cluster::RabbitCluster;
use kit::servers::Rabbit;
use tokio::sync::mpsc;
use tokio::task::block_in_place;
use tokio::time::{Instant, timeout};

use crate::broker::bed::{amqp, ids, levels, message, tags, to};

/// A small number: messages that delay queues had sent to a queue whose leader died are sent again
/// in rounds of 32, with seconds in between (docs/decisions/delay-queues.md).
const JOBS: usize = 600;
/// How long without a delivery until the remaining jobs are assumed to wait for the dead node.
/// RabbitMQ 3.10 may hold messages that a delay queue had sent to a leader on that node until the
/// node is back, regardless of its timeout.
const SILENCE: Duration = Duration::from_secs(20);

/// Returns the node of the connection called `name`.
fn node_in_use<'a>(cluster: &'a RabbitCluster, name: &str) -> &'a Rabbit {
    let listed = cluster.nodes[0].ctl(&["list_connections", "pid", "client_properties"]);
    let ours = listed.lines().find(|line| line.contains(name));
    let ours = ours.unwrap_or_else(|| panic!("no connection in {listed}"));
    // In `<private20000@127.0.0.1.1.2.3>` the node is named after its port.
    let port = |node: &Rabbit| {
        let after = node.url().rsplit(':').next().expect("a port");
        after.trim_end_matches("/%2f").to_owned()
    };
    let named = |node: &&Rabbit| ours.contains(&format!("<private{}@", port(node)));
    cluster.nodes.iter().find(named).expect("one of the three")
}

/// Publishes until everything is confirmed.
async fn publish_all(broker: &AmqpBroker, mut batch: Vec<Outgoing>) {
    let started = Instant::now();
    while !batch.is_empty() {
        let answers = broker.publish(batch.clone()).await;
        let late = started.elapsed() > PATIENCE;
        let queues = || batch.iter().map(|outgoing| outgoing.queue.clone());
        assert!(
            !late,
            "{answers:?} from {:?}",
            queues().collect::<BTreeSet<_>>()
        );
        let mut failed = answers.iter().map(Result::is_err);
        batch.retain(|_| failed.next().expect("an answer for each"));
    }
}

/// Moves each job through a delay queue until all have returned. In the middle, the worker's node
/// dies. It returns when nothing else happens. Returns the number of lost sessions, and whether the
/// node is still dead.
async fn move_all(
    broker: &AmqpBroker,
    events: &mut mpsc::Receiver<BrokerEvent>,
    cluster: &RabbitCluster,
) -> (usize, bool) {
    let (names, levels) = (broker.names().clone(), levels());
    let (mut done, mut downs) = (HashSet::new(), 0);
    let mut dead: Option<Option<&Rabbit>> = None;
    let deadline = Instant::now() + 2 * PATIENCE;
    while done.len() < JOBS {
        let Ok(event) = timeout(SILENCE, events.recv()).await else {
            assert!(
                Instant::now() < deadline,
                "lost: {} of {JOBS} came",
                done.len()
            );
            if let Some(node) = dead.as_mut().and_then(Option::take) {
                block_in_place(|| node.restart());
            }
            continue;
        };
        match event.expect("events go on") {
            BrokerEvent::Up { .. } | BrokerEvent::Resting | BrokerEvent::AckTimeout(_) => {}
            BrokerEvent::Down { .. } => downs += 1,
            BrokerEvent::Deliveries(batch) => {
                let (fresh, due): (Vec<_>, Vec<_>) =
                    (batch.into_iter()).partition(|d| d.source == DeliverySource::Fresh);
                done.extend(ids(&due));
                broker.ack(tags(&due)).await;
                let moves = (fresh.iter().enumerate()).map(|(n, delivery)| Outgoing {
                    queue: names.delay(levels.choose(50 + n as u64)).clone(),
                    message: Message::clone(&delivery.message).for_republish(),
                });
                // A queue without a leader accepts nothing, even in an intact session.
                publish_all(broker, moves.collect()).await;
                broker.ack(tags(&fresh)).await;
            }
        }
        if done.len() > JOBS / 5 && dead.is_none() {
            block_in_place(|| {
                let node = node_in_use(cluster, "sluicegate consume");
                node.kill();
                dead = Some(Some(node));
            });
        }
    }
    (downs, dead.flatten().is_some())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_continues_at_another_node_when_its_own_dies() {
    let cluster = block_in_place(RabbitCluster::start);
    let urls = cluster.nodes.each_ref().map(|node| node.url()).join(",");
    let all: Amqp = amqp(&urls, "jobs", QueueType::Quorum);
    let (broker, mut events) = AmqpBroker::start(&all, &levels(), 1).expect("good urls");
    let names = broker.names().clone();
    let jobs = (0..JOBS).map(|n| to(&names.fresh, &n.to_string()));
    publish_all(&broker, jobs.collect()).await;
    let (downs, one_is_dead) = move_all(&broker, &mut events, &cluster).await;
    assert!(downs > 0, "it was not its node");
    broker.close().await;

    if !one_is_dead {
        cluster.nodes[0].kill();
    }
    let found = inventory(&all, &levels()).await.expect("two nodes answer");
    assert!(
        matches!(&found.silent[..], [BrokerError::Unreachable { .. }]),
        "{:?}",
        found.silent
    );
}

/// Reports the job with `token` as done, as a worker does, and waits for the report.
async fn report(forwarder: &Forwarder, token: &str) {
    let mut expected = forwarder.expect(token.to_owned());
    let mut message = message(token);
    message.properties = message.properties.with_correlation_id(token.into());
    let report = ExternalMessage {
        exchange: "".into(),
        routing_key: forwarder.done_queue().expect("it has one").into(),
        message,
    };
    let started = Instant::now();
    while let Err(why) = forwarder.publish(report.clone()).await {
        assert!(started.elapsed() < PATIENCE, "{why:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let end = timeout(PATIENCE, expected.end()).await;
    assert!(end.expect("it comes").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_on_forwarded_jobs_arrive_after_the_death_of_the_workers_node() {
    let cluster = block_in_place(RabbitCluster::start);
    let urls = cluster.nodes.each_ref().map(|node| node.url()).join(",");
    let all = amqp(&urls, "jobs", QueueType::Quorum);
    let forwarder = Forwarder::start(&all, Some("jobs.done.1".to_owned())).expect("good urls");
    timeout(PATIENCE, forwarder.up())
        .await
        .expect("it connects");
    report(&forwarder, "before").await;
    block_in_place(|| node_in_use(&cluster, "sluicegate forward").kill());
    report(&forwarder, "after").await;
    forwarder.close().await;
}
