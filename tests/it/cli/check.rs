//! `sluicegate check` measures the connections to its servers and leaves no trace there.

use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use kit::api::{Api, ApiBehavior, Reply};
use kit::certificates::TestCertificates;
use kit::connect::ConnectProxy;
use kit::proxy::{Proxy, Transfers};
use kit::servers::{Rabbit, Redis, shared_rabbit, shared_redis};
use kit::{Bed, SECOND, Says, jobs, until};
use serde_json::Value;
use simulator::forms::ApiLimit;
use simulator::limiter::{CallCounter, Counting};

use crate::PROGRAM;
use crate::cli::{json_of, sluicegate};

const LIMITS: &str = "max-requests: 10, window-size: 1s";

fn ms(json: &Value, what: &str, which: &str) -> f64 {
    let found = json["measured"][what][which].as_f64();
    found.unwrap_or_else(|| panic!("{what} {which}: {json}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn check_measures_all_latencies_and_leaves_no_queue_or_call() {
    let (api, bed) = (Api::start().await, Bed::shared());
    let yaml = bed.yaml(LIMITS, &api.url(), "");
    let json = json_of(&yaml, &["check"]);
    for (what, samples) in [
        ("redis_round_trip", 20),
        ("rabbitmq_confirm", 10),
        ("api_connect", 5),
    ] {
        assert_eq!(json["measured"][what]["samples"], samples, "{json}");
        let [min, median, worst] =
            ["least_ms", "median_ms", "worst_ms"].map(|which| ms(&json, what, which));
        assert!(0.0 < min && min <= median && median <= worst, "{json}");
    }
    let measured = &json["measured"];
    assert_eq!(measured["permit_lasts_ms"], 25, "half of the guard");
    assert_eq!(measured["api_tls"], Value::Null);
    let both = ms(&json, "redis_round_trip", "least_ms") + ms(&json, "api_connect", "least_ms");
    let max = measured["most_starts_per_second"]
        .as_f64()
        .expect("a number");
    let expected = 64.0 / both * 1_000.0;
    // Both times are rounded to microseconds.
    let rounding = 0.001 / both;
    assert!(
        (max / expected - 1.0).abs() < 0.01 + rounding,
        "{max}, {expected}: {json}"
    );
    // The measuring connections are closed, and none was a call.
    assert_eq!(api.count(), 0);
    until("the API has taken its connections", || {
        api.door.opened() >= 5
    })
    .await;
    let queues = shared_rabbit().ctl(&["-q", "list_queues", "name"]);
    assert!(!queues.contains(&bed.name), "{queues}");

    // On a slow machine, answers vary by more than the default guard covers.
    let long = bed.yaml(
        "max-requests: 10, window-size: 10m, guard: 4m",
        &api.url(),
        "",
    );
    let out = sluicegate(&long, &["check"]).exited(0).out;
    // How long a round trip takes is the machine's: its line may be a warning.
    out.says("  redis     a round trip takes ");
    for line in [
        "ok    rabbitmq  a publish is confirmed in ",
        &format!(
            "ok    api       http://{} accepts connections: TCP takes ",
            api.door.address
        ),
        "ok    capacity  ",
    ] {
        assert!(
            out.lines().any(|known| known.starts_with(line)),
            "{line}: {out}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_distant_redis_costs_calls_and_no_warning() {
    let bed = Bed::shared();
    let far = Transfers::round_trip(Duration::from_millis(80));
    let (_way, redis) = Proxy::before(shared_redis().url(), far, 1).await;
    let bed = Bed { redis, ..bed };
    let yaml = bed.yaml(
        "max-requests: 10, window-size: 1m, guard: 20s",
        "http://127.0.0.1:9/",
        "",
    );
    let json = json_of(&yaml, &["check"]);
    let min = ms(&json, "redis_round_trip", "least_ms");
    assert!(min >= 40.0, "{json}");
    let max = json["measured"]["most_starts_per_second"].as_f64();
    assert!(
        max.is_some_and(|max| (max * min / 64_000.0 - 1.0).abs() < 0.05),
        "{json}"
    );
    let of_redis = |check: &&Value| check["what"] == "redis" && check["level"] == "warn";
    let checks = json["checks"].as_array().expect("some");
    assert_eq!(checks.iter().find(of_redis), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_measured_apart_with_and_without_a_proxy() {
    let papers = TestCertificates::new();
    let api = Api::with(ApiBehavior::https(&papers, &["h2", "http/1.1"])).await;
    let trusted = papers.keys(Some("ca.pem"), None);
    let yaml = Bed::shared().yaml(LIMITS, &api.url(), &trusted);
    let json = json_of(&yaml, &["check"]);
    assert_eq!(json["measured"]["api_http2"], true, "{json}");
    assert!(ms(&json, "api_tls", "least_ms") > 0.0, "{json}");

    let proxy = ConnectProxy::start(None).await;
    let by = format!(
        "{trusted}, proxy: 'http://us:hunter2@{}'",
        proxy.door.address
    );
    let yaml = Bed::shared().yaml(LIMITS, &api.url(), &by);
    let out = sluicegate(&yaml, &["check"]).exited(0).out;
    let through = format!("a tunnel through http://{}/ takes ", proxy.door.address);
    assert!(
        out.contains(&through) && out.contains("over HTTP/2"),
        "{out}"
    );
    assert!(!out.contains("hunter2"), "{out}");
    assert_eq!(proxy.asked().len(), 5);
    assert_eq!(api.count(), 0);

    // This certificate is not signed by a trusted authority.
    let strangers = TestCertificates::new();
    let other = strangers.keys(Some("ca.pem"), None);
    let out = sluicegate(&Bed::shared().yaml(LIMITS, &api.url(), &other), &["check"])
        .exited(0)
        .out;
    let refused = format!(
        "warn  api       https://{} can't be reached: ",
        api.door.address
    );
    let line = out.lines().find(|line| line.starts_with(&refused));
    assert!(
        line.is_some_and(|line| line.contains("dispatch.http.ca-file")),
        "{out}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_refuses_calls_within_the_limit_is_a_warning_that_names_an_algorithm() {
    let (api, bed) = (Api::start().await, Bed::shared());
    api.answers(|_| Reply::status(429));
    let yaml = bed.yaml("max-requests: 10, window-size: 200ms", &api.url(), "");
    let line = || {
        let out = sluicegate(&yaml, &["check"]).exited(0).out;
        let line = out.lines().find(|line| line.contains("were refused"));
        line.map(str::to_owned)
    };
    let worker = PROGRAM.start(&yaml);
    assert_eq!(line(), None);
    bed.publish(&yaml, jobs("acme", 5)).await;
    worker
        .logs(&["the API seems to require an even flow"])
        .await;
    until("a worker says so", || line().is_some()).await;
    let line = line().expect("said");
    line.begins("warn  api       1 worker: ");
    line.says("use leaky-bucket-algo (or scope: global");
    line.says(" (tenant acme)");
    worker.stop();
}

/// Such an API refuses a part of each burst, as HAProxy, Kong and Cloudflare do.
#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_estimates_is_named_by_the_log_inspect_and_check() {
    let (api, bed) = (Api::start().await, Bed::shared());
    let limit = ApiLimit {
        counting: Counting::Estimated,
        .."10/1s:tenant".parse().expect("a limit")
    };
    let (counter, begun) = (Mutex::new(CallCounter::default()), Instant::now());
    api.answers(move |_| {
        let at = SECOND + begun.elapsed();
        let at = u64::try_from(at.as_micros()).expect("minutes");
        let counted = counter.lock().expect("no panic").call(limit, at);
        counted.map_or_else(|_| Reply::status(429), |()| Reply::ok())
    });
    let yaml = bed.yaml("max-requests: 10, window-size: 1s", &api.url(), "");
    let worker = PROGRAM.start(&yaml);
    bed.publish(&yaml, jobs("acme", 600)).await;
    let words = "the API seems to estimate, or count in other windows; use leaky-bucket-algo";
    worker.logs(&["throttled by the API", words]).await;
    until("inspect says so while the tenant is throttled", || {
        let out = sluicegate(&yaml, &["inspect", "acme"]).exited(0).out;
        out.contains(words)
    })
    .await;
    until("check says so", || {
        let out = sluicegate(&yaml, &["check"]).exited(0).out;
        (out.lines()).any(|line| line.starts_with("warn  api") && line.contains(words))
    })
    .await;
    worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_api_is_a_warning() {
    let api = Api::start().await;
    api.door.refuse().await;
    let url = format!("http://us:hunter2@{}/orders", api.door.address);
    let out = sluicegate(&Bed::shared().yaml(LIMITS, &url, ""), &["check"])
        .exited(0)
        .out;
    let gone = format!(
        "warn  api       http://{} can't be reached: ",
        api.door.address
    );
    out.says(&gone);
    assert!(!out.contains("hunter2"), "{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_rabbitmq_is_a_warning() {
    let rabbit = Rabbit::start();
    let yaml = Bed::on(rabbit.url(), shared_redis().url()).yaml(LIMITS, "http://127.0.0.1:9/", "");
    rabbit.ctl(&["set_vm_memory_high_watermark", "0.0000001"]);
    let out = sluicegate(&yaml, &["check"]).exited(0).out;
    let blocked = "warn  rabbitmq  a publish was not confirmed: it blocks publishes";
    out.says(blocked);
    let queues = || rabbit.ctl(&["list_queues", "name", "--silent"]);
    until("its own queue is deleted", || queues().trim().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_refuses_writes_is_an_error() {
    let redis = Redis::start();
    let yaml = Bed::on(shared_rabbit().url(), redis.url()).yaml(LIMITS, "http://127.0.0.1:9/", "");
    for (setting, error) in [
        ("maxmemory", "Redis has no memory left; raise maxmemory"),
        ("min-replicas-to-write", "too few replicas follow"),
    ] {
        redis.ctl(&["config", "set", setting, "1"]);
        let out = sluicegate(&yaml, &["check"]).exited(1).out;
        redis.ctl(&["config", "set", setting, "0"]);
        let mut errors = out.lines().filter(|line| line.starts_with("error redis"));
        let found = errors.next().unwrap_or_else(|| panic!("{setting}: {out}"));
        assert!(found.contains(error), "{setting}: {found}");
        assert!(!out.contains("jobs are admitted"), "{setting}: {out}");
    }
    sluicegate(&yaml, &["check"]).exited(0);
    assert_eq!(redis.ctl(&["dbsize"]), "0");
}

/// Returns what the command prints on a terminal.
fn on_a_terminal(yaml: &str, command: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("sluicegate.yaml");
    std::fs::write(&file, yaml).expect("written");
    let line = format!("{} {command} --config {}", PROGRAM.0, file.display());
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .expect("script runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_shown_only_on_a_terminal() {
    let api = Api::start().await;
    let yaml = Bed::shared().yaml(LIMITS, &api.url(), "");
    let shown = on_a_terminal(&yaml, "check");
    for what in ["checking RabbitMQ", "checking Redis"] {
        assert!(shown.contains(what), "{what}: {shown}");
    }
    shown.says("ok    capacity  ");
    let done = sluicegate(&yaml, &["check"]).exited(0);
    assert_eq!(done.err, "");
    assert!(!done.out.contains("checking"), "{}", done.out);
}
