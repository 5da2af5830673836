//! A worker that may start no job, since it can't agree with the others on the policies in force,
//! or since it is paused.

use std::time::{SystemTime, UNIX_EPOCH};

use kit::api::{Api, Reply};
use kit::proxy::{Proxy, Transfers, server_of};
use kit::servers::{shared_rabbit, shared_redis};
use kit::{Bed, SECOND, counts, job, jobs, until, until_async};

use crate::PROGRAM;
use crate::cli::sluicegate;

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_may_start_nothing_logs_it_and_releases_its_jobs() {
    let api = Api::start().await;
    // Some calls are in flight until the agreement has expired.
    api.answers(|call| match call.job.as_str() {
        "slow" => Reply::ok().after(9 * SECOND),
        _ => Reply::ok(),
    });
    let bed = Bed::shared();
    let yaml = bed.yaml("max-requests: 1000, window-size: 1s", &api.url(), "");
    let yaml = yaml.replace("dispatch: {", "dispatch: {concurrency: 1, ");
    let yaml = yaml.replace("'}}\nadmin", "', timeout: 60s}}\nadmin");
    let worker = PROGRAM.start(&yaml);
    bed.publish(&yaml, [job("a", "slow")]).await;
    until("the slow call", || api.count() == 1).await;
    bed.publish(&yaml, jobs("a", 5)).await;
    let client = kit::client(&yaml).await;
    let ready = async || client.depth(&client.names().fresh).await.expect("a depth");
    until_async("all are taken", async || ready().await == 0).await;
    assert!(worker.get("/readyz").is_some_and(|text| text == "ready\n"));

    // A policy that a later version might write.
    let (registry, id) = (format!("{}:%policies", bed.name), "f".repeat(40));
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("after 1970").as_millis();
    let (field, times) = (format!("{id}:times"), format!("{now}:{now}:600000"));
    shared_redis().ctl(&["HSET", &registry, &id, "{\"format\":99}", &field, &times]);
    worker.logs(&["format 99"]).await;
    let missing = || worker.get("/readyz").unwrap_or_default();
    until("not ready", || missing().contains("not agreed on")).await;
    assert_eq!(worker.metric("sluicegate_agreed"), Some(0.0));
    let rests = || worker.metric("sluicegate_rests_total");
    until("what waits is let go", || rests() == Some(1.0)).await;
    // Other workers could take them now.
    until_async("all are back", async || ready().await >= 5).await;
    assert_eq!(api.count(), 1);

    shared_redis().ctl(&["HDEL", &registry, &id, &field]);
    until("all calls", || api.count() == 6).await;
    assert_eq!(counts::repeated(&api.calls()), 0, "what ran was not let go");
    until("ready", || missing() == "ready\n").await;
    assert_eq!(worker.metric("sluicegate_agreed"), Some(1.0));
    client.close().await;
    worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_worker_shows_that_rabbitmq_is_back() {
    let (name, url) = Proxy::before(shared_rabbit().url(), Transfers::OPEN, 1).await;
    let bed = Bed::on(&url, shared_redis().url());
    let yaml = bed.yaml(
        "max-requests: 1, window-size: 1s",
        "http://127.0.0.1:9/",
        "",
    );
    let worker = PROGRAM.start(&yaml);
    let up = || worker.metric("sluicegate_up{server=\"rabbitmq\"}");
    until("a session", || up() == Some(1.0)).await;
    let nothing = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    name.lead_to(nothing.local_addr().expect("its address"));
    drop(nothing);
    name.cut();
    until("its end", || up() == Some(0.0)).await;
    let paused = tokio::task::block_in_place(|| sluicegate(&yaml, &["pause", "--all"]));
    paused.exited(0);
    name.lead_to(server_of(shared_rabbit().url()));
    until("its return", || up() == Some(1.0)).await;
    let ready = worker.get("/readyz").unwrap_or_default();
    assert!(
        ready.contains("paused") && !ready.contains("RabbitMQ"),
        "{ready}"
    );
    worker.stop();
}
