//! What queues cost a RabbitMQ that has nothing to do: its processor time, its memory, its files, and how long it takes to be back
//! after a crash; alone, and in a cluster of three. The numbers of queues are those of one pipeline with so many delay queues.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use kit::rabbit_cluster::RabbitCluster;
use kit::servers::{Rabbit, shared_redis, unique};
use kit::usage::Usage;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties};

use crate::PROGRAM;
use crate::report::Report;
use crate::worker::config;

const ALONE: &str = "one node";
const CLUSTER: &str = "three nodes";
/// None; 12, 35 (those of today) and 110 delay queues, each with the four others.
const QUEUES: [usize; 4] = [0, 16, 39, 114];
/// Those that a worker declares.
const OF_A_WORKER: usize = 39;
/// A start depends on what else the machine does: the quickest says most.
const CRASHES: usize = 5;
/// A node that has started still works for so long.
const SETTLED: Duration = Duration::from_secs(10);
const MINUTE: Duration = Duration::from_secs(60);

/// Each number of queues on servers of its own.
pub async fn queues(report: &mut Report) {
    for number in QUEUES {
        eprintln!("queues: {number}, {ALONE}");
        let rabbit = Rabbit::start();
        declare(&rabbit, number).await;
        measure((ALONE, &[&rabbit]), number, report).await;
    }
    eprintln!("queues: a worker, {ALONE}");
    consumed(report).await;
    for number in QUEUES {
        eprintln!("queues: {number}, {CLUSTER}");
        let cluster = RabbitCluster::start();
        declare(&cluster.nodes[0], number).await;
        let nodes: Vec<&Rabbit> = cluster.nodes.iter().collect();
        measure((CLUSTER, &nodes), number, report).await;
    }
}

/// Makes so many quorum queues, each with a member on every node.
async fn declare(rabbit: &Rabbit, number: usize) {
    let (_link, channel) = channel(rabbit).await;
    let declared = (0..number).map(|n| declare_one(&channel, n));
    join_all(declared).await;
}

async fn declare_one(channel: &Channel, number: usize) {
    let mut arguments = FieldTable::default();
    let quorum = AMQPValue::LongString("quorum".into());
    arguments.insert("x-queue-type".into(), quorum);
    let options = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let name = format!("queue-{number}");
    let declared = channel.queue_declare(name.as_str().into(), options, arguments);
    declared.await.expect("declared");
}

async fn channel(rabbit: &Rabbit) -> (Connection, Channel) {
    let link = Connection::connect(rabbit.url(), ConnectionProperties::default()).await;
    let link = link.expect("it answers");
    let channel = link.create_channel().await.expect("a channel");
    (link, channel)
}

/// Adds what the nodes take while nothing happens, and how long the first is away when it crashes.
async fn measure(
    (workload, nodes): (&'static str, &[&Rabbit]),
    number: usize,
    report: &mut Report,
) {
    let who = format!("{number} queues");
    idle((workload, &who), nodes, report).await;
    for _ in 0..CRASHES {
        let begun = Instant::now();
        nodes[0].restart();
        let listening = begun.elapsed().as_secs_f64();
        // Each of them answers, which takes its leader.
        let (_link, channel) = channel(nodes[0]).await;
        join_all((0..number).map(|n| declare_one(&channel, n))).await;
        let all = begun.elapsed().as_secs_f64();
        let mut add = |figure, value| report.add(workload, &who, figure, value);
        add("from a crash to listening, s", listening);
        add("from a crash to all queues, s", all);
    }
}

async fn idle((workload, who): (&'static str, &str), nodes: &[&Rabbit], report: &mut Report) {
    tokio::time::sleep(SETTLED).await;
    let before: Vec<_> = nodes.iter().map(|node| Usage::of(node)).collect();
    tokio::time::sleep(MINUTE).await;
    let after: Vec<_> = nodes.iter().map(|node| Usage::of(node)).collect();
    let each = |figure: &dyn Fn(usize) -> f64| {
        let all: f64 = (0..nodes.len()).map(figure).sum();
        all / nodes.len() as f64
    };
    let cpu = each(&|at| (after[at].cpu - before[at].cpu).as_secs_f64());
    let mut add = |figure, value| report.add(workload, who, figure, value);
    add("CPU of a node, s in a minute", cpu);
    let resident = each(&|at| after[at].resident_kb as f64 / 1e3);
    add("resident, MB of a node", resident);
    add(
        "files and sockets of a node",
        each(&|at| after[at].files as f64),
    );
}

/// The queues of a worker, and the worker, which has nothing to do either.
async fn consumed(report: &mut Report) {
    let rabbit = Rabbit::start();
    let queue = unique("queues");
    let text = config(rabbit.url(), shared_redis().url(), &queue, 1, "1m");
    let worker = PROGRAM.start(&text);
    worker.says(&["RabbitMQ: consuming"]).await;
    let who = format!("{OF_A_WORKER} queues and a worker");
    idle((ALONE, &who), &[&rabbit], report).await;
    worker.stop();
}
