//! Malicious answers: each ends its call within a bound, and none affects other calls.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

/// Maximum number of bytes sent beyond those read: the buffers of two sockets.
const MAX_BUFFERED_BYTES: usize = 64 << 20;
const CONTINUE: &str = "HTTP/1.1 100 Continue\r\n\r\n";
/// A chunk. Chunks of this size reach the bound of a body before the bound of their lengths.
const BIG_CHUNK: &str = "20\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn every_part_of_an_answer_is_bounded() {
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let endless = "HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551613\r\n\r\n";
    for (start, piece, expected) in [
        // Heads.
        ("", "\r\n", "retry"),
        ("", "x", "retry"),
        ("HTTP/1.1 200 ", "O", "retry"),
        ("HTTP/1.1 200 OK\r\n", "a: b\r\n", "retry"),
        ("HTTP/1.1 200 OK\r\na: b\r\n", " c\r\n", "retry"),
        ("", "HTTP/1.1 103 Early Hints\r\na: b\r\n\r\n", "retry"),
        ("", CONTINUE, "retry"),
        ("HTTP/1.1 100 Continue\r\n", "a: b\r\n", "retry"),
        // Bodies don't affect the job's outcome.
        ("HTTP/1.1 200 OK\r\n\r\n", "x", "done"),
        (endless, "x", "done"),
        (chunked, "1\r\nx\r\n", "done"),
        (chunked, "0", "done"),
        (&format!("{chunked}5;"), "extension", "done"),
        (&format!("{chunked}0\r\n"), "a: b\r\n", "done"),
        (&format!("{chunked}ffffffffffffffff\r\n"), "x", "done"),
        (chunked, BIG_CHUNK, "done"),
        (&chunked.replace("200", "400"), BIG_CHUNK, "reject"),
        (&endless.replace("200", "400"), "x", "reject"),
    ] {
        let downstream = Downstream::answering(start, AfterAnswer::Endless(piece)).await;
        let what = format!("{start:?} and then {piece:?}");
        let outcome = outcome(&downstream).await;
        let (kind, is_bounded) = match &outcome {
            Outcome::Done => ("done", true),
            Outcome::Reject { reason } => ("reject", reason.len() < 320),
            // The timeout would end a call without a limit, with another reason.
            Outcome::Retry {
                after: None,
                reason,
            } => ("retry", piece != CONTINUE || reason.contains("256 KiB")),
            _ => ("other", false),
        };
        assert!(kind == expected && is_bounded, "{what}: {outcome:?}");
        let sent = downstream.repeated().await;
        assert!(sent < MAX_BUFFERED_BYTES, "{what}: {sent} bytes");
        assert_eq!(downstream.requests().len(), 1, "{what}");
    }
}

/// The timeout is for the whole call: it does not restart with each byte.
#[tokio::test]
async fn a_slow_answer_ends_with_the_timeout() {
    for (start, then, done) in [
        ("HTTP/1.1 200 OK\r\nx: ", AfterAnswer::Drip, false),
        ("HTTP/1.1 200 OK\r\n\r\n", AfterAnswer::Drip, true),
        ("", AfterAnswer::Interim, false),
    ] {
        let downstream = Downstream::answering(start, then).await;
        let timeout = Duration::from_millis(300);
        let handler = handler(format!("http://{}/", downstream.addr), timeout);
        let job = job("1");
        let ended = handler.handle(&job, permit());
        let ended = tokio::time::timeout(LONG, ended).await.expect("it ends");
        // On a busy machine the head is late, too.
        let late = matches!(
            &ended,
            Outcome::Retry { after: None, reason } if reason.contains("within")
        );
        assert!(late || (done && ended == Outcome::Done), "{ended:?}");
        // A busy machine may send no request in time.
        assert!(downstream.requests().len() <= 1);
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Downstream::answering(answer("200 OK", "", ""), AfterAnswer::Keep).await;
    for location in [
        "http://HOST/",
        "//HOST/",
        "http://joe:s3cr%40t@HOST/?key=k3y",
    ] {
        let location = location.replace("HOST", &elsewhere.addr.to_string());
        for status in [
            "300 Multiple Choices",
            "301 Moved Permanently",
            "302 Found",
            "303 See Other",
            "304 Not Modified",
            "307 Temporary Redirect",
            "308 Permanent Redirect",
        ] {
            let headers = format!("location: {location}\r\nrefresh: 0; url={location}\r\n");
            let downstream =
                Downstream::answering(answer(status, &headers, &location), AfterAnswer::Keep).await;
            let url = format!("http://joe:s3cr%40t@{}/?key=k3y", downstream.addr);
            let Outcome::Reject { reason } = handler(url, LONG).handle(&job("1"), permit()).await
            else {
                panic!("a redirect rejects");
            };
            assert!(reason.contains(status), "{reason}");
            assert!(
                !reason.contains("s3cr") && !reason.contains("k3y"),
                "{reason}"
            );
            assert_eq!(downstream.requests().len(), 1);
        }
    }
    assert_eq!(elsewhere.opened(), 0);
}

/// Seeded answers with errors. Regardless of their meaning, each call is one request, and the next
/// call gets its own answer.
#[tokio::test]
async fn garbage_harms_no_other_call() {
    const CALLS: u64 = 400;
    let good = [
        answer(
            "200 OK",
            "retry-after: 3\r\nratelimit: \"a\";r=0;t=8\r\n",
            "fine",
        ),
        answer("429 Too Many Requests", "retry-after: 3\r\n", "no"),
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\na: b\r\n\r\n"
            .to_owned(),
        format!(
            "HTTP/1.1 103 Early Hints\r\n\r\n{}",
            answer("404 Not Found", "", "no such")
        ),
    ];
    let downstream = Downstream::start(move |request| {
        let id = request.header("x-job-id").expect("an id");
        let Ok(seed) = String::from_utf8_lossy(id).parse() else {
            return (answer("200 OK", "", "").into(), AfterAnswer::Keep);
        };
        let mut random = StdRng::seed_from_u64(seed);
        let mut bytes = good[random.random_range(0..good.len())]
            .clone()
            .into_bytes();
        for _ in 0..random.random_range(1..=8) {
            let at = random.random_range(0..bytes.len());
            match random.random_range(0..3) {
                0 => bytes[at] = random.random(),
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b"\r\n :;\0\xff01"[random.random_range(0..9)]),
            }
        }
        (bytes, AfterAnswer::Close)
    })
    .await;
    let handler = handler(format!("http://{}/", downstream.addr), LONG);
    for seed in 0..CALLS {
        handler.attempt(&job(&seed.to_string()), permit()).await;
        assert_eq!(
            downstream.requests().len() as u64,
            2 * seed + 1,
            "seed {seed}"
        );
        let next = handler.handle(&job("next"), permit()).await;
        assert_eq!(next, Outcome::Done, "after seed {seed}");
    }
}
