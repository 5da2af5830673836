//! The admin port as an operator's systems see it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use admin::{PipelineState, PipelineStates, serve};
use config::{Admin, Secret};
use gate::Primaries;
use kit::Says;
use telemetry::Health;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::time::timeout;

const ANY_PORT: Admin = Admin {
    listen: SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0),
    token: None,
    operator_token: None,
};

/// Returns the complete answer to `GET path`.
async fn get(listen: SocketAddr, path: &str) -> String {
    get_with(listen, path, "").await
}

/// Returns the complete answer to `GET path` with additional header lines.
pub async fn get_with(listen: impl ToSocketAddrs, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(listen).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{headers}connection: close\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("it reads");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .await
        .expect("it answers");
    answer
}

/// Returns a board with one unnamed pipeline.
fn board(health: &Arc<Health>) -> Arc<PipelineStates> {
    let seen = PipelineState {
        health: Arc::clone(health),
        ..PipelineState::default()
    };
    Arc::new(PipelineStates::only(seen))
}

#[tokio::test]
async fn a_worker_is_ready_when_nothing_is_missing() {
    let seen = PipelineState::default();
    let (health, board) = (&seen.health, PipelineStates::only(seen.clone()));
    let server = serve(&ANY_PORT, Arc::new(board))
        .await
        .expect("a free port");
    assert_ne!(server.listen.port(), 0);
    let ready = || get(server.listen, "/readyz");

    let answer = ready().await;
    answer.begins("HTTP/1.1 503 ");
    let all = "RabbitMQ does not answer\nRedis does not answer\nno jobs are being taken\n";
    answer.ends(all);

    health.set_rabbitmq(true);
    health.set_consuming(true);
    let answer = ready().await;
    answer.begins("HTTP/1.1 503 ");
    answer.ends("not ready\nRedis does not answer\n");

    health.set_redis(true);
    assert!(ready().await.starts_with("HTTP/1.1 200 "));
    // One primary that admits is enough. The others are named.
    let primaries = |admitting, recovering, away| Primaries {
        admitting,
        recovering,
        unavailable: away,
    };
    seen.metrics.set_primaries(primaries(2, 1, 0));
    let line = "1 of 3 Redis primaries may have lost data: their tenants' jobs are not admitted\n";
    assert!(ready().await.ends_with(&format!("\r\n\r\nready\n{line}")));
    seen.metrics.set_primaries(primaries(1, 0, 0));
    assert!(ready().await.ends_with("\r\n\r\nready\n"));
    health.set_consuming(false);
    assert!(ready().await.starts_with("HTTP/1.1 503 "));
    // A worker that is not ready is alive.
    assert!(
        get(server.listen, "/livez")
            .await
            .starts_with("HTTP/1.1 200 ")
    );
    assert!(
        get(server.listen, "/other")
            .await
            .starts_with("HTTP/1.1 404 ")
    );
    server.stop().await;
}

#[tokio::test]
async fn metrics_are_in_the_format_of_prometheus() {
    let server = serve(&ANY_PORT, board(&Arc::default()))
        .await
        .expect("a free port");
    let answer = get(server.listen, "/metrics").await;
    answer.begins("HTTP/1.1 200 ");
    answer.says("content-type: application/openmetrics-text; version=1.0.0");
    answer.says("# TYPE sluicegate_");
    answer.ends("# EOF\n");
    server.stop().await;
}

#[tokio::test]
async fn a_stopped_server_frees_its_port() {
    // No other test takes it meanwhile.
    let listen = (std::net::Ipv4Addr::LOCALHOST, kit::servers::free_port()).into();
    let admin = Admin { listen, ..ANY_PORT };
    let server = serve(&admin, board(&Arc::default()));
    server.await.expect("a free port").stop().await;
    // The port is free again.
    TcpListener::bind(listen).await.expect("nobody listens");
}

/// More clients than are served at once send nothing. They are dropped, and the next one gets its
/// answer. (The test's time jumps whenever everything waits.)
#[tokio::test(start_paused = true)]
async fn slow_clients_are_dropped() {
    let server = serve(&ANY_PORT, board(&Arc::default()))
        .await
        .expect("a free port");
    let mut slow = Vec::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(server.listen).await.expect("a backlog");
        stream.write_all(b"GET /livez HT").await.expect("a buffer");
        slow.push(stream);
    }
    let answer = get(server.listen, "/livez").await;
    answer.begins("HTTP/1.1 200 ");
    for mut stream in slow {
        let mut answer = Vec::new();
        let read = timeout(Duration::from_secs(3600), stream.read_to_end(&mut answer)).await;
        read.expect("the connection is closed")
            .expect("without an error");
        assert_eq!(answer, b"");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_long_head_is_refused() {
    let server = serve(&ANY_PORT, board(&Arc::default()))
        .await
        .expect("a free port");
    let mut stream = TcpStream::connect(server.listen).await.expect("it listens");
    let head = format!(
        "GET /livez HTTP/1.1\r\nhost: {}\r\n\r\n",
        "x".repeat(17 * 1024)
    );
    stream
        .write_all(head.as_bytes())
        .await
        .expect("the buffers hold it");
    let mut answer = Vec::new();
    // The connection is closed with unread bytes, so the answer may be lost on its way.
    let _ = stream.read_to_end(&mut answer).await;
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1.1 431 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    server.stop().await;
}

const TOKEN: &str = "0123456789abcdef-._~+/==";

#[tokio::test]
async fn without_the_token_only_liveness_and_readiness_are_shown() {
    let admin = Admin {
        token: Some(Secret::new(TOKEN)),
        operator_token: None,
        ..ANY_PORT
    };
    let health = Arc::new(Health::default());
    let server = serve(&admin, board(&health)).await.expect("a free port");
    let listen = server.listen;
    let status = |answer: &str| answer.split(' ').nth(1).map(str::to_owned);

    for good in [
        format!("authorization: Bearer {TOKEN}\r\n"),
        format!("AUTHORIZATION: bearer {TOKEN}\r\n"),
    ] {
        for (path, code) in [
            ("/metrics", "200"),
            ("/livez", "200"),
            ("/readyz", "503"),
            ("/other", "404"),
        ] {
            let answer = get_with(listen, path, &good).await;
            assert_eq!(status(&answer).as_deref(), Some(code), "{path}: {answer}");
        }
        let answer = get_with(listen, "/readyz", &good).await;
        answer.says("Redis does not answer");
    }

    let shorter = &TOKEN[..TOKEN.len() - 1];
    let bad = [
        String::new(),
        "authorization: Bearer \r\n".to_owned(),
        "authorization: Bearer\r\n".to_owned(),
        format!("authorization: Bearer {shorter}\r\n"),
        format!("authorization: Bearer {TOKEN}=\r\n"),
        format!("authorization: Bearer {}\r\n", TOKEN.to_uppercase()),
        format!("authorization: Basic {TOKEN}\r\n"),
        format!("authorization: {TOKEN}\r\n"),
        format!("authorization: Bearer x\r\nauthorization: Bearer {TOKEN}\r\n"),
        format!("x-token: Bearer {TOKEN}\r\n"),
    ];
    for headers in &bad {
        // One server per configuration: after ten wrong tokens in a minute, further ones are
        // refused slowly.
        let server = serve(&admin, board(&health)).await.expect("a free port");
        let listen = server.listen;
        for path in [
            "/metrics",
            "/other",
            "/",
            "/livez/",
            "//livez",
            "/readyz/../metrics",
        ] {
            let answer = get_with(listen, path, headers).await;
            assert_eq!(status(&answer).as_deref(), Some("401"), "{path}: {answer}");
            let challenge = "www-authenticate: Bearer realm=\"sluicegate\"";
            answer.says(challenge);
            let known = headers.starts_with("authorization");
            assert_eq!(
                answer.contains("error=\"invalid_token\""),
                known,
                "{answer}"
            );
            assert!(!answer.contains("sluicegate_"), "{answer}");
            assert!(
                !answer.contains(TOKEN) && !answer.contains("0123456789"),
                "{answer}"
            );
        }
        let answer = get_with(listen, "/livez", headers).await;
        answer.begins("HTTP/1.1 200 ");
        let answer = get_with(listen, "/readyz", headers).await;
        answer.begins("HTTP/1.1 503 ");
        answer.ends("\r\n\r\nnot ready\n");
    }
    health.set_rabbitmq(true);
    health.set_redis(true);
    health.set_consuming(true);
    let answer = get(listen, "/readyz").await;
    answer.begins("HTTP/1.1 200 ");
    server.stop().await;
}

/// Formerly, 64 such connections blocked all clients for 10 s, and the next 64 for another 10 s.
/// These would block them for more than a minute.
#[tokio::test]
async fn silent_connections_do_not_block_other_clients() {
    let server = serve(&ANY_PORT, board(&Arc::default()));
    let server = server.await.expect("a free port");
    let mut idle = Vec::new();
    for _ in 0..500 {
        idle.push(TcpStream::connect(server.listen).await.expect("it listens"));
    }
    let asked = timeout(Duration::from_secs(45), get(server.listen, "/livez"));
    let answer = asked.await.expect("an answer while others say nothing");
    answer.begins("HTTP/1.1 200 ");
    server.stop().await;
}
