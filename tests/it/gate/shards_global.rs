//! A limit that all tenants share in a Redis Cluster: all of its keys are on one primary, which may
//! be lost.

use std::time::Instant;

use kit::gate::shares::shares_conform;
use kit::gate::{LONG, limit};
use kit::redis_topologies::{RedisCluster, shared_cluster};
use kit::servers::{Redis, unique};
use rules::limit::{Algorithm, Limit, Limits};
use rules::scope::Scope;

use crate::gate::shards::{Fleet, cut_off, take_over};
use crate::gate::starts::{GUARD, MAX, Starts, WINDOW};
use crate::gate::topology::connect;

/// Returns a prefix with a hash tag, so that all keys share a slot.
fn prefix() -> String {
    format!("{{{}}}:rate", unique("x"))
}

/// Returns limits per tenant, and of [`MAX`] for all tenants together.
fn limits() -> Limits {
    let named = |name: &str, max: usize| {
        let limit = Limit::new(name, Algorithm::SlidingWindow, max as u64, WINDOW, GUARD);
        limit.expect("in range")
    };
    let all = named("all", MAX).with_scope(Scope::Global);
    Limits::new(vec![named("own", MAX - 1), all]).expect("names differ")
}

/// Continues until all tenants together have used their whole limit from now on, and checks that it
/// was never exceeded.
async fn use_the_whole_limit(fleet: &mut Fleet) {
    let before = fleet.starts();
    fleet.run(3).await;
    let is_full = |now: &[Starts]| {
        let since = now.iter().zip(&before);
        let since: Starts = since.map(|(now, before)| now.since(before)).collect();
        since.fullest() >= MAX
    };
    fleet.run_until(is_full).await;
    let all: Starts = fleet.starts().into_iter().collect();
    assert_eq!(all.fullest(), MAX, "{all:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gate_on_one_slot_of_a_cluster_conforms() {
    let cluster = shared_cluster();
    let unused = || limit(Algorithm::SlidingWindow, 1, LONG);
    shares_conform(|| connect(cluster, &prefix(), unused()).gate).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_primary_of_a_global_limit_may_forget_and_be_lost() {
    let cluster = RedisCluster::start(&["appendonly no"]);
    let mut prefixes = std::iter::repeat_with(prefix);
    // The other primaries are asked what they know of a lost one.
    let prefix = prefixes.find(|prefix| cluster.owner(prefix) != 1);
    let prefix = prefix.expect("it goes on for ever");
    let at = cluster.owner(&prefix);
    let owner = &cluster.primaries[at];
    let ids = ["a", "b", "c"].map(str::to_owned).to_vec();
    let mut fleet = Fleet::of(&cluster, prefix.clone(), ids, &limits()).await;
    let all = [0, 1, 2];
    use_the_whole_limit(&mut fleet).await;
    let keys = |node: &Redis| node.ctl(&["keys", &format!("{prefix}:*")]);
    assert!(keys(owner).contains(":%global"), "{}", keys(owner));

    owner.ctl(&["flushall"]);
    use_the_whole_limit(&mut fleet).await;
    for flow in all {
        let reasons = fleet.losses(flow);
        assert!(
            reasons.iter().any(|why| why.contains("emptied")),
            "{reasons:?}"
        );
    }

    cut_off(&cluster, at);
    fleet.run(3).await;
    let killed = Instant::now();
    owner.kill();
    take_over(&cluster, at);
    fleet.round().await;
    let took = killed.elapsed();
    use_the_whole_limit(&mut fleet).await;
    assert!(keys(&cluster.replicas[at]).contains(":%global"));
    for flow in all {
        let reasons = fleet.losses(flow);
        // If no lost usage counts any more after a long takeover, the reason is a doubt, or there is
        // none.
        let lost =
            |why: &&str| why.contains("lost its last writes") || why.contains("not all workers");
        assert!(
            reasons.iter().any(lost) || took >= WINDOW,
            "{reasons:?} after {took:?}"
        );
    }
    assert!(fleet.worst() < MAX);
}
