//! What a message says about itself, once it has been checked.

use bytes::Bytes;

use crate::rules::tenant::Tenant;

/// A header or another field of a message, as the rules see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field<'a> {
    /// There is none.
    Missing,
    /// A text.
    Text(&'a str),
    /// A whole number.
    Int(i64),
    /// Something else; the text names its kind, such as `a table`.
    Other(&'static str),
}

/// A job as a handler sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The message's id; one without got one.
    pub id: String,
    /// Whose quota it uses.
    pub tenant: Tenant,
    /// Units of the limit that it uses.
    pub cost: u32,
    /// Which attempt this is, from 1. A crash of the worker counts as none.
    pub attempt: u32,
    /// The body's type, as the publisher said.
    pub content_type: Option<String>,
    /// The body.
    pub body: Bytes,
}
