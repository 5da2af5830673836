//! Names of exchanges and routing keys in the configuration.

use crate::reading::{Raw, ValueError, parse};

/// Maximum length of a name in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 255;
/// Pattern for the schema: no control characters.
pub(crate) const PATTERN: &str = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$";

/// Parses a name.
pub(crate) fn name(raw: &Raw, must: &str) -> Result<String, ValueError> {
    let text = parse::text(raw, must)?;
    if text.len() > MAX_NAME_BYTES {
        return Err(format!("has {} bytes; it must be {must}", text.len()));
    }
    if text.contains(char::is_control) {
        return Err(format!("has a control character; it must be {must}"));
    }
    Ok(text.to_owned())
}

/// Parses a name that may be empty.
pub(crate) fn name_or_empty(raw: &Raw, must: &str) -> Result<String, ValueError> {
    match raw {
        Raw::Text(text) if text.is_empty() => Ok(String::new()),
        raw => name(raw, must),
    }
}
