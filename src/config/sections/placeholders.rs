//! Placeholders in calls: `{tenant}`, `{id}`, `{attempt}`, `{header:NAME}`, `{json:/pointer}` and
//! `{secret:tenant}`.

use ::http::header::HeaderValue;
use url::{Host, Position, Url};

use super::job::field;
use crate::reading::{ValueError, hint, shown};
use crate::values::url_parts::{MARK, parse_url, parts};
use rules::job::call::{
    CarriedFields, MAX_LABEL, PlaceholderSource, Template, TemplatePart, ValuePlace,
};

/// Maximum number of placeholders in a text. An encoded value may have 3 KiB, so this bounds a URL.
const MAX_PLACEHOLDERS: usize = 8;
const JOB_SOURCES: [(&str, PlaceholderSource); 4] = [
    ("tenant", PlaceholderSource::Tenant),
    ("id", PlaceholderSource::Id),
    ("attempt", PlaceholderSource::Attempt),
    ("secret:tenant", PlaceholderSource::Secret),
];
const ALL_FORMS: &str =
    "{tenant}, {id}, {attempt}, {header:NAME}, {json:/pointer} or {secret:tenant}";
/// Maximum length of a host name (RFC 1035).
const MAX_HOST: usize = 253;
/// Minimum number of labels behind the placeholders of a host, so that jobs choose a name in a
/// domain, and not the domain.
const MIN_FIXED_LABELS: usize = 2;
const HOST_FORM: &str = "a host with placeholders must have the form {tenant}.example.com: each \
    placeholder is a whole label, and the part behind them is a domain with a dot";

/// A part of a text.
enum TextToken<'t> {
    Literal(&'t str),
    Placeholder(PlaceholderSource),
}

/// Splits `text` at its placeholders and adds these to `carried`. A brace that starts none is
/// literal.
fn tokens<'t>(
    text: &'t str,
    carried: &mut CarriedFields,
) -> Result<Vec<TextToken<'t>>, ValueError> {
    let (mut tokens, mut literal, mut at, mut count) = (Vec::new(), 0, 0, 0);
    while let Some(open) = text[at..].find('{').map(|open| at + open) {
        at = open + 1;
        let Some(close) = text[at..].find('}').map(|close| at + close) else {
            break;
        };
        let name = &text[at..close];
        let word = name.split(':').next().unwrap_or_default();
        let is_meant =
            !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
        if !is_meant {
            continue;
        }
        let own = JOB_SOURCES.iter().find(|(known, _)| *known == name);
        let source = match own {
            Some((_, source)) => *source,
            None => match field(name)? {
                Some(source) => carried.field(source),
                None => {
                    let words = JOB_SOURCES.iter().map(|(word, _)| *word);
                    return Err(format!(
                        "has the unknown placeholder {}; it must be {ALL_FORMS}{}",
                        shown(&format!("{{{name}}}")),
                        hint(name, words)
                    ));
                }
            },
        };
        count += 1;
        if count > MAX_PLACEHOLDERS {
            return Err(format!(
                "has too many placeholders; the maximum is {MAX_PLACEHOLDERS}"
            ));
        }
        tokens.push(TextToken::Literal(&text[literal..open]));
        tokens.push(TextToken::Placeholder(source));
        at = close + 1;
        literal = at;
    }
    tokens.push(TextToken::Literal(&text[literal..]));
    tokens.retain(|token| !matches!(token, TextToken::Literal("")));
    Ok(tokens)
}

/// Returns the parts of a schema's regular expression for a text with the placeholders `words`,
/// `header:NAME` and `json:/pointer`: a placeholder, or a literal character or brace; a
/// placeholder; and the end, which may begin with a brace that is never closed.
pub(super) fn patterns(words: &str) -> [String; 3] {
    let placeholder = format!("\\{{({words}|header:[^}}]+|json:/([^}}~]|~[01])*)\\}}");
    // Braces right before another one start no placeholder.
    let braces = "(\\{[a-z-]*)*";
    let literal = "\\{([:}]|[a-z-]*[^a-z:{}-])";
    [
        format!("([^{{]|{braces}({placeholder}|{literal}))"),
        format!("{braces}{placeholder}"),
        "(\\{[^}]*)?".to_owned(),
    ]
}

/// Parses the text of a header in `key`. Returns `None` if it has no placeholder.
///
/// # Errors
/// The text has an unknown placeholder, or a character that no header may have.
pub(crate) fn header(
    text: &str,
    key: &'static str,
    carried: &mut CarriedFields,
) -> Result<Option<Template>, ValueError> {
    let tokens = tokens(text, carried)?;
    let mut parts = Vec::new();
    for token in tokens {
        parts.push(match token {
            TextToken::Literal(text) if HeaderValue::from_bytes(text.as_bytes()).is_err() => {
                return Err("has control characters".to_owned());
            }
            TextToken::Literal(text) => TemplatePart::Literal(text.to_owned()),
            TextToken::Placeholder(source) => {
                carried.used(source, ValuePlace::Header, key);
                TemplatePart::Value(source, ValuePlace::Header)
            }
        });
    }
    let has_some = parts
        .iter()
        .any(|part| matches!(part, TemplatePart::Value(..)));
    Ok(has_some.then_some(Template(parts)))
}

/// Parses host and port of `url`. Returns `None` if they have no placeholder.
///
/// # Errors
/// The host could be in a domain that a job chooses, or a placeholder is unknown or not allowed
/// there.
pub(crate) fn host(
    url: &str,
    key: &'static str,
    carried: &mut CarriedFields,
) -> Result<Option<Template>, ValueError> {
    let [_, host, _] = parts(url);
    if !host.contains('{') {
        return Ok(None);
    }
    let tokens = tokens(host, carried)?;
    let Some((TextToken::Literal(fixed), labels)) = tokens.split_last() else {
        return Err(format!(
            "has a placeholder at the end of its host; {HOST_FORM}"
        ));
    };
    let mut parts = Vec::new();
    for (number, token) in labels.iter().enumerate() {
        match token {
            TextToken::Placeholder(source) if number % 2 == 0 => {
                if !matches!(
                    source,
                    PlaceholderSource::Tenant | PlaceholderSource::Field(_)
                ) {
                    return Err(format!(
                        "has {source} in its host; only {{tenant}}, {{header:NAME}} and \
                        {{json:/pointer}} can be there"
                    ));
                }
                carried.used(*source, ValuePlace::Host, key);
                parts.push(TemplatePart::Value(*source, ValuePlace::Host));
            }
            TextToken::Literal(".") if number % 2 == 1 => {
                parts.push(TemplatePart::Literal(".".to_owned()));
            }
            _ => return Err(format!("has a placeholder in the wrong place; {HOST_FORM}")),
        }
    }
    let parsed = parse_url(url).map_err(|err| format!("is not a valid URL: {err}"))?;
    let count = parts.len().div_ceil(2);
    // The parser has put the fixed part into the form in which it is sent.
    let domain = match parsed.host() {
        Some(Host::Domain(name)) => name.splitn(count + 1, '.').nth(count),
        _ => None,
    };
    let labels = domain.map(|name| name.trim_end_matches('.').split('.'));
    let is_fixed = labels.is_some_and(|labels| {
        let is_label = |label: &str| !label.is_empty() && !label.contains(['{', '}']);
        labels.clone().all(is_label) && labels.count() >= MIN_FIXED_LABELS
    });
    let Some(domain) = domain.filter(|_| is_fixed && fixed.starts_with('.')) else {
        return Err(format!(
            "lacks a domain behind the placeholders of its host; {HOST_FORM}"
        ));
    };
    if domain.len() + count * (MAX_LABEL + 1) > MAX_HOST {
        return Err("has a host that can become longer than 253 characters".to_owned());
    }
    let port = &parsed[Position::AfterHost..Position::AfterPort];
    parts.push(TemplatePart::Literal(format!(".{domain}{port}")));
    Ok(Some(Template(parts)))
}

/// Parses path and query of `url`, encoded as they are sent. Returns `None` if they have no
/// placeholder.
///
/// # Errors
/// A placeholder is unknown or in the wrong place. No part of the URL is in the message.
pub(super) fn target(
    url: &str,
    key: &'static str,
    carried: &mut CarriedFields,
) -> Result<Option<Template>, ValueError> {
    let [.., rest] = parts(url);
    let mut sources = Vec::new();
    let mut marked = "http://h".to_owned();
    for token in tokens(rest, carried)? {
        match token {
            TextToken::Literal(text) => marked.push_str(text),
            TextToken::Placeholder(source) => {
                marked.push_str(&format!("{MARK}{}-", sources.len()));
                sources.push(source);
            }
        }
    }
    if sources.is_empty() {
        return Ok(None);
    }
    let parsed = Url::parse(&marked).map_err(|err| format!("is not a valid URL: {err}"))?;
    if parsed.fragment().is_some_and(|text| text.contains(MARK)) {
        return Err("has a placeholder after a #, but that part is never sent".to_owned());
    }
    let mut parts = Vec::new();
    let path = &parsed[Position::BeforePath..Position::AfterPath];
    let query = &parsed[Position::AfterPath..Position::AfterQuery];
    for (text, location) in [(path, ValuePlace::Path), (query, ValuePlace::Query)] {
        let mut pieces = text.split(MARK);
        parts.extend(
            pieces
                .next()
                .map(|text| TemplatePart::Literal(text.to_owned())),
        );
        for piece in pieces {
            let known = piece.split_once('-').and_then(|(number, text)| {
                Some((*sources.get(number.parse::<usize>().ok()?)?, text))
            });
            let Some((source, text)) = known else {
                return Err(format!(
                    "contains {MARK}, which is reserved for placeholders"
                ));
            };
            carried.used(source, location, key);
            parts.push(TemplatePart::Value(source, location));
            parts.push(TemplatePart::Literal(text.to_owned()));
        }
    }
    parts.retain(|part| !matches!(part, TemplatePart::Literal(text) if text.is_empty()));
    Ok(Some(Template(parts)))
}
