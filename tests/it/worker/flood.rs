//! Floods against the bounds of docs/GUARANTEES.md: small ones, which would exceed a bound that
//! grows with the number of waiting jobs. `cargo bench --bench figures -- flood` runs the large
//! ones.

use std::collections::HashSet;
use std::time::Duration;

use broker::Message;
use broker::amqp::Client;
use bytes::Bytes;
use kit::PATIENCE;
use kit::process::Process;
use kit::servers::{Redis, shared_rabbit, unique};

use crate::PROGRAM;
use crate::http::downstream::{AfterAnswer, Downstream};

/// Memory of a worker without jobs, in kB. A debug build has 27 MB.
const EMPTY_KB: u64 = 40 << 10;
/// Memory per call, in kB, and the number of concurrent calls.
const CALL_KB: u64 = 128;
const CALLS: u64 = 64;
/// Number of delay queues.
const LANES: u64 = 35;
/// Memory per job in the worker besides its body and headers, in kB.
const JOB_KB: u64 = 8;

const DONE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// A worker's configuration and servers.
struct Bed {
    yaml: String,
    redis: Redis,
    prefix: String,
    client: Client,
    prefetch: u64,
}

impl Bed {
    /// Creates a bed with a limit of `max` jobs per hour and tenant, and calls to `http`. With the
    /// long guard no permit expires on a busy machine. There is no breaker, so that calls continue
    /// to an API with endless answers.
    async fn new(prefetch: u64, max: u32, http: &str) -> Self {
        let (name, redis) = (unique("flood"), Redis::start());
        let yaml = format!(
            "amqp: {{url: '{}', queue: '{name}', prefetch: {prefetch}}}\n\
             redis: {{url: '{}', prefix: '{name}'}}\n\
             rate-limiter: {{max-requests: {max}, window-size: 1h, guard: 5m}}\n\
             delay: {{max-delay: 60s}}\n\
             dispatch: {{concurrency: {CALLS}, http: {{url: '{http}'}}, breaker: {{enabled: false}}}}\n\
             admin: {{listen: '127.0.0.1:0'}}\n",
            shared_rabbit().url(),
            redis.url(),
        );
        Self {
            client: kit::client(&yaml).await,
            yaml,
            redis,
            prefix: name,
            prefetch,
        }
    }

    /// Publishes jobs with these IDs and tenants, and bodies of `size` bytes.
    async fn publish(&self, jobs: impl IntoIterator<Item = (String, String)>, size: u64) {
        let body = Bytes::from(vec![b'x'; usize::try_from(size).expect("a size")]);
        let message = |(id, tenant): (String, String)| Message {
            body: body.clone(),
            ..kit::job(&tenant, id)
        };
        let jobs: Vec<Message> = jobs.into_iter().map(message).collect();
        let batch = if size > 1 << 20 { 1 } else { 256 };
        for batch in jobs.chunks(batch) {
            kit::publish(&self.client, &self.client.names().fresh, batch.to_vec()).await;
        }
    }

    /// Waits until this many jobs are in delay queues.
    async fn parked(&self, count: u32) {
        let names = self.client.names();
        let all_there = async {
            loop {
                // Includes jobs in the worker's windows.
                let list = ["list_queues", "--no-table-headers", "name", "messages"];
                let listed = tokio::task::block_in_place(|| shared_rabbit().ctl(&list));
                let in_a_delay_queue = |line: &str| {
                    let (name, messages) = line.split_once('\t')?;
                    let ours = names
                        .delays()
                        .iter()
                        .any(|delay_queue| **delay_queue == *name);
                    ours.then(|| messages.parse::<u32>().ok()).flatten()
                };
                if listed.lines().filter_map(in_a_delay_queue).sum::<u32>() >= count {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let ended = tokio::time::timeout(PATIENCE, all_there).await;
        assert!(ended.is_ok(), "{count} jobs are not in delay queues");
    }

    /// Returns the tenants' data in Redis without the marks of calls that ended in the last minute.
    fn kept(&self) -> RedisSize {
        const COUNT: &str = "local keys, bytes, lasting = 0, 0, 0
            for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
              if not key:find(':%%') and not key:find(':settled:', 1, true) then
                keys, bytes = keys + 1, bytes + redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 0)
                if redis.call('PTTL', key) < 0 then lasting = lasting + 1 end
              end
            end
            return {keys, bytes, lasting}";
        let pattern = format!("{}:*", self.prefix);
        let found = self.redis.ctl(&["eval", COUNT, "0", &pattern]);
        let mut numbers = found.lines().map(|line| line.parse().expect("a number"));
        let [keys, bytes, lasting] = std::array::from_fn(|_| numbers.next().expect("three"));
        assert_eq!(lasting, 0, "keys without an expiry, of {keys}");
        RedisSize { keys, bytes }
    }

    /// Checks that the worker never exceeded its bound.
    #[track_caller]
    fn holds(&self, worker: &Process, size: u64) {
        let (peak, bound) = (worker.peak_kb(), self.bound_kb(size));
        let now = worker.resident_kb();
        println!("flood: {now} kB, at most {peak} of {bound} kB");
        assert!(peak <= bound, "{peak} kB; {bound} kB at most");
    }

    /// Returns the maximum memory of a worker with jobs of `size` bytes, in kB: the prefetch of all
    /// its consumers, and copies of jobs in flight to a delay queue.
    fn bound_kb(&self, size: u64) -> u64 {
        let share = (self.prefetch / 8).max(1);
        let window = share + CALLS.min(self.prefetch);
        let jobs = 2 * self.prefetch + share + LANES * window;
        EMPTY_KB + CALLS * CALL_KB + jobs * (JOB_KB + size.div_ceil(1024)) + copies_kb(size)
    }
}

/// The number of keys and their bytes in Redis.
#[derive(Debug)]
struct RedisSize {
    keys: u64,
    bytes: u64,
}

/// Returns the copies of two publishing channels: a batch of 4 MiB and one message each, twice in
/// the client's buffers.
fn copies_kb(size: u64) -> u64 {
    4 * ((4 << 10) + size.div_ceil(1024))
}

/// Waits for this many calls.
async fn calls(downstream: &Downstream, count: usize) {
    let all_there = || downstream.requests().len() >= count;
    kit::until(&format!("{count} calls"), all_there).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_waits_only_in_rabbitmq() {
    const SIZE: u64 = 32 << 10;
    const JOBS: u32 = 3_000;
    // One job starts, and the others wait.
    let downstream = Downstream::answering(DONE, AfterAnswer::Keep).await;
    let bed = Bed::new(100, 1, &format!("http://{}/", downstream.addr)).await;
    let worker = PROGRAM.start(&bed.yaml);
    let job = |n: u32| (n.to_string(), "noisy".to_owned());
    bed.publish((0..JOBS).map(job), SIZE).await;
    bed.parked(JOBS - 1).await;
    let size = bed.kept();
    println!("flood: {JOBS} jobs of {SIZE} bytes wait: {size:?}");
    // The waitlist, the log, and the HASH next to the log.
    assert!(size.keys <= 3 && size.bytes <= 1_024, "{size:?}");
    bed.holds(&worker, SIZE);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_tenants_with_long_names_use_at_most_the_documented_memory() {
    const TENANTS: u64 = 1_000;
    let downstream = Downstream::answering(DONE, AfterAnswer::Keep).await;
    let bed = Bed::new(100, 1, &format!("http://{}/", downstream.addr)).await;
    let worker = PROGRAM.start(&bed.yaml);
    // 255 bytes, most of which become three in a key.
    let name = |n: u64| format!("{n:05}{}", "%:é{}*".repeat(35) + "12345");
    let jobs = (0..TENANTS).map(|n| (name(n), name(n)));
    assert!(jobs.clone().all(|(id, _)| id.len() == 255));
    bed.publish(jobs, 10).await;
    calls(&downstream, TENANTS as usize).await;
    let sent: HashSet<String> = (downstream.requests().iter())
        .map(|request| {
            let [id, tenant] = ["x-job-id", "x-tenant"].map(|name| {
                let value = request.header(name).expect("it is sent");
                let text = percent_encoding::percent_decode(value).decode_utf8();
                text.expect("UTF-8").into_owned()
            });
            assert_eq!(id, tenant);
            id
        })
        .collect();
    assert_eq!(sent, (0..TENANTS).map(name).collect());
    let size = bed.kept();
    println!("flood: {TENANTS} tenants of 255 bytes: {size:?}");
    // Two keys of up to 765 bytes plus the prefix.
    assert!(
        size.keys <= 2 * TENANTS && size.bytes <= 2_560 * TENANTS,
        "{size:?}"
    );
    bed.holds(&worker, 1_024);
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_answers_use_at_most_the_documented_memory() {
    const JOBS: usize = 200;
    for (start, piece) in [
        ("HTTP/1.1 200 OK\r\n", "a: b\r\n"),
        ("HTTP/1.1 200 OK\r\n\r\n", "x"),
    ] {
        let downstream = Downstream::answering(start, AfterAnswer::Endless(piece)).await;
        let bed = Bed::new(100, 1_000, &format!("http://{}/", downstream.addr)).await;
        let worker = PROGRAM.start(&bed.yaml);
        let job = |n: usize| (n.to_string(), format!("tenant-{}", n % 4));
        bed.publish((0..JOBS).map(job), 10).await;
        calls(&downstream, JOBS).await;
        bed.holds(&worker, 1_024);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_prefetch_bounds_the_memory_of_large_bodies() {
    const SIZE: u64 = 16 << 20;
    const JOBS: u32 = 16;
    // One job starts, and the others wait.
    let downstream = Downstream::answering(DONE, AfterAnswer::Keep).await;
    let bed = Bed::new(1, 1, &format!("http://{}/", downstream.addr)).await;
    let worker = PROGRAM.start(&bed.yaml);
    let job = |n: u32| (n.to_string(), "large".to_owned());
    bed.publish((0..JOBS).map(job), SIZE).await;
    bed.parked(JOBS - 1).await;
    bed.holds(&worker, SIZE);
}
