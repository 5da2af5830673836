//! Jobs that nothing denies, by real calls: what the gate costs where it has nothing to do.

use std::time::Duration;

use crate::bed::{Bed, Limit, Work, above, decisions, deliveries, makespan, metric};
use crate::loops;
use crate::report::Report;
use crate::steps::Steps;
use crate::{Size, rate};

/// How many jobs, and whose.
pub struct Load {
    pub workload: &'static str,
    pub jobs: usize,
    pub tenants: usize,
    pub algorithms: &'static [&'static str],
}

/// So many that none is denied.
const PLENTY: usize = 1_000_000;

impl Load {
    /// A hundred tenants in turn.
    pub fn http(size: Size) -> Self {
        Self {
            workload: "http",
            jobs: size.of(20_000, 1_000),
            tenants: 100,
            algorithms: &["sliding-window-algo", "fixed-window-algo"],
        }
    }

    /// The loop and a worker of each algorithm, in turns.
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
        bed.check(&what, self.jobs, &calls, report).await;
        bed.end().await;
        floor
    }

    async fn worker(&self, algorithm: &'static str, floor: &Floor, report: &mut Report) {
        let bed = self.bed().await;
        let before = Work::read();
        let limit = Limit {
            algorithm,
            max_requests: PLENTY,
            window: Duration::from_secs(60),
        };
        let worker = bed.worker(limit);
        bed.api.until_called(self.jobs).await;
        let workers = [worker];
        bed.until_acked(&workers, self.jobs).await;
        let [worker] = workers;
        let work = Work::read().since(before, self.jobs);
        let calls = bed.api.calls().await;
        let (took, cpu) = (makespan(&calls), worker.cpu());
        let mut add = |figure, value| report.add(self.workload, algorithm, figure, value);
        add("jobs/s", rate(self.jobs, took));
        add("jobs/s, to the loop's", rate(self.jobs, took) / floor.rate);
        add("its CPU, us per job", micros(cpu, self.jobs));
        let cpus = cpu.as_secs_f64() / floor.cpu.as_secs_f64();
        add("its CPU, to the loop's", cpus);
        add("Redis's CPU, us per job", work.cpu_us);
        add("Redis's commands per job", work.commands);
        add("scripts per job", work.scripts);
        let each = |count: f64| count / self.jobs as f64;
        add("deliveries per job", each(deliveries(&worker)));
        let decided = ["start", "wait", "capacity"].map(|answer| decisions(&worker, answer));
        add("decisions per job", each(decided.iter().sum()));
        add("quota but no slot, per job", each(decided[2]));
        let late = metric(&worker, "sluicegate_late_admissions_total");
        add("permits that expired, per job", each(late));
        add("resident, MB", worker.resident_kb() as f64 / 1e3);
        let above = above(&calls, limit.max_requests, limit.window);
        add("calls above the limit", above as f64);
        worker.stop();
        let what = format!("{}, {algorithm}", self.workload);
        bed.check(&what, self.jobs, &calls, report).await;
        bed.end().await;
    }
}

/// What the loop did in the same round.
struct Floor {
    rate: f64,
    cpu: Duration,
}

fn micros(cpu: Duration, jobs: usize) -> f64 {
    cpu.as_secs_f64() * 1e6 / jobs as f64
}
