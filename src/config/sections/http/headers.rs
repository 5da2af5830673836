//! Headers of calls: `dispatch.http.headers`, whose values are secret and never in an error;
//! `dispatch.http.forward-headers`; and `dispatch.http.idempotency-key`, which makes an API do the
//! same work only once.

use ::http::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
};
use serde_json::{Value as Json, json};

use crate::reading::{
    ConfigInput, ConfigKey, Raw, Show, ShownValue, ValueError, YamlField, parse, shown, wrong, yaml,
};
use crate::sections::placeholders;
use crate::values::header::{HTTP_NAME, TRIMMED, http_names};
use crate::values::secret::SecretUrl;
use rules::headers::is_reserved;
use rules::job::call::{CarriedFields, Template};

/// Maximum number of headers.
pub(super) const MAX_HEADERS: usize = 32;
/// Maximum length of a value in bytes. It exceeds any API key, and is less than the part of an
/// answer in which echoed values are searched for.
const MAX_VALUE_BYTES: usize = 1 << 10;
/// Headers of the connection or the job. Headers that begin with `content-` belong to the body.
const OWN_HEADERS: [&str; 12] = [
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

/// Returns true if Sluicegate sets the header `name` (in lower case), or no request may choose it.
fn is_ours(name: &str) -> bool {
    // These two are forwarded from the message's properties.
    let of_body = name.starts_with("content-") && name != CONTENT_TYPE && name != CONTENT_ENCODING;
    OWN_HEADERS.contains(&name) || of_body
}

const MUST: &str = "names of headers with their values, such as x-api-key: \"…\"";

/// Configured headers of each call.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ConfiguredHeaders {
    /// Headers with the same value for all jobs, marked as sensitive.
    pub same: HeaderMap,
    /// Headers with placeholders.
    pub of_jobs: Vec<(HeaderName, Template)>,
}

impl ConfiguredHeaders {
    /// Returns true if there is a header of this name, in any case.
    pub(crate) fn has_named(&self, name: &str) -> bool {
        HeaderName::from_bytes(name.as_bytes()).is_ok_and(|name| self.has(&name))
    }

    /// Returns the names and whole values, which must never be printed.
    pub(crate) fn expose(&self) -> impl Iterator<Item = (&HeaderName, String)> {
        let of_jobs = (self.of_jobs.iter()).map(|(name, template)| (name, template.expose()));
        let same = (self.same.iter())
            .map(|(name, value)| (name, String::from_utf8_lossy(value.as_bytes()).into_owned()));
        same.chain(of_jobs)
    }

    /// Returns true if there is a header of this name.
    pub(crate) fn has(&self, name: &HeaderName) -> bool {
        self.same.contains_key(name) || self.of_jobs.iter().any(|(own, _)| own == name)
    }
}

impl Show for ConfiguredHeaders {
    /// Returns the names with hidden values.
    fn shown(&self) -> Option<ShownValue> {
        let mut all = (self.expose())
            .map(|(name, secret)| (name, ShownValue::hidden(&secret)))
            .peekable();
        (all.peek().is_some()).then(|| ShownValue::names(all))
    }
}

impl ConfigInput {
    /// Reads the headers of `key` and of its file. `url` may contain a user, which sets one of the
    /// headers.
    pub(crate) fn headers(
        &mut self,
        url: Option<&SecretUrl>,
        key: &'static ConfigKey,
        carried: &mut CarriedFields,
    ) -> Option<ConfiguredHeaders> {
        let mut headers = ConfiguredHeaders::default();
        let has_user = url.is_some_and(has_user);
        let file = key.file?;
        let here = self.entry(key).map(|entry| Ok(entry.raw.clone()));
        let there = self.entry(&file.key).map(|entry| {
            let text = self.named_file(entry, file);
            text.and_then(|text| in_file(&text))
        });
        let mut good = true;
        for (key, read) in [(key, here), (&file.key, there)] {
            let mistakes = match read {
                Some(Ok(raw)) => add_all((&mut headers, carried), &raw, key.path, has_user),
                Some(Err(words)) => vec![words],
                None => Vec::new(),
            };
            for words in mistakes {
                good = false;
                self.wrong::<()>(key, words);
            }
        }
        good.then_some(headers)
    }
}

/// Parses the path of a file of headers.
pub(crate) fn path(raw: &Raw) -> Result<String, ValueError> {
    parse::text(raw, &format!("the path of a file with {MUST}")).map(str::to_owned)
}

pub(crate) fn schema() -> Json {
    json!({
        "type": "object",
        "maxProperties": MAX_HEADERS,
        "propertyNames": {
            "pattern": HTTP_NAME,
            "not": {"pattern": format!("^([Cc][Oo][Nn][Tt][Ee][Nn][Tt]-.*|{})$", OWN_HEADERS.join("|"))},
        },
        "additionalProperties": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_VALUE_BYTES,
            "pattern": TRIMMED,
        },
    })
}

/// Parses a file of headers. Errors omit the parser's message, which may contain a value.
fn in_file(text: &str) -> Result<Raw, ValueError> {
    match yaml::read(text) {
        Ok(raw) => Ok(raw.unwrap_or(Raw::Null)),
        Err(wrong) => Err(match wrong.at {
            Some(at) => format!("line {} of the file is not valid YAML", at.line),
            None => "the file is not valid YAML".to_owned(),
        }),
    }
}

/// Adds the headers in `raw`, the value of `key`, and returns all mistakes. `has_user` says that
/// the URL's user sets authorization.
fn add_all(
    (headers, carried): (&mut ConfiguredHeaders, &mut CarriedFields),
    raw: &Raw,
    key: &'static str,
    has_user: bool,
) -> Vec<ValueError> {
    let Raw::Map(fields) = raw else {
        return vec![format!("must hold {MUST}")];
    };
    let number = headers.same.len() + headers.of_jobs.len() + fields.len();
    if number > MAX_HEADERS {
        return vec![format!(
            "there are too many headers; the maximum is {MAX_HEADERS}"
        )];
    }
    let mut mistakes = Vec::new();
    for field in (1..).zip(fields) {
        mistakes.extend(add((&mut *headers, &mut *carried), field, key, has_user).err());
    }
    mistakes
}

/// Adds the header in `field`, the one with this number in `key`.
fn add(
    (headers, carried): (&mut ConfiguredHeaders, &mut CarriedFields),
    (number, field): (usize, &YamlField),
    key: &'static str,
    has_user: bool,
) -> Result<(), ValueError> {
    // YAML reads `x-api-key:secret` without a space, and `a, b=secret`, as names of keys.
    let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| {
        format!(
            "the name of header {number} has invalid characters (is the space after the \
            colon missing?)"
        )
    })?;
    let called = shown(&field.name);
    if matches!(field.raw, Raw::Null) {
        return Err(format!("header {number} has no value"));
    }
    if [CONTENT_TYPE, CONTENT_ENCODING].contains(&name) {
        let property = name.as_str().replace('-', "_");
        return Err(format!(
            "{called} comes from the property {property} of each message; remove it here"
        ));
    }
    if OWN_HEADERS.contains(&name.as_str()) || name.as_str().starts_with("content-") {
        return Err(format!("{called} is set by Sluicegate itself"));
    }
    if has_user && name == AUTHORIZATION {
        return Err(
            "sets authorization, and the user in dispatch.http.url sets it, too; keep one of \
            them"
                .to_owned(),
        );
    }
    let value = match &field.raw {
        Raw::Text(text) => value(text).ok_or_else(|| {
            format!("the value of {called} must be 1 to {MAX_VALUE_BYTES} bytes, without control characters and spaces at its ends")
        }),
        _ => Err(format!("the value of {called} is not text; put it in quotes")),
    }?;
    if headers.has(&name) {
        return Err(format!("{called} is set twice"));
    }
    let text = String::from_utf8_lossy(value.as_bytes());
    let template = placeholders::header(&text, key, carried)
        .map_err(|words| format!("the value of {called} {words}"))?;
    match template {
        Some(template) => headers.of_jobs.push((name, template)),
        None => drop(headers.same.insert(name, value)),
    }
    Ok(())
}

/// Parses a value and marks it as sensitive, so that it is never shown.
fn value(text: &str) -> Option<HeaderValue> {
    let fits = (1..=MAX_VALUE_BYTES).contains(&text.len()) && text.trim() == text;
    let mut value = HeaderValue::from_bytes(text.as_bytes())
        .ok()
        .filter(|_| fits)?;
    value.set_sensitive(true);
    Some(value)
}

/// Parses `dispatch.http.idempotency-key`, a text with placeholders. Returns `None` if no key is
/// sent.
pub(super) fn idempotency_key(raw: &Raw) -> Result<Option<String>, ValueError> {
    const MUST: &str = "true, false, or a text with placeholders such as \"order-{json:/id}\"";
    match raw {
        Raw::Bool(false) => Ok(None),
        Raw::Bool(true) => Ok(Some("{id}".to_owned())),
        Raw::Text(text) if text == "false" => Ok(None),
        Raw::Text(text) if text == "true" => Ok(Some("{id}".to_owned())),
        raw => {
            let text = parse::text(raw, MUST)?;
            let mut unused = CarriedFields::default();
            let fits = value(text).is_some();
            match placeholders::header(text, "", &mut unused)? {
                Some(_) if fits => Ok(Some(text.to_owned())),
                Some(_) | None => Err(wrong(raw, MUST)),
            }
        }
    }
}

pub(super) fn idempotency_schema() -> Json {
    let [part, placeholder, end] = placeholders::patterns("tenant|id|attempt|secret:tenant");
    let text = format!("^(true|false|{part}*{placeholder}{part}*{end})$");
    json!({"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": text}]})
}

/// Parses `dispatch.http.forward-headers`, names of headers as publishers write them.
pub(crate) fn forward_headers(raw: &Raw) -> Result<Vec<String>, ValueError> {
    const MUST: &str = "a list of header names, such as [traceparent, x-request-id]";
    let check = |name: &str, header: &HeaderName| {
        let called = shown(name);
        if is_ours(header.as_str()) {
            return Err(format!("{called} is set by Sluicegate itself"));
        }
        if is_reserved(name) {
            return Err(format!(
                "names the header {called}, which Sluicegate or RabbitMQ sets"
            ));
        }
        Ok(())
    };
    let names = http_names(raw, MUST, MAX_HEADERS, check)?;
    Ok(names.into_iter().map(|(name, _)| name).collect())
}

/// Returns true if the URL's user or password sets authorization.
pub(super) fn has_user(url: &SecretUrl) -> bool {
    url.parse()
        .is_ok_and(|url| !url.username().is_empty() || url.password().is_some())
}
