//! Jobs that expire, behind a limit that makes them wait for longer.

use std::time::{SystemTime, UNIX_EPOCH};

use broker::Message;
use kit::api::Api;
use kit::{Bed, job, jobs, until};
use rules::headers::HeaderValue;
use rules::job::Field;

use crate::PROGRAM;

/// Jobs of each tenant, and the time (ms) after which they expire. The limit admits 10 at once, 10
/// more after 6 s, and no more before the others expire.
const JOBS: usize = 50;
const LASTS_MS: u64 = 9_000;

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(since.expect("after 1970").as_millis()).expect("in range")
}

fn expiring(mut job: Message) -> Message {
    let properties = job.properties.clone();
    job.properties = properties.with_expiration(LASTS_MS.to_string().into());
    job
}

#[tokio::test(flavor = "multi_thread")]
async fn no_job_is_called_after_its_expiry_and_none_is_lost() {
    let api = Api::start().await;
    let bed = Bed::shared();
    let limits = "max-requests: 10, window-size: 6s";
    let yaml = bed.yaml(limits, &api.url(), "") + "job: {deadline: 'header:x-deadline'}\n";
    let worker = PROGRAM.start(&yaml);
    bed.publish(&yaml, [job("first", "first")]).await;
    until("the first call", || api.count() == 1).await;

    // The three ways in which a publisher can set it: a duration, a duration since RabbitMQ
    // received the job, or a time.
    let with = |job: Message, name, ms| job.with_headers(&[(name, HeaderValue::Int(ms))], &[]);
    let now = now_ms();
    let lasts = jobs("lasts", JOBS).map(expiring);
    let dated = jobs("dated", JOBS).map(|job| with(expiring(job), "timestamp_in_ms", now));
    let ends = now + LASTS_MS.cast_signed();
    let until_then = jobs("until", JOBS).map(|job| with(job, "x-deadline", ends));
    // The last jobs of the last tenant never expire, and wait behind jobs that do.
    let patient = jobs("lasts", JOBS + 10).skip(JOBS);
    let all = lasts.chain(dated).chain(until_then).chain(patient);
    bed.publish(&yaml, all).await;

    let dead = || worker.metric("sluicegate_dead_letters_total{reason=\"expired\"}");
    let ended = || api.count() + dead().unwrap_or_default() as usize == 3 * JOBS + 11;
    until("the end of each job", ended).await;
    worker.stop();
    let calls = api.calls();
    let letters = bed.dead(&yaml).await;
    // How long the last tenant's jobs are called depends on when a worker first saw each, so their
    // number has no sharper bound.
    for (tenant, max) in [("dated", 20), ("until", 20), ("lasts", JOBS + 10)] {
        let called = calls.iter().filter(|call| call.tenant == tenant).count();
        let of = |letter: &&Message| letter.header("x-tenant") == Field::Text(tenant);
        let expired = letters.iter().filter(of).count();
        // At most 20 jobs of a tenant start within 9 s, however slow the machine is.
        assert!(
            called <= max,
            "{tenant}: {called} called, {expired} expired"
        );
        let jobs = if tenant == "lasts" { JOBS + 10 } else { JOBS };
        assert_eq!(called + expired, jobs, "{tenant}");
    }
    for letter in &letters {
        let Field::Text(reason) = letter.header("x-sluicegate-reason") else {
            panic!("a reason: {letter:?}");
        };
        assert!(reason.starts_with("expired: "), "{reason}");
        assert_eq!(letter.properties.expiration(), &None, "it stays there");
        if letter.header("x-tenant") != Field::Text("until") {
            let expiration = letter.header("x-sluicegate-expiration");
            assert_eq!(expiration, Field::Text("9000"));
        }
    }
    let mut ids: Vec<&str> = calls.iter().map(|call| call.job.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), calls.len(), "each at most once");
    for job in jobs("lasts", JOBS + 10).skip(JOBS) {
        let id = job.id().expect("an id").to_owned();
        assert!(ids.contains(&id.as_str()), "{id} may wait for ever");
    }
}
