//! Names of headers that publishers set, and lists of HTTP headers.

use ::http::header::HeaderName;
use serde_json::{Value as Json, json};

use crate::reading::parse::text;
use crate::reading::{Raw, ValueError, shown, wrong};
use crate::shape;
use rules::headers::{self, is_reserved};

/// Pattern of the schema for the name of an HTTP header.
pub(crate) const HTTP_NAME: &str = "^[-!#$%&'*+.^_`|~0-9A-Za-z]+$";
/// Pattern of the schema for a text without control characters, and without spaces at its ends.
pub(crate) const TRIMMED: &str =
    "^[^\\s\\u0000-\\u001f\\u007f]([^\\u0000-\\u001f\\u007f]*[^\\s\\u0000-\\u001f\\u007f])?$";

/// Parses a header's name, such as `x-plan`.
pub(crate) fn header_name(raw: &Raw) -> Result<String, ValueError> {
    const MUST: &str = "a header's name of 1 to 255 bytes, such as x-plan";
    let name = text(raw, MUST)?;
    if !headers::is_name(name) {
        return Err(wrong(
            raw,
            format_args!("{MUST}, without control characters and spaces at its ends"),
        ));
    }
    publisher_header(name)
}

/// Parses the name after `header:`.
pub(crate) fn after_prefix(name: &str) -> Result<String, ValueError> {
    if !headers::is_name(name) {
        return Err("must name a header of 1 to 255 bytes after `header:`, without control characters and spaces at its ends".to_owned());
    }
    publisher_header(name)
}

/// Parses a list of at most `max` names of HTTP headers, which `check` accepts. Returns each name as
/// written and as a header.
pub(crate) fn http_names(
    raw: &Raw,
    must: &str,
    max: usize,
    check: impl Fn(&str, &HeaderName) -> Result<(), ValueError>,
) -> Result<Vec<(String, HeaderName)>, ValueError> {
    let Raw::List(items) = raw else {
        return Err(wrong(raw, must));
    };
    if items.len() > max {
        return Err(format!("has {} names; the maximum is {max}", items.len()));
    }
    let mut names: Vec<(String, HeaderName)> = Vec::new();
    for item in items {
        let Raw::Text(name) = &item.raw else {
            return Err(format!("has an entry that is not text; it must be {must}"));
        };
        let called = shown(name);
        let header = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| format!("{called} has characters that are invalid in an HTTP header"))?;
        check(name, &header)?;
        if names.iter().any(|(_, known)| *known == header) {
            return Err(format!("{called} is listed twice"));
        }
        names.push((name.clone(), header));
    }
    Ok(names)
}

/// Returns the schema of a list of at most `max` names of HTTP headers.
pub(crate) fn http_names_schema(max: usize) -> Json {
    json!({"type": "array", "maxItems": max, "items": shape::pattern(HTTP_NAME)})
}

/// Returns the header `name` if publishers can set it and its value stays as long as the job lives.
fn publisher_header(name: &str) -> Result<String, ValueError> {
    if is_reserved(name) {
        return Err(format!(
            "names the header {}, which Sluicegate or RabbitMQ sets; use a header that publishers \
            set",
            shown(name)
        ));
    }
    Ok(name.to_owned())
}
