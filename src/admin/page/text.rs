//! Numbers, names and times as the page shows them. Templates escape all of them.

use askama::Template;
use url::form_urlencoded::Serializer;

use super::PREFIX;
pub use operator::text::grouped as number;
use operator::text::plain;
use operator::times::{at, span};

/// Maximum length of a name in characters.
const MAX_NAME_CHARS: usize = 255;
/// Maximum length of other text from outside, such as a reason, in characters.
const MAX_TEXT_CHARS: usize = 500;

/// Formats a fraction: `3.5`, `120`, `0`.
pub fn decimal(value: f64) -> String {
    match value {
        value if value >= 100.0 => {
            // The value has no fraction to show and is not negative.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            number(value.round() as u64)
        }
        value if value >= 0.05 => format!("{value:.1}"),
        value if value > 0.0 => "< 0.1".to_owned(),
        _ => "0".to_owned(),
    }
}

/// Formats text from outside on one line.
pub fn text(text: &str) -> String {
    plain(text, MAX_TEXT_CHARS)
}

/// Returns the query of a link: `NAME=VALUE&…`.
pub fn query<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut query = Serializer::new(String::new());
    for (name, value) in pairs.into_iter().filter(|(_, value)| !value.is_empty()) {
        query.append_pair(name, value);
    }
    query.finish()
}

/// Returns the address of a view.
pub fn address<'a>(path: &str, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    match query(pairs) {
        query if query.is_empty() => format!("{PREFIX}{path}"),
        query => format!("{PREFIX}{path}?{query}"),
    }
}

/// A name from outside, as shown and as used in links.
#[derive(Debug, Clone, Default)]
pub struct ShownName {
    /// Name without characters that are invisible or change the direction of the text.
    pub shown: String,
    /// Unchanged name.
    pub raw: String,
}

impl ShownName {
    /// Creates both forms of `raw`.
    pub fn new(raw: &str) -> Self {
        Self {
            shown: plain(raw, MAX_NAME_CHARS),
            raw: raw.to_owned(),
        }
    }
}

/// A moment: the time of day, and how far away it is.
#[derive(Debug, Clone, Template)]
#[template(
    ext = "html",
    source = r#"<time title="{{ long }}" datetime="{{ machine }}"{% if now_ms > 0 %} data-now="{{ now_ms }}"{% endif %}>{{ clock }}</time>{% if !distance.is_empty() %} <span class="away"{% if ends_ms > 0 %} data-ends="{{ ends_ms }}"{% endif %}>{{ distance }}</span>{% endif %}"#
)]
pub struct ShownTime {
    /// Time `14:32:05`, or `24 Nov 14:32` on another day.
    clock: String,
    long: String,
    /// Machine-readable time, `2023-11-14T22:15:25Z`.
    machine: String,
    /// Distance, `in 2m 5s`; empty if it is not shown.
    distance: String,
    /// Milliseconds since 1970 of an end in the future.
    ends_ms: u64,
    /// Milliseconds since 1970 of the time of the view, from which the browser counts down.
    now_ms: u64,
}

impl askama::filters::HtmlSafe for ShownTime {}

impl ShownTime {
    /// Describes the time of a view.
    pub fn now(now_ms: u64) -> Self {
        Self {
            now_ms,
            ..Self::of(now_ms, now_ms)
        }
    }

    /// Describes `at_ms` as a future end, seen from `now_ms`, with the time left.
    pub fn end(now_ms: u64, at_ms: u64) -> Self {
        let left = at_ms.saturating_sub(now_ms);
        Self {
            distance: match left {
                0 => "now".to_owned(),
                left => format!("in {}", span(left)),
            },
            ends_ms: at_ms,
            ..Self::of(now_ms, at_ms)
        }
    }

    /// Describes the end at `at_ms`, or returns `None` if it has passed.
    pub fn end_if(now_ms: u64, at_ms: u64) -> Option<Self> {
        (at_ms > now_ms).then(|| Self::end(now_ms, at_ms))
    }

    /// Describes `at_ms` with its date: `24 Nov 2023 22:15:25`.
    pub fn dated(at_ms: u64) -> Self {
        let long = at(at_ms);
        let clock = long.get(5..25).unwrap_or(&long).to_owned();
        Self {
            clock,
            ..Self::of(at_ms, at_ms)
        }
    }

    /// Describes `at_ms`, seen from `now_ms`.
    pub fn of(now_ms: u64, at_ms: u64) -> Self {
        let long = at(at_ms);
        // The format is `Tue, 14 Nov 2023 22:15:25 GMT`.
        let parts: Vec<&str> = long.split(' ').collect();
        let is_today = at(now_ms).get(..16) == long.get(..16);
        let clock = match parts.as_slice() {
            [_, _, _, _, clock, _] if is_today => (*clock).to_owned(),
            [_, day, month, year, clock, _] => {
                let minute = clock.get(..5).unwrap_or_default();
                match at(now_ms).get(12..16) == Some(*year) {
                    true => format!("{day} {month} {minute}"),
                    false => format!("{day} {month} {year}"),
                }
            }
            _ => long.clone(),
        };
        const MONTHS: [&str; 12] = [
            "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
        ];
        let machine = match parts.as_slice() {
            [_, day, month, year, clock, _] => {
                let month = MONTHS.iter().position(|name| name == month);
                format!("{year}-{:02}-{day}T{clock}Z", month.map_or(0, |at| at + 1))
            }
            _ => String::new(),
        };
        Self {
            clock,
            machine,
            long: long.replace("GMT", "UTC"),
            distance: String::new(),
            ends_ms: 0,
            now_ms: 0,
        }
    }
}

/// How full something is, as a bar beside its figures.
#[derive(Debug, Clone, Template)]
#[template(
    ext = "html",
    source = r#"<svg class="bar{% if is_full %} full{% endif %}" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"><rect class="rest" width="100" height="6"/><rect class="part" width="{{ percent }}" height="6"/></svg>"#
)]
pub struct Bar {
    percent: u64,
    is_full: bool,
}

impl askama::filters::HtmlSafe for Bar {}

impl Bar {
    /// Creates the bar of `part` out of `whole`.
    pub fn of(part: u64, whole: u64) -> Self {
        let percent = part.saturating_mul(100).checked_div(whole).unwrap_or(0);
        Self {
            percent: percent.min(100),
            is_full: whole > 0 && part >= whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000_000;

    #[test]
    fn numbers_and_times_are_readable() {
        let numbers = [0, 999, 1_000, 1_234_567].map(number);
        assert_eq!(numbers, ["0", "999", "1,000", "1,234,567"]);
        let decimals = [0.0, 0.01, 0.25, 99.94, 12_345.6].map(decimal);
        assert_eq!(decimals, ["0", "< 0.1", "0.2", "99.9", "12,346"]);
        let soon = ShownTime::end(NOW, NOW + 125_000);
        assert_eq!(
            (soon.clock.as_str(), soon.distance.as_str()),
            ("22:15:25", "in 2m 5s")
        );
        let later = ShownTime::of(NOW, NOW + 86_400_000);
        assert_eq!(later.clock, "15 Nov 22:13");
        assert_eq!(
            ShownTime::of(NOW, NOW + 400 * 86_400_000).clock,
            "18 Dec 2024"
        );
        assert_eq!(soon.machine, "2023-11-14T22:15:25Z");
        assert_eq!(ShownTime::dated(NOW).clock, "14 Nov 2023 22:13:20");
        assert!(ShownTime::end_if(NOW, NOW).is_none() && ShownTime::end_if(NOW, 0).is_none());
    }

    #[test]
    fn foreign_names_are_escaped_and_reachable() {
        let hostile = "<script>\"'&\u{202e}/..";
        let name = ShownName::new(hostile);
        assert!(!name.shown.contains('\u{202e}') && name.shown.contains("\\u{202e}"));
        let query = query([("name", hostile), ("plan", "")]);
        let back: Vec<_> = url::form_urlencoded::parse(query.as_bytes()).collect();
        assert_eq!(back, [("name".into(), hostile.into())]);
        assert!(!query.contains(['<', '"', '\'', ' ']));
    }

    #[test]
    fn a_bar_is_no_longer_than_its_whole() {
        for (part, whole, percent, full) in [(0, 0, 0, false), (1, 2, 50, false), (9, 2, 100, true)]
        {
            let bar = Bar::of(part, whole);
            assert_eq!((bar.percent, bar.is_full), (percent, full));
        }
    }
}
