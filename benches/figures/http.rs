//! Jobs that the gate never denies, with real calls: the cost of an idle gate.

use std::time::Duration;

use kit::process::Process;

use crate::bed::{Bed, Limit, check_calls, makespan};
use crate::counts::{self, Work};
use crate::loops;
use crate::report::Report;
use crate::steps::Steps;
use crate::{Size, rate};

/// The number of jobs and their tenants.
pub struct Load {
    workload: &'static str,
    size: Size,
    jobs: usize,
    tenants: usize,
    algorithms: &'static [&'static str],
    /// Maximum number of Redis commands per job in the short form, with a wide margin.
    max_commands: f64,
}

/// Maximum number of deliveries per job in the short form: one, plus redeliveries after lost
/// sessions.
const MAX_DELIVERIES: f64 = 1.05;

/// A limit high enough that no job is denied.
const PLENTY: usize = 1_000_000;

impl Load {
    /// Returns jobs of a hundred tenants in turn.
    pub fn http(size: Size) -> Self {
        Self {
            workload: "http",
            size,
            max_commands: 20.0,
            jobs: size.of(100_000, 1_000),
            tenants: 100,
            algorithms: &["sliding-window-algo", "fixed-window-algo"],
        }
    }

    /// Returns jobs of a thousand tenants in turn, so that each has one job at a time.
    pub fn turns(size: Size) -> Self {
        Self {
            workload: "turns",
            jobs: size.of(20_000, 1_000),
            max_commands: 25.0,
            tenants: 1000,
            algorithms: &["sliding-window-algo"],
            ..Self::http(size)
        }
    }

    /// Runs the loop and a worker of each algorithm in turns.
    pub async fn run(&self, rounds: usize, report: &mut Report) {
        let turns = rounds * (1 + self.algorithms.len());
        let steps = Steps::new(self.workload, turns);
        for round in 0..rounds {
            steps.begin(round, "the bare loop");
            let floor = self.floor(report).await;
            steps.end();
            for algorithm in self.algorithms {
                steps.begin(round, algorithm);
                self.worker(algorithm, &floor, report).await;
                steps.end();
            }
        }
    }

    async fn bed(&self) -> Bed {
        Bed::preloaded(self.jobs, |n| format!("tenant-{}", n % self.tenants)).await
    }

    async fn floor(&self, report: &mut Report) -> Floor {
        let who = "bare loop";
        let bed = self.bed().await;
        let process = loops::finish("http", &bed, self.jobs).await;
        let calls = bed.api.calls().await;
        let floor = Floor {
            rate: rate(self.jobs, makespan(&calls)),
            cpu: process.cpu(),
        };
        let mut add = |figure, value| report.add(self.workload, who, figure, value);
        add("jobs/s", floor.rate);
        add("its CPU, us per job", micros(floor.cpu, self.jobs));
        add("resident, MB", process.resident_kb() as f64 / 1e3);
        drop(process);
        let what = format!("{}, {who}", self.workload);
        check_calls(&what, self.jobs, &calls, report);
        bed.end().await;
        floor
    }

    async fn worker(&self, algorithm: &'static str, floor: &Floor, report: &mut Report) {
        let bed = self.bed().await;
        // In the short form no permit expires on a slow machine and no fixed window ends, so that
        // the counts don't depend on speed.
        let (days, guard) = match self.size {
            Size::Whole => (0, "auto"),
            Size::Short => (31, "10s"),
        };
        let limit = Limit {
            algorithm,
            max_requests: PLENTY,
            window: Duration::from_secs(60.max(days * 86_400)),
            guard,
        };
        let who = (self.workload, algorithm);
        let before = Work::read();
        let workers = [bed.worker(limit)];
        bed.api.until_called(self.jobs).await;
        bed.until_acked(&workers, self.jobs).await;
        let cpu = workers[0].cpu();
        let calls = bed.api.calls().await;
        let rate = rate(self.jobs, makespan(&calls));
        let mut add = |figure, value| report.add(self.workload, algorithm, figure, value);
        add("jobs/s", rate);
        add("jobs/s, to the loop's", rate / floor.rate);
        add("its CPU, us per job", micros(cpu, self.jobs));
        let cpus = cpu.as_secs_f64() / floor.cpu.as_secs_f64();
        add("its CPU, to the loop's", cpus);
        before.add(report, who, self.jobs);
        counts::add(report, who, &workers, self.jobs);
        limit.add_above(report, who, &calls);
        if self.size == Size::Short {
            let are_few = [
                report.at_most(who, "deliveries per job", MAX_DELIVERIES),
                report.at_most(who, "Redis's commands per job", self.max_commands),
            ];
            if are_few.contains(&false) {
                eprintln!("the worker says:\n{}", workers[0].log().join("\n"));
            }
        }
        workers.into_iter().for_each(Process::stop);
        let what = format!("{}, {algorithm}", self.workload);
        bed.check(&what, self.jobs, &calls, report).await;
        bed.end().await;
    }
}

/// The loop's figures in the same round.
struct Floor {
    rate: f64,
    cpu: Duration,
}

fn micros(cpu: Duration, jobs: usize) -> f64 {
    cpu.as_secs_f64() * 1e6 / jobs as f64
}
