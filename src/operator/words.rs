//! Words for people.

/// `text` for a terminal: no control characters, at most `longest` characters.
pub fn plain(text: &str, longest: usize) -> String {
    let mut shown = String::new();
    for (at, c) in text.chars().enumerate() {
        if at == longest {
            shown.push('…');
            break;
        }
        if c.is_control() {
            shown.extend(c.escape_debug());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// `1 job`, `2 jobs`.
pub fn count(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}
