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

/// Escapes `json` for a terminal: characters that control it, reverse the text or are invisible. The meaning stays the same.
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

/// It has no width, ends a line, or changes the direction of what stands beside it.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// `1 job`, `2 jobs`.
pub fn count(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_for_a_terminal_means_the_same_and_turns_nothing_around() {
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
