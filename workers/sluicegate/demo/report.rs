//! From what was observed to the figures of the promises, and their words. Pure.

use std::collections::HashSet;
use std::time::Duration;

use serde::Serialize;
use sluicegate::rules::limit::Algorithm;

use super::check::{self, Used};
use super::downstream::Arrival;
use super::plan::{Job, Plan};
use super::queues::DeadLetter;

/// Deliveries per job that P4 promises for a backlog of one tenant's jobs.
const DELIVERIES_PER_JOB: f64 = 3.1;
/// What a dead letter's headers may take: the job's own, ours, and a reason.
const HEADER_BYTES: usize = 1024;
/// Headers that RabbitMQ adds at each trip, and that must not travel on.
const BROKER_HEADERS: [&str; 4] = [
    "x-death",
    "x-delivery-count",
    "x-first-death-",
    "x-last-death-",
];

/// What happened, as the publishers, the downstream, the dead-letter queue and the workers saw it.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// Jobs that RabbitMQ confirmed.
    pub confirmed: Vec<Job>,
    /// Calls, in order.
    pub arrivals: Vec<Arrival>,
    /// Calls that named no job of the demo.
    pub strangers: usize,
    /// Dead letters.
    pub dead: Vec<DeadLetter>,
    /// Messages that were still in a queue after the workers had ended.
    pub left: usize,
    /// Deliveries that the workers got.
    pub deliveries: u64,
}

/// The figures, promise by promise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// All promises hold.
    pub holds: bool,
    /// P1
    pub never_lost: NeverLost,
    /// P2
    pub never_exceeded: NeverExceeded,
    /// P3
    pub never_idle: NeverIdle,
    /// P4
    pub cheap_waiting: CheapWaiting,
    /// P6
    pub throttling_is_not_failure: NotFailure,
    /// Each tenant's own.
    pub tenants: Vec<TenantFigures>,
}

/// P1: every confirmed job ends as done or as a dead letter.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NeverLost {
    pub holds: bool,
    pub published: usize,
    pub confirmed: usize,
    pub done: usize,
    pub dead: usize,
    /// Dead letters that the downstream did not ask for.
    pub dead_unasked: usize,
    pub lost: usize,
    /// Calls for a job that had been answered for good before.
    pub duplicates: usize,
    pub left_in_queues: usize,
}

/// P2: no window holds more than the limit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NeverExceeded {
    pub holds: bool,
    pub violations: usize,
    pub fullest_window: usize,
    pub limit: u32,
    pub answered_429: usize,
    /// Calls that named no job of the demo.
    pub strangers: usize,
}

/// P3: what the limit allows is used while jobs wait; of the worst tenant.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NeverIdle {
    pub holds: bool,
    pub used_share: f64,
    pub promised_share: f64,
    pub makespan_seconds: f64,
    /// With the guard counted as part of the window.
    pub ideal_seconds: f64,
    pub makespan_to_ideal: f64,
    /// The most that it may be.
    pub promised_ratio: f64,
}

/// P4: a waiting job is delivered a few times, however many wait.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheapWaiting {
    pub holds: bool,
    pub deliveries: u64,
    pub deliveries_per_job: f64,
    pub promised_per_job: f64,
}

/// P6: a wait uses no attempt and adds no growing header.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NotFailure {
    pub holds: bool,
    /// Calls whose `x-attempt` was not 1; the downstream never asked for a second one.
    pub attempts_used: usize,
    /// Dead letters with a header of the broker that grows by each trip.
    pub with_broker_headers: usize,
    /// The largest headers of a dead letter; each tenant's is the job that waited longest.
    pub header_bytes: usize,
}

/// One tenant's part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TenantFigures {
    pub tenant: String,
    pub confirmed: usize,
    pub done: usize,
    pub dead: usize,
    pub violations: usize,
    pub fullest_window: usize,
    pub answered_429: usize,
    pub used_share: f64,
    pub makespan_seconds: f64,
    pub ideal_seconds: f64,
}

impl TenantFigures {
    fn ratio(&self) -> f64 {
        if self.ideal_seconds == 0.0 {
            1.0
        } else {
            self.makespan_seconds / self.ideal_seconds
        }
    }
}

/// What the promise P3 says for this window.
fn promised_share(plan: &Plan) -> f64 {
    if plan.limit.window_ms() >= 10_000 {
        0.99
    } else {
        0.97
    }
}

impl Figures {
    /// Counts.
    pub fn new(plan: &Plan, observed: &Observed) -> Self {
        let dead_jobs: HashSet<usize> = observed
            .dead
            .iter()
            .filter_map(|dead| plan.job(&dead.id))
            .map(|job| plan.id(job))
            .collect();
        let tenants: Vec<_> = (0..plan.tenants)
            .map(|tenant| tenant_figures(plan, observed, &dead_jobs, tenant))
            .collect();
        let never_lost = never_lost(plan, observed, &dead_jobs);
        let never_exceeded = never_exceeded(plan, observed, &tenants);
        let never_idle = never_idle(plan, &tenants);
        let deliveries_per_job =
            observed.deliveries as f64 / observed.confirmed.len().max(1) as f64;
        let cheap_waiting = CheapWaiting {
            // Fewer deliveries than jobs would mean that the count is wrong.
            holds: (1.0..=DELIVERIES_PER_JOB).contains(&deliveries_per_job),
            deliveries: observed.deliveries,
            deliveries_per_job,
            promised_per_job: DELIVERIES_PER_JOB,
        };
        let not_failure = not_failure(observed);
        Self {
            holds: never_lost.holds
                && never_exceeded.holds
                && never_idle.holds
                && cheap_waiting.holds
                && not_failure.holds,
            never_lost,
            never_exceeded,
            never_idle,
            cheap_waiting,
            throttling_is_not_failure: not_failure,
            tenants,
        }
    }
}

fn never_lost(plan: &Plan, observed: &Observed, dead_jobs: &HashSet<usize>) -> NeverLost {
    let final_answers: Vec<usize> = observed
        .arrivals
        .iter()
        .filter(|call| call.status != 429)
        .map(|call| plan.id(call.job))
        .collect();
    let answered: HashSet<usize> = final_answers.iter().copied().collect();
    let done: HashSet<usize> = observed
        .arrivals
        .iter()
        .filter(|call| call.status == 200)
        .map(|call| plan.id(call.job))
        .collect();
    let confirmed: HashSet<usize> = observed.confirmed.iter().map(|job| plan.id(*job)).collect();
    let lost = confirmed
        .iter()
        .filter(|id| !done.contains(id) && !dead_jobs.contains(id))
        .count();
    let asked = |dead: &&DeadLetter| plan.job(&dead.id).is_some_and(|job| plan.rejected(job));
    let dead_unasked = observed.dead.len() - observed.dead.iter().filter(asked).count();
    NeverLost {
        holds: confirmed.len() == plan.total()
            && lost == 0
            && dead_unasked == 0
            && observed.left == 0,
        published: plan.total(),
        confirmed: confirmed.len(),
        done: done.len(),
        dead: dead_jobs.len(),
        dead_unasked,
        lost,
        duplicates: final_answers.len() - answered.len(),
        left_in_queues: observed.left,
    }
}

fn never_exceeded(plan: &Plan, observed: &Observed, tenants: &[TenantFigures]) -> NeverExceeded {
    let violations = tenants.iter().map(|tenant| tenant.violations).sum();
    let answered_429 = tenants.iter().map(|tenant| tenant.answered_429).sum();
    NeverExceeded {
        holds: violations == 0 && answered_429 == 0 && observed.strangers == 0,
        violations,
        fullest_window: tenants
            .iter()
            .map(|tenant| tenant.fullest_window)
            .max()
            .unwrap_or(0),
        limit: plan.limit.max(),
        answered_429,
        strangers: observed.strangers,
    }
}

fn never_idle(plan: &Plan, tenants: &[TenantFigures]) -> NeverIdle {
    let promised_share = promised_share(plan);
    let promised_ratio = 1.0 / promised_share;
    let used_share = tenants
        .iter()
        .map(|tenant| tenant.used_share)
        .fold(f64::INFINITY, f64::min);
    let slowest = tenants
        .iter()
        .max_by(|a, b| a.ratio().total_cmp(&b.ratio()));
    let makespan_to_ideal = slowest.map_or(1.0, TenantFigures::ratio);
    NeverIdle {
        holds: used_share >= promised_share && makespan_to_ideal <= promised_ratio,
        used_share,
        promised_share,
        makespan_seconds: slowest.map_or(0.0, |tenant| tenant.makespan_seconds),
        ideal_seconds: slowest.map_or(0.0, |tenant| tenant.ideal_seconds),
        makespan_to_ideal,
        promised_ratio,
    }
}

fn not_failure(observed: &Observed) -> NotFailure {
    let grows = |dead: &&DeadLetter| {
        let of_broker =
            |name: &String| BROKER_HEADERS.iter().any(|broker| name.starts_with(broker));
        dead.headers.iter().any(of_broker)
    };
    let attempts_used = observed
        .arrivals
        .iter()
        .filter(|call| call.attempt != 1)
        .count();
    let with_broker_headers = observed.dead.iter().filter(grows).count();
    let header_bytes = observed
        .dead
        .iter()
        .map(|dead| dead.header_bytes)
        .max()
        .unwrap_or(0);
    NotFailure {
        holds: attempts_used == 0 && with_broker_headers == 0 && header_bytes <= HEADER_BYTES,
        attempts_used,
        with_broker_headers,
        header_bytes,
    }
}

fn tenant_figures(
    plan: &Plan,
    observed: &Observed,
    dead_jobs: &HashSet<usize>,
    tenant: usize,
) -> TenantFigures {
    let calls: Vec<&Arrival> = observed
        .arrivals
        .iter()
        .filter(|call| call.job.tenant == tenant)
        .collect();
    let limit = plan.limit.max() as usize;
    let nanoseconds = |ms: u64| ms.saturating_mul(1_000_000);
    let (window, guard) = (
        nanoseconds(plan.limit.window_ms()),
        nanoseconds(plan.limit.guard_ms()),
    );
    let sorted = |clock: fn(&Arrival) -> u64| {
        let mut times: Vec<u64> = calls.iter().map(|call| clock(call)).collect();
        times.sort_unstable();
        times
    };
    let (times, violations, fullest_window, used, ideal): (_, _, _, Used, _) =
        match plan.limit.algorithm() {
            Algorithm::FixedWindow => {
                let times = sorted(|call| call.wall_ns);
                let violations = check::aligned_violations(&times, limit, window);
                let fullest = check::fullest_aligned(&times, window);
                let used = check::used_aligned(&times, limit, window);
                let start = times.first().copied().unwrap_or(0);
                let ideal = check::ideal_aligned(plan.jobs, limit, window, guard, start);
                (times, violations, fullest, used, ideal)
            }
            // The only other one that `--algo` takes is the sliding window.
            _ => {
                let times = sorted(|call| call.mono_ns);
                let violations = check::sliding_violations(&times, limit, window);
                let fullest = check::fullest_sliding(&times, window);
                let used = check::used_sliding(&times, limit, window + guard);
                let ideal = check::ideal_sliding(plan.jobs, limit, window + guard);
                (times, violations, fullest, used, ideal)
            }
        };
    let makespan = times
        .last()
        .zip(times.first())
        .map_or(0, |(last, first)| last - first);
    let done = calls
        .iter()
        .filter(|call| call.status == 200)
        .map(|call| plan.id(call.job));
    TenantFigures {
        tenant: Plan::tenant(tenant),
        confirmed: observed
            .confirmed
            .iter()
            .filter(|job| job.tenant == tenant)
            .count(),
        done: done.collect::<HashSet<_>>().len(),
        dead: dead_jobs
            .iter()
            .filter(|id| **id / plan.jobs == tenant)
            .count(),
        violations,
        fullest_window,
        answered_429: calls.iter().filter(|call| call.status == 429).count(),
        used_share: used.share(),
        makespan_seconds: Duration::from_nanos(makespan).as_secs_f64(),
        ideal_seconds: Duration::from_nanos(ideal).as_secs_f64(),
    }
}

#[cfg(test)]
mod tests {
    use sluicegate::rules::limit::Limit;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn plan() -> Plan {
        let (second, guard) = (Duration::from_secs(1), Duration::from_millis(50));
        let limit = Limit::new("default", Algorithm::SlidingWindow, 2, second, guard);
        Plan {
            tenants: 2,
            jobs: 5,
            limit: limit.expect("it is a limit"),
            workers: 1,
        }
    }

    /// A run in which everything holds: two calls each 1.05 s for each tenant, the last job rejected.
    fn good() -> Observed {
        let plan = plan();
        let jobs = || (0..2).flat_map(|tenant| (0..5).map(move |number| Job { tenant, number }));
        let arrival = |job: Job| {
            let at = (job.number / 2) as u64 * 1050 * SECOND / 1000;
            let status = if plan.rejected(job) { 422 } else { 200 };
            Arrival {
                job,
                attempt: 1,
                mono_ns: at,
                wall_ns: at,
                status,
            }
        };
        let dead = |job: Job| DeadLetter {
            id: plan.id(job).to_string(),
            reason: "422".into(),
            headers: vec!["x-tenant".into(), "x-sluicegate-reason".into()],
            header_bytes: 60,
        };
        Observed {
            confirmed: jobs().collect(),
            arrivals: jobs().map(arrival).collect(),
            strangers: 0,
            dead: jobs().filter(|job| plan.rejected(*job)).map(dead).collect(),
            left: 0,
            deliveries: 25,
        }
    }

    /// The promises that fail after `spoil`, as the last lines say.
    fn failing(spoil: impl FnOnce(&mut Observed)) -> Vec<String> {
        let mut observed = good();
        spoil(&mut observed);
        let figures = Figures::new(&plan(), &observed);
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
        let text = Figures::new(&plan(), &good()).to_string();
        // What P3 promises of the share, and of the ratio, which can fail alone.
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
        assert_eq!(failing(|o| o.dead[0].id = "0".into()), ["P1"]); // a dead letter nobody asked for
        assert_eq!(failing(|o| _ = o.confirmed.pop()), ["P1"]);
        assert_eq!(failing(|o| o.left = 1), ["P1"]);
        assert_eq!(failing(|o| o.arrivals[2].mono_ns -= SECOND / 10), ["P2"]); // 0.95 s after two others
        assert_eq!(failing(|o| o.arrivals[1].status = 429), ["P1", "P2"]);
        assert_eq!(failing(|o| o.strangers = 1), ["P2"]);
        assert_eq!(failing(|o| o.arrivals[4].mono_ns += SECOND), ["P3"]);
        assert_eq!(failing(|o| o.deliveries = 32), ["P4"]);
        assert_eq!(failing(|o| o.deliveries = 0), ["P4"]); // the count itself must be believable
        assert_eq!(failing(|o| o.arrivals[3].attempt = 2), ["P6"]);
        assert_eq!(
            failing(|o| o.dead[0].headers.push("x-death".into())),
            ["P6"]
        );
        assert_eq!(failing(|o| o.dead[0].header_bytes = 5000), ["P6"]);
    }

    #[test]
    fn a_job_that_ran_twice_is_counted_and_breaks_no_promise() {
        let mut observed = good();
        let again = Arrival {
            mono_ns: 9 * SECOND,
            ..observed.arrivals[0]
        };
        observed.arrivals.push(again);
        let figures = Figures::new(&plan(), &observed);
        assert_eq!(figures.never_lost.duplicates, 1);
        assert!(figures.never_lost.holds);
    }
}
