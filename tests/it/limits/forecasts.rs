//! Forecasts of starts on real servers: promises are kept, `inspect --what-if` predicts what
//! happens, and `explain` shows a job's position.
//!
//! `FORECAST_SECONDS=60 cargo test --test it limits::forecasts::promises -- --nocapture` prints the
//! errors of promises for longer backlogs.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kit::api::Api;
use kit::process::{Process, sum};
use kit::{Bed, Says, client, jobs, until};
use serde_json::Value;
use trial::pauses::PauseWatch;

use crate::PROGRAM;
use crate::api::{Port, READER};
use crate::cli::servers::{buried, bury};
use crate::cli::{CommandResult, sluicegate};

const TENANTS: [&str; 4] = ["a", "b", "c", "d"];
/// Number of starts per tenant and window, and the window's length.
const PER_WINDOW: usize = 10;
const WINDOW_SECONDS: usize = 40;
/// How far a start may be from its promise, as a part of the wait.
const PART: f64 = 0.02;

/// Returns the bounds of the histogram's buckets with the number of jobs in each.
fn off(workers: &[Process], side: &str) -> Vec<(String, f64)> {
    let bounds = [
        "0.001", "0.01", "0.05", "0.1", "0.25", "0.5", "1.0", "2.5", "10.0", "+Inf",
    ];
    let bucket = |le: &&str| {
        let series =
            format!("sluicegate_forecast_error_seconds_bucket{{le=\"{le}\",off=\"{side}\"}}");
        ((*le).to_owned(), sum(workers, &series))
    };
    bounds.iter().map(bucket).collect()
}

/// Runs two workers with a backlog per tenant, whose jobs wait for up to `seconds`.
async fn promises_of(seconds: usize) {
    let (bed, api) = (Bed::shared(), Api::start().await);
    // Short waits are in workers' memory, long ones in delay queues.
    let limits = format!("max-requests: {PER_WINDOW}, window-size: {WINDOW_SECONDS}s, guard: 2s");
    let yaml = bed.yaml(&limits, &api.url(), "") + "delay: {max-in-memory: 2s}\n";
    let workers = [(); 2].map(|()| PROGRAM.start(&yaml));
    for worker in &workers {
        worker.logs(&["admin.listen="]).await;
    }
    let watch = PauseWatch::start(Instant::now());
    let each = (seconds / WINDOW_SECONDS + 1) * PER_WINDOW;
    bed.publish(&yaml, TENANTS.iter().flat_map(|tenant| jobs(tenant, each)))
        .await;
    until("all calls", || api.count() == each * TENANTS.len()).await;
    let count = |side| format!("sluicegate_forecast_error_seconds_count{{off=\"{side}\"}}");
    let promised = || sum(&workers, &count("early")) + sum(&workers, &count("late"));
    let waited = ((each - PER_WINDOW) * TENANTS.len()) as f64;
    until("all promises", || promised() >= waited).await;
    let in_time = sum(&workers, "sluicegate_forecasts_kept_total");
    for side in ["early", "late"] {
        println!("{side}: {:?}", off(&workers, side));
    }
    let longest = watch.pauses().longest(Duration::ZERO..Duration::MAX);
    println!(
        "{in_time} of {} promises were kept; the longest pause was {longest:?}",
        promised()
    );
    assert!(promised() <= (each * TENANTS.len()) as f64);
    let up_to = |side, bound: f64| {
        let buckets = off(&workers, side);
        let is_above = |le: &str| le.parse::<f64>().is_ok_and(|le| le >= bound);
        (buckets.iter().find(|(le, _)| is_above(le)))
            .expect("the bucket")
            .1
    };
    // A pause delays the starts of its window and of all later ones.
    let windows = seconds / WINDOW_SECONDS;
    let delayed = (windows + 1) as f64 * longest.as_secs_f64();
    let [shortest, longest] = [1, windows].map(|windows| (windows * (WINDOW_SECONDS + 2)) as f64);
    if delayed < PART * shortest / 2.0 {
        assert_eq!(in_time, promised(), "promises were broken");
    }
    // Otherwise starts were late by that much at most, and none was earlier than promised.
    let near = up_to("early", PART * shortest) + up_to("late", PART * longest + delayed);
    assert_eq!(near, promised(), "promises were broken");
}

/// A promise is kept within 2 % of the wait, which is 0.8 s or more.
#[tokio::test(flavor = "multi_thread")]
async fn promises_are_kept_on_real_servers() {
    let seconds = std::env::var("FORECAST_SECONDS");
    let seconds = seconds.map_or(80, |seconds| seconds.parse().expect("a whole number"));
    promises_of(seconds).await;
}

/// A worker that lets each tenant have 5 concurrent calls, with 21 jobs of `acme`. Sixteen of
/// them wait: the last one is alone in its window, so a forecast that is wrong by one job is wrong
/// by a window.
struct SlowWorker {
    yaml: String,
    worker: Process,
    api: Api,
}

impl SlowWorker {
    /// Five calls per hour. Permits last long: a job that is denied while an expired permit is free
    /// again is promised a start that is too early.
    async fn start() -> Self {
        Self::of("max-requests: 5, window-size: 1h, guard: 10s, plan-header: x-plan, plans: {gold: {max-requests: 10, window-size: 1h}}").await
    }

    async fn of(limits: &str) -> Self {
        let (bed, api) = (Bed::shared(), Api::start().await);
        let token = format!("listen: '127.0.0.1:0', token: {READER}");
        let yaml = bed
            .yaml(limits, &api.url(), "")
            .replace("listen: '127.0.0.1:0'", &token);
        let worker = PROGRAM.start(&yaml);
        worker.logs(&["admin.listen="]).await;
        bed.publish(&yaml, jobs("acme", 21)).await;
        until("five calls", || api.count() == 5).await;
        let slow = Self { yaml, worker, api };
        until("a line of sixteen", || slow.inspect(&[])["waiting"] == 16).await;
        slow
    }

    fn runs(&self, args: &[&str]) -> CommandResult {
        tokio::task::block_in_place(|| sluicegate(&self.yaml, args))
    }

    fn inspect(&self, more: &[&str]) -> Value {
        let args = [&["inspect", "acme", "--json"], more].concat();
        self.runs(&args).exited(0).json()
    }
}

const HOUR_MS: f64 = 3_600_000.0;

fn hours(value: &Value) -> f64 {
    value.as_f64().expect("a number") / HOUR_MS
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_that_delay_each_other_have_one_backlog_end() {
    let both = "limits: [{name: hour, max-requests: 5, window-size: 1h, guard: 10s}, {name: both, max-requests: 7, window-size: 100m, guard: 10s}]";
    let slow = SlowWorker::of(both).await;
    // Each limit alone lets the last job start after 240 or 200 minutes.
    let found = slow.inspect(&["--what-if", "resume"]);
    for (start, minutes) in [
        (&found["waitlist_end_in_ms"], 260.0),
        (&found["what_if"]["now"]["ends_in_ms"], 260.0),
        // Two jobs start after 260 minutes.
        (&found["new_job_in_ms"], 300.0),
    ] {
        let near = (hours(start) - minutes / 60.0).abs() < 0.1;
        assert!(near, "{start} instead of {minutes} min: {found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_if_forecasts_the_backlogs_end_and_changes_nothing() {
    let slow = SlowWorker::start().await;
    let before = slow.inspect(&[]);
    assert_eq!(before["what_if"], Value::Null);
    for (changes, ends) in [
        (&["max-requests=5"][..], 4.0),
        (&["max-requests=10"], 2.0),
        (&["plan=gold"], 2.0),
        (&["default.max-requests=20"], 1.0),
        (&["default.max-requests=21"], 0.0),
        (&["max-requests=1"], 16.0),
        (&["window-size=30m"], 2.0),
        (&["pause=10h"], 13.0),
        (&["max-requests=16", "pause=2h"], 2.0),
        (&["max-requests=15", "pause=2h"], 3.0),
        (&["resume"], 4.0),
    ] {
        let args: Vec<&str> = changes.iter().flat_map(|it| ["--what-if", *it]).collect();
        let found = slow.inspect(&args)["what_if"].clone();
        // Little time has passed between the first call and this look.
        let near = |value: &Value, expected: f64| (hours(value) - expected).abs() < 0.1;
        assert!(
            near(&found["now"]["ends_in_ms"], 4.0),
            "{changes:?}: {found}"
        );
        assert!(
            near(&found["then"]["ends_in_ms"], ends),
            "{changes:?}: {found}"
        );
        assert!(
            near(&found["earlier_by_ms"], 4.0 - ends),
            "{changes:?}: {found}"
        );
        assert_eq!(
            (&found["waiting"], &found["sure"]),
            (&16.into(), &"exact".into())
        );
    }
    let text = slow.runs(&["inspect", "acme", "--what-if", "max-requests=20"]);
    let text = text.exited(0).out;
    text.says("what if   max-requests=20\n  now     16 jobs waiting");
    let port = Port::of(&slow.worker).await;
    let path = "/tenants/acme?what-if=max-requests%3D10&what-if=resume";
    let answer = port.get(path).await.is(200);
    assert_eq!(
        answer["what_if"]["changes"],
        serde_json::json!(["max-requests=10", "resume"])
    );
    for (text, hint) in [
        ("max-request=1", "did you mean max-requests?"),
        ("max-requests=0", "from 1 to 1000000000000"),
        ("plan=glod", "did you mean gold?"),
        ("defualt.max-requests=1", "did you mean default?"),
    ] {
        let failed = slow.runs(&["inspect", "acme", "--what-if", text]).exited(2);
        assert!(failed.err.contains(hint), "{failed:?}");
        let path = format!("/tenants/acme?what-if={}", text.replace('=', "%3D"));
        let answer = port.get(&path).await.is(400);
        let why = answer["detail"].as_str().expect("a text");
        why.says(hint);
    }
    let after = slow.inspect(&[]);
    for field in ["waiting", "limits", "suspended_until_ms"] {
        let without_times = |value: &Value| {
            let mut value = value[field].clone();
            if let Some(limits) = value.as_array_mut() {
                for limit in limits {
                    limit["next_in_ms"] = Value::Null;
                }
            }
            value
        };
        assert_eq!(without_times(&before), without_times(&after), "{field}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_shows_the_position_and_start_of_each_job() {
    let slow = SlowWorker::start().await;
    let explain = |id: &str| slow.runs(&["explain", "--tenant", "acme", "--id", id, "--json"]);
    let called: BTreeSet<String> = slow.api.calls().into_iter().map(|call| call.job).collect();
    let ids = (0..21).map(|number| format!("acme-{number}"));
    let (called, waiting): (Vec<String>, Vec<String>) = ids.partition(|id| called.contains(id));
    let mut places = Vec::new();
    for id in &waiting {
        let mut explained = Value::Null;
        // A job that has just been delivered waits for nothing yet.
        until("its wait", || {
            explained = explain(id).exited(0).json();
            explained["waits_for"][0]["what"] == "limit"
        })
        .await;
        // They are in the windows of delay queues.
        assert_eq!(
            (&explained["waiting"], &explained["sure"]),
            (&16.into(), &"estimated".into()),
            "{explained}"
        );
        let place = explained["place"].as_u64().expect("a place");
        let turn = place.div_ceil(5) as f64;
        assert!(
            (hours(&explained["starts_in_ms"]) - turn).abs() < 0.1,
            "{explained}"
        );
        let (starts, promised) = (&explained["starts_at_ms"], &explained["promised_at_ms"]);
        let apart = starts.as_i64().expect("ms") - promised.as_i64().expect("ms");
        // A job that starts a little late delays those behind it.
        assert!(apart.abs() < 60_000, "{explained}");
        places.push(place);
    }
    places.sort_unstable();
    assert_eq!(places, (1..=16).collect::<Vec<u64>>());
    let gone = [
        "explain", "--tenant", "acme", "--id", &called[0], "--wait", "1s", "--json",
    ];
    let explained = slow.runs(&gone).exited(1).json();
    assert_eq!(
        (&explained["sure"], &explained["place"]),
        (&"unknown".into(), &Value::Null)
    );
    // An operator pauses the tenant, which postpones all starts.
    slow.runs(&["tenant", "pause", "acme", "--for", "10h"])
        .exited(0);
    let id = &waiting[0];
    let explained = explain(id).exited(0).json();
    let causes: Vec<&str> = (explained["waits_for"].as_array().expect("a list").iter())
        .map(|cause| cause["what"].as_str().expect("a text"))
        .collect();
    assert_eq!(causes, ["suspended", "limit"]);
    assert!(hours(&explained["starts_in_ms"]) > 9.9, "{explained}");
    let text = slow
        .runs(&["explain", "--tenant", "acme", "--id", id])
        .exited(0)
        .out;
    for words in [
        "waits in a worker's memory",
        "an operator (tenant pause)",
        "place ",
        "starts ",
        "sure      estimated",
    ] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
    let path = format!("/tenants/acme/jobs/{id}/explanation?wait=5s");
    let answer = Port::of(&slow.worker).await.get(&path).await.is(200);
    assert_eq!(answer["place"], explained["place"]);
    let nobody = [
        "explain", "--tenant", "acme", "--id", "none", "--wait", "1s",
    ];
    let nobody = slow.runs(&nobody).exited(1).err;
    for words in [
        "no worker has job none of acme in memory",
        "has no dead letters",
    ] {
        assert!(nobody.contains(words), "{words} is not in {nobody}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_shows_why_a_job_died_and_how_to_replay_it() {
    let slow = SlowWorker::start().await;
    let client = client(&slow.yaml).await;
    let letters = [
        ("o-7", "other", "the API answered 500"),
        ("o-7", "acme", "the API answered 422"),
        ("o 8", "acme", "expired"),
    ];
    bury(&client, &letters).await;
    let args = |id: &'static str| ["explain", "--tenant", "acme", "--id", id];
    let text = slow.runs(&args("o-7")).exited(0).out;
    for words in [
        "job o-7 of acme is a dead letter in ",
        "why       the API answered 422\n",
        "since     ",
        "look      sluicegate dead show --tenant=acme o-7\n",
        "replay    sluicegate dead replay --tenant=acme --id=o-7\n",
    ] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
    // Letters that a command has read return to the queue a moment later.
    buried(&client, 3).await;
    let text = slow.runs(&args("o 8")).exited(0).out;
    text.says("--id='o 8'\n");
    let json = [&args("o-7")[..], &["--json"]].concat();
    buried(&client, 3).await;
    let explained = slow.runs(&json).exited(0).json();
    assert_eq!(
        (&explained["dead_letter"]["reason"], &explained["seen"]),
        (&"the API answered 422".into(), &Value::Null),
        "{explained}"
    );
    assert_ne!(explained["now_ms"], 0, "{explained}");
    buried(&client, 3).await;
    let none = slow
        .runs(&[&args("none")[..], &["--wait", "1s"]].concat())
        .exited(1);
    let vain = " (3 dead letters, all read)";
    assert!(none.err.contains(vain), "{none:?}");
    buried(&client, 3).await;
    let path = "/tenants/acme/jobs/o-7/explanation?wait=1s";
    let answer = Port::of(&slow.worker).await.get(path).await.is(200);
    assert_eq!(answer["dead_letter"]["reason"], "the API answered 422");
    // A canceled job is reported by its worker and by its dead letter.
    let waiting = (0..21).map(|number| format!("acme-{number}"));
    let called: BTreeSet<String> = slow.api.calls().into_iter().map(|call| call.job).collect();
    let id = waiting.into_iter().find(|id| !called.contains(id));
    let id = id.expect("sixteen wait");
    let cancel = ["job", "cancel", "--tenant", "acme", "--id", &id];
    slow.runs(&[&cancel[..], &["--wait", "60s"]].concat())
        .exited(0);
    buried(&client, 4).await;
    let text = slow.runs(&["explain", "--tenant", "acme", "--id", &id]);
    let text = text.exited(0).out;
    for words in [
        "was canceled: it is a dead letter",
        "why       canceled by an operator\n",
    ] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
    // The command from the output works: a worker has the job again.
    let replay = ["dead", "replay", "--tenant=acme", "--id=o-7"];
    buried(&client, 4).await;
    client.close().await;
    slow.runs(&replay).exited(0);
    let json = [&args("o-7")[..], &["--wait", "1m", "--json"]].concat();
    let explained = slow.runs(&json).exited(0).json();
    assert_eq!(explained["dead_letter"], Value::Null, "{explained}");
    assert_ne!(explained["seen"], Value::Null, "{explained}");
}

/// A search for one job is short, however long the queue is, since each message read costs a
/// delivery.
#[tokio::test(flavor = "multi_thread")]
async fn explain_leaves_a_long_dead_letter_queue_intact() {
    let slow = SlowWorker::start().await;
    let client = client(&slow.yaml).await;
    let ids: Vec<String> = (0..1_200).map(|number| format!("o-{number}")).collect();
    let letters: Vec<_> = ids.iter().map(|id| (id.as_str(), "acme", "no")).collect();
    bury(&client, &letters).await;
    client.close().await;
    let last = [
        "explain", "--tenant", "acme", "--id", "o-1199", "--wait", "1s", "--json",
    ];
    let explained = slow.runs(&last).exited(1).json();
    assert_eq!(explained["dead_letter"], Value::Null);
    let look = |name: &str| explained["dead_letters"][name].as_u64().expect("a number");
    // It also ends after five seconds.
    assert!(look("looked_at") <= 1_000, "{explained}");
    assert_eq!(
        look("looked_at") + look("not_looked_at"),
        1_200,
        "{explained}"
    );
}
