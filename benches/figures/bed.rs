//! What one turn of a figure stands on: queues and a prefix of its own, preloaded jobs, an API; and what must hold of its calls.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use kit::process::Process;
use kit::servers::{shared_rabbit, shared_redis, unique};
use trial::windows::sliding;

use crate::PROGRAM;
use crate::api::{Api, Call};
use crate::bare::Bare;
use crate::report::Report;

/// Calls at once, of a worker and of a loop.
pub const CONCURRENCY: usize = 50;
/// Unacked jobs of a queue, of a worker and of a loop.
pub const PREFETCH: u16 = 500;
/// What has been called is acked, or moved, within this.
const PATIENCE: Duration = Duration::from_secs(60);

/// Queues, jobs and an API.
pub struct Bed {
    pub queue: String,
    pub bare: Bare,
    pub api: Api,
}

/// A worker's limit.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    pub algorithm: &'static str,
    pub max_requests: usize,
    pub window: Duration,
}

impl Bed {
    /// With `jobs` in the work queue, whose ids are their numbers.
    pub async fn preloaded(jobs: usize, tenant: impl Fn(usize) -> String) -> Self {
        let bed = Self::empty().await;
        bed.bare.publish(jobs, tenant).await;
        bed
    }

    pub async fn empty() -> Self {
        let queue = unique("figures");
        Self {
            bare: Bare::connect(shared_rabbit().url(), &queue).await,
            api: Api::start().await,
            queue,
        }
    }

    pub fn amqp(&self) -> &'static str {
        shared_rabbit().url()
    }

    /// Starts a worker on it.
    pub fn worker(&self, limit: Limit) -> Process {
        let Limit {
            algorithm,
            max_requests,
            window,
        } = limit;
        PROGRAM.start(&format!(
            "amqp: {{url: '{amqp}', queue: '{queue}', prefetch: {PREFETCH}}}
redis: {{url: '{redis}', prefix: '{queue}'}}
rate-limiter: {{use-algo: {algorithm}, max-requests: {max_requests}, window-size: {window}ms}}
dispatch: {{concurrency: {CONCURRENCY}, http: {{url: '{api}'}}}}
admin: {{listen: '127.0.0.1:0'}}
",
            amqp = self.amqp(),
            redis = shared_redis().url(),
            queue = self.queue,
            window = window.as_millis(),
            api = self.api.url(),
        ))
    }

    /// Waits until no worker has a job any more, and each is done.
    pub async fn until_acked(&self, workers: &[Process], jobs: usize) {
        let begun = Instant::now();
        let is_over = || {
            let done = workers.iter().map(|worker| dispatches(worker, "done"));
            let kept = workers.iter().map(|w| metric(w, "sluicegate_in_memory"));
            done.sum::<f64>() >= jobs as f64 && kept.sum::<f64>() == 0.0
        };
        while !is_over() && begun.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What must hold when `jobs` were published, everybody is done, and the worker has ended: each was called once, and none
    /// is in a queue.
    pub async fn check(&self, what: &str, jobs: usize, calls: &[Call], report: &mut Report) {
        let mut times = HashMap::<&str, usize>::new();
        for call in calls {
            *times.entry(&call.job).or_default() += 1;
        }
        let lost = (0..jobs).filter(|n| !times.contains_key(n.to_string().as_str()));
        let (lost, again) = (lost.count(), times.values().filter(|n| **n > 1).count());
        let strange = times.len() + lost - jobs;
        let left = self.bare.ready().await;
        if (lost, again, strange, left) != (0, 0, 0, 0) {
            report.mistake(format!(
                "{what}: of {jobs} jobs {lost} were not called, {again} more than once; {strange} calls of nothing that was \
                 published; {left} messages are left in queues"
            ));
        }
    }

    /// Takes queues and keys away, so that no later turn has them beside it.
    pub async fn end(self) {
        self.bare.remove().await;
        shared_redis().ctl(&["flushall"]);
    }
}

/// The value of one series of a worker; 0 where there is none.
pub fn metric(worker: &Process, series: &str) -> f64 {
    worker.metric(series).unwrap_or(0.0)
}

/// Calls that ended so.
pub fn dispatches(worker: &Process, outcome: &str) -> f64 {
    metric(
        worker,
        &format!("sluicegate_dispatches_total{{outcome=\"{outcome}\"}}"),
    )
}

/// All deliveries to a worker.
pub fn deliveries(worker: &Process) -> f64 {
    let queues = ["fresh", "due", "recheck", "lane"].map(|queue| {
        let series = format!("sluicegate_deliveries_total{{queue=\"{queue}\"}}");
        metric(worker, &series)
    });
    queues.iter().sum()
}

/// Answers of the gate.
pub fn decisions(worker: &Process, answer: &str) -> f64 {
    metric(
        worker,
        &format!("sluicegate_decisions_total{{answer=\"{answer}\"}}"),
    )
}

/// From the first call to the last one, by the API's clock: how long starts take is another figure.
pub fn makespan(calls: &[Call]) -> Duration {
    let first = calls.iter().map(|call| call.at_ns).min();
    let last = calls.iter().map(|call| call.at_ns).max();
    Duration::from_nanos(last.unwrap_or(0) - first.unwrap_or(0))
}

/// Calls that came when their tenant's window was full already, with tolerance zero.
pub fn above(calls: &[Call], max: usize, window: Duration) -> usize {
    let mut arrivals = HashMap::<&str, Vec<(u64, u64)>>::new();
    for call in calls {
        arrivals
            .entry(&call.tenant)
            .or_default()
            .push((call.at_ns, 1));
    }
    let window = u64::try_from(window.as_nanos()).expect("no window of centuries");
    let full = arrivals.values_mut().map(|arrivals| {
        arrivals.sort_unstable();
        let counts = sliding(arrivals, window);
        counts.iter().filter(|count| **count > max as u64).count()
    });
    full.sum()
}

/// What Redis has done until now.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// Of its main thread, in microseconds.
    pub cpu_us: f64,
    /// Commands, those in scripts among them.
    pub commands: f64,
    /// Scripts that were called.
    pub scripts: f64,
}

impl Work {
    pub fn read() -> Self {
        let cpu = shared_redis().ctl(&["info", "cpu"]);
        let seconds = |name: &str| -> f64 {
            let value = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
            cpu.lines().find_map(value).expect("INFO has it")
        };
        let stats = shared_redis().ctl(&["info", "commandstats"]);
        let calls = |wanted: &dyn Fn(&str) -> bool| -> f64 {
            let of = |line: &str| -> Option<f64> {
                let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
                let number = rest.split(',').next()?;
                wanted(name).then(|| number.parse().ok())?
            };
            stats.lines().filter_map(of).sum()
        };
        Self {
            cpu_us: 1e6
                * (seconds("used_cpu_user_main_thread:") + seconds("used_cpu_sys_main_thread:")),
            commands: calls(&|name| name != "info"),
            scripts: calls(&|name| name.starts_with("eval")),
        }
    }

    /// Since `earlier`, for each job.
    pub fn since(self, earlier: Self, jobs: usize) -> Self {
        let each = |now: f64, then: f64| (now - then) / jobs as f64;
        Self {
            cpu_us: each(self.cpu_us, earlier.cpu_us),
            commands: each(self.commands, earlier.commands),
            scripts: each(self.scripts, earlier.scripts),
        }
    }
}
