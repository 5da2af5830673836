//! What is wrong with a file that somebody wrote, in words that say where, and what was perhaps meant.

use sluicegate::config::closest;

/// So much of a stranger's text is shown, in characters.
const SHOWN: usize = 160;

/// A reader's `error` in one short line without control characters; where it names an unknown key, with the known one that was
/// perhaps meant.
pub fn in_words(error: &str) -> String {
    let line: String = error
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut words: String = line.chars().take(SHOWN).collect();
    if line.chars().count() > SHOWN {
        words.push('…');
    }
    if let Some(meant) = meant(&line) {
        words.push_str("; did you mean ");
        words.push_str(meant);
        words.push('?');
    }
    words
}

/// A stranger's text, short and in quotes.
pub fn shown(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    format!("{short:?}")
}

/// Of ``unknown field `x`, expected one of `a`, `b` `` (or without quotes) what is closest to x.
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
    fn a_mistyped_key_is_shown_with_what_was_meant() {
        let words = in_words("unknown field `tennant`, expected one of `at`, `tenant`, `cost`");
        assert!(words.ends_with("; did you mean tenant?"), "{words}");
        let words = in_words("unknown field `tennant`, expected one of at, tenant, cost");
        assert!(words.ends_with("; did you mean tenant?"), "{words}");
        let words = in_words("unknown field `colour`, expected `at` or `tenant`");
        assert!(!words.contains("did you mean"), "{words}");
    }

    #[test]
    fn words_are_short_and_on_one_line() {
        let words = in_words(&format!("bad\n\u{1b}[31m {}", "x".repeat(5_000)));
        assert!(words.chars().count() <= SHOWN + 1);
        assert!(!words.contains(char::is_control), "{words:?}");
    }
}
