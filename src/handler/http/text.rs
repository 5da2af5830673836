//! What of others' texts is shown in a reason.

use std::error::Error;
use std::fmt::Write as _;

/// So much of a text is shown, in bytes.
const SHOWN: usize = 256;

/// The first bytes of `text` as one line, without surprises for a terminal.
pub(super) fn one_line(text: &str) -> String {
    let mut shown = String::new();
    for c in text.trim_start().chars().map(printable) {
        if shown.len() + c.len_utf8() > SHOWN {
            break;
        }
        shown.push(c);
    }
    shown.truncate(shown.trim_end().len());
    shown
}

/// The error and what is behind it. Texts of TLS quote what the API's certificate says.
pub(super) fn explain(why: &(dyn Error + 'static)) -> String {
    let mut text = why.to_string();
    let mut source = why.source();
    while let Some(deeper) = source {
        let words = deeper.to_string();
        // Some errors say what is behind them themselves.
        if !text.ends_with(&words) {
            // Writing to a String can't fail.
            let _ = write!(text, ": {words}");
        }
        source = deeper.source();
    }
    one_line(&text)
}

/// What stands for itself in a log line and on a terminal; else a space or a replacement.
fn printable(c: char) -> char {
    match c {
        _ if c.is_whitespace() => ' ',
        _ if c.is_control() => char::REPLACEMENT_CHARACTER,
        // Invisible, or able to turn the order of the text around it.
        '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}' => char::REPLACEMENT_CHARACTER,
        _ => c,
    }
}
