//! Shadow limits on real servers as users have them: their reports agree with the API's own log,
//! and a promoted limit applies from then on with everything that its shadow counted. Also their
//! cost in Redis.

use std::path::Path;
use std::time::{Duration, Instant};

use gate::{Answer, Gate};
use kit::api::Api;
use kit::gate::{FRESH, asking, gate_at, guarded_limit};
use kit::process::Process;
use kit::servers::Redis;
use kit::{Bed, Says, counts, jobs, until};
use rules::limit::{Algorithm, Limits};
use serde_json::Value;

use crate::PROGRAM;
use crate::cli::{json_of, sluicegate};

const MAX: usize = 5;
const WINDOW: Duration = Duration::from_secs(30);

/// Replaces the file by a rename, as editors and deployments do.
fn write(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).expect("written");
    std::fs::rename(&new, path).expect("renamed");
}

/// Returns when each of these calls would have arrived with at most [`MAX`] in any `window` and one
/// queue in front of the API.
fn virtual_times(calls: &[Instant], window: Duration) -> Vec<Instant> {
    let mut times: Vec<Instant> = Vec::new();
    for call in calls {
        let mut at = times.last().map_or(*call, |last| *last.max(call));
        if let Some(first) = times.len().checked_sub(MAX) {
            at = at.max(times[first] + window);
        }
        times.push(at);
    }
    times
}

/// Returns the answer of the API of `worker` to a local program.
fn by_api(worker: &Process, path: &str) -> Value {
    let body = worker.get(path).expect("it listens");
    serde_json::from_str(&body).expect("JSON")
}

fn sum_of(worker: &Process, series: &str) -> f64 {
    let series = format!("sluicegate_shadow_{series}{{limit=\"few\"}}");
    worker.metric(&series).unwrap_or(0.0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shadow_matches_the_apis_log_and_keeps_its_usage_when_promoted() {
    const BURST: usize = 40;
    let api = Api::start().await;
    let bed = Bed::shared();
    let limits = |shadow: &str| {
        let all = format!(
            "limits: [{{name: most, use-algo: token-bucket-algo, max-requests: 500, window-size: 1s}}, {{name: few, max-requests: {MAX}, window-size: 30s, guard: 2s{shadow}}}]"
        );
        bed.yaml(&all, &api.url(), "")
    };
    let tried = limits(", shadow: true");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("sluicegate.yaml");
    write(&file, &tried);
    let worker = PROGRAM.start_with(&file);
    bed.publish(&tried, jobs("acme", BURST)).await;
    let arrivals = || -> Vec<Instant> {
        let sorted = counts::sorted_arrivals(&api.calls());
        sorted.into_iter().map(|at| at.into_std()).collect()
    };
    until("all calls", || api.count() == BURST).await;
    until("the metric", || {
        sum_of(&worker, "starts_total") as usize == BURST
    })
    .await;

    let calls = arrivals();
    let spread = *calls.last().expect("calls") - calls[0] + Duration::from_secs(2);
    let window = WINDOW + Duration::from_secs(2);
    let times = virtual_times(&calls, window);
    let waits = times.iter().zip(&calls).map(|(at, call)| *at - *call);
    let (waited, longest) = (
        waits.clone().filter(|wait| !wait.is_zero()).count(),
        waits.max().expect("calls"),
    );
    // All calls arrived at once, so latencies make no difference.
    assert!(spread < WINDOW, "{spread:?}: the machine was stopped");
    assert_eq!(waited, BURST - MAX);
    let near = |ms: f64| (ms - longest.as_secs_f64() * 1e3).abs() <= spread.as_secs_f64() * 1e3;
    assert_eq!(sum_of(&worker, "waits_total") as usize, waited);
    assert_eq!(sum_of(&worker, "never_total"), 0.0);
    assert!(near(1e3 * sum_of(&worker, "longest_wait_seconds")));
    let by_command = json_of(&tried, &["inspect", "acme"]);
    let by_api = by_api(&worker, "/api/v1/tenants/acme");
    for found in [&by_command, &by_api] {
        let shadow = &found["shadows"][0];
        let number = |name: &str| match shadow[name].as_u64() {
            Some(number) => number as usize,
            None => panic!("{name}: {found}"),
        };
        assert_eq!(
            (number("starts"), number("would_have_waited")),
            (BURST, waited)
        );
        assert_eq!(
            (number("used"), number("would_never_have_started")),
            (BURST, 0)
        );
        assert!(
            near(number("longest_wait_ms") as f64),
            "{shadow}, and {longest:?}"
        );
        assert_eq!(shadow["would_have_waited_share"].as_f64(), Some(0.875));
        assert_eq!(found["limits"].as_array().map(Vec::len), Some(1));
    }
    let text = sluicegate(&tried, &["inspect", "acme"]).exited(0).out;
    text.says("would have made 35 of 40 wait, the longest 3m ");
    text.says("  used    40 of 5; it denies nothing");
    let listed = sluicegate(&tried, &["check", "--tenant", "acme"]).out;
    listed.says("  few: at most 5 units of cost");
    listed.says("(shadow: it counts but denies nothing)");

    // After promotion, further jobs wait until enough of the shadow's usage has expired.
    let enforced = limits("");
    write(&file, &enforced);
    worker.logs(&["configuration applied", "new limits"]).await;
    let applied = Instant::now();
    bed.publish(&enforced, jobs("acme", MAX)).await;
    until("the rest", || api.count() == BURST + MAX).await;
    let calls = arrivals();
    assert!(
        applied < calls[BURST - 1] + WINDOW,
        "the machine was stopped"
    );
    for (at, call) in calls.iter().enumerate().skip(BURST) {
        let in_window = calls[..=at].iter().filter(|other| *call - **other < WINDOW);
        assert!(in_window.count() <= MAX, "call {at}");
    }
    worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tried_maximum_denies_nothing_and_counts_earlier_starts_once_set() {
    const BURST: usize = 20;
    let api = Api::start().await;
    let bed = Bed::shared();
    let limits = "limits: [{name: few, max-requests: 500, window-size: 30s, guard: 2s}, {name: running, max-concurrent: 64}]";
    let yaml = bed.yaml(limits, &api.url(), "");
    let worker = PROGRAM.start_consuming(&yaml).await;
    let tenant = |args: &[&str]| sluicegate(&yaml, &[&["tenant", "limit"], args].concat());
    let shadows = |of: &str| {
        let found = sluicegate(&yaml, &["inspect", of, "--json"]).exited(0);
        found.json()["shadows"].as_array().expect("a list").clone()
    };
    let refused = tenant(&["acme", "5", "--limit", "running", "--shadow"]).exited(2);
    refused.err.says("limit running: shadow has no meaning");
    let max = MAX.to_string();
    let few = ["acme", &max, "--limit", "few"];
    let args = [&few[..], &["--shadow", "--for", "1h"]].concat();
    let started = tenant(&args).exited(0).out;
    started.begins("limit few of acme: trying max-requests 5 until ");
    started.says(": 1 worker follows\nit denies nothing");

    bed.publish(&yaml, jobs("acme", BURST)).await;
    bed.publish(&yaml, jobs("other", 1)).await;
    until("all calls", || api.count() == BURST + 1).await;
    let series = |name: &str| {
        let series = format!("sluicegate_shadow_{name}_total{{limit=\"few.tried\"}}");
        worker.metric(&series).map(|number| number as usize)
    };
    until("the metric", || series("starts") == Some(BURST)).await;
    assert_eq!(series("waits"), Some(BURST - MAX));
    let found = shadows("acme");
    let [shadow] = found.as_slice() else {
        panic!("{found:?}");
    };
    for (name, value) in [
        ("max_requests", MAX),
        ("starts", BURST),
        ("would_have_waited", BURST - MAX),
        ("used", BURST),
    ] {
        assert_eq!(shadow[name], value, "{name}: {shadow}");
    }
    assert_eq!(shadow["name"], "few");
    assert!(
        shadow["set_until_ms"].as_u64() > shadow["since_ms"].as_u64(),
        "{shadow}"
    );
    assert!(shadows("other").is_empty());
    let text = sluicegate(&yaml, &["inspect", "acme"]).exited(0).out;
    for line in [
        "shadow    few: at most 5 calls in any 30s",
        "  set     by an operator, until ",
        "  tried   would have made 15 of 20 wait, the longest 1m ",
        "  used    20 of 5; it denies nothing",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }

    // After the limit is set, further jobs wait until enough of all usage has expired. The trial
    // has ended.
    let done = tenant(&few).exited(0).out;
    done.begins("limit few of acme: max-requests is 5 until ");
    assert!(shadows("acme").is_empty());
    let of_acme = || {
        let sorted = counts::arrivals(&api.calls(), "acme");
        (sorted.into_iter().map(|at| at.into_std())).collect::<Vec<Instant>>()
    };
    let set = Instant::now();
    bed.publish(&yaml, jobs("acme", MAX)).await;
    until("the rest", || of_acme().len() == BURST + MAX).await;
    let calls = of_acme();
    assert!(set < calls[BURST - 1] + WINDOW, "the machine was stopped");
    for (at, call) in calls.iter().enumerate().skip(BURST) {
        let in_window = calls[..=at].iter().filter(|other| *call - **other < WINDOW);
        assert!(in_window.count() <= MAX, "call {at}");
    }

    // A trial ends by itself, by a command, and when its max is set.
    let one = ["other", "1", "--limit", "few", "--shadow"];
    tenant(&[&one[..], &["--for", "5s"]].concat()).exited(0);
    until("its end", || shadows("other").is_empty()).await;
    for clear in [&["--clear", "--shadow"][..], &["--clear"]] {
        tenant(&one).exited(0);
        assert_eq!(shadows("other").len(), 1);
        let args = [&["other", "--limit", "few"], clear].concat();
        let ended = tenant(&args).exited(0).out;
        assert!(shadows("other").is_empty(), "{ended}");
    }
    // If another max is set, the trial continues.
    tenant(&one).exited(0);
    tenant(&["other", "7", "--limit", "few"]).exited(0);
    assert_eq!(shadows("other")[0]["max_requests"], 1);
    worker.stop();
}

#[tokio::test]
async fn a_shadow_costs_a_decision_a_few_commands_and_its_absence_none() {
    const ROUNDS: u64 = 500;
    let redis = Redis::start();
    let limit = |name, algorithm, max| guarded_limit(name, algorithm, (max, 60_000, 50));
    let enforced = || limit("most", Algorithm::SlidingWindow, 100_000);
    let mut commands_of = Vec::new();
    let shadows = Algorithm::ALL.map(|algorithm| {
        let shadow = limit("try", algorithm, 1_000)
            .in_shadow()
            .expect("it holds no leases");
        (algorithm.name(), vec![enforced(), shadow])
    });
    for (number, (name, limits)) in [("none", vec![enforced()])]
        .into_iter()
        .chain(shadows)
        .enumerate()
    {
        let limits = Limits::new(limits).expect("two names");
        let gate = gate_at(redis.url(), &format!("p{number}"));
        let ask = |number: u64| asking(&format!("t{}", number % 50), &limits, &[FRESH]);
        for number in 0..60 {
            gate.ask(&[ask(number)]).await.expect("Redis answers");
        }
        redis.reset_stats();
        for number in 0..ROUNDS {
            let replies = gate.ask(&[ask(number)]).await.expect("Redis answers");
            let reply = replies[0].as_ref().expect("a decision");
            assert!(
                matches!(reply.answers[..], [Answer::Start { .. }]),
                "{name}"
            );
            assert_eq!(reply.shadows.len(), limits.shadows().len());
        }
        let stats = redis.command_stats();
        let (counts, took) = (stats.in_scripts(), stats.micros("evalsha"));
        let commands = counts.values().sum::<u64>() as f64 / ROUNDS as f64;
        println!(
            "{name}: {commands:.1} commands, {:.0} us a decision: {counts:?}",
            took as f64 / ROUNDS as f64
        );
        commands_of.push(commands);
    }
    // The clock, the waitlist and the log: sliding_shortcut.lua. A shadow's additions are read and
    // written once, with any algorithm.
    let (none, with) = commands_of.split_first().expect("seven");
    assert!(*none <= 8.0, "{none}");
    assert!(
        with.iter().all(|commands| *commands <= none + 20.0),
        "{with:?}"
    );
}
