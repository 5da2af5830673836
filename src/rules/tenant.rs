//! The tenant that a job belongs to, and how its name becomes part of a Redis key.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use percent_encoding::{AsciiSet, utf8_percent_encode};

use crate::text::RESERVED;

/// Maximum length of a tenant's ID in bytes of UTF-8, which is also the limit of an AMQP short
/// string.
pub const MAX_TENANT_BYTES: usize = 255;

/// A tenant's ID: 1 to 255 bytes of UTF-8 without control characters.
///
/// Cheap to clone; compares and hashes by its text.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant(Arc<str>);

/// Why a text is not a tenant's ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TenantError {
    /// The text has no bytes.
    #[error("the tenant is empty")]
    Empty,
    /// The text is longer than 255 bytes; the number is its length.
    #[error("the tenant has {0} bytes; the maximum is {MAX_TENANT_BYTES}")]
    TooLong(usize),
    /// The text contains a control character, which no header or log line may contain; the number
    /// is its position.
    #[error("the tenant has a control character at byte {0}")]
    Control(usize),
}

impl Tenant {
    /// Validates `id`.
    ///
    /// # Errors
    /// Returns a [`TenantError`] that says which rule the text breaks.
    pub fn parse(id: &str) -> Result<Self, TenantError> {
        if id.is_empty() {
            return Err(TenantError::Empty);
        }
        if id.len() > MAX_TENANT_BYTES {
            return Err(TenantError::TooLong(id.len()));
        }
        // Most IDs are plain, which takes less time to check.
        let is_plain = id.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        if !is_plain && let Some((at, _)) = id.char_indices().find(|(_, c)| c.is_control()) {
            return Err(TenantError::Control(at));
        }
        Ok(Self(id.into()))
    }

    /// Returns the ID as the publisher wrote it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the ID as a part of a Redis key: plain characters (`A-Z a-z 0-9 - . _ ~ @ +`) stay
    /// as they are, and every other byte is percent-encoded. `:`, `{`, `}`, `*` and `%` never
    /// appear bare, so no ID can name another's key, empty a hash tag or act as a pattern.
    #[doc(hidden)]
    pub fn key(&self) -> String {
        encode(&self.0)
    }
}

/// The ASCII characters that [`encode`] encodes.
const SPECIAL: &AsciiSet = &RESERVED.remove(b'@').remove(b'+');

/// Returns `text` as a part of a Redis key, encoded as in [`Tenant::key`].
pub fn encode(text: &str) -> String {
    Cow::from(utf8_percent_encode(text, SPECIAL)).into_owned()
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_ids_stay_and_others_are_encoded() {
        for (id, key) in [
            ("acme", "acme"),
            ("a-b.c_d~9@x+y", "a-b.c_d~9@x+y"),
            ("a:28333335", "a%3A28333335"),
            ("}{", "%7D%7B"),
            ("*", "%2A"),
            ("%41", "%2541"),
            ("ä", "%C3%A4"),
        ] {
            assert_eq!(Tenant::parse(id).map(|t| t.key()), Ok(key.to_owned()));
        }
    }

    #[test]
    fn unusable_ids_are_reported_with_the_reason() {
        assert_eq!(Tenant::parse(""), Err(TenantError::Empty));
        assert_eq!(
            Tenant::parse(&"x".repeat(256)),
            Err(TenantError::TooLong(256))
        );
        assert_eq!(Tenant::parse("a\nb"), Err(TenantError::Control(1)));
        assert!(Tenant::parse(&"x".repeat(255)).is_ok());
    }
}
