//! A limit that all tenants share in a Redis Cluster: all of its keys are on one primary, which may
//! be lost.

use kit::gate::shares::shares_conform;
use kit::gate::{LONG, limit};
use kit::redis_topologies::{RedisCluster, shared_cluster};
use kit::servers::{Redis, unique};
use rules::limit::{Algorithm, Limit, Limits};
use rules::scope::Scope;

use crate::gate::shards::{Fleet, GUARD, MAX, WINDOW, cut_off, take_over};
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
    fleet.run(&all, 3).await;
    let keys = |node: &Redis| node.ctl(&["keys", &format!("{prefix}:*")]);
    assert!(keys(owner).contains(":%global"), "{}", keys(owner));

    owner.ctl(&["flushall"]);
    fleet.run(&all, 3).await;
    for flow in all {
        let reasons = fleet.losses(flow);
        assert!(
            reasons.iter().any(|why| why.contains("emptied")),
            "{reasons:?}"
        );
    }

    cut_off(&cluster, at);
    fleet.run(&all, 3).await;
    owner.kill();
    take_over(&cluster, at);
    fleet.run(&all, 3).await;
    assert!(keys(&cluster.replicas[at]).contains(":%global"));
    for flow in all {
        let reasons = fleet.losses(flow);
        // If no lost usage counts any more after a long takeover, the reason is a doubt.
        let lost =
            |why: &&str| why.contains("lost its last writes") || why.contains("not all workers");
        assert!(reasons.iter().any(lost), "{reasons:?}");
    }
    assert!(fleet.worst_of_all() <= MAX);
    assert!(fleet.worst() < MAX);
}
