//! Calls to a host that each job names. A proxy stands for the name server: it leads all names to
//! one API.

use config::{Config, SecretUrl};
use handler::{PreparingHandler, Trouble};
use hyper::Version;
use kit::api::{Api, ApiBehavior};
use kit::certificates::TestCertificates;
use kit::connect::ConnectProxy;

use super::*;

/// Starts a proxy that leads all names to `api`, except names that begin with `gone`.
async fn names_of(api: &Api) -> ConnectProxy {
    let address = api.door.address;
    let route = move |target: &str| (!target.starts_with("gone")).then_some(address);
    ConnectProxy::leading(None, route).await
}

/// Returns a handler of calls to the hosts `{tenant}.example.com` that `names` knows.
fn calls(scheme: &str, names: &ConnectProxy, papers: &TestCertificates) -> HttpHandler {
    calls_with("", scheme, names, papers)
}

/// Does the same with these additional keys.
fn calls_with(
    keys: &str,
    scheme: &str,
    names: &ConnectProxy,
    papers: &TestCertificates,
) -> HttpHandler {
    let url = format!("{scheme}://{{tenant}}.example.com/a");
    let yaml = format!("dispatch: {{http: {{url: '{url}', timeout: 60s{keys}}}}}");
    let config = Config::parse("c.yaml", &yaml, std::iter::empty()).expect("valid");
    let http = Http {
        proxy: Some(SecretUrl::new(format!("http://{}", names.door.address))),
        tls: papers.trusted(),
        ..config.dispatch.http.expect("a url")
    };
    HttpHandler::new(&http, 4).expect("usable")
}

fn job_of(tenant: &str) -> Job {
    Job::new("1", Tenant::parse(tenant).expect("a tenant"), "{}")
}

/// Returns an API with TLS for all hosts that offers these protocols.
fn https(papers: &TestCertificates, protocols: &[&str]) -> ApiBehavior {
    papers.issue("shops", &["*.example.com"]);
    ApiBehavior {
        tls: Some(papers.acceptor_with("shops", None, protocols)),
        idle: None,
    }
}

#[tokio::test]
async fn each_call_goes_to_the_host_of_its_job() {
    let papers = TestCertificates::new();
    for (manner, scheme, version) in [
        (ApiBehavior::default(), "http", Version::HTTP_11),
        (https(&papers, &["http/1.1"]), "https", Version::HTTP_11),
        (https(&papers, &["h2"]), "https", Version::HTTP_2),
    ] {
        let api = Api::with(manner).await;
        let names = names_of(&api).await;
        let handler = calls(scheme, &names, &papers);
        for tenant in ["acme", "beta", "Acme", "beta", "acme"] {
            let attempt = handler.attempt(&job_of(tenant), permit()).await;
            assert_eq!(attempt.outcome, Outcome::Done, "{tenant}");
        }
        let port = if scheme == "https" { 443 } else { 80 };
        let asked = ["acme", "beta"].map(|name| format!("{name}.example.com:{port}"));
        assert_eq!(names.asked(), asked, "each has its connection");
        for call in api.calls() {
            assert_eq!(call.version, version);
            let named = match version {
                Version::HTTP_2 => call.uri.host(),
                _ => call.headers.get("host").and_then(|host| host.to_str().ok()),
            };
            let host = format!("{}.example.com", call.tenant.to_lowercase());
            assert_eq!(named, Some(&*host), "{call:?}");
        }
    }
}

#[tokio::test]
async fn a_prepared_call_serves_no_other_host() {
    let (api, papers) = (Api::start().await, TestCertificates::new());
    let names = names_of(&api).await;
    let handler = calls("http", &names, &papers);
    let (acme, beta) = (job_of("acme"), job_of("beta"));
    let ready = handler.prepare(&acme).await.expect("a connection");
    assert!(handler.at_once().is_none());
    let attempt = handler.send(&beta, ready, permit()).await;
    assert_eq!(attempt.outcome, Outcome::Late);
    assert_eq!(api.count(), 0);
    assert!(handler.at_once_for(&beta.tenant).is_none());
    assert!(handler.at_once_for(&acme.tenant).is_some());
}

/// Messages with such values are invalid, so only a program with jobs of its own gets here.
#[tokio::test]
async fn an_unchecked_value_leads_to_no_other_domain() {
    let (api, papers) = (Api::start().await, TestCertificates::new());
    let names = names_of(&api).await;
    let handler = calls("http", &names, &papers);
    for name in [
        "evil.com/",
        "evil.com#",
        "evil.com?",
        "evil.com:80",
        "a b",
        "",
        "[::1]",
    ] {
        let outcome = match Tenant::parse(name) {
            Ok(tenant) => handler.handle(&Job::new("1", tenant, "{}"), permit()).await,
            Err(_) => continue,
        };
        assert!(
            matches!(outcome, Outcome::Reject { .. }),
            "{name}: {outcome:?}"
        );
    }
    assert_eq!(names.asked(), [""; 0]);
}

#[tokio::test]
async fn connections_to_many_hosts_are_bounded_in_number() {
    let papers = TestCertificates::new();
    for (manner, scheme, kept) in [
        (ApiBehavior::default(), "http", 4),
        (https(&papers, &["h2"]), "https", 8),
    ] {
        let api = Api::with(manner).await;
        let names = names_of(&api).await;
        let handler = calls(scheme, &names, &papers);
        let shop = |number: usize| job_of(&format!("shop-{number}"));
        for number in 0..40 {
            assert_eq!(handler.handle(&shop(number), permit()).await, Outcome::Done);
        }
        let is_open = |number: &usize| handler.at_once_for(&shop(*number).tenant).is_some();
        let open: Vec<usize> = (0..40).filter(is_open).collect();
        // A busy machine may have closed some.
        assert!(open.len() <= kept, "{open:?}");
        assert!(open.iter().all(|number| *number >= 40 - kept), "{open:?}");
    }
}

#[tokio::test]
async fn a_missing_host_is_its_tenants_failure_and_a_missing_proxy_is_not() {
    let (api, papers) = (Api::start().await, TestCertificates::new());
    let names = names_of(&api).await;
    let handler = calls("http", &names, &papers);
    for number in 0..20 {
        let job = job_of(&format!("gone-{number}"));
        let attempt = handler.attempt(&job, permit()).await;
        assert_eq!(attempt.trouble, Some(Trouble::Tenant), "{attempt:?}");
    }
    let done = handler.handle(&job_of("acme"), permit()).await;
    assert_eq!(done, Outcome::Done);
    drop(names);
    let attempt = handler.attempt(&job_of("beta"), permit()).await;
    assert_eq!(attempt.trouble, Some(Trouble::Unreachable), "{attempt:?}");
}

#[tokio::test]
async fn a_tenants_token_comes_from_its_own_host() {
    let token = r#"{"access_token": "token-1"}"#;
    let tokens = Downstream::answering(answer("200 OK", "", token), AfterAnswer::Keep).await;
    let (api, papers) = (Api::start().await, TestCertificates::new());
    let addresses = [tokens.addr, api.door.address];
    let route = move |target: &str| Some(addresses[usize::from(!target.contains("login"))]);
    let names = ConnectProxy::leading(None, route).await;
    let keys = ", oauth2: {token-url: 'http://{tenant}.login.example.com/t', client-id: a, \
        client-secret: b}";
    let handler = calls_with(keys, "http", &names, &papers);
    let done = handler.handle(&job_of("acme"), permit()).await;
    assert_eq!(done, Outcome::Done);
    let asked = ["acme.login.example.com:80", "acme.example.com:80"];
    assert_eq!(names.asked(), asked);
    let elsewhere = handler.handle(&job_of("evil.com"), permit()).await;
    assert!(matches!(elsewhere, Outcome::Reject { .. }), "{elsewhere:?}");
    assert_eq!(names.asked(), asked);
}
