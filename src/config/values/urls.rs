//! URLs of servers: one, or several as a list or separated by commas. No error shows any part of
//! them.

use url::Url;

use super::secret::{SecretUrl, misplaced_at};
use super::url_parts::parse_url;
use crate::reading::{Raw, ValueError, parse, yaml};

/// Maximum number of nodes or seeds of a cluster, and of sentinels.
const MAX_SERVERS: usize = 32;

/// Form of the URLs of a key.
pub(crate) struct UrlForm {
    /// Scheme without TLS, and with TLS.
    pub schemes: [&'static str; 2],
    pub example: &'static str,
}

impl UrlForm {
    fn must(&self) -> String {
        format!("a URL such as {}", self.example)
    }

    /// Parses one URL.
    pub fn one(&self, raw: &Raw) -> Result<SecretUrl, ValueError> {
        self.url(parse::secret(raw, &self.must())?)
    }

    /// Parses one or several URLs.
    pub fn several(&self, raw: &Raw) -> Result<Vec<SecretUrl>, ValueError> {
        let must = self.must();
        let text = match raw {
            Raw::List(urls) => yaml::joined(urls)
                .ok_or_else(|| format!("has an entry that is not a URL; each must be {must}"))?,
            raw => parse::secret(raw, &must)?.to_owned(),
        };
        let urls = split(&text, self.schemes[0]);
        if urls.len() > MAX_SERVERS {
            let count = urls.len();
            return Err(format!("has {count} servers; the maximum is {MAX_SERVERS}"));
        }
        urls.iter().map(|url| self.url(url)).collect()
    }

    /// Parses a URL with one of the schemes and a host.
    fn url(&self, text: &str) -> Result<SecretUrl, ValueError> {
        let (schemes, must) = (self.schemes, self.must());
        if text.contains(|c: char| c.is_control() || c.is_whitespace()) {
            return Err(format!(
                "has a space or a control character; it must be {must}"
            ));
        }
        let url = parse_url(text).map_err(|err| match err {
            url::ParseError::RelativeUrlWithoutBase => {
                format!("is not a valid URL: it has no scheme; it must be {must}")
            }
            url::ParseError::InvalidPort => format!(
                "has an invalid port; it must be {must} (in a password, write : / @ and # \
                percent-encoded)"
            ),
            other => format!("is not a valid URL: {other}; it must be {must}"),
        })?;
        if !schemes.contains(&url.scheme()) {
            return Err(format!(
                "has the wrong scheme; it must begin with {}:// or {}://",
                schemes[0], schemes[1]
            ));
        }
        // `https:host` is a URL, too, but a mistake here.
        if !text.contains("://") {
            return Err(format!("has no :// after its scheme; it must be {must}"));
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err(format!("has no host; it must be {must}"));
        }
        if misplaced_at(&url) {
            return Err("has an @ after the host; in a user or a password, write : / @ and # percent-encoded (%3A %2F %40 %23)".to_owned());
        }
        let path = url.path().trim_start_matches('/');
        match schemes[0] {
            "amqp" if path.contains('/') || (url.path().starts_with("//") && !path.is_empty()) => Err(
                "has a virtual host with a bare /; write it percent-encoded, such as /%2f for the default one".to_owned(),
            ),
            "redis" if url.query().is_some() || url.fragment().is_some() => Err(
                "has a ? or # after the host, which has no meaning here; write the database \
                number as the path, such as /0".to_owned(),
            ),
            "redis" if !path.is_empty() && path.parse::<u16>().is_err() => {
                Err("has a path that is not a database number, such as /0".to_owned())
            }
            _ => Ok(SecretUrl::new(text)),
        }
    }
}

const PROXIES: UrlForm = UrlForm {
    schemes: ["http", "https"],
    example: "http://proxy.example.com:3128",
};

/// Parses the URL of a proxy, which has no path.
pub(crate) fn proxy(raw: &Raw) -> Result<SecretUrl, ValueError> {
    let url = PROXIES.one(raw)?;
    let parsed = Url::parse(url.expose()).map_err(|err| format!("is not a valid URL: {err}"))?;
    let is_bare = parsed.path() == "/" && parsed.query().is_none() && parsed.fragment().is_none();
    match (url.has_scheme("http"), is_bare) {
        (true, true) => Ok(url),
        _ => Err(format!(
            "must be a URL such as {}, without a path",
            PROXIES.example
        )),
    }
}

/// Splits `list` into URLs whose scheme begins with `scheme`. A comma that is not followed by a
/// scheme belongs to the URL, since passwords may contain one.
fn split(list: &str, scheme: &str) -> Vec<String> {
    let mut urls: Vec<String> = Vec::new();
    for part in list.split(',') {
        match urls.last_mut() {
            Some(last) if !part.trim_start().starts_with(scheme) => {
                last.push(',');
                last.push_str(part);
            }
            _ => urls.push(part.trim().to_owned()),
        }
    }
    urls
}

/// Joins `urls` with commas, as in the configuration, without passwords.
pub(crate) fn join(urls: &[SecretUrl]) -> String {
    let urls: Vec<String> = urls.iter().map(SecretUrl::to_string).collect();
    urls.join(",")
}

/// Returns why `urls` can't be used together, or `None` if they can. All servers are used with the
/// TLS, the login and, in RabbitMQ, the virtual host of the first.
pub(crate) fn difference(urls: &[SecretUrl]) -> Option<&'static str> {
    let urls: Vec<Url> = urls.iter().filter_map(|url| url.parse().ok()).collect();
    let is_amqp = urls.first()?.scheme().starts_with("amqp");
    if differ(&urls, Url::scheme) {
        Some("has servers with and without TLS; use the same scheme for all")
    } else if differ(&urls, |url| (url.username(), url.password())) {
        Some("has servers with different users or passwords; all must have the same login")
    } else if is_amqp && differ(&urls, place) {
        Some("has servers with different virtual hosts; all must have the same virtual host")
    } else {
        None
    }
}

fn differ<'u, T: PartialEq>(urls: &'u [Url], part: impl Fn(&'u Url) -> T) -> bool {
    urls.windows(2).any(|two| part(&two[0]) != part(&two[1]))
}

/// Returns the virtual host or the database that `url` names. No path, `/` and `/%2f` all name the
/// default virtual host.
pub(crate) fn place(url: &Url) -> String {
    match url.path().trim_start_matches('/') {
        "" if url.scheme().starts_with("amqp") => "%2f".to_owned(),
        "" => "0".to_owned(),
        name => name.replace("%2F", "%2f"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_split_where_a_url_begins() {
        for (list, urls) in [
            ("redis://a", vec!["redis://a"]),
            (
                "redis://a:1, rediss://b:2",
                vec!["redis://a:1", "rediss://b:2"],
            ),
            (
                "redis://:p,w@a:1,redis://b",
                vec!["redis://:p,w@a:1", "redis://b"],
            ),
            ("a,b", vec!["a,b"]),
            ("", vec![""]),
        ] {
            assert_eq!(split(list, "redis"), urls, "{list}");
        }
    }
}
