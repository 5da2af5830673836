//! Who may ask what.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use subtle::ConstantTimeEq;

use super::problem::Problem;
use crate::config::{Admin, Secret};

/// Who asked in another's place says so in one of these.
const FORWARDED: [&str; 4] = ["forwarded", "via", "x-forwarded-for", "x-real-ip"];

/// What is to be shown.
pub struct Guard {
    token: Option<Secret>,
    operator_token: Option<Secret>,
}

impl Guard {
    /// That of `admin`.
    pub fn of(admin: &Admin) -> Self {
        Self {
            token: admin.token.clone(),
            operator_token: admin.operator_token.clone(),
        }
    }

    /// Who sends `headers` from `peer` may look.
    ///
    /// # Errors
    /// What is missing.
    pub fn may_read(&self, headers: &HeaderMap, peer: SocketAddr) -> Result<(), Problem> {
        own_site(headers)?;
        let operator = self.operator_token.as_ref();
        if operator.is_some_and(|token| shows(headers, token)) {
            return Ok(());
        }
        match &self.token {
            Some(token) if shows(headers, token) => Ok(()),
            Some(_) => Err(Problem::unauthorized(headers, "admin.token")),
            None if is_here(headers, peer) => Ok(()),
            None => Err(Problem::new(
                StatusCode::FORBIDDEN,
                "without a token this is for programs of this machine alone, by the name localhost or a loopback address: set admin.token",
            )),
        }
    }

    /// Who sends `headers` may change something.
    ///
    /// # Errors
    /// What is missing.
    pub fn may_act(&self, headers: &HeaderMap) -> Result<(), Problem> {
        own_site(headers)?;
        let Some(operator) = &self.operator_token else {
            return Err(Problem::new(
                StatusCode::FORBIDDEN,
                "nothing can be changed by HTTP: set admin.operator-token",
            ));
        };
        if !shows(headers, operator) {
            let reads = self.token.as_ref();
            return Err(match reads.is_some_and(|token| shows(headers, token)) {
                true => Problem::new(
                    StatusCode::FORBIDDEN,
                    "this token is admin.token, which only reads; admin.operator-token changes something",
                ),
                false => Problem::unauthorized(headers, "admin.operator-token"),
            });
        }
        let kind = one(headers, &header::CONTENT_TYPE).and_then(|kind| kind.split(';').next());
        match kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json")) {
            true => Ok(()),
            false => Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "this needs the header `Content-Type: application/json`",
            )),
        }
    }
}

/// The value of a header that is there once.
pub fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (Some(only), None) => only.to_str().ok(),
        _ => None,
    }
}

/// No page of another site has a browser ask this.
///
/// # Errors
/// One does.
pub fn own_site(headers: &HeaderMap) -> Result<(), Problem> {
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
        false => Err(Problem::new(
            StatusCode::FORBIDDEN,
            "a page of another site asks this",
        )),
    }
}

/// A program of this machine asks, by a name that no other machine can have given it, and for nobody else.
fn is_here(headers: &HeaderMap, peer: SocketAddr) -> bool {
    let is_local = one(headers, &header::HOST).is_some_and(is_local);
    let forwards = FORWARDED.iter().any(|name| headers.contains_key(*name));
    peer.ip().to_canonical().is_loopback() && is_local && !forwards
}

/// `localhost`, or a loopback address, with or without a port.
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

/// `headers` hold `token`, once and nothing else. How long it takes tells nothing of the token but its length.
pub fn shows(headers: &HeaderMap, token: &Secret) -> bool {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(only), None) = (all.next(), all.next()) else {
        return false;
    };
    let Some((scheme, shown)) = only.as_bytes().split_at_checked("Bearer ".len()) else {
        return false;
    };
    scheme.eq_ignore_ascii_case(b"Bearer ") && shown.ct_eq(token.expose().as_bytes()).into()
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
    fn a_name_that_others_can_give_this_machine_is_not_local() {
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
    fn without_a_token_only_this_machine_looks_and_nobody_acts() {
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
        assert!(guard.may_act(&headers(&[host])).is_err());
    }
}
