//! A single RabbitMQ node with its own settings restarts while thousands of jobs wait in delay
//! queues. No job may get stuck.

use std::time::Duration;

use kit::api::Api;
use kit::process::Process;
use kit::servers::{Rabbit, shared_redis};
use kit::{Bed, MS, SECOND, counts, jobs};
use tokio::task::block_in_place;
use tokio::time::Instant;

use crate::PROGRAM;

const TENANTS: usize = 10;
const JOBS: usize = 3_000;
/// Limit of each tenant, in jobs per second; all jobs together take 15 s.
const RATE: usize = 20;
/// Delay queues that kept the time themselves stood still for three minutes: RabbitMQ's own pause
/// before it retries a message that it could not forward. Half of that must not pass without a
/// call, however slow the machine is.
const BOUND: Duration = Duration::from_secs(90);

/// Waits until `count` jobs were called. Jobs that were in flight may be called twice.
async fn reach(api: &Api, count: usize) {
    let (mut there, mut since) = (0, Instant::now());
    while there < count {
        let calls = api.calls();
        let now = calls.len() - counts::repeated(&calls);
        if now > there {
            (there, since) = (now, Instant::now());
        }
        assert!(since.elapsed() < BOUND, "{there} of {count} jobs");
        tokio::time::sleep(200 * MS).await;
    }
}

/// Returns how long after `since` the calls of one second first came to four fifths of the limits.
fn back_after(api: &Api, since: Instant) -> Option<Duration> {
    let mut times: Vec<Instant> = api.calls().iter().map(|call| call.at).collect();
    times.retain(|at| *at >= since);
    let usual = |from: &Instant| {
        let in_it = |at: &&Instant| (*from..*from + SECOND).contains(*at);
        times.iter().filter(in_it).count() * 5 >= TENANTS * RATE * 4
    };
    times.iter().find(|from| usual(from)).map(|at| *at - since)
}

async fn comes_back(what: &str, end: fn(&Rabbit)) {
    let rabbit = block_in_place(Rabbit::start);
    let api = Api::start().await;
    let bed = Bed::on(rabbit.url(), shared_redis().url());
    let limits = format!("max-requests: {RATE}, window-size: 1s");
    let yaml = bed.yaml(&limits, &api.url(), "");
    for tenant in 0..TENANTS {
        let tenant = format!("t{tenant}");
        bed.publish(&yaml, jobs(&tenant, JOBS / TENANTS)).await;
    }
    let workers = [(); 2].map(|()| PROGRAM.start(&yaml));
    reach(&api, JOBS / 10).await;
    block_in_place(|| {
        end(&rabbit);
        rabbit.restart();
    });
    let back = Instant::now();
    reach(&api, JOBS).await;
    let (usual, all) = (back_after(&api, back), back.elapsed());
    println!(
        "{what}: the usual rate {usual:.1?} after RabbitMQ was back, all called after {all:.1?}"
    );
    workers.into_iter().for_each(Process::stop);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_job_is_stuck_after_a_kill() {
    comes_back("killed", |rabbit| rabbit.kill()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_job_is_stuck_after_an_orderly_restart() {
    comes_back("restarted", |rabbit| rabbit.stop()).await;
}
