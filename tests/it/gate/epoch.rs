//! A Redis that loses starts: the limit is never exceeded, and starts resume by themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gate::redis::RedisGate;
use gate::{EarlierStarts, Gate, GateError, TenantAsk};
use kit::gate::{FRESH, LONG, LimitedGate, clocked, decided, gate_at, limit, started, tenant};
use kit::proxy::{Proxy, Transfers, server_of};
use kit::redis_topologies::{port, replicated};
use kit::servers::{Redis, unique};
use kit::{PATIENCE, SECOND};
use rules::limit::{Algorithm, Limits};

use crate::gate::shards::Fleet;
use crate::gate::starts::{GUARD, MAX, TIMEOUT, WINDOW, short};

fn watching(url: &str, prefix: &str, limits: &Limits) -> LimitedGate<RedisGate> {
    let gate = gate_at(url, prefix);
    let memory = Duration::from_millis(limits.memory_ms());
    LimitedGate::new(gate.watching(memory), limits.clone())
}

/// Starts two workers with one tenant on one Redis. They don't ping.
async fn workers_on(url: &str, limits: &Limits) -> Fleet {
    let prefix = unique("epoch");
    let gates = (0..2).map(|_| watching(url, &prefix, limits)).collect();
    Fleet::over(gates, prefix, vec!["t".to_owned()], false).await
}

fn assert_cold(fleet: &Fleet, why: &str) {
    let span = Duration::from_millis(fleet.gates[0].limits.memory_ms() + 100);
    let colds = &fleet.flows[0].colds;
    assert!(
        colds.iter().any(|(_, reason)| reason.contains(why)),
        "{colds:?}"
    );
    assert!(colds.iter().all(|(wait, _)| *wait <= span), "{colds:?}");
}

#[tokio::test]
async fn a_first_start_is_no_loss_and_an_empty_redis_may_be_one() {
    let redis = Redis::start();
    let limits: Limits = limit(Algorithm::SlidingWindow, 3, LONG).into();
    let ask = async |gate: &LimitedGate<RedisGate>| {
        let replies = gate.ask(&[gate.question("t", 1, &[FRESH])]).await?;
        Ok::<_, GateError>(started(decided(&replies, 0)))
    };
    for start in [EarlierStarts::Idle, EarlierStarts::Fresh] {
        let gate = watching(redis.url(), &unique("first"), &limits);
        gate.begin(start).await.expect("it may start");
        assert_eq!(ask(&gate).await.expect("a decision"), 1);
    }
    let prefix = unique("emptied");
    let careful = watching(redis.url(), &prefix, &limits);
    match ask(&careful).await {
        Err(GateError::Cold { wait, why }) => {
            assert!(why.contains("--skip-recovery-wait"), "{why}");
            assert!(wait > Duration::from_secs(3600) && wait <= Duration::from_millis(LONG));
        }
        other => panic!("{other:?}"),
    }
    // Nothing was charged for jobs that did not start, and the operator's declaration opens it for
    // all.
    let shown = careful.inspect(&tenant("t")).await.expect("it answers");
    assert_eq!((shown.limits[0].count, shown.waiting), (0, 0));
    let fresh = watching(redis.url(), &prefix, &limits);
    fresh
        .begin(EarlierStarts::Fresh)
        .await
        .expect("it may start");
    careful.ping().await.expect("it is open for all");
    assert_eq!(ask(&careful).await.expect("a decision"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_redis_admits_nothing_for_a_window() {
    let redis = Redis::start();
    for restart in [false, true] {
        let mut fleet = workers_on(redis.url(), &short()).await;
        fleet.run(MAX + 1).await;
        if restart {
            redis.restart_empty();
        } else {
            redis.ctl(&["flushall"]);
        }
        fleet.uses_the_whole_limit().await;
        assert_cold(&fleet, "emptied while workers ran");
    }
}

/// Usage that counts for a day in another limit does not affect a limit of seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_window_stops_only_its_own_tenants() {
    let redis = Redis::start();
    let mut fleet = workers_on(redis.url(), &short()).await;
    let day: Limits = limit(Algorithm::SlidingWindow, 2, LONG).into();
    let question = |gate: &LimitedGate<RedisGate>| TenantAsk {
        limits: day.clone(),
        ..gate.question("day", 1, &[FRESH])
    };
    let first = &fleet.gates[0];
    let replies = first.ask(&[question(first)]).await.expect("a decision");
    assert_eq!(started(decided(&replies, 0)), 1);
    fleet.run(MAX).await;
    redis.ctl(&["flushall"]);
    // Far less than a day.
    fleet.uses_the_whole_limit().await;
    assert_cold(&fleet, "emptied while workers ran");
    for gate in &fleet.gates {
        // The question is in one batch with a question about a job that may start.
        let batch = [question(gate), gate.question("other", 1, &[FRESH])];
        let replies = gate.ask(&batch).await.expect("one of them is decided");
        match &replies[0] {
            Err(GateError::Cold { wait, why }) => {
                assert!(
                    *wait > Duration::from_millis(LONG) - 120 * SECOND,
                    "{wait:?}"
                );
                assert!(why.contains("emptied"), "{why}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(started(decided(&replies, 1)), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_with_all_data_is_no_loss() {
    let redis = Redis::start_with(&["appendfsync always"]);
    let limits: Limits = limit(Algorithm::SlidingWindow, 1000, LONG).into();
    let mut fleet = workers_on(redis.url(), &limits).await;
    fleet.run(8).await;
    redis.restart();
    fleet.run(8).await;
    assert!(
        fleet.flows[0]
            .colds
            .iter()
            .all(|(_, why)| !why.contains("lost"))
    );
    // Decisions that did not count are still charged. Nothing else is.
    let shown = fleet.gates[0].inspect(&tenant("t")).await;
    let count = shown.expect("it answers").limits[0].count;
    let (starts, unused) = (fleet.flows[0].starts.len() as u64, fleet.flows[0].unused);
    assert!(
        (starts..=starts + unused).contains(&count),
        "{count} of {starts} and {unused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_snapshot_is_a_loss() {
    let redis = Redis::start_with(&["appendonly no"]);
    let started = Instant::now();
    loop {
        let mut fleet = workers_on(redis.url(), &short()).await;
        fleet.run(1).await;
        redis.ctl(&["save"]);
        fleet.run(2 * MAX).await;
        redis.restart();
        fleet.uses_the_whole_limit().await;
        // If the restart took longer than a window, no lost start counts any more.
        let is_lost = |(_, why): &(Duration, String)| why.contains("lost its last writes");
        if fleet.flows[0].colds.iter().any(is_lost) || started.elapsed() >= PATIENCE {
            return assert_cold(&fleet, "lost its last writes");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_cannot_vouch_delays_the_others_by_at_most_a_window() {
    let redis = Redis::start();
    let limits: Limits = limit(Algorithm::SlidingWindow, 1000, 20_000).into();
    let mut fleet = workers_on(redis.url(), &limits).await;
    fleet.run(8).await;
    drop(fleet.gates.pop());
    redis.restart();
    fleet.run(2).await;
    assert_cold(&fleet, "not all workers have confirmed");

    // A worker that ended gracefully delays no other.
    let limits: Limits = limit(Algorithm::SlidingWindow, 1000, LONG).into();
    let mut fleet = workers_on(redis.url(), &limits).await;
    fleet.run(8).await;
    let ended = fleet.gates.pop().expect("there are two");
    ended.leave().await.expect("Redis answers");
    redis.restart();
    fleet.run(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_script_cache_is_no_loss() {
    let redis = Redis::start();
    let limits: Limits = limit(Algorithm::TokenBucket, 1000, LONG).into();
    let mut fleet = workers_on(redis.url(), &limits).await;
    for _ in 0..5 {
        redis.ctl(&["script", "flush"]);
        let (before, asked) = (fleet.flows[0].starts.len(), Instant::now());
        fleet.round().await;
        // Only an answer that took longer than the timeout does not count.
        let is_late = asked.elapsed() >= TIMEOUT;
        assert!(fleet.flows[0].starts.len() == before + 2 * MAX || is_late);
    }
    assert!(fleet.flows[0].colds.is_empty());
}

/// Starts a replica that has all of the primary's data.
async fn replica_of(primary: &Redis) -> Redis {
    let replica = Redis::start_with(&["repl-diskless-sync-delay 0"]);
    replica.ctl(&["replicaof", "127.0.0.1", &port(primary).to_string()]);
    let is_synced = || {
        replica
            .ctl(&["info", "replication"])
            .contains("master_link_status:up")
    };
    kit::until("the replica syncs", is_synced).await;
    replica
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_replica_that_lags_is_a_loss_and_a_complete_one_is_none() {
    let primary = Redis::start_with(&["repl-diskless-sync-delay 0"]);
    let (proxy, url) = Proxy::before(primary.url(), Transfers::OPEN, 0).await;
    let mut fleet = workers_on(&url, &short()).await;
    fleet.run(1).await;
    let replica = replica_of(&primary).await;
    // The beginning of a replication is not a loss.
    fleet.run(1).await;
    assert!(
        fleet.flows[0]
            .colds
            .iter()
            .all(|(_, why)| why.contains("changed"))
    );
    replica.ctl(&["replicaof", "no", "one"]);
    fleet.run(2 * MAX).await;
    proxy.lead_to(server_of(replica.url()));
    primary.kill();
    fleet.uses_the_whole_limit().await;
    assert_cold(&fleet, "lost its last writes");

    let limits: Limits = limit(Algorithm::SlidingWindow, 1000, LONG).into();
    let mut fleet = workers_on(&url, &limits).await;
    fleet.run(4).await;
    let second = replica_of(&replica).await;
    fleet.run(4).await;
    replicated(&replica, &second);
    proxy.lead_to(server_of(second.url()));
    replica.kill();
    second.ctl(&["replicaof", "no", "one"]);
    fleet.run(4).await;
    assert!(
        fleet.flows[0]
            .colds
            .iter()
            .all(|(_, why)| !why.contains("lost"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_admits_nothing_until_there_is_room() {
    let redis = Redis::start();
    let mut fleet = workers_on(redis.url(), &short()).await;
    fleet.run(MAX).await;
    redis.ctl(&["config", "set", "maxmemory", "1"]);
    let before = fleet.flows[0].starts.len();
    let started = Instant::now();
    // Long enough for scripts that begin with a deletion, which Redis lets continue.
    while started.elapsed() < WINDOW + GUARD {
        fleet.round().await;
    }
    assert_eq!(fleet.flows[0].starts.len(), before);
    match fleet.gates[0].ping().await {
        Err(GateError::Refused(why)) => {
            assert!(why.contains("OOM") && why.contains("maxmemory"), "{why}")
        }
        other => panic!("{other:?}"),
    }
    redis.ctl(&["config", "set", "maxmemory", "0"]);
    fleet.uses_the_whole_limit().await;
    assert!(fleet.flows[0].colds.is_empty());
}

/// Leaves no memory for keys that expire: all but the epochs.
fn evict_all(redis: &Redis) {
    redis.ctl(&["config", "set", "maxmemory", "1"]);
    let started = Instant::now();
    let expires = |key: &str| !key.ends_with(":%epoch");
    while redis.ctl(&["keys", "*"]).lines().any(expires) {
        assert!(started.elapsed() < PATIENCE, "nothing is evicted");
    }
}

/// Eviction removes the keys of limits, which expire, and spares the epoch.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_evicts_admits_nothing_for_a_window() {
    let redis = Redis::start_with(&["maxmemory 1gb", "maxmemory-policy volatile-ttl"]);
    let mut fleet = workers_on(redis.url(), &short()).await;
    for (restart, why) in [(false, "it evicted keys"), (true, "may have evicted keys")] {
        fleet.run(MAX).await;
        evict_all(&redis);
        redis.ctl(&["config", "set", "maxmemory", "1gb"]);
        if restart {
            // The restarted server counts from 0, so earlier evictions are hidden.
            redis.restart();
        }
        fleet.uses_the_whole_limit().await;
        assert_cold(&fleet, why);
    }
}

/// While the policy is noeviction, batches don't check evictions. Heartbeats do, and notice a
/// change.
#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_notices_evictions_by_a_policy_that_was_set_while_workers_run() {
    let redis = Redis::start();
    let mut fleet = workers_on(redis.url(), &short()).await;
    let endless: Limits = limit(Algorithm::SlidingWindow, 1000, LONG).into();
    for _ in 0..2 {
        // Its recovery wait lasts until each worker was asked, however slow the machine is.
        let mut waiting = workers_on(redis.url(), &endless).await;
        waiting.run(MAX).await;
        fleet.run(MAX).await;
        redis.ctl(&["config", "set", "maxmemory-policy", "volatile-lru"]);
        evict_all(&redis);
        redis.ctl(&["config", "set", "maxmemory", "1gb"]);
        for gate in fleet.gates.iter().take(1).chain(&waiting.gates) {
            match gate.ping().await {
                Err(GateError::Cold { why, .. }) => assert!(why.contains("it evicted"), "{why}"),
                other => panic!("{other:?}"),
            }
        }
        fleet.uses_the_whole_limit().await;
    }
}

/// A script that has deleted a key may continue to write though memory is full. In that case it
/// writes everything.
#[tokio::test]
async fn a_script_that_runs_out_of_memory_admits_what_it_writes_or_nothing() {
    let redis = Redis::start();
    let clock = Arc::new(AtomicU64::new(0));
    for algorithm in Algorithm::ALL {
        // Aligned, so that a fixed window begins with it.
        let begin = 4_000_000_000_000_000 / 60_000_000 * 60_000_000;
        clock.store(begin, Ordering::Relaxed);
        let gate = clocked(redis.url(), &unique("oom"), &clock);
        let gate = LimitedGate::new(gate, limit(algorithm, 3, 60_000));
        let ask = async || {
            let replies = gate.ask(&[gate.question("t", 9, &[FRESH; 3])]).await?;
            Ok::<_, GateError>(started(decided(&replies, 0)))
        };
        assert_eq!(ask().await.expect("a decision"), 3);
        // All earlier entries have expired, and the next question prunes them.
        clock.store(begin + 2 * 60_000_000 + 1_000, Ordering::Relaxed);
        redis.ctl(&["config", "set", "maxmemory", "1"]);
        let full = ask().await;
        redis.ctl(&["config", "set", "maxmemory", "0"]);
        let more = ask().await.expect("a decision");
        let refused = matches!(&full, Err(GateError::Refused(why)) if why.contains("OOM"));
        assert!(refused || full.is_ok(), "{full:?}");
        let all = full.unwrap_or(0) + more;
        assert_eq!(all, 3, "{algorithm:?}");
    }
}

#[tokio::test]
async fn only_the_epoch_never_expires_and_gone_workers_are_removed_from_it() {
    let redis = Redis::start();
    let prefix = unique("keys");
    let limits: Limits = limit(Algorithm::SlidingWindow, 1, 60_000).into();
    let epoch = format!("{prefix}:%epoch");
    // Entries of former workers. The hash's size stays bounded.
    for old in 0..100 {
        redis.ctl(&["hset", &epoch, &format!("w:{old}"), "7:1000"]);
    }
    let gate = watching(redis.url(), &prefix, &limits);
    gate.begin(EarlierStarts::Idle).await.expect("it may start");
    gate.ask(&[gate.question("t", 1, &[FRESH; 3])])
        .await
        .expect("a decision");
    let keys = redis.ctl(&["keys", "*"]);
    // The epoch, the waitlist, the log, and the HASH next to the log.
    assert_eq!(keys.lines().count(), 4, "{keys}");
    for key in keys.lines() {
        let eternal = redis.ctl(&["pttl", key]) == "-1";
        assert_eq!(eternal, key == epoch, "{key}");
    }
    let begun = Instant::now();
    // The hash's own four fields: id, run, cold, and its pulse.
    while redis.ctl(&["hlen", &epoch]) != "4" {
        assert!(begun.elapsed() < PATIENCE, "old workers stay");
        gate.ping().await.expect("Redis answers");
    }
    // A tenant of that name has other keys.
    let named = gate.question("%epoch", 1, &[FRESH]);
    let replies = gate.ask(&[named]).await.expect("a decision");
    assert_eq!(started(decided(&replies, 0)), 1);
}

/// Otherwise its first start could be lost unnoticed. When the worker ends, no other waits for it.
#[tokio::test]
async fn a_waiting_worker_sends_heartbeats_until_it_ends() {
    let redis = Redis::start();
    let prefix = unique("waits");
    let limits: Limits = limit(Algorithm::SlidingWindow, 1, LONG).into();
    let gate = watching(redis.url(), &prefix, &limits);
    let started = gate.begin(EarlierStarts::Unknown).await;
    assert!(
        matches!(started, Err(GateError::Cold { .. })),
        "{started:?}"
    );
    let heartbeats = || {
        let fields = redis.ctl(&["hkeys", &format!("{prefix}:%epoch")]);
        fields.lines().filter(|name| name.starts_with("w:")).count()
    };
    assert_eq!(heartbeats(), 1);
    gate.leave().await.expect("Redis answers");
    assert_eq!(heartbeats(), 0);
}

#[tokio::test]
async fn a_batch_with_its_pulse_is_one_round_trip() {
    let redis = Redis::start();
    let limits: Limits = limit(Algorithm::SlidingWindow, 100, LONG).into();
    let gate = watching(redis.url(), &unique("trips"), &limits);
    gate.begin(EarlierStarts::Idle).await.expect("it may start");
    let batch: Vec<_> = (0..20)
        .map(|n| gate.question(&format!("t{n}"), 1, &[FRESH]))
        .collect();
    gate.ask(&batch).await.expect("a decision");
    let before = gate.round_trips();
    for _ in 0..5 {
        gate.ask(&batch).await.expect("a decision");
    }
    assert_eq!(gate.round_trips(), before + 5);
}
