//! Calls through a proxy.

use std::net::SocketAddr;

use config::SecretUrl;
use handler::{PreparingHandler, Trouble};
use hyper::Version;
use kit::api::{Api, ApiBehavior};
use kit::certificates::TestCertificates;
use kit::connect::ConnectProxy;
use tokio::time::Instant;

use super::oauth2::oauth2_at;
use super::*;

/// Returns a handler of `http` through `proxy` with the credentials `user`.
fn through(proxy: &ConnectProxy, user: &str, http: Http) -> HttpHandler {
    let url = format!("http://{user}{}", proxy.door.address);
    let http = Http {
        proxy: Some(SecretUrl::new(url)),
        ..http
    };
    HttpHandler::new(&http, 4).expect("usable")
}

/// The Basic authorization of `us:p@ss`.
const BASIC: &str = "Basic dXM6cEBzcw==";

#[tokio::test]
async fn calls_go_through_a_tunnel_with_and_without_tls() {
    let papers = TestCertificates::new();
    for (manner, version) in [
        (ApiBehavior::default(), Version::HTTP_11),
        (ApiBehavior::https(&papers, &["http/1.1"]), Version::HTTP_11),
        (ApiBehavior::https(&papers, &["h2"]), Version::HTTP_2),
    ] {
        let (api, proxy) = (
            Api::with(manner).await,
            ConnectProxy::start(Some(BASIC)).await,
        );
        let http = Http {
            tls: papers.trusted(),
            ..http(api.url(), LONG)
        };
        let handler = through(&proxy, "us:p%40ss@", http);
        for n in 0..5 {
            let attempt = handler.attempt(&job(&n.to_string()), permit()).await;
            assert_eq!(attempt.outcome, Outcome::Done);
        }
        let calls = api.calls();
        assert!(calls.len() == 5 && calls.iter().all(|call| call.version == version));
        let leaked = calls
            .iter()
            .any(|call| call.headers.contains_key("proxy-authorization"));
        assert!(!leaked, "the API sees nothing of the proxy's password");
        assert_eq!(proxy.asked(), [api.door.address.to_string()]);
    }
}

/// The API may receive bytes much later than the proxy's machine acknowledges them.
#[tokio::test]
async fn arrivals_are_reported_only_without_a_proxy() {
    let papers = TestCertificates::new();
    for manner in [ApiBehavior::default(), ApiBehavior::https(&papers, &["h2"])] {
        let (api, proxy) = (Api::with(manner).await, ConnectProxy::start(None).await);
        let http = Http {
            tls: papers.trusted(),
            ..http(api.url(), LONG)
        };
        let direct = HttpHandler::new(&http, 4).expect("usable");
        for (handler, is_reported) in [(direct, true), (through(&proxy, "", http), false)] {
            let permit = permit();
            let attempt = handler.attempt(&job("1"), permit.clone()).await;
            assert_eq!(attempt.outcome, Outcome::Done);
            // The only visible sign is whether a probe was set.
            assert_eq!(
                format!("{permit:?}").contains("OnceLock(ArrivalProbe)"),
                is_reported
            );
        }
    }
}

#[tokio::test]
async fn access_tokens_come_through_the_proxy_too() {
    let token = r#"{"access_token": "token-1"}"#;
    let tokens = Downstream::answering(answer("200 OK", "", token), AfterAnswer::Keep).await;
    let (api, proxy) = (Api::start().await, ConnectProxy::start(None).await);
    let http = Http {
        oauth2: Some(oauth2_at(format!("http://{}/", tokens.addr))),
        ..http(api.url(), LONG)
    };
    let handler = through(&proxy, "", http);
    assert_eq!(handler.handle(&job("1"), permit()).await, Outcome::Done);
    let there = [tokens.addr, api.door.address].map(|at| at.to_string());
    assert_eq!(proxy.asked(), there);
}

#[tokio::test]
async fn no_tenant_is_at_fault_for_a_token_server_to_which_connections_hang() {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let proxy = ConnectProxy::leading(None, move |_| Some(nowhere)).await;
    let http = Http {
        oauth2: Some(oauth2_at("http://login.example.com/{tenant}".to_owned())),
        ..http(
            "http://api.example.com/".to_owned(),
            Duration::from_millis(200),
        )
    };
    let handler = through(&proxy, "", http);
    let patience = Instant::now() + LONG;
    loop {
        let attempt = handler.prepare(&job("1")).await.err().expect("no token");
        let none = "no connection to the token URL: none within 200ms";
        if matches!(&attempt.outcome, Outcome::Retry { reason, .. } if reason.contains(none)) {
            assert_eq!(attempt.trouble, Some(Trouble::Unreachable));
            break;
        }
        assert!(Instant::now() < patience, "{attempt:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_failing_proxy_is_named_without_its_password() {
    let (api, proxy) = (Api::start().await, ConnectProxy::start(Some(BASIC)).await);
    let address = proxy.door.address;
    let reason = async |handler: HttpHandler| match handler.handle(&job("1"), permit()).await {
        Outcome::Retry { reason, .. } => reason,
        other => panic!("{other:?}"),
    };
    let handler = through(&proxy, "us:hunter2@", http(api.url(), LONG));
    assert_eq!(
        reason(handler).await,
        format!(
            "no connection: through the proxy http://{address}/: tunnel error: proxy authorization required"
        )
    );
    let handler = through(&proxy, "us:hunter2@", http(api.url(), LONG));
    drop(proxy);
    let words = reason(handler).await;
    let begin = format!("no connection: through the proxy http://{address}/: tunnel error: ");
    assert!(
        words.starts_with(&begin) && !words.contains("hunter2"),
        "{words}"
    );
    assert_eq!(api.count(), 0);
}
