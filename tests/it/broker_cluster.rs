//! A RabbitMQ cluster of three nodes, one of which dies.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use sluicegate::broker::amqp::{AmqpBroker, inventory};
use sluicegate::broker::{Broker, BrokerError, Event, Outgoing, Source};
use sluicegate::config::{Amqp, QueueType};
use tokio::sync::mpsc;
use tokio::task::block_in_place;
use tokio::time::{Instant, timeout_at};

use crate::broker_bed::{PATIENCE, amqp, ids, ladder, tags, to};
use crate::rabbit_cluster::RabbitCluster;
use crate::servers::Rabbit;

/// Not many: what lanes had sent to a queue whose leader died they send again in rounds of 32, seconds apart
/// (docs/CONFIGURATION.md).
const JOBS: usize = 600;
/// For all rounds; it only ends a test that hangs.
const ROUNDS: Duration = Duration::from_secs(600);

/// Where the consuming connection is.
fn node_in_use(cluster: &RabbitCluster) -> &Rabbit {
    let listed = cluster.nodes[0].ctl(&["list_connections", "pid", "client_properties"]);
    let ours = (listed.lines()).find(|line| line.contains("sluicegate consume"));
    let ours = ours.unwrap_or_else(|| panic!("no connection in {listed}"));
    // `<private20000@127.0.0.1.1.2.3>`: a node is named after its port.
    let port = |node: &Rabbit| {
        let after = node.url().rsplit(':').next().expect("a port");
        after.trim_end_matches("/%2f").to_owned()
    };
    let named = |node: &&Rabbit| ours.contains(&format!("<private{}@", port(node)));
    cluster.nodes.iter().find(named).expect("one of the three")
}

/// Publishes until all is confirmed.
async fn publish_all(broker: &AmqpBroker, mut batch: Vec<Outgoing>) {
    let begun = Instant::now();
    while !batch.is_empty() {
        let answers = broker.publish(batch.clone()).await;
        let late = begun.elapsed() > PATIENCE;
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

/// Moves each job through a lane, until all have come back; `at_fifth` happens in between. How often the session was lost.
async fn move_all(
    broker: &AmqpBroker,
    events: &mut mpsc::Receiver<Event>,
    at_fifth: impl FnOnce(),
) -> usize {
    let (names, ladder) = (broker.names().clone(), ladder());
    let mut at_fifth = Some(at_fifth);
    let (mut done, mut downs) = (HashSet::new(), 0);
    let deadline = Instant::now() + ROUNDS;
    while done.len() < JOBS {
        let event = timeout_at(deadline, events.recv()).await;
        let event = event.unwrap_or_else(|_| panic!("lost: {} of {JOBS} came", done.len()));
        match event.expect("events go on") {
            Event::Up { .. } => {}
            Event::Down { .. } => downs += 1,
            Event::Deliveries(batch) => {
                let (fresh, due): (Vec<_>, Vec<_>) =
                    (batch.into_iter()).partition(|d| d.source == Source::Fresh);
                done.extend(ids(&due));
                broker.ack(tags(&due)).await;
                let moves = (fresh.iter().enumerate()).map(|(n, delivery)| Outgoing {
                    queue: names.lane(ladder.choose(50 + n as u64, 0.0)).clone(),
                    message: delivery.message.clone().for_republish(),
                });
                // A queue without a leader takes nothing, also where the session is whole.
                publish_all(broker, moves.collect()).await;
                broker.ack(tags(&fresh)).await;
            }
        }
        if done.len() > JOBS / 5
            && let Some(happens) = at_fifth.take()
        {
            block_in_place(happens);
        }
    }
    downs
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_goes_on_at_another_node_when_its_own_dies() {
    let cluster = block_in_place(RabbitCluster::start);
    let urls = cluster.nodes.each_ref().map(Rabbit::url).join(",");
    let all: Amqp = amqp(&urls, "jobs", QueueType::Quorum);
    let (broker, mut events) = AmqpBroker::start(&all, &ladder()).expect("good urls");
    let names = broker.names().clone();
    let jobs = (0..JOBS).map(|n| to(&names.fresh, &n.to_string()));
    publish_all(&broker, jobs.collect()).await;
    // It stays dead.
    let downs = move_all(&broker, &mut events, || node_in_use(&cluster).kill()).await;
    assert!(downs > 0, "it was not its node");
    broker.close().await;

    let found = inventory(&all, &ladder()).await.expect("two nodes answer");
    assert!(
        matches!(&found.silent[..], [BrokerError::Unreachable { .. }]),
        "{:?}",
        found.silent
    );
}
