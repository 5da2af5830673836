//! The gate at a Redis with restricted access: users with few permissions, TLS.

use std::time::Duration;

use config::RedisServers;
use gate::fleet::registry;
use gate::redis::RedisGate;
use gate::reports;
use gate::{EarlierStarts, Gate, GateError};
use kit::certificates::TestCertificates;
use kit::gate::conformance::conforms;
use kit::gate::{FRESH, LONG, LimitedGate, ask, limit, started};
use kit::redis_topologies::{address, port, shared_cluster};
use kit::servers::{Redis, unique};
use kit::sources::documented_rule;
use rules::limit::{Algorithm, Limits};
use rules::report::Report;

use crate::gate::topology::configured;

/// Allows `worker` what `rule` says, on keys that begin with `prefix`.
pub fn allow(redis: &Redis, prefix: &str, rule: &[&str]) {
    let keys = format!("~{prefix}:*");
    let mut words = vec![
        "acl",
        "setuser",
        "worker",
        "reset",
        "on",
        ">sesame-5512",
        "resetkeys",
        &keys,
    ];
    words.extend(&rule[2..]);
    assert_eq!(redis.ctl(&words), "OK");
}

pub fn worker(redis: &Redis) -> String {
    format!("redis://worker:sesame-5512@{}", address(redis))
}

fn gate(servers: &RedisServers, prefix: &str, algorithm: Algorithm) -> LimitedGate<RedisGate> {
    let gate = RedisGate::new(servers, prefix).expect("good urls");
    LimitedGate::new(gate, limit(algorithm, 5, LONG))
}

/// Checks that a worker may watch the epoch, decide and leave.
async fn a_workers_gate_is_allowed(servers: &RedisServers, prefix: &str, limits: &Limits) {
    let worker = RedisGate::new(servers, prefix).expect("good urls");
    let worker = worker.watching(Duration::from_secs(60));
    worker.begin(EarlierStarts::Fresh).await.expect("allowed");
    let worker = LimitedGate::new(worker, limits.clone());
    assert_eq!(started(&ask(&worker, "t", 1, &[FRESH]).await), 1);
    worker.ping().await.expect("allowed");
    worker
        .put_report("w", Report::default())
        .await
        .expect("allowed");
    let fleet = reports::see(&worker.gate).await.expect("allowed");
    assert!(fleet.failed.is_empty(), "{:?}", fleet.failed);
    worker.leave().await.expect("allowed");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rights_suffice() {
    let redis = Redis::start();
    let servers = configured(&format!("url: '{}'", worker(&redis)));
    for algorithm in (Algorithm::ALL.into_iter()).chain([Algorithm::CalendarWindow]) {
        let prefix = unique("rights");
        allow(&redis, &prefix, &documented_rule());
        redis.ctl(&["script", "flush"]);
        let short = RedisGate::new(&servers, &prefix).expect("a good url");
        let short = LimitedGate::new(short, limit(algorithm, 1, 400));
        conforms(
            algorithm,
            gate(&servers, &format!("{prefix}:long"), algorithm),
            short,
        )
        .await;
    }
    let gate = gate(&servers, "p", Algorithm::SlidingWindow);
    allow(&redis, "p", &documented_rule());
    gate.ping().await.expect("allowed");
    let health = gate.check(&gate.limits).await.expect("allowed");
    assert_eq!(health.maxmemory_policy.as_deref(), Some("noeviction"));
    a_workers_gate_is_allowed(&servers, "p", &gate.limits).await;
    // A user without INFO learns less.
    redis.ctl(&["acl", "setuser", "worker", "-info"]);
    let health = gate.check(&gate.limits).await.expect("allowed");
    assert_eq!(health.maxmemory_policy, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_rights_suffice_for_check() {
    let redis = Redis::start();
    let servers = configured(&format!("url: '{}'", worker(&redis)));
    let mut rule = documented_rule();
    rule.push("-@write");
    allow(&redis, "p", &rule);
    // A policy that a worker left long ago and no other has removed.
    let old = ["abc", "a policy", "abc:times", "1:1:1"];
    redis.ctl(&[&["hset", "p:%policies"], &old[..]].concat());
    redis.ctl(&["set", "p:%report:abc", "what it says"]);
    for algorithm in Algorithm::ALL {
        // A worker that may write is alive.
        let now = redis.ctl(&["time"]);
        let spoke = format!("{}999:0:", now.lines().next().expect("seconds").trim());
        redis.ctl(&["hset", "p:%board", "w:abc", &spoke]);
        let gate = gate(&servers, "p", algorithm);
        gate.check(&gate.limits).await.expect("it only reads");
        let seen = registry::read_policies(&gate.gate)
            .await
            .expect("it only reads");
        assert!(seen.known.policies().is_empty(), "it is over");
        let fleet = reports::see(&gate.gate).await.expect("it only reads");
        assert_eq!(fleet.view.unread.len(), 1);
    }
    assert_eq!(redis.ctl(&["hlen", "p:%policies"]), "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_needs_three_more_rights() {
    let cluster = shared_cluster();
    let prefix = unique("rights");
    let mut rule = documented_rule();
    rule.extend(["+cluster|slots", "+cluster|myid", "+asking"]);
    for node in &cluster.primaries {
        allow(node, &prefix, &rule);
    }
    let urls: Vec<String> = cluster
        .primaries
        .iter()
        .map(|node| format!("'{}'", worker(node)))
        .collect();
    let servers = configured(&format!("url: [{}]", urls.join(", ")));
    let gate = gate(&servers, &prefix, Algorithm::TokenBucket);
    for number in 0..50 {
        assert_eq!(
            started(&ask(&gate, &format!("t{number}"), 1, &[FRESH]).await),
            1
        );
    }
    gate.check(&gate.limits).await.expect("allowed");
    a_workers_gate_is_allowed(&servers, &prefix, &gate.limits).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named() {
    let redis = Redis::start();
    let servers = configured(&format!("url: '{}'", worker(&redis)));
    let lacks = "lacks a permission";
    for (taken, prefix, words) in [
        (Some("-evalsha"), "p", "needs +evalsha"),
        (Some("-script|load"), "p", "needs +evalsha and +script|load"),
        (Some("-hset"), "p", lacks),
        (Some("-time"), "p", lacks),
        (None, "other", lacks),
    ] {
        redis.ctl(&["script", "flush"]);
        let mut rule = documented_rule();
        rule.extend(taken);
        allow(&redis, prefix, &rule);
        let gate = gate(&servers, "p", Algorithm::SlidingWindow);
        // The second start writes the waitlist.
        match gate.ask(&[gate.question("t", 9, &[FRESH; 9])]).await {
            Err(GateError::Refused(why)) => {
                assert!(why.contains("docs/DEPLOYMENT.md"), "{taken:?}: {why}");
                assert!(why.contains(words), "{taken:?}: {why}");
                assert!(!why.contains("5512"), "{why}");
            }
            other => panic!("{taken:?}: {other:?}"),
        }
    }
    let third = configured(&format!("url: '{}/3'", worker(&redis)));
    let refused = gate(&third, "p", Algorithm::SlidingWindow).ping().await;
    assert!(
        matches!(&refused, Err(GateError::Refused(why)) if why.contains("needs +select")),
        "{refused:?}"
    );
    let wrong = worker(&redis).replace("5512", "7781");
    let gate = gate(
        &configured(&format!("url: '{wrong}'")),
        "p",
        Algorithm::SlidingWindow,
    );
    match gate.ping().await {
        Err(GateError::Refused(why)) => {
            assert!(why.contains("password") && !why.contains("7781"), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

/// Starts a Redis with TLS on the third of its ports that requires a certificate of `papers`.
pub fn server(papers: &TestCertificates, name: &str, more: &[&str]) -> Redis {
    let setting = |key: &str, file: &str| format!("{key} {}", papers.path(file).display());
    let settings = [
        setting("tls-cert-file", &format!("{name}.pem")),
        setting("tls-key-file", &format!("{name}.key")),
        setting("tls-ca-cert-file", "ca.pem"),
        "tls-auth-clients yes".to_owned(),
    ];
    let mut all: Vec<&str> = settings.iter().map(String::as_str).collect();
    all.extend(more);
    Redis::start_with(&all)
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_requires_the_configured_ca_host_and_certificate() {
    let (papers, foreign) = (TestCertificates::new(), TestCertificates::new());
    papers.issue("server", &["localhost"]);
    papers.issue("client", &["worker"]);
    foreign.issue("client", &["worker"]);
    let redis = server(&papers, "server", &[]);
    let tls_port = port(&redis) + 2;
    let localhost = format!("url: 'rediss://localhost:{tls_port}'");
    let ours = papers.keys(Some("ca.pem"), Some("client"));

    let good = gate(
        &configured(&format!("{localhost}{ours}")),
        "p",
        Algorithm::FixedWindow,
    );
    assert_eq!(started(&ask(&good, "t", 1, &[FRESH]).await), 1);
    assert!(redis.ctl(&["keys", "p:*"]).contains("p:t:"));

    let other_host = format!("url: 'rediss://127.0.0.1:{tls_port}'{ours}");
    let other_ca = foreign.keys(Some("ca.pem"), None) + &papers.keys(None, Some("client"));
    let other_client = papers.keys(Some("ca.pem"), None) + &foreign.keys(None, Some("client"));
    for (keys, words) in [
        (other_host, "not valid for name"),
        // The system's CAs don't include ours.
        (
            format!("{localhost}{}", papers.keys(None, Some("client"))),
            "see redis.ca-file",
        ),
        (format!("{localhost}{other_ca}"), "see redis.ca-file"),
        (
            format!("{localhost}{}", papers.keys(Some("ca.pem"), None)),
            "set redis.cert-file and redis.key-file",
        ),
        (
            format!("{localhost}{other_client}"),
            "the issuer and the expiry of redis.cert-file",
        ),
    ] {
        let gate = gate(&configured(&keys), "p", Algorithm::FixedWindow);
        // The first bytes sent may meet a closed connection before the reason is read, but not
        // every time.
        for last in 0.. {
            match gate.ping().await {
                Err(GateError::Unreachable(why)) if why.contains(words) => break,
                Err(GateError::Unreachable(why)) => assert!(last < 100, "{keys}: {why}"),
                other => panic!("{keys}: {other:?}"),
            }
        }
        let refused = gate.ask(&[gate.question("refused", 1, &[FRESH])]).await;
        assert!(refused.is_err(), "{keys}");
    }
    assert!(!redis.ctl(&["keys", "p:*"]).contains("refused"));
}

#[test]
fn certificates_are_sent_only_to_servers_with_tls() {
    let papers = TestCertificates::new();
    papers.issue("client", &["worker"]);
    let ours = papers.keys(Some("ca.pem"), Some("client"));
    for keys in [
        "url: 'rediss://limits', sentinels: 'redis://a:1'",
        "url: 'redis://limits', sentinels: 'rediss://a:1'",
    ] {
        let servers = configured(&format!("{keys}{ours}"));
        RedisGate::new(&servers, "p").expect(keys);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nodes_of_a_cluster_are_reached_by_tls_too() {
    let papers = TestCertificates::new();
    papers.issue("server", &["localhost", "127.0.0.1"]);
    papers.issue("client", &["worker"]);
    let redis = server(
        &papers,
        "server",
        &["cluster-enabled yes", "tls-cluster yes"],
    );
    redis.ctl(&["cluster", "addslotsrange", "0", "16383"]);
    let ours = papers.keys(Some("ca.pem"), Some("client"));
    let url = format!(
        "url: 'rediss://localhost:{}', cluster: true{ours}",
        port(&redis) + 2
    );
    let gate = gate(&configured(&url), "p", Algorithm::SlidingCounter);
    let mut tries = 0;
    while let Err(error) = gate.inspect(&kit::gate::tenant("t")).await {
        tries += 1;
        assert!(tries < 1200, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(started(&ask(&gate, "t", 9, &[FRESH; 9]).await), 5);
}
