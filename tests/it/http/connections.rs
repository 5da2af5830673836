//! Connections of calls, and their reuse.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use handler::PreparingHandler;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use trial::door::{ANY_PORT, Door};

use super::downstream::DownstreamBehavior;
use super::*;

fn ok() -> (Vec<u8>, AfterAnswer) {
    (answer("200 OK", "", "fine").into(), AfterAnswer::Keep)
}

#[tokio::test]
async fn one_connection_serves_one_call_after_another() {
    // Each way an answer can end, and interim answers before it.
    let downstream = Downstream::start(|request| {
        let interim = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(50);
        let last = match request.of_connection % 4 {
            0 => answer("200 OK", "", ""),
            1 => answer("200 OK", "", &"x".repeat(60_000)),
            2 => {
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\na: b\r\n\r\n"
                    .to_owned()
            }
            _ => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
        };
        (format!("{interim}{last}").into(), AfterAnswer::Keep)
    })
    .await;
    // More than the maximum before one answer, counted over all of them.
    let handler = handler(format!("http://{}/", downstream.addr), LONG);
    for call in 1..=400 {
        assert_eq!(handler.handle(&job("1"), permit()).await, Outcome::Done);
        assert_eq!(downstream.requests().len(), call);
    }
    assert_eq!(downstream.opened(), 1);
}

#[tokio::test]
async fn kept_connections_are_bounded_by_the_concurrency() {
    let (open, answers) = watch::channel(false);
    let manner = DownstreamBehavior {
        answers: Some(answers),
        ..DownstreamBehavior::default()
    };
    let downstream = Downstream::with(manner, |_| ok()).await;
    let url = format!("http://{}/", downstream.addr);
    let handler = HttpHandler::new(&http(url, LONG), 2).expect("a usable url");
    let job = job("1");
    let calls = join_all((0..3).map(|_| handler.handle(&job, permit())));
    let go_on = async {
        downstream.opens(3).await;
        open.send(true).expect("the downstream lives");
    };
    let (outcomes, ()) = tokio::join!(calls, go_on);
    assert_eq!(outcomes, [Outcome::Done, Outcome::Done, Outcome::Done]);
    downstream.ends(1).await;
    join_all((0..2).map(|_| handler.handle(&job, permit()))).await;
    assert_eq!(downstream.opened(), 3);
}

#[tokio::test]
async fn an_idle_connection_is_closed_in_time() {
    let downstream = Downstream::start(|_| ok()).await;
    let handler = handler(format!("http://{}/", downstream.addr), LONG);
    assert_eq!(handler.handle(&job("1"), permit()).await, Outcome::Done);
    later(Duration::from_secs(5)).await;
    downstream.ends(1).await;
    assert_eq!(handler.handle(&job("1"), permit()).await, Outcome::Done);
    assert_eq!(downstream.opened(), 2);
}

#[tokio::test]
async fn the_connections_of_a_dropped_handler_are_closed() {
    let downstream = Downstream::start(|_| ok()).await;
    let handler = handler(format!("http://{}/", downstream.addr), LONG);
    assert_eq!(handler.handle(&job("1"), permit()).await, Outcome::Done);
    drop(handler);
    downstream.ends(1).await;
}

#[tokio::test]
async fn an_idle_connection_that_the_server_closed_is_not_used() {
    let downstream = Downstream::start(|_| (ok().0, AfterAnswer::Close)).await;
    let handler = handler(format!("http://{}/", downstream.addr), LONG);
    for call in 1..=20 {
        let outcome = handler.handle(&job("1"), permit()).await;
        assert_eq!(outcome, Outcome::Done);
        downstream.ends(call).await;
        // The runtime polls its sockets before it wakes a sleeping task, so it has seen the end,
        // too.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(downstream.opened(), call);
        assert_eq!(downstream.requests().len(), call);
    }
}

/// A TCP proxy without its backend closes each connection.
#[tokio::test]
async fn a_server_that_closes_connections_at_once_is_unreachable() {
    let closes = Arc::new(AtomicBool::new(true));
    let is_away = Arc::clone(&closes);
    let door = Door::open(ANY_PORT, move |mut stream, _| {
        let is_away = is_away.load(Ordering::Relaxed);
        async move {
            let mut request = [0; 4096];
            if !is_away && stream.read(&mut request).await.is_ok_and(|bytes| bytes > 0) {
                let answer = answer("200 OK", "", "");
                // The caller may have gone.
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        }
    });
    let door = door.expect("a free port");
    let (url, job) = (format!("http://{}/", door.address), job("1"));
    let handler = handler(&url, LONG);
    // The first connection counts as open, until the server closes it.
    let Ok(mut ready) = handler.prepare(&job).await else {
        panic!("the first connection is accepted");
    };
    while handler.is_ready(&mut ready) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(ready);
    for _ in 0..3 {
        let Err(attempt) = handler.prepare(&job).await else {
            panic!("the server closes connections");
        };
        assert_eq!(attempt.trouble, Some(Trouble::Unreachable));
        let reason = "no connection: the server closes connections before it gets a request";
        let Outcome::Retry { reason: why, .. } = attempt.outcome else {
            panic!("{attempt:?}");
        };
        assert_eq!(why, reason);
    }
    closes.store(false, Ordering::Relaxed);
    let Ok(ready) = handler.prepare(&job).await else {
        panic!("the server is back");
    };
    let attempt = handler.send(&job, ready, permit()).await;
    assert_eq!(attempt.outcome, Outcome::Done);
}

/// The connection is closed between the last look at it and the request.
#[tokio::test]
async fn a_server_that_closes_connections_before_requests_is_unreachable() {
    let door = Door::open(ANY_PORT, |_, _| async {}).expect("a free port");
    let handler = handler(format!("http://{}/", door.address), LONG);
    let job = job("1");
    let Ok(ready) = handler.prepare(&job).await else {
        panic!("the first connection is accepted");
    };
    while door.opened() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The runtime polls its sockets before it wakes a sleeping task.
    tokio::time::sleep(Duration::from_millis(10)).await;
    let attempt = handler.send(&job, ready, permit()).await;
    assert_eq!(attempt.outcome, Outcome::Late);
    let Err(attempt) = handler.prepare(&job).await else {
        panic!("the server closes connections");
    };
    assert_eq!(attempt.trouble, Some(Trouble::Unreachable));
}

#[tokio::test]
async fn unsolicited_bytes_make_a_connection_unusable() {
    let twice = format!("{0}{0}", answer("200 OK", "", ""));
    let downstream = Downstream::answering(twice, AfterAnswer::Keep).await;
    let handler = handler(format!("http://{}/", downstream.addr), LONG);
    for call in 1..=5 {
        assert_eq!(handler.handle(&job("1"), permit()).await, Outcome::Done);
        downstream.ends(call).await;
    }
    assert_eq!(downstream.opened(), 5);
}

#[tokio::test]
async fn a_connection_whose_answer_was_not_read_to_its_end_is_closed() {
    let long = answer("200 OK", "", &"x".repeat(200_000));
    let downstream = Downstream::answering(long, AfterAnswer::Keep).await;
    let handler = handler(format!("http://{}/", downstream.addr), LONG);
    for call in 1..=3 {
        assert_eq!(handler.handle(&job("1"), permit()).await, Outcome::Done);
        downstream.ends(call).await;
    }
}

#[tokio::test]
async fn an_abandoned_call_closes_its_connection() {
    // The API waits for the next request, and sees the connection's end.
    let downstream = Downstream::answering("", AfterAnswer::Keep).await;
    let handler = handler(format!("http://{}/", downstream.addr), LONG);
    let job = job("1");
    let seen = async {
        while downstream.requests().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        outcome = handler.handle(&job, permit()) => panic!("{outcome:?}"),
        () = seen => {}
    }
    downstream.ends(1).await;
    assert_eq!(downstream.requests().len(), 1);
}

#[tokio::test]
async fn an_endless_head_is_abandoned() {
    let head = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(1_000_000));
    let downstream = Downstream::answering(head, AfterAnswer::Hang).await;
    let outcome = outcome(&downstream).await;
    let reason = "no answer: message head is too large".to_owned();
    let after = None;
    assert_eq!(outcome, Outcome::Retry { after, reason });
}
