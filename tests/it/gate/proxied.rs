//! The gate behind a proxy that passes on few commands, and at servers that refuse SCRIPT.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use config::RedisServers;
use gate::redis::RedisGate;
use gate::{EarlierStarts, Gate, GateError};
use kit::api::Api;
use kit::gate::conformance::conforms;
use kit::gate::{FRESH, LONG, LimitedGate, ask, limit, started};
use kit::process::DONE;
use kit::servers::{Redis, shared_rabbit, unique};
use kit::sources::documented_rule;
use kit::{Bed, jobs, until};
use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, Value};
use rules::limit::Algorithm;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use trial::door::{ANY_PORT, Door};

use crate::PROGRAM;
use crate::cli::sluicegate;
use crate::gate::access::{allow, worker};
use crate::gate::topology::configured;

/// Commands with a key that the proxy passes on, as Envoy does.
const PASSED: [&str; 8] = [
    "EVAL", "EVALSHA", "GET", "SET", "TYPE", "HGETALL", "HDEL", "PEXPIRE",
];

/// A proxy that spreads keys over servers. It knows no SCRIPT, INFO, TIME, CLIENT, CONFIG, SELECT,
/// WAIT, HELLO or CLUSTER.
struct CommandProxy {
    servers: Vec<Client>,
    /// Whether keys with the same hash tag go to the same server.
    tags: bool,
}

impl CommandProxy {
    async fn start(servers: &[&Redis], tags: bool) -> (Door, String) {
        let client = |redis: &&Redis| Client::open(redis.url()).expect("a url");
        let servers = servers.iter().map(client).collect();
        let proxy = Arc::new(Self { servers, tags });
        let door = Door::open(ANY_PORT, move |stream, _| serve(stream, Arc::clone(&proxy)));
        let door = door.expect("a free port");
        let url = format!("redis://{}", door.address);
        (door, url)
    }

    /// Returns the index of the server that has `key`.
    fn server_of(&self, key: &str) -> usize {
        let tag = key
            .split_once('{')
            .and_then(|(_, rest)| rest.split_once('}'));
        let hashed = tag.filter(|_| self.tags).map_or(key, |(tag, _)| tag);
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(hashed);
        (hash % self.servers.len() as u64) as usize
    }
}

async fn serve(stream: TcpStream, proxy: Arc<CommandProxy>) {
    let mut servers = Vec::new();
    for client in &proxy.servers {
        let Ok(server) = client.get_multiplexed_async_connection().await else {
            return;
        };
        servers.push(server);
    }
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    while let Some(words) = command(&mut read).await {
        // A server that ends, ends the connection.
        let Some(answer) = answer(&proxy, &mut servers, &words).await else {
            return;
        };
        if write.write_all(&answer).await.is_err() {
            return;
        }
    }
}

/// Reads the next command, or `None` at the end of the connection.
async fn command(read: &mut (impl AsyncBufReadExt + Unpin)) -> Option<Vec<Vec<u8>>> {
    let number = async |read: &mut _| {
        let mut line = String::new();
        AsyncBufReadExt::read_line(read, &mut line).await.ok()?;
        line.trim_end().get(1..)?.parse::<usize>().ok()
    };
    let mut words = Vec::new();
    for _ in 0..number(read).await? {
        let mut word = vec![0; number(read).await? + 2];
        read.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(word);
    }
    Some(words)
}

async fn answer(
    proxy: &CommandProxy,
    servers: &mut [MultiplexedConnection],
    words: &[Vec<u8>],
) -> Option<Vec<u8>> {
    let name = String::from_utf8_lossy(&words[0]).into_owned();
    if name == "PING" {
        return Some(b"+PONG\r\n".to_vec());
    }
    if !PASSED.contains(&name.as_str()) {
        let refusal = format!("-unsupported command '{}'\r\n", name.to_lowercase());
        return Some(refusal.into_bytes());
    }
    let key = if name.starts_with("EVAL") {
        &words[3]
    } else {
        &words[1]
    };
    let server = proxy.server_of(&String::from_utf8_lossy(key));
    let mut command = Cmd::new();
    command.arg(words);
    let value = servers[server].send_packed_command(&command).await;
    let mut bytes = Vec::new();
    encode(&value.ok()?, &mut bytes);
    Some(bytes)
}

fn encode(value: &Value, bytes: &mut Vec<u8>) {
    match value {
        Value::Nil => bytes.extend(b"$-1\r\n"),
        Value::Int(number) => bytes.extend(format!(":{number}\r\n").bytes()),
        Value::Okay => bytes.extend(b"+OK\r\n"),
        Value::SimpleString(text) => bytes.extend(format!("+{text}\r\n").bytes()),
        Value::BulkString(text) => {
            bytes.extend(format!("${}\r\n", text.len()).bytes());
            bytes.extend(text);
            bytes.extend(b"\r\n");
        }
        Value::Array(all) => {
            bytes.extend(format!("*{}\r\n", all.len()).bytes());
            all.iter().for_each(|value| encode(value, bytes));
        }
        Value::ServerError(error) => {
            let details = error.details().unwrap_or_default();
            bytes.extend(format!("-{} {details}\r\n", error.code()).bytes());
        }
        other => panic!("{other:?}"),
    }
}

/// Returns the servers at `url`, with calls by text.
fn by_text(url: &str) -> RedisServers {
    configured(&format!("url: '{url}', prefix: '{{p}}', scripts: eval"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_behind_a_proxy_that_refuses_commands_keeps_its_limits() {
    let redis = Redis::start();
    let (_door, url) = CommandProxy::start(&[&redis], true).await;
    let api = Api::start().await;
    let bed = Bed::on(shared_rabbit().url(), &url);
    let limits = "max-requests: 5, window-size: 1s, guard: strict";
    let by_sha = bed.yaml(limits, &api.url(), "");
    let out = sluicegate(&by_sha, &["check"]).exited(1).out;
    assert!(out.contains("set redis.scripts: eval"), "{out}");

    let prefix = format!("prefix: '{{{}}}', scripts: eval", bed.name);
    let yaml = by_sha.replace(&format!("prefix: '{}'", bed.name), &prefix);
    bed.publish(&yaml, jobs("acme", 12).chain(jobs("other", 5)))
        .await;
    let worker = PROGRAM.start(&yaml);
    until("all jobs", || worker.metric(DONE) == Some(17.0)).await;
    let arrivals = kit::counts::arrivals(&api.calls(), "acme");
    let (fullest, early) = kit::counts::windows(&arrivals, 5, kit::SECOND);
    assert_eq!(early, 0, "the fullest window had {fullest}");
    let out = sluicegate(&yaml, &["check"]).exited(0).out;
    for words in [
        "answers and runs the scripts: redis ",
        "maxmemory-policy is noeviction",
        "has lost no data",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
    sluicegate(&yaml, &["inspect", "acme"]).exited(0);
    sluicegate(&yaml, &["tenant", "pause", "acme"]).exited(0);
    // The proxy hides restarts, but the server's identity shows them.
    redis.restart_empty();
    worker
        .logs(&["no job is admitted: Redis may have lost data"])
        .await;
    worker.stop();
    let calls = redis.ctl(&["info", "commandstats"]);
    for refused in ["cmdstat_evalsha", "cmdstat_script"] {
        assert!(!calls.contains(refused), "{calls}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_ignores_hash_tags_is_named() {
    let (one, other) = (Redis::start(), Redis::start());
    for tags in [true, false] {
        let (_door, url) = CommandProxy::start(&[&one, &other], tags).await;
        let gate = RedisGate::new(by_text(&url), "{p}").expect("a url");
        let gate = LimitedGate::new(gate, limit(Algorithm::TokenBucket, 5, LONG));
        match gate.check(&gate.limits).await {
            Ok(_) => assert!(tags),
            Err(GateError::Refused(why)) => assert!(!tags && why.contains("hash tags"), "{why}"),
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_script_needs_calls_by_text() {
    let redis = Redis::start();
    let url = worker(&redis);
    let mut rule = documented_rule();
    rule.retain(|word| !["+evalsha", "+script|load"].contains(word));
    allow(&redis, "{p}", &rule);
    let by_sha = RedisGate::new(configured(&format!("url: '{url}'")), "{p}");
    let by_sha = LimitedGate::new(
        by_sha.expect("a url"),
        limit(Algorithm::TokenBucket, 5, LONG),
    );
    for refused in [
        by_sha.check(&by_sha.limits).await.map(drop),
        by_sha
            .ask(&[by_sha.question("t", 9, &[FRESH])])
            .await
            .map(drop),
    ] {
        match refused {
            Err(GateError::Refused(why)) => assert!(why.contains("redis.scripts: eval"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    rule.push("+eval");
    allow(&redis, "{p}", &rule);
    let servers = by_text(&url);
    let algorithm = Algorithm::TokenBucket;
    let prefix = format!("{{p}}:{}", unique("text"));
    let gate = |max, window_ms, name: &str| {
        let gate = RedisGate::new(&servers, &format!("{prefix}{name}")).expect("a url");
        LimitedGate::new(gate, limit(algorithm, max, window_ms))
    };
    conforms(algorithm, gate(5, LONG, ":long"), gate(1, 400, "")).await;
    let watching = RedisGate::new(&servers, "{p}").expect("a url");
    let watching = watching.watching(Duration::from_secs(60));
    watching.begin(EarlierStarts::Fresh).await.expect("allowed");
    let watching = LimitedGate::new(watching, limit(Algorithm::SlidingWindow, 5, LONG));
    assert_eq!(started(&ask(&watching, "t", 9, &[FRESH; 9]).await), 5);
    watching.ping().await.expect("allowed");
    watching.leave().await.expect("allowed");
}

/// Returns the number that follows `name` in the answer of `INFO section`.
fn figure(redis: &Redis, section: &str, name: &str) -> f64 {
    let info = redis.ctl(&["info", section]);
    let rest = info
        .split(name)
        .nth(1)
        .unwrap_or_else(|| panic!("{name}: {info}"));
    let digits = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next();
    digits
        .and_then(|digits| digits.parse().ok())
        .expect("a number")
}

fn cpu_seconds(redis: &Redis) -> f64 {
    let part = |name| figure(redis, "cpu", name);
    part("used_cpu_user:") + part("used_cpu_sys:")
}

/// A decision by text costs the bytes of the scripts, and nothing else by count.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_by_text_costs_the_text() {
    const ASKS: u32 = 500;
    let redis = Redis::start();
    let mut costs = Vec::new();
    for command in ["evalsha", "eval"] {
        let keys = format!(
            "url: '{}', prefix: '{{p}}', scripts: {command}",
            redis.url()
        );
        let gate = RedisGate::new(configured(&keys), &format!("{{p}}:{command}"));
        let gate = gate.expect("a url").watching(Duration::from_secs(60));
        gate.begin(EarlierStarts::Fresh).await.expect("it is fresh");
        let gate = LimitedGate::new(gate, limit(Algorithm::SlidingWindow, 1_000, LONG));
        ask(&gate, "t", 1, &[FRESH]).await;
        redis.reset_stats();
        let before = cpu_seconds(&redis);
        for _ in 0..ASKS {
            ask(&gate, "t", 1, &[FRESH]).await;
        }
        let bytes = figure(&redis, "stats", "total_net_input_bytes:") / f64::from(ASKS);
        let calls = redis.command_stats().calls(command);
        let cpu_us = (cpu_seconds(&redis) - before) / f64::from(ASKS) * 1e6;
        println!("{command}: {bytes:.0} bytes and {cpu_us:.0} us of Redis's CPU per decision");
        // The decision, and the pulse that follows it.
        assert_eq!(calls, 2 * u64::from(ASKS));
        costs.push(bytes);
    }
    let texts = costs[1] - costs[0];
    assert!((10_000.0..40_000.0).contains(&texts), "{costs:?}");
}
