//! Words for people.

/// `text` for a terminal: no characters that control it, turn the line around or can't be seen, at most `longest` characters.
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

/// It has no width, ends a line, or changes the direction of what stands beside it.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// `1 job`, `2 jobs`.
pub fn count(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}
