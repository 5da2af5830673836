//! Formats in which APIs document their limits, and the matching configuration.

use std::fmt::Write as _;
use std::time::Duration;

use config::{parse_duration, show_duration};
use operator::text::count;
use rules::calendar::{Calendar, Zone};
use rules::limit::{Algorithm, DEFAULT_LIMIT, Limit};

/// The hint for a limit that can't be parsed.
const FORMS: &str = "write it like API documentation: 100/min, 10 per second, 5 rps, 0.5/s, 10,000 \
                     per day, 40 per 10s, 90M TPM, 2/s burst 40, 5 at once, 500 per month, or 500 \
                     per day, resets at midnight Pacific; separate several with commas";
/// Suffixes of numbers.
const SUFFIXES: [(&str, u64); 5] = [
    ("k", 1_000),
    ("m", 1_000_000),
    ("million", 1_000_000),
    ("b", 1_000_000_000),
    ("billion", 1_000_000_000),
];
/// Names of durations beyond those in the configuration, with their seconds.
const WINDOWS: [(&str, u64); 12] = [
    ("second", 1),
    ("sec", 1),
    ("minute", 60),
    ("min", 60),
    ("hour", 3600),
    ("hr", 3600),
    ("day", 86_400),
    ("week", 604_800),
    ("s", 1),
    ("m", 60),
    ("h", 3600),
    ("d", 86_400),
];

/// Words before a number that do not change the limit.
const AT_MOST: [&str; 4] = ["up to ", "at most ", "max ", "maximum "];
/// Words that precede a window.
const PER: [&str; 7] = ["per", "every", "each", "within", "in", "a", "an"];
/// Owners of a limit, each of which is a tenant. Tenants may share others, such as an IP address.
const OWNERS: [&str; 4] = ["user", "account", "tenant", "customer"];
/// Minimum window for one call, in milliseconds.
const MIN_APART_MS: u64 = 100;
/// Nouns for calls.
const CALLS: [&str; 12] = [
    "",
    "calls",
    "call",
    "requests",
    "request",
    "reqs",
    "req",
    "r",
    "queries",
    "query",
    "connections",
    "connection",
];
/// Nouns for units of cost.
const UNITS: [&str; 7] = [
    "tokens", "token", "units", "unit", "points", "point", "credits",
];
/// Words for calls in flight.
const AT_ONCE: [&str; 9] = [
    "at once",
    "concurrent",
    "concurrently",
    "simultaneous",
    "simultaneously",
    "in flight",
    "parallel",
    "in parallel",
    "at a time",
];

/// A limit as the API documents it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// A number of units per window.
    Window {
        max: u64,
        window_ms: u64,
        /// Whether it counts units of cost, such as tokens, instead of calls.
        of_cost: bool,
        /// The capacity of a bucket.
        burst: Option<u64>,
        /// The day, week or month that is the window, if it begins at a known time.
        calendar: Option<Calendar>,
    },
    /// A number of concurrent calls.
    AtOnce { max: u64 },
}

/// Parses the limits in `text`, separated by commas or "and".
///
/// # Errors
/// The limit that can't be parsed, and the possible formats.
pub fn parse_all(text: &str) -> Result<Vec<Form>, String> {
    let text = without_commas_in_numbers(text).to_lowercase();
    let parts = text.replace(" and ", ",").replace(", burst", " burst");
    let parts = [", resets ", "; resets ", " resets "]
        .iter()
        .fold(parts, |parts, resets| parts.replace(resets, ",resets "));
    let mut forms: Vec<Form> = Vec::new();
    for part in parts.split([',', ';']).map(str::trim) {
        let known = match (part.strip_prefix("resets "), forms.last_mut()) {
            (Some(when), Some(form)) => form.reset(when),
            _ => parse(part).map(|form| forms.push(form)),
        };
        known.ok_or_else(|| match other_owner(part) {
            Some(owner) => format!(
                "{part:?} counts the calls of each {owner}, not of each tenant; leave out \"per \
                 {owner}\", and add --tenant all if all tenants share one quota"
            ),
            None => format!("{part:?} is not a limit in a known form; {FORMS}"),
        })?;
    }
    Ok(forms)
}

/// Returns the owner at the end of `text` that keeps it from being parsed, such as `ip`.
fn other_owner(text: &str) -> Option<&str> {
    [" per ", "/"].iter().find_map(|separator| {
        let (limit, owner) = text.rsplit_once(separator)?;
        let is_owner = owner.starts_with(char::is_alphabetic) && window_ms(owner).is_none();
        (is_owner && parse(limit).is_some()).then_some(owner)
    })
}

/// Returns the time zone that API documentation names, such as `pacific time`.
fn zone(text: &str) -> Option<Zone> {
    let name = text.trim().trim_matches(['(', ')']);
    let name = name.strip_suffix(" time").unwrap_or(name);
    Zone::find(match name {
        "" | "gmt" => "UTC",
        "pacific" | "pt" => "America/Los_Angeles",
        "mountain" | "mt" => "America/Denver",
        "central" | "ct" => "America/Chicago",
        "eastern" | "et" => "America/New_York",
        name => name,
    })
}

/// Joins numbers with commas, such as `10,000`.
fn without_commas_in_numbers(text: &str) -> String {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let between_digits = |at: usize| {
        at > 0 && is_digit(at - 1) && (1..=3).all(|more| is_digit(at + more)) && !is_digit(at + 4)
    };
    let digits = text.char_indices();
    let digits = digits.filter(|(at, c)| !(matches!(c, ',' | '_') && between_digits(*at)));
    digits.map(|(_, c)| c).collect()
}

fn parse(text: &str) -> Option<Form> {
    let prefix = AT_MOST.iter().find_map(|words| text.strip_prefix(words));
    let text = prefix.unwrap_or(text);
    let (text, burst) = match text.split_once("burst") {
        Some((rest, burst)) => {
            let burst = burst.trim_start_matches([' ', ':', '=']);
            let burst = burst.strip_prefix("of ").unwrap_or(burst);
            let burst = burst.trim_end_matches([' ', ')']).parse().ok()?;
            let rest = rest.trim_end_matches([' ', '(']);
            let with = [" with a", " with"]
                .iter()
                .find_map(|with| rest.strip_suffix(with));
            (with.unwrap_or(rest), Some(burst))
        }
        None => (text, None),
    };
    let (amount, mut rest) = Amount::parse(text)?;
    for owner in OWNERS {
        rest = rest.replace(&format!(" per {owner}"), "");
        rest = rest.replace(&format!("/{owner}"), "");
    }
    let words = rest.split(' ').filter(|word| !CALLS.contains(word));
    let how: Vec<&str> = words.collect();
    if AT_ONCE.contains(&how.join(" ").as_str()) {
        let max = amount.whole()?;
        return burst.is_none().then_some(Form::AtOnce { max });
    }
    let (what, window) = what_and_window(&rest)?;
    let what = what.strip_prefix("api ").unwrap_or(&what);
    let of_cost = match what {
        what if CALLS.contains(&what) => false,
        what if UNITS.contains(&what) => true,
        _ => return None,
    };
    // A day may be any 24 hours; a month has no length.
    let period = match window.as_str() {
        "month" => Some("month"),
        window => window.strip_prefix("calendar "),
    };
    let calendar = period.and_then(|period| Calendar::parse(period, Zone::UTC, None));
    let (max, window_ms) = match calendar {
        Some(calendar) => (amount.whole()?, calendar.nominal_ms()),
        None => amount.per(window_ms(&window)?, burst.is_some())?,
    };
    Some(Form::Window {
        max,
        window_ms,
        of_cost,
        burst,
        calendar,
    })
}

/// Splits the text after an amount into its unit and its window.
fn what_and_window(rest: &str) -> Option<(String, String)> {
    let short = match rest {
        "rps" | "qps" | "tps" => Some(("", "s")),
        "rpm" | "qpm" => Some(("", "m")),
        "tpm" => Some(("tokens", "m")),
        "rph" => Some(("", "h")),
        "rpd" => Some(("", "d")),
        "tpd" => Some(("tokens", "d")),
        _ => rest.split_once('/'),
    };
    if let Some((what, window)) = short {
        return Some((what.trim().to_owned(), window.trim().to_owned()));
    }
    let rest = rest
        .replace("hourly", "per hour")
        .replace("daily", "per day");
    let words: Vec<&str> = rest.split_whitespace().collect();
    let (what, window) = words.split_at(words.iter().position(|word| PER.contains(word))?);
    let window = window.iter().copied().skip_while(|word| PER.contains(word));
    let window: Vec<&str> = window.collect();
    Some((what.join(" "), window.join(" ")))
}

/// A decimal number: `of / parts`.
struct Amount {
    of: u64,
    parts: u64,
}

impl Amount {
    /// Parses the number above 0 at the start of `text`, and returns the rest.
    fn parse(text: &str) -> Option<(Self, String)> {
        let is_part = |c: char| c.is_ascii_digit() || c == '.';
        let (number, rest) = text.split_at(text.find(|c| !is_part(c)).unwrap_or(text.len()));
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        // 1.000 is a thousand in some languages.
        if fraction == "000" {
            return None;
        }
        let digits = u32::try_from(fraction.len()).ok()?;
        let mut of: u64 = format!("{whole}{fraction}").parse().ok()?;
        let parts = 10_u64.checked_pow(digits)?;
        let mut rest = rest.trim();
        let suffix = SUFFIXES.iter().find_map(|(suffix, times)| {
            Some((rest.strip_prefix(suffix)?.strip_prefix(' ')?, times))
        });
        if let Some((after, times)) = suffix {
            (of, rest) = (of.checked_mul(*times)?, after.trim());
        }
        (of > 0).then(|| (Self { of, parts }, rest.to_owned()))
    }

    fn whole(&self) -> Option<u64> {
        (self.of.is_multiple_of(self.parts)).then_some(self.of / self.parts)
    }

    /// Returns this amount in each `window_ms` as a whole number in a window: 2.5 per second is 1
    /// per 400 ms. A longer window would allow more than this amount in `window_ms`, except for a
    /// limit `with_burst`, which is even.
    fn per(&self, window_ms: u64, with_burst: bool) -> Option<(u64, u64)> {
        if let Some(max) = self.whole() {
            return Some((max, window_ms));
        }
        let longer_ms = window_ms.checked_mul(self.parts)?;
        Some(match longer_ms.div_ceil(self.of) {
            _ if with_burst && self.of > self.parts => (self.of, longer_ms),
            apart_ms if apart_ms >= MIN_APART_MS => (1, apart_ms),
            _ => (self.of / self.parts, window_ms),
        })
    }
}

fn window_ms(text: &str) -> Option<u64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (times, unit) = text.split_at(digits);
    let unit = unit.trim_start_matches('-');
    let unit = unit.strip_suffix(" window").unwrap_or(unit);
    let times: u64 = match times {
        "" => 1,
        times => times.parse().ok()?,
    };
    let unit = unit.trim();
    let singular = unit.strip_suffix('s').filter(|unit| unit.len() > 1);
    let known = |(name, _): &&(&str, u64)| *name == unit || Some(*name) == singular;
    if let Some((_, seconds)) = WINDOWS.iter().find(known) {
        return times.checked_mul(seconds * 1000);
    }
    let window = parse_duration(text)?;
    u64::try_from(window.as_millis()).ok()
}

impl Form {
    /// Makes the window a day, week or month that begins `when`: `at midnight pacific`, `at 08:00
    /// utc`. Returns `None` if it is another window or time.
    fn reset(&mut self, when: &str) -> Option<()> {
        let Self::Window {
            window_ms,
            burst: None,
            calendar,
            ..
        } = self
        else {
            return None;
        };
        let when = when
            .strip_prefix("daily ")
            .unwrap_or(when)
            .strip_prefix("at ")?;
        let (time, zone_name) = when.split_once(' ').unwrap_or((when, ""));
        let time = if time == "midnight" { "00:00" } else { time };
        let period = match (*window_ms, &calendar) {
            (_, Some(calendar)) => calendar.period.name(),
            (86_400_000, None) => "day",
            (604_800_000, None) => "week",
            _ => return None,
        };
        *calendar = Some(Calendar::parse(period, zone(zone_name)?, Some(time))?);
        Some(())
    }

    fn window(&self) -> String {
        match self {
            Self::Window {
                calendar: Some(calendar),
                ..
            } => calendar.period.name().to_owned(),
            Self::Window { window_ms, .. } => show_duration(Duration::from_millis(*window_ms)),
            Self::AtOnce { .. } => String::new(),
        }
    }

    /// Returns its name if there are several limits.
    fn name(&self) -> String {
        match self {
            Self::AtOnce { .. } => "running".to_owned(),
            Self::Window { of_cost, .. } => {
                let what = if *of_cost { "tokens" } else { "calls" };
                format!("{what}-{}", self.window())
            }
        }
    }

    /// Describes the limit.
    pub fn describe(&self) -> String {
        match self {
            Self::AtOnce { max } => format!("{max} at once"),
            Self::Window {
                max,
                of_cost,
                burst,
                calendar,
                ..
            } => {
                let amount = match of_cost {
                    true => format!("{} of cost", count(*max, "unit")),
                    false => count(*max, "call"),
                };
                let mut words = match calendar {
                    Some(calendar) => format!("{amount} in each {calendar}"),
                    None => format!("{amount} in {}", self.window()),
                };
                if let Some(burst) = burst {
                    // Writing to a string can't fail.
                    let _ = write!(words, ", burst {burst}");
                }
                words
            }
        }
    }

    /// Returns `usual`, or the algorithm that `check` recommends if `usual` would keep a large log.
    fn without_large_log(&self, usual: Algorithm) -> Algorithm {
        let Self::Window { max, window_ms, .. } = self else {
            return usual;
        };
        let window = Duration::from_millis(*window_ms);
        // An invalid limit is reported with the file.
        let limit = Limit::new(DEFAULT_LIMIT, usual, *max, window, Duration::ZERO);
        limit.map_or(usual, |limit| limit.algorithm_without_large_log())
    }

    /// Returns its keys. `usual` is the algorithm; a limit with a burst needs a bucket.
    fn keys(&self, usual: Algorithm) -> Vec<(&'static str, String)> {
        match self {
            Self::AtOnce { max } => vec![("max-concurrent", max.to_string())],
            Self::Window {
                max,
                of_cost,
                burst,
                calendar,
                ..
            } => {
                let mut keys = Vec::new();
                let algorithm = match burst {
                    _ if calendar.is_some() => Algorithm::FixedWindow,
                    Some(_) if !usual.has_burst() => Algorithm::TokenBucket,
                    _ => self.without_large_log(usual),
                };
                keys.push(("use-algo", algorithm.name().to_owned()));
                keys.push(("max-requests", max.to_string()));
                keys.push(("window-size", self.window()));
                if let Some(calendar) = calendar {
                    keys.push(("time-zone", calendar.zone.name().to_owned()));
                    keys.push(("starts", format!("\"{}\"", calendar.starts())));
                }
                keys.extend(burst.map(|burst| ("burst", burst.to_string())));
                if *of_cost {
                    keys.push(("unit", "cost".to_owned()));
                }
                keys
            }
        }
    }
}

/// Returns the section `rate-limiter` with all of `forms`.
pub fn section(forms: &[Form], usual: Algorithm) -> String {
    let mut text = "rate-limiter:\n".to_owned();
    if let [form @ Form::Window { .. }] = forms {
        for (key, value) in form.keys(usual) {
            text.push_str(&format!("  {key}: {value}\n"));
        }
        return text;
    }
    text.push_str("  limits:    # all must admit a job; a denied job is charged nowhere\n");
    let mut names: Vec<String> = Vec::new();
    for form in forms {
        let mut name = form.name();
        let same = names
            .iter()
            .filter(|other| other.starts_with(&name))
            .count();
        if same > 0 {
            name = format!("{name}-{}", same + 1);
        }
        let mut keys = vec![format!("name: {name}")];
        names.push(name);
        let own = form.keys(usual).into_iter();
        keys.extend(own.map(|(key, value)| format!("{key}: {value}")));
        text.push_str(&format!("    - {{{}}}\n", keys.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(max: u64, window_ms: u64) -> Form {
        Form::Window {
            max,
            window_ms,
            of_cost: false,
            burst: None,
            calendar: None,
        }
    }

    fn bucket(max: u64, window_ms: u64, burst: u64) -> Form {
        Form::Window {
            max,
            window_ms,
            of_cost: false,
            burst: Some(burst),
            calendar: None,
        }
    }

    #[test]
    fn limits_are_read_in_common_api_notations() {
        for (text, max, ms) in [
            ("0.5/s", 1, 2000),
            ("0.5 requests per second", 1, 2000),
            ("2.5/s", 1, 400),
            ("33.333/s", 33, 1000),
            ("0.4/s", 1, 2500),
            ("0.0167/s", 1, 59_881),
            ("1.5k requests per minute", 1500, 60_000),
            ("100 per minute", 100, 60_000),
            ("1 request every 2 seconds", 1, 2000),
            ("5,000 requests per hour per user", 5000, 3_600_000),
            ("100 requests per user per 100 seconds", 100, 100_000),
            ("60/user/min", 60, 60_000),
            ("100 requests per 10 seconds per account", 100, 10_000),
            ("900 requests per 15-minute window", 900, 900_000),
            ("up to 180 API requests in a 15 minute window", 180, 900_000),
            ("100 calls within 1 minute", 100, 60_000),
            ("3 requests a second", 3, 1000),
            ("1000/day", 1000, 86_400_000),
            ("1,000 requests daily", 1000, 86_400_000),
            ("60 rpm", 60, 60_000),
            ("10 qps", 10, 1000),
            ("10 rps", 10, 1000),
            ("100/min", 100, 60_000),
            ("100 / minute", 100, 60_000),
            ("10 per second", 10, 1000),
            ("10 requests per second", 10, 1000),
            ("10,000 calls per day", 10_000, 86_400_000),
            ("1_000/h", 1000, 3_600_000),
            ("40 per 10 seconds", 40, 10_000),
            ("40 per 10s", 40, 10_000),
            ("3/1m", 3, 60_000),
            ("1/500ms", 1, 500),
            ("5 RPS", 5, 1000),
            ("500rpm", 500, 60_000),
            ("2 requests every 5 minutes", 2, 300_000),
        ] {
            assert_eq!(parse_all(text), Ok(vec![window(max, ms)]), "{text}");
        }
        let several = parse_all("10,000/day, 90000 tokens/min and 5 at once; 2/s burst 40");
        let tokens = Form::Window {
            max: 90_000,
            window_ms: 60_000,
            of_cost: true,
            burst: None,
            calendar: None,
        };
        let expected = vec![
            window(10_000, 86_400_000),
            tokens,
            Form::AtOnce { max: 5 },
            bucket(2, 1000, 40),
        ];
        assert_eq!(several, Ok(expected));
    }

    #[test]
    fn calls_at_once_and_bursts_are_read() {
        for text in [
            "10 concurrent",
            "10 simultaneous connections",
            "10 concurrent requests per user",
            "up to 10 requests at a time",
        ] {
            assert_eq!(
                parse_all(text),
                Ok(vec![Form::AtOnce { max: 10 }]),
                "{text}"
            );
        }
        for text in [
            "0.0167/s burst 20",
            "0.0167 requests per second, burst of 20",
            "0.0167 requests per second with a burst of 20",
            "0.0167 requests/second (burst: 20)",
        ] {
            assert_eq!(parse_all(text), Ok(vec![bucket(1, 59_881, 20)]), "{text}");
        }
    }

    #[test]
    fn quotas_of_the_calendar_and_large_ones_are_read() {
        let lines = |text: &str| {
            let forms = parse_all(text).unwrap_or_else(|why| panic!("{why}"));
            section(&forms, Algorithm::SlidingWindow)
        };
        let day = "rate-limiter:\n  use-algo: fixed-window-algo\n  max-requests: 10000\n  \
                   window-size: day\n  time-zone: America/Los_Angeles\n  starts: \"00:00\"\n";
        for text in [
            "10,000 per day, resets at midnight Pacific",
            "10,000 per day resets at midnight Pacific",
            "10k calls/day; resets daily at 00:00 America/Los_Angeles",
            "10000 per calendar day, resets at midnight Pacific Time",
        ] {
            assert_eq!(lines(text), day, "{text}");
        }
        let month = lines("500 per month");
        assert!(
            month.contains("window-size: month\n  time-zone: UTC\n"),
            "{month}"
        );
        assert!(
            lines("90M TPM")
                .contains("  use-algo: sliding-segments-algo\n  max-requests: 90000000\n")
        );
        assert!(lines("900 TPM").contains("  use-algo: sliding-window-algo\n"));
        assert!(lines("2 million tokens per day").contains("max-requests: 2000000\n"));
    }

    #[test]
    fn invalid_limits_are_reported_with_the_valid_forms() {
        for text in [
            "",
            "many",
            "10",
            "0/s",
            "-1/s",
            "10/",
            "10/fortnight",
            "10 cats per s",
            "99999999999999999999/s",
            "5 at once burst 3",
            "0.5 at once",
            "0.5 per month",
            "0.0/s",
            "1.2.3/s",
            "1.000 per hour",
            "10/s/",
            "1000/day per hour",
            "10/s,",
            "2/s burst",
            "10/min, resets at midnight",
            "10/day, resets at noon",
            "10/day, resets at midnight Mars",
            "resets at midnight",
        ] {
            let why = parse_all(text).expect_err(text);
            assert!(
                why.contains("is not a limit in a known form; write it like"),
                "{why}"
            );
        }
        for (text, expected) in [
            (
                "5/s, 10 per second per IP",
                "\"10 per second per ip\" counts the calls of each ip",
            ),
            (
                "10 per second/method",
                "leave out \"per method\", and add --tenant all if",
            ),
        ] {
            let why = parse_all(text).expect_err(text);
            assert!(why.contains(expected), "{why}");
        }
        let (_, examples) = FORMS.split_once(": ").expect("examples");
        let (examples, _) = examples.split_once("; ").expect("an end");
        let parsed = parse_all(&examples.replace(", or ", ", ")).map(|forms| forms.len());
        assert_eq!(parsed, Ok(11));
    }
}
