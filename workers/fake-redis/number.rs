//! Numbers as Redis parses and formats them.

pub const NO_INTEGER: &str = "ERR value is not an integer or out of range";
const NO_FLOAT: &str = "ERR value is not a valid float";
const NO_BOUND: &str = "ERR min or max is not a float";

/// Parses an integer: digits with an optional `-`, nothing else.
pub fn integer(word: &[u8]) -> Result<i64, String> {
    let strict = || {
        let text = std::str::from_utf8(word).ok()?;
        let digits = text.strip_prefix('-').unwrap_or(text);
        let padded = digits.len() > 1 && digits.starts_with('0') || text == "-0";
        let plain = !padded && digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| text.parse().ok()).flatten()
    };
    strict().ok_or_else(|| NO_INTEGER.to_owned())
}

/// Parses a score.
pub fn score(word: &[u8]) -> Result<f64, String> {
    float(word).ok_or_else(|| NO_FLOAT.to_owned())
}

fn float(word: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(word).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// One end of a range of scores.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    pub score: f64,
    /// Whether the range excludes the score itself.
    pub excluded: bool,
}

/// Parses `SCORE` or `(SCORE`.
pub fn bound(word: &[u8]) -> Result<Bound, String> {
    let (excluded, word) = match word.split_first() {
        Some((b'(', rest)) => (true, rest),
        _ => (false, word),
    };
    // As in C, no digits mean 0.
    let score = match word {
        [] => Some(0.0),
        word => float(word),
    };
    let score = score.ok_or_else(|| NO_BOUND.to_owned())?;
    Ok(Bound { score, excluded })
}

/// Formats a number like C's `%.17g`, as Redis 7.0 does.
pub fn text(number: f64) -> String {
    const DIGITS: i32 = 17;
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if number.fract() == 0.0 && number.abs() < 1e17 {
        return format!("{number:.0}");
    }
    let scientific = format!("{number:.16e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..DIGITS).contains(&exponent) {
        let decimals = usize::try_from(DIGITS - 1 - exponent).unwrap_or(0);
        trimmed(&format!("{number:.decimals$}"))
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trimmed(digits), exponent.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_c_does() {
        let written = [
            (0.0, "0"),
            (-0.0, "-0"),
            (-3.0, "-3"),
            (1_700_000_000_000.0, "1700000000000"),
            (0.1, "0.10000000000000001"),
            (1.5, "1.5"),
            (1e17, "1e+17"),
            (2.5e-7, "2.4999999999999999e-07"),
            (f64::INFINITY, "inf"),
        ];
        for (number, expected) in written {
            assert_eq!(text(number), expected);
        }
    }

    #[test]
    fn integers_are_read_strictly() {
        for good in ["0", "-1", "9223372036854775807"] {
            assert!(integer(good.as_bytes()).is_ok(), "{good}");
        }
        for bad in [
            "",
            "-",
            "-0",
            "01",
            "+1",
            " 1",
            "1.0",
            "9223372036854775808",
        ] {
            assert!(integer(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
