//! Hides our secrets, which an API may echo, in reasons and results.

use hyper::header::{AUTHORIZATION, HeaderMap};
use percent_encoding::percent_decode_str;
use url::Url;

use config::Http;
use rules::job::call::{Template, encode};

/// Minimum length in bytes of a configured header's value that counts as a secret.
const MIN_SECRET_BYTES: usize = 8;
/// Text shown instead of a secret.
const HIDDEN: &[u8] = b"***";

/// The secrets that all calls share.
pub(super) struct Redaction(Vec<String>);

impl Redaction {
    /// Collects the secrets: the password in `url`, or a user without one (a token), in all forms
    /// in which they may come back; the query; and configured values, with and without a scheme
    /// such as `Bearer`. `headers` are the headers of every call.
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
        let values = values.chain(of_jobs).chain(in_query).chain(keys);
        let parts =
            values.flat_map(|value| [Some(value), value.split_once(' ').map(|(_, part)| part)]);
        // Short values such as a version are not secret, and hiding them would remove words from
        // the answer.
        let long = parts
            .flatten()
            .filter(|part| part.len() >= MIN_SECRET_BYTES);
        let mut all: Vec<String> = all.chain(long).map(str::to_owned).collect();
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
