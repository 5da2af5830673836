//! Declarations of keys. Loading, `check`, the environment, a reload, the reference page and the
//! JSON schema all use them.

use std::time::Duration;

use serde_json::Value as Json;

use super::parse::{self, ValueError};
use super::yaml::Raw;
use rules::named::Named;
use rules::text::show_duration;

/// Prefix of our environment variables.
pub const PREFIX: &str = "SLUICEGATE_";

pub(crate) const SECOND: u64 = 1_000;
pub(crate) const MINUTE: u64 = 60 * SECOND;
pub(crate) const HOUR: u64 = 60 * MINUTE;
pub(crate) const DAY: u64 = 24 * HOUR;
/// Maximum duration of a call: RabbitMQ takes back a job after `amqp.consumer-timeout`, by default
/// 30 minutes.
pub(crate) const MAX_CALL_MS: u64 = 25 * MINUTE;

/// A key of the configuration.
#[derive(Debug, Clone, Copy)]
pub struct ConfigKey {
    /// Path, such as `rate-limiter.window-size`.
    pub path: &'static str,
    /// Default, as written in the file, or `None` if there is none.
    pub default: Option<&'static str>,
    /// When a change takes effect.
    pub applies_at: AppliesAt,
    /// Whether the value is never shown.
    pub secret: bool,
    /// Description: a sentence without markup.
    pub about: &'static str,
    /// Further text for the reference page, in Markdown; may be empty.
    pub note: &'static str,
    pub(crate) kind: ValueKind,
    /// The key of a file with this key's value.
    pub(crate) file: Option<&'static Setting<String>>,
}

/// When a changed value takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppliesAt {
    /// Immediately, in a running worker.
    Live,
    /// When the worker is restarted.
    Restart,
}

/// Type of a value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ValueKind {
    /// `true` or `false`.
    Boolean,
    /// A whole number of `unit`.
    Integer {
        min: u64,
        max: u64,
        unit: &'static str,
    },
    /// A duration. `at_least` is the duration that it must not be shorter than.
    Duration {
        min: Duration,
        max: Duration,
        at_least: Option<&'static ConfigKey>,
    },
    /// One of several names.
    Choice(fn() -> Vec<&'static str>),
    /// A URL with one of two schemes, or, with `several`, a list of them.
    Url {
        schemes: [&'static str; 2],
        several: bool,
    },
    /// The path of a file, described in the words of the reference page.
    File(&'static str),
    /// Anything else: a description for the reference page and a JSON schema.
    Other {
        values: &'static str,
        schema: fn() -> Json,
        /// Whether the value is a list or a mapping, which is read as a whole.
        is_tree: bool,
    },
}

impl ConfigKey {
    /// Returns true if the value is a list or a mapping, which is read as a whole.
    pub fn is_tree(&self) -> bool {
        matches!(self.kind, ValueKind::Other { is_tree: true, .. })
    }

    /// Returns the key of the duration that this one must not be shorter than.
    pub(crate) fn at_least(&self) -> Option<&'static ConfigKey> {
        match self.kind {
            ValueKind::Duration { at_least, .. } => at_least,
            _ => None,
        }
    }

    /// Returns the last part of the path.
    pub fn name(&self) -> &'static str {
        last(self.path)
    }

    /// Returns the environment variable that sets the key.
    pub fn env_name(&self) -> String {
        env_name(self.path)
    }

    /// Describes the possible values in Markdown.
    pub fn values(&self) -> String {
        match self.kind {
            ValueKind::Boolean => "`true`, `false`".to_owned(),
            ValueKind::Integer { min, max, unit } => format!("{unit}, {min} to {max}"),
            ValueKind::Duration { min, max, at_least } => {
                let other =
                    at_least.map_or(String::new(), |key| format!(", at least `{}`", key.path));
                format!(
                    "duration, {} to {}{other}",
                    show_duration(min),
                    show_duration(max)
                )
            }
            ValueKind::Choice(names) => {
                let names: Vec<String> = (names().iter()).map(|name| format!("`{name}`")).collect();
                names.join(", ")
            }
            ValueKind::Url { schemes, several } => {
                let one = format!("`{}://` or `{}://`", schemes[0], schemes[1]);
                match several {
                    true => format!("{one}; several separated by commas, or as a list"),
                    false => one,
                }
            }
            ValueKind::File(values) | ValueKind::Other { values, .. } => values.to_owned(),
        }
    }
}

/// Returns true if `path` is that of `section`, a key or a section, or below it.
pub(crate) fn is_in(path: &str, section: &str) -> bool {
    let rest = path.strip_prefix(section);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns the last part of `path`.
pub(crate) fn last(path: &'static str) -> &'static str {
    path.rsplit('.').next().unwrap_or(path)
}

/// Returns the environment variable that sets `path`: `rate-limiter.use-algo` is
/// `SLUICEGATE_RATE_LIMITER__USE_ALGO`.
pub fn env_name(path: &str) -> String {
    let name = path.replace('.', "__").replace('-', "_").to_uppercase();
    format!("{PREFIX}{name}")
}

/// A key with the parser of its value.
#[derive(Debug)]
pub(crate) struct Setting<T> {
    pub key: ConfigKey,
    /// Parses and checks a raw value.
    pub read: fn(&Raw) -> Result<T, ValueError>,
}

impl<T> Setting<T> {
    const fn new(
        path: &'static str,
        kind: ValueKind,
        read: fn(&Raw) -> Result<T, ValueError>,
    ) -> Self {
        let key = ConfigKey {
            path,
            default: None,
            applies_at: AppliesAt::Restart,
            secret: false,
            about: "",
            note: "",
            kind,
            file: None,
        };
        Self { key, read }
    }

    /// Returns the default, or `None` if there is none.
    pub fn default_value(&self) -> Option<T> {
        (self.read)(&Raw::Text(self.key.default?.to_owned())).ok()
    }

    /// Returns the key if `value` is not its default.
    pub fn changed(&self, value: &T) -> Option<&ConfigKey>
    where
        T: PartialEq,
    {
        (self.default_value().as_ref() != Some(value)).then_some(&self.key)
    }

    /// Sets the default.
    pub const fn default(mut self, text: &'static str) -> Self {
        self.key.default = Some(text);
        self
    }

    /// Makes a change take effect in a running worker.
    pub const fn live(mut self) -> Self {
        self.key.applies_at = AppliesAt::Live;
        self
    }

    /// Marks the value as secret.
    pub const fn secret(mut self) -> Self {
        self.key.secret = true;
        self
    }

    /// Lets `other` name a file with the value.
    pub const fn or_file(mut self, other: &'static Setting<String>) -> Self {
        self.key.file = Some(other);
        self
    }

    /// Sets the description: a sentence without markup.
    pub const fn about(mut self, text: &'static str) -> Self {
        self.key.about = text;
        self
    }

    /// Sets further text for the reference page.
    pub const fn note(mut self, text: &'static str) -> Self {
        self.key.note = text;
        self
    }
}

/// A key whose values may have any type.
pub(crate) trait AnySetting: Sync {
    /// Returns the key.
    fn key(&self) -> &ConfigKey;
    /// Checks a raw value.
    fn check(&self, raw: &Raw) -> Result<(), ValueError>;
}

impl<T> AnySetting for Setting<T> {
    fn key(&self) -> &ConfigKey {
        &self.key
    }
    fn check(&self, raw: &Raw) -> Result<(), ValueError> {
        (self.read)(raw).map(drop)
    }
}

/// Declares a key whose value is `true` or `false`.
pub(crate) const fn boolean(path: &'static str) -> Setting<bool> {
    Setting::new(path, ValueKind::Boolean, parse::boolean)
}

/// Declares a key whose value is a whole number from `MIN` to `MAX` that fits into `T`.
pub(crate) const fn integer<T: TryFrom<u64>, const MIN: u64, const MAX: u64>(
    path: &'static str,
    unit: &'static str,
) -> Setting<T> {
    let kind = ValueKind::Integer {
        min: MIN,
        max: MAX,
        unit,
    };
    Setting::new(path, kind, |raw| parse::integer(raw, MIN, MAX))
}

/// Declares a key whose value is a duration from `MIN` to `MAX` milliseconds.
pub(crate) const fn duration<const MIN: u64, const MAX: u64>(
    path: &'static str,
) -> Setting<Duration> {
    let kind = ValueKind::Duration {
        min: Duration::from_millis(MIN),
        max: Duration::from_millis(MAX),
        at_least: None,
    };
    Setting::new(path, kind, |raw| {
        parse::duration(raw, Duration::from_millis(MIN), Duration::from_millis(MAX))
    })
}

impl Setting<Duration> {
    /// Requires the value to be at least that of `other`.
    pub const fn at_least(mut self, other: &'static Self) -> Self {
        if let ValueKind::Duration { at_least, .. } = &mut self.key.kind {
            *at_least = Some(&other.key);
        }
        self
    }
}

/// Declares a key whose value is one of the names of `T`.
pub(crate) const fn choice<T: Named>(path: &'static str) -> Setting<T> {
    choice_of(path, T::names, |raw| parse::choice(raw, &T::all()))
}

/// Declares a key whose value is one of `names`.
pub(crate) const fn choice_of<T>(
    path: &'static str,
    names: fn() -> Vec<&'static str>,
    read: fn(&Raw) -> Result<T, ValueError>,
) -> Setting<T> {
    Setting::new(path, ValueKind::Choice(names), read)
}

/// Declares a key whose value is one or several URLs with one of `schemes`. They may contain
/// passwords.
pub(crate) const fn url<T>(
    path: &'static str,
    schemes: [&'static str; 2],
    several: bool,
    read: fn(&Raw) -> Result<T, ValueError>,
) -> Setting<T> {
    Setting::new(path, ValueKind::Url { schemes, several }, read).secret()
}

/// Declares a key that names a file with the value of another key.
pub(crate) const fn file(path: &'static str) -> Setting<String> {
    file_with(path, |raw| {
        parse::text(raw, "the path of a file that contains it").map(str::to_owned)
    })
}

/// Declares a key that names a file, which `read` describes in its error.
pub(crate) const fn file_with(
    path: &'static str,
    read: fn(&Raw) -> Result<String, ValueError>,
) -> Setting<String> {
    Setting::new(path, ValueKind::File("path"), read)
}

/// Declares a key that names a folder.
pub(crate) const fn folder(path: &'static str) -> Setting<String> {
    Setting::new(path, ValueKind::File("path of a folder"), |raw| {
        parse::text(raw, "the path of a folder").map(str::to_owned)
    })
}

/// Declares a key that names a PEM file.
pub(crate) const fn pem(path: &'static str) -> Setting<String> {
    Setting::new(path, ValueKind::File("path of a PEM file"), |raw| {
        parse::text(raw, "the path of a PEM file").map(str::to_owned)
    })
}

/// Declares a key whose value is a text, described by `values` for people and by `schema` for
/// programs.
pub(crate) const fn text<T>(
    path: &'static str,
    values: &'static str,
    schema: fn() -> Json,
    read: fn(&Raw) -> Result<T, ValueError>,
) -> Setting<T> {
    let kind = ValueKind::Other {
        values,
        schema,
        is_tree: false,
    };
    Setting::new(path, kind, read)
}

/// Declares a key whose value is a list or a mapping, which is read as a whole.
pub(crate) const fn tree<T>(
    path: &'static str,
    values: &'static str,
    schema: fn() -> Json,
    read: fn(&Raw) -> Result<T, ValueError>,
) -> Setting<T> {
    let kind = ValueKind::Other {
        values,
        schema,
        is_tree: true,
    };
    Setting::new(path, kind, read)
}

/// Returns a copy of the raw value, for keys that are parsed together with others.
pub(crate) fn as_written(raw: &Raw) -> Result<Raw, ValueError> {
    Ok(raw.clone())
}

/// Declares the keys of a section in the order of the reference page: a static [`Setting`] for
/// each, and `KEYS` with all of them.
macro_rules! keys {
    ($($name:ident: $value:ty = $setting:expr;)+) => {
        $(pub(crate) static $name: $crate::reading::key::Setting<$value> =
            $setting;)+
        /// The keys of the section, in the order of the reference page.
        pub(crate) const KEYS: &[&$crate::reading::key::ConfigKey] =
            &[$(&$name.key),+];
    };
}
pub(crate) use keys;
