//! Text from outside, as shown in a reason.

use std::error::Error;
use std::fmt::Write as _;

/// Maximum number of bytes shown of a text.
const MAX_SHOWN_BYTES: usize = 256;

/// Returns the first bytes of `text` as one line that is safe for a terminal.
pub(super) fn one_line(text: &str) -> String {
    let mut shown = String::new();
    for c in text.trim_start().chars().map(printable) {
        if shown.len() + c.len_utf8() > MAX_SHOWN_BYTES {
            break;
        }
        shown.push(c);
    }
    shown.truncate(shown.trim_end().len());
    shown
}

/// Returns the error with its causes. TLS errors quote the API's certificate.
pub(super) fn explain(why: &(dyn Error + 'static)) -> String {
    let mut text = why.to_string();
    let mut source = why.source();
    while let Some(deeper) = source {
        let words = deeper.to_string();
        // Some errors already include the text of their cause.
        if !text.ends_with(&words) {
            // Writing to a String can't fail.
            let _ = write!(text, ": {words}");
        }
        source = deeper.source();
    }
    one_line(&text)
}

/// Replaces characters that are not safe on a terminal or in a log line with a space or a
/// replacement character.
fn printable(c: char) -> char {
    match c {
        _ if c.is_whitespace() => ' ',
        _ if c.is_control() => char::REPLACEMENT_CHARACTER,
        // Invisible characters, and characters that change the direction of the text.
        '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}' => char::REPLACEMENT_CHARACTER,
        _ => c,
    }
}
