//! The setup of one turn of a figure: its own queues and key prefix, published jobs and an API; and
//! the checks of its calls.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use config::QueueType;
use kit::process::Process;
use kit::servers::{shared_rabbit, shared_redis, unique};
use trial::windows::sliding;

use crate::PROGRAM;
use crate::api::{Api, Call};
use crate::bare::{BareConnection, PATIENCE, PREFETCH};
use crate::counts;
use crate::report::Report;

/// Concurrent calls of a worker or a loop.
pub const CONCURRENCY: usize = 50;
/// Interval at which progress is polled.
pub const POLL: Duration = Duration::from_millis(20);

/// Queues, jobs and an API.
pub struct Bed {
    pub queue: String,
    pub bare: BareConnection,
    pub api: Api,
    queue_type: QueueType,
}

/// A worker's limit.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    pub algorithm: &'static str,
    pub max_requests: usize,
    pub window: Duration,
    /// `rate-limiter.guard`
    pub guard: &'static str,
}

impl Bed {
    /// Creates a bed with `jobs` in the work queue. Their IDs are their numbers.
    pub async fn preloaded(jobs: usize, tenant: impl Fn(usize) -> String) -> Self {
        let bed = Self::empty(QueueType::Quorum).await;
        bed.bare.publish(jobs, tenant).await;
        bed
    }

    pub async fn empty(queue_type: QueueType) -> Self {
        let queue = unique("figures");
        Self {
            bare: BareConnection::connect_to(shared_rabbit().url(), &queue, queue_type).await,
            api: Api::start().await,
            queue,
            queue_type,
        }
    }

    pub fn amqp(&self) -> &'static str {
        shared_rabbit().url()
    }

    /// Starts a worker on this bed.
    pub fn worker(&self, limit: Limit) -> Process {
        let Limit {
            algorithm,
            max_requests,
            window,
            guard,
        } = limit;
        PROGRAM.start(&format!(
            "amqp: {{url: '{amqp}', queue: '{queue}', queue-type: {kind}, prefetch: {PREFETCH}}}
redis: {{url: '{redis}', prefix: '{queue}'}}
rate-limiter: {{use-algo: {algorithm}, max-requests: {max_requests}, window-size: {window}ms, guard: {guard}}}
dispatch: {{concurrency: {CONCURRENCY}, http: {{url: '{api}'}}}}
admin: {{listen: '127.0.0.1:0'}}
",
            amqp = self.amqp(),
            redis = shared_redis().url(),
            queue = self.queue,
            kind = match self.queue_type {
                QueueType::Quorum => "quorum",
                QueueType::Classic => "classic",
            },
            window = window.as_millis(),
            api = self.api.url(),
        ))
    }

    /// Waits until the workers have called all jobs and hold none any more.
    pub async fn until_acked(&self, workers: &[Process], jobs: usize) {
        let started = Instant::now();
        let is_over = || {
            let in_memory = counts::sum(workers, "sluicegate_in_memory");
            counts::done(workers) >= jobs as f64 && in_memory == 0.0
        };
        while !is_over() && started.elapsed() < PATIENCE {
            tokio::time::sleep(POLL).await;
        }
    }

    /// Checks a turn in which `jobs` were published, all were done and the workers have ended: each
    /// job was called once, and none is in a queue.
    pub async fn check(&self, what: &str, jobs: usize, calls: &[Call], report: &mut Report) {
        check_calls(what, jobs, calls, report);
        let left = left(&self.bare, 0).await;
        if left > 0 {
            report.mistake(format!("{what}: {left} messages are left in queues"));
        }
    }

    /// Deletes queues and keys, so that they don't affect later turns.
    pub async fn end(self) {
        self.bare.remove().await;
        shared_redis().ctl(&["flushall"]);
    }
}

/// Checks that each of `jobs` was called exactly once. This is the only check of a loop: if a
/// channel is closed soon after its last acks, RabbitMQ may forget some that a quorum queue was too
/// slow for.
pub fn check_calls(what: &str, jobs: usize, calls: &[Call], report: &mut Report) {
    let mut times = HashMap::<&str, usize>::new();
    for call in calls {
        *times.entry(&call.job).or_default() += 1;
    }
    let lost = (0..jobs).filter(|n| !times.contains_key(n.to_string().as_str()));
    let (lost, again) = (lost.count(), times.values().filter(|n| **n > 1).count());
    let strange = times.len() + lost - jobs;
    if (lost, again, strange) != (0, 0, 0) {
        report.mistake(format!(
            "{what}: of {jobs} jobs {lost} were not called, {again} more than once; {strange} calls of nothing that was published"
        ));
    }
}

/// Checks, when no worker holds a job any more, that each of the `published` jobs was called once
/// or is in a queue. `calls` has the job of each call.
pub async fn account<'a>(
    what: &str,
    bare: &BareConnection,
    published: usize,
    calls: impl Iterator<Item = &'a str>,
    report: &mut Report,
) {
    let calls: Vec<&str> = calls.collect();
    let called: HashSet<&str> = calls.iter().copied().collect();
    let again = calls.len() - called.len();
    let left = left(bare, published.saturating_sub(called.len())).await;
    if again > 0 || called.len() + left != published {
        report.mistake(format!(
            "{what}: of {published} jobs {} were called, {again} of them more than once, and {left} are in queues",
            called.len()
        ));
    }
}

/// Returns the number of messages in queues. It waits for `expected`, since a quorum queue takes a
/// moment to settle acks and to requeue jobs of workers that have ended.
async fn left(bare: &BareConnection, expected: usize) -> usize {
    let started = Instant::now();
    loop {
        let left = bare.ready().await as usize;
        if left == expected || started.elapsed() > PATIENCE {
            return left;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Returns the time from the first to the last call, by the API's clock. The time until the first
/// call is another figure.
pub fn makespan(calls: &[Call]) -> Duration {
    let first = calls.iter().map(|call| call.at_ns).min();
    let last = calls.iter().map(|call| call.at_ns).max();
    Duration::from_nanos(last.unwrap_or(0) - first.unwrap_or(0))
}

impl Limit {
    /// Adds the number of `calls` above their tenant's limit, with zero tolerance. A machine that
    /// pauses for longer than the guard causes some. A call that comes before half of a window has
    /// passed is a fault of the gate.
    pub fn add_above(
        self,
        report: &mut Report,
        (workload, who): (&'static str, &str),
        calls: &[Call],
    ) {
        let above = self.above(calls, self.window);
        report.add(workload, who, "calls above the limit", above as f64);
        let far = self.above(calls, self.window / 2);
        if far > 0 {
            report.mistake(format!(
                "{workload}, {who}: {far} calls came when their tenant had its {} in half of a window",
                self.max_requests
            ));
        }
    }

    fn above(self, calls: &[Call], window: Duration) -> usize {
        let mut arrivals = HashMap::<&str, Vec<(u64, u64)>>::new();
        for call in calls {
            let own = arrivals.entry(&call.tenant).or_default();
            own.push((call.at_ns, 1));
        }
        let window = u64::try_from(window.as_nanos()).expect("no window of centuries");
        let max = self.max_requests as u64;
        let full = arrivals.values_mut().map(|arrivals| {
            arrivals.sort_unstable();
            let counts = sliding(arrivals, window);
            counts.iter().filter(|count| **count > max).count()
        });
        full.sum()
    }
}
