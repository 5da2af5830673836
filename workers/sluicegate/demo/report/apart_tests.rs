//! A good run of several pipelines, and each way to spoil one.

use std::time::Duration;

use rules::limit::Algorithm;
use serde_json::json;

use super::*;

const MS: u64 = 1_000_000;
const PERIOD: u64 = 1050 * MS;

fn plans() -> Vec<Workload> {
    let (second, guard) = (Duration::from_secs(1), Duration::from_millis(50));
    let limits = Scenario::Pipelines.limits(Algorithm::SlidingWindow, 2, second, guard);
    let plan = Workload {
        tenants: 2,
        jobs: 6,
        limits: limits.expect("limits"),
        workers: 1,
        scenario: Scenario::Pipelines,
        pipeline: None,
    };
    plan.parts()
}

/// Returns the observations of a part with two calls per tenant in each of `periods`, from `from`
/// on.
fn part(plan: &Workload, from: u64, periods: impl Fn(usize) -> u64) -> DemoObservations {
    let jobs = || {
        let of_tenant = |tenant| (0..plan.jobs).map(move |number| DemoJob { tenant, number });
        (0..plan.tenants).flat_map(of_tenant)
    };
    let arrival = |job: DemoJob| {
        let mono_ns = from + periods(job.number / 2) * PERIOD;
        Arrival {
            job,
            attempt: 1,
            mono_ns,
            wall_ns: mono_ns,
            status: if plan.rejected(job) { 422 } else { 200 },
            refused: None,
        }
    };
    let mut arrivals: Vec<Arrival> = jobs().map(arrival).collect();
    arrivals.sort_by_key(|call| call.mono_ns);
    let dead = |job: DemoJob| DeadLetter {
        id: plan.id(job).to_string(),
        reason: "422".into(),
        headers: vec!["x-tenant".into()],
        header_bytes: 60,
    };
    DemoObservations {
        confirmed: jobs().collect(),
        arrivals,
        dead: jobs().filter(|job| plan.rejected(*job)).map(dead).collect(),
        counted: WorkerCounts {
            deliveries: 2 * plan.total() as u64,
            ..WorkerCounts::default()
        },
        ..DemoObservations::default()
    }
}

/// Returns a run in which everything holds. The API of `away` refuses connections from 100 ms to 3
/// s.
fn good() -> Vec<DemoObservations> {
    let plans = plans();
    let steady = part(&plans[0], 200 * MS, |period| period as u64);
    let flooded = part(&plans[1], 0, |period| period as u64);
    let mut away = part(&plans[2], 50 * MS, |period| match period {
        0 => 0,
        later => later as u64 + 3,
    });
    away.outage = Some(ApiOutage {
        from_ns: 100 * MS,
        to_ns: 3_000 * MS,
    });
    // The jobs that met the outage were tried again.
    away.counted.failed_calls = 7;
    away.counted.deliveries = 500;
    away.arrivals[4].attempt = 2;
    vec![steady, flooded, away]
}

/// Returns the promises that fail after `spoil`, each with its pipeline.
fn failing(spoil: impl FnOnce(&mut [DemoObservations])) -> Vec<String> {
    let mut observed = good();
    spoil(&mut observed);
    let together = CombinedFigures::new(&plans(), &observed);
    let mut pipeline = "";
    let mut failed = Vec::new();
    let text = together.to_string();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("pipeline ") {
            pipeline = name;
        } else if line.contains("FAIL") {
            let promise = line.split(' ').next().unwrap_or_default();
            failed.push(match promise {
                "P10" => promise.to_owned(),
                _ => format!("{pipeline} {promise}"),
            });
        }
    }
    assert_eq!(together.holds, failed.is_empty(), "{text}");
    failed
}

#[test]
fn a_good_run_passes_and_an_outage_fails_no_promise() {
    assert_eq!(failing(|_| {}), [""; 0]);
    let together = CombinedFigures::new(&plans(), &good());
    let expected = json!({
        "holds": true,
        "calls": 12,
        "beside_both": 12,
        "late": 0,
        "failed_calls": 7,
        "called_after_return": 8,
        "astray": 0,
        "restarts": 0,
    });
    assert_eq!(json!(together.pipelines_apart), expected);
    // The outage of its API costs attempts, deliveries and time.
    let away = &together.pipelines["away"];
    let judged: Vec<_> = away.promises.iter().map(|it| it.key).collect();
    assert_eq!(judged, ["never_lost", "never_exceeded"]);
    let text = together.to_string();
    assert!(
        text.lines()
            .last()
            .is_some_and(|line| line.starts_with("P10 ")),
        "{text}"
    );
}

#[test]
fn interference_with_the_steady_pipeline_is_found() {
    // Half a period of delay counts for P3. P10 counts from the end of the next period on.
    let delay = |ns| {
        move |all: &mut [DemoObservations]| {
            for call in &mut all[0].arrivals[8..] {
                call.mono_ns += ns;
            }
            // The flood and the outage last as long.
            let flood = all[1].arrivals.last_mut().expect("calls");
            flood.mono_ns += 2 * PERIOD;
            all[2].outage = Some(ApiOutage {
                from_ns: 100 * MS,
                to_ns: u64::MAX,
            });
            all[2].arrivals[11].mono_ns = u64::MAX;
        }
    };
    let only_idle = |failed: Vec<String>| {
        let own: Vec<String> = (failed.into_iter())
            .filter(|line| !line.starts_with("flooded"))
            .collect();
        own
    };
    assert_eq!(only_idle(failing(delay(PERIOD / 2))), ["steady P3"]);
    assert_eq!(only_idle(failing(delay(2 * PERIOD))), ["steady P3", "P10"]);
    // A job that is never called, and one that is called early.
    assert_eq!(
        failing(|all| _ = all[0].arrivals.remove(0))[..1],
        ["steady P1"]
    );
    assert_eq!(
        failing(|all| all[0].arrivals[4].mono_ns -= PERIOD / 2),
        ["steady P2"]
    );
    assert_eq!(failing(|all| all[0].left = 1), ["steady P1"]);
}

#[test]
fn failures_of_the_other_pipelines_are_found() {
    assert_eq!(
        failing(|all| _ = all[1].arrivals.remove(0))[..1],
        ["flooded P1"]
    );
    assert_eq!(
        failing(|all| all[1].arrivals[4].mono_ns -= PERIOD / 2),
        ["flooded P2"]
    );
    // A job that met the outage and was never called afterwards, or was given up.
    assert_eq!(failing(|all| _ = all[2].arrivals.remove(6)), ["away P1"]);
    assert_eq!(failing(|all| all[2].dead[0].id = "1".into()), ["away P1"]);
    assert_eq!(failing(|all| all[2].left = 1), ["away P1"]);
    assert_eq!(
        failing(|all| all[2].arrivals[8].mono_ns -= PERIOD / 2),
        ["away P2"]
    );
    for pipeline in 0..3 {
        assert_eq!(failing(|all| all[pipeline].counted.restarts = 1), ["P10"]);
        let astray = failing(|all| all[pipeline].strangers = 1);
        let name = ["steady", "flooded", "away"][pipeline];
        assert_eq!(astray, [format!("{name} P2"), "P10".to_owned()]);
    }
}

#[test]
fn missing_disturbances_prove_nothing() {
    assert_eq!(failing(|all| all[2].outage = None), ["P10"]);
    assert_eq!(failing(|all| all[2].counted.failed_calls = 0), ["P10"]);
    // The outage began after the first steady call, or ended before the last one.
    let outage = |from_ns, to_ns| {
        move |all: &mut [DemoObservations]| all[2].outage = Some(ApiOutage { from_ns, to_ns })
    };
    assert_eq!(failing(outage(201 * MS, 3_000 * MS)), ["P10"]);
    assert_eq!(failing(outage(100 * MS, 2_000 * MS)), ["P10"]);
    // No job had to wait for the API's return.
    assert_eq!(failing(outage(100 * MS, u64::MAX)), ["P10"]);
    // The flood was over before.
    let over = |all: &mut [DemoObservations]| all[1].arrivals.truncate(4);
    assert!(failing(over).contains(&"P10".to_owned()));
}
