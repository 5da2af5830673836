//! The work that workers and Redis report, as figures per job.

use kit::process::{self, Process};
use kit::servers::{shared_rabbit, shared_redis};
use kit::usage::Usage;

use crate::report::Report;

/// Returns the value of `series` in metrics. A worker has each series from its start.
pub fn value(metrics: &str, series: &str) -> f64 {
    process::value(metrics, series).unwrap_or_else(|| panic!("there is no series {series}"))
}

/// Returns the sum of one series over all `workers`. A worker that does not answer yet counts as 0.
pub fn sum(workers: &[Process], series: &str) -> f64 {
    let metrics = workers.iter().filter_map(|worker| worker.get("/metrics"));
    metrics.map(|metrics| value(&metrics, series)).sum()
}

/// Returns the number of successful calls.
pub fn done(workers: &[Process]) -> f64 {
    sum(workers, "sluicegate_dispatches_total{outcome=\"done\"}")
}

/// Returns the number of all deliveries, given the value of a series.
pub fn deliveries(of: impl Fn(&str) -> f64) -> f64 {
    let queue = |queue| of(&format!("sluicegate_deliveries_total{{queue=\"{queue}\"}}"));
    ["new", "due", "recheck", "delay"].map(queue).iter().sum()
}

/// Returns the number of jobs that are being republished or decided on: unacked, but neither
/// waiting nor called. It takes the value of a series.
pub fn moving(of: impl Fn(&str) -> f64) -> f64 {
    of("sluicegate_in_memory")
        - of("sluicegate_delayed_in_memory")
        - of("sluicegate_calls_in_flight")
}

/// The number of each of the gate's decisions.
#[derive(Debug, Clone, Copy)]
pub struct Decisions {
    pub start: f64,
    pub wait: f64,
    /// Jobs with quota but without a worker slot.
    pub capacity: f64,
}

impl Decisions {
    pub fn read(workers: &[Process]) -> Self {
        let of = |answer: &str| {
            let series = format!("sluicegate_decisions_total{{answer=\"{answer}\"}}");
            sum(workers, &series)
        };
        Self {
            start: of("start"),
            wait: of("wait"),
            capacity: of("capacity"),
        }
    }

    pub fn all(self) -> f64 {
        self.start + self.wait + self.capacity
    }
}

/// Adds the workers' figures per job, for `jobs` jobs.
pub fn add(
    report: &mut Report,
    (workload, who): (&'static str, &str),
    workers: &[Process],
    jobs: usize,
) {
    let mut each = |figure, count: f64| report.add(workload, who, figure, count / jobs as f64);
    let all = deliveries(|series| sum(workers, series));
    each("deliveries per job", all);
    let decisions = Decisions::read(workers);
    each("decisions per job", decisions.all());
    each("quota but no slot, per job", decisions.capacity);
    let expired = sum(workers, "sluicegate_expired_permits_total");
    each("permits that expired, per job", expired);
    let late_calls = ["acknowledgement", "answer", "nothing"].map(|by| {
        let series = format!("sluicegate_late_calls_total{{detected_by=\"{by}\"}}");
        sum(workers, &series)
    });
    each("late calls per job", late_calls.iter().sum());
    let resident: u64 = workers.iter().map(Process::resident_kb).sum();
    report.add(workload, who, "resident, MB", resident as f64 / 1e3);
}

/// The work of RabbitMQ and Redis so far.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    rabbit_us: f64,
    cpu_us: f64,
    commands: f64,
    scripts: f64,
}

impl Work {
    pub fn read() -> Self {
        let cpu = shared_redis().ctl(&["info", "cpu"]);
        let seconds = |name: &str| -> f64 {
            let value = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
            cpu.lines().find_map(value).expect("INFO has it")
        };
        let stats = shared_redis().command_stats();
        let calls = |is_counted: &dyn Fn(&str) -> bool| -> u64 {
            let all = stats.all().into_iter();
            all.map(|(name, calls)| if is_counted(name) { calls } else { 0 })
                .sum()
        };
        Self {
            rabbit_us: Usage::of(shared_rabbit()).cpu.as_secs_f64() * 1e6,
            cpu_us: 1e6
                * (seconds("used_cpu_user_main_thread:") + seconds("used_cpu_sys_main_thread:")),
            commands: calls(&|name| name != "info") as f64,
            scripts: calls(&|name| name.starts_with("eval")) as f64,
        }
    }

    /// Adds the work since `self` was read, per job. Returns the number of Redis commands,
    /// including those in scripts.
    pub fn add(
        self,
        report: &mut Report,
        (workload, who): (&'static str, &str),
        jobs: usize,
    ) -> f64 {
        let now = Self::read();
        let jobs = jobs as f64;
        let commands = (now.commands - self.commands) / jobs;
        let mut add = |figure, value| report.add(workload, who, figure, value);
        let rabbit = (now.rabbit_us - self.rabbit_us) / jobs;
        add("RabbitMQ's CPU, us per job", rabbit);
        add("Redis's CPU, us per job", (now.cpu_us - self.cpu_us) / jobs);
        add("Redis's commands per job", commands);
        add("scripts per job", (now.scripts - self.scripts) / jobs);
        commands
    }
}
