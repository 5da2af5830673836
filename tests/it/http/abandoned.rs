//! Calls that time out: their known state, and when they end.

use std::task::Poll;

use futures_util::future::join_all;
use futures_util::poll;
use handler::{Fate, LateEnd};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const SHORT: Duration = Duration::from_millis(200);
const LEASE: Duration = Duration::from_secs(40);

/// Starts a frozen API: connections stay in its backlog.
async fn still() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("it is bound"));
    (listener, url)
}

/// Returns a handler that watches two abandoned calls.
fn impatient(url: String) -> HttpHandler {
    let http = Http {
        abandoned: LEASE,
        ..http(url, SHORT)
    };
    HttpHandler::new(&http, 2).expect("a usable url")
}

async fn given_up(handler: &HttpHandler, job: &Job) -> LateEnd {
    let attempt = handler.attempt(job, permit()).await;
    assert!(matches!(attempt.outcome, Outcome::Retry { .. }));
    match attempt.fate {
        Fate::Abandoned { lease, ended } => {
            assert_eq!(lease, LEASE);
            ended
        }
        fate => panic!("{fate:?}"),
    }
}

/// Reads the waiting request.
async fn read(stream: &mut TcpStream) {
    let mut read = Vec::new();
    while !read.ends_with(b"{}") {
        let bytes = stream.read_buf(&mut read).await.expect("it is open");
        assert!(bytes > 0, "it was closed");
    }
}

#[tokio::test]
async fn an_abandoned_call_ends_with_its_answer_or_its_connection() {
    let (api, url) = still().await;
    let handler = impatient(url);
    for ending in ["answer", "close", "reset"] {
        let mut ended = given_up(&handler, &job("1")).await;
        assert_eq!(poll!(&mut ended), Poll::Pending);
        // The API continues.
        let (mut stream, _) = api.accept().await.expect("it lies there");
        read(&mut stream).await;
        assert_eq!(poll!(&mut ended), Poll::Pending);
        match ending {
            "answer" => {
                let answer = answer("200 OK", "", "");
                stream.write_all(answer.as_bytes()).await.expect("open");
            }
            "reset" => stream.set_zero_linger().expect("a socket"),
            _ => {}
        }
        drop(stream);
        let ended = tokio::time::timeout(LONG, ended).await;
        ended.unwrap_or_else(|_| panic!("{ending} is not heard"));
    }
}

#[tokio::test]
async fn unacknowledged_bytes_are_recalled() {
    let (api, url) = still().await;
    let handler = impatient(url);
    let mut large = job("1");
    large.body = vec![b'x'; 16 << 20].into();
    let ended = given_up(&handler, &large).await;
    let (mut stream, _) = api.accept().await.expect("it lies there");
    let mut read = Vec::new();
    let why = stream.read_to_end(&mut read).await.map(drop);
    let why = why.expect_err("a reset, and not an end").kind();
    assert_eq!(why, std::io::ErrorKind::ConnectionReset);
    assert!(read.len() < large.body.len(), "{} bytes", read.len());
    // A part of it has arrived, and its end never becomes known.
    let never = tokio::time::timeout(SHORT, ended).await;
    assert!(never.is_err());
}

#[tokio::test]
async fn abandoned_connections_are_bounded_by_the_concurrency() {
    let (api, url) = still().await;
    let handler = impatient(url);
    let jobs = ["1", "2", "3", "4"].map(job);
    let ends = join_all(jobs.iter().map(|job| given_up(&handler, job))).await;
    let mut streams = Vec::new();
    for _ in &ends {
        let (mut stream, _) = api.accept().await.expect("it lies there");
        // Acknowledged bytes are read, even from a closed connection.
        read(&mut stream).await;
        streams.push(stream);
    }
    let mut open = 0;
    for stream in &mut streams {
        let mut rest = [0];
        let closed = tokio::time::timeout(SHORT, stream.read(&mut rest)).await;
        open += usize::from(closed.is_err());
    }
    assert_eq!(open, 2);
    // Dropping the interest frees a place.
    drop(ends);
    let _ended = given_up(&handler, &job("5")).await;
    let (mut stream, _) = api.accept().await.expect("it lies there");
    read(&mut stream).await;
    let closed = tokio::time::timeout(SHORT, stream.read(&mut [0])).await;
    assert!(closed.is_err(), "it is read on");
}

#[tokio::test]
async fn a_connection_that_never_opened_costs_no_permit() {
    let (api, url) = still().await;
    drop(api);
    let attempt = impatient(url).attempt(&job("1"), permit()).await;
    assert!(
        matches!(attempt.fate, Fate::Unwritten),
        "{:?}",
        attempt.fate
    );
}

/// A call ends if the API closes its connection after having read it.
#[tokio::test]
async fn a_call_ends_when_the_api_closes_its_connection() {
    let (api, url) = still().await;
    let handler = HttpHandler::new(&http(url, LONG), 2).expect("a usable url");
    for resets in [false, true] {
        let job = job("1");
        let call = handler.attempt(&job, permit());
        let end = async {
            let (mut stream, _) = api.accept().await.expect("it is called");
            read(&mut stream).await;
            if resets {
                stream.set_zero_linger().expect("a socket");
            }
        };
        let (attempt, ()) = tokio::join!(call, end);
        assert!(matches!(attempt.fate, Fate::Unknown), "{:?}", attempt.fate);
    }
}
