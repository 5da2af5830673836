//! Names of headers that publishers set.

use super::error::shown;
use super::parse::{ValueError, text, wrong};
use super::yaml::Raw;
use crate::rules::headers::{self, is_reserved};

/// Parses a header's name, such as `x-plan`.
pub(super) fn header_name(raw: &Raw) -> Result<String, ValueError> {
    const MUST: &str = "a header's name of 1 to 255 bytes, such as x-plan";
    let name = text(raw, MUST)?;
    if !headers::is_name(name) {
        return Err(wrong(
            raw,
            format_args!("{MUST}, without control characters and spaces at its ends"),
        ));
    }
    free(name)
}

/// Parses the name after `header:`.
pub(super) fn after_prefix(name: &str) -> Result<String, ValueError> {
    if !headers::is_name(name) {
        return Err("must name a header of 1 to 255 bytes after `header:`, without control characters and spaces at its ends".to_owned());
    }
    free(name)
}

/// Checks that publishers can set the header and that it keeps its value as long as the job lives.
fn free(name: &str) -> Result<String, ValueError> {
    if is_reserved(name) {
        return Err(format!(
            "names the header {}, which Sluicegate or RabbitMQ sets; use a header that publishers \
            set",
            shown(name)
        ));
    }
    Ok(name.to_owned())
}
