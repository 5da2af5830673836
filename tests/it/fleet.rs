//! A fleet's reports: two workers as users start them, a thousand tenants, a worker that stops and
//! one that dies; in a cluster, and with minimal permissions.

use std::collections::BTreeSet;
use std::sync::Arc;

use config::Config;
use gate::fleet::registry::{NamedPolicy, Registry};
use gate::redis::RedisGate;
use gate::reports::{self, see};
use kit::api::Api;
use kit::gate::{LONG, gate_at, limit, tenant};
use kit::process::Process;
use kit::redis_topologies::RedisCluster;
use kit::servers::{shared_redis, unique};
use kit::{Bed, jobs, until};
use operator::overview::{Overview, TenantSelection};
use rules::limit::Algorithm;
use rules::policy::Policy;
use rules::report::view::Sort;
use rules::report::{KEPT_MS, MAX_BYTES, MAX_TENANTS, Report, ReportedTenant};
use rustix::process::Signal;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::PROGRAM;
use crate::cli::sluicegate;
use crate::gate::topology::connect;

const TENANTS: usize = 1_000;
/// Number of jobs of the tenant with the most jobs.
const MANY: usize = 100;
/// A name with characters that must not reach a terminal unchanged.
const HOSTILE: &str = "\u{202e}{evil}\"*%:\u{200b}";

/// Returns the keys of existing reports.
fn keys_of(prefix: &str) -> Vec<String> {
    let keys = shared_redis().ctl(&["keys", &format!("{prefix}:%report:*")]);
    let keys = keys.lines().map(|key| key.trim().to_owned());
    keys.filter(|key| !key.is_empty()).collect()
}

/// Checks that the fields of `value` are those that the page lists under `head`.
fn has_listed_fields(value: &Value, head: &str) {
    let page = kit::sources::page("docs/OBSERVABILITY.md");
    let (_, table) = page.split_once(head).expect(head);
    let rows = table
        .lines()
        .skip(4)
        .take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    let listed: BTreeSet<&str> = cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    let fields = value.as_object().expect("an object").keys();
    assert_eq!(fields.map(String::as_str).collect::<BTreeSet<_>>(), listed);
}

pub struct TwoWorkers {
    pub bed: Bed,
    pub yaml: String,
    pub workers: Vec<Process>,
    _api: Api,
}

impl TwoWorkers {
    /// Starts two workers with a limit of one call per tenant and hour, and `more` sections.
    pub async fn start(more: &str) -> Self {
        let api = Api::start().await;
        let bed = Bed::shared();
        let yaml = bed.yaml("max-requests: 1, window-size: 1h", &api.url(), "") + more;
        let workers = (0..2).map(|_| PROGRAM.start(&yaml)).collect();
        Self {
            bed,
            yaml,
            workers,
            _api: api,
        }
    }

    /// Returns a command's JSON output.
    fn json(&self, args: &[&str]) -> Value {
        let args = [args, &["--json"]].concat();
        tokio::task::block_in_place(|| sluicegate(&self.yaml, &args).exited(0).json())
    }

    fn text(&self, args: &[&str]) -> String {
        tokio::task::block_in_place(|| sluicegate(&self.yaml, args).exited(0).out)
    }

    /// Returns true if this many workers are shown and none is silent.
    fn are(&self, number: usize) -> bool {
        let shown = self.json(&["workers"]);
        let silent = &shown["not_known"]["silent_workers"];
        let (Some(workers), Some(silent)) = (shown["workers"].as_array(), silent.as_array()) else {
            panic!("{shown}");
        };
        workers.len() == number && silent.is_empty()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_tenants_of_two_workers_are_shown_until_the_workers_end() {
    let mut two = TwoWorkers::start("delay: {max-delay: 5s}\n").await;
    let all_ready = || {
        let shown = two.json(&["workers"]);
        let workers = shown["workers"].as_array().expect("a list");
        workers.len() == 2 && workers.iter().all(|it| it["ready"] == true)
    };
    until("two workers that are ready", all_ready).await;
    let empty = two.text(&["tenants"]);
    assert_eq!(empty, "no tenant has jobs at 2 workers\n");
    let shown = two.json(&["workers"]);
    for worker in shown["workers"].as_array().expect("two") {
        assert_eq!(worker["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(
            (&worker["ready"], &worker["pipeline"]),
            (&true.into(), &Value::Null)
        );
        has_listed_fields(worker, "Fields of a worker in `workers`:");
        let pid = worker["pid"].as_u64().expect("a number");
        assert!(
            two.workers.iter().any(|it| u64::from(it.id()) == pid),
            "{worker}"
        );
    }

    let named = (0..TENANTS).map(|number| format!("t-{number:04}"));
    let names: Vec<String> = named.chain([HOSTILE.to_owned()]).collect();
    let all = names.iter().flat_map(|name| jobs(name, 2));
    (two.bed.publish(&two.yaml, all.chain(jobs("many", MANY)))).await;

    // The tenant with the most jobs is first, no matter which worker has them.
    until("the tenant with the most jobs to be the first", || {
        let shown = two.json(&["tenants", "--sort", "denied", "--limit", "1"]);
        let first = &shown["tenants"][0];
        first["tenant"] == "many" && first["limit"] == "default" && shown["workers"] == 2
    })
    .await;
    let gate = gate_at(shared_redis().url(), &two.bed.name);
    until("more tenants than are named", || {
        let seen = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current()
                .block_on(see(&gate))
                .expect("it answers")
        });
        is_bounded_and_complete(&two.bed.name, &seen);
        seen.view.left_out.tenants > 0
    })
    .await;

    two.text(&["tenant", "pause", HOSTILE]);
    two.bed.publish(&two.yaml, jobs(HOSTILE, 3)).await;
    until("the suspended tenant to be the first", || {
        let shown = two.json(&["tenants", "--sort", "closed", "--limit", "1"]);
        let first = &shown["tenants"][0];
        first["tenant"] == HOSTILE
            && first["suspended_until_ms"].as_u64() > shown["now_ms"].as_u64()
    })
    .await;
    let text = two.text(&["tenants", "--sort", "closed", "--limit", "1"]);
    let line = text.lines().nth(1).expect("a tenant");
    assert!(line.starts_with("\\u{202e}{evil}\"*%:\\u{200b} "), "{text}");
    assert!(text.contains("--limit shows more"), "{text}");
    assert!(text.starts_with("TENANT "), "{text}");

    // A worker that stops reports it. One that dies is missed once its key expires.
    two.workers.remove(0).stop();
    assert!(two.are(1), "{}", two.text(&["workers"]));
    two.workers[0].signal(Signal::KILL);
    until("no worker", || two.are(0)).await;
    let text = two.text(&["workers"]);
    assert_eq!(
        text,
        "no worker is running, or Redis refuses writes: no report in the last 10 s\n"
    );
    assert_eq!(two.text(&["tenants"]), text);
    until("no report", || keys_of(&two.bed.name).is_empty()).await;
}

/// Checks that each report keeps its bounds and every waiting job is in the view: under its
/// tenant's name, or among the omitted ones.
fn is_bounded_and_complete(prefix: &str, seen: &reports::Fleet) {
    let view = &seen.view;
    let waiting: u64 = view.workers.iter().map(|it| it.report.waiting).sum();
    let named: u64 = view.tenants.iter().map(|row| row.waiting).sum();
    assert_eq!(named + view.left_out.waiting, waiting);
    assert!(view.tenants.len() <= 2 * MAX_TENANTS);
    let keys = keys_of(prefix);
    assert!(keys.len() <= 2, "{keys:?}");
    for key in keys {
        let redis = shared_redis();
        let bytes: usize = redis
            .ctl(&["strlen", &key])
            .trim()
            .parse()
            .expect("a number");
        assert!(bytes <= MAX_BYTES, "{key}: {bytes} bytes");
        let left: i64 = redis.ctl(&["pttl", &key]).trim().parse().expect("a number");
        assert!(
            left <= i64::try_from(KEPT_MS).expect("small"),
            "{key}: {left} ms"
        );
        assert!(left != -1, "{key} has no expiry");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fleet_can_be_read_repeatedly() {
    let (name, redis) = (unique("watch"), shared_redis().url());
    let yaml = format!("redis: {{url: '{redis}', prefix: '{name}'}}\n");
    let file = tempfile::NamedTempFile::with_suffix(".yaml").expect("a file");
    std::fs::write(file.path(), yaml).expect("written");
    let mut command = std::process::Command::new(PROGRAM.0);
    command
        .args(["workers", "--watch", "--json", "--config"])
        .arg(file.path());
    let looks = Process::start(command);
    until("three looks", || looks.log().len() >= 3).await;
    for line in looks.log() {
        let seen: Value = serde_json::from_str(&line).expect("a line of JSON");
        assert_eq!(seen["workers"], Value::Array(Vec::new()));
    }
}

/// Registers workers on all boards, each with a report.
async fn speak(gate: &Arc<RedisGate>, number: usize) -> Vec<Registry> {
    let mut workers = Vec::new();
    for _ in 0..number {
        let own = NamedPolicy::new(Policy::from(limit(Algorithm::SlidingWindow, 5, LONG)));
        let mut worker = Registry::new(Arc::clone(gate), own.expect("it is small"));
        worker.exchange().await.expect("all answer");
        workers.push(worker);
    }
    report(gate, &workers).await;
    workers
}

/// Puts a report of each worker. All are put at once, since they expire after [`KEPT_MS`].
async fn report(gate: &Arc<RedisGate>, workers: &[Registry]) {
    let mut reports = JoinSet::new();
    for (pid, worker) in workers.iter().enumerate() {
        let mut acme = ReportedTenant::new(tenant("acme"));
        (acme.waiting, acme.starts) = (1, 2);
        let report = Report {
            pid: u32::try_from(pid).expect("small"),
            over_ms: 1_000,
            waiting: 1,
            tenants: vec![acme],
            ..Report::default()
        };
        let (gate, name) = (Arc::clone(gate), worker.name().to_owned());
        reports.spawn(async move { gate.put_report(&name, report).await.expect("all answer") });
    }
    reports.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_reports_are_at_all_primaries_and_a_lost_one_hides_its_own() {
    let (cluster, prefix) = (RedisCluster::start(&[]), unique("fleet"));
    let limited = connect(&cluster, &prefix, limit(Algorithm::SlidingWindow, 5, LONG));
    let gate = Arc::new(limited.gate);
    let mut workers = speak(&gate, 24).await;
    let fleet = see(&gate).await.expect("all answer");
    assert!(fleet.failed.is_empty() && fleet.view.unread.is_empty());
    assert_eq!(fleet.view.workers.len(), 24);
    let rows = fleet.view.first(Sort::Waiting, 1);
    assert_eq!((rows[0].waiting, rows[0].workers), (24, 24));
    assert!((rows[0].starts - 48.0).abs() < 1e-9);
    let own = |node: usize| {
        let keys = cluster.primaries[node].ctl(&["keys", &format!("{prefix}:%report:*")]);
        keys.lines().filter(|key| key.contains("%report")).count()
    };
    let each = [0, 1, 2].map(own);
    assert_eq!(each.iter().sum::<usize>(), 24);
    assert!(each.iter().all(|number| *number > 0), "{each:?}");

    cluster.primaries[0].kill();
    // The other boards still have all names. The lost primary's reports are not known.
    for worker in &mut workers {
        worker.exchange().await.expect("two answer");
    }
    let fleet = see(&gate).await.expect("two answer");
    assert!(!fleet.failed.is_empty());
    assert!(fleet.view.workers.len() + fleet.view.silent.len() == 24);
    assert!(
        fleet.view.silent.len() >= each[0],
        "{:?}",
        fleet.view.silent
    );
    assert!(fleet.view.tenants.iter().all(|row| row.at_least));
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_and_missing_reports_are_distinguished() {
    let prefix = unique("fleet");
    let gate = gate_at(shared_redis().url(), &prefix);
    let gate = Arc::new(gate);
    let workers = speak(&gate, 4).await;
    let key = |at: usize| format!("{prefix}:%report:{}", workers[at].name());
    let redis = shared_redis();
    // Its own report expires soon.
    report(&gate, &workers[3..]).await;
    redis.ctl(&["set", &key(0), "{\"format\": 99}"]);
    redis.ctl(&["set", &key(1), "\u{1b}[2J"]);
    redis.ctl(&["del", &key(2)]);
    let fleet = see(&gate).await.expect("it answers");
    let view = &fleet.view;
    assert_eq!(
        [view.workers.len(), view.unread.len(), view.silent.len()],
        [1, 2, 1]
    );
    assert!(view.tenants[0].at_least);
    // A key of another type causes its own error.
    redis.ctl(&["del", &key(3)]);
    redis.ctl(&["hset", &key(3), "a", "b"]);
    let fleet = see(&gate).await.expect("it answers");
    assert_eq!(fleet.view.workers.len(), 0);
    assert_eq!(fleet.failed.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_leaves_all_reported_tenants_in_the_fleet() {
    let gate = Arc::new(gate_at(shared_redis().url(), &unique("fleet")));
    let _workers = speak(&gate, 1).await;
    let config = Config::parse("c.yaml", "", std::iter::empty()).expect("valid");
    let names = async |part: &str| {
        let search = TenantSelection {
            sort: Sort::Waiting,
            max: 9,
            name: part.to_owned(),
        };
        let seen = Overview::of(&gate, &config, Some(&search)).await;
        let seen = seen.expect("it answers");
        let shown = seen.shown.expect("tenants");
        (shown.rows.len(), shown.more, seen.fleet.view.tenants.len())
    };
    assert_eq!(names("CM").await, (1, 0, 1));
    // The search matches again after its last letter is deleted.
    assert_eq!(names("cmx").await, (0, 0, 1));
}
