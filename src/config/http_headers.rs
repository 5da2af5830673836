//! `dispatch.http.headers`: what the API wants to see with each call. Their values are secrets, and no error holds one.

use ::http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value as Json, json};
use url::Url;

use super::error::shown;
use super::form::{self, Wrong};
use super::input::Input;
use super::key::Setting;
use super::secret::SecretUrl;
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

impl Input {
    /// The headers of both settings together. `url` may have a user, who is one of them.
    pub(super) fn headers(
        &mut self,
        url: Option<&SecretUrl>,
        setting: &Setting<Raw>,
        file: &Setting<String>,
    ) -> Option<HeaderMap> {
        let mut headers = HeaderMap::new();
        let has_user = url.is_some_and(has_user);
        let here = self.entry(&setting.key).map(|entry| Ok(entry.raw.clone()));
        let there = self.entry(&file.key).map(|entry| {
            let text = self.named_file(entry, file);
            text.and_then(|text| in_file(&text))
        });
        let mut good = true;
        for (key, read) in [(&setting.key, here), (&file.key, there)] {
            let added = match read {
                Some(read) => read.and_then(|raw| add(&mut headers, &raw, has_user)),
                None => Ok(()),
            };
            if let Err(words) = added {
                good = false;
                self.wrong::<()>(key, words);
            }
        }
        good.then_some(headers)
    }
}

/// The path of a file of headers.
pub(super) fn path(raw: &Raw) -> Result<String, Wrong> {
    form::text(raw, &format!("the path of a file with {MUST}")).map(str::to_owned)
}

pub(super) fn schema() -> Json {
    json!({
        "type": "object",
        "maxProperties": MOST,
        "propertyNames": {
            "pattern": "^[-!#$%&'*+.^_`|~0-9A-Za-z]+$",
            "not": {"pattern": format!("^([Cc][Oo][Nn][Tt][Ee][Nn][Tt]-.*|{})$", OURS.join("|"))},
        },
        "additionalProperties": {
            "type": "string",
            "minLength": 1,
            "maxLength": LONGEST,
            "pattern": "^[^\\s\\u0000-\\u001f\\u007f]([^\\u0000-\\u001f\\u007f]*[^\\s\\u0000-\\u001f\\u007f])?$",
        },
    })
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
