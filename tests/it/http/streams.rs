//! HTTP/2: calls share connections, each on its own stream.

use std::task::Poll;

use futures_util::future::join_all;
use futures_util::poll;
use handler::{Fate, LateEnd, PreparingHandler, Trouble};
use hyper::Version;
use kit::api::{self, Reply};
use kit::certificates::TestCertificates;
use tokio::join;

use super::frames::{Api, CANCEL, DATA, Frame, NO_ERROR, Peer, REFUSED, STREAMS, WINDOW};
use super::*;

const SHORT: Duration = Duration::from_millis(300);
const LEASE: Duration = Duration::from_secs(40);

/// Returns a handler and the connection on which its first call was answered.
async fn met(settings: &[(u16, u32)]) -> (Api, HttpHandler, Peer) {
    let api = Api::start().await;
    let handler = api.handler(LONG);
    let peer = meets(&api, &handler, settings).await;
    (api, handler, peer)
}

/// Makes a call that opens a connection and is answered.
async fn meets(api: &Api, handler: &HttpHandler, settings: &[(u16, u32)]) -> Peer {
    let job = job("1");
    let (outcome, peer) = join!(handler.handle(&job, permit()), api.answers(settings));
    assert_eq!(outcome, Outcome::Done);
    peer
}

/// Waits until sent bytes are visible to readers of the socket.
async fn arrives() {
    // The runtime polls its sockets before it wakes a sleeping task.
    tokio::time::sleep(Duration::from_millis(20)).await;
}

/// Waits until sent bytes are acknowledged, which the kernel may delay by this time.
async fn acknowledged() {
    tokio::time::sleep(SHORT).await;
}

fn large(bytes: usize) -> Job {
    let mut job = job("large");
    job.body = vec![b'x'; bytes].into();
    job
}

fn retry(attempt: &Attempt) -> &str {
    match &attempt.outcome {
        Outcome::Retry { reason, .. } => reason,
        outcome => panic!("{outcome:?}"),
    }
}

async fn given_up(attempt: impl Future<Output = Attempt>) -> LateEnd {
    match attempt.await.fate {
        Fate::Abandoned { lease, ended } => {
            assert_eq!(lease, LEASE);
            ended
        }
        fate => panic!("{fate:?}"),
    }
}

#[tokio::test]
async fn calls_share_an_http_2_connection() {
    let papers = TestCertificates::new();
    let api = api::Api::with(api::ApiBehavior::https(&papers, &["h2", "http/1.1"])).await;
    api.answers(|_| Reply::ok().after(Duration::from_millis(5)));
    let url = api.url().replace("//", "//joe:s3cr%40t@") + "orders?key=k";
    let http = Http {
        tls: papers.trusted(),
        ..http(url, LONG)
    };
    let handler = HttpHandler::new(&http, 8).expect("usable files");
    assert_eq!(handler.handle(&job("1"), permit()).await, Outcome::Done);
    // More than the server's window for one call, and for all calls together.
    let jobs: Vec<_> = (0..8).map(|number| large(number * 200_000)).collect();
    for _ in 0..3 {
        for job in &jobs[..3] {
            assert_eq!(handler.handle(job, permit()).await, Outcome::Done);
        }
    }
    let small = job("1");
    let calls = join_all((0..8).map(|_| handler.handle(&small, permit())));
    assert!(calls.await.iter().all(|outcome| *outcome == Outcome::Done));
    assert_eq!(api.door.opened(), 1);
    let calls = join_all(jobs.iter().map(|job| handler.handle(job, permit())));
    assert!(calls.await.iter().all(|outcome| *outcome == Outcome::Done));
    let calls = api.calls();
    assert_eq!(calls.len(), 1 + 9 + 8 + 8);
    for call in &calls {
        assert_eq!(call.version, Version::HTTP_2);
        assert_eq!(
            call.uri.authority().map(|host| host.as_str()),
            Some(&*api.door.address.to_string())
        );
        assert_eq!(
            call.uri.path_and_query().map(|path| path.as_str()),
            Some("/orders?key=k")
        );
        assert_eq!(call.headers["authorization"], "Basic am9lOnMzY3JAdA==");
        assert_eq!(call.headers["content-length"], call.body.len().to_string());
        assert!(!call.headers.contains_key("host"));
    }
    let mut bodies: Vec<_> = calls[18..].iter().map(|call| call.body.len()).collect();
    bodies.sort_unstable();
    assert_eq!(
        bodies,
        jobs.iter().map(|job| job.body.len()).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn http_1_1_is_used_if_the_server_or_the_configuration_requires_it() {
    let protocols = [&["http/1.1"][..], &[], &["h2", "http/1.1"]];
    for (protocols, http2) in protocols.into_iter().zip([true, true, false]) {
        let papers = TestCertificates::new();
        let api = api::Api::with(api::ApiBehavior::https(&papers, protocols)).await;
        let http = Http {
            tls: papers.trusted(),
            http2,
            ..http(api.url(), LONG)
        };
        let handler = HttpHandler::new(&http, 4).expect("usable files");
        for _ in 0..3 {
            let (a, b) = (job("a"), job("b"));
            let (a, b) = join!(handler.handle(&a, permit()), handler.handle(&b, permit()));
            assert_eq!((a, b), (Outcome::Done, Outcome::Done));
        }
        assert!(
            api.calls()
                .iter()
                .all(|call| call.version == Version::HTTP_11)
        );
        assert_eq!(api.door.opened(), 2, "one for each call");
    }
}

/// A call has its stream before its permit is requested.
#[tokio::test]
async fn prepared_calls_are_bounded_by_the_servers_streams() {
    for max in [1, 3] {
        let settings = [(STREAMS, max)];
        let (api, handler, mut peer) = met(&settings).await;
        let mut taken: Vec<_> = std::iter::from_fn(|| handler.at_once()).collect();
        assert_eq!(taken.len(), max as usize);
        assert!(taken.iter_mut().all(|ready| handler.is_ready(ready)));
        let job = job("1");
        let (further, mut other) = join!(handler.prepare(&job), api.accept(&settings));
        let further = further.expect("another connection");
        // All of them run at once.
        taken.push(further);
        let sent = taken
            .into_iter()
            .map(|ready| handler.send(&job, ready, permit()));
        let answers = async {
            let mut streams = Vec::new();
            for _ in 0..max {
                streams.push(peer.request().await);
            }
            let stream = other.request().await;
            assert_eq!(
                handler.at_once().is_some(),
                max > 1,
                "the other one has room"
            );
            for stream in streams {
                peer.answer(stream).await;
            }
            other.answer(stream).await;
        };
        let (attempts, ()) = join!(join_all(sent), answers);
        assert!(
            attempts
                .iter()
                .all(|attempt| attempt.outcome == Outcome::Done)
        );
        assert!(handler.at_once().is_some());
    }
}

#[tokio::test]
async fn a_connection_without_free_streams_is_not_ready() {
    let (_api, handler, mut peer) = met(&[(STREAMS, 3)]).await;
    let mut taken: Vec<_> = std::iter::from_fn(|| handler.at_once()).collect();
    peer.settings(&[(STREAMS, 1)]).await;
    arrives().await;
    taken.retain_mut(|ready| handler.is_ready(ready));
    assert_eq!(taken.len(), 1, "the others ask anew");
    assert!(handler.at_once().is_none());
}

#[tokio::test]
async fn no_permit_waits_for_a_server_without_free_streams() {
    let api = Api::start().await;
    let handler = api.handler(LONG);
    let job = job("1");
    let says_so = async {
        let peer = api.accept(&[(STREAMS, 0)]).await;
        arrives().await;
        later(LONG).await;
        peer
    };
    let (attempt, _peer) = join!(handler.attempt(&job, permit()), says_so);
    let reason = "no connection within 60s (dispatch.http.timeout)";
    assert_eq!(retry(&attempt), reason);
    assert!(matches!(attempt.fate, Fate::Unwritten));
}

#[tokio::test]
async fn a_refused_call_uses_no_attempt_and_many_in_a_row_do() {
    let (_api, handler, mut peer) = met(&[]).await;
    let job = job("1");
    for number in 0..12 {
        let refuses = async {
            let stream = peer.request().await;
            // An answer in between restarts the count.
            match number {
                3 => peer.answer(stream).await,
                _ => peer.reset(stream, REFUSED).await,
            }
        };
        let (attempt, ()) = join!(handler.attempt(&job, permit()), refuses);
        match number {
            3 => assert_eq!(attempt.outcome, Outcome::Done),
            0..8 => {
                assert_eq!(attempt.outcome, Outcome::Late, "{number}");
                assert!(matches!(attempt.fate, Fate::Unwritten));
            }
            _ => {
                assert!(retry(&attempt).contains("refused"), "{attempt:?}");
                assert_eq!(attempt.trouble, Some(Trouble::Unreachable));
                assert!(matches!(attempt.fate, Fate::Unknown), "it costs its permit");
            }
        }
    }
}

#[tokio::test]
async fn another_reset_of_the_server_uses_an_attempt() {
    let (_api, handler, mut peer) = met(&[]).await;
    let job = job("1");
    let resets = async {
        let stream = peer.request().await;
        peer.reset(stream, 2).await;
    };
    let (attempt, ()) = join!(handler.attempt(&job, permit()), resets);
    assert!(
        retry(&attempt).starts_with("no answer: stream error received: "),
        "{attempt:?}"
    );
    assert!(matches!(attempt.fate, Fate::Unknown));
    // The connection remains usable.
    let answers = async {
        let stream = peer.request().await;
        peer.answer(stream).await;
    };
    let (outcome, ()) = join!(handler.handle(&job, permit()), answers);
    assert_eq!(outcome, Outcome::Done);
}

#[tokio::test]
async fn a_server_going_away_ends_only_calls_it_has_begun() {
    for reason in [NO_ERROR, 11] {
        let (api, handler, mut peer) = met(&[]).await;
        let (a, b, c) = (job("a"), job("b"), job("c"));
        let goes_away = async {
            let (first, _) = (peer.request().await, peer.request().await);
            peer.go_away(first, reason).await;
            arrives().await;
            // A new call uses another connection.
            let (outcome, _other) = join!(handler.handle(&c, permit()), api.answers(&[]));
            assert_eq!(outcome, Outcome::Done);
            peer.answer(first).await;
            assert!(peer.rest().await.iter().all(|frame| frame.stream == 0));
        };
        let calls = (handler.attempt(&a, permit()), handler.attempt(&b, permit()));
        let (a, b, ()) = join!(calls.0, calls.1, goes_away);
        assert_eq!(a.outcome, Outcome::Done);
        assert_eq!(b.outcome, Outcome::Late);
        assert!(matches!(b.fate, Fate::Unwritten));
    }
}

#[tokio::test]
async fn a_closed_idle_connection_is_noticed_before_a_permit_is_requested() {
    for goes_away in [true, false] {
        let (api, handler, mut peer) = met(&[]).await;
        let mut prepared = handler.at_once().expect("it is open");
        assert!(handler.is_ready(&mut prepared));
        if goes_away {
            peer.go_away(1, NO_ERROR).await;
        } else {
            drop(peer);
        }
        arrives().await;
        assert!(!handler.is_ready(&mut prepared));
        assert!(handler.at_once().is_none());
        meets(&api, &handler, &[]).await;
        // A call that is sent anyway has sent nothing.
        let attempt = handler.send(&job("1"), prepared, permit()).await;
        assert_eq!(attempt.outcome, Outcome::Late);
    }
}

#[tokio::test]
async fn an_idle_connection_that_is_shared_is_closed_in_time() {
    let (api, handler, mut peer) = met(&[]).await;
    let mut prepared = handler.at_once().expect("it is open");
    later(Duration::from_secs(5)).await;
    assert!(
        !handler.is_ready(&mut prepared),
        "the server may close it just now"
    );
    drop(prepared);
    peer.rest().await;
    let mut peer = meets(&api, &handler, &[]).await;
    drop(handler);
    peer.rest().await;
}

/// A large body is sent as the server's window allows, and delays no other call.
#[tokio::test]
async fn a_large_body_is_sent_as_the_server_takes_it() {
    let (_api, handler, mut peer) = met(&[(WINDOW, 1000)]).await;
    let large = large(3000);
    let takes = async {
        let mut taken = 0;
        let mut stream = 0;
        while taken < 3000 {
            let frame = peer.read().await.expect("it is open");
            if frame.kind == DATA {
                stream = frame.stream;
                taken += frame.payload.len();
            }
            if stream != 0 && taken % 1000 == 0 {
                assert_eq!(handler.at_once().is_none(), taken < 3000, "{taken}");
                peer.takes(stream, 1000).await;
            }
        }
        peer.answer(stream).await;
    };
    let (outcome, ()) = join!(handler.handle(&large, permit()), takes);
    assert_eq!(outcome, Outcome::Done);
    assert!(handler.at_once().is_some());
}

#[tokio::test]
async fn an_answer_that_comes_before_the_end_of_the_request_counts() {
    let (_api, handler, mut peer) = met(&[(WINDOW, 1000)]).await;
    let large = large(3000);
    let answers = async {
        let stream = peer.read().await.expect("it is open").stream;
        peer.answer(stream).await;
        loop {
            let frame = peer.read().await.expect("it is open");
            if let Some(reset) = frame.reset() {
                return assert_eq!(reset, (stream, CANCEL), "the rest is not sent");
            }
        }
    };
    let (outcome, ()) = join!(handler.handle(&large, permit()), answers);
    assert_eq!(outcome, Outcome::Done);
    assert!(handler.at_once().is_some(), "the connection is good");
}

#[tokio::test]
async fn an_endless_body_is_abandoned_and_its_connection_kept() {
    let (_api, handler, mut peer) = met(&[]).await;
    let job = job("1");
    let answers = async {
        let stream = peer.request().await;
        let frames = peer.answer_for_ever(stream).await;
        assert_eq!(frames[0].reset(), Some((stream, CANCEL)));
        let stream = peer.request().await;
        peer.answer(stream).await;
    };
    let calls = async {
        for _ in 0..2 {
            assert_eq!(handler.handle(&job, permit()).await, Outcome::Done);
        }
    };
    join!(calls, answers);
}

#[tokio::test]
async fn an_abandoned_stream_ends_with_its_answer_reset_or_connection() {
    let api = Api::start().await;
    let http = Http {
        abandoned: LEASE,
        ..api.http(LONG)
    };
    let handler = HttpHandler::new(&http, 4).expect("usable files");
    for ending in ["answer", "reset", "close", "nobody wants to know"] {
        let job = job("1");
        let begins = async {
            let mut peer = api.accept(&[]).await;
            let stream = peer.request().await;
            acknowledged().await;
            later(LONG).await;
            (peer, stream)
        };
        let attempt = handler.attempt(&job, permit());
        let (mut ended, (mut peer, stream)) = join!(given_up(attempt), begins);
        assert_eq!(poll!(&mut ended), Poll::Pending);
        assert!(handler.at_once().is_none(), "the connection may be dead");
        match ending {
            "answer" => peer.answer(stream).await,
            "reset" => peer.reset(stream, CANCEL).await,
            "close" => drop(peer),
            _ => {
                drop(ended);
                let frames = peer.rest().await;
                assert_eq!(frames[0].reset(), Some((stream, CANCEL)));
                continue;
            }
        }
        let ended = tokio::time::timeout(LONG, ended).await;
        ended.unwrap_or_else(|_| panic!("{ending} is not heard"));
    }
}

/// A part of it has arrived, and its end never becomes known. The rest is not sent.
#[tokio::test]
async fn the_unsent_part_of_a_call_is_recalled() {
    let api = Api::start().await;
    let http = Http {
        abandoned: LEASE,
        ..api.http(LONG)
    };
    let handler = HttpHandler::new(&http, 4).expect("usable files");
    let large = large(3000);
    let attempt = handler.attempt(&large, permit());
    let takes = async {
        let mut peer = api.accept(&[(WINDOW, 1000)]).await;
        let mut taken = 0;
        while taken < 1000 {
            let frame = peer.read().await.expect("it is open");
            taken += if frame.kind == DATA {
                frame.payload.len()
            } else {
                0
            };
        }
        later(LONG).await;
        peer
    };
    let (ended, mut peer) = join!(given_up(attempt), takes);
    let frames = peer.rest().await;
    assert!(frames.iter().all(|frame| frame.kind != DATA));
    let reset = frames.iter().find_map(Frame::reset);
    assert_eq!(reset.map(|(_, reason)| reason), Some(CANCEL));
    assert!(tokio::time::timeout(SHORT, ended).await.is_err());
}

/// An abandoned call does not end others.
#[tokio::test]
async fn other_calls_continue_beside_an_abandoned_one() {
    let (_api, handler, mut peer) = met(&[]).await;
    let (lost, good) = (job("lost"), job("good"));
    let beside = async {
        let lost = peer.request().await;
        later(LONG * 2 / 3).await;
        let answers = async {
            let good = peer.request().await;
            later(LONG * 2 / 3).await;
            let reset = peer.read().await.and_then(|frame| frame.reset());
            assert_eq!(reset, Some((lost, CANCEL)));
            peer.answer(good).await;
        };
        join!(handler.handle(&good, permit()), answers).0
    };
    // No task waits for its end.
    let (lost, beside) = join!(handler.handle(&lost, permit()), beside);
    let (after, reason) = (
        None,
        "no answer within 60s (dispatch.http.timeout)".to_owned(),
    );
    assert_eq!(lost, Outcome::Retry { after, reason });
    assert_eq!(beside, Outcome::Done);
    peer.rest().await;
}

#[tokio::test]
async fn the_death_of_a_connection_ends_all_calls_on_it_once() {
    let (api, handler, mut peer) = met(&[]).await;
    let jobs = ["a", "b", "c", "d"].map(job);
    let dies = async {
        for _ in &jobs {
            peer.request().await;
        }
        drop(peer);
    };
    let calls = join_all(jobs.iter().map(|job| handler.attempt(job, permit())));
    let (attempts, ()) = join!(calls, dies);
    for attempt in &attempts {
        assert!(retry(attempt).starts_with("no answer: "), "{attempt:?}");
        assert!(matches!(attempt.fate, Fate::Unknown), "{attempt:?}");
    }
    meets(&api, &handler, &[]).await;
}

/// Frames that belong to no answer are not read without a bound.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_frames_is_abandoned() {
    for interim in [true, false] {
        let (api, handler, mut peer) = met(&[]).await;
        let job = job("1");
        let floods = async {
            let stream = peer.request().await;
            peer.floods(interim.then_some(stream)).await
        };
        let (attempt, sent) = join!(handler.attempt(&job, permit()), floods);
        assert!(retry(&attempt).contains("4096 KiB"), "{attempt:?}");
        assert!(sent < 64 << 20, "{sent} bytes");
        meets(&api, &handler, &[]).await;
    }
}

#[tokio::test]
async fn a_required_client_certificate_is_reported_with_http_2_too() {
    let papers = TestCertificates::new();
    papers.issue("api", &["127.0.0.1"]);
    let manner = api::ApiBehavior {
        tls: Some(papers.acceptor_with("api", Some(&papers), &["h2"])),
        ..api::ApiBehavior::default()
    };
    let api = api::Api::with(manner).await;
    let http = Http {
        tls: papers.trusted(),
        ..http(api.url(), LONG)
    };
    let handler = HttpHandler::new(&http, 1).expect("usable files");
    let attempt = handler.attempt(&job("1"), permit()).await;
    let advice = "dispatch.http.cert-file";
    assert!(retry(&attempt).contains(advice), "{attempt:?}");
    assert!(matches!(attempt.fate, Fate::Unwritten));
}
