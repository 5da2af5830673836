//! A failover behind one name, as with DNS, a Kubernetes Service or a managed server: the name leads
//! to another Redis, and the old primary becomes its replica and keeps its connections; or the name
//! leads to another RabbitMQ.

use std::time::Duration;

use kit::api::Api;
use kit::process::Process;
use kit::proxy::{Proxy, Transfers, server_of};
use kit::redis_topologies::{port, replicated, until as happens};
use kit::servers::{Rabbit, Redis, shared_rabbit, shared_redis};
use kit::{Bed, SECOND, counts, jobs, until};
use tokio::task::block_in_place;
use tokio::time::Instant;

use crate::PROGRAM;

const JOBS: usize = 400;
const MAX: usize = 20;

/// A primary, its replica, and one address in front of both.
struct Pair {
    first: Redis,
    second: Redis,
    name: Proxy,
    url: String,
}

impl Pair {
    async fn start() -> Self {
        let first = Redis::start_with(&["repl-diskless-sync-delay 0"]);
        let of = format!("replicaof 127.0.0.1 {}", port(&first));
        let second = Redis::start_with(&[&of, "repl-diskless-sync-delay 0"]);
        happens("the replica has a link", || is_linked(&second));
        let (name, url) = Proxy::before(first.url(), Transfers::OPEN, 11).await;
        Self {
            first,
            second,
            name,
            url,
        }
    }

    /// Promotes the replica and makes the name lead to it. The former primary follows it.
    fn fail_over(&self) {
        replicated(&self.first, &self.second);
        self.second.ctl(&["replicaof", "no", "one"]);
        self.name.lead_to(server_of(self.second.url()));
        let to = port(&self.second).to_string();
        self.first.ctl(&["replicaof", "127.0.0.1", &to]);
    }
}

fn is_linked(replica: &Redis) -> bool {
    replica
        .ctl(&["info", "replication"])
        .contains("master_link_status:up")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_follows_a_host_name_to_the_new_primary() {
    let pair = Pair::start().await;
    let api = Api::start().await;
    let bed = Bed::on(shared_rabbit().url(), &pair.url);
    let limits = format!("max-requests: {MAX}, window-size: 1s");
    let yaml = bed.yaml(&limits, &api.url(), "");
    let one = || PROGRAM.start_consuming(&yaml);
    let workers = [one().await, one().await];
    bed.publish(&yaml, jobs("acme", JOBS)).await;
    until("calls", || api.count() >= 3 * MAX).await;

    let switched = Instant::now();
    block_in_place(|| pair.fail_over());
    let follows = Instant::now();
    happens("the old primary is a replica", || is_linked(&pair.first));
    let behind = || {
        let calls = api.calls().into_iter();
        calls.filter(|call| call.at > follows + SECOND / 2).count()
    };
    until("calls go on", || behind() > 0).await;
    let first = api.calls().into_iter().map(|call| call.at);
    let first = first.filter(|at| *at > follows + SECOND / 2).min();
    let stood = first.map(|at| at.duration_since(switched));
    println!("calls go on {stood:?} after the failover");
    until("all jobs", || api.count() >= JOBS).await;
    let calls = api.calls();
    let (fullest, _) = counts::windows(&counts::arrivals(&calls, "acme"), MAX, SECOND);
    assert!(fullest <= MAX, "{fullest} calls in a window");
    // RabbitMQ delivers a job twice if a session was lost or a publish was not confirmed in time.
    let is_redelivered = |worker: &Process| {
        ["session lost", "publish not confirmed"].map(|words| worker.count(&[words])) != [0, 0]
    };
    assert!(
        counts::repeated(&calls) == 0 || workers.iter().any(is_redelivered),
        "{:#?}",
        workers.each_ref().map(Process::log)
    );
    assert!(stood < Some(Duration::from_secs(60)), "{stood:?}");
    for worker in workers {
        worker.stop();
    }
    assert!(bed.dead(&yaml).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_follows_a_host_name_to_another_rabbitmq() {
    let first = block_in_place(Rabbit::start);
    let (name, url) = Proxy::before(first.url(), Transfers::OPEN, 12).await;
    let api = Api::start().await;
    let bed = Bed::on(&url, shared_redis().url());
    let yaml = bed.yaml("max-requests: 1000, window-size: 1s", &api.url(), "");
    let worker = PROGRAM.start(&yaml);
    let consumes = || worker.count(&["RabbitMQ: consuming"]);
    until("it consumes", || consumes() == 1).await;
    bed.publish(&yaml, jobs("acme", 10)).await;
    until("calls", || api.count() == 10).await;

    name.lead_to(server_of(shared_rabbit().url()));
    block_in_place(|| first.kill());
    until("it consumes again", || consumes() == 2).await;
    bed.publish(&yaml, jobs("other", 10)).await;
    until("calls from the other RabbitMQ", || api.count() == 20).await;
    assert_eq!(counts::repeated(&api.calls()), 0);
    worker.stop();
}
