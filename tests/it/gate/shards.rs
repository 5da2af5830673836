//! A Redis Cluster whose primaries lose data, fail over and are lost: no limit is exceeded, only
//! each primary's own tenants are affected, and starts resume by themselves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gate::fleet::AGREED_FOR_MS;
use gate::fleet::registry::{NamedPolicy, Registry, read_policies};
use gate::redis::RedisGate;
use gate::{EarlierStarts, Gate, GateError};
use kit::PATIENCE;
use kit::gate::{FRESH, LONG, LimitedGate, asking, limit, started};
use kit::redis_topologies::{RedisCluster, address, replicated, shared_cluster, until};
use kit::servers::{Redis, unique};
use rules::limit::{Algorithm, Limits};
use rules::policy::Policy;

use crate::gate::starts::{Jobs, MAX, Starts, short};
use crate::gate::topology::{configured, tenants_of};

/// Returns a limit above any test's demand.
fn much(window_ms: u64) -> Limits {
    limit(Algorithm::SlidingWindow, 100_000, window_ms).into()
}

fn watching(cluster: &RedisCluster, prefix: &str, limits: &Limits) -> LimitedGate<RedisGate> {
    let urls: Vec<&str> = cluster.primaries.iter().map(|one| one.url()).collect();
    let servers = configured(&format!("url: '{}', cluster: true", urls.join(",")));
    let gate = RedisGate::new(&servers, prefix).expect("good urls");
    let memory = Duration::from_millis(limits.memory_ms());
    LimitedGate::new(gate.watching(memory), limits.clone())
}

/// A tenant and all its starts.
pub struct Flow {
    id: String,
    /// The jobs of each worker.
    jobs: Vec<Jobs>,
    pub starts: Starts,
    /// The answers that reported a possible data loss.
    pub colds: Vec<(Duration, String)>,
    /// Jobs that may have been charged without a start, since their answer did not count.
    pub unused: u64,
    /// The last error of any other kind.
    error: Option<GateError>,
}

/// Two workers and their tenants.
pub struct Fleet {
    pub prefix: String,
    pub gates: Vec<LimitedGate<RedisGate>>,
    pub flows: Vec<Flow>,
    /// Whether workers ping after each question. If so, a refusal ends the test.
    pings: bool,
}

impl Fleet {
    pub async fn new(cluster: &RedisCluster, limits: &Limits) -> Self {
        let prefix = unique("shards");
        let ids = tenants_of(cluster, &prefix, 1).concat();
        Self::of(cluster, prefix, ids, limits).await
    }

    /// Creates a fleet with these tenants.
    pub async fn of(
        cluster: &RedisCluster,
        prefix: String,
        ids: Vec<String>,
        limits: &Limits,
    ) -> Self {
        let gates = (0..2).map(|_| watching(cluster, &prefix, limits)).collect();
        Self::over(gates, prefix, ids, true).await
    }

    /// Creates a fleet with these gates.
    pub async fn over(
        gates: Vec<LimitedGate<RedisGate>>,
        prefix: String,
        ids: Vec<String>,
        pings: bool,
    ) -> Self {
        for (gate, start) in gates
            .iter()
            .zip([EarlierStarts::Idle, EarlierStarts::Unknown])
        {
            gate.begin(start).await.expect("a first start is no loss");
        }
        let flow = |id| Flow {
            id,
            jobs: (0..2).map(|_| Jobs::new()).collect(),
            starts: Starts::default(),
            colds: Vec::new(),
            unused: 0,
            error: None,
        };
        Self {
            prefix,
            gates,
            flows: ids.into_iter().map(flow).collect(),
            pings,
        }
    }

    /// Lets each worker ask for its jobs of each tenant and start the admitted ones.
    pub async fn round(&mut self) {
        for (worker, gate) in self.gates.iter().enumerate() {
            let batch: Vec<_> = self
                .flows
                .iter()
                .map(|flow| gate.question(&flow.id, 100, &flow.jobs[worker].0))
                .collect();
            let replies = gate.ask(&batch).await;
            let replies = replies.unwrap_or_else(|why| vec![Err(why); self.flows.len()]);
            for (flow, reply) in self.flows.iter_mut().zip(replies) {
                match reply {
                    Ok(reply) => {
                        let count = flow.jobs[worker].take(&reply.answers);
                        flow.starts.add(reply.now_ms, count);
                    }
                    Err(GateError::Cold { wait, why }) => {
                        flow.unused += MAX as u64;
                        if flow.colds.last().is_none_or(|(_, last)| *last != why) {
                            flow.colds.push((wait, why));
                        }
                    }
                    Err(GateError::Refused(why)) if self.pings => panic!("{why}"),
                    Err(why) => {
                        flow.unused += MAX as u64;
                        flow.error = Some(why);
                    }
                }
            }
            // Workers do this every 2 s.
            if self.pings
                && let Err(GateError::Refused(why)) = gate.ping().await
            {
                panic!("{why}");
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    /// Continues until the starts of each tenant are as `is_reached`.
    pub async fn run_until(&mut self, is_reached: impl Fn(&[Starts]) -> bool) {
        let started = Instant::now();
        while !is_reached(&self.starts()) {
            let why: Vec<_> = (self.flows.iter())
                .map(|flow| (&flow.colds, &flow.error))
                .collect();
            let starts = self.starts();
            assert!(
                started.elapsed() < PATIENCE,
                "it stays at {starts:?}: {why:?}"
            );
            self.round().await;
        }
    }

    /// Continues until `count` more jobs of each tenant have started.
    pub async fn run(&mut self, count: usize) {
        let before = self.starts();
        let have_started = |(now, before): (&Starts, &Starts)| now.len() >= before.len() + count;
        self.run_until(|now| now.iter().zip(&before).all(have_started))
            .await;
    }

    /// Continues until some windows from now on are over and each tenant has used its whole limit
    /// again, and checks that none has exceeded it.
    pub async fn uses_the_whole_limit(&mut self) {
        let before = self.starts();
        self.run(2 * MAX).await;
        let is_full = |(now, before): (&Starts, &Starts)| now.since(before).fullest() >= MAX;
        self.run_until(|now| now.iter().zip(&before).all(is_full))
            .await;
        assert_eq!(self.worst(), MAX, "{:?}", self.starts());
    }

    /// Returns the starts of each tenant.
    pub fn starts(&self) -> Vec<Starts> {
        self.flows.iter().map(|flow| flow.starts.clone()).collect()
    }

    /// Returns the maximum number of starts of any tenant in any window.
    pub fn worst(&self) -> usize {
        let flows = self.flows.iter();
        flows.map(|flow| flow.starts.fullest()).max().unwrap_or(0)
    }

    /// Returns the reasons why nothing started, without those of mere looks.
    pub fn losses(&self, flow: usize) -> Vec<&str> {
        let colds = self.flows[flow].colds.iter().map(|(_, why)| why.as_str());
        let loss = |why: &&str| !why.contains("changed during") && !why.contains("moving");
        colds.filter(loss).collect()
    }

    /// Moves a slot, while the workers ask.
    pub async fn moves(&mut self, cluster: &RedisCluster, slot: u16, from: &Redis, to: &Redis) {
        let moving = cluster.begin_move(slot, from, to);
        moving.keys();
        self.round().await;
        moving.keys();
        moving.end();
    }

    pub fn slot(&self, cluster: &RedisCluster, flow: usize) -> u16 {
        cluster.slot(&format!("{}:{{{}}}", self.prefix, self.flows[flow].id))
    }
}

/// Cuts off the replica of the primary `at` from now on.
pub fn cut_off(cluster: &RedisCluster, at: usize) {
    let (primary, replica) = (&cluster.primaries[at], &cluster.replicas[at]);
    primary.ctl(&["acl", "setuser", "default", "-psync", "-sync", "-replconf"]);
    primary.ctl(&["client", "kill", "type", "replica"]);
    until("the link is down", || {
        let info = replica.ctl(&["info", "replication"]);
        info.contains("master_link_status:down")
    });
}

/// Makes the replica a primary without the others' consent, which then learn of it.
pub fn take_over(cluster: &RedisCluster, at: usize) {
    let replica = &cluster.replicas[at];
    assert_eq!(replica.ctl(&["cluster", "failover", "takeover"]), "OK");
    until("the others know", || {
        let address = address(replica);
        let is_primary = |line: &str| line.contains(address) && line.contains("master");
        let knows = |node: &Redis| node.ctl(&["cluster", "nodes"]).lines().any(is_primary);
        let others = [1, 2].into_iter().filter(|other| *other != at);
        let others = others.map(|other| &cluster.primaries[other]);
        cluster.replicas.iter().chain(others).all(knows)
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_is_no_loss_and_costs_no_more_round_trips() {
    let cluster = shared_cluster();
    let prefix = unique("first");
    let limits = much(LONG);
    let ids = tenants_of(cluster, &prefix, 20).concat();
    let started_of = async |gate: &LimitedGate<RedisGate>| {
        let batch: Vec<_> = ids
            .iter()
            .map(|id| gate.question(id, 1, &[FRESH]))
            .collect();
        let replies = gate.ask(&batch).await?;
        let replies = replies.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok::<_, GateError>(replies.iter().map(|r| started(&r.answers)).sum::<usize>())
    };
    let careful = watching(cluster, &prefix, &limits);
    let must_wait = async || match started_of(&careful).await {
        Err(GateError::Cold { why, .. }) => assert!(why.contains("--skip-recovery-wait"), "{why}"),
        other => panic!("{other:?}"),
    };
    must_wait().await;
    let before = careful.round_trips();
    must_wait().await;
    assert_eq!(careful.round_trips() - before, 3, "and none for a map");
    let fresh = watching(cluster, &prefix, &limits);
    fresh
        .begin(EarlierStarts::Fresh)
        .await
        .expect("it may start");
    careful.ping().await.expect("it is open for all");
    for gate in [&careful, &fresh] {
        assert_eq!(started_of(gate).await.expect("a decision"), 60);
        let before = gate.round_trips();
        assert_eq!(started_of(gate).await.expect("a decision"), 60);
        assert_eq!(gate.round_trips() - before, 3);
        gate.leave().await.expect("all answer");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_primary_stops_only_its_tenants() {
    let cluster = RedisCluster::start(&["appendonly no"]);
    for restart in [false, true] {
        let mut fleet = Fleet::new(&cluster, &short()).await;
        fleet.run(MAX + 1).await;
        if restart {
            cluster.primaries[1].restart();
            assert_eq!(cluster.primaries[1].ctl(&["dbsize"]), "0");
        } else {
            cluster.primaries[1].ctl(&["flushall"]);
        }
        fleet.uses_the_whole_limit().await;
        let reasons = fleet.losses(1);
        assert!(
            reasons.iter().any(|why| why.contains("emptied")),
            "{reasons:?}"
        );
        for other in [0, 2] {
            assert_eq!(fleet.losses(other), Vec::<&str>::new());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_replica_that_lags_is_a_loss_of_its_tenants_and_a_complete_one_is_none() {
    let cluster = RedisCluster::start(&[]);
    let primary = &cluster.primaries[0];
    let mut fleet = Fleet::new(&cluster, &short()).await;
    fleet.run(1).await;
    cut_off(&cluster, 0);
    fleet.run(2 * MAX).await;
    primary.kill();
    take_over(&cluster, 0);
    fleet.uses_the_whole_limit().await;
    // If no lost usage counts any more after a long takeover, the reason is a doubt.
    let reasons = fleet.losses(0);
    assert!(
        reasons
            .iter()
            .any(|why| why.contains("lost its last writes") || why.contains("not all workers")),
        "{reasons:?}"
    );
    for other in [1, 2] {
        assert_eq!(fleet.losses(other), Vec::<&str>::new());
    }

    // No job waits for a window of a month.
    let mut fleet = Fleet::new(&cluster, &much(LONG)).await;
    fleet.run(4).await;
    let primary = &cluster.primaries[2];
    replicated(primary, &cluster.replicas[2]);
    primary.kill();
    take_over(&cluster, 2);
    fleet.run(4).await;
    let reasons = fleet.losses(2);
    assert!(
        reasons
            .iter()
            .all(|why| why.contains("all known workers have confirmed")
                || why.contains("not all workers have confirmed")),
        "{reasons:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_in_one_slot_have_one_epoch() {
    let cluster = RedisCluster::start(&[]);
    let prefix = format!("{{{}}}:limits", unique("tag"));
    let owner = &cluster.primaries[cluster.owner(&prefix)];
    let ids = vec!["a".to_owned(), "b".to_owned()];
    let mut fleet = Fleet::of(&cluster, prefix.clone(), ids, &short()).await;
    fleet.run(MAX + 1).await;
    let epochs = |node: &Redis| node.ctl(&["exists", &format!("{prefix}:%epoch")]);
    assert_eq!(epochs(owner), "1");
    // The others are not needed.
    let other = cluster
        .primaries
        .iter()
        .find(|node| node.url() != owner.url());
    other.expect("three primaries").ctl(&["flushall"]);
    fleet.run(MAX).await;
    assert_eq!(fleet.losses(0), Vec::<&str>::new());
    owner.ctl(&["flushall"]);
    fleet.uses_the_whole_limit().await;
    for flow in 0..2 {
        assert!(fleet.losses(flow).iter().any(|why| why.contains("emptied")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_primary_does_not_prevent_agreement_of_the_others() {
    let cluster = RedisCluster::start(&[]);
    let prefix = unique("agreed");
    let ids = tenants_of(&cluster, &prefix, 1).concat();
    let limits = much(LONG);
    let gate = Arc::new(watching(&cluster, &prefix, &limits).gate);
    gate.begin(EarlierStarts::Idle).await.expect("it may start");
    let named = |max| {
        let limit = limit(Algorithm::SlidingWindow, max, 1_000);
        NamedPolicy::new(Policy::from(limit)).expect("small")
    };
    let mut registry = Registry::new(Arc::clone(&gate), named(1));
    let agreed = registry.exchange().await.expect("all primaries answer");
    registry.open(&agreed);
    let question = |id: &String| asking(id, &limits, &[FRESH]);
    let ask = async || {
        let batch: Vec<_> = ids.iter().map(question).collect();
        let replies = gate.ask(&batch).await.unwrap_or_default();
        let mut replies = replies.iter();
        [0; 3].map(|_| replies.next().is_some_and(Result::is_ok))
    };
    assert_eq!(ask().await, [true; 3]);
    // Each in turn, since a single registry could have been on any of them.
    for lost in 0..3 {
        cluster.primaries[lost].kill();
        let started = Instant::now();
        let mut others = [true; 3];
        others[lost] = false;
        let mut last = u64::try_from(lost).expect("small") * 1_000;
        // Earlier agreements have expired by then.
        let over = started + Duration::from_millis(AGREED_FOR_MS + 500);
        let mut rounds = 0;
        while rounds < 2 {
            assert!(started.elapsed() < PATIENCE, "the others do not go on");
            last += 1;
            // A changed policy takes effect as well.
            let agreed = registry.switch_to(named(last + 2)).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            let Ok(agreed) = agreed else { continue };
            registry.open(&agreed);
            let seen = read_policies(&gate).await;
            let went_on = ask().await;
            assert!(!went_on[lost], "nobody knows what is in force there");
            // On a busy machine this may take longer than an agreement lasts, or an answer longer
            // than the timeout.
            let in_time =
                agreed.registries.len() == 2 && tokio::time::Instant::now() < agreed.until;
            let Some(seen) = seen.ok().filter(|_| in_time) else {
                continue;
            };
            assert!(seen.known.find(&registry.own().id).is_some());
            assert!(
                matches!(seen.failed[..], [GateError::Unreachable(_)]),
                "{:?}",
                seen.failed
            );
            assert_eq!(went_on, others);
            rounds += usize::from(Instant::now() > over);
        }
        cluster.primaries[lost].restart();
        let started = Instant::now();
        loop {
            assert!(started.elapsed() < PATIENCE, "it does not come back");
            let agreed = registry.exchange().await;
            if agreed.is_ok_and(|agreed| agreed.registries.len() == 3) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // The others' agreements may have expired by now.
        assert!(!ask().await[lost], "what it says is not enforced yet");
        let started = Instant::now();
        loop {
            assert!(started.elapsed() < PATIENCE, "its tenants do not go on");
            // An answer may take longer than the timeout.
            if let Ok(agreed) = registry.exchange().await {
                registry.open(&agreed);
            }
            if ask().await == [true; 3] {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
