//! A Redis Cluster with a lost primary, and calls that hold leases: those of the other primaries'
//! tenants are released and renewed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use broker::BrokerEvent;
use engine::Stop;
use engine::action::{EngineSettings, LiveSettings};
use engine::scheduler::Scheduler;
use gate::keys::Keys;
use gate::redis::RedisGate;
use gate::{BreakerScope, End, Gate, GateError};
use handler::{Handler, Outcome, Permit};
use kit::engine::{AckRecorder, channel, deliveries, engine};
use kit::gate::{FRESH, LimitedGate, decided, receipt, settling, started};
use kit::redis_topologies::RedisCluster;
use kit::servers::unique;
use kit::until;
use rules::job::Job;
use rules::limit::Limit;
use tokio::sync::Semaphore;

use crate::cli::sluicegate;
use crate::gate::topology::{configured, tenants_of};

/// Number of jobs of the tenant whose primary answers. Each needs the previous job's lease.
const JOBS: usize = 30;
/// Shorter than the time that a worker keeps repeating settlements to a lost primary.
const SOON: Duration = Duration::from_secs(40);

fn gate(cluster: &RedisCluster, prefix: &str) -> RedisGate {
    let urls: Vec<&str> = cluster.primaries.iter().map(|one| one.url()).collect();
    let servers = configured(&format!("url: '{}', cluster: true", urls.join(",")));
    RedisGate::new(&servers, prefix).expect("good urls")
}

fn one_at_a_time() -> Limit {
    Limit::concurrent("running", 1).expect("in range")
}

#[tokio::test(flavor = "multi_thread")]
async fn other_primaries_receive_settlements_while_one_is_lost() {
    let cluster = RedisCluster::start(&[]);
    // The suspension of all tenants is on the primary that will be lost.
    let prefix = std::iter::repeat_with(|| unique("places"))
        .find(|prefix| {
            cluster.owner(&Keys::new(prefix).in_cluster().breaker(&BreakerScope::Api)) == 1
        })
        .expect("one of three has it");
    let ids = tenants_of(&cluster, &prefix, 1).concat();
    let gate = LimitedGate::new(gate(&cluster, &prefix), one_at_a_time());
    let mut batch = Vec::new();
    for id in &ids {
        let question = gate.question(id, 1, &[FRESH]);
        let replies = gate.ask(std::slice::from_ref(&question)).await;
        let replies = replies.expect("all answer");
        let receipt = receipt(&question, replies[0].as_ref().expect("a decision"), 0);
        batch.push(settling(id, &gate.limits, [(receipt, End::Cost(1))]));
    }
    cluster.primaries[1].kill();
    // Repeated, as a worker would. It counts once.
    for _ in 0..2 {
        let replies = gate.settle(&batch).await.expect("two primaries answer");
        let lost = matches!(replies[1], Err(GateError::Unreachable(_)));
        assert!(
            lost && replies[0].is_ok() && replies[2].is_ok(),
            "{replies:?}"
        );
    }
    let batch: Vec<_> = (ids.iter())
        .map(|id| gate.question(id, 2, &[FRESH; 2]))
        .collect();
    let replies = gate.ask(&batch).await.expect("two primaries answer");
    assert_eq!([0, 2].map(|at| started(decided(&replies, at))), [1, 1]);

    // The command's output names unreadable parts.
    let yaml = format!(
        "redis: {{prefix: '{prefix}', url: '{},{}'}}",
        cluster.primaries[0].url(),
        cluster.primaries[2].url()
    );
    let shown = sluicegate(&yaml, &["inspect", &ids[0]]).exited(0).out;
    let unread = "also      the other policies at a primary of the cluster are unknown: Redis \
        can't be reached: ";
    assert_eq!(shown.matches(unread).count(), 1, "{shown}");
    let all = "all       it is unknown whether all tenants are suspended: Redis can't be reached: ";
    assert_eq!(shown.matches(all).count(), 1, "{shown}");
    let found = sluicegate(&yaml, &["inspect", &ids[0], "--json"]).exited(0);
    let found = found.json();
    let others = found["other_configurations_unread"].as_array();
    assert_eq!(others.map(Vec::len), Some(1), "{found}");
    assert!(found["all_suspended_until_ms"].is_null(), "{found}");
    let all = found["all_suspended_unread"].as_str().unwrap_or_default();
    assert!(all.contains("can't be reached"), "{found}");
    let checked = sluicegate(&yaml, &["check"]).exited(1).out;
    assert!(checked.contains("error redis"), "{checked}");
}

/// Calls of `slow` last until they are released. Other calls end at once.
struct Calls {
    slow: String,
    go: Semaphore,
    started: AtomicUsize,
    running: AtomicUsize,
    max: AtomicUsize,
}

impl Handler for Calls {
    async fn handle(&self, job: &Job, _: Permit) -> Outcome {
        if job.tenant.as_str() == self.slow {
            self.started.fetch_add(1, Ordering::SeqCst);
            let _go = self.go.acquire().await.expect("it stays open");
            return Outcome::Done;
        }
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.max.fetch_max(running, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(2)).await;
        self.running.fetch_sub(1, Ordering::SeqCst);
        Outcome::Done
    }
}

fn settings() -> EngineSettings {
    let open = kit::settings::open(JOBS);
    EngineSettings {
        policy: one_at_a_time().into(),
        // All waiting jobs stay in memory.
        prefetch: 16 * JOBS,
        live: LiveSettings {
            max_in_memory: Duration::from_secs(300),
            ..open.live
        },
        ..open
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_of_healthy_primaries_continue_while_another_is_unreachable() {
    let cluster = RedisCluster::start(&[]);
    let prefix = unique("places");
    let [lost, healthy, _] = tenants_of(&cluster, &prefix, 1).map(|ids| ids[0].clone());
    let calls = Arc::new(Calls {
        slow: lost.clone(),
        go: Semaphore::new(0),
        started: AtomicUsize::new(0),
        running: AtomicUsize::new(0),
        max: AtomicUsize::new(0),
    });
    let broker = AckRecorder::without_end();
    let gate = Arc::new(gate(&cluster, &prefix));
    let engine = engine(&broker, &gate, &calls, Duration::from_secs(1));
    let jobs = |tenant: &str, tags| BrokerEvent::Deliveries(deliveries(tenant, tags));
    let (sender, events) = channel([jobs(&lost, 1..2)]);
    let stop = Stop::default();
    let scheduler = Scheduler::new(settings(), 7);
    let run = tokio::spawn(engine.run(scheduler, events, stop.clone()));
    let started = || calls.started.load(Ordering::SeqCst) == 1;
    until("the call that will not be told", started).await;
    cluster.primaries[0].kill();
    calls.go.add_permits(1);
    let acked = || broker.acked().len();
    until("it has ended", || acked() == 1).await;
    let event = jobs(&healthy, 2..2 + JOBS as u64);
    sender.send(event).await.expect("the engine runs");
    let others = until("the others' jobs", || acked() == 1 + JOBS);
    (tokio::time::timeout(SOON, others).await).expect("the others do not wait");
    assert_eq!(calls.max.load(Ordering::SeqCst), 1);
    stop.soft.cancel();
    run.await.expect("it ends");
}
