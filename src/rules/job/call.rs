//! The values that a call takes from its job: templates with placeholders, and the values of the
//! placeholders.
//!
//! `{tenant}`, `{id}` and `{attempt}` are the job's own, `{header:NAME}` and `{json:/pointer}` are
//! from its message, and `{secret:tenant}` belongs to its tenant. The configuration determines
//! which of them a call needs ([`CarriedFields`]). They are read once, together with the other data
//! of a message ([`PlaceholderValues`]): a message that lacks one of them is invalid, and takes
//! neither a wait nor a permit. A value is encoded for its place, and rejected if it could select
//! another path or another domain.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::utf8_percent_encode;

use super::{Field, Job, ValueField};
use crate::tenant::Tenant;
use crate::text::RESERVED;

/// Maximum length of a placeholder's value in bytes.
pub const MAX_VALUE: usize = 1024;
/// Maximum length of a forwarded header's value in bytes: the maximum of `baggage` (W3C).
pub const MAX_FORWARDED: usize = 8192;
/// Maximum length of a label of a host name in bytes (RFC 1035).
pub const MAX_LABEL: usize = 63;

/// The place of a value, which determines the values allowed and their encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValuePlace {
    /// A label of a URL's host.
    Host,
    /// The path of a URL.
    Path,
    /// The query of a URL.
    Query,
    /// A header.
    Header,
}

/// The source of a placeholder's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceholderSource {
    /// `{tenant}`
    Tenant,
    /// `{id}`
    Id,
    /// `{attempt}`
    Attempt,
    /// `{secret:tenant}`, which belongs to the tenant and not to the job.
    Secret,
    /// `{header:NAME}` or `{json:/pointer}`: the field with this index in [`CarriedFields`].
    Field(usize),
}

/// A part of a [`Template`].
#[derive(Clone, PartialEq, Eq)]
pub enum TemplatePart {
    /// Text that is the same for all jobs.
    Literal(String),
    /// The value of a placeholder.
    Value(PlaceholderSource, ValuePlace),
}

/// A text with placeholders. The literal parts may contain secrets, so `Debug` does not show them.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Template(pub Vec<TemplatePart>);

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.0 {
            match part {
                TemplatePart::Literal(_) => f.write_str("***")?,
                TemplatePart::Value(source, _) => write!(f, "{source}")?,
            }
        }
        Ok(())
    }
}

impl Template {
    /// Returns the text for `job`, with each value encoded for its place. The job's values must
    /// come from [`CarriedFields::read`]; `secret` is its tenant's.
    pub fn render(&self, job: &Job, secret: &str) -> String {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                TemplatePart::Literal(literal) => text.push_str(literal),
                TemplatePart::Value(source, location) => {
                    location.write(&source.value(job, secret), &mut text);
                }
            }
        }
        text
    }

    /// Returns the text for all jobs of `tenant`, or `None` if it differs between its jobs.
    pub fn render_for(&self, tenant: &Tenant) -> Option<String> {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                TemplatePart::Literal(literal) => text.push_str(literal),
                TemplatePart::Value(PlaceholderSource::Tenant, location) => {
                    location.write(tenant.as_str(), &mut text);
                }
                TemplatePart::Value(..) => return None,
            }
        }
        Some(text)
    }

    /// Returns the whole text with its secrets, for comparisons. Must never be printed.
    pub fn expose(&self) -> String {
        let part = |part: &TemplatePart| match part {
            TemplatePart::Literal(text) => text.clone(),
            TemplatePart::Value(source, _) => format!("{source:?}"),
        };
        self.0.iter().map(part).collect()
    }

    /// Returns true if the text contains the secret of the job's tenant.
    pub fn has_secret(&self) -> bool {
        let is_one =
            |part: &TemplatePart| matches!(part, TemplatePart::Value(PlaceholderSource::Secret, _));
        self.0.iter().any(is_one)
    }

    /// Iterates over the literal parts.
    pub fn literals(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            TemplatePart::Literal(text) => Some(text.as_str()),
            TemplatePart::Value(..) => None,
        })
    }
}

impl PlaceholderSource {
    fn value<'j>(self, job: &'j Job, secret: &'j str) -> Cow<'j, str> {
        match self {
            Self::Secret => Cow::Borrowed(secret),
            Self::Tenant => Cow::Borrowed(job.tenant.as_str()),
            Self::Id => Cow::Borrowed(&job.id),
            Self::Attempt => Cow::Owned(job.attempt.to_string()),
            Self::Field(number) => {
                let value = job.values.fields.get(number);
                Cow::Borrowed(value.map_or("", String::as_str))
            }
        }
    }
}

impl ValuePlace {
    /// Returns why `value` is not allowed in this place, or `None` if it is.
    pub fn refuses(self, value: &str) -> Option<&'static str> {
        match self {
            Self::Host | Self::Path if value.is_empty() => Some("is empty"),
            Self::Host
                if !value
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-') =>
            {
                Some("has characters other than letters, digits and hyphens")
            }
            Self::Host if value.starts_with('-') || value.ends_with('-') => {
                Some("begins or ends with a hyphen")
            }
            Self::Host if value.len() > MAX_LABEL => Some("has more than 63 characters"),
            // Some servers decode `%2F` before they resolve `.` and `..`, so a dot segment in a
            // value could lead to another path.
            Self::Path if value.split(['/', '\\']).any(is_dots) => {
                Some("has . or .. as a path segment")
            }
            Self::Header if value.chars().any(|c| c.is_control() && c != '\t') => {
                Some("has control characters")
            }
            Self::Host | Self::Path | Self::Query | Self::Header => None,
        }
    }

    /// Writes `value` in the encoding of this place.
    fn write(self, value: &str, text: &mut String) {
        match self {
            Self::Header => text.push_str(value),
            // The case of a host has no meaning, and one host has one set of connections.
            Self::Host => text.push_str(&value.to_ascii_lowercase()),
            Self::Path | Self::Query => encode(value, text),
        }
    }
}

/// Writes `value` as a part of a URL: percent-encodes all but unreserved characters (RFC 3986).
pub fn encode(value: &str, text: &mut String) {
    text.extend(utf8_percent_encode(value, RESERVED));
}

/// Returns true if `part` consists of dots. Together with dots next to the placeholder they could
/// form `..`.
fn is_dots(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte == b'.')
}

/// A placeholder, its place, and the configuration key that contains it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Use {
    source: PlaceholderSource,
    location: ValuePlace,
    key: &'static str,
}

/// The values that calls take from their jobs, and the headers that they forward.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CarriedFields {
    fields: Vec<ValueField>,
    uses: Vec<Use>,
    /// `dispatch.http.forward-headers`: the headers of a job that are forwarded if it has them.
    pub forward: Vec<String>,
}

/// The values of a job for the placeholders of [`CarriedFields`], and its forwarded headers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlaceholderValues {
    fields: Vec<String>,
    forwarded: Vec<Option<String>>,
}

impl PlaceholderValues {
    /// Returns the value of the header with this index in [`CarriedFields::forward`], if the job
    /// has it.
    pub fn forwarded(&self, number: usize) -> Option<&str> {
        self.forwarded.get(number)?.as_deref()
    }
}

impl CarriedFields {
    /// Adds `field`, unless it is known, and returns the source for its placeholder.
    pub fn field(&mut self, field: ValueField) -> PlaceholderSource {
        let known = self.fields.iter().position(|known| *known == field);
        PlaceholderSource::Field(known.unwrap_or_else(|| {
            self.fields.push(field);
            self.fields.len() - 1
        }))
    }

    /// Records that `source` is used at `location` in the configuration key `key`.
    pub fn used(&mut self, source: PlaceholderSource, location: ValuePlace, key: &'static str) {
        self.uses.push(Use {
            source,
            location,
            key,
        });
    }

    /// Returns true if calls take no values from their jobs and forward no headers.
    pub fn is_nothing(&self) -> bool {
        self.uses.is_empty() && self.forward.is_empty()
    }

    /// Iterates over the pointers of values in bodies.
    pub fn pointers(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().filter_map(|field| match field {
            ValueField::Json(pointer) => Some(pointer.as_str()),
            ValueField::Header(_) => None,
        })
    }

    /// Reads the values of a job. `header` returns a header, and `json` returns the value at the
    /// pointer with this index in [`CarriedFields::pointers`].
    ///
    /// # Errors
    /// Returns a text that says which value is missing or invalid, and which configuration key
    /// needs it.
    pub fn read<'m>(
        &self,
        (tenant, id): (&str, &str),
        header: impl Fn(&str) -> Field<'m>,
        json: impl Fn(usize) -> Result<Field<'m>, String>,
    ) -> Result<PlaceholderValues, String> {
        let mut values = PlaceholderValues::default();
        let mut pointer = 0;
        for (number, field) in self.fields.iter().enumerate() {
            let found = match field {
                ValueField::Header(name) => Ok(header(name)),
                ValueField::Json(_) => {
                    pointer += 1;
                    json(pointer - 1)
                }
            };
            let value = found.and_then(|found| text(found, MAX_VALUE));
            let value =
                value.map_err(|why| self.explain(PlaceholderSource::Field(number), &why))?;
            values.fields.push(value);
        }
        for used in &self.uses {
            let value = match used.source {
                PlaceholderSource::Tenant => tenant,
                PlaceholderSource::Id => id,
                PlaceholderSource::Attempt | PlaceholderSource::Secret => continue,
                PlaceholderSource::Field(number) => {
                    values.fields.get(number).map_or("", String::as_str)
                }
            };
            if let Some(why) = used.location.refuses(value) {
                let name = self.name(used.source);
                let part = match used.location {
                    ValuePlace::Host => "the host in ",
                    _ => "",
                };
                return Err(format!("{name} {why}; {part}{} can't carry it", used.key));
            }
        }
        for name in &self.forward {
            values.forwarded.push(match header(name) {
                Field::Missing => None,
                found => Some(
                    text(found, MAX_FORWARDED)
                        .and_then(|value| match ValuePlace::Header.refuses(&value) {
                            Some(why) => Err(why.to_owned()),
                            None => Ok(value),
                        })
                        .map_err(|why| {
                            format!(
                                "header {name} {why}; it is one of dispatch.http.forward-headers"
                            )
                        })?,
                ),
            });
        }
        Ok(values)
    }

    fn explain(&self, source: PlaceholderSource, why: &str) -> String {
        let (name, mut uses) = (self.name(source), self.uses.iter());
        let used = uses.find(|used| used.source == source);
        match used {
            Some(Use { key, .. }) => format!("{name} {why}; {key} needs it"),
            None => format!("{name} {why}"),
        }
    }

    fn name(&self, source: PlaceholderSource) -> String {
        match source {
            PlaceholderSource::Tenant => "the tenant".to_owned(),
            PlaceholderSource::Id => "the job's id".to_owned(),
            PlaceholderSource::Attempt => "the attempt".to_owned(),
            PlaceholderSource::Secret => "the tenant's secret".to_owned(),
            PlaceholderSource::Field(number) => match self.fields.get(number) {
                Some(ValueField::Header(name)) => format!("header {name}"),
                Some(ValueField::Json(pointer)) => format!("json:{pointer}"),
                None => "a value".to_owned(),
            },
        }
    }
}

/// Returns a string or a 64-bit integer as a text.
fn text(found: Field<'_>, longest: usize) -> Result<String, String> {
    match found {
        Field::Text(text) if text.len() > longest => Err(format!("has more than {longest} bytes")),
        Field::Text(text) => Ok(text.to_owned()),
        Field::Int(number) => Ok(number.to_string()),
        Field::Missing => Err("is missing".to_owned()),
        Field::Time(_) | Field::Other(_) => {
            let kind = found.kind();
            Err(format!(
                "is {kind}, but must be a string or a 64-bit integer"
            ))
        }
    }
}

impl fmt::Display for PlaceholderSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tenant => "{tenant}",
            Self::Id => "{id}",
            Self::Attempt => "{attempt}",
            Self::Secret => "{secret:tenant}",
            Self::Field(_) => "{of its message}",
        })
    }
}
