//! Downstreams that speak TLS.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use super::downstream::Manner;
use super::*;

/// A CA of a test's own.
struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a CA"))
    }

    /// A server whose certificate names `host`.
    fn server(&self, host: &str) -> TlsAcceptor {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([host.to_owned()]).expect("a host");
        let certificate = params.signed_by(&key, &*self.0).expect("a certificate");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(ring)
            .with_safe_default_protocol_versions()
            .expect("TLS 1.2 and 1.3")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("a certificate and its key");
        TlsAcceptor::from(Arc::new(config))
    }

    /// A handler that trusts this CA.
    fn handler(&self, downstream: &Downstream, timeout: Duration) -> HttpHandler {
        let url = format!("https://{}/", downstream.addr);
        let pem = self.0.pem();
        HttpHandler::with_ca(&http(url, timeout), 4, pem.as_bytes()).expect("a CA")
    }
}

async fn downstream(tls: TlsAcceptor, set_up: Option<watch::Receiver<bool>>) -> Downstream {
    let manner = Manner {
        tls: Some(tls),
        set_up,
        ..Manner::default()
    };
    let ok = answer("200 OK", "", "fine");
    Downstream::with(manner, move |_| (ok.clone().into(), Then::Keep)).await
}

#[tokio::test]
async fn a_ca_that_was_named_is_trusted() {
    let ca = Ca::new("ours");
    let downstream = downstream(ca.server("127.0.0.1"), None).await;
    let handler = ca.handler(&downstream, LONG);
    for _ in 0..10 {
        assert_eq!(handler.handle(&job("1"), permit()).await, Outcome::Done);
    }
    assert_eq!(downstream.requests().len(), 10);
    assert_eq!(downstream.opened(), 1);
}

#[tokio::test]
async fn nobody_else_is_trusted() {
    let ca = Ca::new("ours");
    let (other, same_name) = (Ca::new("other"), Ca::new("ours"));
    for (server, part) in [
        (ca.server("api.example"), "not valid for name"),
        (ca.server("127.0.0.2"), "not valid for name"),
        (other.server("127.0.0.1"), "UnknownIssuer"),
        (same_name.server("127.0.0.1"), "BadSignature"),
    ] {
        let downstream = downstream(server, None).await;
        let outcome = ca
            .handler(&downstream, LONG)
            .handle(&job("1"), permit())
            .await;
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

/// The promise of the guard: what is sent is sent on a good permit, however long the set-up took.
#[tokio::test]
async fn a_permit_that_runs_out_during_set_up_sends_nothing() {
    let ca = Ca::new("ours");
    let (go_on, set_up) = watch::channel(false);
    let downstream = downstream(ca.server("127.0.0.1"), Some(set_up)).await;
    let hour = Duration::from_secs(3600);
    let handler = ca.handler(&downstream, 3 * hour);
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
async fn a_set_up_without_an_end_is_a_failure() {
    let ca = Ca::new("ours");
    let (_never, set_up) = watch::channel(false);
    let downstream = downstream(ca.server("127.0.0.1"), Some(set_up)).await;
    let handler = ca.handler(&downstream, Duration::from_millis(300));
    let reason = "no connection within 300ms (dispatch.http.timeout)".to_owned();
    let after = None;
    let outcome = handler.handle(&job("1"), permit()).await;
    assert_eq!(outcome, Outcome::Retry { after, reason });
    assert!(downstream.requests().is_empty());
}

#[test]
fn unusable_certificates_say_what_is_wrong() {
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let cut = "-----BEGIN CERTIFICATE-----\nAAAA\n";
    for pem in ["", "no certificate", broken, cut] {
        let http = http("https://api.example/", LONG);
        let Err(why) = HttpHandler::with_ca(&http, 1, pem.as_bytes()) else {
            panic!("{pem:?} is no certificate");
        };
        let why = why.to_string();
        assert!(why.starts_with("TLS: the CA certificates: "), "{why}");
    }
}
