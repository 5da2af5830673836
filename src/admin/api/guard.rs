//! Access control of the API.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use subtle::ConstantTimeEq;

use super::problem::ApiProblem;
use crate::wrong_tokens::WrongTokens;
use config::{Admin, Secret};

/// Headers that show that a proxy forwarded the request.
const FORWARDED: [&str; 4] = ["forwarded", "via", "x-forwarded-for", "x-real-ip"];

/// Right that a token grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// Read only: `admin.token`.
    Read,
    /// Read and change: `admin.operator-token`.
    Act,
}

/// Tokens that requests have to show.
pub struct Guard {
    token: Option<Secret>,
    operator_token: Option<Secret>,
    wrong_tokens: WrongTokens,
}

impl Guard {
    /// Creates the guard with the tokens of `admin`.
    pub fn of(admin: &Admin) -> Self {
        Self {
            token: admin.token.clone(),
            operator_token: admin.operator_token.clone(),
            wrong_tokens: WrongTokens::default(),
        }
    }

    /// Returns the right that `token` grants, or `None` if it is wrong. A wrong one from `peer` is
    /// counted.
    ///
    /// # Errors
    /// Returned if many tokens were wrong lately. Wait for [`Guard::pause`] before answering.
    pub fn right_of_token(
        &self,
        token: &[u8],
        peer: SocketAddr,
    ) -> Result<Option<Right>, ApiProblem> {
        // Constant time: the duration depends only on the lengths of both tokens.
        let is = |known: &Option<Secret>| {
            let known = known.as_ref();
            known.is_some_and(|known| bool::from(known.expose().as_bytes().ct_eq(token)))
        };
        match (is(&self.operator_token), is(&self.token)) {
            (true, _) => Ok(Some(Right::Act)),
            (false, true) => Ok(Some(Right::Read)),
            (false, false) if self.has_tokens() && self.wrong_tokens.add(peer) => {
                Err(ApiProblem::too_many_wrong())
            }
            (false, false) => Ok(None),
        }
    }

    /// Returns the right that the token in `headers` grants, as [`Guard::right_of_token`] does, or
    /// `None` if there is no token.
    fn right_in(&self, headers: &HeaderMap, peer: SocketAddr) -> Result<Option<Right>, ApiProblem> {
        match bearer(headers) {
            Some(token) => self.right_of_token(token, peer),
            None => Ok(None),
        }
    }

    fn has_tokens(&self) -> bool {
        self.token.is_some() || self.operator_token.is_some()
    }

    /// Returns true if requests with `headers` from `peer` may see the metrics and what a worker
    /// lacks.
    ///
    /// # Errors
    /// See [`Guard::right_of_token`].
    pub fn may_see(&self, headers: &HeaderMap, peer: SocketAddr) -> Result<bool, ApiProblem> {
        match self.token {
            Some(_) => Ok(self.right_in(headers, peer)?.is_some()),
            None => Ok(true),
        }
    }

    /// Returns true if tokens of probes are not compared because many tokens were wrong lately.
    /// Probes need no token and must not wait.
    pub fn ignores_probes(&self) -> bool {
        self.token.is_some() && self.wrong_tokens.are_many()
    }

    /// Delays the refusal of a wrong token after many others.
    pub async fn pause(&self) {
        self.wrong_tokens.pause().await;
    }

    /// Checks that a request with `headers` from `peer` may read.
    ///
    /// # Errors
    /// The request may not read; the problem names the missing token or right.
    pub fn may_read(&self, headers: &HeaderMap, peer: SocketAddr) -> Result<(), ApiProblem> {
        own_site(headers)?;
        if self.right_in(headers, peer)?.is_some() {
            return Ok(());
        }
        match &self.token {
            Some(_) => Err(ApiProblem::unauthorized(headers, "admin.token")),
            None if is_local_client(headers, peer) => Ok(()),
            None => Err(ApiProblem::new(
                StatusCode::FORBIDDEN,
                "without a token only programs of this machine have access, through localhost or \
                a loopback address: set admin.token",
            )),
        }
    }

    /// Checks that a request with `headers` from `peer` may change something.
    ///
    /// # Errors
    /// The request may not change anything; the problem names the missing token or right.
    pub fn may_act(&self, headers: &HeaderMap, peer: SocketAddr) -> Result<(), ApiProblem> {
        own_site(headers)?;
        if self.operator_token.is_none() {
            return Err(ApiProblem::new(
                StatusCode::FORBIDDEN,
                "changes over HTTP are disabled: set admin.operator-token",
            ));
        }
        match self.right_in(headers, peer)? {
            Some(Right::Act) => {}
            Some(Right::Read) => {
                return Err(ApiProblem::new(
                    StatusCode::FORBIDDEN,
                    "this token is admin.token, which is read-only; changes require \
                    admin.operator-token",
                ));
            }
            None => return Err(ApiProblem::unauthorized(headers, "admin.operator-token")),
        }
        let kind = one(headers, &header::CONTENT_TYPE).and_then(|kind| kind.split(';').next());
        match kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json")) {
            true => Ok(()),
            false => Err(ApiProblem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "the header `Content-Type: application/json` is required",
            )),
        }
    }
}

/// Returns the value of a header that occurs exactly once.
pub fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (Some(only), None) => only.to_str().ok(),
        _ => None,
    }
}

/// Checks that the request does not come from another site's page in a browser.
///
/// # Errors
/// It comes from another site.
pub fn own_site(headers: &HeaderMap) -> Result<(), ApiProblem> {
    let own_fetch = match headers.get("sec-fetch-site") {
        None => true,
        Some(site) => site == "same-origin" || site == "none",
    };
    let own_origin = match headers.get(header::ORIGIN) {
        None => true,
        Some(_) => {
            let origin = one(headers, &header::ORIGIN).and_then(|origin| origin.split_once("://"));
            let host = one(headers, &header::HOST);
            matches!((origin, host), (Some((_, origin)), Some(host)) if origin.eq_ignore_ascii_case(host))
        }
    };
    match own_fetch && own_origin {
        true => Ok(()),
        false => Err(ApiProblem::new(
            StatusCode::FORBIDDEN,
            "the request comes from a page of another site",
        )),
    }
}

/// Returns true if the client is a program on this machine, addresses it by a name that only this
/// machine has, and acts for no other client.
fn is_local_client(headers: &HeaderMap, peer: SocketAddr) -> bool {
    let is_local = one(headers, &header::HOST).is_some_and(is_local);
    let forwards = FORWARDED.iter().any(|name| headers.contains_key(*name));
    peer.ip().to_canonical().is_loopback() && is_local && !forwards
}

/// Returns true for `localhost` or a loopback address, with or without a port.
fn is_local(host: &str) -> bool {
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) => name,
        _ => host,
    };
    let bare = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let address: Option<IpAddr> = bare.unwrap_or(name).parse().ok();
    name.eq_ignore_ascii_case("localhost")
        || address.is_some_and(|address| address.to_canonical().is_loopback())
}

/// Returns the bearer token if `headers` contain exactly one.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(only), None) = (all.next(), all.next()) else {
        return None;
    };
    let (scheme, shown) = only.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let all = all.iter().map(|(name, value)| {
            let value = value.parse().expect("a value");
            (HeaderName::from_static(name), value)
        });
        all.collect()
    }

    #[test]
    fn a_host_name_that_others_choose_is_not_local() {
        for local in [
            "localhost",
            "LOCALHOST:9464",
            "127.0.0.1",
            "127.8.9.1:80",
            "[::1]",
            "[::1]:9464",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert!(is_local(local), "{local}");
        }
        for other in [
            "",
            "x",
            "localhost.example.com",
            "127.0.0.1.example.com",
            "10.0.0.1:80",
            "[fe80::1]",
            "localhost:80:80",
            "localhost@x",
            "example.com:9464",
        ] {
            assert!(!is_local(other), "{other}");
        }
    }

    #[test]
    fn without_a_token_only_local_clients_read_and_none_act() {
        let guard = Guard::of(&Admin {
            listen: ([0, 0, 0, 0], 0).into(),
            token: None,
            operator_token: None,
        });
        let read = |peer: &str, all: &[(&'static str, &str)]| {
            let peer = format!("{peer}:1").parse().expect("an address");
            guard.may_read(&headers(all), peer).is_ok()
        };
        let host = ("host", "localhost:9464");
        assert!(read("127.0.0.1", &[host]) && read("[::ffff:127.0.0.1]", &[host]));
        assert!(!read("10.0.0.1", &[host]) && !read("127.0.0.1", &[]));
        for more in [
            ("host", "localhost:9464"),
            ("x-forwarded-for", "1.2.3.4"),
            ("via", "1.1 x"),
            ("origin", "https://example.com"),
            ("origin", "null"),
            ("origin", ""),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            let mut all = headers(&[host]);
            let value = more.1.parse().expect("a value");
            all.append(HeaderName::from_static(more.0), value);
            let peer = ([127, 0, 0, 1], 1).into();
            assert!(guard.may_read(&all, peer).is_err(), "{more:?}");
        }
        assert!(read(
            "127.0.0.1",
            &[host, ("origin", "http://localhost:9464")]
        ));
        assert!(read(
            "127.0.0.1",
            &[host, ("sec-fetch-site", "same-origin")]
        ));
        let here = ([127, 0, 0, 1], 1).into();
        assert!(guard.may_act(&headers(&[host]), here).is_err());
    }

    #[test]
    fn wrong_tokens_are_counted_and_valid_tokens_still_pass() {
        let guard = Guard::of(&Admin {
            listen: ([0, 0, 0, 0], 0).into(),
            token: Some(Secret::new("reader-0123456789")),
            operator_token: Some(Secret::new("operator-0123456789")),
        });
        let peer = ([10, 0, 0, 1], 1).into();
        let read = |value: &str| guard.may_read(&headers(&[("authorization", value)]), peer);
        let status = |value: &str| read(value).expect_err("wrong").status().as_u16();
        for _ in 0..10 {
            assert_eq!(status("Bearer wrong"), 401);
        }
        assert_eq!(status("Bearer wrong"), 429);
        // Neither counts as a wrong token.
        assert_eq!(status("Basic d3Jvbmc6d3Jvbmc="), 401);
        assert_eq!(
            guard
                .may_read(&headers(&[]), peer)
                .expect_err("none")
                .status(),
            401
        );
        for right in ["reader", "operator"] {
            assert!(read(&format!("Bearer {right}-0123456789")).is_ok());
        }
        let act = |value: &str| {
            let headers = headers(&[
                ("authorization", value),
                ("content-type", "application/json"),
            ]);
            guard.may_act(&headers, peer)
        };
        assert!(act("Bearer operator-0123456789").is_ok());
        assert_eq!(
            act("Bearer reader-0123456789").expect_err("reads").status(),
            403
        );
        assert_eq!(act("Bearer wrong").expect_err("wrong").status(), 429);
        assert!(guard.ignores_probes());
    }
}
