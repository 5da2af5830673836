//! Hides our secrets, which an API may echo, in reasons and results.

use hyper::header::{AUTHORIZATION, HeaderMap};
use percent_encoding::percent_decode_str;
use url::Url;

use config::Http;
use rules::job::call::{Template, encode};

/// Minimum length in bytes of a configured header's value that counts as a secret.
const MIN_SECRET_BYTES: usize = 8;
/// Parts of the names of parameters whose values are secret.
const SECRET_NAMES: [&str; 8] = [
    "key", "token", "secret", "sig", "pass", "auth", "cred", "sess",
];
/// Text shown instead of a secret.
const HIDDEN: &[u8] = b"***";

/// The secrets that all calls share.
pub(super) struct Redaction(Vec<String>);

impl Redaction {
    /// Collects the secrets: the password in `url`, or a user without one (a token), in all forms
    /// in which they may come back; the query, and the values in it; and configured values, with and
    /// without a scheme such as `Bearer`, and the values of pairs in them. `headers` are the headers
    /// of every call.
    pub(super) fn of(url: &Url, http: &Http, headers: &HeaderMap) -> Self {
        let credential = url.password().unwrap_or(url.username());
        let basic = headers
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        let basic = basic.and_then(|value| value.strip_prefix("Basic "));
        let decoded = percent_decode_str(credential).decode_utf8_lossy();
        let query = match http.target {
            // The parts that all jobs share are added below.
            Some(_) => "",
            None => url.query().unwrap_or_default(),
        };
        let all = [basic.unwrap_or_default(), credential, &*decoded, query];
        let all = all.into_iter().filter(|secret| !secret.is_empty());
        let keys = http
            .sign_secrets
            .iter()
            .flat_map(|keys| keys.expose().split_whitespace());
        let values = (http.headers.same)
            .values()
            .filter_map(|value| str::from_utf8(value.as_bytes()).ok());
        let of_jobs = http.headers.of_jobs.iter();
        let of_jobs = of_jobs.flat_map(|(_, template)| template.literals().map(str::trim));
        // The query of a URL with placeholders begins in one of the literal parts.
        let mut has_begun = false;
        let in_query = http.target.iter().flat_map(Template::literals);
        let in_query = in_query.filter_map(|text| {
            let query = match has_begun {
                true => text,
                false => text.split_once('?')?.1,
            };
            has_begun = true;
            Some(query)
        });
        let values = values.chain(of_jobs).chain(keys).flat_map(parts_of_value);
        let queries = in_query.chain([query]).flat_map(parts_of_query);
        // Short values such as a version are not secret, and hiding them would remove words from
        // the answer.
        let long = values.map(str::to_owned).chain(queries);
        let long = long.filter(|part| part.len() >= MIN_SECRET_BYTES);
        let mut all: Vec<String> = all.map(str::to_owned).chain(long).collect();
        longest_first(&mut all);
        Self(all)
    }

    /// Returns these secrets and the ones of one call, in the forms in which they may come back,
    /// longest first.
    pub(super) fn with<'s>(&self, of_call: impl Iterator<Item = &'s str>) -> Vec<String> {
        // The encoded form covers a URL that the answer repeats.
        let both = of_call.flat_map(|secret| {
            let mut encoded = String::new();
            encode(secret, &mut encoded);
            [secret.to_owned(), encoded]
        });
        let mut all: Vec<String> = both.chain(self.0.iter().cloned()).collect();
        longest_first(&mut all);
        all
    }
}

/// Returns the parts of a header's value that an answer may repeat: the whole value, the part after a
/// scheme such as `Bearer`, and the value of each secret pair, as in a cookie.
fn parts_of_value(value: &str) -> impl Iterator<Item = &str> {
    let after_scheme = value.split_once(' ').map(|(_, rest)| rest);
    let words = value.split([' ', ',', ';']);
    let values = words
        .filter_map(secret_of_pair)
        .map(|value| value.trim_matches('"'));
    [value].into_iter().chain(after_scheme).chain(values)
}

/// Returns the parts of a query that an answer may repeat: the whole query, and the value of each
/// secret parameter, encoded and decoded.
fn parts_of_query(query: &str) -> impl Iterator<Item = String> {
    let values = query.split('&').filter_map(secret_of_pair);
    let forms = values.flat_map(|value| {
        let spaced = value.replace('+', " ");
        let decoded = percent_decode_str(&spaced).decode_utf8_lossy().into_owned();
        [value.to_owned(), decoded]
    });
    [query.to_owned()].into_iter().chain(forms)
}

/// Returns the value of a pair `name=value` whose name suggests a secret. Other values, such as the
/// one of `expand=customer`, are words that answers contain.
fn secret_of_pair(pair: &str) -> Option<&str> {
    let (name, value) = pair.split_once('=')?;
    let name = name.to_ascii_lowercase();
    let is_secret = SECRET_NAMES.iter().any(|part| name.contains(part));
    is_secret.then_some(value)
}

/// Sorts longer secrets first: hiding a secret that is part of a longer one would leave the rest
/// visible.
fn longest_first(secrets: &mut [String]) {
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
}

/// Returns `text`, which may be any bytes, with each of `secrets` hidden. Searches it once per
/// secret.
pub(super) fn hide(text: &[u8], secrets: &[String]) -> Vec<u8> {
    let mut text = text.to_vec();
    for secret in secrets.iter().map(String::as_bytes) {
        let (mut shown, mut rest) = (Vec::new(), &text[..]);
        while let Some(at) = find(rest, secret) {
            shown.extend_from_slice(&rest[..at]);
            shown.extend_from_slice(HIDDEN);
            rest = &rest[at + secret.len()..];
        }
        if !shown.is_empty() {
            shown.extend_from_slice(rest);
            text = shown;
        }
    }
    text
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    let first = *part.first()?;
    let mut from = 0;
    loop {
        let at = from + text[from..].iter().position(|byte| *byte == first)?;
        if text[at..].starts_with(part) {
            return Some(at);
        }
        from = at + 1;
    }
}

/// Removes the beginning of a secret from the end of `text`, which was cut there.
pub(super) fn drop_begun(text: &mut Vec<u8>, secrets: &[String]) {
    let prefix_of = |secret: &String| {
        let bytes = secret.as_bytes();
        (1..bytes.len())
            .rev()
            .find(|at| text.ends_with(&bytes[..*at]))
    };
    let longest = secrets.iter().filter_map(prefix_of).max().unwrap_or(0);
    text.truncate(text.len() - longest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Config;

    /// Returns `text` without the secrets of a handler with these keys of `dispatch.http`.
    #[track_caller]
    fn hidden(keys: &str, text: &str) -> String {
        let yaml = format!("dispatch: {{http: {{{keys}}}}}");
        let config = Config::parse("c.yaml", &yaml, std::iter::empty()).expect("valid");
        let http = config.dispatch.http.expect("an API");
        let url = http.url.parse().expect("a url");
        let redaction = Redaction::of(&url, &http, &HeaderMap::new());
        let text = hide(text.as_bytes(), &redaction.with(std::iter::empty()));
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn a_secret_is_hidden_without_what_surrounds_it() {
        let query = "url: 'http://h/?v=2&key=hunter2%2Bhunter2&last'";
        let templates = "url: 'http://h/?v=2&key=hunter2%2Bhunter2&of={tenant}'";
        for (keys, text, expected) in [
            (query, "?v=2&key=hunter2%2Bhunter2&last", "?***"),
            (query, "?v=2&amp;key=hunter2%2Bhunter2", "?v=2&amp;key=***"),
            (query, "bad key hunter2+hunter2", "bad key ***"),
            (query, "v=2 is the last", "v=2 is the last"),
            (
                "url: 'http://h/?include=line_items'",
                "{\"line_items\":1}",
                "{\"line_items\":1}",
            ),
            (templates, "bad key hunter2%2Bhunter2", "bad key ***"),
            (templates, "bad key hunter2+hunter2", "bad key ***"),
            (
                "url: 'http://h/', headers: {cookie: 'a=b; session=hunter2hunter2'}",
                "no session hunter2hunter2, a=b",
                "no session ***, a=b",
            ),
            (
                "url: 'http://h/', headers: {authorization: 'Token token=\"hunter2=\", v=2'}",
                "no token hunter2=",
                "no token ***",
            ),
        ] {
            assert_eq!(hidden(keys, text), expected, "{keys}");
        }
    }
}
