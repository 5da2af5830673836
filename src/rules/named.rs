//! Enums whose values have names in the configuration.

use strum::VariantArray;

/// An enum whose values have names, which `strum` derives from the variants.
pub trait Named: VariantArray + Into<&'static str> + Copy {
    /// Returns the name in the configuration.
    fn name(self) -> &'static str {
        self.into()
    }

    /// Returns all values with their names, in the order of declaration.
    fn all() -> Vec<(&'static str, Self)> {
        let values = Self::VARIANTS.iter();
        values.map(|value| (value.name(), *value)).collect()
    }

    /// Returns the names of all values, in the order of declaration.
    fn names() -> Vec<&'static str> {
        Self::VARIANTS.iter().map(|value| value.name()).collect()
    }
}
