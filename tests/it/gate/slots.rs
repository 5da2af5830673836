//! Slots of a Redis Cluster that move between its primaries: no limit is exceeded, and no job waits
//! needlessly.

use std::time::Instant;

use kit::PATIENCE;
use kit::redis_topologies::{RedisCluster, address, until};
use kit::servers::Redis;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::gate::shards::Fleet;
use crate::gate::starts::{MAX, TIMEOUT, short};

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_moves_under_load_keeps_its_usage() {
    let cluster = RedisCluster::start(&[]);
    let (from, to) = (&cluster.primaries[0], &cluster.primaries[1]);
    let mut fleet = Fleet::new(&cluster, &short()).await;
    fleet.run(MAX + 1).await;
    let slot = fleet.slot(&cluster, 0);
    // There, back, and there again: an earlier handover does not count twice.
    for (from, to) in [(from, to), (to, from), (from, to)] {
        let moving = cluster.begin_move(slot, from, to);
        fleet.round().await;
        moving.keys();
        fleet.round().await;
        moving.keys();
        moving.end();
        fleet.run(MAX).await;
    }
    fleet.uses_the_whole_limit().await;
    // Nothing counts as lost. The wait is at most a window, if the machine was too busy for the
    // former primary's handover. gate::epoch::shard tests what happens at once.
    for flow in 0..3 {
        let reasons = fleet.losses(flow);
        assert!(
            reasons
                .iter()
                .all(|why| why.contains("came from a primary")),
            "{reasons:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_slot_of_an_epoch_may_move_too() {
    let cluster = RedisCluster::start(&[]);
    let mut fleet = Fleet::new(&cluster, &short()).await;
    fleet.run(MAX + 1).await;
    // The first primary's highest slot is not the highest of the second one, but the third one's
    // is.
    for (slot, from, to) in [(5_460, 0, 1), (16_383, 2, 1), (16_383, 1, 2)] {
        let (from, to) = (&cluster.primaries[from], &cluster.primaries[to]);
        fleet.moves(&cluster, slot, from, to).await;
        fleet.run(2 * MAX).await;
    }
    fleet.uses_the_whole_limit().await;
    // Only each primary's own epoch remains.
    until("one epoch for each primary", || {
        let epochs = |node: &Redis| {
            let keys = node.ctl(&["keys", &format!("{}:*:%epoch", fleet.prefix)]);
            keys.lines().count()
        };
        cluster.primaries.iter().map(epochs).sum::<usize>() == 3
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_joins_gets_slots_under_load() {
    let cluster = RedisCluster::start(&[]);
    let mut fleet = Fleet::new(&cluster, &short()).await;
    fleet.run(MAX + 1).await;
    let new = cluster.another();
    // The lowest first, as `redis-cli` does. With each, the new primary's epoch changes its slot.
    let slots = [0, 1, 2].map(|flow| fleet.slot(&cluster, flow));
    for (flow, slot) in slots.into_iter().enumerate() {
        for slot in [slot, slot + 1] {
            let from = &cluster.primaries[flow];
            fleet.moves(&cluster, slot, from, &new).await;
            fleet.round().await;
        }
        fleet.run(MAX).await;
    }
    fleet.run(MAX).await;
    assert_eq!(fleet.worst(), MAX);
    let epochs = || new.ctl(&["keys", &format!("{}:*:%epoch", fleet.prefix)]);
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < PATIENCE, "{}", epochs());
        let asked = Instant::now();
        if let Err(why) = fleet.gates[0].ping().await {
            // Only a primary that took longer than the timeout may fail to answer, and is not asked
            // for a moment.
            let is_late = asked.elapsed() >= TIMEOUT;
            assert!(
                is_late || why.to_string().contains("not asked again"),
                "{why}"
            );
        }
        if epochs().lines().count() == 1 {
            break;
        }
    }
    // All of its slots are claimed by now, so losing data stops their tenants.
    new.ctl(&["flushall"]);
    fleet.uses_the_whole_limit().await;
    for flow in 0..3 {
        let reasons = fleet.losses(flow);
        assert!(
            reasons.iter().any(|why| why.contains("emptied")),
            "{reasons:?}"
        );
    }
}

/// The procedure of `redis-cli --cluster fix` for a primary that is lost for good.
#[tokio::test(flavor = "multi_thread")]
async fn slots_of_a_primary_that_is_gone_wait_for_a_window_at_another() {
    let cluster = RedisCluster::start(&[]);
    let mut fleet = Fleet::new(&cluster, &short()).await;
    fleet.run(MAX + 1).await;
    let heir = &cluster.primaries[1];
    let (slot, id) = (
        fleet.slot(&cluster, 2).to_string(),
        heir.ctl(&["cluster", "myid"]),
    );
    cluster.primaries[2].kill();
    cluster.replicas[2].kill();
    // Includes the highest slot, so that the new owner's epoch gets another slot.
    for node in [heir, &cluster.primaries[0]] {
        for slot in [slot.as_str(), "16383"] {
            assert_eq!(node.ctl(&["cluster", "setslot", slot, "node", &id]), "OK");
        }
    }
    heir.ctl(&["cluster", "bumpepoch"]);
    fleet.uses_the_whole_limit().await;
    let reasons = fleet.losses(2);
    assert!(
        reasons.iter().any(|why| why.contains("did not confirm")),
        "{reasons:?}"
    );
    for other in [0, 1] {
        assert_eq!(fleet.losses(other), Vec::<&str>::new());
    }
}

/// Combines random events. `STORM_SEEDS=FROM..TO` selects other seeds.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_exceeds_no_limit_and_ends() {
    let seeds = std::env::var("STORM_SEEDS").unwrap_or_else(|_| "1..2".to_owned());
    let (from, to) = seeds.split_once("..").expect("FROM..TO");
    let [from, to] = [from, to].map(|seed| seed.parse::<u64>().expect("a number"));
    for seed in from..to {
        let cluster = RedisCluster::start(&["appendonly no"]);
        let mut fleet = Fleet::new(&cluster, &short()).await;
        fleet.run(MAX).await;
        let mut random = StdRng::seed_from_u64(seed);
        let mut history = Vec::new();
        for _ in 0..8 {
            let [one, two] = [0, 1].map(|_| random.random_range(0..3));
            let to = &cluster.primaries[two];
            match random.random_range(0..6) {
                0 => {
                    history.push(format!("flush {one}"));
                    cluster.primaries[one].ctl(&["flushall"]);
                }
                1 => {
                    history.push(format!("empty {one}"));
                    cluster.primaries[one].restart();
                }
                kind => {
                    let slot = match kind {
                        2 => [5_460, 10_921, 16_383][one],
                        _ => fleet.slot(&cluster, one),
                    };
                    let mut primaries = cluster.primaries.iter();
                    let has = |node: &&Redis| cluster.has(node, slot);
                    let from = primaries.find(has).expect("somebody has it");
                    if from.url() != to.url() {
                        history.push(format!("{slot} from {} to {two}", address(from)));
                        fleet.moves(&cluster, slot, from, to).await;
                    }
                }
            }
            for _ in 0..random.random_range(0..40) {
                fleet.round().await;
            }
        }
        println!("seed {seed}: {history:?}");
        fleet.uses_the_whole_limit().await;
    }
}
