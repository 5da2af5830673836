//! The gate on a Redis Cluster: several nodes, lost nodes, moving slots.

use std::time::Duration;

use config::{Config, RedisServers};
use gate::fleet::registry;
use gate::keys::Keys;
use gate::redis::RedisGate;
use gate::{Gate, GateError, TenantAsk};
use kit::Says;
use kit::gate::conformance::conforms;
use kit::gate::{FRESH, LONG, LimitedGate, ask, decided, limit, started, tenant};
use kit::redis_topologies::{RedisCluster, replicated, shared_cluster};
use kit::servers::{Redis, shared_rabbit, unique};
use rules::limit::{Algorithm, Limit};

use crate::cli::sluicegate;
use crate::gate::shards::take_over;

/// Parses these keys of the section `redis`.
pub fn configured(keys: &str) -> RedisServers {
    let text = format!("redis: {{{keys}}}");
    let config = Config::parse("c.yaml", &text, std::iter::empty());
    config.expect("a good configuration").redis.url
}

/// Returns a gate that knows two of the primaries and finds the others.
pub fn connect(cluster: &RedisCluster, prefix: &str, limit: Limit) -> LimitedGate<RedisGate> {
    let [first, second, _] = &cluster.primaries[..] else {
        panic!("three primaries");
    };
    let servers = configured(&format!("url: '{},{}'", first.url(), second.url()));
    let gate = RedisGate::new(&servers, prefix).expect("a good url");
    LimitedGate::new(gate, limit)
}

/// Returns `count` IDs for each primary, with keys that begin with `prefix`.
pub fn tenants_of(cluster: &RedisCluster, prefix: &str, count: usize) -> [Vec<String>; 3] {
    let mut found: [Vec<String>; 3] = Default::default();
    for number in 0..1_000 {
        let id = format!("t{number}");
        let owner = &mut found[cluster.owner(&format!("{prefix}:{{{id}}}:line"))];
        if owner.len() < count {
            owner.push(id);
        }
        if found.iter().all(|ids| ids.len() == count) {
            return found;
        }
    }
    panic!("a primary without tenants");
}

/// Asks until the gate starts a job of `id`. Errors before that must be temporary.
pub async fn starts_again(gate: &LimitedGate<RedisGate>, id: &str) {
    let mut last = String::new();
    for _ in 0..1200 {
        match gate.ask(&[gate.question(id, 1, &[FRESH])]).await {
            Ok(mut replies) => match replies.remove(0) {
                Ok(reply) => {
                    assert_eq!(started(&reply.answers), 1);
                    return;
                }
                Err(GateError::Unreachable(why) | GateError::Unusable(why)) => last = why,
                Err(other) => panic!("{other}"),
            },
            Err(GateError::Unreachable(why) | GateError::Unusable(why)) => last = why,
            Err(other) => panic!("{other}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("no decision: {last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gate_on_a_cluster_conforms() {
    let cluster = shared_cluster();
    for algorithm in Algorithm::ALL {
        let long = connect(cluster, &unique("cluster"), limit(algorithm, 5, LONG));
        let short = connect(cluster, &unique("cluster"), limit(algorithm, 1, 400));
        conforms(algorithm, long, short).await;
    }
}

/// Over time nodes are replaced, and new ones are added at the end of `redis.url`.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_a_clusters_urls_is_enough() {
    let cluster = shared_cluster();
    let closed: Vec<String> = (1..=7)
        .map(|port| format!("redis://127.0.0.1:{port}"))
        .collect();
    let (closed, node) = (closed.join(","), cluster.primaries[0].url());
    let servers = configured(&format!("url: '{closed},{node}'"));
    let gate = RedisGate::new(&servers, &unique("urls")).expect("good URLs");
    let gate = LimitedGate::new(gate, limit(Algorithm::FixedWindow, 1, LONG));
    starts_again(&gate, "acme").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_over_a_cluster_is_one_round_trip_to_each_primary() {
    let cluster = shared_cluster();
    for algorithm in Algorithm::ALL {
        let prefix = unique("slots");
        let gate = connect(cluster, &prefix, limit(algorithm, 2, LONG));
        let mut ids: Vec<String> = (0..1_000).map(|number| format!("t{number}")).collect();
        ids.extend(
            [
                "a", "{a}", "}{", "{", "}", "{}", "{}a", "a:line", "%61", "ä", " ",
            ]
            .map(String::from),
        );
        let batch: Vec<TenantAsk> = ids
            .iter()
            .map(|id| gate.question(id, 9, &[FRESH; 3]))
            .collect();
        for expected in [2, 0] {
            // The first call also learns the slots, the clock and the scripts.
            let before = gate.round_trips();
            let replies = gate.ask(&batch).await.expect("a decision");
            for (index, id) in ids.iter().enumerate() {
                assert_eq!(
                    started(decided(&replies, index)),
                    expected,
                    "{algorithm:?} {id}"
                );
            }
            if expected == 0 {
                assert_eq!(gate.round_trips() - before, 3);
            }
        }
        // Each tenant has one waitlist, and each primary has its share of them.
        let waitlists = |node: &Redis| {
            node.ctl(&["keys", &format!("{prefix}:*:line")])
                .lines()
                .count()
        };
        let of_each: Vec<_> = cluster.primaries.iter().map(waitlists).collect();
        assert_eq!(of_each.iter().sum::<usize>(), ids.len(), "{of_each:?}");
        assert!(of_each.iter().all(|count| *count > 300), "{of_each:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_a_ping_nor_a_look_at_all_primaries_renews_a_recent_map() {
    let limit = limit(Algorithm::TokenBucket, 2, LONG);
    let gate = connect(shared_cluster(), &unique("map"), limit);
    registry::read_policies(&gate).await.expect("answers");
    let before = gate.round_trips();
    let pings = gate.pings().await.expect("answers").len() as u64;
    // The first three connect.
    assert_eq!(gate.round_trips() - before, 3 + pings);
    for _ in 0..9 {
        registry::read_policies(&gate).await.expect("answers");
    }
    let renewals = gate.round_trips() - before - 3 - pings - 9 * 3;
    assert!(renewals < 9, "{renewals}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_with_a_hash_tag_keeps_all_tenants_on_one_primary() {
    let cluster = shared_cluster();
    let prefix = format!("{{{}}}:limits", unique("tag"));
    let gate = connect(cluster, &prefix, limit(Algorithm::TokenBucket, 2, LONG));
    let slot = cluster.slot(&prefix);
    let keys = Keys::new(&prefix).in_cluster();
    for id in ["t", "{t}", "}{"] {
        assert_eq!(cluster.slot(&keys.waitlist(&tenant(id))), slot, "{id}");
    }
    let batch: Vec<TenantAsk> = (0..200)
        .map(|number| gate.question(&format!("t{number}"), 9, &[FRESH; 3]))
        .collect();
    for expected in [2, 0] {
        let before = gate.round_trips();
        let replies = gate.ask(&batch).await.expect("a decision");
        for index in 0..batch.len() {
            assert_eq!(started(decided(&replies, index)), expected);
        }
        if expected == 0 {
            assert_eq!(gate.round_trips() - before, 1);
        }
    }
    for algorithm in Algorithm::ALL {
        let prefix = |name| format!("{{{}}}:limits", unique(name));
        let long = connect(cluster, &prefix("long"), limit(algorithm, 5, LONG));
        let short = connect(cluster, &prefix("short"), limit(algorithm, 1, 400));
        conforms(algorithm, long, short).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lost_its_scripts_gets_them_again() {
    let cluster = RedisCluster::start(&[]);
    let prefix = unique("flush");
    let gate = connect(&cluster, &prefix, limit(Algorithm::FixedWindow, 1, LONG));
    let ids = tenants_of(&cluster, &prefix, 2).concat();
    for round in 0..3 {
        cluster.primaries[round].ctl(&["script", "flush"]);
        let batch: Vec<TenantAsk> = ids
            .iter()
            .map(|id| gate.question(id, 9, &[FRESH; 2]))
            .collect();
        let replies = gate.ask(&batch).await.expect("a decision");
        let total: usize = (0..ids.len())
            .map(|index| started(decided(&replies, index)))
            .sum();
        assert_eq!(total, if round == 0 { 6 } else { 0 });
    }
    gate.ping().await.expect("all primaries answer");
    let health = gate
        .check(&gate.limits)
        .await
        .expect("all primaries answer");
    assert_eq!(
        (health.cluster, health.role.as_deref()),
        (true, Some("master"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_primary_affects_only_its_tenants_until_failover() {
    let cluster = RedisCluster::start(&[]);
    let prefix = unique("lost");
    let gate = connect(&cluster, &prefix, limit(Algorithm::SlidingWindow, 3, LONG));
    let [mine, others, more] = tenants_of(&cluster, &prefix, 2);
    let ids = [mine.clone(), others, more].concat();
    let batch: Vec<TenantAsk> = ids
        .iter()
        .map(|id| gate.question(id, 1, &[FRESH]))
        .collect();
    let replies = gate.ask(&batch).await.expect("a decision");
    assert!(replies.iter().all(Result::is_ok), "{replies:?}");
    replicated(&cluster.primaries[0], &cluster.replicas[0]);

    // A frozen and a dead primary. Neither causes an error of the whole gate.
    cluster.primaries[0].pause();
    for dead in [false, true] {
        if dead {
            cluster.primaries[0].kill();
        }
        let replies = gate.ask(&batch).await.expect("the other primaries answer");
        for (id, reply) in ids.iter().zip(&replies) {
            match reply {
                Ok(_) => assert!(!mine.contains(id), "{id}"),
                Err(GateError::Unreachable(_)) => assert!(mine.contains(id), "{id}"),
                Err(other) => panic!("{other}"),
            }
        }
        assert!(gate.ping().await.is_err());
        assert!(gate.inspect(&tenant(&mine[0])).await.is_err());
    }

    take_over(&cluster, 0);
    starts_again(&gate, &mine[0]).await;
    // The replica had the primary's decisions.
    let answers = ask(&gate, &mine[0], 9, &[FRESH; 3]).await;
    assert_eq!(started(&answers), 1);
    gate.ping().await.expect("three primaries");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_cluster_is_a_gate_error() {
    let cluster = RedisCluster::start(&[]);
    let gate = connect(&cluster, "p", limit(Algorithm::LeakyBucket, 3, LONG));
    ask(&gate, "t", 1, &[FRESH]).await;
    for node in cluster.primaries.iter().chain(&cluster.replicas) {
        node.kill();
    }
    for _ in 0..2 {
        let down = gate.ask(&[gate.question("t", 1, &[FRESH])]).await;
        assert!(matches!(down, Err(GateError::Unreachable(_))), "{down:?}");
    }
    for node in cluster.primaries.iter().chain(&cluster.replicas) {
        node.restart();
    }
    starts_again(&gate, "t").await;
}

/// Makes calls at each step of the move.
#[tokio::test(flavor = "multi_thread")]
async fn a_moved_slot_keeps_its_tenants() {
    let cluster = RedisCluster::start(&[]);
    let prefix = unique("moved");
    let gate = connect(&cluster, &prefix, limit(Algorithm::FixedWindow, 3, LONG));
    let [ids, ..] = tenants_of(&cluster, &prefix, 1);
    let id = ids[0].as_str();
    assert_eq!(started(&ask(&gate, id, 1, &[FRESH]).await), 1);

    let slot = cluster.slot(&format!("{prefix}:{{{id}}}:line"));
    let (from, to) = (&cluster.primaries[0], &cluster.primaries[1]);
    let moving = cluster.begin_move(slot, from, to);
    moving.keys();
    // Its keys are moving. A call with one key is redirected. A call with several keys waits until
    // all have arrived.
    gate.block(&tenant(id).into(), Duration::from_secs(3600), "test")
        .await
        .expect("sent on");
    assert!(to.ctl(&["keys", &format!("{prefix}:*")]).contains(":line"));
    let replies = gate
        .ask(&[gate.question(id, 1, &[FRESH])])
        .await
        .expect("not for all");
    assert!(
        matches!(&replies[0], Err(GateError::Unusable(why)) if why.contains("TRYAGAIN")),
        "{replies:?}"
    );
    moving.keys();
    moving.end();
    let shown = gate
        .inspect(&tenant(id))
        .await
        .expect("the new primary answers");
    assert_eq!(shown.limits[0].count, 1);
    gate.ping().await.expect("all primaries answer");
    let after = gate.round_trips();
    gate.inspect(&tenant(id))
        .await
        .expect("the new primary answers");
    assert_eq!(gate.round_trips(), after + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_node_configured_as_single_is_reported_with_the_fix() {
    let cluster = shared_cluster();
    let servers = configured(&format!("url: '{}'", cluster.primaries[0].url()));
    let limit = limit(Algorithm::SlidingWindow, 1, LONG);
    let gate = RedisGate::new(&servers, &unique("alone")).expect("a good url");
    let gate = LimitedGate::new(gate, limit);
    for number in 0..20 {
        match gate.inspect(&tenant(format!("t{number}"))).await {
            Err(GateError::Refused(why)) => {
                let is_told = ["CROSSSLOT", "redis.cluster: true"].map(|part| why.contains(part));
                assert_eq!(is_told, [true; 2], "{why}");
            }
            other => panic!("{other:?}"),
        }
    }
    let keys = format!("url: '{}', cluster: true", cluster.primaries[0].url());
    let whole = RedisGate::new(configured(&keys), &unique("seed")).expect("a good url");
    let whole = LimitedGate::new(whole, gate.limits.clone());
    for number in 0..20 {
        assert_eq!(
            started(&ask(&whole, &format!("t{number}"), 1, &[FRESH]).await),
            1
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_takes_a_cluster_that_is_configured_as_one_and_no_other() {
    let cluster = shared_cluster();
    let name = unique("check");
    let yaml = |redis: &str| {
        format!(
            "{{amqp: {{url: '{}', queue: '{name}'}}, redis: {{prefix: '{name}', {redis}}}, delay: {{max-delay: 1s}}}}",
            shared_rabbit().url()
        )
    };
    let [first, second, third] = &cluster.primaries[..] else {
        panic!("three primaries");
    };
    for whole in [
        format!("url: '{}', cluster: true", first.url()),
        format!("url: '{},{}'", first.url(), second.url()),
    ] {
        let done = sluicegate(&yaml(&whole), &["check"]).exited(0);
        done.out.says("ok    redis     redis://");
        assert!(!done.out.contains("error redis"), "{}", done.out);
    }
    // Including the node with the tested tenant.
    for node in [first, second, third] {
        let alone = format!("url: '{}'", node.url());
        let done = sluicegate(&yaml(&alone), &["check"]).exited(1);
        let error = done
            .out
            .lines()
            .find(|line| line.starts_with("error redis"));
        let says = error.is_some_and(|line| {
            line.contains("a node of a Redis Cluster; set redis.cluster: true")
        });
        assert!(says, "{}", done.out);
    }
}
