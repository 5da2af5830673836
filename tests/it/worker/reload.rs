//! A configuration that changes while a worker runs, and the registry through which workers agree,
//! on real servers.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use app::Worker;
use config::Config;
use gate::GateError;
use gate::fleet::registry::{NamedPolicy, Registry, read_policies};
use gate::fleet::{MARGIN_MS, MAX_POLICIES};
use gate::redis::RedisGate;
use handler::{Handler, Outcome, Permit};
use kit::gate::{clocked, named_limit};
use kit::servers::{shared_redis, unique};
use kit::until;
use kit::{PATIENCE, SECOND, counts};
use rules::job::Job;
use rules::limit::Algorithm;
use rules::policy::{EntryLimits, Pattern, Policy};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::PROGRAM;
use crate::worker::running::Running;

/// Configurations of one queue with different limits.
struct Bed {
    folder: TempDir,
    bed: kit::Bed,
}

impl Bed {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a folder"),
            bed: kit::Bed::shared(),
        }
    }

    fn yaml(&self, limits: &str) -> String {
        let yaml = self.bed.yaml(limits, "http://127.0.0.1:9/", "");
        yaml + "delay: {max-delay: 1s}\n"
    }

    /// Replaces `file` by a rename, as editors and deployments do.
    fn write(&self, file: &str, text: &str) -> PathBuf {
        let (new, path) = (
            self.folder.path().join("new"),
            self.folder.path().join(file),
        );
        std::fs::write(&new, text).expect("written");
        std::fs::rename(&new, &path).expect("renamed");
        path
    }

    async fn publish(&self, jobs: usize) {
        let yaml = self.yaml("max-requests: 1");
        self.bed.publish(&yaml, kit::jobs("acme", jobs)).await;
    }
}

fn load(path: &Path) -> Config {
    Config::load(Some(path), std::iter::empty()).expect("valid")
}

/// The starts of calls of all workers that share it.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<Instant>>>);

impl Handler for Calls {
    async fn handle(&self, _: &Job, permit: Permit) -> Outcome {
        if !permit.is_good() {
            return Outcome::Late;
        }
        self.0.lock().expect("no panic").push(Instant::now());
        Outcome::Done
    }
}

impl Calls {
    fn number(&self) -> usize {
        self.0.lock().expect("no panic").len()
    }

    /// Returns the maximum number in any second that begins after `since`.
    fn max_since(&self, since: Instant) -> usize {
        let mut calls = self.0.lock().expect("no panic").clone();
        calls.retain(|at| *at >= since);
        calls.sort_unstable();
        counts::windows(&calls, usize::MAX, SECOND).0
    }

    async fn reach(&self, number: usize) {
        until(&format!("{number} calls"), || self.number() >= number).await;
    }
}

fn start(file: PathBuf, calls: &Calls) -> Running {
    let worker = Worker::new(load(&file)).expect("usable");
    Running::start(worker.reloading(Some(file)).fresh(), calls.clone())
}

async fn shows(worker: &Running, line: &str) {
    until(line, || worker.shows(line)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_worker_applies_a_raised_and_a_lowered_limit() {
    let (bed, calls) = (Bed::new(), Calls::default());
    let limits = |max: u32| bed.yaml(&format!("max-requests: {max}, window-size: 1s"));
    bed.publish(400).await;
    let file = bed.write("worker.yaml", &limits(5));
    let worker = start(file, &calls);
    calls.reach(12).await;
    assert!(calls.max_since(Instant::now() - PATIENCE) <= 5);

    bed.write("worker.yaml", &limits(60));
    shows(
        &worker,
        "sluicegate_config_reloads_total{result=\"applied\"} 1",
    )
    .await;
    calls.reach(300).await;
    shows(&worker, "sluicegate_active_policies 1").await;
    assert!(calls.max_since(Instant::now() - PATIENCE) <= 60);
    assert!(calls.max_since(Instant::now() - PATIENCE) > 5);

    bed.publish(30).await;
    bed.write("worker.yaml", &limits(5));
    shows(
        &worker,
        "sluicegate_config_reloads_total{result=\"applied\"} 2",
    )
    .await;
    shows(&worker, "sluicegate_active_policies 2").await;
    let lowered = Instant::now() + SECOND;
    bed.publish(20).await;
    calls.reach(450).await;
    assert!(calls.max_since(lowered) <= 5, "both are enforced");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_switches_policies_exceeds_none() {
    let (bed, calls) = (Bed::new(), Calls::default());
    let limits = |algo: &str| {
        bed.yaml(&format!(
            "use-algo: {algo}, max-requests: 20, window-size: 1s"
        ))
    };
    bed.publish(700).await;
    let started = Instant::now();
    let one = bed.write("one.yaml", &limits("token-bucket-algo"));
    let two = bed.write("two.yaml", &limits("leaky-bucket-algo"));
    let one = start(one, &calls);
    let two = start(two, &calls);
    shows(&one, "sluicegate_active_policies 2").await;
    shows(&two, "sluicegate_active_policies 2").await;
    calls.reach(60).await;
    let both = Instant::now();
    calls.reach(120).await;
    assert!(calls.max_since(both + SECOND) <= 20, "the stricter of both");

    bed.write("two.yaml", &limits("fixed-window-algo"));
    shows(&two, "sluicegate_active_policies 3").await;
    bed.write("one.yaml", &limits("sliding-window-algo"));
    shows(
        &one,
        "sluicegate_config_reloads_total{result=\"applied\"} 1",
    )
    .await;
    shows(&one, "sluicegate_active_policies 2").await;
    let dropped = calls.number();
    calls.reach(dropped + 40).await;
    // Two windows of the fixed window, or a burst and a refill.
    assert!(calls.max_since(started) <= 40);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn a_worker_waiting_for_rabbitmq_reaches_redis_and_logs_its_limits() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("sluicegate.yaml");
    let text = format!(
        "amqp: {{url: 'amqp://127.0.0.1:1/%2f'}}\n\
         redis: {{url: '{}', prefix: '{}'}}\n\
         rate-limiter: {{window-size: 1s, max-requests: 5, guard: strict, plans: {{pro: {{window-size: 1s, max-requests: 9}}}}}}\n\
         dispatch: {{http: {{url: 'http://127.0.0.1:1/'}}}}\n\
         admin: {{listen: '127.0.0.1:0'}}\n",
        shared_redis().url(),
        unique("waits"),
    );
    std::fs::write(&file, text).expect("written");
    let program = PROGRAM.start_with(&file);
    program.logs(&["RabbitMQ", "can't be reached"]).await;
    assert_eq!(program.count(&["enforcing", "guard=\"strict\""]), 1);
    assert_eq!(program.count(&["enforcing", "guard_ms"]), 0);
    assert_eq!(program.count(&["enforcing", "burst"]), 0);
    assert_eq!(program.count(&["enforcing", "plans=1", "tenants=0"]), 1);
    until("Redis is seen", || {
        let readiness = program.get("/readyz").unwrap_or_default();
        let lines: Vec<_> = readiness.lines().collect();
        matches!(lines[..], ["not ready", why, "no jobs are being taken"] if why.contains("can't be reached"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_file_is_refused_and_restart_only_keys_are_reported() {
    let bed = Bed::new();
    let good = bed.yaml("max-requests: 5, window-size: 1s");
    let file = bed.write("worker.yaml", &good);
    let mut worker = PROGRAM.start_with(&file);
    worker.logs(&["RabbitMQ: consuming"]).await;

    let broken = bed.yaml("max-requests: five, window-size: 1s");
    bed.write("worker.yaml", &broken);
    let refused = ["configuration refused", "worker.yaml:3", "max-requests"];
    worker.logs(&refused).await;

    // Reported again on another request, and not otherwise.
    worker.signal(Signal::HUP);
    until("a second refusal", || worker.count(&refused) == 2).await;

    let restart = bed.yaml("max-requests: 6, window-size: 1s") + "retry: {max-attempts: 9}\n";
    bed.write(
        "worker.yaml",
        &restart.replace("max-delay: 1s", "max-delay: 2s"),
    );
    worker.logs(&["require a restart", "delay.max-delay"]).await;
    worker.logs(&["configuration applied", "new limits"]).await;
    worker.logs(&["configuration applied", "retry"]).await;
    assert_eq!(worker.count(&refused), 2);
    bed.write("worker.yaml", &restart);
    worker.signal(Signal::HUP);
    worker.logs(&["no changes"]).await;

    worker.signal(Signal::TERM);
    assert!(worker.ended().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_hanging_file_is_read_again() {
    let bed = Bed::new();
    let limits = |max: u32| {
        let yaml = bed.yaml(&format!("max-requests: {max}, window-size: 1s"));
        let url = format!("url: '{}', prefix", shared_redis().url());
        assert!(yaml.contains(&url));
        yaml.replace(&url, "url-file: redis-url, prefix")
    };
    let url = bed.write("redis-url", shared_redis().url());
    let file = bed.write("worker.yaml", &limits(5));
    let mut worker = PROGRAM.start_with(&file);
    worker.logs(&["RabbitMQ: consuming"]).await;

    // A file that it names is missing during the change and returns later. The change is refused
    // once.
    std::fs::remove_file(&url).expect("it is there");
    bed.write("worker.yaml", &limits(6));
    let refused = ["configuration refused", "redis-url", "can't be read"];
    worker.logs(&refused).await;
    tokio::time::sleep(5 * SECOND).await;
    bed.write("redis-url", shared_redis().url());
    worker.logs(&["configuration applied", "new limits"]).await;
    assert_eq!(worker.count(&refused), 1);

    // That file hangs, since no process writes to the pipe. The worker continues as before.
    std::fs::remove_file(&url).expect("it is there");
    let made = std::process::Command::new("mkfifo").arg(&url).status();
    assert!(made.expect("it runs").success());
    bed.write("worker.yaml", &limits(7));
    tokio::time::sleep(10 * SECOND).await;
    until("it is ready", || {
        let readiness = worker.get("/readyz").unwrap_or_default();
        readiness.starts_with("ready")
    })
    .await;
    std::fs::write(&url, shared_redis().url()).expect("somebody reads it");
    until("the new limits", || {
        worker.count(&["configuration applied", "new limits"]) == 2
    })
    .await;
    worker.signal(Signal::TERM);
    assert!(worker.ended().success());
}

fn policy(max: u64) -> Policy {
    kit::gate::limit(Algorithm::FixedWindow, max, 1_000).into()
}

fn named(max: u64) -> NamedPolicy {
    NamedPolicy::new(policy(max)).expect("small")
}

/// Returns a gate with a clock that the test controls, and its prefix.
fn gate(clock: &Arc<AtomicU64>) -> (Arc<RedisGate>, String) {
    let prefix = unique("registry");
    let gate = clocked(shared_redis().url(), &prefix, clock);
    (Arc::new(gate), prefix)
}

/// Returns a clock close to Redis's, so that keys don't expire at once.
fn test_clock() -> Arc<AtomicU64> {
    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .expect("after 1970");
    let micros = u64::try_from(now.as_micros()).expect("before the year 500,000");
    Arc::new(AtomicU64::new(micros))
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_learn_of_each_others_policies_until_they_expire() {
    let clock = test_clock();
    let pass = |ms: u64| clock.fetch_add(ms * 1_000, Ordering::Relaxed);
    let (gate, prefix) = gate(&clock);
    let mut one = Registry::new(Arc::clone(&gate), named(1));
    let mut two = Registry::new(Arc::clone(&gate), named(2));
    assert_eq!(one.exchange().await.expect("agreed").fleet.policies(), 1);
    assert_eq!(two.exchange().await.expect("agreed").fleet.policies(), 2);
    assert_eq!(one.exchange().await.expect("agreed").fleet.policies(), 2);

    pass(2_000);
    assert_eq!(
        two.switch_to(named(3))
            .await
            .expect("agreed")
            .fleet
            .policies(),
        3
    );
    pass(MARGIN_MS + 1_000);
    // One policy was in force before the switch, two until then.
    assert_eq!(two.exchange().await.expect("agreed").fleet.policies(), 2);
    pass(1);
    assert_eq!(two.exchange().await.expect("agreed").fleet.policies(), 1);
    let known = read_policies(&gate).await.expect("known").known;
    assert_eq!(known.policies().len(), 1);
    assert_eq!(known.policies()[0].policy.default_limits()[0].max(), 3);
    let left = shared_redis().ctl(&["PTTL", &format!("{prefix}:%policies")]);
    assert!(left.trim().parse::<i64>().expect("a number") > 0, "{left}");

    // Redis loses the registry. Known policies are kept, and a missing text is sent again.
    assert_eq!(one.exchange().await.expect("agreed").fleet.policies(), 2);
    shared_redis().ctl(&["DEL", &format!("{prefix}:%policies")]);
    assert_eq!(two.exchange().await.expect("agreed").fleet.policies(), 1);
    assert_eq!(one.exchange().await.expect("agreed").fleet.policies(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raised_limit_is_shown_as_soon_as_workers_enforce_it() {
    let (gate, _) = gate(&test_clock());
    let mut worker = Registry::new(Arc::clone(&gate), named(1));
    worker.exchange().await.expect("agreed");
    worker.switch_to(named(2)).await.expect("agreed");
    // Reports the new policy, so that the old one is in force nowhere.
    let mut enforced = worker.exchange().await.expect("agreed").fleet;
    let mut shown = (read_policies(&gate).await.expect("known")).fleet(&named(2));
    let tenant = kit::gate::tenant("t");
    let [enforced, shown] = [&mut enforced, &mut shown].map(|of| of.limits(&tenant, None));
    assert_eq!(enforced.all()[0].max(), 2);
    assert_eq!(shown, enforced);
}

/// Otherwise a mistake that was corrected while Redis was away would count for a longest window.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_was_replaced_before_the_first_exchange_is_not_registered() {
    let (gate, prefix) = gate(&test_clock());
    // The key has a wrong type, so the first exchange fails.
    let key = format!("{prefix}:%policies");
    shared_redis().ctl(&["SET", &key, "x"]);
    let mut worker = Registry::new(Arc::clone(&gate), named(1));
    worker.switch_to(named(2)).await.expect_err("a wrong type");
    worker.exchange().await.expect_err("a wrong type");
    shared_redis().ctl(&["DEL", &key]);
    // The steward makes a plain exchange after a failed one.
    let agreed = worker.exchange().await.expect("agreed");
    assert_eq!(agreed.fleet.own().default_limits()[0].max(), 2);
    let agreed = worker.switch_to(named(3)).await.expect("agreed");
    assert_eq!(
        agreed.fleet.policies(),
        2,
        "the one that was in force stays"
    );
    let known = read_policies(&gate).await.expect("known").known;
    assert!(known.find(&named(1).id).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_policies_are_refused_and_an_unreadable_one_stops_the_worker() {
    let clock = test_clock();
    let (gate, prefix) = gate(&clock);
    let mut worker = Registry::new(Arc::clone(&gate), named(1));
    worker.exchange().await.expect("there is room");
    for max in 2..=MAX_POLICIES as u64 {
        worker.switch_to(named(max)).await.expect("there is room");
    }
    let why = worker.switch_to(named(99)).await.expect_err("no room");
    assert!(
        matches!(&why, GateError::Refused(text) if text.contains("32 different")),
        "{why}"
    );
    let agreed = worker.exchange().await.expect("the old one is still there");
    assert_eq!(agreed.fleet.policies(), MAX_POLICIES);

    let key = format!("{prefix}:%policies");
    let times = format!("{0}:{0}:1000", clock.load(Ordering::Relaxed) / 1_000);
    shared_redis().ctl(&["HSET", &key, "abc", "{\"format\":99}", "abc:times", &times]);
    let why = worker.exchange().await.expect_err("unknown");
    assert!(
        matches!(&why, GateError::Refused(text) if text.contains("format 99")),
        "{why}"
    );
}

/// More edits within a day than the maximum number of policies, each by restarted workers, next to
/// a tenant with a window of a day.
#[tokio::test(flavor = "multi_thread")]
async fn changes_of_short_windows_expire_before_the_longest_window() {
    let clock = test_clock();
    let (gate, _) = gate(&clock);
    let of = |max, window| named_limit("default", Algorithm::SlidingWindow, max, window);
    for max in 1..=2 * MAX_POLICIES as u64 {
        let slow = EntryLimits::Limits(of(9, 86_400 * SECOND).into());
        let policy = Policy::from(of(max, SECOND));
        let policy = policy.with_tenants(vec![(Pattern::parse("slow"), slow)]);
        let mut worker = Registry::new(Arc::clone(&gate), NamedPolicy::new(policy).expect("small"));
        let agreed = worker.exchange().await.expect("there is room");
        assert!(agreed.fleet.policies() <= 5, "edit {max}");
        clock.fetch_add((MARGIN_MS + 2_000) * 1_000, Ordering::Relaxed);
    }
}
