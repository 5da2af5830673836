//! Each tenant's calls go to a host of its own. A proxy stands for the name server.

use std::net::SocketAddr;

use kit::api::Api;
use kit::connect::ConnectProxy;
use kit::process::DONE;
use kit::{Bed, jobs, until};

use crate::PROGRAM;

/// Twenty tenants have hosts without an API, and fail for long before others have jobs. Names that
/// could lead elsewhere become dead letters.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_without_an_api_stop_no_other_tenant() {
    let api = Api::start().await;
    let address = api.door.address;
    let route = move |target: &str| (!target.starts_with("gone")).then_some(address);
    let names = ConnectProxy::leading(None, route).await;
    let bed = Bed::shared();
    let proxy = format!(", proxy: 'http://{}'", names.door.address);
    let url = "http://{tenant}.example.com/orders";
    let yaml = bed.yaml("max-requests: 1000, window-size: 1s", url, &proxy)
        + "retry: {max-attempts: 100, initial-interval: 100ms, max-interval: 1s}\n";
    let worker = PROGRAM.start(&yaml);
    let gone = (0..20).flat_map(|number| jobs(&format!("gone-{number}"), 5).collect::<Vec<_>>());
    bed.publish(&yaml, gone).await;
    // Each tenant's breaker opens by its own failures.
    let opened = "sluicegate_breaker_opened_total{whose=\"tenant\"}";
    until("open breakers", || worker.metric(opened) >= Some(20.0)).await;
    let healthy = (0..8).flat_map(|number| jobs(&format!("shop-{number}"), 5).collect::<Vec<_>>());
    bed.publish(&yaml, healthy).await;
    let elsewhere = [
        "localhost#",
        "a.b",
        "evil.com/",
        "u@evil.com",
        "10.0.0.1:80",
        "-",
        "..",
    ];
    bed.publish(&yaml, elsewhere.iter().flat_map(|name| jobs(name, 1)))
        .await;
    until("all healthy jobs", || worker.metric(DONE) == Some(40.0)).await;
    let dead = "sluicegate_dead_letters_total{reason=\"bad-message\"}";
    until("dead letters", || {
        worker.metric(dead) == Some(elsewhere.len() as f64)
    })
    .await;
    assert!(api.calls().iter().all(|call| {
        let host = call.headers["host"].to_str().expect("text");
        host == format!("{}.example.com", call.tenant)
    }));
    let opened = worker.count(&["breaker of the API open"]);
    assert_eq!(opened, 0, "{:#?}", worker.log());
    worker.stop();
    let dead = bed.dead(&yaml).await;
    let tenants: Vec<String> = (dead.iter())
        .filter_map(|letter| Some(letter.id()?.trim_end_matches("-0").to_owned()))
        .collect();
    assert_eq!(tenants.len(), elsewhere.len(), "{tenants:?}");
    let shop = names.asked().into_iter();
    let mut others = shop.filter(|name| !name.ends_with(".example.com:80"));
    assert_eq!(others.next(), None);
}

/// Connections to the hosts of ten tenants hang. When the worker takes its own network for the
/// cause, only their jobs have failed.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_that_hang_stop_no_other_tenant_for_long() {
    let api = Api::start().await;
    let address = api.door.address;
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let route = move |target: &str| match target.starts_with("gone") {
        true => Some(nowhere),
        false => Some(address),
    };
    let names = ConnectProxy::leading(None, route).await;
    let bed = Bed::shared();
    let more = format!(", timeout: 1s, proxy: 'http://{}'", names.door.address);
    let url = "http://{tenant}.example.com/orders";
    let yaml = bed.yaml("max-requests: 1000, window-size: 1s", url, &more);
    let dispatch = "dispatch: {breaker: {max-interval: 2s}, ";
    let yaml = yaml.replace("dispatch: {", dispatch)
        + "retry: {initial-interval: 100ms, max-interval: 1s}\n";
    let worker = PROGRAM.start(&yaml);
    let gone = (0..10).flat_map(|number| jobs(&format!("gone-{number}"), 2).collect::<Vec<_>>());
    bed.publish(&yaml, gone).await;
    worker.logs(&["this worker can't make calls"]).await;
    let healthy = (0..2).flat_map(|number| jobs(&format!("shop-{number}"), 20).collect::<Vec<_>>());
    bed.publish(&yaml, healthy).await;
    until("all healthy jobs", || worker.metric(DONE) == Some(40.0)).await;
    worker.stop();
}
