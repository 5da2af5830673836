//! The load that hostile publishers can cause in a worker and Redis: figures for docs/EVIDENCE.md.

use kit::servers::{Rabbit, Redis, unique};
use trial::api::{ApiServer, Reply};
use trial::door::ANY_PORT;

use crate::PROGRAM;
use crate::bare::BareConnection;
use crate::report::Report;
use crate::worker::config;

/// Jobs of one tenant.
const JOBS: usize = 1_000_000;
/// Tenants at once, with two jobs each: one starts, and one waits.
const TENANTS: usize = 100_000;
/// Tenants with the longest names.
const LONG: usize = 10_000;
/// Size of the largest bodies that RabbitMQ 4 accepts by default, in bytes; their number; and the
/// worker's prefetch.
const BODY: usize = 16 << 20;
const BODIES: usize = 64;
const FEW: u16 = 8;

/// The names of the floods.
pub const NAMES: [&str; 4] = ["bodies", "names", "tenants", "jobs"];

/// Runs the floods that `is_named` selects one by one, each on its own servers.
pub async fn flood(is_named: impl Fn(&str) -> bool, report: &mut Report) {
    let small = b"x";
    let one = |n: usize| (n.to_string(), "noisy".to_owned());
    if is_named("bodies") {
        let large = vec![b'x'; BODY];
        let what = "64 bodies of 16 MiB, prefetch 8";
        run(what, (BODIES, FEW), one, &large, report).await;
    }
    if is_named("names") {
        // Two thirds of the name take three bytes each in a key.
        let long = |n: usize| {
            let name = format!("{:05}{}", n % LONG, "%:é{}*".repeat(35) + "12345");
            (name.clone(), name)
        };
        let what = "10,000 tenants of 255 bytes, two jobs each";
        run(what, (2 * LONG, 500), long, small, report).await;
    }
    if is_named("tenants") {
        let many = |n: usize| (n.to_string(), format!("tenant-{:06}", n % TENANTS));
        let what = "100,000 tenants, two jobs each";
        run(what, (2 * TENANTS, 500), many, small, report).await;
    }
    if is_named("jobs") {
        let what = "1,000,000 jobs of one tenant";
        run(what, (JOBS, 500), one, small, report).await;
    }
}

/// Publishes `count` jobs, lets a worker take them all, and reports its memory and Redis's.
async fn run(
    what: &str,
    (count, prefetch): (usize, u16),
    job: impl Fn(usize) -> (String, String),
    body: &[u8],
    report: &mut Report,
) {
    let (rabbit, redis, queue) = (Rabbit::start(), Redis::start(), unique("flood"));
    let bare = BareConnection::connect(rabbit.url(), &queue).await;
    let api = ApiServer::start(ANY_PORT, |_| async { Reply::ok() }).expect("a free port");
    let text = config(rabbit.url(), redis.url(), &queue, 1, "1h")
        .replace("prefetch: 500", &format!("prefetch: {prefetch}"))
        .replace("127.0.0.1:9/", &format!("{}/", api.door.address));
    let jobs = |n| {
        let (id, tenant) = job(n);
        (id, tenant, body)
    };
    bare.publish_jobs(count, jobs).await;
    let before = used(&redis);
    let worker = PROGRAM.start(&text);
    if !bare.until_empty().await {
        report.mistake(format!("flood: {what}: jobs are left in the work queue after 15 minutes, or for a minute without progress"));
    }
    let keys = redis.ctl(&["dbsize"]);
    println!(
        "flood: {what}: worker {} kB, at most {} kB; Redis {} keys, {} bytes",
        worker.resident_kb(),
        worker.peak_kb(),
        keys,
        used(&redis).saturating_sub(before),
    );
    drop(worker);
}

/// Returns `used_memory` in bytes.
fn used(redis: &Redis) -> u64 {
    let info = redis.ctl(&["info", "memory"]);
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    let number = line.and_then(|line| line.trim().parse().ok());
    number.expect("INFO names used_memory")
}
