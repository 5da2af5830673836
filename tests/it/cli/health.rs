//! `sluicegate health` as a container's health check runs it.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

use admin::{AdminServer, PipelineState, PipelineStates, serve};
use config::{Admin, Pipelines, Secret};
use kit::servers::free_port;
use telemetry::Health;

use crate::cli::{CommandResult, sluicegate, sluicegate_with};

const TOKEN: &str = "0123456789abcdef";

/// Starts an admin port with [`TOKEN`] for a worker with this `health`.
async fn admin(health: &Arc<Health>) -> AdminServer {
    let seen = PipelineState {
        health: Arc::clone(health),
        ..PipelineState::default()
    };
    admin_of(PipelineStates::only(seen)).await
}

async fn admin_of(board: PipelineStates) -> AdminServer {
    let admin = Admin {
        // No other test takes it when the server has stopped.
        listen: (Ipv4Addr::LOCALHOST, free_port()).into(),
        token: Some(Secret::new(TOKEN)),
        operator_token: None,
    };
    serve(&admin, Arc::new(board)).await.expect("a free port")
}

/// Runs `sluicegate health args` next to the server it asks.
async fn health(yaml: String, args: &'static [&'static str]) -> CommandResult {
    let all = [&["health"], args].concat();
    let run = move || sluicegate(&yaml, &all);
    tokio::task::spawn_blocking(run).await.expect("no panic")
}

#[tokio::test]
async fn the_exit_status_says_whether_a_worker_is_ready() {
    let known = Arc::new(Health::default());
    let server = admin(&known).await;
    let port = server.listen.port();
    // The worker listens on all addresses and is asked on this one.
    let yaml = format!("admin: {{listen: '0.0.0.0:{port}', token: {TOKEN}}}\n");

    known.set_rabbitmq(true);
    known.set_consuming(true);
    let done = health(yaml.clone(), &[]).await.exited(1);
    // Missing parts are reported only to callers with the token.
    assert_eq!(done.out, "not ready\nRedis does not answer\n");
    assert_eq!(done.err, "", "it has been said");
    health(yaml.clone(), &["--live"]).await.exited(0);
    known.set_redis(true);
    let done = health(yaml.clone(), &[]).await.exited(0);
    assert_eq!(done.out, "ready\n");

    server.stop().await;
    for args in [&[][..], &["--live"]] {
        let done = health(yaml.clone(), args).await.exited(1);
        let says = format!("error: 127.0.0.1:{port}: can't be reached: ");
        assert!(done.err.starts_with(&says), "{done:?}");
    }
}

#[tokio::test]
async fn health_with_a_url_needs_no_configuration_and_sends_no_token() {
    let known = Arc::new(Health::default());
    let server = admin(&known).await;
    let ask = |path: &str| {
        let url = format!("http://{}{path}", server.listen);
        let yaml = Some("no: configuration\n");
        let run = move || sluicegate_with(yaml, &["health", "--url", &url], b"");
        async { tokio::task::spawn_blocking(run).await.expect("no panic") }
    };
    assert_eq!(ask("").await.exited(1).out, "not ready\n");
    assert_eq!(ask("/livez").await.exited(0).out, "ok\n");
    let other = ask("/metrics").await.exited(1);
    assert!(other.out.starts_with("401 Unauthorized\n"), "{other:?}");
}

#[tokio::test]
async fn of_several_pipelines_one_is_enough_and_each_can_be_asked() {
    let board = PipelineStates::named();
    let pipelines = "dispatch: {http: {url: 'http://127.0.0.1:9/'}}
pipelines: {mail: {}, orders: {}}
";
    let read = Pipelines::parse("test.yaml", pipelines, std::iter::empty()).expect("valid");
    let mut healths = Vec::new();
    for name in read.each().keys() {
        let seen = PipelineState::of(name);
        seen.health.set_rabbitmq(true);
        seen.health.set_consuming(true);
        healths.push(Arc::clone(&seen.health));
        board.put(name.clone(), seen);
    }
    let server = admin_of(board).await;
    let yaml = format!(
        "admin: {{listen: '{}', token: {TOKEN}}}\n{pipelines}",
        server.listen
    );
    let [mail, orders] = healths.as_slice() else {
        panic!("two pipelines");
    };
    let none = health(yaml.clone(), &[]).await.exited(1);
    assert!(none.out.starts_with("not ready\n"), "{none:?}");
    orders.set_redis(true);
    let one = health(yaml.clone(), &[]).await.exited(0);
    assert_eq!(one.out, "ready\nmail: Redis does not answer\n");
    let own = health(yaml.clone(), &["--pipeline", "orders"]).await;
    assert_eq!(own.exited(0).out, "ready\n");
    let own = health(yaml.clone(), &["--pipeline", "mail"]).await;
    assert_eq!(own.exited(1).out, "not ready\nRedis does not answer\n");
    // The process is alive for every pipeline.
    let lives = health(yaml.clone(), &["--live", "--pipeline", "mail"]).await;
    lives.exited(0);
    mail.set_redis(true);
    let own = health(yaml.clone(), &["--pipeline", "mail"]).await;
    assert_eq!(own.exited(0).out, "ready\n");

    let wrong = health(yaml.clone(), &["--pipeline", "order"])
        .await
        .exited(2);
    let says =
        "error: there is no pipeline \"order\"; there are: mail, orders; did you mean orders?\n";
    assert_eq!(wrong.err, says);
    let wrong = health(yaml.clone(), &["--pipeline", "x"]).await.exited(2);
    assert!(
        wrong.err.ends_with("there are: mail, orders\n"),
        "{wrong:?}"
    );
    // A worker that was started with other pipelines reports that it does not know this one.
    let older = yaml.replace("orders: {}", "orders: {}, new: {}");
    let unknown = health(older, &["--pipeline", "new"]).await.exited(1);
    assert!(
        unknown.out.contains("there is no such pipeline"),
        "{unknown:?}"
    );
    // A configuration without `pipelines` has one, which needs no name.
    let only = Arc::new(Health::default());
    let server = admin(&only).await;
    let yaml = format!("admin: {{listen: '{}'}}\n", server.listen);
    for args in [&[][..], &["--pipeline", "default"]] {
        let done = health(yaml.clone(), args).await.exited(1);
        assert_eq!(done.out, "not ready\n");
    }
}

#[test]
fn servers_other_than_workers_are_unhealthy() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let listen = listener.local_addr().expect("it is bound");
    let yaml = format!("admin: {{listen: '{listen}'}}\n");
    // No server accepts the connection.
    let silent = sluicegate(&yaml, &["health"]).exited(1);
    let says = format!("error: {listen}: no answer within 3s\n");
    assert_eq!(silent.err, says);
    std::thread::spawn(move || {
        let mut known = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().expect("somebody asks");
            // A client that has gone away, as the first one, reads nothing.
            let _ = stream.write_all(b"220 mail.example ESMTP\r\n");
            known.push(stream);
        }
    });
    let says = format!("error: {listen}: is not a worker's admin port: ");
    // On a slow machine the answer may come later than a client waits.
    let mut answers = (0..40).map(|_| sluicegate(&yaml, &["health"]).exited(1).err);
    let other_speech = answers.find(|answer| *answer != silent.err);
    let other_speech = other_speech.expect("an answer");
    assert!(other_speech.starts_with(&says), "{other_speech}");
}

#[test]
fn an_unknown_port_is_wrong_usage() {
    let done = sluicegate("admin: {listen: '127.0.0.1:0'}\n", &["health"]).exited(2);
    assert!(done.err.contains("--url http://HOST:PORT"), "{done:?}");
    for url in ["https://h/", "h:1", "http://h:1/a b"] {
        sluicegate("", &["health", "--url", url]).exited(2);
    }
    sluicegate("no: configuration\n", &["health"]).exited(2);
}
