//! A complete worker on a Redis that was emptied while jobs wait for their turn, and on a cluster
//! that loses a primary.

use std::time::{Duration, Instant};

use app::Worker;
use broker::amqp::{Client, in_use};
use config::Config;
use gate::fleet::AGREED_FOR_MS;
use handler::{Handler, Outcome, Permit};
use kit::redis_topologies::{RedisCluster, address, until as happens};
use kit::servers::{Redis, shared_rabbit, unique};
use kit::{Bed, PATIENCE};
use rules::delays::DelayLevels;
use rules::job::Job;

use crate::PROGRAM;
use crate::cli::servers::config;
use crate::cli::sluicegate;
use crate::gate::topology::tenants_of;
use crate::worker::running::Running;

/// An API that no worker here calls.
const NOWHERE: &str = "http://127.0.0.1:9/";

struct InstantHandler;

impl Handler for InstantHandler {
    async fn handle(&self, _: &Job, _: Permit) -> Outcome {
        Outcome::Done
    }
}

fn start(config: &Config, fresh: bool) -> Running {
    let worker = Worker::new(config.clone()).expect("a worker");
    let worker = if fresh { worker.fresh() } else { worker };
    Running::start(worker, InstantHandler)
}

async fn until(worker: &Running, series: &str) {
    kit::until(series, || worker.shows(series)).await;
}

async fn publish(yaml: &str, tenant: &str, count: usize) {
    let client = kit::client(yaml).await;
    publish_by(&client, tenant, count).await;
    client.close().await;
}

async fn publish_by(client: &Client, tenant: &str, count: usize) {
    kit::publish(client, &client.names().fresh, kit::jobs(tenant, count)).await;
}

/// Returns a bed on one of the primaries, and a worker's configuration.
fn on(cluster: &RedisCluster, limits: &str) -> (Bed, String) {
    let bed = Bed::on(shared_rabbit().url(), cluster.primaries[1].url());
    let yaml = bed.yaml(limits, NOWHERE, "");
    (bed, yaml.replace("prefix:", "cluster: true, prefix:"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_on_an_emptied_redis_waits_for_an_operator_or_a_window() {
    let redis = Redis::start();
    let limits = "max-requests: 2, window-size: 1h, guard: 1m";
    let yaml = Bed::on(shared_rabbit().url(), redis.url()).yaml(limits, NOWHERE, "");
    let config = config(&yaml);
    let levels = DelayLevels::new(config.delay.max_delay);

    // A new system has nothing to lose.
    assert!(!in_use(&config.amqp, &levels).await.expect("it answers"));
    publish(&yaml, "busy", 5).await;
    assert!(!in_use(&config.amqp, &levels).await.expect("it answers"));
    // With another max-delay the delay queues are the same.
    let other = DelayLevels::new(Duration::from_secs(60));
    assert!(!in_use(&config.amqp, &other).await.expect("it answers"));
    let first = start(&config, false);
    until(&first, &done(2)).await;
    assert!(first.shows("sluicegate_gate_recovering 0"));
    // It takes jobs. Later three of them wait in delay queues.
    assert!(in_use(&config.amqp, &levels).await.expect("it answers"));
    let delay_queues = "sluicegate_delays_total{where=\"longest-delay-queue\"} 3";
    until(&first, delay_queues).await;
    first.stop().await;
    // A queue's count lags behind its confirms.
    let started = Instant::now();
    while !in_use(&config.amqp, &levels).await.expect("it answers") {
        assert!(
            started.elapsed() < PATIENCE,
            "nobody waits in a delay queue"
        );
    }

    // Jobs wait, so some were started, but their number is unknown.
    redis.ctl(&["flushall"]);
    publish(&yaml, "calm", 1).await;
    let careful = start(&config, false);
    until(&careful, "sluicegate_gate_recovering 1").await;
    until(&careful, "sluicegate_deliveries_total{queue=\"new\"} 1").await;
    until(&careful, "sluicegate_up{server=\"redis\"} 1").await;
    assert!(careful.shows(&done(0)));
    careful.stop().await;

    // Jobs in delay queues ask again: two of them start, and the new one does.
    let fresh = start(&config, true);
    until(&fresh, &done(3)).await;
    assert!(fresh.shows("sluicegate_gate_recovering 0"));
    fresh.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_on_a_cluster_continues_for_healthy_primaries() {
    let cluster = RedisCluster::start(&[]);
    let (bed, yaml) = on(&cluster, "max-requests: 100, window-size: 1s");
    let [lost, flushed, other] = tenants_of(&cluster, &bed.name, 1).map(|ids| ids[0].clone());
    let worker = start(&config(&yaml), false);
    for tenant in [&lost, &flushed, &other] {
        publish(&yaml, tenant, 1).await;
    }
    until(&worker, &done(3)).await;

    cluster.primaries[0].kill();
    // The workers' agreements have expired by then.
    tokio::time::sleep(Duration::from_millis(AGREED_FOR_MS + 1_000)).await;
    for tenant in [&lost, &flushed, &other] {
        publish(&yaml, tenant, 1).await;
    }
    until(&worker, &done(5)).await;
    cluster.primaries[1].ctl(&["flushall"]);
    for tenant in [&flushed, &other] {
        publish(&yaml, tenant, 1).await;
    }
    until(&worker, &done(7)).await;
    cluster.primaries[0].restart();
    until(&worker, &done(8)).await;
    until(&worker, "sluicegate_gate_recovering 0").await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_closed_primary_is_reported() {
    let cluster = RedisCluster::start(&[]);
    let (bed, yaml) = on(&cluster, "max-requests: 100, window-size: 1h");
    let [calm, flushed, away] = tenants_of(&cluster, &bed.name, 1).map(|ids| ids[0].clone());
    let worker = PROGRAM.start(&yaml);
    let metric = |series: &str| worker.metric(series);
    let primaries =
        |state: &str| metric(&format!("sluicegate_redis_primaries{{state=\"{state}\"}}"));
    let readyz = || worker.get("/readyz").unwrap_or_default();
    happens("all admit", || {
        primaries("admitting") == Some(3.0) && readyz() == "ready\n"
    });
    assert_eq!(metric("sluicegate_gate_recovering"), Some(0.0));

    // The others continue, so the worker is ready, and reports the waiting jobs.
    cluster.primaries[1].ctl(&["flushall"]);
    happens("one recovers", || {
        primaries("recovering") == Some(1.0) && primaries("admitting") == Some(2.0)
    });
    assert_eq!(metric("sluicegate_gate_recovering"), Some(1.0));
    let one =
        "ready\n1 of 3 Redis primaries may have lost data: their tenants' jobs are not admitted\n";
    happens("it says so", || readyz() == one);
    let inspect = |tenant: &str| {
        let done = sluicegate(&yaml, &["inspect", tenant, "--json"]).exited(0);
        done.json()["recovery_wait_until_ms"].as_u64()
    };
    assert_eq!(inspect(&calm), Some(0));
    assert!(inspect(&flushed) > Some(0));
    assert_eq!(inspect(&away), Some(0));
    let checked = sluicegate(&yaml, &["check"]).exited(0).out;
    let warning = format!(
        "warn  redis     {}: no job with the common limits is admitted until the recovery wait ends, in ",
        address(&cluster.primaries[1])
    );
    assert!(checked.contains(&warning), "{checked}");
    let starts = checked.matches(": has lost no data; jobs are admitted\n");
    assert_eq!(starts.count(), 2, "{checked}");

    cluster.primaries[2].kill();
    happens("one is away", || primaries("away") == Some(1.0));
    let two = format!(
        "{one}1 of 3 Redis primaries does not answer: their tenants' jobs are not \
            admitted\n"
    );
    happens("it says both", || readyz() == two);
    // The alert SluicegatePrimaryAway requires it.
    assert_eq!(metric("sluicegate_up{server=\"redis\"}"), Some(1.0));
    worker.stop();
}

fn done(count: usize) -> String {
    format!("sluicegate_dispatches_total{{outcome=\"done\"}} {count}")
}

/// A question to a server that hangs. It is out until the gate fails or a job is put to wait.
struct QuestionOut<'a> {
    worker: &'a Running,
    before: Vec<String>,
}

impl<'a> QuestionOut<'a> {
    /// Returns the question that is asked next.
    fn next(worker: &'a Running) -> Self {
        let of_answers = |line: &&str| {
            line.starts_with("sluicegate_gate_failures_total")
                || line.starts_with("sluicegate_delays_total{where=\"delay-queue\"}")
        };
        let metrics = worker.metrics();
        let before = metrics.lines().filter(of_answers).map(str::to_owned);
        let before: Vec<_> = before.collect();
        assert_eq!(before.len(), 2, "{metrics}");
        Self { worker, before }
    }

    fn is_unanswered(&self) -> bool {
        self.before.iter().all(|line| self.worker.shows(line))
    }
}

/// A hanging server is noticed only after a timeout of seconds. Questions and settlements at other
/// servers don't wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_primary_delays_no_tenant_of_another() {
    let cluster = RedisCluster::start(&[]);
    // With `strict`, each call is settled before the next question.
    for guard in ["50ms", "strict"] {
        let limits = format!("max-requests: 10000, window-size: 1s, guard: {guard}");
        let (bed, yaml) = on(&cluster, &limits);
        let [hung, other, _] = tenants_of(&cluster, &bed.name, 1).map(|ids| ids[0].clone());
        let worker = start(&config(&yaml), false);
        let client = kit::client(&yaml).await;
        for tenant in [&hung, &other] {
            publish_by(&client, tenant, 1).await;
        }
        until(&worker, &done(2)).await;

        // A busy machine may stand still while the question is out. If the tenants waited for each
        // other, none of the other's jobs would be done in any round.
        let (mut published, begun) = (2, Instant::now());
        loop {
            cluster.primaries[0].pause();
            let out = QuestionOut::next(&worker);
            publish_by(&client, &hung, 1).await;
            published += 1;
            let fresh = format!("sluicegate_deliveries_total{{queue=\"new\"}} {published}");
            until(&worker, &fresh).await;
            let mut meanwhile = 0;
            while out.is_unanswered() {
                publish_by(&client, &other, 1).await;
                published += 1;
                let all = done(published - 1);
                while out.is_unanswered() && !worker.shows(&all) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                meanwhile += usize::from(out.is_unanswered());
            }
            cluster.primaries[0].resume();
            if meanwhile >= 3 {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "{guard}: {meanwhile} meanwhile");
            until(&worker, &done(published)).await;
        }
        worker.stop().await;
        client.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_being_declared_do_not_count_as_used() {
    for _ in 0..4 {
        let text = format!(
            "amqp: {{url: \"{}\", queue: \"{}\"}}\n",
            shared_rabbit().url(),
            unique("declared")
        );
        let config = config(&text);
        let levels = DelayLevels::new(config.delay.max_delay);
        let publisher = {
            let (amqp, levels) = (config.amqp.clone(), levels.clone());
            tokio::spawn(async move { Client::connect(&amqp, &levels).await })
        };
        // A worker may start at any moment next to the first publisher.
        while !publisher.is_finished() {
            assert!(!in_use(&config.amqp, &levels).await.expect("it answers"));
        }
        let client = publisher.await.expect("no panic").expect("it declared all");
        client.close().await;
    }
}
