//! `dispatch.http.headers`: what the API wants to see with each call. Their values are secrets, and no error holds one.

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use url::Url;

use super::SecretUrl;
use super::error::shown;
use super::form::Wrong;
use super::keys::{HEADERS, HEADERS_FILE};
use super::values::{LONGEST_SECRET, Values};
use super::yaml::{self, Raw};

/// More are no sign of a use.
const MOST: usize = 32;
/// In bytes: longer than any key, and a part of what is kept of an answer, in which it is looked for.
const LONGEST: usize = 1 << 10;
/// What belongs to the connection or to the job; what begins with `content-` belongs to the body.
const OURS: [&str; 12] = [
    "connection",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-attempt",
    "x-job-id",
    "x-tenant",
];
const MUST: &str = "names of headers with their values, such as x-api-key: \"…\"";

impl Values {
    /// The headers of both keys together. `url` may have a user, who is one of them.
    pub(super) fn headers(&mut self, url: Option<&SecretUrl>) -> Option<HeaderMap> {
        let mut headers = HeaderMap::new();
        let mut good = true;
        let has_user = url.is_some_and(has_user);
        for key in [HEADERS, HEADERS_FILE] {
            let Some(entry) = self.entry(key).cloned() else {
                continue;
            };
            let read = if key == HEADERS {
                Ok(entry.raw)
            } else {
                let what = format!("the path of a file with {MUST}");
                let text = self.named_file(&entry, &what, LONGEST_SECRET);
                text.and_then(|(_, text)| in_file(&text))
            };
            if let Err(words) = read.and_then(|raw| add(&mut headers, &raw, has_user)) {
                good = false;
                self.wrong::<()>(key, words);
            }
        }
        good.then_some(headers)
    }
}

/// What a file of headers holds; the parser's words may hold a value.
fn in_file(text: &str) -> Result<Raw, Wrong> {
    match yaml::read(text) {
        Ok(raw) => Ok(raw.unwrap_or(Raw::Null)),
        Err(wrong) => Err(match wrong.at {
            Some(at) => format!("line {} of the file is not valid YAML", at.line),
            None => "the file is not valid YAML".to_owned(),
        }),
    }
}

/// Adds what `raw` holds; `has_user`: the url has one, so authorization is set.
fn add(headers: &mut HeaderMap, raw: &Raw, has_user: bool) -> Result<(), Wrong> {
    let Raw::Map(fields) = raw else {
        return Err(format!("must hold {MUST}"));
    };
    for (number, field) in (1..).zip(fields) {
        // `x-api-key:secret` without a space, and `a, b=secret`, are names for YAML.
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| {
            format!("the name of header {number} has characters that no name may have (is the space behind its colon missing?)")
        })?;
        let called = shown(&field.name);
        if matches!(field.raw, Raw::Null) {
            return Err(format!("header {number} has no value"));
        }
        if OURS.contains(&name.as_str()) || name.as_str().starts_with("content-") {
            return Err(format!("{called} is set by Sluicegate itself"));
        }
        if has_user && name == AUTHORIZATION {
            return Err(
                "sets authorization, and so does the user in dispatch.http.url; keep one of them"
                    .to_owned(),
            );
        }
        let value = match &field.raw {
            Raw::Text(text) => value(text).ok_or_else(|| {
                format!("the value of {called} must be 1 to {LONGEST} bytes, without control characters and spaces at its ends")
            }),
            _ => Err(format!("the value of {called} is no text; put it in quotes")),
        }?;
        if headers.insert(name, value).is_some() {
            return Err(format!("{called} is set twice"));
        }
        if headers.len() > MOST {
            return Err(format!("there are more than {MOST} headers"));
        }
    }
    Ok(())
}

/// A value that is never shown.
fn value(text: &str) -> Option<HeaderValue> {
    let fits = (1..=LONGEST).contains(&text.len()) && text.trim() == text;
    let mut value = HeaderValue::from_bytes(text.as_bytes())
        .ok()
        .filter(|_| fits)?;
    value.set_sensitive(true);
    Some(value)
}

fn has_user(url: &SecretUrl) -> bool {
    Url::parse(url.expose()).is_ok_and(|url| !url.username().is_empty() || url.password().is_some())
}
