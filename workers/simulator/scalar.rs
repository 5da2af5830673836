//! Values in a file that are a number or a text.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, Error, Unexpected, Visitor};

/// A value that is written as a number or as a text.
pub(crate) trait Scalar: Sized {
    /// The expected value, for error messages.
    const EXPECTED: &str;

    fn whole(number: i64) -> Self;

    /// Converts a number. Returns `None` if it must be whole and is not, or if it is too large.
    fn real(number: f64) -> Option<Self>;

    fn text(text: &str) -> Self;
}

/// Reads one value.
///
/// # Errors
/// Returns an error that names the expected value if the file has another one.
pub(crate) fn read<'de, T: Scalar, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_any(ScalarVisitor(PhantomData))
}

struct ScalarVisitor<T>(PhantomData<T>);

impl<T: Scalar> Visitor<'_> for ScalarVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_i64<E>(self, number: i64) -> Result<T, E> {
        Ok(T::whole(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        let read = match i64::try_from(number) {
            Ok(number) => Some(T::whole(number)),
            Err(_) => T::real(number as f64),
        };
        read.ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        T::real(number).ok_or_else(|| E::invalid_type(Unexpected::Float(number), &self))
    }

    fn visit_str<E>(self, text: &str) -> Result<T, E> {
        Ok(T::text(text))
    }
}
