//! What a call carries of its job: texts with placeholders, and the values that stand for them.
//!
//! `{tenant}`, `{id}` and `{attempt}` are the job's own, `{header:NAME}` and `{json:/pointer}` its message's, `{secret:tenant}` its tenant's. The configuration
//! says which a call needs ([`Carried`]). They are read once, with all else that a message says of its job ([`Values`]): a job
//! without one of them is no job, and costs neither a wait nor a permit. A value never changes where a call goes: its bytes are
//! encoded for their place, and what could mean another path is refused.

use std::borrow::Cow;
use std::fmt;

use super::{Field, Job, ValueField};

/// The longest value of a placeholder, in bytes.
pub const MAX_VALUE: usize = 1024;
/// The longest value of a header that goes along, in bytes: `baggage` (W3C) may have so many.
pub const MAX_FORWARDED: usize = 8192;

/// Where a value stands, which decides what it may be and how it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the path of a url.
    Path,
    /// In the query of a url.
    Query,
    /// In a header.
    Header,
}

/// Which value of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// `{tenant}`
    Tenant,
    /// `{id}`
    Id,
    /// `{attempt}`
    Attempt,
    /// `{secret:tenant}`: not the job's, but its tenant's.
    Secret,
    /// `{header:NAME}` or `{json:/pointer}`: the field of this number in [`Carried`].
    Field(usize),
}

/// A part of a [`Template`].
#[derive(Clone, PartialEq, Eq)]
pub enum Part {
    /// Text that is the same for all jobs.
    Literal(String),
    /// A job's value.
    Value(Source, Place),
}

/// A text with placeholders. What is the same for all jobs may be a secret: `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Template(pub Vec<Part>);

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.0 {
            match part {
                Part::Literal(_) => f.write_str("***")?,
                Part::Value(source, _) => write!(f, "{source}")?,
            }
        }
        Ok(())
    }
}

impl Template {
    /// The text for `job`, each value encoded for its place. The job's values must be those that [`Carried::read`] found; `secret` is
    /// that of its tenant.
    pub fn render(&self, job: &Job, secret: &str) -> String {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Literal(literal) => text.push_str(literal),
                Part::Value(source, place) => {
                    place.write(&source.value(job, secret), &mut text);
                }
            }
        }
        text
    }

    /// All of it, with its secrets: for comparing, never for printing.
    pub fn expose(&self) -> String {
        let part = |part: &Part| match part {
            Part::Literal(text) => text.clone(),
            Part::Value(source, _) => format!("{source:?}"),
        };
        self.0.iter().map(part).collect()
    }

    /// It names its job's tenant's secret.
    pub fn has_secret(&self) -> bool {
        let is_one = |part: &Part| matches!(part, Part::Value(Source::Secret, _));
        self.0.iter().any(is_one)
    }

    /// The texts that are the same for all jobs.
    pub fn literals(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Literal(text) => Some(text.as_str()),
            Part::Value(..) => None,
        })
    }
}

impl Source {
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

impl Place {
    /// What no value may be here.
    pub(crate) fn refuses(self, value: &str) -> Option<&'static str> {
        match self {
            Self::Path if value.is_empty() => Some("is empty"),
            // Some servers decode `%2F` before they look for such parts, which would lead to another path.
            Self::Path if value.split(['/', '\\']).any(is_dots) => {
                Some("has . or .. as a part of a path")
            }
            Self::Header if value.chars().any(|c| c.is_control() && c != '\t') => {
                Some("has control characters")
            }
            Self::Path | Self::Query | Self::Header => None,
        }
    }

    /// Writes `value` as it stands here.
    fn write(self, value: &str, text: &mut String) {
        match self {
            Self::Header => text.push_str(value),
            Self::Path | Self::Query => encode(value, text),
        }
    }
}

/// Writes `value` as a part of a url: all but unreserved characters (RFC 3986) are percent-encoded.
pub fn encode(value: &str, text: &mut String) {
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(char::from(byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
}

/// Dots alone: with those that stand beside a placeholder, they could make `..`.
fn is_dots(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte == b'.')
}

/// A placeholder, where it stands, and the key of the configuration in which it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Use {
    source: Source,
    place: Place,
    key: &'static str,
}

/// All that calls carry of their jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Carried {
    fields: Vec<ValueField>,
    uses: Vec<Use>,
    /// `dispatch.http.forward-headers`: a job's headers that go along where it has them.
    pub forward: Vec<String>,
}

/// What a job has for the placeholders of [`Carried`], and the headers that go along.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Values {
    fields: Vec<String>,
    forwarded: Vec<Option<String>>,
}

impl Values {
    /// The header number `number` of [`Carried::forward`], if the job has it.
    pub fn forwarded(&self, number: usize) -> Option<&str> {
        self.forwarded.get(number)?.as_deref()
    }
}

impl Carried {
    /// The placeholder for `field`, which may stand in several places.
    pub fn field(&mut self, field: ValueField) -> Source {
        let known = self.fields.iter().position(|known| *known == field);
        Source::Field(known.unwrap_or_else(|| {
            self.fields.push(field);
            self.fields.len() - 1
        }))
    }

    /// `source` stands at `place` in `key`.
    pub fn used(&mut self, source: Source, place: Place, key: &'static str) {
        self.uses.push(Use { source, place, key });
    }

    /// Nothing of jobs but what each call carries.
    pub fn is_nothing(&self) -> bool {
        self.uses.is_empty() && self.forward.is_empty()
    }

    /// Where values stand in bodies.
    pub fn pointers(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().filter_map(|field| match field {
            ValueField::Json(pointer) => Some(pointer.as_str()),
            ValueField::Header(_) => None,
        })
    }

    /// Reads the values of a job: `header` finds its headers, `json` what its body has at the pointer of that number among
    /// [`Carried::pointers`].
    ///
    /// # Errors
    /// In words: which value is missing or can't be used, and which key of the configuration needs it.
    pub fn read<'m>(
        &self,
        (tenant, id): (&str, &str),
        header: impl Fn(&str) -> Field<'m>,
        json: impl Fn(usize) -> Result<Field<'m>, String>,
    ) -> Result<Values, String> {
        let mut values = Values::default();
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
            let value = value.map_err(|why| self.explain(Source::Field(number), &why))?;
            values.fields.push(value);
        }
        for used in &self.uses {
            let value = match used.source {
                Source::Tenant => tenant,
                Source::Id => id,
                Source::Attempt | Source::Secret => continue,
                Source::Field(number) => values.fields.get(number).map_or("", String::as_str),
            };
            if let Some(why) = used.place.refuses(value) {
                let name = self.name(used.source);
                return Err(format!("{name} {why}; {} can't carry it", used.key));
            }
        }
        for name in &self.forward {
            values.forwarded.push(match header(name) {
                Field::Missing => None,
                found => Some(
                    text(found, MAX_FORWARDED)
                        .and_then(|value| match Place::Header.refuses(&value) {
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

    fn explain(&self, source: Source, why: &str) -> String {
        let (name, mut uses) = (self.name(source), self.uses.iter());
        let used = uses.find(|used| used.source == source);
        match used {
            Some(Use { key, .. }) => format!("{name} {why}; {key} needs it"),
            None => format!("{name} {why}"),
        }
    }

    fn name(&self, source: Source) -> String {
        match source {
            Source::Tenant => "the tenant".to_owned(),
            Source::Id => "the job's id".to_owned(),
            Source::Attempt => "the attempt".to_owned(),
            Source::Secret => "the tenant's secret".to_owned(),
            Source::Field(number) => match self.fields.get(number) {
                Some(ValueField::Header(name)) => format!("header {name}"),
                Some(ValueField::Json(pointer)) => format!("json:{pointer}"),
                None => "a value".to_owned(),
            },
        }
    }
}

/// A text or a whole number, as text.
fn text(found: Field<'_>, longest: usize) -> Result<String, String> {
    match found {
        Field::Text(text) if text.len() > longest => Err(format!("has more than {longest} bytes")),
        Field::Text(text) => Ok(text.to_owned()),
        Field::Int(number) => Ok(number.to_string()),
        Field::Missing => Err("is missing".to_owned()),
        Field::Time(_) | Field::Other(_) => {
            let kind = found.kind();
            Err(format!("is {kind}, and neither a text nor a whole number"))
        }
    }
}

impl fmt::Display for Source {
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
