//! The gate behind Sentinel.

use config::RedisServers;
use gate::redis::RedisGate;
use gate::{Gate, GateError};
use kit::gate::{FRESH, LONG, LimitedGate, ask, limit, started};
use kit::redis_topologies::{Sentinels, address, port, until};
use kit::servers::Redis;
use rules::limit::Algorithm;

use crate::gate::topology::{configured, starts_again};

/// Returns the first server of a configuration behind `sentinels`.
fn behind(sentinels: &[Redis], name: &str) -> RedisServers {
    let list: Vec<String> = sentinels
        .iter()
        .map(|sentinel| format!("'{}'", sentinel.url()))
        .collect();
    configured(&format!(
        "url: 'redis://{name}', sentinels: [{}]",
        list.join(", ")
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_by_sentinel_is_followed() {
    let set = Sentinels::start("gate-primary");
    let gate = RedisGate::new(behind(&set.sentinels, "gate-primary"), "p").expect("good urls");
    let gate = LimitedGate::new(gate, limit(Algorithm::TokenBucket, 1_000, LONG));
    assert_eq!(started(&ask(&gate, "t", 1, &[FRESH]).await), 1);
    gate.ping().await.expect("the primary answers");

    // A primary that became a replica, which Sentinel has not noticed yet.
    let [first, second, _] = &set.servers[..] else {
        panic!("three servers");
    };
    first.ctl(&["replicaof", "127.0.0.1", &port(second).to_string()]);
    for _ in 0..2 {
        let refused = gate.ask(&[gate.question("t", 1, &[FRESH])]).await;
        assert!(
            matches!(
                refused,
                Err(GateError::Unreachable(_) | GateError::Unusable(_))
            ),
            "{refused:?}"
        );
    }
    first.ctl(&["replicaof", "no", "one"]);
    starts_again(&gate, "t").await;

    // The primary dies and the sentinels don't answer, so no other server is known.
    set.sentinels.iter().for_each(|one| one.pause());
    first.kill();
    let dead = gate.ask(&[gate.question("t", 1, &[FRESH])]).await;
    assert!(matches!(dead, Err(GateError::Unreachable(_))), "{dead:?}");
    set.sentinels.iter().for_each(|one| one.resume());
    until("the sentinels name another primary", || {
        set.primary("gate-primary").is_some_and(|index| index != 0)
    });
    starts_again(&gate, "t").await;
    gate.ping().await.expect("the new primary answers");
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_sentinels_and_unknown_names_are_reported() {
    let sentinel = Redis::start_with(&["sentinel monitor known 127.0.0.1 1 1"]);
    let sentinels = [sentinel];
    let unknown = RedisGate::new(behind(&sentinels, "unknown"), "p").expect("good urls");
    let asked = unknown.ping().await.expect_err("no such name").to_string();
    assert!(
        asked.contains("unknown") && asked.contains(address(&sentinels[0])),
        "{asked}"
    );
    assert!(asked.contains("the host in redis.url"), "{asked}");
    let login = format!("redis://user:wrong@{}", address(&sentinels[0]));
    let foreign = configured(&format!("url: 'redis://known', sentinels: '{login}'"));
    let foreign = RedisGate::new(foreign, "p").expect("good urls");
    let refused = foreign.ping().await;
    assert!(
        matches!(&refused, Err(GateError::Refused(why)) if why.ends_with("check redis.sentinels")),
        "{refused:?}"
    );
    sentinels[0].kill();
    let dead = unknown.ping().await;
    assert!(
        matches!(&dead, Err(GateError::Unreachable(why)) if why.contains("redis.sentinels")),
        "{dead:?}"
    );
}
