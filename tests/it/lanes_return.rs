//! RabbitMQ with its own settings ends while thousands of jobs wait in lanes, and comes back: none of them stands still.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lapin::BasicProperties;
use sluicegate::broker::amqp::Client;
use sluicegate::broker::{Message, Outgoing};
use sluicegate::handler::{Handler, Outcome, Permit};
use sluicegate::rules::headers::HeaderValue;
use sluicegate::rules::job::Job;
use sluicegate::rules::lanes::Ladder;
use tokio::task::block_in_place;

use crate::broker_faults::ONE_SERVER;
use crate::cli_servers::config;
use crate::running::Running;
use crate::servers::{Rabbit, Redis, unique};

const TENANTS: usize = 10;
const JOBS: usize = 3_000;
/// All of them together may start so many a second.
const RATE: usize = 200;
/// RabbitMQ's own pause before it looks again at what a lane has sent to nobody is three minutes. Without one, half of that is enough
/// for everything on the slowest machine.
const BOUND: Duration = Duration::from_secs(90);

/// When each job was called first.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<HashMap<String, Instant>>>);

impl Handler for Calls {
    async fn handle(&self, job: &Job, _: Permit) -> Outcome {
        let mut calls = self.0.lock().expect("no panic");
        calls.entry(job.id.clone()).or_insert_with(Instant::now);
        Outcome::Done
    }
}

impl Calls {
    async fn reach(&self, count: usize, bound: Duration) {
        let begun = Instant::now();
        while self.0.lock().expect("no panic").len() < count {
            let there = self.0.lock().expect("no panic").len();
            assert!(begun.elapsed() < bound, "{there} of {count} jobs");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// How long after `since` as many had started in one second as usual.
    fn back_after(&self, since: Instant) -> Option<Duration> {
        let calls = self.0.lock().expect("no panic");
        let seconds = (0..BOUND.as_secs()).map(Duration::from_secs);
        let usual = |from: &Duration| {
            let in_it = |at: &&Instant| {
                (*from..*from + Duration::from_secs(1)).contains(&at.duration_since(since))
            };
            let later = calls.values().filter(|at| **at >= since);
            later.filter(in_it).count() * 10 >= RATE * 8
        };
        seconds.into_iter().find(usual)
    }
}

async fn comes_back(what: &str, end: fn(&Rabbit)) {
    let _alone = ONE_SERVER.lock().await;
    let (rabbit, redis) = block_in_place(|| (Rabbit::start(), Redis::start()));
    let queue = unique("return");
    let yaml = format!(
        "amqp: {{url: '{}', queue: '{queue}'}}\n\
         redis: {{url: '{}', prefix: '{queue}'}}\n\
         rate-limiter: {{max-requests: {}, window-size: 1s}}\n",
        rabbit.url(),
        redis.url(),
        RATE / TENANTS,
    );
    let parsed = config(&yaml);
    let ladder = Ladder::new(parsed.delay.max_delay);
    let client = Client::connect(&parsed.amqp, &ladder)
        .await
        .expect("it is up");
    let job = |number: usize| {
        let id = number.to_string();
        let message = Message {
            routing_key: String::new(),
            properties: BasicProperties::default().with_message_id(id.into()),
            body: "{}".into(),
        };
        let tenant = HeaderValue::Text(format!("t{}", number % TENANTS));
        Outgoing {
            queue: client.names().fresh.clone(),
            message: message.with_headers(&[("x-tenant", tenant)], &[]),
        }
    };
    let jobs: Vec<_> = (0..JOBS).map(job).collect();
    for batch in jobs.chunks(500) {
        let answers = client.publish(batch).await.expect("it is up");
        assert!(answers.iter().all(Result::is_ok));
    }
    client.close().await;
    let calls = Calls::default();
    let workers = [(); 2].map(|()| Running::configured(&yaml, calls.clone()));
    calls.reach(JOBS / 10, BOUND).await;
    let lost_at = Instant::now();
    block_in_place(|| {
        end(&rabbit);
        rabbit.restart();
    });
    let (back_at, away) = (Instant::now(), lost_at.elapsed());
    calls.reach(JOBS, BOUND).await;
    let all = back_at.elapsed();
    let usual = calls.back_after(back_at);
    println!(
        "{what}: away for {away:.1?}; the usual rate after {usual:?}; all done after {all:.1?}"
    );
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_job_stands_still_after_a_kill() {
    comes_back("killed", Rabbit::kill).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_job_stands_still_after_a_restart_in_good_order() {
    comes_back("restarted", Rabbit::stop).await;
}
