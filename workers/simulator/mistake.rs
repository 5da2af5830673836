//! Explains errors in a file that a user wrote: their position, and the key that was probably
//! meant.

use config::closest;

/// Maximum number of characters of the user's text that are shown: enough for all possible keys.
const SHOWN: usize = 400;
/// The parsers' names for types of values, and the words for users. A longer name stands before its
/// prefix.
const TYPES: [(&str, &str); 13] = [
    ("expected mapping start", "expected keys with values"),
    ("expected sequence start", "expected a list"),
    ("expected value", "expected a JSON value"),
    ("expected f64", "expected a number"),
    ("expected u64", "expected a whole number from 0"),
    ("expected usize", "expected a whole number from 0"),
    ("expected i64", "expected a whole number"),
    ("invalid f64", "it is not a number"),
    ("invalid floating point", "it is not a number"),
    ("invalid u64", "it is not a whole number from 0"),
    ("invalid usize", "it is not a whole number from 0"),
    ("invalid i64", "it is not a whole number"),
    ("unknown field", "unknown key"),
];

/// Turns a parser's `error` into one short line without control characters. If it names an unknown
/// key, adds the most similar known key.
pub fn describe(error: &str) -> String {
    let line: String = error
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut translated = line.clone();
    for (theirs, ours) in TYPES {
        translated = translated.replace(theirs, ours);
    }
    let mut words: String = translated.chars().take(SHOWN).collect();
    if translated.chars().count() > SHOWN {
        words.push('…');
    }
    if let Some(meant) = meant(&line) {
        words.push_str("; did you mean ");
        words.push_str(meant);
        words.push('?');
    }
    words
}

/// Puts the key before `error` if the error is about a value. `before` is the text before the value
/// on its line.
pub fn at_key(error: &str, before: &str) -> String {
    let is_of_value = error.starts_with("invalid ") || error.starts_with("expected ");
    match key_of(before).filter(|_| is_of_value) {
        Some(key) => format!("{key}: {error}"),
        None => error.to_owned(),
    }
}

/// Returns the last key in `before`: `cost` for `{"at": 1, "cost": "x` and for `at: 0, cost: `.
fn key_of(before: &str) -> Option<&str> {
    let is_of_key = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    let ends = before.match_indices(':').map(|(at, _)| at).rev();
    let mut keys = ends.filter_map(|at| {
        let name = before[..at].trim_end();
        let (name, is_quoted) = match name.strip_suffix('"') {
            Some(name) => (name, true),
            None => (name, false),
        };
        let other = name.char_indices().rev().find(|(_, c)| !is_of_key(*c));
        let begin = other.map_or(0, |(at, c)| at + c.len_utf8());
        // A text may contain colons, too.
        let is_begun = is_quoted == name[..begin].ends_with('"');
        (is_begun && begin < name.len()).then(|| &name[begin..])
    });
    keys.next().filter(|key| key.len() <= 64)
}

/// Quotes and shortens a user's text.
pub fn shown(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    format!("{short:?}")
}

/// Finds the known key most similar to x in ``unknown field `x`, expected one of `a`, `b` ``, with
/// or without quotes.
fn meant(line: &str) -> Option<&str> {
    let rest = &line[line.find("unknown field `")?..];
    let unknown = rest.split('`').nth(1)?;
    let (_, known) = rest.split_once("`, expected ")?;
    let is_other = |c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-';
    let known = known.trim_start_matches("one of ").split(is_other);
    closest(
        unknown,
        known.filter(|word| !word.is_empty() && *word != "or"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_key_is_shown_with_a_suggestion() {
        let words = describe("unknown field `tennant`, expected one of `at`, `tenant`, `cost`");
        assert!(words.ends_with("; did you mean tenant?"), "{words}");
        let words = describe("unknown field `tennant`, expected one of at, tenant, cost");
        assert!(words.ends_with("; did you mean tenant?"), "{words}");
        let words = describe("unknown field `colour`, expected `at` or `tenant`");
        assert!(!words.contains("did you mean"), "{words}");
    }

    #[test]
    fn a_wrong_value_is_shown_with_its_key_and_a_type_that_people_know() {
        let described =
            |before: &str| describe(&at_key("invalid type: sequence, expected u64", before));
        assert_eq!(
            described(r#"{"at": 1, "header": {"a": [1"#),
            "a: invalid type: sequence, expected a whole number from 0"
        );
        assert!(described("- {at: 0, cost: ").starts_with("cost: "));
        assert!(described(r#"{"tenant": "x:y", "cost": "#).starts_with("cost: "));
        assert!(described("maß: ü").starts_with("maß: "));
        assert!(described("- ").starts_with("invalid"), "no key");
        assert_eq!(
            at_key("missing field `at`", "{cost: 1"),
            "missing field `at`"
        );
    }

    #[test]
    fn messages_are_short_and_on_one_line() {
        let words = describe(&format!("bad\n\u{1b}[31m {}", "x".repeat(5_000)));
        assert!(words.chars().count() <= SHOWN + 1);
        assert!(!words.contains(char::is_control), "{words:?}");
    }
}
