//! The headers that a job carries.

/// What we write into a header: a text or a whole number, nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderValue {
    /// A text.
    Text(String),
    /// A whole number.
    Int(i64),
}
