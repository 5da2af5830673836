//! What a value of each key may be: from what the user wrote to a type that cannot be wrong, or one sentence on what is.

use std::net::SocketAddr;
use std::time::Duration;

use url::Url;

use super::error::shown;
use super::form::{Wrong, choice, duration, parse_duration, text, wrong};
use super::keys::closest;
use super::secret::{Secret, SecretUrl, misplaced_at};
use super::yaml::Raw;
use super::{LogFormat, QueueType, TenantField, ValueField};
use crate::broker::message::is_reserved;
use crate::gate::keys::hash_tag;
use crate::rules::headers;
use crate::rules::lanes::MAX_WORK_QUEUE_BYTES;
use crate::rules::limit::{Algorithm, MAX_WINDOW, Unit, is_name};
use crate::rules::scope::Scope;

/// `rate-limiter.use-algo`
pub(super) fn algorithm(raw: &Raw) -> Result<Algorithm, Wrong> {
    choice(raw, &Algorithm::ALL.map(|algo| (algo.name(), algo)))
}

/// `rate-limiter.unit`
pub(super) fn unit(raw: &Raw) -> Result<Unit, Wrong> {
    choice(
        raw,
        &[Unit::Calls, Unit::Cost].map(|unit| (unit.name(), unit)),
    )
}

/// `rate-limiter.guard`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guard {
    /// `auto`
    Auto,
    /// `strict`
    Strict,
    /// A duration.
    Within(Duration),
}

/// `rate-limiter.guard`
pub(super) fn guard(raw: &Raw) -> Result<Guard, Wrong> {
    match raw {
        Raw::Text(text) if text == "auto" => Ok(Guard::Auto),
        Raw::Text(text) if text == "strict" => Ok(Guard::Strict),
        Raw::Text(text) if parse_duration(text).is_none() => {
            let must = "auto, strict, or a whole number with a unit, such as 50ms or 1s";
            Err(wrong(raw, must))
        }
        raw => duration(raw, Duration::ZERO, MAX_WINDOW).map(Guard::Within),
    }
}

/// `rate-limiter.guard-budget`, in percent.
pub(super) fn guard_budget(raw: &Raw) -> Result<f64, Wrong> {
    let must = "a percentage from 0% to 100%, such as 1% or 0.5%";
    let number = match raw {
        Raw::Text(text) => text.strip_suffix('%'),
        _ => None,
    };
    let percent = number.and_then(|number| number.parse::<f64>().ok());
    let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| wrong(raw, must))
}

/// `rate-limiter.scope`
pub(super) fn scope(raw: &Raw) -> Result<Scope, Wrong> {
    let text = text(raw, "tenant, global, header:NAME or routing-key")?;
    match (text.strip_prefix("header:"), Scope::parse(text)) {
        (Some(name), _) => header(name).map(Scope::Header),
        (None, Some(scope)) => Ok(scope),
        (None, None) => {
            let hint = closest(text, ["tenant", "global", "routing-key"])
                .map(|meant| format!("; did you mean {meant}?"))
                .unwrap_or_default();
            Err(format!(
                "is {}, an unknown scope; there are tenant, global, header:NAME and routing-key{hint}",
                shown(text)
            ))
        }
    }
}

/// `rate-limiter.limits[…].name`
pub(super) fn limit_name(raw: &Raw) -> Result<String, Wrong> {
    const MUST: &str = "1 to 32 of the characters a-z, 0-9 and -, beginning with a letter";
    let name = text(raw, MUST)?;
    if is_name(name) {
        return Ok(name.to_owned());
    }
    Err(wrong(raw, MUST))
}

/// `rate-limiter.plan-header`
pub(super) fn header_name(raw: &Raw) -> Result<String, Wrong> {
    const MUST: &str = "a header's name of 1 to 255 bytes, such as x-plan";
    let name = text(raw, MUST)?;
    if !headers::is_name(name) {
        return Err(wrong(
            raw,
            format_args!("{MUST}, without control characters and spaces at its ends"),
        ));
    }
    free(name)
}

/// What stands after `header:`.
fn header(name: &str) -> Result<String, Wrong> {
    if !headers::is_name(name) {
        return Err("must name a header of 1 to 255 bytes after `header:`, without control characters and spaces at its ends".to_owned());
    }
    free(name)
}

/// A header that says the same as long as the job lives.
fn free(name: &str) -> Result<String, Wrong> {
    if is_reserved(name) {
        return Err(format!(
            "names the header {}, which Sluicegate or RabbitMQ sets on a job's way; use one that publishers set",
            shown(name)
        ));
    }
    Ok(name.to_owned())
}

/// `amqp.queue-type`
pub(super) fn queue_type(raw: &Raw) -> Result<QueueType, Wrong> {
    choice(
        raw,
        &[QueueType::Quorum, QueueType::Classic].map(|kind| (kind.name(), kind)),
    )
}

/// `log.format`
pub(super) fn log_format(raw: &Raw) -> Result<LogFormat, Wrong> {
    choice(
        raw,
        &[LogFormat::Text, LogFormat::Json].map(|format| (format.name(), format)),
    )
}

/// `amqp.queue`.
pub(super) fn queue(raw: &Raw) -> Result<String, Wrong> {
    let must = format!("a name of 1 to {MAX_WORK_QUEUE_BYTES} bytes");
    let name = text(raw, &must)?;
    if name.len() > MAX_WORK_QUEUE_BYTES {
        return Err(format!("has {} bytes; it must be {must}", name.len()));
    }
    if name.starts_with("amq.") {
        return Err(format!(
            "is {}; RabbitMQ keeps names that begin with `amq.` for itself",
            shown(name)
        ));
    }
    if name.contains(char::is_control) {
        return Err("has a control character; no queue name of ours may have one".to_owned());
    }
    Ok(name.to_owned())
}

/// `redis.prefix`. Braces are a hash tag, or would leave every key of a cluster in a slot of its own.
pub(super) fn prefix(raw: &Raw) -> Result<String, Wrong> {
    const MUST: &str = "1 to 128 bytes without spaces and control characters, with braces only as one hash tag that is not empty, such as {rlaas}:rate_limit";
    let prefix = text(raw, MUST)?;
    if prefix.len() > 128 {
        return Err(format!("has {} bytes; it must be {MUST}", prefix.len()));
    }
    let braces = prefix.matches(['{', '}']).count();
    let one_tag = braces == 2 && hash_tag(prefix).is_some();
    if prefix.contains(|c: char| c.is_control() || c.is_whitespace()) || (braces > 0 && !one_tag) {
        return Err(wrong(raw, MUST));
    }
    Ok(prefix.to_owned())
}

/// `job.tenant`
pub(super) fn tenant_field(raw: &Raw) -> Result<TenantField, Wrong> {
    const MUST: &str = "header:NAME, routing-key, or json:/pointer";
    let text = text(raw, MUST)?;
    if text == "routing-key" {
        return Ok(TenantField::RoutingKey);
    }
    match field(text)? {
        Some(Place::Header(name)) => Ok(TenantField::Header(name)),
        Some(Place::Json(pointer)) => Ok(TenantField::Json(pointer)),
        None => Err(wrong(raw, MUST)),
    }
}

/// `job.cost` and `job.deadline`
pub(super) fn value_field(raw: &Raw) -> Result<ValueField, Wrong> {
    const MUST: &str = "header:NAME or json:/pointer";
    match field(text(raw, MUST)?)? {
        Some(Place::Header(name)) => Ok(ValueField::Header(name)),
        Some(Place::Json(pointer)) => Ok(ValueField::Json(pointer)),
        None => Err(wrong(raw, MUST)),
    }
}

/// A place in a message.
enum Place {
    Header(String),
    Json(String),
}

/// `header:NAME` or `json:/pointer`; `None`: neither.
fn field(text: &str) -> Result<Option<Place>, Wrong> {
    if let Some(name) = text.strip_prefix("header:") {
        return header(name).map(|name| Some(Place::Header(name)));
    }
    if let Some(pointer) = text.strip_prefix("json:") {
        let escapes = pointer.split('~').skip(1);
        if pointer.starts_with('/') && escapes.into_iter().all(|rest| rest.starts_with(['0', '1']))
        {
            return Ok(Some(Place::Json(pointer.to_owned())));
        }
        return Err(format!(
            "is {}; a JSON pointer (RFC 6901) begins with `/`, and `~` is written `~0`",
            shown(text)
        ));
    }
    Ok(None)
}

/// `admin.listen`
pub(super) fn listen(raw: &Raw) -> Result<SocketAddr, Wrong> {
    const MUST: &str = "an address and a port, such as 127.0.0.1:9464, 0.0.0.0:9464 or [::1]:0";
    text(raw, MUST)?.parse().map_err(|_| wrong(raw, MUST))
}

/// What [`token`] takes.
pub(super) const TOKEN: &str =
    "16 to 512 letters, digits and -._~+/=, such as openssl rand -hex 32 prints";

/// `admin.token`: what can stand behind `Bearer` (RFC 6750, 2.1), and is too long to be guessed. No error shows any
/// of it.
pub(super) fn token(text: &str) -> Result<Secret, Wrong> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._~+/=".contains(c);
    if !text.chars().all(fits) {
        return Err(format!(
            "has a character that a Bearer token can't have; it must be {TOKEN}"
        ));
    }
    if !(16..=512).contains(&text.len()) {
        return Err(format!("has {} bytes; it must be {TOKEN}", text.len()));
    }
    Ok(Secret::new(text))
}

/// `log.level`: filters of `tracing-subscriber`. It takes any bare word for a target whose everything is
/// logged, so a misspelt level would switch all logs off: such words are refused.
pub(super) fn log_level(raw: &Raw) -> Result<String, Wrong> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let must = format!(
        "{}, or a list such as info,sluicegate=debug",
        LEVELS.join(", ")
    );
    let text = text(raw, &must)?;
    for part in text.split(',').map(str::trim) {
        let level = part.rsplit('=').next().unwrap_or(part).to_lowercase();
        if !LEVELS.contains(&level.as_str()) {
            let hint = closest(&level, LEVELS)
                .map(|meant| format!("; did you mean {meant}?"))
                .unwrap_or_default();
            return Err(format!("{}{hint}", wrong(raw, must)));
        }
    }
    match tracing_subscriber::EnvFilter::builder().parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(wrong(raw, must)),
    }
}

/// A url with one of `schemes` and a host. No error shows any of it.
pub(super) fn secret_url(
    text: &str,
    schemes: [&str; 2],
    example: &str,
) -> Result<SecretUrl, Wrong> {
    let must = format!("a url such as {example}");
    if text.contains(|c: char| c.is_control() || c.is_whitespace()) {
        return Err(format!(
            "has a space or a control character; it must be {must}"
        ));
    }
    let url = Url::parse(text).map_err(|err| match err {
        url::ParseError::RelativeUrlWithoutBase => {
            format!("is no url: it has no scheme; it must be {must}")
        }
        url::ParseError::InvalidPort => format!(
            "has a port that is no number; it must be {must} (in a password, write : / @ and # percent-encoded)"
        ),
        other => format!("is no url: {other}; it must be {must}"),
    })?;
    if !schemes.contains(&url.scheme()) {
        return Err(format!(
            "has the wrong scheme; it must begin with {}:// or {}://",
            schemes[0], schemes[1]
        ));
    }
    // `https:host` is a url too, but nobody means it.
    if !text.contains("://") {
        return Err(format!("has no :// after its scheme; it must be {must}"));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(format!("names no host; it must be {must}"));
    }
    if misplaced_at(&url) {
        return Err("has an @ after the host; in a user or a password, write : / @ and # percent-encoded (%3A %2F %40 %23)".to_owned());
    }
    let path = url.path().trim_start_matches('/');
    match schemes[0] {
        "amqp" if path.contains('/') || (url.path().starts_with("//") && !path.is_empty()) => Err(
            "has a virtual host with a bare /; write it percent-encoded, such as /%2f for the default one".to_owned(),
        ),
        "redis" if !path.is_empty() && path.parse::<u16>().is_err() => {
            Err("has a path that is no database number, such as /0".to_owned())
        }
        _ => Ok(SecretUrl::new(text)),
    }
}
