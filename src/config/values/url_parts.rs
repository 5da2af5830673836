//! The parts of a URL whose host may have placeholders.

use url::{ParseError, Url};

/// A text that no user's URL contains and no URL parser changes.
pub(crate) const MARK: &str = "sluicegate-placeholder-";

/// Splits `url` into scheme and user, host and port, and the rest. Text in braces does not end the
/// host.
pub(crate) fn parts(url: &str) -> [&str; 3] {
    let begin = url.find("://").map_or(0, |at| at + 3);
    let (mut host, mut in_braces) = (begin, false);
    for (at, c) in url[begin..].char_indices().map(|(at, c)| (begin + at, c)) {
        match c {
            // Only a placeholder that begins a label can contain other delimiters. Other braces
            // belong to a password.
            '{' => in_braces = begins_field(&url[at..]),
            '}' => in_braces = false,
            _ if in_braces => {}
            '@' => host = at + 1,
            '/' | '?' | '#' => return [&url[..host], &url[host..at], &url[at..]],
            _ => {}
        }
    }
    [&url[..host], &url[host..], ""]
}

/// Returns true if `text` begins with a placeholder of a value in a message.
fn begins_field(text: &str) -> bool {
    let is_one = ["{header:", "{json:"]
        .iter()
        .any(|kind| text.starts_with(kind));
    is_one && text.contains('}')
}

/// Parses `url`. Each placeholder in its host is replaced with a label, since URLs can't contain
/// all of them.
pub(crate) fn parse_url(url: &str) -> Result<Url, ParseError> {
    let [before, host, rest] = parts(url);
    if !host.contains('{') {
        return Url::parse(url);
    }
    let (mut marked, mut left) = (before.to_owned(), host);
    let mut number = 0;
    while let Some((literal, (_, behind))) =
        (left.split_once('{')).and_then(|(literal, text)| Some((literal, text.split_once('}')?)))
    {
        marked.push_str(&format!("{literal}{MARK}{number}"));
        number += 1;
        left = behind;
    }
    Url::parse(&(marked + left + rest))
}

/// Returns `shown`, a form of `url` after [`parse_url`], with the placeholders of its host as
/// written.
pub(super) fn restore_host(shown: String, url: &str) -> String {
    let [_, host, _] = parts(url);
    let names = host.split('{').skip(1);
    let names = names.filter_map(|text| Some(text.split_once('}')?.0));
    names.enumerate().fold(shown, |shown, (number, name)| {
        shown.replacen(&format!("{MARK}{number}"), &format!("{{{name}}}"), 1)
    })
}
