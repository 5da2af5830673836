//! Numbers, texts and times as the page shows them. Templates escape all of them.

use std::fmt::{self, Write};
use std::ops::Range;

use askama::Template;
use askama::filters::{Escaper, Html};
use url::form_urlencoded::Serializer;

use super::PREFIX;
pub use operator::text::grouped as number;
use operator::text::plain;
use operator::times::{at, span};

/// Maximum length of text from outside, such as a reason, in characters.
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

/// Escapes HTML, and shows control characters, invisible characters and characters that reverse
/// the text. Templates print all values by it.
#[derive(Debug, Clone, Copy)]
pub struct PlainHtml;

impl Escaper for PlainHtml {
    fn write_escaped_str<W: Write>(&self, to: W, text: &str) -> fmt::Result {
        Html.write_escaped_str(to, &plain(text, usize::MAX))
    }
}

/// Filters of the templates.
pub mod filters {
    use askama::filters::{Escaper as _, Html, Safe};
    use askama::{Result, Values, filter_fn};

    use super::{Bar, ShownTime};

    /// Formats a number.
    #[filter_fn]
    pub fn number(number: &u64, _: &dyn Values) -> Result<String> {
        Ok(super::number(*number))
    }

    /// Formats a fraction.
    #[filter_fn]
    pub fn decimal(value: &f64, _: &dyn Values) -> Result<String> {
        Ok(super::decimal(*value))
    }

    /// Formats a duration.
    #[filter_fn]
    pub fn span(ms: &u64, _: &dyn Values) -> Result<String> {
        Ok(super::span(*ms))
    }

    /// Shortens text from outside.
    #[filter_fn]
    pub fn text(text: impl AsRef<str>, _: &dyn Values) -> Result<String> {
        Ok(super::text(text.as_ref()))
    }

    /// Returns a value that a form sends again, or a text that is plain already: only HTML is
    /// escaped.
    #[filter_fn]
    pub fn exact(text: impl AsRef<str>, _: &dyn Values) -> Result<Safe<String>> {
        let mut html = String::new();
        Html.write_escaped_str(&mut html, text.as_ref())?;
        Ok(Safe(html))
    }

    /// Describes the time of a view.
    #[filter_fn]
    pub fn now(now_ms: &u64, _: &dyn Values) -> Result<Safe<ShownTime>> {
        Ok(Safe(ShownTime::now(*now_ms)))
    }

    /// Describes a time with its date.
    #[filter_fn]
    pub fn dated(at_ms: &u64, _: &dyn Values) -> Result<Safe<ShownTime>> {
        Ok(Safe(ShownTime::dated(*at_ms)))
    }

    /// Describes a time, seen from `now_ms`.
    #[filter_fn]
    pub fn at(at_ms: &u64, _: &dyn Values, now_ms: &u64) -> Result<Safe<ShownTime>> {
        Ok(Safe(ShownTime::of(*now_ms, *at_ms)))
    }

    /// Describes a future end, seen from `now_ms`, with the time left.
    #[filter_fn]
    pub fn end(at_ms: &u64, _: &dyn Values, now_ms: &u64) -> Result<Safe<ShownTime>> {
        Ok(Safe(ShownTime::end(*now_ms, *at_ms)))
    }

    /// Draws a part of `whole`.
    #[filter_fn]
    pub fn bar(part: &u64, _: &dyn Values, whole: &u64) -> Result<Safe<Bar>> {
        Ok(Safe(Bar::of(*part, *whole)))
    }
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

    /// Describes `at_ms` with its date: `24 Nov 2023 22:15:25`.
    pub fn dated(at_ms: u64) -> Self {
        Self {
            clock: at(at_ms).get(5..25).unwrap_or_default().to_owned(),
            ..Self::of(at_ms, at_ms)
        }
    }

    /// Describes `at_ms`, seen from `now_ms`.
    pub fn of(now_ms: u64, at_ms: u64) -> Self {
        const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
        let (long, now) = (at(at_ms), at(now_ms));
        // The format is `Tue, 14 Nov 2023 22:15:25 GMT`.
        let part = |range: Range<usize>| long.get(range).unwrap_or_default();
        let is_now = |range: Range<usize>| now.get(range.clone()) == long.get(range);
        let clock = if is_now(0..16) {
            part(17..25).to_owned()
        } else if is_now(12..16) {
            format!("{} {}", part(5..11), part(17..22))
        } else {
            part(5..16).to_owned()
        };
        let month = MONTHS.find(part(8..11)).unwrap_or_default() / 3 + 1;
        let (year, day, time) = (part(12..16), part(5..7), part(17..25));
        let machine = format!("{year}-{month:02}-{day}T{time}Z");
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

    #[derive(Template)]
    #[template(ext = "html", source = "{{ value }} {{ value|exact }}")]
    struct Printed<'a> {
        value: &'a str,
    }

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
    }

    #[test]
    fn foreign_names_are_escaped_and_reachable() {
        let hostile = "<script>\"'&\u{202e}/..";
        let html = Printed { value: hostile }.to_string();
        let (shown, exact) = html.split_once(' ').expect("two values");
        assert_eq!(shown, r"&#60;script&#62;&#34;&#39;&#38;\u{202e}/..");
        assert_eq!(exact, shown.replace(r"\u{202e}", "\u{202e}"));
        let query = query([("name", hostile), ("plan", "")]);
        let back: Vec<_> = url::form_urlencoded::parse(query.as_bytes()).collect();
        assert_eq!(back, [("name".into(), hostile.into())]);
        assert!(!query.contains(['<', '"', '\'', ' ']));
    }

    /// A form sends a value again, and a body is plain already. Both are printed as they are.
    #[test]
    fn templates_print_no_other_value_as_it_is() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/page/templates");
        let files = std::fs::read_dir(folder).expect("the folder");
        let files = files.map(|file| file.expect("a file").path());
        let html = files.map(|file| std::fs::read_to_string(file).expect("a text"));
        let html: String = html.collect();
        let printed = |filter: &str| -> Vec<(&str, &str)> {
            let ends = html.match_indices(filter).map(|(at, _)| &html[..at]);
            ends.filter_map(|before| before.rsplit_once("{{ "))
                .collect()
        };
        for (before, value) in printed("|exact") {
            assert!(before.ends_with(" value=\"") || value == "body", "{value}");
        }
        let mut safe: Vec<_> = printed("|safe").into_iter().map(|it| it.1).collect();
        safe.sort_unstable();
        assert_eq!(safe, ["chart", "part.html", "trouble"]);
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
