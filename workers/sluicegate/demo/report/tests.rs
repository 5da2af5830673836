//! A good run, and each way to spoil one.

use rules::limit::Algorithm;
use serde_json::json;

use super::*;
use crate::demo::answers::words_of;
use crate::demo::ledger::RefusalReason;
use crate::demo::scenario::Scenario;

const SECOND: u64 = 1_000_000_000;

fn plan() -> Workload {
    plan_of(Scenario::Limit)
}

fn plan_of(scenario: Scenario) -> Workload {
    let (second, guard) = (Duration::from_secs(1), Duration::from_millis(50));
    let limits = scenario.limits(Algorithm::SlidingWindow, 2, second, guard);
    Workload {
        tenants: 2,
        jobs: 5,
        limits: limits.expect("limits"),
        workers: 1,
        scenario,
        pipeline: None,
    }
}

/// Returns a run in which everything holds: two calls per tenant every 1.05 s, with the last job
/// rejected.
fn good() -> DemoObservations {
    let plan = plan();
    let jobs = || (0..2).flat_map(|tenant| (0..5).map(move |number| DemoJob { tenant, number }));
    let arrival = |job: DemoJob| {
        let at = (job.number / 2) as u64 * 1050 * SECOND / 1000;
        let status = if plan.rejected(job) { 422 } else { 200 };
        Arrival {
            job,
            attempt: 1,
            mono_ns: at,
            wall_ns: at,
            status,
            refused: None,
        }
    };
    let dead = |job: DemoJob| DeadLetter {
        id: plan.id(job).to_string(),
        reason: "422".into(),
        headers: vec!["x-tenant".into(), "x-sluicegate-reason".into()],
        header_bytes: 60,
    };
    DemoObservations {
        confirmed: jobs().collect(),
        arrivals: jobs().map(arrival).collect(),
        strangers: 0,
        dead: jobs().filter(|job| plan.rejected(*job)).map(dead).collect(),
        results: jobs()
            .enumerate()
            .map(|(number, job)| {
                let rejected = plan.rejected(job);
                ReportedResult {
                    id: plan.id(job).to_string(),
                    ended: (if rejected { "dead" } else { "done" }).to_owned(),
                    status: Some(if rejected { 422 } else { 200 }),
                    body: words_of(number, "done"),
                }
            })
            .collect(),
        left: 0,
        counted: WorkerCounts {
            deliveries: 25,
            ..WorkerCounts::default()
        },
        outage: None,
        pauses: Pauses::default(),
        core_waits: CoreWaits::default(),
    }
}

fn promise(figures: DemoFigures, key: &str) -> Promise {
    let mut promises = figures.promises.into_iter();
    promises.find(|it| it.key == key).expect("it is judged")
}

/// Returns the promises that fail after `spoil`, according to the last lines.
fn failing(spoil: impl FnOnce(&mut DemoObservations)) -> Vec<String> {
    failing_of(Scenario::Limit, spoil)
}

fn failing_of(scenario: Scenario, spoil: impl FnOnce(&mut DemoObservations)) -> Vec<String> {
    let mut observed = good();
    spoil(&mut observed);
    let figures = DemoFigures::new(&plan_of(scenario), &observed);
    let text = figures.to_string();
    let failed: Vec<String> = text
        .lines()
        .filter(|line| line.contains("FAIL"))
        .map(|line| line[..2].to_owned())
        .collect();
    assert_eq!(figures.holds, failed.is_empty());
    failed
}

#[test]
fn a_good_run_passes_and_its_last_lines_are_the_figures() {
    assert_eq!(failing(|_| {}), [""; 0]);
    let text = DemoFigures::new(&plan(), &good()).to_string();
    // P3's promised share, and its promised ratio, which can fail separately.
    assert!(text.contains(" % used (promised: 97 %); "), "{text}");
    assert!(text.contains(" (promised: at most 1.031)\n"), "{text}");
    let last: Vec<&str> = text.lines().rev().take(5).map(|line| &line[..2]).collect();
    assert_eq!(last, ["P6", "P4", "P3", "P2", "P1"]);
}

#[test]
fn each_broken_promise_is_found() {
    // A job that never arrived is lost, and its permit was idle.
    assert_eq!(failing(|o| _ = o.arrivals.remove(0)), ["P1", "P3"]);
    assert_eq!(failing(|o| drop(o.dead.pop())), ["P1"]); // rejected, but no dead letter
    assert_eq!(failing(|o| o.dead[0].id = "0".into()), ["P1"]); // no reason for a dead letter
    assert_eq!(failing(|o| _ = o.confirmed.pop()), ["P1"]);
    assert_eq!(failing(|o| o.left = 1), ["P1"]);
    assert_eq!(failing(|o| o.arrivals[2].mono_ns -= SECOND / 10), ["P2"]); // 0.95 s after two others
    let refused = |o: &mut DemoObservations| {
        o.arrivals[1].status = 429;
        o.arrivals[1].refused = Some(RefusalReason::Exceeded);
    };
    assert_eq!(failing(refused), ["P1", "P2"]);
    assert_eq!(failing(|o| o.strangers = 1), ["P2"]);
    assert_eq!(failing(|o| o.arrivals[4].mono_ns += SECOND), ["P3"]);
    assert_eq!(failing(|o| o.counted.deliveries = 32), ["P4"]);
    assert_eq!(failing(|o| o.counted.deliveries = 0), ["P4"]); // the count itself must be believable
    assert_eq!(failing(|o| o.arrivals[3].attempt = 2), ["P6"]);
    assert_eq!(
        failing(|o| o.dead[0].headers.push("x-death".into())),
        ["P6"]
    );
    assert_eq!(failing(|o| o.dead[0].header_bytes = 5000), ["P6"]);
}

#[test]
fn a_pause_of_the_machine_explains_what_it_can_and_no_more() {
    let paused = |ms| {
        move |o: &mut DemoObservations| {
            let last = Duration::from_nanos(o.arrivals[4].mono_ns);
            let pause = last.saturating_sub(Duration::from_millis(ms))..last;
            o.pauses = Pauses(vec![pause]);
        }
    };
    let text = |spoil: &dyn Fn(&mut DemoObservations)| {
        let mut observed = good();
        spoil(&mut observed);
        let figures = DemoFigures::new(&plan(), &observed);
        figures.to_string()
    };
    // The last call of the first tenant is 100 ms late.
    let late = |o: &mut DemoObservations| o.arrivals[4].mono_ns += SECOND / 10;
    assert_eq!(failing(late), ["P3"]);
    assert_eq!(failing(|o| (late(o), paused(20)(o)).0), ["P3"]);
    assert_eq!(failing(|o| (late(o), paused(100)(o)).0), [""; 0]);
    // A thread that waited for a core explains it, too.
    let waited = |ms: u64| {
        move |o: &mut DemoObservations| {
            let last = Duration::from_nanos(o.arrivals[4].mono_ns);
            let reading = |at, ms| (at, [((1, 1), Duration::from_millis(ms))].into());
            o.core_waits = CoreWaits(vec![reading(last / 2, 7), reading(last * 9 / 10, 7 + ms)]);
        }
    };
    assert_eq!(failing(|o| (late(o), waited(20)(o)).0), ["P3"]);
    assert_eq!(failing(|o| (late(o), waited(100)(o)).0), [""; 0]);
    // A pause after its last call does not delay it.
    let afterwards = |o: &mut DemoObservations| {
        let last = Duration::from_nanos(o.arrivals[4].mono_ns);
        o.pauses = Pauses(vec![last..last + Duration::from_secs(1)]);
    };
    assert_eq!(failing(|o| (late(o), afterwards(o)).0), ["P3"]);
    let explained = text(&|o| (late(o), paused(100)(o)).0);
    assert!(
        explained.contains("from running for 0.100 s in all, which explains it"),
        "{explained}"
    );
    let other = text(&|o| (late(o), paused(20)(o)).0);
    assert!(other.contains("which does not explain it"), "{other}");
    // Two calls come 0.95 s after two others, with a guard of 50 ms.
    let early = |o: &mut DemoObservations| o.arrivals[2].mono_ns -= SECOND / 10;
    assert_eq!(failing(|o| (early(o), paused(74)(o)).0), ["P2"]);
    assert_eq!(failing(|o| (early(o), paused(75)(o)).0), [""; 0]);
    assert_eq!(failing(|o| (early(o), waited(74)(o)).0), ["P2"]);
    assert_eq!(failing(|o| (early(o), waited(75)(o)).0), [""; 0]);
    // No pause explains a lost job.
    assert_eq!(failing(|o| (drop(o.dead.pop()), paused(900)(o)).0), ["P1"]);
}

#[test]
fn a_delay_excuses_a_call_of_a_throttled_tenant_only_by_its_length() {
    let spoiled = |closed_ms: u64, delay_ms: u64| {
        failing_of(Scenario::Throttling, |o| {
            let last = o.arrivals[4];
            o.arrivals.push(Arrival {
                job: o.arrivals[0].job,
                status: 429,
                refused: Some(RefusalReason::Closed(closed_ms * SECOND / 1000)),
                ..last
            });
            let last = Duration::from_nanos(last.mono_ns);
            let delay = last.saturating_sub(Duration::from_millis(delay_ms))..last;
            o.pauses = Pauses(vec![delay]);
        })
    };
    assert_eq!(spoiled(250, 0), [""; 0], "on its way");
    assert_eq!(spoiled(300, 74), ["P2"]);
    assert_eq!(spoiled(300, 75), [""; 0]);
    assert_eq!(spoiled(1_000, 75), ["P2"]);
}

#[test]
fn a_delay_moves_a_call_at_most_into_the_fixed_window_before() {
    let (second, guard) = (Duration::from_secs(1), Duration::from_millis(50));
    let limits = Scenario::Limit.limits(Algorithm::FixedWindow, 2, second, guard);
    let plan = Workload {
        limits: limits.expect("limits"),
        ..plan()
    };
    let is_kept = |times_ms: &[u64], delay_ms: u64| {
        let mut observed = good();
        let (first, end) = (observed.arrivals[0], Duration::from_secs(9));
        observed.arrivals.truncate(1);
        observed.arrivals.extend(times_ms.iter().map(|ms| Arrival {
            wall_ns: 10 * SECOND + ms * SECOND / 1000,
            mono_ns: 9 * SECOND,
            ..first
        }));
        observed.pauses = Pauses(vec![end - Duration::from_millis(delay_ms)..end]);
        promise(DemoFigures::new(&plan, &observed), "never_exceeded").holds
    };
    assert!(is_kept(&[990, 1_020, 1_500], 0));
    assert!(!is_kept(&[990, 1_020, 1_500, 1_600], 44));
    assert!(is_kept(&[990, 1_020, 1_500, 1_600], 46));
    assert!(!is_kept(&[980, 990, 1_020, 1_500, 1_600], 46));
    assert!(!is_kept(&[1_400, 1_500, 1_600], 75));
}

#[test]
fn a_job_that_ran_twice_is_counted_and_breaks_no_promise() {
    let mut observed = good();
    let again = Arrival {
        mono_ns: 9 * SECOND,
        ..observed.arrivals[0]
    };
    observed.arrivals.push(again);
    let lost = promise(DemoFigures::new(&plan(), &observed), "never_lost");
    assert_eq!(lost.figures["duplicates"], 1);
    assert!(lost.holds);
}

#[test]
fn each_limit_is_counted_in_its_own_unit() {
    // The good run keeps to 2 per 1 s and, with 5 calls, to 8 per 10 s.
    assert_eq!(failing_of(Scenario::Limits, |_| {}), [""; 0]);
    let plan = plan_of(Scenario::Costs);
    let figures = DemoFigures::new(&plan, &good());
    let tokens = promise(figures.clone(), "never_exceeded").figures["limits"][1].clone();
    let cost = |number| plan.cost(DemoJob { tenant: 0, number }).actual;
    let units = (cost(0) + cost(1)).max(cost(2) + cost(3));
    assert_eq!(
        tokens,
        json!({"name": "tokens", "units": units, "max": 200})
    );
    let idle = promise(figures, "never_idle").figures;
    assert!(idle["ideal_corrected_seconds"].is_f64(), "{idle}");
}

#[test]
fn a_closed_tenants_call_may_be_in_flight_but_not_start_later() {
    let closed = |ns| {
        move |o: &mut DemoObservations| {
            for tenant in [0, 5] {
                // A second call for the third job follows the first one. All later jobs wait for
                // the tenant to open.
                let mut again = o.arrivals[tenant + 2];
                again.refused = Some(RefusalReason::Closing);
                again.status = 429;
                o.arrivals.push(again);
                again.refused = Some(RefusalReason::Closed(ns));
                o.arrivals.push(again);
            }
        }
    };
    let counted = |ns| {
        let mut observed = good();
        closed(ns)(&mut observed);
        let figures = DemoFigures::new(&plan_of(Scenario::Throttling), &observed);
        promise(figures, "never_exceeded")
    };
    let of = |promise: &Promise, keys: &[&str]| -> Vec<u64> {
        let numbers = keys.iter().map(|key| promise.figures[key].as_u64());
        numbers.map(|number| number.expect("a number")).collect()
    };
    let (early, late) = (counted(250_000_000), counted(250_000_001));
    let keys = ["closings", "under_way", "while_closed", "answered_429"];
    assert_eq!(of(&early, &keys), [2, 2, 0, 0]);
    assert_eq!(of(&late, &keys[1..3]), [0, 2]);
    assert!(!late.holds);
}

#[test]
fn each_job_has_the_result_of_its_own_call() {
    let failing = |spoil: fn(&mut Vec<ReportedResult>)| {
        failing_of(Scenario::Results, |observed| spoil(&mut observed.results))
    };
    assert_eq!(failing(|_| {}), [""; 0]);
    assert_eq!(failing(|results| _ = results.pop()), ["P9"]);
    // Results of another job's call, of no call, and with another end.
    assert_eq!(
        failing(|results| results[1].body = words_of(2, "done")),
        ["P9"]
    );
    assert_eq!(failing(|results| results[1].body.clear()), ["P9"]);
    assert_eq!(failing(|results| results[1].status = Some(422)), ["P9"]);
    assert_eq!(failing(|results| results[1].ended = "dead".into()), ["P9"]);
    // One more result is a repeat, as after a crash.
    let mut observed = good();
    observed.results.push(observed.results[0].clone());
    let figures = DemoFigures::new(&plan_of(Scenario::Results), &observed);
    let answers = promise(figures, "answers_back");
    assert!(answers.holds);
    assert_eq!(
        (&answers.figures["results"], &answers.figures["again"]),
        (&json!(11), &json!(1))
    );
}
