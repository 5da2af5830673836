//! A demo that is interrupted, on a RabbitMQ of its own.

use kit::servers::{Rabbit, shared_redis};
use kit::until;
use rustix::process::Signal;
use tokio::task::block_in_place;

use crate::cli::steering::interrupted;

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_demo_leaves_no_queue() {
    let rabbit = block_in_place(Rabbit::start);
    let listed = || block_in_place(|| rabbit.ctl(&["list_queues", "--no-table-headers", "name"]));
    let (amqp, redis) = (rabbit.url(), shared_redis().url());
    let yaml = format!("amqp: {{url: '{amqp}'}}\nredis: {{url: '{redis}'}}");
    let declared = until("the results queue", || listed().contains("-results"));
    // Too many jobs to be done before the queue is seen.
    let args = [
        "demo",
        "--scenario",
        "results",
        "--tenants",
        "1",
        "--jobs",
        "2000",
    ];
    let ended = interrupted(&yaml, &args, (Signal::INT, ""), declared).await;
    assert_eq!(ended.stderr, b"error: interrupted\n");
    assert!(!listed().contains("sluicegate-demo"), "{}", listed());
}
