//! APIs with TLS.

use config::Tls;
use kit::certificates::TestCertificates;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use super::downstream::DownstreamBehavior;
use super::*;

/// Returns a server at 127.0.0.1 with a certificate for `host`.
fn server(papers: &TestCertificates, host: &str) -> TlsAcceptor {
    papers.issue("server", &[host]);
    papers.acceptor("server", None)
}

/// Returns a handler with the TLS settings `tls`.
fn handler_with(tls: Tls, downstream: &Downstream, timeout: Duration) -> HttpHandler {
    let http = Http {
        tls,
        ..http(format!("https://{}/", downstream.addr), timeout)
    };
    HttpHandler::new(&http, 4).expect("usable files")
}

async fn downstream(tls: TlsAcceptor, set_up: Option<watch::Receiver<bool>>) -> Downstream {
    let manner = DownstreamBehavior {
        tls: Some(tls),
        set_up,
        ..DownstreamBehavior::default()
    };
    let ok = answer("200 OK", "", "fine");
    Downstream::with(manner, move |_| (ok.clone().into(), AfterAnswer::Keep)).await
}

#[tokio::test]
async fn a_configured_ca_is_trusted() {
    let ca = TestCertificates::called("ours");
    let downstream = downstream(server(&ca, "127.0.0.1"), None).await;
    let handler = handler_with(ca.trusted(), &downstream, LONG);
    for _ in 0..10 {
        assert_eq!(handler.handle(&job("1"), permit()).await, Outcome::Done);
    }
    assert_eq!(downstream.requests().len(), 10);
    assert_eq!(downstream.opened(), 1);
}

#[tokio::test]
async fn no_other_ca_is_trusted() {
    let ca = TestCertificates::called("ours");
    let (other, same_name) = (
        TestCertificates::called("other"),
        TestCertificates::called("ours"),
    );
    for (server, part) in [
        (server(&ca, "api.example"), "not valid for name"),
        (server(&ca, "127.0.0.2"), "not valid for name"),
        (server(&other, "127.0.0.1"), "UnknownIssuer"),
        (server(&same_name, "127.0.0.1"), "BadSignature"),
    ] {
        let downstream = downstream(server, None).await;
        let handler = handler_with(ca.trusted(), &downstream, LONG);
        let outcome = handler.handle(&job("1"), permit()).await;
        let Outcome::Retry {
            after: None,
            reason,
        } = outcome
        else {
            panic!("{outcome:?}");
        };
        assert!(reason.starts_with("no connection: "), "{reason}");
        assert!(reason.contains(part), "{reason}");
        assert!(reason.len() < 300 && !reason.contains('\n'), "{reason}");
        downstream.ends(1).await;
        assert!(downstream.requests().is_empty());
    }
}

#[tokio::test]
async fn certificate_errors_suggest_a_fix() {
    let ca = TestCertificates::called("ours");
    ca.issue_itself("authority");
    ca.issue_expired("expired", "127.0.0.1");
    for (shown, advice) in [
        ("authority", "create it with CA:FALSE"),
        ("expired", "renew it, or correct the clock"),
    ] {
        let downstream = downstream(ca.acceptor(shown, None), None).await;
        let handler = handler_with(ca.trusted(), &downstream, LONG);
        let outcome = handler.handle(&job("1"), permit()).await;
        let Outcome::Retry { reason, .. } = outcome else {
            panic!("{outcome:?}");
        };
        assert!(reason.contains(advice), "{reason}");
    }
}

/// The guard's promise: a request is sent only with a valid permit, however long the setup took.
#[tokio::test]
async fn a_permit_that_expires_during_setup_sends_nothing() {
    let ca = TestCertificates::called("ours");
    let (go_on, set_up) = watch::channel(false);
    let downstream = downstream(server(&ca, "127.0.0.1"), Some(set_up)).await;
    let hour = Duration::from_secs(3600);
    let handler = handler_with(ca.trusted(), &downstream, 3 * hour);
    let until = Instant::now() + hour;
    let set_up = async {
        downstream.opens(1).await;
        tokio::time::pause();
        tokio::time::advance(hour + Duration::from_millis(1)).await;
        tokio::time::resume();
        go_on.send(true).expect("the downstream lives");
    };
    let job = job("1");
    let (outcome, ()) = tokio::join!(handler.handle(&job, Permit::until(until)), set_up);
    assert_eq!(outcome, Outcome::Late);
    // The next call finds the connection open.
    assert_eq!(handler.handle(&job, permit()).await, Outcome::Done);
    assert_eq!(downstream.opened(), 1);
    assert_eq!(downstream.requests().len(), 1);
}

#[tokio::test]
async fn an_endless_setup_is_a_failure() {
    let ca = TestCertificates::called("ours");
    let (_never, set_up) = watch::channel(false);
    let downstream = downstream(server(&ca, "127.0.0.1"), Some(set_up)).await;
    let handler = handler_with(ca.trusted(), &downstream, Duration::from_millis(300));
    let reason = "no connection within 300ms (dispatch.http.timeout)".to_owned();
    let after = None;
    let outcome = handler.handle(&job("1"), permit()).await;
    assert_eq!(outcome, Outcome::Retry { after, reason });
    assert!(downstream.requests().is_empty());
}

#[tokio::test]
async fn a_downstream_accepts_client_certificates_of_its_authority_only() {
    let (ca, foreign) = (TestCertificates::new(), TestCertificates::new());
    ca.issue("server", &["127.0.0.1"]);
    ca.issue("client", &["worker"]);
    foreign.issue("client", &["worker"]);
    let downstream = downstream(ca.acceptor("server", Some(&ca)), None).await;
    let ours = handler_with(ca.tls("client"), &downstream, LONG);
    assert_eq!(ours.handle(&job("1"), permit()).await, Outcome::Done);

    let theirs = Tls {
        identity: Some(foreign.identity("client")),
        ..ca.trusted()
    };
    for (tls, words) in [
        (
            ca.trusted(),
            "(the server requires a client certificate: set dispatch.http.cert-file and \
            dispatch.http.key-file)",
        ),
        (
            theirs,
            "(the server rejects the client certificate: check the issuer and the expiry of \
            dispatch.http.cert-file)",
        ),
    ] {
        let handler = handler_with(tls, &downstream, LONG);
        // The request may meet a closed connection before the reason is read, but not every time.
        for last in 0.. {
            let outcome = handler.handle(&job("1"), permit()).await;
            let Outcome::Retry { reason, .. } = outcome else {
                panic!("{outcome:?}");
            };
            if reason.ends_with(words) {
                break;
            }
            assert!(last < 1000, "{reason}");
        }
    }
    assert_eq!(downstream.requests().len(), 1);
}

#[test]
fn unusable_certificates_are_reported_with_the_reason() {
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let cut = "-----BEGIN CERTIFICATE-----\nAAAA\n";
    let papers = TestCertificates::new();
    for pem in ["", "no certificate", broken, cut] {
        papers.write("ca.pem", pem);
        let http = Http {
            tls: papers.trusted(),
            ..http("https://api.example/", LONG)
        };
        let Err(why) = HttpHandler::new(&http, 1) else {
            panic!("{pem:?} is no certificate");
        };
        let why = why.to_string();
        assert!(why.starts_with("TLS: ca-file: "), "{why}");
    }
}
