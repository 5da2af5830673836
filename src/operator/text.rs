//! Formats text for people.

/// Returns `text` for a terminal, at most `longest` characters long, with control characters,
/// invisible characters and characters that reverse the text escaped.
pub fn plain(text: &str, longest: usize) -> String {
    let mut shown = String::new();
    for (at, c) in text.chars().enumerate() {
        if at == longest {
            shown.push('…');
            break;
        }
        if c.is_control() || is_invisible(c) {
            shown.extend(c.escape_debug());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Returns `text` quoted so that a shell reads it as one word.
pub fn argument(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", plain(text, 255).replace('\'', r"'\''")),
    }
}

/// Formats a number with thousands separators: `12,345`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Escapes characters of `json` that control a terminal, reverse the text or are invisible. The
/// meaning of the JSON stays the same.
pub fn plain_json(json: &str) -> String {
    let is_plain = |c: char| !c.is_control() && !is_invisible(c);
    if json.chars().all(is_plain) {
        return json.to_owned();
    }
    let mut shown = String::new();
    for c in json.chars() {
        match is_plain(c) {
            true => shown.push(c),
            // All of these are below U+10000, so each is one unit of UTF-16, as in JSON.
            false => shown.push_str(&format!("\\u{:04x}", u32::from(c))),
        }
    }
    shown
}

/// Returns true if the character has no width, ends a line or changes the direction of adjacent
/// text.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Formats a number with its noun: `1 job`, `2 jobs`.
pub fn count(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Aligns text.
    Left,
    /// Aligns numbers.
    Right,
}

/// Formats `rows` in columns, one line each. No line ends with blanks.
pub fn columns<R: AsRef<[String]>>(rows: &[R], side: impl Fn(usize) -> Side) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.as_ref().get(column));
        cells.map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..).map_while(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.as_ref().iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, &wide))| match side(column) {
            Side::Left => format!("{cell:wide$}"),
            Side::Right => format!("{cell:>wide$}"),
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_word_for_a_shell() {
        assert_eq!(argument("order-7"), "order-7");
        assert_eq!(argument("a b'c"), r"'a b'\''c'");
        assert_eq!(argument("$(reboot)"), "'$(reboot)'");
    }

    #[test]
    fn json_for_a_terminal_is_equivalent_and_has_no_invisible_characters() {
        for text in [
            "a\u{202e}b",
            "\u{9b}2J",
            "\u{7f}",
            "x\u{2028}y\u{feff}",
            "\"\\\u{1b}",
        ] {
            let json = serde_json::to_string(text).expect("JSON");
            let shown = plain_json(&json);
            assert!(
                !shown.contains(|c: char| c.is_control() || is_invisible(c)),
                "{shown}"
            );
            assert_eq!(serde_json::from_str::<String>(&shown).expect("JSON"), text);
        }
        assert_eq!(plain_json("{\"ä\":\"日\"}"), "{\"ä\":\"日\"}");
    }
}
