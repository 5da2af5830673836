//! The promises under a user's conditions: workers as users start them, real servers with their own
//! defaults, and realistic networks and APIs. Each condition has a file; `kit` has the tools.

mod abandoned_calls;
mod answers;
mod broker_ends;
mod crashes;
mod expiry;
mod far_api;
mod far_redis;
mod known_apis;
mod late_calls;
mod mixed_plans;
mod outage;
mod tenants_hosts;
mod throttle_scope;
mod used_up;

use hyper::Version;
use kit::api::{Api, ApiBehavior, Cut, Reply};
use kit::certificates::TestCertificates;
use kit::process::DONE;
use kit::proxy::{Proxy, Transfer, Transfers};
use kit::servers::{shared_rabbit, shared_redis};
use kit::{Bed, MS, SECOND, counts, ids, job, jobs, until};

use crate::PROGRAM;

/// Tests the kit itself: a small scenario with everything at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_calls_an_https_api_over_a_bad_network() {
    let papers = TestCertificates::new();
    let mut manner = ApiBehavior::https(&papers, &["http/1.1"]);
    manner.idle = Some(300 * MS);
    let api = Api::with(manner).await;
    api.answers(|call| match (call.job.as_str(), call.attempt) {
        ("bad", _) => Reply::status(422),
        ("reset", 1) => Reply::cut(Cut::Reset),
        _ => Reply::ok().after(10 * MS),
    });
    let mut way = Transfer::between(MS, 5 * MS);
    way.late = (0.01, 20 * MS);
    let way = Transfers {
        there: way,
        back: way,
    };
    let proxy = Proxy::start(api.door.address, way, 1).await;
    let far = Transfers::round_trip(2 * MS);
    let (_redis, redis) = Proxy::before(shared_redis().url(), far, 2).await;
    let bed = Bed::on(shared_rabbit().url(), &redis);
    let trust = papers.keys(Some("ca.pem"), None);
    let url = api.url_at(proxy.door.address);
    let limits = "max-requests: 4, window-size: 1s, guard: strict";
    let yaml = bed.yaml(limits, &url, &trust) + "retry: {initial-interval: 100ms}\n";
    let all = jobs("acme", 8).chain([job("acme", "bad"), job("other", "reset")]);
    bed.publish(&yaml, all).await;
    let worker = PROGRAM.start_consuming(&yaml).await;
    until("all jobs", || worker.metric(DONE) == Some(9.0)).await;
    worker.logs(&["dead letter", "bad"]).await;
    let calls = api.calls();
    let (fullest, early) = counts::windows(&counts::times(&calls, "acme"), 4, SECOND);
    assert_eq!(early, 0, "the fullest window had {fullest}");
    assert_eq!(counts::repeated(&calls), 1, "the one that was reset");
    let connections = calls.iter().map(|call| call.connection + 1).max();
    assert!(connections <= Some(api.door.opened()));
    assert!(calls.iter().all(|call| call.headers.contains_key("host")));
    assert!(counts::at_once(&calls) <= 5);
    assert!(calls.iter().all(|call| call.version == Version::HTTP_11));
    assert!(calls.iter().all(|call| call.body == "{}"));

    // The API stands still, and then reads the buffered requests.
    let seen = api.count();
    api.stand_still(true);
    bed.publish(&yaml, [job("third", "late")]).await;
    tokio::time::sleep(300 * MS).await;
    assert_eq!(api.count(), seen);
    api.stand_still(false);
    until("the call", || api.count() == seen + 1).await;

    // The API refuses connections, and then accepts them again.
    api.door.refuse().await;
    bed.publish(&yaml, [job("fourth", "refused")]).await;
    worker.logs(&["tenant=fourth"]).await;
    api.door.take().expect("its port");
    until("the call", || api.count() == seen + 2).await;
    worker.stop();
    assert_eq!(ids(&bed.dead(&yaml).await), ["bad"]);
}
