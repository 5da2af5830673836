//! The cost of queues for an idle RabbitMQ: processor time, memory, files, and the recovery time
//! after a crash; for a single node and for a cluster of three. The numbers of queues correspond to
//! one pipeline with different numbers of delay queues.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use kit::rabbit_cluster::RabbitCluster;
use kit::servers::{Rabbit, shared_redis, unique};
use kit::usage::Usage;
use lapin::Channel;
use lapin::types::FieldTable;
use rules::delays::{DelayLevels, QueueNames};

use crate::PROGRAM;
use crate::bare::{all_queues, declare, open};
use crate::report::Report;
use crate::worker::config;

const ALONE: &str = "one node";
const CLUSTER: &str = "three nodes";
/// Number of crashes. The recovery time depends on other load on the machine, so the shortest
/// counts.
const CRASHES: usize = 5;
/// How long a node is still busy after its start.
const SETTLED: Duration = Duration::from_secs(10);
const MINUTE: Duration = Duration::from_secs(60);

/// Measures each number of queues on its own servers.
pub async fn queues(report: &mut Report) {
    // The delay queues are the same for any `delay.max-delay`.
    let levels = DelayLevels::new(MINUTE);
    let of_a_worker = all_queues(&QueueNames::new("queues", &levels)).count();
    let others = of_a_worker - levels.from_ms().len();
    // No queues; the queues of a worker with 12, with its own number, and with 110 delay queues.
    let numbers = [0, 12 + others, of_a_worker, 110 + others];
    for number in numbers {
        eprintln!("queues: {number}, {ALONE}");
        let rabbit = Rabbit::start();
        declare_all(&rabbit, number).await;
        measure((ALONE, &[&rabbit]), number, report).await;
    }
    eprintln!("queues: a worker, {ALONE}");
    consumed(of_a_worker, report).await;
    for number in numbers {
        eprintln!("queues: {number}, {CLUSTER}");
        let cluster = RabbitCluster::start();
        declare_all(&cluster.nodes[0], number).await;
        let nodes: Vec<&Rabbit> = cluster.nodes.iter().collect();
        measure((CLUSTER, &nodes), number, report).await;
    }
}

/// Declares this many quorum queues, each with a member on every node.
async fn declare_all(rabbit: &Rabbit, number: usize) {
    let (_link, channel) = open(rabbit.url()).await;
    let declared = (0..number).map(|n| declare_one(&channel, n));
    join_all(declared).await;
}

async fn declare_one(channel: &Channel, number: usize) {
    declare(channel, &format!("queue-{number}"), FieldTable::default()).await;
}

/// Adds the idle load of the nodes, and the recovery time of the first node after a crash.
async fn measure(
    (workload, nodes): (&'static str, &[&Rabbit]),
    number: usize,
    report: &mut Report,
) {
    let who = format!("{number} queues");
    idle((workload, &who), nodes, report).await;
    for _ in 0..CRASHES {
        let started = Instant::now();
        nodes[0].restart();
        let listening = started.elapsed().as_secs_f64();
        // Each queue answers only once it has a leader.
        let (_link, channel) = open(nodes[0].url()).await;
        join_all((0..number).map(|n| declare_one(&channel, n))).await;
        let all = started.elapsed().as_secs_f64();
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

/// Measures a worker's queues with an idle worker.
async fn consumed(number: usize, report: &mut Report) {
    let rabbit = Rabbit::start();
    let queue = unique("queues");
    let text = config(rabbit.url(), shared_redis().url(), &queue, 1, "1m");
    let worker = PROGRAM.start(&text);
    worker.logs(&["RabbitMQ: consuming"]).await;
    let who = format!("{number} queues and a worker");
    idle((ALONE, &who), &[&rabbit], report).await;
    worker.stop();
}
