//! The gate and its server: lost scripts, lost connections, foreign keys, memory.

use std::time::{Duration, Instant};

use config::SecretUrl;
use gate::keys::Keys;
use gate::redis::RedisGate;
use gate::{Answer, Change, Gate, GateError, TenantAsk};
use kit::Says;
use kit::gate::{FRESH, LONG, LimitedGate, ask, decided, gate_at, limit, started, tenant, waits};
use kit::servers::{Redis, shared_redis, unique};
use redis::Commands;
use rules::gate::model::State;
use rules::layout::Layout;
use rules::limit::{Algorithm, Limit, Limits};
use rules::scope::{Labels, Scope};

fn connect(redis: &Redis, prefix: &str, limits: impl Into<Limits>) -> LimitedGate<RedisGate> {
    let gate = gate_at(redis.url(), prefix);
    LimitedGate::new(gate, limits)
}

/// Returns the clock and the first two keys of the tenant `t`: its waitlist's and its limit's.
async fn keys_of_t(gate: &LimitedGate<RedisGate>, prefix: &str) -> (u64, [String; 2]) {
    let shown = gate.inspect(&tenant("t")).await.expect("Redis answers");
    let layout = Layout::of(&gate.limits, &tenant("t"), &Labels::default());
    let keys = Keys::new(prefix).call(&layout, &gate.limits, shown.now_ms);
    let mut names = keys.names.into_iter();
    let mut next = || {
        names
            .next()
            .expect("a waitlist and a limit have a key each")
    };
    (shown.now_ms, [next(), next()])
}

fn raw(redis: &Redis) -> redis::Connection {
    let client = redis::Client::open(redis.url()).expect("a good url");
    client.get_connection().expect("Redis answers")
}

fn keys(redis: &Redis, prefix: &str) -> Vec<String> {
    let keys = raw(redis).keys(format!("{prefix}:*"));
    let mut keys: Vec<String> = keys.expect("Redis answers");
    keys.sort();
    keys
}

#[tokio::test]
async fn lost_scripts_are_loaded_again() {
    let redis = Redis::start();
    for algorithm in Algorithm::ALL {
        let gate = connect(&redis, &unique("flush"), limit(algorithm, 3, LONG));
        let batch: Vec<TenantAsk> = ["a", "b"].map(|id| gate.question(id, 1, &[FRESH])).to_vec();
        let mut total = 0;
        for _ in 0..3 {
            redis.ctl(&["script", "flush"]);
            let replies = gate.ask(&batch).await.expect("Redis answers");
            total += started(decided(&replies, 0)) + started(decided(&replies, 1));
            gate.block(&tenant("c").into(), Duration::from_secs(1), "test")
                .await
                .expect("Redis answers");
        }
        assert_eq!(total, 6);
    }
}

#[tokio::test]
async fn missing_and_surplus_labels_are_accepted() {
    let header = |name: &str| Scope::Header(name.to_owned());
    let path = || limit(Algorithm::SlidingWindow, 1, LONG).with_scope(header("path"));
    let own = || limit(Algorithm::SlidingWindow, 1, LONG);
    for (limit, labelled) in [(path(), own()), (own(), path())] {
        let gate = connect(shared_redis(), &unique("labels"), limit);
        let labels = Labels::of(&[labelled], |_| "/v1".to_owned());
        let question = TenantAsk {
            labels: labels.clone(),
            ..gate.question("a", 2, &[FRESH; 2])
        };
        let replies = gate.ask(&[question]).await.expect("Redis answers");
        assert_eq!(started(decided(&replies, 0)), 1, "{labels}");
    }
}

#[tokio::test]
async fn a_batch_is_one_round_trip() {
    for algorithm in Algorithm::ALL {
        let gate = connect(shared_redis(), &unique("trips"), limit(algorithm, 3, LONG));
        ask(&gate, "warm", 1, &[FRESH]).await;
        let batch: Vec<TenantAsk> = (0..50)
            .map(|n| gate.question(&format!("t{n}"), 9, &[FRESH; 20]))
            .collect();
        let before = gate.round_trips();
        let replies = gate.ask(&batch).await.expect("Redis answers");
        assert_eq!(gate.round_trips(), before + 1);
        for index in 0..50 {
            let answers = decided(&replies, index);
            assert_eq!((started(answers), answers.len()), (3, 20));
        }
    }
}

#[tokio::test]
async fn a_stopped_redis_is_reported_and_its_return_is_noticed() {
    let redis = Redis::start();
    let gate = connect(&redis, "p", limit(Algorithm::FixedWindow, 1000, 60_000));
    redis.kill();
    let begin = Instant::now();
    let down = gate.inspect(&tenant("t")).await;
    assert!(matches!(down, Err(GateError::Unreachable(_))), "{down:?}");
    assert!(gate.ping().await.is_err());
    assert!(begin.elapsed() < Duration::from_secs(20));
    for _ in 0..2 {
        redis.restart();
        let mut tries = 0;
        while let Err(error) = gate.ping().await {
            tries += 1;
            assert!(tries < 1200, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(started(&ask(&gate, "t", 1, &[FRESH]).await), 1);
        redis.kill();
        assert!(matches!(gate.ping().await, Err(GateError::Unreachable(_))));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_redis_times_out() {
    let redis = Redis::start();
    let gate = gate_at(redis.url(), "p");
    let limit = limit(Algorithm::SlidingWindow, 10, 60_000);
    let gate = LimitedGate::new(gate, limit);
    ask(&gate, "t", 1, &[FRESH]).await;
    redis.pause();
    let silent = tokio::time::timeout(Duration::from_secs(30), gate.inspect(&tenant("t"))).await;
    assert!(
        matches!(silent, Ok(Err(GateError::Unreachable(_)))),
        "{silent:?}"
    );
    redis.resume();
    assert_eq!(started(&ask(&gate, "t", 1, &[FRESH]).await), 1);
}

#[tokio::test]
async fn every_key_expires_with_its_content() {
    for algorithm in Algorithm::ALL {
        let prefix = unique("expiry");
        let gate = connect(shared_redis(), &prefix, limit(algorithm, 2, LONG));
        ask(&gate, "t", 9, &[FRESH; 5]).await;
        gate.block(&tenant("closed").into(), Duration::from_secs(3600), "test")
            .await
            .expect("Redis answers");
        let found = keys(shared_redis(), &prefix);
        let spans = usize::from(algorithm == Algorithm::SlidingWindow);
        assert_eq!(found.len(), 3 + spans, "{found:?}");
        for key in found {
            let left: i64 = raw(shared_redis()).pttl(&key).expect("Redis answers");
            // The counter keeps two windows, and its waitlist may be as long.
            let max = if key.ends_with(":line") {
                3_600_000 + 3 * LONG + 11
            } else if key.contains(":counter:") {
                2 * LONG
            } else if key.ends_with(":spans") {
                3 * LONG
            } else if key.contains(":segments:") {
                // It expires at the end of its segment plus a window, rounded up.
                LONG + LONG / 128 + 128 + 1
            } else {
                // A bucket's span includes its clock's millisecond and the lateness that it
                // forgives.
                LONG + 11
            };
            assert!(left > 0 && left.unsigned_abs() <= max, "{key}: {left}");
        }
    }
}

/// A reset's generation invalidates earlier tickets. Jobs with such tickets may be away for a day.
#[tokio::test]
async fn a_reset_is_remembered_until_the_last_earlier_job_returns() {
    let prefix = unique("reset");
    let gate = connect(
        shared_redis(),
        &prefix,
        limit(Algorithm::SlidingWindow, 1, 1000),
    );
    ask(&gate, "used", 9, &[FRESH; 2]).await;
    let day = 86_400_000;
    for id in ["used", "unused"] {
        let done = gate.change(&tenant(id).into(), &Change::Reset).await;
        done.expect("Redis answers");
        let waitlist = Keys::new(&prefix).waitlist(&tenant(id));
        let left: u64 = raw(shared_redis()).pttl(waitlist).expect("Redis answers");
        assert!(
            (day + 3_000_000..=day + 3_600_000).contains(&left),
            "{left}"
        );
    }
    let mut state = State::default();
    state.change(day, &Change::Reset);
    assert_eq!(state.expires(), 2 * day + 3_600_000);
}

#[tokio::test]
async fn memory_is_bounded_by_the_limit_not_by_the_backlog() {
    for algorithm in Algorithm::ALL {
        let prefix = unique("memory");
        let gate = connect(shared_redis(), &prefix, limit(algorithm, 100, LONG));
        for _ in 0..20 {
            ask(&gate, "t", 500, &[FRESH; 500]).await;
        }
        assert_eq!(
            gate.inspect(&tenant("t"))
                .await
                .expect("Redis answers")
                .waiting,
            9_900
        );
        let bytes: u64 = keys(shared_redis(), &prefix)
            .iter()
            .map(|key| -> u64 {
                redis::cmd("MEMORY")
                    .arg("USAGE")
                    .arg(key)
                    .query(&mut raw(shared_redis()))
                    .expect("Redis answers")
            })
            .sum();
        assert!(bytes < 16_000, "{algorithm:?}: {bytes} bytes");
    }
}

#[tokio::test]
async fn a_large_batch_of_starts_is_one_call() {
    let gate = connect(
        shared_redis(),
        &unique("large"),
        limit(Algorithm::SlidingWindow, 9_000, LONG),
    );
    let answers = ask(&gate, "t", 10_000, &[FRESH; 10_000]).await;
    assert_eq!(started(&answers), 9_000);
    assert_eq!(
        waits(&answers).last().map(|(ticket, _)| ticket.number),
        Some(1_000)
    );
}

#[tokio::test]
async fn no_tenant_names_a_key_of_another() {
    for algorithm in Algorithm::ALL {
        let gate = connect(
            shared_redis(),
            &unique("hostile"),
            limit(algorithm, 1, LONG),
        );
        let long = "x".repeat(255);
        for id in [
            "a",
            "a:line",
            "a:0",
            "a:1",
            "a:28333335",
            "}{",
            "{a}",
            "*",
            "a*",
            "%61",
            "a%",
            "ä",
            "A",
            " a",
            &long,
        ] {
            assert_eq!(started(&ask(&gate, id, 1, &[FRESH]).await), 1, "{id}");
            assert_eq!(started(&ask(&gate, id, 1, &[FRESH]).await), 0, "{id}");
        }
    }
}

#[tokio::test]
async fn a_key_of_another_type_is_named() {
    for algorithm in Algorithm::ALL {
        let prefix = unique("types");
        let gate = connect(shared_redis(), &prefix, limit(algorithm, 1, LONG));
        let (_, names) = keys_of_t(&gate, &prefix).await;
        for name in &names {
            let mut raw = raw(shared_redis());
            let _: () = raw.rpush(name, "x").expect("Redis answers");
            let batch = ["t", "other"].map(|id| gate.question(id, 1, &[FRESH]));
            let mut replies = gate.ask(&batch).await.expect("Redis answers");
            assert!(replies.pop().expect("of the other").is_ok(), "{name}");
            match replies.remove(0) {
                Err(GateError::Refused(message)) => {
                    message.says(&format!("{name} contains a list"));
                }
                other => panic!("{other:?}"),
            }
            let _: () = raw.del(name).expect("Redis answers");
        }
        assert_eq!(started(&ask(&gate, "t", 1, &[FRESH]).await), 1);
    }
}

/// Returns limits of several algorithms and scopes: waitlists with two labels each, and everything
/// that they share.
fn many_limits() -> Limits {
    use Algorithm::{FixedWindow, SlidingCounter, SlidingWindow, Strict, TokenBucket};
    let (path, key) = (Scope::Header("path".to_owned()), Scope::RoutingKey);
    let limits = [
        (SlidingWindow, &path),
        (FixedWindow, &path),
        (SlidingWindow, &key),
        (Strict, &key),
        (SlidingWindow, &Scope::Tenant),
        (SlidingCounter, &Scope::Tenant),
        (SlidingWindow, &Scope::Global),
        (TokenBucket, &Scope::Global),
    ];
    let window = Duration::from_millis(LONG);
    let limits = (0..).zip(limits).map(|(n, (algorithm, scope))| {
        let limit = Limit::new(&format!("l{n}"), algorithm, 16, window, Duration::ZERO);
        limit.expect("in range").with_scope(scope.clone())
    });
    Limits::new(limits.collect()).expect("their names differ")
}

/// Returns a gate for [`many_limits`], a question of `t`'s jobs, some of which already wait, and
/// all of its keys.
async fn many(prefix: &str) -> (LimitedGate<RedisGate>, TenantAsk, Vec<String>) {
    let gate = connect(shared_redis(), prefix, many_limits());
    let labels = Labels::of(&gate.limits, |_| "x".to_owned());
    let question = |id| TenantAsk {
        labels: labels.clone(),
        ..gate.question(id, 9, &[FRESH; 9])
    };
    let batch = ["t", "other", "t", "other"].map(question);
    let replies = gate.ask(&batch).await.expect("Redis answers");
    let now = replies[3].as_ref().expect("a decision").now_ms;
    assert!(!waits(decided(&replies, 3)).is_empty());
    let layout = Layout::of(&gate.limits, &tenant("t"), &labels);
    let keys = Keys::new(prefix).call(&layout, &gate.limits, now);
    let question = question("t");
    (gate, question, keys.names)
}

#[tokio::test]
async fn a_key_of_another_type_is_named_among_many() {
    let prefix = unique("types");
    let (gate, question, names) = many(&prefix).await;
    let mut raw = raw(shared_redis());
    for name in &names {
        let renamed = format!("{name}:kept");
        let was_there: Result<(), _> = raw.rename(name, &renamed);
        let _: () = raw.rpush(name, "x").expect("Redis answers");
        let replies = gate.ask(std::slice::from_ref(&question)).await;
        match replies.expect("Redis answers").remove(0) {
            Err(GateError::Refused(message)) => {
                let message_part = format!("the key {name} contains a list");
                assert!(message.contains(&message_part), "{name}: {message}");
            }
            // The next fixed windows are not read yet, and large jobs are not either if there are
            // none.
            Ok(_) => assert!(was_there.is_err(), "{name} is not read"),
            other => panic!("{other:?}"),
        }
        let _: () = raw.del(name).expect("Redis answers");
        let _: Result<(), _> = raw.rename(&renamed, name);
    }
}

#[tokio::test]
async fn a_key_without_a_count_is_named_among_many() {
    let prefix = unique("number");
    let (gate, question, names) = many(&prefix).await;
    let mut raw = raw(shared_redis());
    let mut named = 0;
    for name in &names {
        let kind: String = redis::cmd("TYPE")
            .arg(name)
            .query(&mut raw)
            .expect("Redis answers");
        if kind != "string" {
            continue;
        }
        let value: Vec<u8> = raw.get(name).expect("Redis answers");
        let _: () = raw.set(name, "1e3").expect("Redis answers");
        let replies = gate.ask(std::slice::from_ref(&question)).await;
        match replies.expect("Redis answers").remove(0) {
            Err(GateError::Refused(message)) => {
                message.says(&format!("{name} contains"));
                let others = names.iter().filter(|other| !name.starts_with(*other));
                let others: Vec<_> = others.filter(|other| message.contains(*other)).collect();
                assert_eq!(others, Vec::<&String>::new(), "{message}");
            }
            other => panic!("{name}: {other:?}"),
        }
        let _: () = raw.set(name, value).expect("Redis answers");
        named += 1;
    }
    assert_eq!(named, 3, "one for each window or bucket");
}

#[tokio::test]
async fn a_switch_of_the_algorithm_touches_no_key_of_the_other() {
    let prefix = unique("switch");
    for algorithm in Algorithm::ALL.into_iter().chain(Algorithm::ALL) {
        let gate = connect(shared_redis(), &prefix, limit(algorithm, 1, LONG));
        let answers = ask(&gate, "t", 1, &[FRESH]).await;
        assert_eq!(answers.len(), 1);
    }
    // The waitlist, one key per algorithm, and the longest span of the sliding windows.
    assert_eq!(
        keys(shared_redis(), &prefix).len(),
        Algorithm::ALL.len() + 2
    );
}

#[tokio::test]
async fn entries_of_the_reference_share_the_partition() {
    let prefix = unique("rlaas");
    let gate = connect(
        shared_redis(),
        &prefix,
        limit(Algorithm::SlidingWindow, 4, LONG),
    );
    let (now, [_, log]) = keys_of_t(&gate, &prefix).await;
    ask(&gate, "t", 1, &[FRESH]).await;
    for random in ["0.432", "0.871"] {
        let added = raw(shared_redis()).zadd(&log, format!("{now}-{random}"), now);
        let _: () = added.expect("Redis answers");
    }
    let answers = ask(&gate, "t", 9, &[FRESH; 3]).await;
    assert!(matches!(
        answers[..],
        [
            Answer::Start { .. },
            Answer::Wait { .. },
            Answer::Wait { .. }
        ]
    ));
}

#[tokio::test]
async fn refusals_suggest_a_fix_and_hide_the_password() {
    let redis = Redis::start();
    redis.ctl(&["config", "set", "requirepass", "sesame-5512"]);
    let address = redis
        .url()
        .rsplit(['/', '@'])
        .next()
        .expect("an address")
        .to_owned();
    // A server that was restarted with a password asks for it as well. Another connection may fix
    // that.
    for (url, is_refused) in [
        (format!("redis://:wrong-7781@{address}"), true),
        (format!("redis://{address}"), false),
    ] {
        let gate = gate_at(&url, "p");
        let limits = limit(Algorithm::SlidingWindow, 1, 60_000).into();
        match gate.check(&limits).await {
            Err(error @ (GateError::Refused(_) | GateError::Unusable(_))) => {
                assert_eq!(matches!(error, GateError::Refused(_)), is_refused);
                let message = error.to_string();
                assert!(
                    !message.contains("7781") && !message.contains("5512"),
                    "{message}"
                );
                assert!(
                    message.contains("password") && message.contains("redis.url"),
                    "{message}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(
        RedisGate::new(&SecretUrl::new("http://:secret@x"), "p"),
        Err(GateError::Refused(message)) if !message.contains("secret")
    ));
}

#[tokio::test]
async fn a_full_redis_refuses() {
    let redis = Redis::start_with(&["maxmemory 1", "maxmemory-policy noeviction"]);
    for algorithm in Algorithm::ALL {
        let gate = connect(&redis, "p", limit(algorithm, 1, 60_000));
        match gate.ask(&[gate.question("t", 1, &[FRESH])]).await {
            Err(GateError::Refused(message)) => {
                assert!(
                    message.contains("OOM") && message.contains("p:t:line"),
                    "{message}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn check_reports_the_servers_state() {
    let redis = Redis::start_with(&["maxmemory-policy allkeys-lru"]);
    let gate = connect(&redis, "p", limit(Algorithm::SlidingWindow, 1, 60_000));
    let health = gate.check(&gate.limits).await.expect("Redis answers");
    assert!(health.version.split('.').count() >= 2, "{health:?}");
    assert_eq!(health.maxmemory_policy.as_deref(), Some("allkeys-lru"));
    assert_eq!(health.role.as_deref(), Some("master"));
    assert!(!health.cluster);
    assert!(keys(&redis, "p").is_empty());
}

#[tokio::test]
async fn an_unreadable_waitlist_affects_only_its_tenant() {
    let prefix = unique("unreadable");
    let gate = connect(
        shared_redis(),
        &prefix,
        limit(Algorithm::SlidingWindow, 5, LONG),
    );
    let waitlist = Keys::new(&prefix).waitlist(&tenant("junk"));
    let set = raw(shared_redis()).hset(&waitlist, "line", "abc");
    let _: () = set.expect("Redis answers");
    let batch = ["junk", "good"].map(|id| gate.question(id, 1, &[FRESH]));
    let replies = gate.ask(&batch).await.expect("Redis answers");
    assert_eq!(started(decided(&replies, 1)), 1);
    match &replies[0] {
        Err(GateError::Refused(why)) => {
            assert!(why.contains(&waitlist) && why.contains("delete"), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_clients_clock_does_not_count() {
    let gate = kit::gate::redis_gate(limit(Algorithm::SlidingWindow, 1, 10_000));
    assert_eq!(started(&ask(&gate, "t", 2, &[FRESH; 2]).await), 1);
    let mut connection = raw(shared_redis());
    let mut clock_ms = || -> u64 {
        let time = redis::cmd("TIME").query(&mut connection);
        let (seconds, micros): (u64, u64) = time.expect("Redis answers");
        seconds * 1000 + micros / 1000
    };
    let before = clock_ms();
    let shown = gate.inspect(&tenant("t")).await.expect("Redis answers");
    assert!((before..=clock_ms()).contains(&shown.now_ms), "{shown:?}");
}
