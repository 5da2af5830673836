//! Values that must not be shown: URLs that may contain a password, and tokens. They are kept for
//! use, and shown without their secret.

use std::fmt;

use url::{ParseError, Url};

use super::url_parts::{parse_url, restore_host};
use crate::reading::{ShownValue, show};

/// A URL that may contain a user and a password. `Debug` and `Display` show it redacted.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl(String);

impl SecretUrl {
    /// Keeps `url`, which may contain a user and a password.
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }
    /// Returns the URL with its password. It is for connecting; never print it.
    pub fn expose(&self) -> &str {
        &self.0
    }
    /// Parses the URL. A label stands for each placeholder in its host.
    ///
    /// # Errors
    /// It is not a URL.
    pub fn parse(&self) -> Result<Url, ParseError> {
        parse_url(&self.0)
    }
    /// Returns true if the URL's scheme is `scheme`, ignoring case.
    pub(crate) fn has_scheme(&self, scheme: &str) -> bool {
        let begin = self.0.split(':').next().unwrap_or_default();
        begin.eq_ignore_ascii_case(scheme)
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(mut url) = self.parse() else {
            return f.write_str("<unreadable url>");
        };
        // A bare `/` or `#` in a password makes a parser read the rest as a path. The `@` behind it
        // reveals that.
        if !url.has_host() || misplaced_at(&url) {
            return f.write_str("<url>");
        }
        if url.password().is_some() && url.set_password(Some("***")).is_err() {
            return f.write_str("<url>");
        }
        // A user without a password in an HTTP URL is often an API token.
        let web = matches!(url.scheme(), "http" | "https");
        if web && !url.username().is_empty() && url.set_username("***").is_err() {
            return f.write_str("<url>");
        }
        // Queries may contain keys and tokens.
        if url.query().is_some() {
            url.set_query(Some("***"));
        }
        url.set_fragment(None);
        // Restores placeholders as written.
        if self.0.contains('{') {
            let shown = url.as_str().replace("%7B", "{").replace("%7D", "}");
            return f.write_str(&restore_host(shown, &self.0));
        }
        f.write_str(url.as_str())
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A token. `Debug` and `Display` show `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
    /// Returns the text. It is for comparing; never print it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

show!(|urls: &[SecretUrl]| shown_urls(urls) => Vec<SecretUrl>);
show!(|url| shown_urls(std::slice::from_ref(url)) => SecretUrl);
show!(|secret: &Secret| ShownValue::hidden(secret.expose()) => Secret);

/// Returns a comma-separated list of URLs, shown without passwords.
pub(super) fn shown_urls(urls: &[SecretUrl]) -> ShownValue {
    let (shown, secret): (Vec<_>, Vec<_>) = (urls.iter())
        .map(|url| (url.to_string(), url.expose()))
        .unzip();
    ShownValue::Secret {
        shown: shown.join(","),
        secret: secret.join(","),
    }
}

/// Returns true if there is an `@` behind the host, which was meant as the end of the password.
pub(super) fn misplaced_at(url: &Url) -> bool {
    url.path().contains('@') || url.fragment().is_some_and(|text| text.contains('@'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_form_of_a_url_shows_its_secret() {
        for (url, shown) in [
            ("amqp://u:hunter2@h:5672/%2f", "amqp://u:***@h:5672/%2f"),
            ("redis://:hunter2@h", "redis://:***@h"),
            ("rediss://h/1?password=hunter2", "rediss://h/1?***"),
            ("https://hunter2@h/a#hunter2", "https://***@h/a"),
            ("https://u:hunter2@h/a", "https://***:***@h/a"),
            ("amqp://u:12/hunter2@h/", "<url>"),
            ("amqp://u:12#hunter2@h/", "<url>"),
            ("amqp:hunter2", "<url>"),
            ("u:hunter2 @h", "<url>"),
            ("hunter2", "<unreadable url>"),
            ("http://h:8080/x", "http://h:8080/x"),
            (
                "http://h/v1/{tenant}?q={id}&key=hunter2",
                "http://h/v1/{tenant}?***",
            ),
            (
                "https://u:hunter2@{json:/shop/id}.{tenant}.h.com:444/{id}",
                "https://***:***@{json:/shop/id}.{tenant}.h.com:444/{id}",
            ),
        ] {
            let secret = SecretUrl::new(url);
            assert_eq!(secret.to_string(), shown, "{url}");
            assert_eq!(format!("{secret:?}"), shown, "{url}");
            assert_eq!(secret.expose(), url);
        }
    }
}
